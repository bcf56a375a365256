/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* ICMPv6 errors about packets that FlexCP has sent from an address of this host. Rules can't lead them to FlexCP's device: they know
 * no types of ICMP, and neighbour discovery goes to the same address. */
#pragma once

#define ICMPV6 58
#define UNREACHABLE 1
#define TIME_EXCEEDED 3
#define IPV6_LEN 40

/* Such an error, behind its IP header: what it is, and the packet that it is about up to its ports (RFC 4443, 3). */
struct icmp6_error {
	__u8 type;
	__u8 rest[7];
	__u8 l3[IPV6_LEN];
	__u8 from_port[2];
	__u8 to_port[2];
};

/* Whether FlexCP has sent what the error is about, and it comes back to where that was sent from. */
static __always_inline int is_own(const __u8 *to, const struct icmp6_error *error)
{
	struct own_key key = {};
	struct own_ports *ports;
	__u32 port = load16(error->from_port);

	copy16(key.addr, error->l3 + 8);
	if (__builtin_memcmp(key.addr, to, 16))
		return 0;
	__builtin_memcpy(&key.port, error->from_port, 2);
	ports = bpf_map_lookup_elem(&own, &key);
	if (!ports) {
		key.port = 0;
		ports = bpf_map_lookup_elem(&own, &key);
	}
	return ports && port >= ports->first && port <= ports->last;
}

/* A packet that is no TCP: an error about FlexCP's own goes to its device. */
static __always_inline int take_error(struct __sk_buff *skb, const __u8 *l3, __u32 device, const __u32 l2_len)
{
	struct icmp6_error error;

	if (l3[0] >> 4 != 6 || l3[6] != ICMPV6 ||
	    bpf_skb_load_bytes(skb, l2_len + IPV6_LEN, &error, sizeof(error)) < 0)
		return PASS;
	if (error.type < UNREACHABLE || error.type > TIME_EXCEEDED || error.l3[0] >> 4 != 6 || error.l3[6] != IPPROTO_TCP)
		return PASS;
	return is_own(l3 + 24, &error) ? bpf_redirect(device, 0) : PASS;
}
