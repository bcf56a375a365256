/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The offload's program around one frame: its maps are tables of the caller's, what it asks of the kernel is done by
 * `bpf/bpf_helpers.h` beside this. The caller is ../src/call.rs. */
#include "../../../bpf/offload.bpf.c"

/* An entry of the map `flows`. */
struct flow {
	struct flow_key key;
	struct flow_ref ref;
};

/* A frame that has left. */
struct sent {
	__u8 *bytes; /* FRAME_ROOM bytes of room */
	__u32 len;
	__u32 gso_size;
	__u32 partial;
};

/* A way out of the only device. */
struct way {
	__u32 family; /* AF_INET, AF_INET6, or 0: both */
	__u8 to[16]; /* zeros: to anywhere */
	__u32 tos; /* 0: whatever it is */
	__u32 mtu;
	__u32 neighbour; /* last byte of the address of whoever is next; 0: there is no way */
};

/* One call: the maps, the ways, of which the first that fits is taken, and what leaves. */
struct call {
	const struct flow *flows;
	struct flow_entry *entries;
	__u64 *gates;
	__u64 *carried;
	__u64 *reasons;
	const struct way *ways;
	struct settings settings;
	__u32 way_count;
	__u32 flow_count;
	__u32 slots;
	__u32 sent_count;
	struct sent sent[2];
};

/* A frame as it comes. */
struct arrival {
	const __u8 *packet; /* from the IP header on */
	__u32 len;
	__u32 gso_size;
	__u32 partial;
	__u32 verified;
	__u32 overheard; /* it is addressed to another station */
	__u32 bare; /* it comes without an Ethernet header */
};

/* What Rust has to know. */
const struct {
	__u32 entry;
	__u32 reasons;
	__u32 room;
	__u32 jitter;
	__u32 subflows;
	__u32 runs;
	__u32 ups;
	__u32 holes;
	__u32 max_run;
	__u32 min_span;
	__u32 stale_ack;
	__u32 rewrite_failed;
} native_constants = {
	sizeof(struct flow_entry), REASONS, FRAME_ROOM, JITTER, ENTRY_SUBFLOWS, ENTRY_RUNS, ENTRY_UPS, ENTRY_HOLES,
	MAX_RUN, MIN_SPAN, STALE_ACK, REWRITE_FAILED,
};

static _Thread_local struct call *now;
static _Thread_local struct frame frame;
static _Thread_local struct scratch scratch;

static void *lookup(const void *map, const void *key)
{
	__u32 index;

	if (map == &flows) {
		for (__u32 i = 0; i < now->flow_count; i++) {
			if (!memcmp(&now->flows[i].key, key, sizeof(struct flow_key)))
				return (void *)&now->flows[i].ref;
		}
		return NULL;
	}
	if (map == &plains || map == &own || map == &bare)
		return NULL;
	memcpy(&index, key, sizeof(index));
	if (map == &scratches)
		return index ? NULL : &scratch;
	if (map == &settings)
		return index ? NULL : &now->settings;
	if (map == &reasons)
		return index < REASONS ? &now->reasons[index] : NULL;
	if (map == &entries)
		return index < now->slots ? &now->entries[index] : NULL;
	if (map == &carried)
		return index < now->slots ? &now->carried[index] : NULL;
	return index < now->slots ? &now->gates[index] : NULL;
}

/* Flows of plain TCP are none here. */
static void forget(const void *map, const void *key)
{
	(void)map;
	(void)key;
}

static long find_way(struct bpf_fib_lookup *fib)
{
	const int v6 = fib->family == AF_INET6;
	const void *to = v6 ? (const void *)fib->ipv6_dst : &fib->ipv4_dst;
	__u8 anywhere[16] = { 0 };

	for (__u32 i = 0; i < now->way_count; i++) {
		const struct way *way = &now->ways[i];

		if (way->family && way->family != fib->family)
			continue;
		if (memcmp(way->to, anywhere, 16) && memcmp(way->to, to, v6 ? 16 : 4))
			continue;
		if (way->tos && (v6 || way->tos != fib->tos))
			continue;
		if (!way->neighbour)
			return BPF_FIB_LKUP_RET_UNREACHABLE;
		if (fib->tot_len > way->mtu)
			return BPF_FIB_LKUP_RET_FRAG_NEEDED;
		memcpy(fib->dmac, (const __u8[]){ 2, 0, 0, 0, 0, way->neighbour }, 6);
		memcpy(fib->smac, (const __u8[]){ 2, 0, 0, 0, 0, 1 }, 6);
		fib->ifindex = 2;
		return BPF_FIB_LKUP_RET_SUCCESS;
	}
	return BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* The kernel works out what a GSO packet needs whose checksum is not, or not known to be, still to be completed. */
static void complete_gso(struct frame *frame)
{
	const int v6 = frame->skb.protocol == bpf_htons(ETH_P_IPV6);
	const __u8 *l3 = frame->bytes + ETH_HLEN;
	__u32 l3_len = v6 ? 40 : 20;
	__u16 sum = fold(pseudo_sum(l3 + (v6 ? 8 : 12), l3 + (v6 ? 24 : 16), frame->skb.len - ETH_HLEN - l3_len, v6));

	memcpy(frame->bytes + ETH_HLEN + l3_len + 16, &sum, 2);
	frame->partial = 1;
}

static long leave_by(struct frame *frame)
{
	struct sent *sent;

	if (now->sent_count == 2)
		return -ENOBUFS;
	sent = &now->sent[now->sent_count++];
	if (frame->skb.gso_size && !frame->partial)
		complete_gso(frame);
	memcpy(sent->bytes, frame->bytes, frame->skb.len);
	sent->len = frame->skb.len;
	sent->gso_size = frame->skb.gso_size;
	sent->partial = frame->partial;
	return 0;
}

/* Runs the program at the ingress of a device; its verdict. */
int native_run(struct call *call, const struct arrival *arrival)
{
	const __u8 version = arrival->len ? arrival->packet[0] >> 4 : 0;
	const __u32 l2_len = arrival->bare ? 0 : ETH_HLEN;
	int verdict;

	now = call;
	now->sent_count = 0;
	memset(&frame.skb, 0, sizeof(frame.skb));
	memset(frame.bytes, 0, ETH_HLEN);
	memcpy(frame.bytes + l2_len, arrival->packet, arrival->len);
	frame.skb.len = l2_len + arrival->len;
	frame.skb.pkt_type = arrival->overheard ? PACKET_OTHERHOST : PACKET_HOST;
	frame.skb.protocol = version == 4 ? bpf_htons(ETH_P_IP) : version == 6 ? bpf_htons(ETH_P_IPV6) : 0;
	if (!arrival->bare)
		memcpy(frame.bytes + 12, &frame.skb.protocol, 2);
	frame.skb.gso_size = arrival->gso_size;
	frame.partial = arrival->partial;
	frame.verified = arrival->verified;
	verdict = arrival->bare ? flexcp_bare(&frame.skb) : flexcp_offload(&frame.skb);
	if (verdict == TC_ACT_REDIRECT)
		leave_by(&frame);
	return verdict;
}
