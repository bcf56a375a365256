/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The order of the options of data down in a GSO packet.
 *
 * Room for the DSS moves the TCP header, but not the place where the kernel believes that header to start
 * (skb->transport_header, which no helper sets): what is taken there for the data offset is the byte MISTAKEN in front of the
 * payload, one of the options. Since Linux 7.0 (7fb4c1967011, which Debian's 6.12.117 has, too) a device's queue drops a GSO
 * packet whose data offset says less than five words. So the options are put in such an order that the byte says more:
 * timestamps, DSS and four NOPs leave it ten bytes of the DSS to be. */
#pragma once

#define MISTAKEN 20
#define OPTIONS_LEN 40
/* Where the timestamps stand behind a DSS. */
#define TS_BEHIND 30
/* `o->dss_at` and, above, how good that is: 0 is nothing. */
#define GOOD_SHIFT 8

/* `best`, or this place of the DSS if it is better: the kernel may drop the packet if it takes the byte for less than five
 * words, and with more than eight it believes a part of the payload to be header, and copies that. */
static __always_inline __u32 better(__u32 best, __u32 place, __u32 byte)
{
	__u32 words = byte >> 4 & 0xf;
	__u32 good = comes_after(words, 4) << (comes_after(9, words) & 1);
	__u32 found = good << GOOD_SHIFT | place;

	return choose(comes_after(good, best >> GOOD_SHIFT), found, best);
}

/* Where the DSS is to stand among the options of a GSO packet: its byte MISTAKEN - `place` is taken for the data offset. What
 * changes with every packet comes last. 0: there is no such order. */
static __always_inline __u32 place_dss(__u64 data_ack, __u64 dsn, __u32 ssn)
{
	__u32 best = 0;

	best = better(best, 12, data_ack >> 24);
	best = better(best, 14, data_ack >> 40);
	best = better(best, 13, data_ack >> 32);
	best = better(best, 4, dsn >> 24);
	best = better(best, 0, ssn >> 24);
	best = better(best, 11, data_ack >> 16);
	best = better(best, 10, data_ack >> 8);
	best = better(best, 3, dsn >> 16);
	best = better(best, 2, dsn >> 8);
	return better(best, 1, dsn);
}

/* Where the timestamps stand: two NOPs before them as far as there is room. */
static __always_inline __u32 place_timestamps(__u32 dss_at)
{
	if (dss_at < 10)
		return TS_BEHIND;
	return dss_at < 12 ? dss_at - 10 : 2;
}
