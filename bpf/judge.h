/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The rules: what of a lent connection is translated, and what that does to the lease. Everything here runs under
 * the lease's lock and calls nothing. The translator's rules are in crates/translator/src/connection. */
#pragma once

/* What an answer may take beyond two round trips before it is overdue (microseconds). */
#define JITTER 5000
/* A data ACK that is further behind than this may be anything. */
#define MAX_AGE (1 << 30)

#define after(a, b) ((__s32)((a) - (b)) > 0)
#define after64(a, b) ((__s64)((a) - (b)) > 0)

/* Whether an answer of the client on this subflow is overdue (the translator's Subflow::is_overdue). */
static __always_inline int overdue(const struct lease_subflow *s, __u64 now, __u64 silence)
{
	__u64 limit = (__u64)s->srtt * 2 + JITTER, patience = silence;

	if (!s->srtt || s->snd_next == s->snd_una || s->snd_next - s->snd_una < s->mss * 2)
		return 0;
	if (patience < (__u64)s->srtt * 2)
		patience = (__u64)s->srtt * 2;
	if (limit > patience)
		limit = patience;
	/* Another CPU may have looked at its clock later and got the lock before. */
	return !after64(s->outstanding_since + limit, now);
}

/* Drops mappings from the ring that the client has ACKed on the subflow and in the data. */
static __always_inline void forget_acked(struct lease *l, const struct lease_subflow *a)
{
	__u32 done = a->snd_next - (__u32)(l->down_next - l->down_acked);

	if (after(done, a->snd_una))
		done = a->snd_una;
	for (int i = 0; i < 4; i++) {
		struct mapping_run *run = &l->runs[l->first_run & (LEASE_RUNS - 1)];

		if (!l->runs_used || after(run->ssn + (__u32)run->len * run->count, done))
			return;
		l->first_run = (l->first_run + 1) & (LEASE_RUNS - 1);
		l->runs_used--;
	}
}

/* Remembers a mapping that goes down. 0: there is no room. */
static __always_inline int remember(struct lease *l, __u32 ssn, __u32 len)
{
	struct mapping_run *run;

	if (l->runs_used) {
		run = &l->runs[(l->first_run + l->runs_used - 1) & (LEASE_RUNS - 1)];
		if (run->len == len && run->count < 0xffff && run->ssn + (__u32)run->len * run->count == ssn) {
			run->count++;
			return 1;
		}
	}
	if (l->runs_used >= LEASE_RUNS)
		return 0;
	run = &l->runs[(l->first_run + l->runs_used) & (LEASE_RUNS - 1)];
	run->ssn = ssn;
	run->len = len;
	run->count = 1;
	l->runs_used++;
	return 1;
}

/* The server's ACK and window. 0, or why the translator has to see it. */
static __always_inline int take_server_header(struct lease *l, const struct packet *p, struct lease_subflow *run)
{
	__u64 ack = l->up_next - (__u32)(l->seq_up - p->ack);
	__u64 offered = (__u64)p->window << l->server_scale;
	__u64 known = l->up_acked + ((__u64)l->server_window << l->server_scale);
	__u64 edge = ack + offered;

	/* An ACK of what has not gone up yet would be one from long ago. */
	if (after64(l->up_acked, ack))
		return ACK;
	/* A used-up window that opens is news for every subflow. */
	if (!after64(known, l->up_next + (__u64)l->server_mss * 2) && after64(edge, known))
		return WINDOW;
	run->rcv_ack += (__u32)(ack - l->up_acked);
	if (after64(edge, l->server_edge))
		l->server_edge = edge;
	if (ack != l->up_acked || !after64(known, edge)) {
		l->server_window = p->window;
		if (offered > l->server_window_max)
			l->server_window_max = offered;
	}
	l->up_acked = ack;
	if (after(p->ts_val, l->ts_heard))
		l->ts_heard = p->ts_val;
	return 0;
}

/* Fills in what all packets down a subflow share. */
static __always_inline void address_down(struct outgoing *o, const struct lease_subflow *s)
{
	copy16(o->from, s->local_addr);
	copy16(o->to, s->remote_addr);
	o->from_port = s->local_port;
	o->to_port = s->remote_port;
}

static __always_inline void header_down(struct outgoing *o, const struct lease *l, const struct lease_subflow *s,
					const struct packet *p)
{
	__u32 echo = p->ts_ecr - s->clock_offset;

	o->ack = s->rcv_ack;
	o->window = l->server_window;
	o->ts_val = l->ts_heard;
	if (after(echo, s->clock_heard))
		echo = s->clock_heard;
	o->ts_ecr = after(s->clock_recent, echo) ? s->clock_recent : echo;
	o->data_ack = l->up_acked;
}

/* A packet of the server's, under the lock: 0, and `o` is filled in and the lease changed; or why not. */
static __always_inline int judge_down(struct lease *l, struct packet *p, struct outgoing *o, __u64 now, const int v6)
{
	__u32 active = l->active & (LEASE_SUBFLOWS - 1), run = l->run & (LEASE_SUBFLOWS - 1);
	struct lease_subflow *a = &l->subflows[active], *r = &l->subflows[run];
	__u64 ack = l->up_next - (__u32)(l->seq_up - p->ack);
	int refused;

	if (p->seq != l->seq_down)
		return after(p->seq, l->seq_down) ? AHEAD : REPEATED;
	if (ack != l->up_acked && l->run == NO_SUBFLOW)
		return ACK;
	if (!p->payload) {
		if (ack == l->up_acked)
			return NO_NEWS;
		refused = take_server_header(l, p, r);
		if (refused)
			return refused;
		o->seq = r->snd_next;
		header_down(o, l, r, p);
		goto done;
	}
	if (ack != l->up_acked && run != active)
		return ACK;
	if (p->segment + TS_LEN + DSS_MAP_LEN > a->mss)
		return TOO_LONG;
	if (after(a->snd_next + p->payload, a->snd_edge) || after64(l->down_next + p->payload, l->down_edge))
		return WINDOW;
	if (overdue(a, now, l->silence))
		return OVERDUE;
	forget_acked(l, a);
	if (l->runs_used >= LEASE_RUNS)
		return NO_ROOM;
	refused = take_server_header(l, p, r);
	if (refused)
		return refused;
	remember(l, a->snd_next, p->payload);
	o->seq = a->snd_next;
	o->dsn = l->down_next;
	o->ssn = a->snd_next - a->isn_local;
	header_down(o, l, a, p);
	if (a->snd_una == a->snd_next)
		a->outstanding_since = now;
	a->snd_next += p->payload;
	if (!a->is_timed) {
		a->is_timed = 1;
		a->timed = a->snd_next;
		a->timed_at = now;
	}
	a->bytes_down += p->payload;
	l->down_next += p->payload;
	l->seq_down += p->payload;
done:
	if (v6) {
		l->label_down = (p->l3[1] & 0xf) << 16 | p->l3[2] << 8 | p->l3[3];
		o->label = l->label_down;
	}
	l->last_packet = now;
	l->packets_down++;
	return 0;
}

/* Subflow::take_ack and Subflow::heard. */
static __always_inline void take_subflow_ack(struct lease_subflow *s, const struct packet *p, __u64 now)
{
	s->last_heard = now;
	if (!p->payload)
		s->outstanding_since = now;
	if (after(p->ts_val, s->clock_heard))
		s->clock_heard = p->ts_val;
	if (p->payload && !after(p->seq, s->rcv_ack) && after(p->ts_val, s->clock_recent))
		s->clock_recent = p->ts_val;
	if (!after(p->ack, s->snd_una))
		return;
	s->snd_una = p->ack;
	s->outstanding_since = now;
	if (s->is_timed && !after(s->timed, p->ack)) {
		/* 0 stands for none, and two CPUs may disagree about the time. */
		__u32 sample = after64(now, s->timed_at) ? now - s->timed_at : 1;

		s->is_timed = 0;
		s->srtt = s->srtt ? s->srtt - s->srtt / 8 + sample / 8 : sample;
	}
}

/* ServerClock::translate. */
static __always_inline void take_clock(struct lease *l, const struct lease_subflow *s, const struct packet *p, __u64 now)
{
	__u32 val = p->ts_val + s->clock_offset;

	if (after(val, l->ts_sent)) {
		l->ts_sent = val;
		l->ts_sent_at = now;
	}
	if (after(p->ts_ecr, l->ts_echo) && !after(p->ts_ecr, l->ts_heard))
		l->ts_echo = p->ts_ecr;
}

/* A packet of the client's, under the lock. */
static __always_inline int judge_up(struct lease *l, struct packet *p, struct outgoing *o, __u32 index, __u64 now,
				    const int v6)
{
	struct lease_subflow *s = &l->subflows[index & (LEASE_SUBFLOWS - 1)];
	struct lease_subflow *a = &l->subflows[l->active & (LEASE_SUBFLOWS - 1)];
	__u32 window = p->window << (s->window_scale & 15);
	__u64 data_ack = p->data_ack, dsn = p->dsn, edge, left;
	__u32 edge_here;
	int stale = 0;

	if (p->seq != s->rcv_high)
		return SEQUENCE_UP;
	if (after(p->ack, s->snd_next) || after(s->snd_una, p->ack))
		return ACK;
	if (!(p->dss_flags & DSS_ACK_64))
		data_ack = l->down_acked + (__s64)(__s32)((__u32)data_ack - (__u32)l->down_acked);
	if (after64(data_ack, l->down_next) || after64(l->down_acked, data_ack + MAX_AGE))
		return ACK;
	edge = data_ack + window;
	if (after64(l->up_next, l->server_edge))
		return WINDOW;
	if (p->payload) {
		if (!p->has_map)
			return OPTIONS;
		if (!(p->dss_flags & DSS_DSN_64))
			dsn |= l->up_next & ~0xffffffffull;
		if (dsn != l->up_next || p->ssn + s->isn_remote != p->seq || p->map_len != p->payload)
			return MAPPING;
		if (l->up_acked != l->up_next && l->run != index)
			return ACK;
		if (after64(l->up_next + p->payload, l->server_edge))
			return WINDOW;
		if (p->segment + p->tcp_len - TCP_LEN > l->server_mss)
			return TOO_LONG;
	} else {
		if (p->has_map)
			return OPTIONS;
		stale = !after64(data_ack, l->down_acked) && !after64(edge, l->down_edge);
		/* On the active subflow that may be a duplicate, which the server counts. */
		if (stale && s == a && p->ack == s->snd_una)
			return NO_NEWS;
	}
	take_subflow_ack(s, p, now);
	edge_here = p->ack + window;
	if (after(edge_here, s->snd_edge))
		s->snd_edge = edge_here;
	if (after64(data_ack, l->down_acked))
		l->down_acked = data_ack;
	if (window > l->client_window)
		l->client_window = window;
	if (after64(edge, l->down_edge))
		l->down_edge = edge;
	take_clock(l, s, p, now);
	o->seq = l->seq_up;
	o->ack = l->seq_down - (__u32)(l->down_next - l->down_acked);
	left = (l->down_edge - l->down_acked) >> (l->initial_scale & 15);
	o->window = left > 0xffff ? 0xffff : left;
	o->ts_val = l->ts_sent;
	o->ts_ecr = l->ts_echo;
	if (p->payload) {
		s->rcv_high += p->payload;
		s->bytes_up += p->payload;
		l->run = index;
		l->up_next += p->payload;
		l->seq_up += p->payload;
	}
	if (v6) {
		if (index == 0)
			l->label_up = (p->l3[1] & 0xf) << 16 | p->l3[2] << 8 | p->l3[3];
		o->label = l->label_up;
	}
	l->heard = index;
	l->last_packet = now;
	if (stale)
		return STALE_ACK;
	l->packets_up++;
	return 0;
}
