// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The fast path: packets of an installed connection that come as expected are translated on the way in and leave again
 * without a visit to user space. Whatever is not expected goes on to the translator, which takes the connection
 * back before it looks at it.
 *
 * Attached to the ingress of every device that packets of services may come in on: one program where packets come with an
 * Ethernet header, another where they come without. Each is for both directions: the flow table says which leg a packet is from. A packet is judged in full, and the flow entry changed,
 * under the flow entry's lock; only then is it rewritten. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "offload.h"
#include "maps.h"
#include "packet.h"
#include "bits.h"
#include "order.h"
#include "path.h"
#include "judge.h"
#include "rewrite.h"
#include "errors.h"

/* What is to be done with a packet that is translated; less is a verdict of the kernel's. */
enum {
	REWRITE_UP = 0x100,
	REWRITE_DOWN,
	REWRITE_DOWN_ACK,
	REWRITE_ACK,
	REWRITE_ACKS,
};

/* A SYN may open anything: what was known of its ends, both ways, is of another connection. */
static __always_inline void forget_plain(struct flow_key *key, struct flow_key *back)
{
	copy16(back->from, key->to);
	copy16(back->to, key->from);
	back->from_port = key->to_port;
	back->to_port = key->from_port;
	bpf_map_delete_elem(&plains, key);
	bpf_map_delete_elem(&plains, back);
}

/* A SYN opens a connection of its own, and who sends it is seen here: the translator may leave the connection to a socket. */
static __always_inline void note_syn(struct flow_key *key, struct flow_key *back, const int v6)
{
	__u32 zero = 0;
	struct settings *told = bpf_map_lookup_elem(&settings, &zero);
	struct plain seen = { v6 ? 6 : 4 };

	forget_plain(key, back);
	if (has(PART_SOCKETS) && told && told->sockets)
		bpf_map_update_elem(&syns, key, &seen, BPF_ANY);
}

/* Whether a socket of this host has the packet's connection, and does not merely listen: one that is opening and one that
 * is over but for its last packets count, so that the kernel answers for the whole of its life. */
static __always_inline int has_socket(struct __sk_buff *skb, const struct flow_key *key, const int v6)
{
	struct bpf_sock_tuple ends;
	struct bpf_sock *sock;
	int owned;

	__builtin_memset(&ends, 0, sizeof(ends));
	if (v6) {
		__builtin_memcpy(ends.ipv6.saddr, key->from, 16);
		__builtin_memcpy(ends.ipv6.daddr, key->to, 16);
		ends.ipv6.sport = key->from_port;
		ends.ipv6.dport = key->to_port;
	} else {
		__builtin_memcpy(&ends.ipv4.saddr, key->from, 4);
		__builtin_memcpy(&ends.ipv4.daddr, key->to, 4);
		ends.ipv4.sport = key->from_port;
		ends.ipv4.dport = key->to_port;
	}
	sock = bpf_skc_lookup_tcp(skb, &ends, v6 ? sizeof(ends.ipv6) : sizeof(ends.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sock)
		return 0;
	owned = sock->state != BPF_TCP_LISTEN;
	bpf_sk_release(sock);
	return owned;
}

/* A packet of no connection that was installed: past FlexCP, if it is known as plain TCP, or a socket's. */
static __always_inline int pass_by(struct __sk_buff *skb, struct flow_key *key, const int v6)
{
	__u32 zero = 0;
	struct settings *told = bpf_map_lookup_elem(&settings, &zero);
	struct plain *plain = bpf_map_lookup_elem(&plains, key);

	if (!told || !told->mark)
		return PASS;
	if (plain && plain->family == (v6 ? 6 : 4)) {
		skb->mark |= told->mark;
		return punt(PLAIN);
	}
	if (!has(PART_SOCKETS) || !told->sockets || !has_socket(skb, key, v6))
		return PASS;
	skb->mark |= told->mark;
	return punt(SOCKET);
}

/* The ends of a packet, as the tables have them. */
static __always_inline void ends_of(const struct packet *p, struct flow_key *key, const int v6)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->from, p->l3 + (v6 ? 8 : 12), v6 ? 16 : 4);
	__builtin_memcpy(key->to, p->l3 + (v6 ? 24 : 16), v6 ? 16 : 4);
	__builtin_memcpy(&key->from_port, p->tcp, 2);
	__builtin_memcpy(&key->to_port, p->tcp + 2, 2);
}

/* Bytes of the headers that the packet will have at most. */
static __always_inline __u32 headers_of(const struct packet *p, int down, const int v6)
{
	return (v6 ? 40 : 20) + p->tcp_len + (down ? DSS_MAP_LEN : 0);
}

/* Reads the options of a packet that is sound: 0, or why the translator has to see it. */
static __always_inline int read_options(struct __sk_buff *skb, struct packet *p, __u32 headers, int down, const int v6)
{
	if ((down ? parse_sack(p) : parse_dss(p)) < 0)
		return OPTIONS;
	if (down && skb->gso_size && !has(PART_GSO))
		return LEFT_OUT;
	if (p->payload + headers > MAX_IP_LEN || (down && !skb->gso_size && p->payload > MOVED))
		return TOO_LONG;
	return 0;
}

/* Between which ends the packet will go, and the ACK beside it: 0, or why the translator has to see it. The way there is
 * looked up without the lock. */
static __always_inline int address(struct flow_entry *l, struct scratch *c, int down)
{
	volatile struct walk *w = &c->p.walk;
	int refused = 0;

	bpf_spin_lock(&l->lock);
	if (down) {
		refused = told_by(l, &c->p);
		w->to = w->told;
		w->also_to = w->also;
		address_down(&c->o, &l->subflows[w->to & (ENTRY_SUBFLOWS - 1)]);
		address_down(&c->also, &l->subflows[w->also_to & (ENTRY_SUBFLOWS - 1)]);
	} else {
		copy16(c->o.from, l->source_addr);
		copy16(c->o.to, l->server_addr);
		c->o.from_port = l->source_port;
		c->o.to_port = l->server_port;
	}
	bpf_spin_unlock(&l->lock);
	return refused;
}

/* Ways to those ends: 0, or why the translator has to see the packet. */
static __always_inline int find_ways(struct __sk_buff *skb, struct scratch *c, __u32 device, __u32 headers, int down,
				     const int v6)
{
	volatile struct walk *w = &c->p.walk;

	/* An ACK beside data is cut out of it, as headers of a GSO packet are. */
	if (down && w->also_to != NOBODY && (!has(PART_BESIDE) || (c->p.payload && !has(PART_GSO))))
		return LEFT_OUT;
	if (route(skb, c, &c->o, device, headers, v6) < 0)
		return ROUTE;
	if (down && w->also_to != NOBODY && route(skb, c, &c->also, device, headers, v6) < 0)
		return ROUTE;
	return 0;
}

/* Decides, and changes the flow entry: 0, or why the packet is not translated. `down` is what `leg` says, which the verifier would
 * not know if `leg` were read again. */
static __always_inline int decide(struct flow_entry *l, __u64 *gate, struct scratch *c, int down, __u32 leg, __u64 now,
				  const int v6)
{
	int refused;

	bpf_spin_lock(&l->lock);
	if (!is_open(gate))
		refused = NOT_INSTALLED;
	else if (down)
		refused = judge_down(l, &c->p, &c->o, &c->also, now, v6);
	else
		refused = judge_up(l, &c->p, &c->o, leg, now, v6);
	bpf_spin_unlock(&l->lock);
	return refused;
}

/* Pays in what goes down, if the connection has an account. */
static __always_inline void note_carried(const struct flow_entry *l, __u32 slot, __u32 payload)
{
	__u64 *bytes;

	if (!l->account || !payload)
		return;
	bytes = bpf_map_lookup_elem(&carried, &slot);
	if (bytes)
		__sync_fetch_and_add(bytes, payload);
}

/* How the packet is rewritten. */
static __always_inline int rewriting(const struct packet *p, int down)
{
	const volatile struct walk *w = &p->walk;

	if (!down)
		return REWRITE_UP;
	if (p->payload)
		return w->also == NOBODY ? REWRITE_DOWN : REWRITE_DOWN_ACK;
	return w->also == NOBODY ? REWRITE_ACK : REWRITE_ACKS;
}

static __always_inline int judge(struct __sk_buff *skb, const __u32 l2_len, const int v6)
{
	__u32 zero = 0, headers;
	struct scratch *c = bpf_map_lookup_elem(&scratches, &zero);
	struct settings *told = bpf_map_lookup_elem(&settings, &zero);
	struct flow_ref *flow;
	struct flow_entry *l;
	__u64 *gate, now;
	int refused, down;

	if (!c || !told)
		return PASS;
	if (parse(skb, &c->p, l2_len, v6) < 0)
		return v6 ? take_error(skb, c->p.l3, told->device, l2_len) : PASS;
	ends_of(&c->p, &c->key, v6);
	if ((c->p.flags & (SYN | ACK_FLAG)) == SYN)
		note_syn(&c->key, &c->back, v6);
	flow = bpf_map_lookup_elem(&flows, &c->key);
	if (!flow)
		return pass_by(skb, &c->key, v6);
	gate = bpf_map_lookup_elem(&gates, &flow->slot);
	l = bpf_map_lookup_elem(&entries, &flow->slot);
	if (!gate || !l)
		return PASS;
	/* An IPv6 address may start with the bytes of an IPv4 one. */
	if (l->family != (v6 ? 6 : 4))
		return punt(NOT_INSTALLED);
	if (!is_open(gate))
		return up_from(gate, NOT_INSTALLED);
	refused = acceptable(skb, &c->p, l2_len, v6);
	if (refused)
		return up_from(gate, refused);
	if (!intact(skb, c, l2_len, v6))
		return up_from(gate, CHECKSUM);
	/* Not before: the verifier would follow the checksum's sum in both directions. */
	down = flow->leg == LEG_SERVER;
	headers = headers_of(&c->p, down, v6);
	refused = read_options(skb, &c->p, headers, down, v6);
	if (refused)
		return up_from(gate, refused);
	refused = address(l, c, down);
	if (refused)
		return up_from(gate, refused);
	refused = find_ways(skb, c, told->device, headers, down, v6);
	if (refused)
		return up_from(gate, refused);
	now = told->now ? told->now : bpf_ktime_get_ns() / 1000;
	refused = decide(l, gate, c, down, flow->leg, now, v6);
	if (refused == STALE_ACK)
		return lose(refused);
	if (refused)
		return up_from(gate, refused);
	if (down)
		note_carried(l, flow->slot, c->p.payload);
	return rewriting(&c->p, down);
}

static __always_inline int rewrite(struct __sk_buff *skb, int verdict, const int v6)
{
	__u32 zero = 0;
	struct scratch *c = bpf_map_lookup_elem(&scratches, &zero);

	if (!c)
		return lose(REWRITE_FAILED);
	if (verdict == REWRITE_UP)
		return rewrite_up(skb, c, v6);
	if (verdict == REWRITE_DOWN || verdict == REWRITE_DOWN_ACK)
		return rewrite_down(skb, c, verdict == REWRITE_DOWN_ACK, v6);
	return rewrite_acks(skb, c, verdict == REWRITE_ACKS, v6);
}

/* Functions of their own: together they would take more of the stack than there is. */
static __noinline int judge4(struct __sk_buff *skb)
{
	return judge(skb, ETH_HLEN, 0);
}

static __noinline int judge6(struct __sk_buff *skb)
{
	return judge(skb, ETH_HLEN, 1);
}

static __noinline int judge_bare4(struct __sk_buff *skb)
{
	return judge(skb, 0, 0);
}

static __noinline int judge_bare6(struct __sk_buff *skb)
{
	return judge(skb, 0, 1);
}

static __noinline int rewrite4(struct __sk_buff *skb, int verdict)
{
	return rewrite(skb, verdict, 0);
}

static __noinline int rewrite6(struct __sk_buff *skb, int verdict)
{
	return rewrite(skb, verdict, 1);
}

SEC("classifier")
int flexcp_offload(struct __sk_buff *skb)
{
	int verdict;

	/* What a bridge passes on to others, and other VLANs' packets, is not addressed to us. */
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present || !has(PART_CORE))
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		verdict = judge4(skb);
		return verdict < REWRITE_UP ? verdict : rewrite4(skb, verdict);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && has(PART_V6)) {
		verdict = judge6(skb);
		return verdict < REWRITE_UP ? verdict : rewrite6(skb, verdict);
	}
	return PASS;
}

/* The same at a device whose packets start with the IP header. Only what is translated gets another before it. */
SEC("classifier")
int flexcp_bare(struct __sk_buff *skb)
{
	int verdict;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present || !has(PART_CORE))
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		verdict = judge_bare4(skb);
		if (verdict < REWRITE_UP)
			return verdict;
		return dress(skb) < 0 ? lose(REWRITE_FAILED) : rewrite4(skb, verdict);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && has(PART_V6)) {
		verdict = judge_bare6(skb);
		if (verdict < REWRITE_UP)
			return verdict;
		return dress(skb) < 0 ? lose(REWRITE_FAILED) : rewrite6(skb, verdict);
	}
	return PASS;
}

char _license[] SEC("license") = "GPL";
