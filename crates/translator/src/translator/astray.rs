//! Packets that went astray: while FlexCP's rules or routes are missing they pass it by, with numbers that mean
//! something else to the end that gets them. That end may have reset the connection, unheard here, or have taken what
//! never came here.
//!
//! Both ends of each connection are asked for their numbers, as a keep-alive does (RFC 9293 section 3.8.4): with the
//! number before the oldest that an end waits for. An end that has forgotten the connection answers with a RST, which
//! the other hears of. One that ACKs what FlexCP has never sent has another stream than the one that was sent to it, and
//! the connection ends.

use core::time::Duration;

use flexcp_wire::{OptionWriter, TcpFlags};

use super::{Translator, context};
use crate::cause::Rst;
use crate::connection::{Connection, Context, Phase};
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::{Outgoing, Segment};
use crate::{Instant, Verdict};

/// When all ends are asked: once more, as an answer may get lost.
const ROUNDS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(1)];
/// What an end says after this time is judged as ever.
const OVER: Duration = Duration::from_secs(3);
/// Places of the table whose connections are asked at a time, and the pause behind them: the answers come all at once.
const AT_A_TIME: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// How far the asking is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Astray {
    since: Instant,
    /// The round, and the next place of the table in it.
    round: usize,
    next: usize,
    due: Instant,
}

impl Astray {
    /// When it wants to be looked after.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// Moves on behind the places that are asked now, out of `places`; which those are.
    fn step(&mut self, now: Instant, places: usize) -> core::ops::Range<usize> {
        let first = self.next;
        self.next = places.min(first.saturating_add(AT_A_TIME));
        let asked = first..self.next;
        self.due = now + PAUSE;
        if self.next == places {
            self.next = 0;
            self.round += 1;
            let next = ROUNDS.get(self.round).unwrap_or(&OVER);
            self.due = self.due.max(self.since + *next);
        }
        asked
    }
}

impl Translator {
    /// Packets may have passed by for a while, as rules or routes were missing that are there again. Both ends of the
    /// connections are asked, a few at each [`handle_timeout`](Self::handle_timeout).
    pub const fn note_astray(&mut self, now: Instant) {
        self.records.astray = Some(Astray {
            since: now,
            round: 0,
            next: 0,
            due: now,
        });
    }

    /// Asks the ends whose turn it is.
    pub(crate) fn tend_astray(&mut self, now: Instant) {
        let places = self.table.places();
        let Some(astray) = self
            .records
            .astray
            .as_mut()
            .filter(|astray| astray.due <= now)
        else {
            return;
        };
        if astray.round == ROUNDS.len() {
            self.records.astray = None;
            return;
        }
        for id in astray.step(now, places) {
            let Ok(id) = u32::try_from(id) else {
                break;
            };
            self.evict(now, id);
            let Some(connection) = self.table.get_mut(id) else {
                continue;
            };
            connection.ask_ends(&mut context!(self, now));
            self.settle(now, id);
        }
    }
}

impl Connection {
    fn ask_ends(&self, ctx: &mut Context<'_>) {
        match self.phase {
            Phase::Established { .. } => {
                ask(ctx, self.keepalive_to_tcp());
                for index in self.indices() {
                    if self.living() & (1 << index) != 0 {
                        ask(ctx, self.keepalive_to_mptcp(index));
                    }
                }
            }
            Phase::Plain(_) | Phase::Fallback(_) if self.depends() && self.tcp.syn.answered => {
                // The clocks of plain connections are not followed.
                let mut asks = [self.keepalive_to_tcp(), self.keepalive_to_mptcp(INITIAL)];
                asks[1].seq = self.seq_to_mptcp(self.to_mptcp.acked).sub(1).0;
                asks[1].ack = self.seq_to_tcp(self.to_tcp.acked).0;
                for mut outgoing in asks {
                    outgoing.options = OptionWriter::default();
                    ask(ctx, outgoing);
                }
            }
            _ => {}
        }
    }

    fn keepalive_to_tcp(&self) -> Outgoing {
        let seq = self.seq_to_tcp(self.to_tcp.acked).sub(1);
        self.own_to_tcp(seq, TcpFlags::ACK)
    }

    /// The server ACKs what FlexCP has never sent: some of it came past FlexCP.
    pub(crate) fn end_astray_by_server(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
    ) -> Verdict {
        self.end_astray(ctx);
        self.answer_reset_server(ctx, segment)
    }

    /// A client does, on this subflow.
    pub(crate) fn end_astray_by_client(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        self.end_astray(ctx);
        self.answer_reset_client(ctx, index, segment)
    }

    /// Each end hears of it, at the number that FlexCP would use; the one that has shown another is answered at that.
    fn end_astray(&mut self, ctx: &mut Context<'_>) {
        self.reset_both(ctx, Rst::Astray);
        self.note_reset(ctx, Rst::Astray);
    }
}

fn ask(ctx: &mut Context<'_>, outgoing: Outgoing) {
    ctx.counters.ends_asked += 1;
    ctx.send(outgoing.own());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_asked_a_few_at_a_time_and_twice() {
        let start = Instant::from_millis(50);
        let mut astray = Astray {
            since: start,
            round: 0,
            next: 0,
            due: start,
        };
        let mut asked = alloc::vec::Vec::new();
        while astray.round < ROUNDS.len() {
            let at = astray.due();
            asked.push((at.since(start).as_millis(), astray.step(at, 100)));
        }
        assert_eq!(
            asked,
            [(0, 0..64), (1, 64..100), (1000, 0..64), (1001, 64..100)]
        );
        assert_eq!(astray.due().since(start), OVER);
    }

    #[test]
    fn no_place_at_all() {
        let mut astray = Astray {
            since: Instant::default(),
            round: 0,
            next: 0,
            due: Instant::default(),
        };
        assert_eq!(astray.step(Instant::default(), 0), 0..0);
        assert_eq!(astray.due(), Instant::from_millis(1000));
    }
}
