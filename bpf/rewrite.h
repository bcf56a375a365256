/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* A packet as it leaves: headers, room for the DSS, checksum, and the way out. */
#pragma once

#define AF_INET 2
#define AF_INET6 10
/* Of packets of FlexCP's own, as the translator makes them: their TTL, and identification and flags of IPv4. */
#define OWN_TTL 64
#define DONT_FRAGMENT 0x4000

/* Whether packets have no Ethernet header on that device: nobody there has an address of the link's to be found. */
static __always_inline int is_bare(__u32 device)
{
	return bpf_map_lookup_elem(&bare, &device) != 0;
}

/* Gives a packet that came without one an Ethernet header, so that it is rewritten as any other. Where it leaves by a device
 * without such headers, the kernel takes it off again. 0, or -1. */
static __always_inline int dress(struct __sk_buff *skb)
{
	__u16 protocol = skb->protocol;

	return bpf_skb_change_head(skb, ETH_HLEN, 0) < 0 || bpf_skb_store_bytes(skb, 12, &protocol, 2, 0) < 0 ? -1 : 0;
}

/* The way out for a packet between these ends, as if it came from FlexCP's device. */
static __always_inline int route(struct __sk_buff *skb, struct scratch *c, struct outgoing *o, __u32 device, __u32 headers,
				 const int v6)
{
	struct bpf_fib_lookup *fib = &c->fib;
	long found;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = v6 ? AF_INET6 : AF_INET;
	fib->l4_protocol = IPPROTO_TCP;
	fib->sport = bpf_htons(o->from_port);
	fib->dport = bpf_htons(o->to_port);
	fib->tot_len = c->p.segment + headers;
	fib->ifindex = device;
	if (v6) {
		__builtin_memcpy(fib->ipv6_src, o->from, 16);
		__builtin_memcpy(fib->ipv6_dst, o->to, 16);
	} else {
		fib->tos = c->p.l3[1] & ~3;
		__builtin_memcpy(&fib->ipv4_src, o->from, 4);
		__builtin_memcpy(&fib->ipv4_dst, o->to, 4);
	}
	/* A neighbour that is not known is the kernel's to find, and to give up. */
	found = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && (found != BPF_FIB_LKUP_RET_NO_NEIGH || !is_bare(fib->ifindex)))
		return -1;
	o->device = fib->ifindex;
	__builtin_memcpy(o->dmac, fib->dmac, 6);
	__builtin_memcpy(o->smac, fib->smac, 6);
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
	dss[0] = MPTCP;
	dss[2] = DSS << 4;
	store64(dss + 4, o->data_ack);
	if (!payload) {
		dss[1] = DSS_ACK_LEN;
		dss[3] = DSS_ACK | DSS_ACK_64;
		return;
	}
	dss[1] = DSS_MAP_LEN - 2;
	dss[3] = DSS_ACK | DSS_ACK_64 | DSS_MAP | DSS_DSN_64;
	store64(dss + 12, o->dsn);
	store32(dss + 20, o->ssn);
	store16(dss + 24, payload);
	dss[26] = dss[27] = NOP;
}

/* The options of a GSO packet down in the order that was chosen for them. */
static __always_inline void order_options(__u8 *options, const struct outgoing *o, __u32 payload)
{
	__u32 dss_at = o->dss_at & 0xf, ts_at = place_timestamps(dss_at);

	__builtin_memset(options, NOP, OPTIONS_LEN);
	write_dss(options + dss_at, o, payload);
	/* Over what pads the DSS. */
	options[ts_at] = TIMESTAMPS;
	options[ts_at + 1] = TIMESTAMPS_LEN;
	store32(options + ts_at + 2, o->ts_val);
	store32(options + ts_at + 6, o->ts_ecr);
}

/* The difference between the headers that stand in the packet and the new ones as it enters the checksum: first the
 * pseudo header's, which counts even while the checksum is still to be completed, then the rest. */
static __always_inline int adjust_checksum(struct __sk_buff *skb, struct scratch *c, const struct outgoing *o, __u32 new_tcp_len,
					   const int v6)
{
	const __u8 *from = c->old_l3 + (v6 ? 8 : 12), *to = c->old_l3 + (v6 ? 24 : 16);
	__u32 at = ETH_HLEN + c->p.l3_len + 16;
	__u32 before = fold(pseudo_sum(from, to, c->old_tcp_len + c->p.payload, v6));
	__u32 later = fold(pseudo_sum(o->from, o->to, new_tcp_len + c->p.payload, v6));
	__s64 diff;

	if (bpf_l4_csum_replace(skb, at, 0, fold((__u64)later + (__u16)~before), BPF_F_PSEUDO_HDR) < 0)
		return -1;
	c->old[16] = c->old[17] = c->tcp[16] = c->tcp[17] = 0;
	diff = bpf_csum_diff((__be32 *)c->old, MAX_TCP_LEN, (__be32 *)c->tcp, MAX_TCP_LEN, 0);
	if (diff < 0)
		return -1;
	return bpf_l4_csum_replace(skb, at, 0, diff, 0);
}

/* Starts the new headers from those of the packet as it came, which stand in it so far. */
static __always_inline void copy_headers(struct scratch *c)
{
	__builtin_memcpy(c->old, c->p.tcp, MAX_TCP_LEN);
	__builtin_memcpy(c->old_l3, c->p.l3, 40);
	c->old_tcp_len = c->p.tcp_len;
	__builtin_memset(c->tcp, 0, MAX_TCP_LEN);
	__builtin_memcpy(c->tcp, c->p.tcp, TCP_LEN + TS_LEN);
	__builtin_memcpy(c->l3, c->p.l3, 40);
}

static __always_inline int set_way(struct __sk_buff *skb, const struct outgoing *o)
{
	return bpf_skb_store_bytes(skb, 0, o->dmac, 6, 0) < 0 || bpf_skb_store_bytes(skb, 6, o->smac, 6, 0) < 0 ? -1 : 0;
}

static __always_inline int leave(struct __sk_buff *skb, const struct outgoing *o)
{
	if (set_way(skb, o) < 0)
		return lose(REWRITE_FAILED);
	count(TRANSLATED);
	return bpf_redirect(o->device, 0);
}

/* Moves the payload of a packet that is one segment, by `by` bytes towards its end. */
static __always_inline int move_payload(struct __sk_buff *skb, struct scratch *c, __u32 by)
{
	__u32 len = c->p.payload, at = ETH_HLEN + c->p.l3_len + c->p.tcp_len;

	if (len == 0 || len > MOVED)
		return -1;
	len = masked(len, MOVED);
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

	if (!has(PART_GSO) || bpf_skb_adjust_room(skb, -headers, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) < 0)
		return -1;
	return bpf_skb_adjust_room(skb, headers + by, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* From the headers of a packet of the server's those of an ACK of FlexCP's own. */
static __always_inline void own_headers(struct scratch *c, const int v6)
{
	c->tcp[13] = ACK_FLAG;
	if (v6) {
		c->l3[0] = 0x60;
		c->l3[1] = 0;
		c->l3[7] = OWN_TTL + 1;
	} else {
		c->l3[1] = 0;
		store32(c->l3 + 4, DONT_FRAGMENT);
		c->l3[8] = OWN_TTL + 1;
	}
}

/* Cuts data that has gone down to an ACK for another subflow. */
static __always_inline int cut_to_ack(struct __sk_buff *skb, struct scratch *c, const int v6)
{
	const __u32 l3_len = v6 ? 40 : 20, tcp_len = TCP_LEN + TS_LEN + DSS_ACK_LEN;
	const struct outgoing *o = &c->also;
	__s64 sum;

	own_headers(c, v6);
	/* The data's options may stand in another order. */
	__builtin_memcpy(c->tcp + TCP_LEN, c->p.tcp + TCP_LEN, TS_LEN);
	__builtin_memset(c->tcp + TCP_LEN + TS_LEN, 0, MAX_TCP_LEN - TCP_LEN - TS_LEN);
	write_tcp(c->tcp, o, tcp_len);
	write_dss(c->tcp + TCP_LEN + TS_LEN, o, 0);
	write_ip(c->l3, o, tcp_len, v6);
	c->tcp[16] = c->tcp[17] = 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)c->tcp, MAX_TCP_LEN, fold(pseudo_sum(o->from, o->to, tcp_len, v6)));
	if (sum < 0)
		return -1;
	__u16 field = ~fold(sum);

	__builtin_memcpy(c->tcp + 16, &field, 2);
	/* The checksum is complete: the kernel has to forget that it was to be completed. */
	if (reopen(skb, 0, v6) < 0 || bpf_skb_change_tail(skb, ETH_HLEN + l3_len + tcp_len, 0) < 0)
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, c->tcp, tcp_len, 0) < 0 ||
		       bpf_skb_store_bytes(skb, ETH_HLEN, c->l3, l3_len, 0) < 0 ?
	       -1 : 0;
}

/* Data down, and an ACK of FlexCP's own for another subflow behind it. */
static __always_inline int rewrite_down(struct __sk_buff *skb, struct scratch *c, int also, const int v6)
{
	struct packet *p = &c->p;
	struct outgoing *o = &c->o;
	const __u32 l3_len = v6 ? 40 : 20, tcp_len = TCP_LEN + TS_LEN + DSS_MAP_LEN;
	int gso = skb->gso_size != 0;

	copy_headers(c);
	write_tcp(c->tcp, o, tcp_len);
	write_dss(c->tcp + TCP_LEN + TS_LEN, o, p->payload);
	write_ip(c->l3, o, tcp_len + p->payload, v6);
	if (gso) {
		__u16 sum = fold(pseudo_sum(o->from, o->to, tcp_len + p->payload, v6));

		order_options(c->tcp + TCP_LEN, o, p->payload);
		if (reopen(skb, DSS_MAP_LEN, v6) < 0)
			return lose(REWRITE_FAILED);
		__builtin_memcpy(c->tcp + 16, &sum, 2);
	} else if (move_payload(skb, c, DSS_MAP_LEN) < 0) {
		return lose(REWRITE_FAILED);
	}
	if (bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, c->tcp, tcp_len, 0) < 0 ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, c->l3, l3_len, 0) < 0)
		return lose(REWRITE_FAILED);
	if (!gso && adjust_checksum(skb, c, o, tcp_len, v6) < 0)
		return lose(REWRITE_FAILED);
	if (!also || !has(PART_BESIDE))
		return leave(skb, o);
	if (set_way(skb, o) < 0 || bpf_clone_redirect(skb, o->device, 0) < 0)
		return lose(REWRITE_FAILED);
	count(TRANSLATED);
	if (cut_to_ack(skb, c, v6) < 0 || set_way(skb, &c->also) < 0)
		return lose(REWRITE_FAILED);
	return bpf_redirect(c->also.device, 0);
}

/* The headers of an ACK down: in place of those of the packet as it came, or of the ACK before. 0, or -1. */
static __always_inline int write_ack(struct __sk_buff *skb, struct scratch *c, const struct outgoing *o, const int v6)
{
	const __u32 l3_len = v6 ? 40 : 20, tcp_len = TCP_LEN + TS_LEN + DSS_ACK_LEN;

	write_tcp(c->tcp, o, tcp_len);
	write_dss(c->tcp + TCP_LEN + TS_LEN, o, 0);
	write_ip(c->l3, o, tcp_len, v6);
	/* The checksum stays until it is adjusted. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN + l3_len + 16, c->tcp + 16, 2) < 0)
		return -1;
	if (bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, c->tcp, tcp_len, 0) < 0 ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, c->l3, l3_len, 0) < 0)
		return -1;
	return adjust_checksum(skb, c, o, tcp_len, v6);
}

/* An ACK of the server's, and one of FlexCP's own for another subflow before it. */
static __always_inline int rewrite_acks(struct __sk_buff *skb, struct scratch *c, int both, const int v6)
{
	const __u32 tcp_len = TCP_LEN + TS_LEN + DSS_ACK_LEN;

	copy_headers(c);
	if (bpf_skb_change_tail(skb, ETH_HLEN + (v6 ? 40 : 20) + tcp_len, 0) < 0)
		return lose(REWRITE_FAILED);
	if (both && has(PART_BESIDE)) {
		own_headers(c, v6);
		if (write_ack(skb, c, &c->also, v6) < 0 || set_way(skb, &c->also) < 0 ||
		    bpf_clone_redirect(skb, c->also.device, 0) < 0)
			return lose(REWRITE_FAILED);
		__builtin_memcpy(c->old, c->tcp, MAX_TCP_LEN);
		__builtin_memcpy(c->old_l3, c->l3, 40);
		c->old_tcp_len = tcp_len;
		c->tcp[13] = c->p.flags;
		__builtin_memcpy(c->l3, c->p.l3, 40);
	}
	if (write_ack(skb, c, &c->o, v6) < 0)
		return lose(REWRITE_FAILED);
	return leave(skb, &c->o);
}

static __always_inline void write_sack(__u8 *option, const struct block *b)
{
	option[0] = option[1] = NOP;
	option[2] = SACK;
	option[3] = SACK_LEN - 2;
	store32(option + 4, b->left);
	store32(option + 8, b->right);
}

static __always_inline int rewrite_up(struct __sk_buff *skb, struct scratch *c, const int v6)
{
	struct packet *p = &c->p;
	struct outgoing *o = &c->o;
	const __u32 l3_len = v6 ? 40 : 20;
	/* The options of data become padding in their place: the payload stays where it is. */
	__u32 tcp_len = p->payload ? p->tcp_len : TCP_LEN + TS_LEN + (p->blocks ? SACK_LEN : 0);

	copy_headers(c);
	write_tcp(c->tcp, o, tcp_len);
	write_ip(c->l3, o, tcp_len + p->payload, v6);
	if (p->payload) {
		for (int i = TCP_LEN + TS_LEN; i < MAX_TCP_LEN; i++)
			c->tcp[i] = i < tcp_len ? NOP : 0;
	} else {
		if (p->blocks)
			write_sack(c->tcp + TCP_LEN + TS_LEN, &o->sack);
		if (bpf_skb_change_tail(skb, ETH_HLEN + l3_len + tcp_len, 0) < 0)
			return lose(REWRITE_FAILED);
	}
	if (bpf_skb_store_bytes(skb, ETH_HLEN + l3_len, c->tcp, masked(tcp_len, TCP_ROOM), 0) < 0 ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, c->l3, l3_len, 0) < 0)
		return lose(REWRITE_FAILED);
	if (adjust_checksum(skb, c, o, tcp_len, v6) < 0)
		return lose(REWRITE_FAILED);
	return leave(skb, o);
}
