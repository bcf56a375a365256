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

/* One call: the maps, and what leaves. */
struct call {
	const struct flow *flows;
	struct flow_entry *entries;
	__u64 *gates;
	__u64 *reasons;
	struct settings settings;
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
	if (map == &plains)
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
	return index < now->slots ? &now->gates[index] : NULL;
}

/* Flows of plain TCP are none here. */
static void forget(const void *map, const void *key)
{
	(void)map;
	(void)key;
}

static long leave_by(const struct frame *frame)
{
	struct sent *sent;

	if (now->sent_count == 2)
		return -ENOBUFS;
	sent = &now->sent[now->sent_count++];
	memcpy(sent->bytes, frame->bytes, frame->skb.len);
	sent->len = frame->skb.len;
	sent->gso_size = frame->skb.gso_size;
	/* The kernel works out anew what a GSO packet needs when that leaves. */
	sent->partial = frame->partial || frame->skb.gso_size;
	return 0;
}

/* Runs the program at the ingress of a device; its verdict. */
int native_run(struct call *call, const struct arrival *arrival)
{
	const __u8 version = arrival->len ? arrival->packet[0] >> 4 : 0;
	int verdict;

	now = call;
	now->sent_count = 0;
	memset(&frame.skb, 0, sizeof(frame.skb));
	memset(frame.bytes, 0, ETH_HLEN);
	memcpy(frame.bytes + ETH_HLEN, arrival->packet, arrival->len);
	frame.skb.len = ETH_HLEN + arrival->len;
	frame.skb.pkt_type = PACKET_HOST;
	frame.skb.protocol = version == 4 ? bpf_htons(ETH_P_IP) : version == 6 ? bpf_htons(ETH_P_IPV6) : 0;
	frame.skb.gso_size = arrival->gso_size;
	frame.partial = arrival->partial;
	frame.verified = arrival->verified;
	verdict = flexcp_offload(&frame.skb);
	if (verdict == TC_ACT_REDIRECT)
		leave_by(&frame);
	return verdict;
}
