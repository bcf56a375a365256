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
	__type(value, struct lease);
} leases SEC(".maps");

/* Lowest bit: the lease in this slot is the programs' to use. The translator closes it, then reads the lease under
 * its lock: whoever gets the lock later sees the gate closed. The other bits count the packets of the slot's flows
 * that go up, so that the translator knows whether some of them still wait. */
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

#define OPEN 1
#define ONE_UP 2

static __always_inline int is_open(__u64 *gate)
{
	return *(volatile __u64 *)gate & OPEN;
}

static __always_inline int up_from(__u64 *gate, __u32 reason)
{
	__sync_fetch_and_add(gate, ONE_UP);
	return up(reason);
}

/* Not even up. */
static __always_inline int lose(__u32 reason)
{
	count(reason);
	return TC_ACT_SHOT;
}
