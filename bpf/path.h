/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What is measured of a path: the translator's connection/rtt.rs and delivery.rs. */
#pragma once

/* The least RTT counts for so long without being met again, in steps of 2^20 us. */
#define LEAST_EPOCHS 286
/* What is measured at a time, unless a round trip is longer (microseconds). */
#define DELIVERY_SPAN 100000

/* Rtt::sample. */
static __always_inline void sample_rtt(struct rtt *r, __u32 sample, __u64 now)
{
	__u32 old = r->smoothed, moved = old > sample ? old - sample : sample - old, epoch = now >> 20;

	r->smoothed = old ? old - old / 8 + sample / 8 : sample;
	r->recent = r->last && r->last < sample ? r->last : sample;
	r->last = sample;
	r->variation = old ? r->variation - r->variation / 4 + moved / 4 : sample / 2;
	if (!r->least || sample <= r->least || epoch - r->least_at >= LEAST_EPOCHS) {
		r->least = sample;
		r->least_at = epoch;
	}
}

/* Rtt::restart. */
static __always_inline void restart_rtt(struct rtt *r, __u32 sample, __u64 now)
{
	r->smoothed = 0;
	r->last = 0;
	sample_rtt(r, sample, now);
}

/* Delivery::sent, where nothing was outstanding. */
static __always_inline void begin_delivery(struct entry_subflow *s, __u64 now)
{
	s->delivery.since = now;
	s->delivery.from = s->snd_una;
	s->delivery.flight = 0;
}

/* Delivery::sent. */
static __always_inline void note_flight(struct entry_subflow *s)
{
	if (s->delivery.flight < s->snd_next - s->snd_una)
		s->delivery.flight = s->snd_next - s->snd_una;
}

/* Delivery::acked. */
static __always_inline void measure_delivery(struct entry_subflow *s, __u64 now)
{
	struct delivery *d = &s->delivery;
	__u64 took = now - d->since, span = s->rtt.smoothed, rate;

	if (span < DELIVERY_SPAN)
		span = DELIVERY_SPAN;
	/* Another CPU may have looked at its clock later and got the lock before. */
	if (after64(d->since + span, now))
		return;
	rate = (__u64)(s->snd_una - d->from) * 1000000 / took;
	d->rate = rate > 0xffffffff ? 0xffffffff : rate;
	d->window = d->flight;
	d->flight = s->snd_next - s->snd_una;
	d->from = s->snd_una;
	d->since = now;
}

/* Subflow::take_timed. */
static __always_inline void take_timed(struct entry_subflow *s, __u64 now)
{
	s->timed_as = TIMED_MEASURED;
	/* Two CPUs may disagree about the time. */
	if (after64(now, s->timed_at)) {
		sample_rtt(&s->rtt, now - s->timed_at, now);
		s->sampled = 1;
	}
	s->timed_at = now;
}

/* Subflow::take_blocks. */
static __always_inline void take_block(struct entry_subflow *s, const struct packet *p, __u64 now)
{
	if ((s->timed_as != TIMED_NUMBER && s->timed_as != TIMED_BEHIND) || !after(s->timed, s->snd_una))
		return;
	s->timed_as = TIMED_BEHIND;
	if (!after(s->timed, p->sack[0].left))
		s->timed_as = TIMED_NOTHING;
	else if (!after(s->timed, p->sack[0].right))
		take_timed(s, now);
}

/* The client ACKs more data (ServerClock::take_progress). All of it stands on the active subflow, and what the server repeats
 * went there, too. */
static __always_inline void take_progress(struct flow_entry *l, const struct entry_subflow *s, __u32 ack)
{
	__u32 first = s->snd_next - (__u32)(l->down_next - l->down_acked);
	int brought = s == &l->subflows[l->active & (ENTRY_SUBFLOWS - 1)] && after(ack, first);

	if (!brought && after(l->ts_again, l->ts_echo))
		l->ts_echo = l->ts_again;
	l->ts_again = l->ts_echo;
}

/* Subflow::take_echo. */
static __always_inline void take_echo(struct entry_subflow *s, __u32 echo, __u64 now)
{
	if (s->timed_as != TIMED_ECHO || after(s->timed, echo))
		return;
	s->timed_as = TIMED_MEASURED;
	if (after64(now, s->timed_at))
		restart_rtt(&s->rtt, now - s->timed_at, now);
	s->timed_at = now;
}

/* Whether the path is slower than the connection's rule has patience with; or its last sample is that by an eighth, which the
 * translator judges once (Connection::is_sudden). */
static __always_inline int is_slow(const struct entry_subflow *s, __u32 patience)
{
	return s->rtt.recent > patience || (s->sampled && s->rtt.last - s->rtt.last / 9 > patience);
}
