// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Chooses the queue of the TUN device, and so the worker, for each packet (TUNSETSTEERINGEBPF). The rules are those of
 * crates/placement, and io/tests/netns/placement.rs holds one against the other:
 *
 * - a SYN with MP_JOIN: the worker that its token names;
 * - a pair of ends that a worker has noted: that worker;
 * - from a back end: the worker that the port names which FlexCP chose;
 * - otherwise the worker that the hash of the two ends names, whichever is the sender.
 *
 * An ICMP error goes with the packet that it quotes, as if that had come back. What has no ports goes by its
 * addresses. Whatever is chosen here, the worker looks for itself: a wrong choice costs a detour, nothing else. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Extension headers of a packet that are skipped, as crates/wire/src/ip.rs does. */
#define EXTENSION_HEADERS 9
#define MAX_OPTIONS 40
/* Different ranges of ports from one address to one back end. */
#define RANGES 4

#define SYN 0x02
#define ACK 0x10

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MPTCP 30
#define MP_JOIN 1
#define MP_JOIN_SYN_LEN 12

/* What the program is told once. */
struct settings {
	/* Keys of the hash: without them nobody can aim at one worker. */
	__u64 key0;
	__u64 key1;
	__u32 workers;
	/* 1: each packet to the next worker, to measure what placement is worth. */
	__u32 scatter;
	/* Entries of the map. */
	__u32 back_ends;
	__u32 pad;
};

/* The ends of a flow in order, whichever is the sender; addresses and ports as they stand in packets. */
struct pair {
	__u8 low[16];
	__u8 high[16];
	__u8 low_port[2];
	__u8 high_port[2];
};

/* What FlexCP addresses, and from where. Address and port are 0 where clients name the server. */
struct back_end {
	__u8 addr[16];
	__u8 source[16];
	__u8 port[2];
	__u8 pad[2];
};

struct ports {
	__u16 first[RANGES];
	__u16 last[RANGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Flows that are not where their ends say: joined subflows. Sizes are set when the program is loaded; workers fill
 * it, and only with what they have a connection for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pair);
	__type(value, __u32);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct back_end);
	__type(value, struct ports);
} back_ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} turns SEC(".maps");

/* A packet's ends, and where the upper layer begins. */
struct packet {
	__u8 from[16];
	__u8 to[16];
	__u8 from_port[2];
	__u8 to_port[2];
	__u32 at;
	__u8 protocol;
	__u8 v6;
};

static __always_inline __u64 load64(const __u8 *at)
{
	__u64 value;
	__builtin_memcpy(&value, at, 8);
	return value;
}

static __always_inline __u32 port(const __u8 *at)
{
	return at[0] << 8 | at[1];
}

/* The part of all 32-bit numbers that a value is in: equal parts, one for each worker. */
static __always_inline __u32 part(__u32 value, __u32 workers)
{
	return (__u64)value * workers >> 32;
}

#define ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define ROUND                                     \
	do {                                      \
		v0 += v1;                         \
		v1 = ROTATE(v1, 13) ^ v0;         \
		v0 = ROTATE(v0, 32);              \
		v2 += v3;                         \
		v3 = ROTATE(v3, 16) ^ v2;         \
		v0 += v3;                         \
		v3 = ROTATE(v3, 21) ^ v0;         \
		v2 += v1;                         \
		v1 = ROTATE(v1, 17) ^ v2;         \
		v2 = ROTATE(v2, 32);              \
	} while (0)

/* SipHash-1-3 of the pair's bytes. */
static __always_inline __u64 hash(const struct settings *set, const struct pair *pair)
{
	const __u8 *bytes = (const __u8 *)pair;
	__u64 v0 = set->key0 ^ 0x736f6d6570736575ull;
	__u64 v1 = set->key1 ^ 0x646f72616e646f6dull;
	__u64 v2 = set->key0 ^ 0x6c7967656e657261ull;
	__u64 v3 = set->key1 ^ 0x7465646279746573ull;
	__u64 word;

#pragma unroll
	for (int i = 0; i < 32; i += 8) {
		word = load64(bytes + i);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
		word = __builtin_bswap64(word);
#endif
		v3 ^= word;
		ROUND;
		v0 ^= word;
	}
	word = (__u64)sizeof(*pair) << 56 | (__u64)bytes[35] << 24 | (__u64)bytes[34] << 16 |
	       (__u64)bytes[33] << 8 | bytes[32];
	v3 ^= word;
	ROUND;
	v0 ^= word;
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* Whether the sender's end is the lower one: by address, then by port. */
static __always_inline int is_low(const struct packet *p)
{
	__u64 a = bpf_be64_to_cpu(load64(p->from));
	__u64 b = bpf_be64_to_cpu(load64(p->to));

	if (a != b)
		return a < b;
	a = bpf_be64_to_cpu(load64(p->from + 8));
	b = bpf_be64_to_cpu(load64(p->to + 8));
	if (a != b)
		return a < b;
	return port(p->from_port) < port(p->to_port);
}

static __always_inline void make_pair(const struct packet *p, struct pair *pair)
{
	int low = is_low(p);

	__builtin_memcpy(pair->low, low ? p->from : p->to, 16);
	__builtin_memcpy(pair->high, low ? p->to : p->from, 16);
	__builtin_memcpy(pair->low_port, low ? p->from_port : p->to_port, 2);
	__builtin_memcpy(pair->high_port, low ? p->to_port : p->from_port, 2);
}

/* IPv4 addresses as IPv6 ones that stand for them. */
static __always_inline void mapped(__u8 *to, const __u8 *v4)
{
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, v4, 4);
}

/* Reads the IPv4 header at `at`. `fragment`: bits of the offset's field that must be zero. */
static __always_inline int read_v4(struct __sk_buff *skb, struct packet *p, __u32 at, __u32 fragment)
{
	__u8 header[20];

	if (bpf_skb_load_bytes(skb, at, header, sizeof(header)) || header[0] >> 4 != 4)
		return -1;
	mapped(p->from, header + 12);
	mapped(p->to, header + 16);
	p->protocol = header[9];
	p->at = at + (header[0] & 0xf) * 4;
	return port(header + 6) & fragment ? -1 : 0;
}

static __always_inline int read_v6(struct __sk_buff *skb, struct packet *p, __u32 at)
{
	__u8 header[40];

	if (bpf_skb_load_bytes(skb, at, header, sizeof(header)) || header[0] >> 4 != 6)
		return -1;
	__builtin_memcpy(p->from, header + 8, 16);
	__builtin_memcpy(p->to, header + 24, 16);
	p->protocol = header[6];
	p->at = at + sizeof(header);
	return 0;
}

/* Goes on to the upper layer. */
static __always_inline int skip_extensions(struct __sk_buff *skb, struct packet *p)
{
	__u8 extension[2];

	for (int i = 0; i < EXTENSION_HEADERS; i++) {
		if (p->protocol == IPPROTO_FRAGMENT)
			return -1;
		if (p->protocol != IPPROTO_HOPOPTS && p->protocol != IPPROTO_ROUTING &&
		    p->protocol != IPPROTO_DSTOPTS)
			return 0;
		if (bpf_skb_load_bytes(skb, p->at, extension, sizeof(extension)))
			return -1;
		p->protocol = extension[0];
		p->at += (extension[1] + 1) * 8;
	}
	return -1;
}

/* The packet that an ICMP error quotes, as if it had come back. */
static __always_inline int read_quoted(struct __sk_buff *skb, struct packet *p)
{
	struct packet quoted = {};
	__u8 ports[4];
	__u8 type;

	if (bpf_skb_load_bytes(skb, p->at, &type, 1))
		return -1;
	if (p->v6) {
		if (type < 1 || type > 3 || read_v6(skb, &quoted, p->at + 8))
			return -1;
	} else if ((type != 3 && type != 11) || read_v4(skb, &quoted, p->at + 8, 0x1fff)) {
		return -1;
	}
	if (quoted.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, quoted.at, ports, sizeof(ports)))
		return -1;
	__builtin_memcpy(p->from, quoted.to, 16);
	__builtin_memcpy(p->to, quoted.from, 16);
	__builtin_memcpy(p->from_port, ports + 2, 2);
	__builtin_memcpy(p->to_port, ports, 2);
	return 0;
}

/* A walk through the options of a SYN. */
struct walk {
	struct __sk_buff *skb;
	__u32 at;
	__u32 end;
	/* -1: none so far. */
	__s64 token;
};

/* Looks at one option. 1: that was the last one worth it. */
static long look(__u32 index, void *context)
{
	struct walk *walk = context;
	__u8 option[8];

	if (walk->at >= walk->end || bpf_skb_load_bytes(walk->skb, walk->at, option, 1) ||
	    option[0] == OPTION_END)
		return 1;
	if (option[0] == OPTION_NOP) {
		walk->at++;
		return 0;
	}
	if (bpf_skb_load_bytes(walk->skb, walk->at, option, 3) || option[1] < 2 ||
	    walk->at + option[1] > walk->end)
		return 1;
	if (option[0] == OPTION_MPTCP && option[1] == MP_JOIN_SYN_LEN && option[2] >> 4 == MP_JOIN) {
		__u32 token;

		if (bpf_skb_load_bytes(walk->skb, walk->at, option, sizeof(option)))
			return 1;
		__builtin_memcpy(&token, option + 4, 4);
		walk->token = bpf_ntohl(token);
		return 1;
	}
	walk->at += option[1];
	return 0;
}

/* The token of a SYN with MP_JOIN; -1: it has none. */
static __always_inline __s64 joined_token(struct __sk_buff *skb, __u32 tcp, __u32 header_len)
{
	struct walk walk = {
		.skb = skb,
		.at = tcp + 20,
		.end = tcp + header_len,
		.token = -1,
	};

	bpf_loop(MAX_OPTIONS, look, &walk, 0);
	return walk.token;
}

/* Whether FlexCP goes to this back end from this port. */
static __always_inline int goes_from(const struct back_end *key, __u32 to)
{
	const struct ports *ports = bpf_map_lookup_elem(&back_ends, key);

	if (!ports)
		return 0;
#pragma unroll
	for (int i = 0; i < RANGES; i++) {
		if (to >= ports->first[i] && to <= ports->last[i])
			return 1;
	}
	return 0;
}

/* The worker that a back end's packet names by the port that it goes to; -1: it is not a back end's. */
static __always_inline int of_back_end(const struct settings *set, const struct packet *p)
{
	struct back_end key = {};
	__u32 to = port(p->to_port);

	if (!set->back_ends)
		return -1;
	__builtin_memcpy(key.source, p->to, 16);
	if (goes_from(&key, to))
		return to % set->workers;
	__builtin_memcpy(key.addr, p->from, 16);
	__builtin_memcpy(key.port, p->from_port, 2);
	if (goes_from(&key, to))
		return to % set->workers;
	return -1;
}

static __always_inline __u32 by_ends(const struct settings *set, const struct packet *p)
{
	struct pair pair;
	const __u32 *noted;
	int worker;

	make_pair(p, &pair);
	noted = bpf_map_lookup_elem(&flows, &pair);
	if (noted)
		return *noted;
	worker = of_back_end(set, p);
	if (worker >= 0)
		return worker;
	return part(hash(set, &pair) >> 32, set->workers);
}

static __always_inline int read_ip(struct __sk_buff *skb, struct packet *p)
{
	__u8 version;

	if (bpf_skb_load_bytes(skb, 0, &version, 1))
		return -1;
	p->v6 = version >> 4 == 6;
	if (p->v6)
		return read_v6(skb, p, 0) || skip_extensions(skb, p) ? -1 : 0;
	return read_v4(skb, p, 0, 0x3fff);
}

static __always_inline __u32 owner(struct __sk_buff *skb, const struct settings *set)
{
	struct packet p = {};
	__u8 tcp[14];

	if (read_ip(skb, &p))
		return by_ends(set, &p);
	if (p.protocol == (p.v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		read_quoted(skb, &p);
		return by_ends(set, &p);
	}
	if (p.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, p.at, tcp, sizeof(tcp)))
		return by_ends(set, &p);
	if ((tcp[13] & (SYN | ACK)) == SYN) {
		__s64 token = joined_token(skb, p.at, (tcp[12] >> 4) * 4);

		if (token >= 0)
			return part(token, set->workers);
	}
	__builtin_memcpy(p.from_port, tcp, 2);
	__builtin_memcpy(p.to_port, tcp + 2, 2);
	return by_ends(set, &p);
}

SEC("socket")
int flexcp_place(struct __sk_buff *skb)
{
	__u32 zero = 0;
	const struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	__u32 *turn;

	if (!set || !set->workers)
		return 0;
	if (!set->scatter)
		return owner(skb, set);
	turn = bpf_map_lookup_elem(&turns, &zero);
	if (!turn)
		return 0;
	*turn += 1;
	return *turn % set->workers;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
