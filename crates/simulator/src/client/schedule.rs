//! Which subflow carries what, and what is sent again on another (RFC 8684 sections 3.3.3 to 3.3.6).

use super::plan::{Action, Scheduler};
use super::subflow::{Mapping, State, Subflow};
use super::{Client, FIN_TIMEOUT, Phase};
use crate::net::Outbox;

/// How often a client that waits for the peer's FIN asks on a subflow whether that is still there.
const FIN_QUESTIONS: u32 = 3;
/// Shortest wait for a data ACK.
const DATA_TIMEOUT: u64 = 1_000_000;
/// The pause between joins that come to nothing, in microseconds: what doubles at least, and the longest.
const MIN_JOIN_PAUSE: u64 = 1000;
const MAX_JOIN_PAUSE: u64 = 4_000_000;

impl Client {
    /// Gives data to subflows as long as they have room.
    pub(super) fn schedule(&mut self, now: u64) {
        if self.phase == Phase::Plain {
            let subflow = &mut self.subflows[0];
            subflow.sender.edge = self.edge;
            subflow.sender.end = self.open_to;
            subflow.sender.fin = self.wants_close && self.open_to == self.app.writes;
            self.nxt = self.open_to;
            return;
        }
        for _ in 0..256 {
            let Some((from, to, again)) = self.next_data() else {
                break;
            };
            let Some(index) = self.choose(from, again) else {
                break;
            };
            let to = self.assign(index, from, to);
            if again {
                self.again.remove(from, to);
                continue;
            }
            self.nxt = to;
            if self.data_timer.is_none() {
                self.arm_data_timer(now);
            }
            let several = self.subflows.iter().filter(|s| s.is_open()).count() > 1;
            if several && self.random.chance(self.plan.redundant) {
                self.again.insert(from, to);
            }
        }
        if self.wants_close && self.nxt == self.app.writes && self.una <= self.nxt {
            if self.data_timer.is_none() {
                self.resend_fin = true;
                self.arm_data_timer(now);
            }
        } else if self.nxt < self.open_to && self.una == self.nxt && self.data_timer.is_none() {
            // The window is closed: it has to be probed.
            self.arm_data_timer(now);
        }
    }

    /// The next data to go up, and whether it did before.
    fn next_data(&self) -> Option<(u64, u64, bool)> {
        if let Some(&(from, to)) = self.again.as_slice().first() {
            return Some((from, to, true));
        }
        let limit = self.open_to.min(self.edge);
        (self.nxt < limit).then_some((self.nxt, limit, false))
    }

    /// A subflow with room; for what is sent again, preferably one that does not have it.
    fn choose(&mut self, from: u64, again: bool) -> Option<usize> {
        let open = self
            .subflows
            .iter()
            .filter(|s| s.is_open() && !s.sender.fin);
        let only_backups = open.clone().all(|s| s.backup);
        let mut eligible = open.filter(|s| only_backups || !s.backup);
        let well = eligible.any(|s| s.sender.rtt.backoffs() < 2);
        let count = self.subflows.len();
        let start = match self.plan.scheduler {
            Scheduler::RoundRobin => self.turn + 1,
            Scheduler::First => 0,
            Scheduler::Random => usize::try_from(self.random.below(count as u64)).unwrap_or(0),
        };
        let usable = |index: &usize| {
            let s = &self.subflows[*index];
            s.is_open()
                && !s.sender.fin
                && (only_backups || !s.backup)
                && (!well || s.sender.rtt.backoffs() < 2)
                && s.sender.has_room()
                && (!again || !self.plan.repeats_on_idle || s.sender.una == s.sender.end)
        };
        let order = (start..start + count).map(|i| i % count);
        let holds = |index: &usize| {
            let mappings = &self.subflows[*index].out;
            mappings
                .iter()
                .any(|m| m.dsn <= from && from < m.dsn + m.len)
        };
        let best = if again {
            order
                .clone()
                .filter(usable)
                .find(|index| !holds(index))
                .or_else(|| order.clone().find(usable))
        } else {
            order.clone().find(usable)
        };
        if let Some(index) = best {
            self.turn = index;
        }
        best
    }

    /// Declares a mapping; behind its end.
    fn assign(&mut self, index: usize, from: u64, to: u64) -> u64 {
        let long = self.plan.mapping.max(1);
        let len = if self.confirmed {
            long
        } else {
            // The first data carries the keys, in one packet.
            long.min(self.subflows[index].sender.mss)
        };
        let len = len.min(to - from).min(65_000);
        let subflow = &mut self.subflows[index];
        let fin = self.plan.fin_with_data
            && self.wants_close
            && self.confirmed
            && from + len == self.app.writes;
        subflow.out.push_back(Mapping {
            ssn: subflow.sender.end,
            dsn: from,
            len,
            fin,
        });
        subflow.sender.end += len;
        from + len
    }

    pub(super) fn arm_data_timer(&mut self, now: u64) {
        let ends = self.wants_close && self.open_to == self.app.writes;
        let behind = self.open_to + u64::from(ends);
        self.data_timer = (self.una < behind && self.phase == Phase::Multipath)
            .then(|| now + (DATA_TIMEOUT << self.data_tries.min(4)));
    }

    /// No data ACK for long: the first of what is missing goes again, or the window is probed.
    pub(super) fn data_timeout(&mut self, now: u64) {
        self.data_tries += 1;
        self.arm_data_timer(now);
        if self.una < self.nxt {
            let to = self.nxt.min(self.una + 8 * self.plan.mapping.max(1000));
            self.again.insert(self.una, to);
        }
        let fin = self.wants_close && self.nxt == self.app.writes;
        if fin {
            self.resend_fin = true;
        } else if self.una == self.nxt {
            let index = self.answering();
            self.probe = Some(index);
        }
    }

    /// Timers of one subflow.
    pub(super) fn subflow_timeout(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        match self.subflows[index].state {
            State::SynSent | State::Joining => self.handshake_timeout(now, index, outbox),
            State::SynReceived => self.answer_timeout(now, index, outbox),
            State::Open => {
                let subflow = &mut self.subflows[index];
                let before = subflow.sender.rtt.backoffs();
                subflow.sender.timeout(now);
                subflow.receiver.timeout(now);
                let failed = subflow.sender.rtt.backoffs() > before;
                if subflow.keepalive.is_some_and(|due| due <= now) {
                    subflow.keepalive = self.stack.keepalive.map(|pause| now + pause);
                    self.send_probe(now, index, outbox);
                }
                if failed && self.phase == Phase::Multipath {
                    self.reinject(index);
                }
                if self.phase == Phase::Closed {
                    self.wait_for_fin(now, index, outbox);
                }
            }
            State::Closed => {}
        }
    }

    /// After the end of the connection: each subflow is to be closed by both sides. The reset of one that the proxy has given up
    /// may be lost, and comes again when something is heard of it.
    fn wait_for_fin(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        let due = subflow.timer.is_some_and(|due| due <= now);
        if due && subflow.sender.is_done() && subflow.tries < FIN_QUESTIONS {
            subflow.tries += 1;
            subflow.timer = Some(now + FIN_TIMEOUT);
            self.send_probe(now, index, outbox);
            return;
        }
        if due {
            let what = if subflow.sender.is_done() {
                "no FIN of the proxy's"
            } else {
                "FIN is not acknowledged"
            };
            self.failure = Some(format!(
                "client: subflow {index}: {what}, {} of {}, hole {}",
                subflow.sender.una,
                subflow.sender.end,
                subflow.receiver.has_hole()
            ));
        }
        self.transmit(now, outbox);
    }

    /// What a subflow has outstanding goes on another, when there is one.
    fn reinject(&mut self, index: usize) {
        let others = self
            .subflows
            .iter()
            .enumerate()
            .any(|(i, s)| i != index && s.is_open() && !s.sender.fin);
        if others {
            self.give_back(index);
        }
    }

    fn give_back(&mut self, index: usize) {
        for mapping in &self.subflows[index].out {
            let from = mapping.dsn.max(self.una);
            let to = (mapping.dsn + mapping.len).min(self.nxt);
            self.again.insert(from, to);
        }
    }

    /// A subflow is over: others take what it carried.
    pub(super) fn abandon(&mut self, index: usize) {
        if self.subflows[index].abandoned || self.phase != Phase::Multipath {
            return;
        }
        self.subflows[index].abandoned = true;
        self.give_back(index);
        if self.una < self.nxt {
            // It may have acknowledged what never became data.
            self.again.insert(self.una, self.nxt.min(self.una + 65_000));
        }
    }

    /// Something that the plan says.
    pub(super) fn act(&mut self, now: u64, action: Action, outbox: &mut Outbox) {
        let living: Vec<usize> = (0..self.subflows.len())
            .filter(|i| self.subflows[*i].is_open() && !self.subflows[*i].sender.fin)
            .collect();
        let nth = |n: usize| living.get(n % living.len().max(1)).copied();
        match action {
            Action::Join { link, backup } => self.join(now, link, backup, outbox),
            Action::Reset(n) => {
                if let Some(index) = nth(n).filter(|_| living.len() > 1) {
                    self.reset_subflow(now, index, outbox);
                }
            }
            Action::Close(n) => {
                if let Some(index) = nth(n).filter(|_| living.len() > 1) {
                    self.subflows[index].sender.fin = true;
                }
            }
            Action::Prio(n, backup) => {
                if let Some(index) = nth(n) {
                    self.subflows[index].backup = backup;
                    self.send_prio(now, index, backup, outbox);
                }
            }
            Action::RemoveAddr(n) => {
                if let Some(index) = nth(n).filter(|_| living.len() > 1) {
                    self.remove_addr(now, index, outbox);
                }
            }
            Action::AddAddr => self.send_add_addr(now, outbox),
            Action::FastClose { by_reset } => self.abort(now, by_reset, outbox),
        }
    }

    /// Pause before a subflow replaces the last: it doubles with each join in a row that comes to nothing.
    pub(super) fn join_pause(&self) -> u64 {
        let rejoin = self.plan.rejoin;
        let doubled = rejoin.max(MIN_JOIN_PAUSE) << self.refused.min(12);
        doubled.min(MAX_JOIN_PAUSE).max(rejoin)
    }

    /// After the last subflow that takes data is gone, another follows.
    pub(super) fn join_again(&mut self, now: u64, outbox: &mut Outbox) {
        if self.is_answering() {
            // That is the other end's to see to.
            return;
        }
        // One that the client has closed itself takes no more data.
        let usable = |s: &Subflow| s.state != State::Closed && !s.sender.fin;
        if self.subflows.iter().any(usable) {
            self.rejoin_at = None;
            return;
        }
        match self.rejoin_at {
            None => self.rejoin_at = Some(now + self.join_pause()),
            Some(at) if at <= now => {
                self.rejoin_at = None;
                let link =
                    usize::try_from(self.random.below(self.addresses.len() as u64)).unwrap_or(0);
                self.join(now, link, false, outbox);
            }
            Some(_) => {}
        }
    }
}
