/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The order of numbers that wrap, and decisions without branches. */
#pragma once

#define after(a, b) ((__s32)((a) - (b)) > 0)
#define after64(a, b) ((__s64)((a) - (b)) > 0)

/* A bit that the compiler knows nothing of: it would make a branch of what is computed with it. */
static __always_inline __u32 hidden(__u32 bit)
{
	asm volatile("" : "+r"(bit));
	return bit;
}

/* 1 if `a` comes after `b`. Without a branch: the verifier would follow each of them through all loops. */
static __always_inline __u32 comes_after(__u32 a, __u32 b)
{
	return hidden((b - a) >> 31);
}

/* `one` if `which` is 1, `zero` if it is 0. */
static __always_inline __u32 choose(__u32 which, __u32 one, __u32 zero)
{
	return zero ^ ((zero ^ one) & -which);
}

/* 1 if there is any difference. */
static __always_inline __u32 differ(__u64 a, __u64 b)
{
	return hidden(((a - b) | (b - a)) >> 63);
}
