/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* In place of libbpf's: what the programs ask of the kernel, done for one frame in memory. Maps are those of `call`. Each
 * function does what the kernel's does for the frames that the programs see; `io/tests/netns` asks the kernel's own. */
#pragma once

#include <errno.h>
#include <string.h>
#include <linux/types.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define SEC(name)
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name

/* Of the kernel's own errors. */
#define ENOTSUPP 524
/* Longest frame, and what the headers may grow by. */
#define FRAME_ROOM (14 + 0xffff + 64)
/* What bpf_csum_diff of Linux 6.1 adds up at most. */
#define CSUM_DIFF_MOST 512

/* A frame, from the link layer's header on. Fields are those of the program's `struct __sk_buff`, as far as they are asked
 * for, and what the kernel knows beside them. */
struct frame {
	struct __sk_buff skb;
	/* The checksum field holds the sum of the pseudo header alone (CHECKSUM_PARTIAL). */
	__u32 partial;
	/* Somebody has verified the checksum (CHECKSUM_UNNECESSARY). */
	__u32 verified;
	__u8 bytes[FRAME_ROOM];
};

/* The maps of the call at hand. */
static void *lookup(const void *map, const void *key);
static void forget(const void *map, const void *key);
static long leave_by(struct frame *frame);
static long find_way(struct bpf_fib_lookup *fib);

static inline struct frame *frame_of(struct __sk_buff *skb)
{
	return (struct frame *)skb;
}

/* There are no sockets here. */
static inline struct bpf_sock *bpf_skc_lookup_tcp(struct __sk_buff *skb, struct bpf_sock_tuple *ends, __u32 len, __u64 net,
						  __u64 flags)
{
	(void)skb;
	(void)ends;
	(void)len;
	(void)net;
	(void)flags;
	return NULL;
}

static inline long bpf_sk_release(struct bpf_sock *sock)
{
	(void)sock;
	return 0;
}

#define bpf_map_update_elem(map, key, value, flags) ((void)(value))
#define bpf_map_lookup_elem(map, key) lookup(map, key)
#define bpf_map_delete_elem(map, key) forget(map, key)

static inline void bpf_spin_lock(struct bpf_spin_lock *lock)
{
	(void)lock;
}

static inline void bpf_spin_unlock(struct bpf_spin_lock *lock)
{
	(void)lock;
}

/* The tests set the time (`struct settings`). */
static inline __u64 bpf_ktime_get_ns(void)
{
	return 0;
}

static inline long bpf_skb_load_bytes(struct __sk_buff *skb, __u32 offset, void *to, __u32 len)
{
	if (offset > skb->len || len > skb->len - offset)
		return -EFAULT;
	memcpy(to, frame_of(skb)->bytes + offset, len);
	return 0;
}

static inline long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags)
{
	(void)flags;
	if (offset > skb->len || len > skb->len - offset)
		return -EFAULT;
	memcpy(frame_of(skb)->bytes + offset, from, len);
	return 0;
}

/* A frame that is cut or gets longer is one segment. */
static inline long bpf_skb_change_tail(struct __sk_buff *skb, __u32 len, __u64 flags)
{
	(void)flags;
	if (len > FRAME_ROOM)
		return -ENOMEM;
	if (len > skb->len)
		memset(frame_of(skb)->bytes + skb->len, 0, len - skb->len);
	skb->len = len;
	skb->gso_size = 0;
	return 0;
}

/* Room for a link layer's header, before a packet that has none. */
static inline long bpf_skb_change_head(struct __sk_buff *skb, __u32 room, __u64 flags)
{
	if (flags || skb->len + room > FRAME_ROOM)
		return -EINVAL;
	memmove(frame_of(skb)->bytes + room, frame_of(skb)->bytes, skb->len);
	memset(frame_of(skb)->bytes, 0, room);
	skb->len += room;
	return 0;
}

/* Room behind the link layer's header. Where that goes beyond the start of the checksum, the kernel forgets that it was to
 * be completed. */
static inline long bpf_skb_adjust_room(struct __sk_buff *skb, __s32 by, __u32 mode, __u64 flags)
{
	__u8 *at = frame_of(skb)->bytes + ETH_HLEN;
	__u32 rest = skb->len - ETH_HLEN, least = skb->protocol == bpf_htons(ETH_P_IP) ? 20 : 40;

	(void)mode;
	(void)flags;
	if (by < 0) {
		if (rest < least + -by)
			return -ENOTSUPP;
		memmove(at, at - by, rest + by);
		frame_of(skb)->partial = 0;
	} else {
		if (skb->len + by > FRAME_ROOM)
			return -ENOMEM;
		memmove(at + by, at, rest);
		memset(at, 0, by);
	}
	skb->len += by;
	return 0;
}

static inline __u64 fold_once(__u64 sum)
{
	return (sum & 0xffffffff) + (sum >> 32);
}

static inline __s64 bpf_csum_diff(const void *from, __u32 from_len, const void *to, __u32 to_len, __u32 seed)
{
	__u64 sum = seed;
	__u32 word;

	if (from_len % 4 || to_len % 4)
		return -EINVAL;
	if (from_len + to_len > CSUM_DIFF_MOST)
		return -ENOTSUPP;
	for (__u32 at = 0; at < from_len; at += 4) {
		memcpy(&word, (const __u8 *)from + at, 4);
		sum += ~word;
	}
	for (__u32 at = 0; at < to_len; at += 4) {
		memcpy(&word, (const __u8 *)to + at, 4);
		sum += word;
	}
	return fold_once(fold_once(sum));
}

/* inet_proto_csum_replace_by_diff(). */
static inline long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags)
{
	struct frame *frame = frame_of(skb);
	__u16 field;
	__u64 sum;

	if (from || offset + 2 > skb->len)
		return -EINVAL;
	memcpy(&field, frame->bytes + offset, 2);
	if (frame->partial && !(flags & BPF_F_PSEUDO_HDR))
		return 0;
	sum = to + (__u16)(frame->partial ? field : ~field);
	sum = fold_once(fold_once(sum));
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	field = frame->partial ? sum : ~sum;
	memcpy(frame->bytes + offset, &field, 2);
	return 0;
}

static inline long bpf_csum_level(struct __sk_buff *skb, __u64 level)
{
	(void)level;
	return frame_of(skb)->verified ? 0 : -EACCES;
}

static inline long bpf_fib_lookup(struct __sk_buff *skb, struct bpf_fib_lookup *fib, int len, __u32 flags)
{
	(void)skb;
	(void)len;
	(void)flags;
	return find_way(fib);
}

/* The frame leaves when the program has ended. */
static inline long bpf_redirect(__u32 device, __u64 flags)
{
	(void)device;
	(void)flags;
	return TC_ACT_REDIRECT;
}

/* A copy leaves at once. */
static inline long bpf_clone_redirect(struct __sk_buff *skb, __u32 device, __u64 flags)
{
	(void)device;
	(void)flags;
	return leave_by(frame_of(skb));
}
