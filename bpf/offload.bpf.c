// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The fast path: packets of an installed connection that come as expected are translated on the way in and leave again
 * without a visit to user space. Whatever is not expected goes on to the translator, which takes the connection
 * back before it looks at it.
 *
 * Attached to the ingress of every device that packets of services may come in on. One program for both
 * directions: the flow table says which leg a packet is from. A packet is judged in full, and the flow entry changed,
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
#include "judge.h"
#include "rewrite.h"

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

/* A packet of no connection that was installed: past FlexCP, if it is known as plain TCP. */
static __always_inline int pass_by(struct __sk_buff *skb, struct flow_key *key, const int v6)
{
	__u32 zero = 0;
	struct settings *told = bpf_map_lookup_elem(&settings, &zero);
	struct plain *plain = bpf_map_lookup_elem(&plains, key);

	if (!told || !plain || plain->family != (v6 ? 6 : 4))
		return PASS;
	skb->mark |= told->mark;
	return punt(PLAIN);
}

static __always_inline int judge(struct __sk_buff *skb, const int v6)
{
	struct flow_key *key;
	struct flow_ref *flow;
	struct settings *told;
	struct scratch *c;
	struct packet *p;
	volatile struct walk *w;
	struct flow_entry *l;
	__u64 *gate, now;
	__u32 zero = 0, headers;
	int refused, down;

	c = bpf_map_lookup_elem(&scratches, &zero);
	if (!c)
		return PASS;
	p = &c->p;
	w = &p->walk;
	if (parse(skb, p, v6) < 0)
		return PASS;
	key = &c->key;
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->from, p->l3 + (v6 ? 8 : 12), v6 ? 16 : 4);
	__builtin_memcpy(key->to, p->l3 + (v6 ? 24 : 16), v6 ? 16 : 4);
	__builtin_memcpy(&key->from_port, p->tcp, 2);
	__builtin_memcpy(&key->to_port, p->tcp + 2, 2);
	if ((p->flags & (SYN | ACK_FLAG)) == SYN)
		forget_plain(key, &c->back);
	flow = bpf_map_lookup_elem(&flows, key);
	if (!flow)
		return pass_by(skb, key, v6);
	gate = bpf_map_lookup_elem(&gates, &flow->slot);
	l = bpf_map_lookup_elem(&entries, &flow->slot);
	told = bpf_map_lookup_elem(&settings, &zero);
	if (!gate || !l || !told)
		return PASS;
	/* An IPv6 address may start with the bytes of an IPv4 one. */
	if (l->family != (v6 ? 6 : 4))
		return punt(NOT_INSTALLED);
	if (!is_open(gate))
		return up_from(gate, NOT_INSTALLED);
	refused = acceptable(skb, p, v6);
	if (refused)
		return up_from(gate, refused);
	if (!intact(skb, c, v6))
		return up_from(gate, CHECKSUM);
	down = flow->leg == LEG_SERVER;
	if ((down ? parse_sack(p) : parse_dss(p)) < 0)
		return up_from(gate, OPTIONS);
	if (down && skb->gso_size && !has(PART_GSO))
		return up_from(gate, LEFT_OUT);
	headers = (v6 ? 40 : 20) + p->tcp_len + (down ? DSS_MAP_LEN : 0);
	if (p->payload + headers > MAX_IP_LEN || (down && !skb->gso_size && p->payload > MOVED))
		return up_from(gate, TOO_LONG);

	bpf_spin_lock(&l->lock);
	if (down) {
		refused = told_by(l, p);
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
	if (refused)
		return up_from(gate, refused);
	/* An ACK beside data is cut out of it, as headers of a GSO packet are. */
	if (down && w->also_to != NOBODY && (!has(PART_BESIDE) || (p->payload && !has(PART_GSO))))
		return up_from(gate, LEFT_OUT);
	if (route(skb, c, &c->o, told->device, headers, v6) < 0)
		return up_from(gate, ROUTE);
	if (down && w->also_to != NOBODY && route(skb, c, &c->also, told->device, headers, v6) < 0)
		return up_from(gate, ROUTE);
	now = told->now ? told->now : bpf_ktime_get_ns() / 1000;

	bpf_spin_lock(&l->lock);
	if (!is_open(gate))
		refused = NOT_INSTALLED;
	else if (down)
		refused = judge_down(l, p, &c->o, &c->also, now, v6);
	else
		refused = judge_up(l, p, &c->o, flow->leg, now, v6);
	bpf_spin_unlock(&l->lock);
	if (refused == STALE_ACK)
		return lose(refused);
	if (refused)
		return up_from(gate, refused);
	if (!down)
		return REWRITE_UP;
	if (p->payload)
		return w->also == NOBODY ? REWRITE_DOWN : REWRITE_DOWN_ACK;
	return w->also == NOBODY ? REWRITE_ACK : REWRITE_ACKS;
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
	return judge(skb, 0);
}

static __noinline int judge6(struct __sk_buff *skb)
{
	return judge(skb, 1);
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

char _license[] SEC("license") = "GPL";
