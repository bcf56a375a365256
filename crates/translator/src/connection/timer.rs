//! The timers of a connection, in one list. The connection's place in the queue is that of the earliest.

use core::time::Duration;

use super::{Connection, Context, Phase, Subflow, SubflowState};
use crate::cause::Rst;
use crate::config::{Settings, Timeouts};
use crate::hosted::Hosted;
use crate::time::Instant;

/// A connection without a packet for so long gives back memory that stands ready for mappings.
const RESTING: Duration = Duration::from_secs(10);

/// After so long without a packet none of a connection's waits in a queue of this host.
const QUIET: Duration = Duration::from_millis(20);

/// Why a connection wants to be looked at. What is due at the same time is done in this order: what ends the connection
/// comes before what its subflows would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// The handshake is not complete, and too old.
    HalfOpen,
    /// A back end has not answered in its time: the translator asks another one.
    BackEnd,
    /// Nothing has come for too long.
    Idle,
    /// The peer has left no subflow, and has not come back.
    Abandoned,
    /// Joins and closes that are not completed.
    Subflow,
    /// Joins of FlexCP's own are due, first or again.
    Join,
    /// An `ADD_ADDR` is owed again.
    AddAddr,
    /// That the window is open again is owed to some subflows.
    Reopened,
    /// Filler is owed to a hole again.
    Filler,
    /// A FIN of FlexCP's own is owed again.
    Fin,
    /// What stands before the streams is owed again.
    Front,
    /// What an aggregation server is asked for is said again.
    Errand,
    /// The translator has something to do in a server's place.
    Hosted,
    /// Memory that stands ready is not needed now.
    Rest,
    /// Nothing that came before the fallback waits any more.
    Quiet,
    /// Stragglers have been answered for long enough.
    Linger,
}

impl Timer {
    const ALL: [Self; 16] = [
        Self::HalfOpen,
        Self::BackEnd,
        Self::Idle,
        Self::Abandoned,
        Self::Subflow,
        Self::Join,
        Self::AddAddr,
        Self::Reopened,
        Self::Filler,
        Self::Fin,
        Self::Front,
        Self::Errand,
        Self::Hosted,
        Self::Rest,
        Self::Quiet,
        Self::Linger,
    ];
}

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) has something to do, at the earliest.
    pub(crate) fn deadline(&self, config: &Settings) -> Instant {
        let mut earliest = Instant(u64::MAX);
        self.each_due(&config.timeouts, |_, due| earliest = earliest.min(due));
        earliest
    }

    /// Does what is due. `false`: the connection is over and leaves the table.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> bool {
        let mut due = [false; Timer::ALL.len()];
        self.each_due(&ctx.config.timeouts, |timer, at| {
            due[timer as usize] |= at <= ctx.now;
        });
        let due = Timer::ALL.into_iter().zip(due);
        for (timer, _) in due.filter(|&(_, is_due)| is_due) {
            match timer {
                Timer::BackEnd | Timer::Hosted => {}
                // A FIN that has just gone again is waited for.
                Timer::Linger if self.phase.lingers(ctx.now) => {}
                Timer::HalfOpen | Timer::Linger => return false,
                Timer::Idle if self.phase.is_relayed() => return false,
                Timer::Idle => return self.expire(ctx, Rst::Idle),
                Timer::Abandoned => return self.expire(ctx, Rst::Abandoned),
                Timer::Subflow => self.expire_subflows(ctx),
                Timer::Join => self.repeat_asked_joins(ctx),
                Timer::AddAddr => self.announce_next(ctx),
                Timer::Reopened => self.repeat_reopened(ctx),
                Timer::Filler => self.fill_due(ctx),
                Timer::Fin => self.repeat_fins(ctx),
                Timer::Front if self.has_lost_header() => {
                    return self.expire(ctx, Rst::ProxyHeader);
                }
                Timer::Front => self.send_front(ctx),
                Timer::Errand => self.repeat_errand(ctx),
                Timer::Rest => self.rest(),
                Timer::Quiet => self.phase.note_quiet(),
            }
        }
        // The fast path asks no mode: whatever it carries is looked at now and then.
        self.steer(ctx);
        self.tell_standby(ctx);
        true
    }

    /// All timers that run, and when they are due. Asked after each packet.
    #[inline]
    fn each_due(&self, timeouts: &Timeouts, mut note: impl FnMut(Timer, Instant)) {
        if let Some(due) = self.front_due() {
            note(Timer::Front, due);
        }
        if let Some(due) = self.errand_due() {
            note(Timer::Errand, due);
        }
        if let Some(due) = self.hosted.as_deref().and_then(Hosted::due) {
            note(Timer::Hosted, due);
        }
        match self.phase {
            _ if self.is_half_open() => {
                note(Timer::HalfOpen, self.last_packet + timeouts.half_open);
                let asked = self.tcp.syn.asked.filter(|_| self.awaits_server());
                if let Some(due) = asked.and_then(|asked| asked.due) {
                    note(Timer::BackEnd, due);
                }
            }
            Phase::Established { .. } => {
                note(Timer::Idle, self.last_packet + timeouts.idle);
                self.each_due_of_leg(timeouts, &mut note);
                for subflow in &self.mptcp.subflows {
                    each_repeated(subflow, &mut note);
                    self.each_due_of_subflow(subflow, timeouts, &mut note);
                }
            }
            Phase::Closed(until) => {
                for subflow in &self.mptcp.subflows {
                    each_repeated(subflow, &mut note);
                }
                note(Timer::Linger, until);
            }
            Phase::Reset(until) => note(Timer::Linger, until),
            Phase::SynSent | Phase::SynReceived | Phase::Plain(_) | Phase::Fallback(_) => {
                let relayed = self.phase.relayed();
                let over = relayed.reset || relayed.passed_by || self.is_finished();
                let limit = if over { timeouts.linger } else { timeouts.idle };
                note(Timer::Idle, self.last_packet + limit);
                if relayed.midway && !relayed.wants_data_acks {
                    note(Timer::Quiet, self.last_packet + QUIET);
                }
            }
        }
    }

    /// Those of the MPTCP leg as a whole.
    fn each_due_of_leg(&self, timeouts: &Timeouts, note: &mut impl FnMut(Timer, Instant)) {
        if let Some(since) = self.abandoned() {
            let lives = self.mptcp.subflows.iter().any(Subflow::lives);
            let returns = lives || !self.is_never_joined();
            let patience = if returns {
                timeouts.rejoin
            } else {
                Duration::ZERO
            };
            note(Timer::Abandoned, since + patience);
        }
        if let Some(due) = self.joins_due() {
            note(Timer::Join, due);
        }
        if let Some(due) = self.mptcp.announce.due {
            note(Timer::AddAddr, due);
        }
        if let Some(due) = self.reopened_due(timeouts.silence) {
            note(Timer::Reopened, due);
        }
    }

    /// Those of one subflow, beside what it owes.
    fn each_due_of_subflow(
        &self,
        subflow: &Subflow,
        timeouts: &Timeouts,
        note: &mut impl FnMut(Timer, Instant),
    ) {
        match subflow.state {
            // Those that FlexCP has asked for have times of their own.
            SubflowState::Joining if self.asks() => {}
            SubflowState::Joining => {
                note(Timer::Subflow, subflow.opened + timeouts.half_open_join());
            }
            SubflowState::Closing => {
                note(Timer::Subflow, subflow.path.last_heard + timeouts.linger);
            }
            SubflowState::Established | SubflowState::Closed => {}
        }
        if subflow.recv.lane.has_room_to_spare() || subflow.send.lane.has_room_to_spare() {
            note(Timer::Rest, self.last_packet + RESTING);
        }
    }

    /// Since when the peer has left the connection without a subflow, or with one that it has closed and
    /// on which nothing is heard of it.
    fn abandoned(&self) -> Option<Instant> {
        let closing = |s: &&Subflow| s.lives() && s.state != SubflowState::Joining;
        let living = self.mptcp.subflows.iter().filter(closing);
        let heard = living.map(|s| s.path.last_heard);
        let orphaned = self.phase.orphaned();
        orphaned.map(|since| heard.fold(since, Instant::max))
    }

    /// Both ends are told that the connection is over. An end that does not believe the RST's number says which one it
    /// will.
    fn expire(&mut self, ctx: &mut Context<'_>, cause: Rst) -> bool {
        if self.phase.is_relayed() {
            self.reset_plain(ctx, cause);
        } else {
            self.reset_both(ctx, cause);
        }
        self.note_reset(ctx, cause);
        true
    }

    fn rest(&mut self) {
        for subflow in &mut self.mptcp.subflows {
            subflow.recv.lane.give_back();
            subflow.send.lane.give_back();
        }
    }
}

/// What is owed on a subflow until the peer answers.
fn each_repeated(subflow: &Subflow, note: &mut impl FnMut(Timer, Instant)) {
    if let Some(filler) = subflow.send.filler {
        note(Timer::Filler, filler.due);
    }
    if let Some(due) = subflow.send.fin_due {
        note(Timer::Fin, due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_stand_in_their_own_order() {
        let places = Timer::ALL.map(|timer| timer as usize);
        assert!(places.is_sorted());
        assert_eq!(places.last(), Some(&(Timer::ALL.len() - 1)));
    }
}
