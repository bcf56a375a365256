// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The fast path: packets of a lent connection that come as expected are translated on the way in and leave again
 * without a visit to user space. Whatever is not expected goes on to the translator, which takes the connection
 * back before it looks at it.
 *
 * Attached to the ingress of every device that packets of services may come in on. One program for both
 * directions: the flow table says which leg a packet is from. A packet is judged in full, and the lease changed,
 * under the lease's lock; only then is it rewritten. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "offload.h"

#define AF_INET 2
#define AF_INET6 10
#define MAX_SLOTS 65536

#define FIN 0x01
#define PSH 0x08
#define ACK_FLAG 0x10

#define TCP_LEN 20
#define TS_LEN 12
#define DSS_ACK_LEN 12
#define DSS_MAP_LEN 28
#define MAX_TCP_LEN 60
/* Largest payload of a packet that has to be moved by hand. */
#define MOVED 2048
/* What an answer may take beyond two round trips before it is overdue (microseconds). */
#define JITTER 5000
#define MAX_IP_LEN 0xffff
/* A data ACK that is further behind than this may be anything. */
#define MAX_AGE (1 << 30)

/* Sizes are set when the programs are loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 5);
	__type(key, struct flow_key);
	__type(value, struct flow_ref);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

/* 1: the lease in this slot is the programs' to use. The translator closes it, then reads the lease under its
 * lock: whoever gets the lock later sees the gate closed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} gates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

/* A packet as it came. */
struct packet {
	__u8 l3[40];
	__u8 tcp[MAX_TCP_LEN];
	__u32 l3_len;
	__u32 tcp_len;
	__u32 payload;
	__u32 seq;
	__u32 ack;
	__u32 window;
	__u32 ts_val;
	__u32 ts_ecr;
	__u32 segment; /* payload of one segment */
	/* DSS, upwards */
	__u32 dss_flags;
	__u64 data_ack;
	__u64 dsn;
	__u32 ssn;
	__u32 map_len;
	__u8 flags;
	__u8 has_map;
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
	/* Downwards. */
	__u64 data_ack;
	__u64 dsn;
	__u32 ssn;
	/* The way out. */
	__u32 device;
	__u8 dmac[6];
	__u8 smac[6];
};

/* What would not fit on the stack. */
struct scratch {
	struct packet p;
	struct outgoing o;
	__u8 tcp[MAX_TCP_LEN];
	__u8 old[MAX_TCP_LEN];
	__u8 l3[40];
	__u8 payload[MOVED + 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

#define after(a, b) ((__s32)((a) - (b)) > 0)
#define after64(a, b) ((__s64)((a) - (b)) > 0)

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

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline void count(__u32 reason)
{
	__u64 *counter = bpf_map_lookup_elem(&reasons, &reason);
	if (counter)
		*counter += 1;
}

static __always_inline int up(__u32 reason)
{
	count(reason);
	return TC_ACT_OK;
}

/* Reads the headers. 0, or why the packet is nothing for us; -1: not even TCP, and nobody counts it. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p, const int v6)
{
	const __u32 l3_len = v6 ? 40 : 20;
	__u32 total, offset = ETH_HLEN + l3_len;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, p->l3, l3_len) < 0 ||
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
	p->segment = skb->gso_size ? skb->gso_size : p->payload;
	/* Behind an IP packet that is shorter than its frame stands padding. */
	if (skb->len != ETH_HLEN + total)
		return -1;
	return 0;
}

/* Whether the headers are of the kind that is translated here; the rest of the options is loaded. */
static __always_inline int acceptable(struct __sk_buff *skb, struct packet *p, const int v6)
{
	__u32 ttl = v6 ? p->l3[7] : p->l3[8];
	__u32 tos = v6 ? p->l3[1] >> 4 : p->l3[1];
	__u32 urgent = load16(p->tcp + 18);
	__u32 rest;

	if ((p->flags & ~PSH) != ACK_FLAG || p->tcp[12] & 0xf || urgent)
		return FLAGS;
	if (ttl <= 1 || tos & 3)
		return IP_HEADER;
	if (p->tcp_len < TCP_LEN + TS_LEN)
		return OPTIONS;
	rest = p->tcp_len - TCP_LEN;
	if (rest > 40)
		return OPTIONS;
	/* What an earlier packet has left there would enter the checksum. */
	__builtin_memset(p->tcp + TCP_LEN, 0, 40);
	if (bpf_skb_load_bytes(skb, ETH_HLEN + p->l3_len + TCP_LEN, p->tcp + TCP_LEN, rest) < 0)
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

/* Whether the checksum of a packet that nobody has checked is right. */
static __always_inline int checksum_right(struct __sk_buff *skb, struct scratch *c, __u64 pseudo)
{
	__u32 len = c->p.payload;
	__s64 sum;

	if (len > MOVED)
		return 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)c->p.tcp, MAX_TCP_LEN, fold(pseudo));
	if (sum < 0)
		return 0;
	if (len) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + c->p.l3_len + c->p.tcp_len, c->payload, len) < 0)
			return 0;
		__builtin_memset(c->payload + len, 0, 4);
		sum = bpf_csum_diff(0, 0, (__be32 *)c->payload, (len + 3) & ~3u, sum);
		if (sum < 0)
			return 0;
	}
	return fold(sum) == 0xffff;
}

/* Whether the packet is what its sender sent: its checksum is still to be completed, or somebody has verified
 * it, or we do. GRO has verified what it put together. */
static __always_inline int intact(struct __sk_buff *skb, struct scratch *c, const int v6)
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
	return checksum_right(skb, c, pseudo);
}

/* Reads the DSS of a client's packet, which has to stand behind the timestamps, with nothing behind it. */
static __always_inline int parse_dss(struct packet *p)
{
	const __u8 *dss = p->tcp + TCP_LEN + TS_LEN;
	__u32 rest = p->tcp_len - TCP_LEN - TS_LEN;
	__u32 at = 4, expected;

	if (rest < 8 || dss[0] != 30 || dss[2] != 0x20 || dss[3] & 0xf0 || !(dss[3] & 1))
		return -1;
	p->dss_flags = dss[3];
	if (p->dss_flags & 2) {
		p->data_ack = (__u64)load32(dss + 4) << 32 | load32(dss + 8);
		at = 12;
	} else {
		p->data_ack = load32(dss + 4);
		at = 8;
	}
	p->has_map = p->dss_flags >> 2 & 1;
	if (!p->has_map)
		return p->dss_flags & 8 || dss[1] != at || rest != at ? -1 : 0;
	/* Four layouts, each at its place, as the verifier wants to see them. */
	switch (p->dss_flags) {
	case 0x0f:
		p->dsn = (__u64)load32(dss + 12) << 32 | load32(dss + 16);
		p->ssn = load32(dss + 20);
		p->map_len = load16(dss + 24);
		expected = 26;
		break;
	case 0x07:
		p->dsn = load32(dss + 12);
		p->ssn = load32(dss + 16);
		p->map_len = load16(dss + 20);
		expected = 22;
		break;
	case 0x0d:
		p->dsn = (__u64)load32(dss + 8) << 32 | load32(dss + 12);
		p->ssn = load32(dss + 16);
		p->map_len = load16(dss + 20);
		expected = 22;
		break;
	case 0x05:
		p->dsn = load32(dss + 8);
		p->ssn = load32(dss + 12);
		p->map_len = load16(dss + 16);
		expected = 18;
		break;
	default:
		return -1;
	}
	if (dss[1] != expected || rest != expected + 2)
		return -1;
	/* No checksum fits in there: what is left are two bytes of padding. */
	return 0;
}

/* The way out for a packet between these ends, as if it came from FlexCP's device. */
static __always_inline int route(struct __sk_buff *skb, struct packet *p, struct outgoing *o, __u32 device, __u32 headers,
				 const int v6)
{
	struct bpf_fib_lookup fib = {};
	long found;

	fib.family = v6 ? AF_INET6 : AF_INET;
	fib.l4_protocol = IPPROTO_TCP;
	fib.sport = bpf_htons(o->from_port);
	fib.dport = bpf_htons(o->to_port);
	fib.tot_len = p->segment + headers;
	fib.ifindex = device;
	if (v6) {
		__builtin_memcpy(fib.ipv6_src, o->from, 16);
		__builtin_memcpy(fib.ipv6_dst, o->to, 16);
	} else {
		fib.tos = p->l3[1] & ~3;
		__builtin_memcpy(&fib.ipv4_src, o->from, 4);
		__builtin_memcpy(&fib.ipv4_dst, o->to, 4);
	}
	/* A neighbour that is not known is the kernel's to find, and to give up. */
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	o->device = fib.ifindex;
	__builtin_memcpy(o->dmac, fib.dmac, 6);
	__builtin_memcpy(o->smac, fib.smac, 6);
	return 0;
}

/* Whether an answer of the client on this subflow is overdue (the translator's Subflow::is_overdue). */
static __always_inline int overdue(const struct lease_subflow *s, __u64 now, __u64 silence)
{
	__u64 limit = (__u64)s->srtt * 2 + JITTER, patience = silence;

	if (!s->srtt || s->snd_next == s->snd_una || s->snd_next - s->snd_una < s->mss * 2)
		return 0;
	if (patience < (__u64)s->srtt * 2)
		patience = (__u64)s->srtt * 2;
	if (limit > patience)
		limit = patience;
	return now - s->outstanding_since >= limit;
}

/* Drops mappings from the ring that the client has ACKed on the subflow and in the data. */
static __always_inline void forget_acked(struct lease *l, const struct lease_subflow *a)
{
	__u32 done = a->snd_next - (__u32)(l->down_next - l->down_acked);

	if (after(done, a->snd_una))
		done = a->snd_una;
	for (int i = 0; i < 4; i++) {
		struct mapping_run *run = &l->runs[l->first_run & (LEASE_RUNS - 1)];

		if (!l->runs_used || after(run->ssn + (__u32)run->len * run->count, done))
			return;
		l->first_run = (l->first_run + 1) & (LEASE_RUNS - 1);
		l->runs_used--;
	}
}

/* Remembers a mapping that goes down. 0: there is no room. */
static __always_inline int remember(struct lease *l, __u32 ssn, __u32 len)
{
	struct mapping_run *run;

	if (l->runs_used) {
		run = &l->runs[(l->first_run + l->runs_used - 1) & (LEASE_RUNS - 1)];
		if (run->len == len && run->count < 0xffff && run->ssn + (__u32)run->len * run->count == ssn) {
			run->count++;
			return 1;
		}
	}
	if (l->runs_used >= LEASE_RUNS)
		return 0;
	run = &l->runs[(l->first_run + l->runs_used) & (LEASE_RUNS - 1)];
	run->ssn = ssn;
	run->len = len;
	run->count = 1;
	l->runs_used++;
	return 1;
}

/* The server's ACK and window. 0, or why the translator has to see it. */
static __always_inline int take_server_header(struct lease *l, const struct packet *p, struct lease_subflow *run)
{
	__u64 ack = l->up_next - (__u32)(l->seq_up - p->ack);
	__u64 offered = (__u64)p->window << l->server_scale;
	__u64 known = l->up_acked + ((__u64)l->server_window << l->server_scale);
	__u64 edge = ack + offered;

	if (after(p->ack, l->seq_up) || after64(l->up_acked, ack))
		return ACK;
	/* A used-up window that opens is news for every subflow. */
	if (!after64(known, l->up_next + (__u64)l->server_mss * 2) && after64(edge, known))
		return WINDOW;
	if (ack != l->up_acked) {
		run->rcv_ack += (__u32)(ack - l->up_acked);
	}
	if (after64(edge, l->server_edge))
		l->server_edge = edge;
	if (ack != l->up_acked || !after64(known, edge)) {
		l->server_window = p->window;
		if (offered > l->server_window_max)
			l->server_window_max = offered;
	}
	l->up_acked = ack;
	if (after(p->ts_val, l->ts_heard))
		l->ts_heard = p->ts_val;
	return 0;
}

/* Fills in what all packets down a subflow share. */
static __always_inline void address_down(struct outgoing *o, const struct lease_subflow *s)
{
	copy16(o->from, s->local_addr);
	copy16(o->to, s->remote_addr);
	o->from_port = s->local_port;
	o->to_port = s->remote_port;
}

static __always_inline void header_down(struct outgoing *o, const struct lease *l, const struct lease_subflow *s,
					const struct packet *p)
{
	__u32 echo = p->ts_ecr - s->clock_offset;

	o->ack = s->rcv_ack;
	o->window = l->server_window;
	o->ts_val = l->ts_heard;
	o->ts_ecr = after(echo, s->clock_heard) ? s->clock_heard : echo;
	o->data_ack = l->up_acked;
}

/* A packet of the server's, under the lock: 0, and `o` is filled in and the lease changed; or why not. */
static __always_inline int judge_down(struct lease *l, struct packet *p, struct outgoing *o, __u64 now, const int v6)
{
	__u32 active = l->active & (LEASE_SUBFLOWS - 1), run = l->run & (LEASE_SUBFLOWS - 1);
	struct lease_subflow *a = &l->subflows[active], *r = &l->subflows[run];
	__u64 ack = l->up_next - (__u32)(l->seq_up - p->ack);
	int refused;

	if (p->seq != l->seq_down)
		return after(p->seq, l->seq_down) ? AHEAD : REPEATED;
	if (ack != l->up_acked && l->run == NO_SUBFLOW)
		return ACK;
	if (!p->payload) {
		if (ack == l->up_acked)
			return NO_NEWS;
		refused = take_server_header(l, p, r);
		if (refused)
			return refused;
		o->seq = r->snd_next;
		header_down(o, l, r, p);
		goto done;
	}
	if (ack != l->up_acked && run != active)
		return ACK;
	if (p->segment + TS_LEN + DSS_MAP_LEN > a->mss)
		return TOO_LONG;
	if (after(a->snd_next + p->payload, a->snd_edge) || after64(l->down_next + p->payload, l->down_edge))
		return WINDOW;
	if (overdue(a, now, l->silence))
		return OVERDUE;
	forget_acked(l, a);
	if (l->runs_used >= LEASE_RUNS)
		return NO_ROOM;
	refused = take_server_header(l, p, r);
	if (refused)
		return refused;
	remember(l, a->snd_next, p->payload);
	o->seq = a->snd_next;
	o->dsn = l->down_next;
	o->ssn = a->snd_next - a->isn_local;
	header_down(o, l, a, p);
	if (a->snd_una == a->snd_next)
		a->outstanding_since = now;
	a->snd_next += p->payload;
	if (!a->is_timed) {
		a->is_timed = 1;
		a->timed = a->snd_next;
		a->timed_at = now;
	}
	a->bytes_down += p->payload;
	l->down_next += p->payload;
	l->seq_down += p->payload;
done:
	if (v6) {
		l->label_down = (p->l3[1] & 0xf) << 16 | p->l3[2] << 8 | p->l3[3];
		o->label = l->label_down;
	}
	l->last_packet = now;
	l->packets_down++;
	return 0;
}

/* Subflow::take_ack and Subflow::heard. */
static __always_inline void take_subflow_ack(struct lease_subflow *s, const struct packet *p, __u64 now)
{
	s->last_heard = now;
	if (!p->payload)
		s->outstanding_since = now;
	if (after(p->ts_val, s->clock_heard))
		s->clock_heard = p->ts_val;
	if (!after(p->ack, s->snd_una))
		return;
	s->snd_una = p->ack;
	s->outstanding_since = now;
	if (s->is_timed && !after(s->timed, p->ack)) {
		__u32 sample = now - s->timed_at;

		/* 0 stands for none. */
		if (!sample)
			sample = 1;

		s->is_timed = 0;
		s->srtt = s->srtt ? s->srtt - s->srtt / 8 + sample / 8 : sample;
	}
}

/* ServerClock::translate. */
static __always_inline void take_clock(struct lease *l, const struct lease_subflow *s, const struct packet *p, __u64 now)
{
	__u32 val = p->ts_val + s->clock_offset;

	if (after(val, l->ts_sent)) {
		l->ts_sent = val;
		l->ts_sent_at = now;
	}
	if (after(p->ts_ecr, l->ts_echo) && !after(p->ts_ecr, l->ts_heard))
		l->ts_echo = p->ts_ecr;
}

/* A packet of the client's, under the lock. */
static __always_inline int judge_up(struct lease *l, struct packet *p, struct outgoing *o, __u32 index, __u64 now,
				    const int v6)
{
	struct lease_subflow *s = &l->subflows[index & (LEASE_SUBFLOWS - 1)];
	struct lease_subflow *a = &l->subflows[l->active & (LEASE_SUBFLOWS - 1)];
	__u32 window = p->window << (s->window_scale & 15);
	__u64 data_ack = p->data_ack, dsn = p->dsn, edge, left;
	__u32 edge_here;
	int stale = 0;

	if (p->seq != s->rcv_high)
		return SEQUENCE_UP;
	if (after(p->ack, s->snd_next) || after(s->snd_una, p->ack))
		return ACK;
	if (!(p->dss_flags & 2))
		data_ack = l->down_acked + (__s64)(__s32)((__u32)data_ack - (__u32)l->down_acked);
	if (after64(data_ack, l->down_next) || after64(l->down_acked, data_ack + MAX_AGE))
		return ACK;
	edge = data_ack + window;
	if (after64(l->up_next, l->server_edge))
		return WINDOW;
	if (p->payload) {
		if (!p->has_map)
			return OPTIONS;
		if (!(p->dss_flags & 8))
			dsn = l->up_next + (__s64)(__s32)((__u32)dsn - (__u32)l->up_next);
		if (dsn != l->up_next || p->ssn + s->isn_remote != p->seq || p->map_len != p->payload)
			return MAPPING;
		if (l->up_acked != l->up_next && l->run != index)
			return ACK;
		if (after64(l->up_next + p->payload, l->server_edge))
			return WINDOW;
		if (p->segment + p->tcp_len - TCP_LEN > l->server_mss)
			return TOO_LONG;
	} else {
		if (p->has_map)
			return OPTIONS;
		stale = !after64(data_ack, l->down_acked) && !after64(edge, l->down_edge);
		/* On the active subflow that may be a duplicate, which the server counts. */
		if (stale && s == a && p->ack == s->snd_una)
			return NO_NEWS;
	}
	take_subflow_ack(s, p, now);
	edge_here = p->ack + window;
	if (after(edge_here, s->snd_edge))
		s->snd_edge = edge_here;
	if (after64(data_ack, l->down_acked))
		l->down_acked = data_ack;
	if (window > l->client_window)
		l->client_window = window;
	if (after64(edge, l->down_edge))
		l->down_edge = edge;
	take_clock(l, s, p, now);
	o->seq = l->seq_up;
	o->ack = l->seq_down - (__u32)(l->down_next - l->down_acked);
	left = (l->down_edge - l->down_acked) >> (l->initial_scale & 15);
	o->window = left > 0xffff ? 0xffff : left;
	o->ts_val = l->ts_sent;
	o->ts_ecr = l->ts_echo;
	if (p->payload) {
		s->rcv_high += p->payload;
		s->bytes_up += p->payload;
		l->run = index;
		l->up_next += p->payload;
		l->seq_up += p->payload;
	}
	if (v6) {
		if (index == 0)
			l->label_up = (p->l3[1] & 0xf) << 16 | p->l3[2] << 8 | p->l3[3];
		o->label = l->label_up;
	}
	l->heard = index;
	l->last_packet = now;
	if (stale)
		return STALE_ACK;
	l->packets_up++;
	return 0;
}

/* Writes the IP header of the packet as it will leave over the old one. */
static __always_inline void write_ip(__u8 *l3, const struct outgoing *o, __u32 tcp_len, const int v6)
{
	__u64 sum = 0;
	__u16 word;

	if (v6) {
		l3[1] = (l3[1] & 0xf0) | (o->label >> 16 & 0xf);
		store16(l3 + 2, o->label);
		store16(l3 + 4, tcp_len);
		l3[7]--;
		copy16(l3 + 8, o->from);
		copy16(l3 + 24, o->to);
		return;
	}
	store16(l3 + 2, 20 + tcp_len);
	l3[8]--;
	store16(l3 + 10, 0);
	__builtin_memcpy(l3 + 12, o->from, 4);
	__builtin_memcpy(l3 + 16, o->to, 4);
	for (int i = 0; i < 10; i++) {
		__builtin_memcpy(&word, l3 + 2 * i, 2);
		sum += word;
	}
	word = ~fold(sum);
	__builtin_memcpy(l3 + 10, &word, 2);
}

/* Writes the TCP header, timestamps included. The checksum stays. */
static __always_inline void write_tcp(__u8 *tcp, const struct outgoing *o, __u32 tcp_len)
{
	store16(tcp, o->from_port);
	store16(tcp + 2, o->to_port);
	store32(tcp + 4, o->seq);
	store32(tcp + 8, o->ack);
	tcp[12] = tcp_len / 4 << 4;
	store16(tcp + 14, o->window);
	store32(tcp + TCP_LEN + 4, o->ts_val);
	store32(tcp + TCP_LEN + 8, o->ts_ecr);
}

static __always_inline void write_dss(__u8 *dss, const struct outgoing *o, __u32 payload)
{
	dss[0] = 30;
	dss[2] = 0x20;
	store64(dss + 4, o->data_ack);
	if (!payload) {
		dss[1] = DSS_ACK_LEN;
		dss[3] = 0x03;
		return;
	}
	dss[1] = DSS_MAP_LEN - 2;
	dss[3] = 0x0f;
	store64(dss + 12, o->dsn);
	store32(dss + 20, o->ssn);
	store16(dss + 24, payload);
	dss[26] = dss[27] = 1;
}

/* The difference between two headers as it enters the checksum: first the pseudo header's, which counts even
 * while the checksum is still to be completed, then the rest. */
static __always_inline int adjust_checksum(struct __sk_buff *skb, const struct packet *p, const struct outgoing *o, __u8 *old,
					   __u8 *new, __u32 new_tcp_len, const int v6)
{
	const __u8 *from = p->l3 + (v6 ? 8 : 12), *to = p->l3 + (v6 ? 24 : 16);
	__u32 at = ETH_HLEN + p->l3_len + 16;
	__u32 before = fold(pseudo_sum(from, to, p->tcp_len + p->payload, v6));
	__u32 later = fold(pseudo_sum(o->from, o->to, new_tcp_len + p->payload, v6));
	__s64 diff;

	if (bpf_l4_csum_replace(skb, at, 0, fold((__u64)later + (__u16)~before), BPF_F_PSEUDO_HDR) < 0)
		return -1;
	old[16] = old[17] = new[16] = new[17] = 0;
	diff = bpf_csum_diff((__be32 *)old, MAX_TCP_LEN, (__be32 *)new, MAX_TCP_LEN, 0);
	if (diff < 0)
		return -1;
	return bpf_l4_csum_replace(skb, at, 0, diff, 0);
}

static __always_inline int leave(struct __sk_buff *skb, const struct outgoing *o)
{
	count(TRANSLATED);
	if (bpf_skb_store_bytes(skb, 0, o->dmac, 6, 0) < 0 || bpf_skb_store_bytes(skb, 6, o->smac, 6, 0) < 0)
		return TC_ACT_SHOT;
	return bpf_redirect(o->device, 0);
}

/* Moves the payload of a packet that is one segment, by `by` bytes towards its end. */
static __always_inline int move_payload(struct __sk_buff *skb, struct scratch *c, __u32 by)
{
	__u32 len = c->p.payload, at = ETH_HLEN + c->p.l3_len + c->p.tcp_len;

	if (len == 0 || len > MOVED)
		return -1;
	if (bpf_skb_load_bytes(skb, at, c->payload, len) < 0 || bpf_skb_change_tail(skb, skb->len + by, 0) < 0)
		return -1;
	return bpf_skb_store_bytes(skb, at + by, c->payload, len, BPF_F_RECOMPUTE_CSUM);
}

/* Makes room behind the timestamps of a GSO packet. Opening room alone would leave the start of the checksum
 * where it was, so the headers are first taken away, which makes the kernel forget about it; it works out anew
 * what a GSO packet needs when that leaves. */
static __always_inline int reopen(struct __sk_buff *skb, __u32 by, const int v6)
{
	const int headers = v6 ? 60 : 40;

	if (bpf_skb_adjust_room(skb, -headers, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) < 0)
		return -1;
	return bpf_skb_adjust_room(skb, headers + by, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline int rewrite_down(struct __sk_buff *skb, struct scratch *c, const int v6)
{
	struct packet *p = &c->p;
	struct outgoing *o = &c->o;
	__u8 *tcp = c->tcp, *old = c->old, *l3 = c->l3;
	const __u32 l3_len = v6 ? 40 : 20;
	__u32 dss_len = p->payload ? DSS_MAP_LEN : DSS_ACK_LEN;
	__u32 tcp_len = TCP_LEN + TS_LEN + dss_len;
	int gso = skb->gso_size != 0, failed;

	__builtin_memset(old, 0, MAX_TCP_LEN);
	__builtin_memset(tcp, 0, MAX_TCP_LEN);
	__builtin_memcpy(old, p->tcp, TCP_LEN + TS_LEN);
	__builtin_memcpy(tcp, p->tcp, TCP_LEN + TS_LEN);
	__builtin_memcpy(l3, p->l3, 40);
	write_tcp(tcp, o, tcp_len);
	write_dss(tcp + TCP_LEN + TS_LEN, o, p->payload);
	write_ip(l3, o, tcp_len + p->payload, v6);
	if (gso) {
		__u16 sum = fold(pseudo_sum(o->from, o->to, tcp_len + p->payload, v6));

		if (reopen(skb, DSS_MAP_LEN, v6) < 0)
			return up(RESIZE_FAILED), TC_ACT_SHOT;
		__builtin_memcpy(tcp + 16, &sum, 2);
	} else if (p->payload) {
		if (move_payload(skb, c, DSS_MAP_LEN) < 0)
			return up(RESIZE_FAILED), TC_ACT_SHOT;
	} else if (bpf_skb_change_tail(skb, skb->len + DSS_ACK_LEN, 0) < 0) {
		return up(RESIZE_FAILED), TC_ACT_SHOT;
	}
	if (p->payload)
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, tcp, TCP_LEN + TS_LEN + DSS_MAP_LEN, 0);
	else
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, tcp, TCP_LEN + TS_LEN + DSS_ACK_LEN, 0);
	if (failed || bpf_skb_store_bytes(skb, ETH_HLEN, l3, l3_len, 0) < 0)
		return TC_ACT_SHOT;
	if (gso) {
		/* The link layer's header was behind the room for a moment. */
		__be16 protocol = v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

		if (bpf_skb_store_bytes(skb, 12, &protocol, 2, 0) < 0)
			return TC_ACT_SHOT;
	} else if (adjust_checksum(skb, p, o, old, tcp, tcp_len, v6) < 0) {
		return TC_ACT_SHOT;
	}
	return leave(skb, o);
}

static __always_inline int rewrite_up(struct __sk_buff *skb, struct scratch *c, const int v6)
{
	struct packet *p = &c->p;
	struct outgoing *o = &c->o;
	__u8 *tcp = c->tcp, *l3 = c->l3;
	const __u32 l3_len = v6 ? 40 : 20;
	/* The options of data become padding in their place: the payload stays where it is. */
	__u32 tcp_len = p->payload ? p->tcp_len : TCP_LEN + TS_LEN;
	int failed;

	__builtin_memset(tcp, 0, MAX_TCP_LEN);
	__builtin_memcpy(tcp, p->tcp, TCP_LEN + TS_LEN);
	__builtin_memcpy(l3, p->l3, 40);
	write_tcp(tcp, o, tcp_len);
	write_ip(l3, o, tcp_len + p->payload, v6);
	if (p->payload) {
		for (int i = TCP_LEN + TS_LEN; i < MAX_TCP_LEN; i++)
			tcp[i] = i < tcp_len ? 1 : 0;
		__u32 len = tcp_len;

		if (len < TCP_LEN + TS_LEN || len > MAX_TCP_LEN)
			return TC_ACT_SHOT;
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, tcp, len, 0);
	} else {
		if (bpf_skb_change_tail(skb, ETH_HLEN + l3_len + TCP_LEN + TS_LEN, 0) < 0)
			return up(RESIZE_FAILED), TC_ACT_SHOT;
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, tcp, TCP_LEN + TS_LEN, 0);
	}
	if (failed || bpf_skb_store_bytes(skb, ETH_HLEN, l3, l3_len, 0) < 0)
		return TC_ACT_SHOT;
	if (adjust_checksum(skb, p, o, p->tcp, tcp, tcp_len, v6) < 0)
		return TC_ACT_SHOT;
	return leave(skb, o);
}

static __always_inline int translate(struct __sk_buff *skb, const int v6)
{
	struct flow_key key = {};
	struct flow_ref *flow;
	struct settings *told;
	struct scratch *c;
	struct packet *p;
	struct lease *l;
	__u64 *gate, now;
	__u32 zero = 0, headers;
	int refused, down;

	c = bpf_map_lookup_elem(&scratches, &zero);
	if (!c)
		return TC_ACT_OK;
	p = &c->p;
	if (parse(skb, p, v6) < 0)
		return TC_ACT_OK;
	__builtin_memcpy(key.from, p->l3 + (v6 ? 8 : 12), v6 ? 16 : 4);
	__builtin_memcpy(key.to, p->l3 + (v6 ? 24 : 16), v6 ? 16 : 4);
	__builtin_memcpy(&key.from_port, p->tcp, 2);
	__builtin_memcpy(&key.to_port, p->tcp + 2, 2);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow)
		return TC_ACT_OK;
	gate = bpf_map_lookup_elem(&gates, &flow->slot);
	l = bpf_map_lookup_elem(&leases, &flow->slot);
	told = bpf_map_lookup_elem(&settings, &zero);
	if (!gate || !l || !told)
		return TC_ACT_OK;
	if (!*(volatile __u64 *)gate)
		return up(NOT_LENT);
	refused = acceptable(skb, p, v6);
	if (refused)
		return up(refused);
	if (!intact(skb, c, v6))
		return up(CHECKSUM);
	down = flow->leg == LEG_SERVER;
	if (down ? p->tcp_len != TCP_LEN + TS_LEN : parse_dss(p) < 0)
		return up(OPTIONS);
	headers = (v6 ? 40 : 20) + p->tcp_len + (down ? DSS_MAP_LEN : 0);
	if (p->payload + headers > MAX_IP_LEN || (down && !skb->gso_size && p->payload > MOVED))
		return up(TOO_LONG);

	bpf_spin_lock(&l->lock);
	if (down) {
		__u32 to = (p->payload ? l->active : l->run) & (LEASE_SUBFLOWS - 1);

		address_down(&c->o, &l->subflows[to]);
	} else {
		copy16(c->o.from, l->source_addr);
		copy16(c->o.to, l->server_addr);
		c->o.from_port = l->source_port;
		c->o.to_port = l->server_port;
	}
	bpf_spin_unlock(&l->lock);
	if (route(skb, p, &c->o, told->device, headers, v6) < 0)
		return up(ROUTE);
	now = told->now ? told->now : bpf_ktime_get_ns() / 1000;

	bpf_spin_lock(&l->lock);
	if (!*(volatile __u64 *)gate)
		refused = NOT_LENT;
	else if (down)
		refused = judge_down(l, p, &c->o, now, v6);
	else
		refused = judge_up(l, p, &c->o, flow->leg, now, v6);
	bpf_spin_unlock(&l->lock);
	if (refused == STALE_ACK)
		return up(refused), TC_ACT_SHOT;
	if (refused)
		return up(refused);
	return down ? rewrite_down(skb, c, v6) : rewrite_up(skb, c, v6);
}

SEC("classifier")
int flexcp_offload(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return translate(skb, 0);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return translate(skb, 1);
	return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
