/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The rules: what of an installed connection is translated, and what that does to the flow entry. Everything here runs under
 * the flow entry's lock and calls nothing. The translator's rules are in crates/translator/src/connection. */
#pragma once

/* What an answer may take beyond two round trips at least before it is overdue (microseconds). */
#define JITTER 5000
/* A data ACK that is further behind than this may be anything. */
#define MAX_AGE (1 << 30)
/* Longest stretch that one entry stands for, and the largest and least distance at which numbers are believed. */
#define MAX_RUN (1u << 30)
#define MIN_SPAN (1u << 17)
/* The ring of mappings spans no more than that and what is outstanding. */
#define MAX_MAPPED (1u << 26)

/* Unrolled, a loop takes more of the stack than there is. */
#define rolled _Pragma("clang loop unroll(disable)")

/* The flow label of an IPv6 packet. */
static __always_inline __u32 flow_label(const struct packet *p)
{
	return (p->l3[1] & 0xf) << 16 | p->l3[2] << 8 | p->l3[3];
}

/* Whether an answer of the client on this subflow is overdue (the translator's Subflow::is_overdue). */
static __always_inline int overdue(const struct entry_subflow *s, __u64 now, __u64 silence)
{
	__u64 late = (__u64)s->late * 1000, patience = silence;
	__u64 limit = (__u64)s->rtt.smoothed * 2 + (late < JITTER ? JITTER : late);

	if (!s->rtt.smoothed || s->snd_next == s->snd_una || s->snd_next - s->snd_una < s->mss * 2)
		return 0;
	if (patience < (__u64)s->rtt.smoothed * 2)
		patience = (__u64)s->rtt.smoothed * 2;
	if (limit > patience)
		limit = patience;
	/* Another CPU may have looked at its clock later and got the lock before. */
	return !after64(s->outstanding_since + limit, now);
}

/* The same, or nothing has been heard for as long as counts as silence (Subflow::is_silent). */
static __always_inline int silent(const struct entry_subflow *s, __u64 now, __u64 silence)
{
	__u64 limit = (__u64)s->rtt.smoothed * 2;

	if (limit < silence)
		limit = silence;
	if (s->snd_next != s->snd_una && !after64(s->outstanding_since + limit, now))
		return 1;
	return overdue(s, now, silence);
}

/* Drops mappings from the ring that the client has ACKed on the subflow and in the data. They stand in the order in which
 * they went down: what was overtaken stands behind what overtook it. */
static __always_inline void forget_acked(struct flow_entry *l, const struct entry_subflow *a)
{
	__u32 done = a->snd_next - (__u32)(l->down_next - l->down_acked);

	if (after(done, a->snd_una))
		done = a->snd_una;
	for (int i = 0; i < 4; i++) {
		struct mapping_run *run = &l->runs[l->first_run & (ENTRY_RUNS - 1)];

		if (!l->runs_used || after(run->ssn + (__u32)run->len * run->count, done))
			return;
		l->first_run = (l->first_run + 1) & (ENTRY_RUNS - 1);
		l->runs_used--;
	}
}

/* Remembers a mapping that goes down. 0: there is no room. */
static __always_inline int remember(struct flow_entry *l, __u32 ssn, __u32 len)
{
	struct mapping_run *run;

	if (l->runs_used) {
		run = &l->runs[(l->first_run + l->runs_used - 1) & (ENTRY_RUNS - 1)];
		if (run->len == len && run->count < 0xffff && len * (run->count + 1) <= MAX_MAPPED &&
		    run->ssn + (__u32)run->len * run->count == ssn) {
			run->count++;
			return 1;
		}
	}
	if (l->runs_used >= ENTRY_RUNS)
		return 0;
	run = &l->runs[(l->first_run + l->runs_used) & (ENTRY_RUNS - 1)];
	run->ssn = ssn;
	run->len = len;
	run->count = 1;
	l->runs_used++;
	return 1;
}

/* The low half of a DSN as a number of the server's side. */
static __always_inline __u32 seq_of(const struct flow_entry *l, __u32 dsn)
{
	return l->seq_up - ((__u32)l->up_next - dsn);
}

/* The server's ACK. */
static __always_inline __u64 acked_by(const struct flow_entry *l, const struct packet *p)
{
	return l->up_next - (__u32)(l->seq_up - p->ack);
}

/* The first `part` bytes of a run have reached the server, and go to what was let go last (Lane::remember). */
static __always_inline void note_part(const struct flow_entry *l, const struct up_run *run, volatile struct step *w, __u32 part)
{
	__u64 dsn = l->up_next - (__u32)((__u32)l->up_next - run->dsn);
	__u32 popped = 1 ^ differ(part, run->len);
	/* It goes on where the last one ended, and both are no longer than one may be. */
	__u32 apart = differ(w->recent_dsn + w->recent_len, dsn) | (1 ^ differ(w->recent_len, 0)) |
		      comes_after(w->recent_len + part, MAX_RUN);

	apart &= differ(part, 0);
	w->bytes += part;
	w->recent_dsn ^= (w->recent_dsn ^ dsn) & -(__u64)apart;
	w->recent_len = choose(apart, 0, w->recent_len) + part;
	w->gone += popped;
	w->rest += choose(popped, 0, part);
}

/* How far a subflow's ACK moves over what has reached the server (advance_subflow_ack), and what becomes of its runs, in
 * `step`. -1: something behind a hole has, too, and it takes a SACK to say so. Of blocks that lead to one another only
 * those that come in their order are followed: the rest is taken for something behind a hole. */
static __always_inline int moves(const struct flow_entry *l, struct packet *p, __u32 index)
{
	const struct entry_subflow *s = &l->subflows[index & (ENTRY_SUBFLOWS - 1)];
	volatile struct step *w = &p->steps[index & (ENTRY_SUBFLOWS - 1)];

	w->bytes = w->gone = w->rest = 0;
	w->whole = 1;
	w->recent_dsn = s->recent_dsn;
	w->recent_len = s->recent_len;
	rolled for (__u32 i = 0; i < ENTRY_UPS; i++) {
		const struct up_run *run = &l->ups[index & (ENTRY_SUBFLOWS - 1)][(s->first_up + i) & (ENTRY_UPS - 1)];
		__u32 start = seq_of(l, run->dsn), end = start + run->len, at = start, sacked = 0;

		if (i >= s->ups_used)
			break;
		/* What is only announced has not been sent. */
		end -= choose(1 ^ differ(i + 1, s->ups_used), s->announced, 0);
		at = choose(comes_after(p->ack, at), p->ack, at);
		for (int k = 0; k < SACK_BLOCKS; k++) {
			const struct block *b = &p->sack[k];

			at = choose((1 ^ comes_after(b->left, at)) & comes_after(b->right, at) & comes_after(b->left, p->ack),
				    b->right, at);
		}
		at = choose(comes_after(at, end), end, at);
		at = choose(w->whole, at, start);
		w->whole = 1 ^ comes_after(end, at);
		for (int k = 0; k < SACK_BLOCKS; k++) {
			const struct block *b = &p->sack[k];

			sacked |= comes_after(b->right, b->left) & comes_after(b->right, at) & comes_after(end, b->left);
		}
		if (sacked & (1 ^ w->whole))
			return -1;
		note_part(l, run, w, at - start);
	}
	return w->bytes;
}

/* SACK blocks of what has not gone up are none. Those the wrong way round hold nothing. */
static __always_inline void ignore_nonsense(const struct flow_entry *l, struct packet *p)
{
	for (__u32 i = 0; i < SACK_BLOCKS; i++) {
		struct block *b = &p->sack[i];

		if (i >= p->blocks || after(b->right, l->seq_up))
			b->left = b->right = p->ack;
	}
}

/* Where the data of a packet of the server's belongs: behind all that went down, with a gap or without, or at the start of
 * a hole; in `walk`. 0, or why the translator has to see it. */
static __always_inline int place(const struct flow_entry *l, struct packet *p)
{
	const struct entry_subflow *a = &l->subflows[l->active & (ENTRY_SUBFLOWS - 1)];
	volatile struct walk *w = &p->walk;
	__u32 ahead = p->seq - l->seq_down, holes = 0;

	w->gap = 0;
	w->hole = NOBODY;
	if (!ahead)
		return 0;
	rolled for (__u32 i = 0; i < ENTRY_HOLES; i++) {
		const struct hole *h = &l->holes[i];

		holes += differ(h->len, 0);
		if (h->seq == p->seq && p->payload <= h->len)
			w->hole = i;
	}
	if (after(p->seq, l->seq_down)) {
		w->gap = ahead;
		return !p->payload || holes == ENTRY_HOLES || ahead > MAX_MAPPED ? AHEAD : 0;
	}
	if (!p->payload || w->hole == NOBODY)
		return REPEATED;
	/* What the client claims to have is the translator's. */
	if (after(a->snd_una, a->snd_next + ahead) || after64(l->down_acked, l->down_next + (__s64)(__s32)ahead))
		return REPEATED;
	return 0;
}

/* Which subflow a packet of the server's goes down on, which other one gets an ACK, too, and how far their ACKs move: in
 * `walk`. 0, or why the translator has to see it. */
static __always_inline int told_by(const struct flow_entry *l, struct packet *p)
{
	volatile struct walk *w = &p->walk;
	__u64 ack = acked_by(l, p);
	int moved = 0;

	/* Data goes down on the active subflow, whatever it ACKs. */
	w->told = p->payload ? l->active : NOBODY;
	w->also = NOBODY;
	w->moves = 0;
	/* An ACK of what has not gone up yet would be one from long ago. */
	if (after64(l->up_acked, ack))
		return ACK;
	if (ack != l->up_acked || p->blocks) {
		w->moves = 1;
		ignore_nonsense(l, p);
		rolled for (__u32 i = 0; i < ENTRY_SUBFLOWS; i++) {
			int by = moves(l, p, i);

			if (by < 0)
				return HOLE;
			moved |= by;
			if (!by || i == w->told)
				continue;
			if (w->also != NOBODY)
				return SEVERAL;
			if (w->told != NOBODY)
				w->also = i;
			else
				w->told = i;
		}
		/* Nobody is owed it. */
		if (ack != l->up_acked && !moved)
			return ACK;
	}
	return w->told == NOBODY ? NO_NEWS : 0;
}

/* Lets go of what a subflow has brought and the server has. `ack`: the server's. */
static __always_inline void advance(struct flow_entry *l, const struct packet *p, __u32 index, __u64 ack)
{
	struct entry_subflow *s = &l->subflows[index & (ENTRY_SUBFLOWS - 1)];
	const struct step *w = &p->steps[index & (ENTRY_SUBFLOWS - 1)];
	struct up_run *front = &l->ups[index & (ENTRY_SUBFLOWS - 1)][s->first_up & (ENTRY_UPS - 1)];
	__u32 echo = p->ts_ecr - s->clock_offset;
	/* It brought what the server waited for (Connection::believe_echo). */
	__u32 believed = differ(ack, l->up_acked) & differ(s->ups_used, 0) & (1 ^ differ(front->dsn, (__u32)l->up_acked)) &
			 comes_after(s->clock_recent, echo);

	s->clock_recent = choose(believed, echo, s->clock_recent);
	s->rcv_ack += w->bytes;
	s->recent_dsn = w->recent_dsn;
	s->recent_len = w->recent_len;
	s->first_up = (s->first_up + w->gone) & (ENTRY_UPS - 1);
	s->ups_used -= w->gone;
	front = &l->ups[index & (ENTRY_SUBFLOWS - 1)][s->first_up & (ENTRY_UPS - 1)];
	front->dsn += w->rest;
	front->len -= w->rest;
}

/* Remembers data that has come on a subflow, and the rest of its mapping (Lane::insert). `into`: where in the mapping
 * it starts. 0, or why the translator has to see it. */
static __always_inline int receive(struct flow_entry *l, struct entry_subflow *s, __u32 index, const struct packet *p, __u32 dsn,
				   __u32 into)
{
	struct up_run *last = &l->ups[index & (ENTRY_SUBFLOWS - 1)][(s->first_up + s->ups_used - 1) & (ENTRY_UPS - 1)];
	__u32 rest = p->map_len - into, known, next;

	if (s->ups_used) {
		known = last->len - s->announced;
		next = last->dsn + known;
		/* What is known of the mapping has to be one stretch with this. */
		if (into && (next != dsn || (into > known && s->ups_used > 1)))
			return MAPPING;
		if (s->announced && (next != dsn || s->announced != rest))
			return MAPPING;
		if (next == dsn && known + rest <= MAX_RUN) {
			last->len = known + rest;
			s->announced = rest - p->payload;
			return 0;
		}
	}
	if (s->ups_used >= ENTRY_UPS)
		return NO_ROOM;
	last = &l->ups[index & (ENTRY_SUBFLOWS - 1)][(s->first_up + s->ups_used) & (ENTRY_UPS - 1)];
	last->dsn = dsn;
	last->len = rest;
	s->announced = rest - p->payload;
	s->ups_used++;
	return 0;
}

/* The window of a packet of the server's, as the client takes it (Scales::down). */
static __always_inline __u32 told_window(const struct flow_entry *l, const struct packet *p)
{
	__u32 window = p->window << (l->sent_scale & 15) >> (l->server_scale & 15);

	return window > 0xffff ? 0xffff : window;
}

/* The server's ACK and window. 0, or why the translator has to see it. */
static __always_inline int take_server_header(struct flow_entry *l, struct packet *p)
{
	__u32 window = told_window(l, p), ts_val = p->ts_val + l->ts_shift;
	__u64 ack = acked_by(l, p);
	__u64 offered = (__u64)window << l->server_scale;
	__u64 known = l->up_acked + ((__u64)l->server_window << l->server_scale);
	__u64 edge = ack + offered;

	/* A used-up window that opens is news for every subflow. */
	if (!after64(known, l->up_next + (__u64)l->server_mss * 2) && after64(edge, known))
		return WINDOW;
	if (p->walk.moves) {
		for (__u32 i = 0; i < ENTRY_SUBFLOWS; i++)
			advance(l, p, i, ack);
	}
	if (after64(edge, l->server_edge))
		l->server_edge = edge;
	if (ack != l->up_acked || !after64(known, edge)) {
		l->server_window = window;
		if (offered > l->server_window_max)
			l->server_window_max = offered;
	}
	l->up_acked = ack;
	if (after(ts_val, l->ts_heard))
		l->ts_heard = ts_val;
	return 0;
}

/* Fills in what all packets down a subflow share. */
static __always_inline void address_down(struct outgoing *o, const struct entry_subflow *s)
{
	copy16(o->from, s->local_addr);
	copy16(o->to, s->remote_addr);
	o->from_port = s->local_port;
	o->to_port = s->remote_port;
}

static __always_inline void header_down(struct outgoing *o, const struct flow_entry *l, const struct entry_subflow *s,
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

/* An ACK of FlexCP's own (Connection::own_down). */
static __always_inline void own_ack(struct outgoing *o, struct flow_entry *l, const struct entry_subflow *s)
{
	o->seq = s->snd_next;
	o->ack = s->rcv_ack;
	o->window = l->server_window;
	o->ts_val = l->ts_heard;
	o->ts_ecr = s->clock_heard;
	o->data_ack = l->up_acked;
	o->label = l->label_down;
	l->packets_made++;
}

/* Whether the active subflow takes the data: 0, or why the translator has to see it. */
static __always_inline int fits(const struct flow_entry *l, const struct entry_subflow *a, const struct packet *p, __u64 now)
{
	__u32 len = p->walk.gap + p->payload;

	if (p->segment + TS_LEN + DSS_MAP_LEN > a->mss)
		return TOO_LONG;
	if (l->patience && is_slow(a, l->patience))
		return SLOW;
	if (p->walk.hole != NOBODY)
		return silent(a, now, l->silence) ? OVERDUE : 0;
	if (after(a->snd_next + len, a->snd_edge) || after64(l->down_next + len, l->down_edge))
		return WINDOW;
	return overdue(a, now, l->silence) ? OVERDUE : 0;
}

/* Data goes down behind all other. What it has overtaken keeps its place before it (Connection::reserve_up_to). */
static __always_inline void extend(struct flow_entry *l, struct entry_subflow *a, const struct packet *p, __u64 now)
{
	__u32 len = p->walk.gap + p->payload, free = NOBODY;

	if (p->walk.gap) {
		rolled for (__u32 i = 0; i < ENTRY_HOLES; i++)
			free = choose(1 ^ differ(l->holes[i].len, 0), i, free);
		l->holes[free & (ENTRY_HOLES - 1)].seq = l->seq_down;
		l->holes[free & (ENTRY_HOLES - 1)].len = p->walk.gap;
	}
	if (a->snd_una == a->snd_next) {
		a->outstanding_since = now;
		begin_delivery(a, now);
	}
	a->snd_next += len;
	note_flight(a);
	if (a->timed_as != TIMED_NUMBER && a->timed_as != TIMED_BEHIND) {
		a->timed_as = TIMED_NUMBER;
		a->timed = a->snd_next;
		a->timed_at = now;
	}
	l->down_next += len;
	l->seq_down += len;
}

/* Data goes down to the place that was kept for it (Connection::place_again). */
static __always_inline void fill(struct flow_entry *l, struct entry_subflow *a, const struct packet *p, __u64 now)
{
	struct hole *h = &l->holes[p->walk.hole & (ENTRY_HOLES - 1)];

	h->seq += p->payload;
	h->len -= p->payload;
	if (after64(now, a->outstanding_since))
		a->outstanding_since = now;
}

/* Data of the server's goes down on the active subflow: 0, and `o` is filled in and the flow entry changed; or why not. */
static __always_inline int data_down(struct flow_entry *l, struct entry_subflow *a, struct packet *p, struct outgoing *o, __u64 now)
{
	int refused = fits(l, a, p, now);
	__u32 at = p->seq - l->seq_down;

	if (refused)
		return refused;
	forget_acked(l, a);
	if (l->runs_used >= ENTRY_RUNS)
		return NO_ROOM;
	o->seq = a->snd_next + at;
	o->dsn = l->down_next + (__s64)(__s32)at;
	o->ssn = o->seq - a->isn_local;
	o->dss_at = place_dss(acked_by(l, p), o->dsn, o->ssn);
	if (p->is_gso && !o->dss_at)
		return OPTIONS;
	refused = take_server_header(l, p);
	if (refused)
		return refused;
	remember(l, o->seq, p->payload);
	header_down(o, l, a, p);
	if (p->walk.hole == NOBODY)
		extend(l, a, p, now);
	else
		fill(l, a, p, now);
	a->bytes_down += p->payload;
	return 0;
}

/* The same for an ACK of the server's. */
static __always_inline int ack_down(struct flow_entry *l, const struct entry_subflow *a, struct packet *p, struct outgoing *o)
{
	int refused = take_server_header(l, p);

	if (refused)
		return refused;
	o->seq = a->snd_next;
	header_down(o, l, a, p);
	return 0;
}

/* A packet of the server's, under the lock: 0, and `o` is filled in, and `also`, and the flow entry changed; or why not.
 * There are routes to the subflows `to` and `also_to`. */
static __always_inline int judge_down(struct flow_entry *l, struct packet *p, struct outgoing *o, struct outgoing *also,
				      __u64 now, const int v6)
{
	volatile struct walk *w = &p->walk;
	struct entry_subflow *a = &l->subflows[w->to & (ENTRY_SUBFLOWS - 1)];
	int refused = told_by(l, p);

	if (refused)
		return refused;
	if (w->told != w->to || w->also != w->also_to)
		return ROUTE;
	refused = place(l, p);
	if (refused)
		return refused;
	refused = p->payload ? data_down(l, a, p, o, now) : ack_down(l, a, p, o);
	if (refused)
		return refused;
	if (v6) {
		l->label_down = flow_label(p);
		o->label = l->label_down;
	}
	if (w->also != NOBODY)
		own_ack(also, l, &l->subflows[w->also & (ENTRY_SUBFLOWS - 1)]);
	l->last_packet = now;
	l->packets_down++;
	return 0;
}

/* Subflow::take_ack and Subflow::heard. */
static __always_inline void take_subflow_ack(struct entry_subflow *s, const struct packet *p, __u64 now)
{
	s->last_heard = now;
	if (!p->payload)
		s->outstanding_since = now;
	if (after(p->ts_val, s->clock_heard))
		s->clock_heard = p->ts_val;
	if (p->payload && !after(p->seq, s->rcv_ack) && after(p->ts_val, s->clock_recent))
		s->clock_recent = p->ts_val;
	if (after(p->ack, s->snd_una)) {
		s->snd_una = p->ack;
		s->outstanding_since = now;
		if (s->timed_as == TIMED_NUMBER && !after(s->timed, p->ack))
			take_timed(s, now);
		if (s->timed_as == TIMED_BEHIND && !after(s->timed, p->ack))
			s->timed_as = TIMED_NOTHING;
		measure_delivery(s, now);
	}
	/* Behind that: what an echo says of the path is not known to the rate yet. */
	if (p->blocks)
		take_block(s, p, now);
	take_echo(s, p->ts_ecr, now);
}

/* ServerClock::translate. `seen`: the server gets to see it (ServerClock::take_back). */
static __always_inline void take_clock(struct flow_entry *l, const struct entry_subflow *s, const struct packet *p, int seen,
				       __u64 now)
{
	__u32 val = p->ts_val + s->clock_offset;

	if (seen && after(val, l->ts_sent)) {
		l->ts_sent = val;
		l->ts_sent_at = now;
	}
	if (after(p->ts_ecr, l->ts_echo) && !after(p->ts_ecr, l->ts_heard))
		l->ts_echo = p->ts_ecr;
}

/* How far numbers of the client's may lie from what is ACKed to it (the translator's Connection::span_up). */
static __always_inline __u32 span_up(const struct flow_entry *l)
{
	if (l->server_window_max >= MAX_RUN / 2)
		return MAX_RUN;
	return l->server_window_max < MIN_SPAN / 2 ? MIN_SPAN : l->server_window_max * 2;
}

/* The client's SACK block as the server's (Connection::sack_up). 0: the translator has to see it. */
static __always_inline int sack_up(const struct flow_entry *l, const struct entry_subflow *s, const struct packet *p,
				   struct outgoing *o, __u64 data_ack)
{
	__u32 left = p->sack[0].left, right = p->sack[0].right;
	__u32 back = s->snd_next - left;

	if (after64(l->down_acked, data_ack))
		data_ack = l->down_acked;
	/* One that names duplicates, or what never went down; and what stands at the data ACK is held up in the client. */
	if (!l->server_sack || s != &l->subflows[l->active & (ENTRY_SUBFLOWS - 1)] || after(p->ack, left) ||
	    !after(right, left) || after(right, s->snd_next) || !after64(l->down_next - back, data_ack))
		return 0;
	o->sack.left = l->seq_down - back;
	o->sack.right = l->seq_down - (s->snd_next - right);
	return 1;
}

/* The numbers of a client's packet, its data ACK in full. 0, or why the translator has to see it. */
static __always_inline int expect_up(const struct flow_entry *l, const struct entry_subflow *s, const struct packet *p,
				     __u64 *data_ack)
{
	*data_ack = p->data_ack;
	if (p->seq != s->rcv_high || p->seq - s->rcv_ack > span_up(l))
		return SEQUENCE_UP;
	if (after(p->ack, s->snd_next) || after(s->snd_una, p->ack))
		return ACK;
	if (!(p->dss_flags & DSS_ACK_64))
		*data_ack = l->down_acked + (__s64)(__s32)((__u32)*data_ack - (__u32)l->down_acked);
	if (after64(*data_ack, l->down_next) || after64(l->down_acked, *data_ack + MAX_AGE))
		return ACK;
	return after64(l->up_next, l->server_edge) ? WINDOW : 0;
}

/* Data of the client's, `dsn` of its first byte. 0, and its mapping is remembered; or why not. */
static __always_inline int data_up(struct flow_entry *l, struct entry_subflow *s, __u32 index, const struct packet *p, __u64 *dsn)
{
	__u32 into;

	if (!p->has_map)
		return OPTIONS;
	*dsn = p->dsn;
	if (!(p->dss_flags & DSS_DSN_64))
		*dsn = l->up_next + (__s64)(__s32)((__u32)*dsn - (__u32)l->up_next);
	/* The mapping may be that of several packets. */
	into = p->seq - (p->ssn + s->isn_remote);
	if (into > p->map_len || p->map_len - into < p->payload)
		return MAPPING;
	*dsn += into;
	/* What others have carried long since is the translator's. */
	if (*dsn != l->up_next && (l->ordered || after64(l->up_acked, *dsn)))
		return MAPPING;
	if (after64(*dsn + p->payload, l->server_edge))
		return WINDOW;
	if (p->segment + p->tcp_len - TCP_LEN > l->server_mss)
		return TOO_LONG;
	return receive(l, s, index, p, *dsn, into);
}

/* A client's ACK without data; `stale`: it tells the server nothing. 0, or why the translator has to see it. */
static __always_inline int ack_up(const struct flow_entry *l, const struct entry_subflow *s, const struct packet *p,
				  struct outgoing *o, __u64 data_ack, __u64 edge, int *stale)
{
	if (p->has_map)
		return OPTIONS;
	*stale = !p->blocks && !after64(data_ack, l->down_acked) && !after64(edge, l->down_edge);
	if (p->blocks && !sack_up(l, s, p, o, data_ack))
		return OPTIONS;
	/* On the active subflow that may be a duplicate, which the server counts. */
	if (*stale && s == &l->subflows[l->active & (ENTRY_SUBFLOWS - 1)] && p->ack == s->snd_una)
		return NO_NEWS;
	return 0;
}

/* The client's data ACK and windows. */
static __always_inline void take_client_header(struct flow_entry *l, struct entry_subflow *s, const struct packet *p, __u32 window,
					       __u64 data_ack)
{
	__u32 edge_here = p->ack + window;

	if (after(edge_here, s->snd_edge))
		s->snd_edge = edge_here;
	if (after64(data_ack, l->down_acked)) {
		take_progress(l, s, p->ack);
		l->down_acked = data_ack;
	}
	if (window > l->client_window)
		l->client_window = window;
	if (after64(data_ack + window, l->down_edge))
		l->down_edge = data_ack + window;
}

/* Fills in a packet up; `dsn`: of its data. */
static __always_inline void header_up(struct outgoing *o, const struct flow_entry *l, const struct packet *p, __u64 dsn)
{
	__u64 left = (l->down_edge - l->down_acked) >> (l->initial_scale & 15);

	o->seq = p->payload ? l->seq_up + (__u32)(dsn - l->up_next) : l->seq_up;
	o->ack = l->seq_down - (__u32)(l->down_next - l->down_acked);
	o->window = left > 0xffff ? 0xffff : left;
	o->ts_val = l->ts_sent;
	o->ts_ecr = l->ts_echo - l->ts_shift;
}

/* Data that goes up is behind what has gone up, or in between. */
static __always_inline void extend_up(struct flow_entry *l, struct entry_subflow *s, const struct packet *p, __u64 dsn)
{
	__u64 end = dsn + p->payload;

	s->rcv_high += p->payload;
	s->bytes_up += p->payload;
	if (after64(end, l->up_next)) {
		l->seq_up += (__u32)(end - l->up_next);
		l->up_next = end;
	}
}

/* A packet of the client's, under the lock. */
static __always_inline int judge_up(struct flow_entry *l, struct packet *p, struct outgoing *o, __u32 index, __u64 now,
				    const int v6)
{
	struct entry_subflow *s = &l->subflows[index & (ENTRY_SUBFLOWS - 1)];
	__u32 window = p->window << (s->window_scale & 15);
	__u64 data_ack, dsn = 0;
	int stale = 0, refused;

	refused = expect_up(l, s, p, &data_ack);
	if (refused)
		return refused;
	if (p->payload)
		refused = data_up(l, s, index, p, &dsn);
	else
		refused = ack_up(l, s, p, o, data_ack, data_ack + window, &stale);
	if (refused)
		return refused;
	take_subflow_ack(s, p, now);
	take_client_header(l, s, p, window, data_ack);
	take_clock(l, s, p, !stale, now);
	header_up(o, l, p, dsn);
	if (p->payload)
		extend_up(l, s, p, dsn);
	if (v6) {
		if (index == 0)
			l->label_up = flow_label(p);
		o->label = l->label_up;
	}
	l->heard = index;
	l->last_packet = now;
	if (stale)
		return STALE_ACK;
	l->packets_up++;
	return 0;
}
