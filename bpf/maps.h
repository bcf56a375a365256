/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the programs share with user space, and what they count. */
#pragma once

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
	__type(value, struct flow_entry);
} entries SEC(".maps");

/* Flows of plain TCP on the path, each direction for itself: the kernel's to forward. The least recently used go first. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct plain);
} plains SEC(".maps");

/* Of packets from there FlexCP hears what ICMPv6 says. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct own_key);
	__type(value, struct own_ports);
} own SEC(".maps");

/* SYNs on their way up, while packets for the host's sockets are told apart: the programs see what comes from their senders. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct plain);
} syns SEC(".maps");

/* Devices whose packets have no Ethernet header, by their index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} bare SEC(".maps");

/* Lowest bit: the flow entry in this slot is the programs' to use. The translator closes it, then reads the flow entry under
 * its lock: whoever gets the lock later sees the gate closed. The other bits count the packets of the slot's flows
 * that go up, so that the translator knows whether some of them still wait. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} gates SEC(".maps");

/* Payload that has gone down by each slot whose flow entry names an account. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} carried SEC(".maps");

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

/* Parts that can be left out where a kernel refuses them; the packets that they are for go up. What each needs says
 * crates/io/src/offload/parts.rs. The loader sets the bits before the verifier sees the program, which then follows no
 * code of a part that is left out. */
#define PART_GSO 1u
#define PART_BESIDE 2u
#define PART_SUMS 4u
#define PART_V6 8u
#define PART_SOCKETS 32u
/* What nothing works without. */
#define PART_CORE 16u

const volatile __u32 parts = PART_GSO | PART_BESIDE | PART_SUMS | PART_V6 | PART_CORE | PART_SOCKETS;
/* Tests name parts here that the verifier is to refuse. */
const volatile __u32 refused_parts = 0;

static __always_inline int has(__u32 part)
{
	if (parts & refused_parts & part)
		return *(volatile int *)0;
	return (parts & part) != 0;
}

/* What is not translated goes on to the other programs and filters at this device, and then to the stack. */
#define PASS TC_ACT_UNSPEC

static __always_inline void count(__u32 reason)
{
	__u64 *counter = bpf_map_lookup_elem(&reasons, &reason);
	if (counter)
		*counter += 1;
}

static __always_inline int punt(__u32 reason)
{
	count(reason);
	return PASS;
}

#define OPEN 1
#define ONE_UP 2

static __always_inline int is_open(__u64 *gate)
{
	return *(volatile __u64 *)gate & OPEN;
}

static __always_inline int up_from(__u64 *gate, __u32 reason)
{
	__sync_fetch_and_add(gate, ONE_UP);
	return punt(reason);
}

/* Not even up. */
static __always_inline int lose(__u32 reason)
{
	count(reason);
	return TC_ACT_SHOT;
}
