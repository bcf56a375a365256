/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* A packet as it came: its headers, and whether they are of the kind that is translated here. */
#pragma once

#define SYN 0x02
#define PSH 0x08
#define ACK_FLAG 0x10

#define TCP_LEN 20
#define TS_LEN 12
#define DSS_ACK_LEN 12
#define DSS_MAP_LEN 28
/* One block. */
#define SACK_LEN 12
/* Blocks that find room beside timestamps (RFC 2018, 3). */
#define SACK_BLOCKS 3
/* Options (RFC 9293, 3.2; RFC 8684, 3.3). */
#define NOP 1
#define TIMESTAMPS 8
#define TIMESTAMPS_LEN 10
#define SACK 5
#define MPTCP 30
#define DSS 2
#define DSS_ACK 1
#define DSS_ACK_64 2
#define DSS_MAP 4
#define DSS_DSN_64 8
#define MAX_TCP_LEN 60
/* Room for a TCP header, and what `masked` takes. */
#define TCP_ROOM 64
#define MAX_IP_LEN 0xffff
/* Largest payload of a packet that has to be moved by hand, and what `masked` takes. */
#define MOVED 2048
/* Bytes that bpf_csum_diff adds up in one call: before Linux 6.13 it refuses more. */
#define SUMMED 512

/* What a walk over the client's data finds for a subflow. It stands here and not in registers, so that the verifier does
 * not follow every value through the loops. */
struct step {
	__u64 recent_dsn;
	__u32 recent_len;
	__u32 bytes; /* by which its ACK moves */
	__u32 gone; /* runs that go */
	__u32 rest; /* bytes of the next one that go */
	__u32 whole;
	__u32 pad;
};

/* Where its data belongs, and who gets to know. */
struct walk {
	__u32 gap; /* bytes that it has overtaken */
	__u32 hole; /* the one that it fills, or NOBODY */
	__u32 told; /* a subflow, or NOBODY */
	__u32 also; /* another */
	__u32 moves; /* there are steps */
	/* As they were when the ways to them were looked up. */
	__u32 to;
	__u32 also_to;
};

#define NOBODY 0xffffffffu

struct block {
	__u32 left;
	__u32 right;
};

/* A packet as it came. */
struct packet {
	__u8 l3[40];
	__u8 tcp[TCP_ROOM];
	__u32 l3_len;
	__u32 tcp_len;
	__u32 payload;
	__u32 seq;
	__u32 ack;
	__u32 window;
	__u32 ts_val;
	__u32 ts_ecr;
	__u32 segment; /* payload of one segment */
	/* SACK. */
	struct block sack[SACK_BLOCKS];
	__u32 blocks;
	/* DSS, upwards */
	__u32 dss_flags;
	__u64 data_ack;
	__u64 dsn;
	__u32 ssn;
	__u32 map_len;
	__u8 flags;
	__u8 has_map;
	__u8 is_gso;
	struct walk walk;
	struct step steps[ENTRY_SUBFLOWS];
};

/* A packet as it will leave. */
struct outgoing {
	__u8 from[16];
	__u8 to[16];
	__u16 from_port;
	__u16 to_port;
	__u32 seq;
	__u32 ack;
	__u32 window;
	__u32 ts_val;
	__u32 ts_ecr;
	__u32 label;
	/* Upwards: of `blocks` of the packet. */
	struct block sack;
	/* Downwards. */
	__u64 data_ack;
	__u64 dsn;
	__u32 ssn;
	/* Of a GSO packet (order.h). */
	__u32 dss_at;
	/* The way out. */
	__u32 device;
	__u8 dmac[6];
	__u8 smac[6];
};

/* What would not fit on the stack. */
struct scratch {
	struct packet p;
	struct outgoing o;
	struct outgoing also;
	struct flow_key key;
	struct flow_key back;
	struct bpf_fib_lookup fib;
	__u8 tcp[TCP_ROOM];
	__u8 l3[40];
	/* Headers as they stand in the packet by now. */
	__u8 old[MAX_TCP_LEN];
	__u8 old_l3[40];
	__u32 old_tcp_len;
	__u8 payload[MOVED + 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline void copy16(__u8 *to, const __u8 *from)
{
	__builtin_memcpy(to, from, 16);
}

static __always_inline __u32 load32(const __u8 *at)
{
	__u32 value;
	__builtin_memcpy(&value, at, 4);
	return bpf_ntohl(value);
}

static __always_inline __u32 load16(const __u8 *at)
{
	return at[0] << 8 | at[1];
}

static __always_inline void store32(__u8 *at, __u32 value)
{
	value = bpf_htonl(value);
	__builtin_memcpy(at, &value, 4);
}

static __always_inline void store64(__u8 *at, __u64 value)
{
	store32(at, value >> 32);
	store32(at + 4, value);
}

static __always_inline void store16(__u8 *at, __u32 value)
{
	at[0] = value >> 8;
	at[1] = value;
}

/* A length of 1 to `room` bytes, a power of 2, as the verifier believes it. The mask changes nothing, which the compiler
 * must not know, or it would leave it out. A comparison is not enough: the verifier of Linux 6.1 does not apply it to the
 * copy of a register that the compiler has put on the stack before ("R3 min value is outside of the allowed memory range"),
 * and the compiler leaves out one that another has made superfluous, so that 6.12, too, takes the length for one that may be
 * zero ("R4 invalid zero-sized read"). What a mask yields is known wherever the value goes. */
static __always_inline __u32 masked(__u32 len, const __u32 room)
{
	len--;
	asm volatile("" : "+r"(len));
	return (len & (room - 1)) + 1;
}

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Reads the headers, of which the link's takes `l2_len` bytes. 0, or why the packet is nothing for us; -1: not even TCP, and
 * nobody counts it. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p, const __u32 l2_len, const int v6)
{
	const __u32 l3_len = v6 ? 40 : 20;
	__u32 total, offset = l2_len + l3_len;

	if (bpf_skb_load_bytes(skb, l2_len, p->l3, l3_len) < 0 ||
	    bpf_skb_load_bytes(skb, offset, p->tcp, TCP_LEN) < 0)
		return -1;
	p->l3_len = l3_len;
	if (v6) {
		if (p->l3[0] >> 4 != 6 || p->l3[6] != IPPROTO_TCP)
			return -1;
		total = load16(p->l3 + 4) + 40;
	} else {
		/* Options and fragments are nothing for us. */
		if (p->l3[0] != 0x45 || p->l3[9] != IPPROTO_TCP || load16(p->l3 + 6) & 0x3fff)
			return -1;
		total = load16(p->l3 + 2);
	}
	p->tcp_len = (p->tcp[12] >> 4) * 4;
	if (p->tcp_len < TCP_LEN || total < l3_len + p->tcp_len)
		return -1;
	p->payload = total - l3_len - p->tcp_len;
	p->flags = p->tcp[13];
	p->seq = load32(p->tcp + 4);
	p->ack = load32(p->tcp + 8);
	p->window = load16(p->tcp + 14);
	p->is_gso = skb->gso_size != 0;
	p->segment = p->is_gso ? skb->gso_size : p->payload;
	/* Behind an IP packet that is shorter than its frame stands padding. */
	if (skb->len != l2_len + total)
		return -1;
	return 0;
}

/* Whether the headers are of the kind that is translated here; the rest of the options is loaded. */
static __always_inline int acceptable(struct __sk_buff *skb, struct packet *p, const __u32 l2_len, const int v6)
{
	__u32 ttl = v6 ? p->l3[7] : p->l3[8];
	__u32 tos = v6 ? p->l3[1] >> 4 : p->l3[1];
	__u32 urgent = load16(p->tcp + 18);

	if ((p->flags & ~PSH) != ACK_FLAG || p->tcp[12] & 0xf || urgent)
		return FLAGS;
	if (ttl <= 1 || tos & 3)
		return IP_HEADER;
	if (p->tcp_len < TCP_LEN + TS_LEN)
		return OPTIONS;
	/* What an earlier packet has left there would enter the checksum. */
	__builtin_memset(p->tcp + TCP_LEN, 0, MAX_TCP_LEN - TCP_LEN);
	if (bpf_skb_load_bytes(skb, l2_len + p->l3_len, p->tcp, masked(p->tcp_len, TCP_ROOM)) < 0)
		return OPTIONS;
	if (load32(p->tcp + TCP_LEN) != 0x0101080a)
		return OPTIONS;
	p->ts_val = load32(p->tcp + TCP_LEN + 4);
	p->ts_ecr = load32(p->tcp + TCP_LEN + 8);
	return 0;
}

/* Sum of the pseudo header, not folded. */
static __always_inline __u64 pseudo_sum(const __u8 *from, const __u8 *to, __u32 len, const int v6)
{
	const int words = v6 ? 8 : 2;
	__u64 sum = bpf_htons(IPPROTO_TCP);
	__u16 word;

	for (int i = 0; i < words; i++) {
		__builtin_memcpy(&word, from + 2 * i, 2);
		sum += word;
		__builtin_memcpy(&word, to + 2 * i, 2);
		sum += word;
	}
	word = bpf_htons(len);
	return sum + word;
}

/* The sum of the first `len` bytes of the payload and `sum`, in pieces: whole ones, then the rest. Negative: not added up. */
static __always_inline __s64 payload_sum(struct scratch *c, __u32 len, __s64 sum)
{
	/* Words of 32 bits; what fills the last one counts nothing. */
	__u32 padded = (len + 3) & ~3u;

	__builtin_memset(c->payload + len, 0, 4);
	for (__u32 at = 0; at < MOVED; at += SUMMED) {
		if (padded < at + SUMMED)
			break;
		sum = bpf_csum_diff(0, 0, (__be32 *)(c->payload + at), SUMMED, sum);
	}
	return bpf_csum_diff(0, 0, (__be32 *)(c->payload + (padded & (MOVED - SUMMED))), padded & (SUMMED - 4), sum);
}

/* Whether the checksum of a packet that nobody has checked is right. */
static __always_inline int checksum_right(struct __sk_buff *skb, struct scratch *c, __u64 pseudo, const __u32 l2_len)
{
	__u32 len = c->p.payload;
	__s64 sum;

	if (len > MOVED || !has(PART_SUMS))
		return 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)c->p.tcp, MAX_TCP_LEN, fold(pseudo));
	if (sum < 0)
		return 0;
	if (len) {
		len = masked(len, MOVED);
		if (bpf_skb_load_bytes(skb, l2_len + c->p.l3_len + c->p.tcp_len, c->payload, len) < 0)
			return 0;
		sum = payload_sum(c, len, sum);
		if (sum < 0)
			return 0;
	}
	return fold(sum) == 0xffff;
}

/* Whether the packet is what its sender sent: its checksum is still to be completed, or somebody has verified
 * it, or we do. GRO has verified what it put together. */
static __always_inline int intact(struct __sk_buff *skb, struct scratch *c, const __u32 l2_len, const int v6)
{
	const __u8 *from = c->p.l3 + (v6 ? 8 : 12), *to = c->p.l3 + (v6 ? 24 : 16);
	__u64 pseudo;
	__u16 field;

	if (skb->gso_size)
		return 1;
	__builtin_memcpy(&field, c->p.tcp + 16, 2);
	pseudo = pseudo_sum(from, to, c->p.tcp_len + c->p.payload, v6);
	if (field == fold(pseudo) || bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 1;
	return checksum_right(skb, c, pseudo, l2_len);
}

/* Reads the SACK of a server's packet, which has to stand behind the timestamps, with nothing behind it. */
static __always_inline int parse_sack(struct packet *p)
{
	const __u8 *sack = p->tcp + TCP_LEN + TS_LEN;
	__u32 rest = p->tcp_len - TCP_LEN - TS_LEN;

	p->blocks = rest / 8;
	if (rest && (rest != 4 + 8 * p->blocks || p->payload || sack[0] != NOP || sack[1] != NOP || sack[2] != SACK ||
		     sack[3] != rest - 2))
		return -1;
	for (int i = 0; i < SACK_BLOCKS; i++) {
		p->sack[i].left = load32(sack + 4 + 8 * i);
		p->sack[i].right = load32(sack + 8 + 8 * i);
	}
	return 0;
}

/* Reads the DSS of a client's packet, which has to stand behind the timestamps, or one block of SACK, with nothing
 * behind it but the padding that a mapping needs. A DSS with a checksum is longer than its flags say here. */
static __always_inline int parse_dss(struct packet *p)
{
	const __u8 *dss = p->tcp + TCP_LEN + TS_LEN;
	__u32 rest = p->tcp_len - TCP_LEN - TS_LEN;
	__u32 flags, at = 4;

	p->blocks = rest >= SACK_LEN && dss[0] == NOP && dss[1] == NOP && dss[2] == SACK && dss[3] == SACK_LEN - 2;
	if (p->blocks) {
		p->sack[0].left = load32(dss + 4);
		p->sack[0].right = load32(dss + 8);
		dss += SACK_LEN;
		rest -= SACK_LEN;
	}
	flags = dss[3];
	if (rest < 8 || dss[0] != MPTCP || dss[2] != DSS << 4 || flags & 0xf0 || !(flags & DSS_ACK))
		return -1;
	p->dss_flags = flags;
	p->has_map = (flags & DSS_MAP) != 0;
	p->data_ack = load32(dss + at);
	at += 4;
	if (flags & DSS_ACK_64) {
		p->data_ack = p->data_ack << 32 | load32(dss + at);
		at += 4;
	}
	if (!p->has_map)
		return flags & DSS_DSN_64 || dss[1] != at || rest != at ? -1 : 0;
	/* There is no room for both. */
	if (p->blocks)
		return -1;
	p->dsn = load32(dss + at);
	at += 4;
	if (flags & DSS_DSN_64) {
		p->dsn = p->dsn << 32 | load32(dss + at);
		at += 4;
	}
	p->ssn = load32(dss + at);
	p->map_len = load16(dss + at + 4);
	at += 6;
	return dss[1] != at || rest != at + 2 || dss[at] != NOP || dss[at + 1] != NOP ? -1 : 0;
}
