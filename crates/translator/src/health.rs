//! Health of back ends, as their answers to SYNs show it.
//!
//! One that refuses a SYN, or leaves one without an answer for longer than its answers take, is marked, and
//! connections pass it by. Any SYN/ACK of its own takes the mark away, a late one too. A SYN that got lost marks
//! nobody who has answered another one meanwhile; and who is marked for its silence is probed at once, so that one that
//! lives is back after a round trip.
//!
//! A service may have its back ends checked beside that ([`check`]): one of which `fall` checks in a row fail is marked until
//! `rise` in a row pass, whatever connections hear of it meanwhile, and is not probed. A mark that connections have set goes as
//! without checks, and by a check, too.
//!
//! Probes are SYNs of FlexCP's own, so no client waits for a dead back end; their SYN/ACK is answered with a RST. A
//! service's only back end is not probed: every client goes there.

mod check;

use core::net::SocketAddr;
use core::time::Duration;

use flexcp_wire::TcpSeq;

use crate::config::Check;
use crate::handle::ServiceId;
use crate::time::Instant;

use self::check::Checked;

/// The least that a back end gets for its answer: Linux waits no less either (`TCP_RTO_MIN`), and a machine may be busy.
const PATIENCE: Duration = Duration::from_millis(250);
/// What one gets that has not answered yet, however far away it is.
const PATIENCE_UNKNOWN: Duration = Duration::from_millis(500);
/// The most that one gets.
const PATIENCE_MOST: Duration = Duration::from_secs(3);
/// Times that its slowest answers of late would fit into what it gets.
const PATIENCE_TRIPS: u32 = 3;

/// At least so much is between two probes: a client may send SYNs that no back end answers.
const PAUSE: Duration = PATIENCE;
/// Between the first probes; each time twice as long.
const HOLD: Duration = Duration::from_secs(1);
/// The longest time between two.
const HOLD_MOST: Duration = Duration::from_secs(30);

/// Why a back end is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkReason {
    /// It has refused a SYN with a RST.
    Refused,
    /// It has not answered a SYN.
    Silent,
    /// A router, or its host, says that a SYN can't reach it.
    Unreachable,
}

impl MarkReason {
    /// For output: one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Connections pass a back end by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The last that was heard, or not heard, of it.
    pub reason: MarkReason,
    /// Since when.
    pub since: Instant,
}

/// A back end whose mark has come, changed or gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendState {
    /// Which service's it is.
    pub service: ServiceId,
    /// Its place among the service's back ends, as the present configuration has them.
    pub backend: usize,
    /// `None`: it takes connections in turn.
    pub mark: Option<Mark>,
}

/// A back end as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendView {
    /// Which service's it is.
    pub service: ServiceId,
    /// Its address and port.
    pub addr: SocketAddr,
    /// Connections that there are to it, those that are over and linger among them.
    pub connections: u64,
    /// `None`: it takes connections in turn.
    pub mark: Option<Mark>,
    /// The present mark, or the one before; `None`: it was never marked.
    pub last_mark: Option<Mark>,
    /// What came of connections that it was asked for; nothing where it is no aggregation server.
    pub errands: ErrandCounts,
}

/// What came of connections that a box has asked an aggregation server for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ErrandCounts {
    /// It has connected on.
    pub granted: u64,
    /// It would not, or could not.
    pub declined: u64,
}

/// A SYN that was sent to a back end and may still be answered, though no connection waits for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// What the back end saw as its client.
    pub(crate) source: SocketAddr,
    /// What an answer ACKs.
    pub(crate) ack: TcpSeq,
    /// When; `None`: more than once, and an answer does not say to which.
    pub(crate) at: Option<Instant>,
}

/// What is known of one back end.
#[derive(Default, Debug)]
pub(crate) struct Health {
    /// Its last SYN/ACK.
    answered: Option<Instant>,
    /// Its slowest answers of late.
    rtt: Option<Duration>,
    /// When it was probed last, whatever has come of it.
    probed: Option<Instant>,
    marked: Option<Marked>,
    /// The last mark, whether it stands or has gone.
    last: Option<Mark>,
    /// What checks have found.
    pub(crate) checked: Checked,
    /// Connections that there are to it.
    pub(crate) connections: u64,
    /// What came of those that it was asked for.
    pub(crate) errands: ErrandCounts,
    /// The mark has changed, and nobody has been told.
    pub(crate) untold: bool,
}

/// A mark, and what may take it away.
#[derive(Debug)]
struct Marked {
    mark: Mark,
    /// The SYN of a connection that has left it last.
    late: Option<Sent>,
    /// The last probe.
    probe: Option<Sent>,
    /// When the next is due, and what passes until the one behind it.
    due: Instant,
    hold: Duration,
    /// Checks have found it down: they alone take the mark away.
    by_checks: bool,
}

/// Whose answer a packet is that belongs to no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnswerTo {
    /// A probe's.
    Probe,
    /// A connection's that has gone to another back end.
    Late,
    /// A check's.
    Check,
}

impl Health {
    /// How long it may take to answer a SYN before it counts as silent.
    pub(crate) fn patience(&self) -> Duration {
        let known = |rtt: Duration| (rtt * PATIENCE_TRIPS).clamp(PATIENCE, PATIENCE_MOST);
        self.rtt.map_or(PATIENCE_UNKNOWN, known)
    }

    pub(crate) const fn is_marked(&self) -> bool {
        self.marked.is_some()
    }

    pub(crate) fn mark(&self) -> Option<Mark> {
        self.marked.as_ref().map(|marked| marked.mark)
    }

    /// It has refused a SYN. `true`: it was not marked before.
    pub(crate) fn note_refusal(&mut self, now: Instant, reason: MarkReason) -> bool {
        self.set(now, reason, now + HOLD)
    }

    /// It has not answered a SYN that was sent at `asked`. `true`: it was not marked before, and is now.
    pub(crate) fn note_silence(&mut self, now: Instant, asked: Instant, sent: Sent) -> bool {
        if self.answered.is_some_and(|at| at > asked) {
            return false;
        }
        let new = self.set(now, MarkReason::Silent, now);
        if let Some(marked) = &mut self.marked {
            marked.late = Some(sent);
        }
        new
    }

    fn set(&mut self, now: Instant, reason: MarkReason, due: Instant) -> bool {
        let new = self.marked.is_none();
        let due = due.max(self.probe_again(now));
        let marked = self.marked.get_or_insert(Marked {
            mark: Mark { reason, since: now },
            late: None,
            probe: None,
            due,
            hold: HOLD,
            by_checks: false,
        });
        self.untold |= new || marked.mark.reason != reason;
        marked.mark.reason = reason;
        self.last = Some(marked.mark);
        new
    }

    /// The present mark, or the one before.
    pub(crate) const fn last_mark(&self) -> Option<Mark> {
        self.last
    }

    /// It has answered a SYN, after `rtt` if that is known. `true`: it was marked.
    pub(crate) fn note_answer(&mut self, now: Instant, rtt: Option<Duration>) -> bool {
        self.answered = Some(now);
        if let Some(rtt) = rtt {
            let before = self.rtt.unwrap_or(rtt);
            self.rtt = Some(rtt.max(before - before.saturating_sub(rtt) / 8));
        }
        let goes = self.marked.take_if(|marked| !marked.by_checks).is_some();
        self.untold |= goes;
        goes
    }

    /// Its last check has failed. `true`: it was not marked before, and is now.
    pub(crate) fn note_check_failed(
        &mut self,
        now: Instant,
        reason: MarkReason,
        check: Check,
    ) -> bool {
        if !self.checked.fail(check) {
            return false;
        }
        let new = self.set(now, reason, now);
        if let Some(marked) = &mut self.marked {
            marked.by_checks = true;
            marked.probe = None;
        }
        new
    }

    /// Its last check was answered, after `rtt`. `true`: it was marked, and is not any more.
    pub(crate) fn note_check_passed(
        &mut self,
        now: Instant,
        rtt: Option<Duration>,
        check: Check,
    ) -> bool {
        let risen = self.checked.pass(check);
        if let Some(marked) = &mut self.marked {
            marked.by_checks &= !risen;
        }
        self.note_answer(now, rtt)
    }

    /// It is checked in another way from here on, or no more: what checks have found says nothing then.
    pub(crate) fn check_anew(&mut self, check: Option<Check>) {
        self.checked = Checked::default();
        if let Some(marked) = &mut self.marked {
            marked.by_checks &= check.is_some();
        }
    }

    /// The SYN without a connection that a packet to `source` with this ACK answers.
    pub(crate) fn find_sent(&self, source: SocketAddr, ack: TcpSeq) -> Option<(AnswerTo, Sent)> {
        if let Some(sent) = self.checked.find_sent(source, ack) {
            return Some((AnswerTo::Check, sent));
        }
        let marked = self.marked.as_ref()?;
        let is = |sent: &Sent| sent.source == source && sent.ack == ack;
        let probe = marked.probe.filter(is).map(|sent| (AnswerTo::Probe, sent));
        probe.or_else(|| marked.late.filter(is).map(|sent| (AnswerTo::Late, sent)))
    }

    /// Whether a probe or a check from `source` may still be answered.
    pub(crate) fn has_sent_from(&self, source: SocketAddr) -> bool {
        let probe = self.marked.as_ref().and_then(|marked| marked.probe);
        let probed = probe.is_some_and(|probe| probe.source == source);
        probed || self.checked.has_sent_from(source)
    }

    /// When the next probe is due; `None`: it is not marked, or checks see to it.
    pub(crate) fn probe_due(&self) -> Option<Instant> {
        let marked = self.marked.as_ref().filter(|marked| !marked.by_checks);
        marked.map(|marked| marked.due)
    }

    /// When it may be probed again.
    fn probe_again(&self, now: Instant) -> Instant {
        self.probed.map_or(now, |at| now.max(at + PAUSE))
    }

    /// No other back end is left: it is probed as soon as may be.
    pub(crate) fn hasten(&mut self, now: Instant) {
        let soonest = self.probe_again(now);
        if let Some(marked) = &mut self.marked {
            marked.due = marked.due.min(soonest);
        }
    }

    /// A probe leaves, or should and can't (`None`): the next is due after a while.
    pub(crate) fn note_probe(&mut self, now: Instant, probe: Option<Sent>) {
        if let Some(marked) = &mut self.marked {
            marked.probe = probe;
            self.probed = Some(now);
            marked.due = now + marked.hold;
            marked.hold = (marked.hold * 2).min(HOLD_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    const fn millis(count: u64) -> Option<Duration> {
        Some(Duration::from_millis(count))
    }

    fn sent(port: u16, at: Option<Instant>) -> Sent {
        Sent {
            source: SocketAddr::from(([10, 8, 0, 100], port)),
            ack: TcpSeq(7),
            at,
        }
    }

    #[test]
    fn patience_follows_the_slowest_answers_of_late() {
        let mut health = Health::default();
        assert_eq!(health.patience(), PATIENCE_UNKNOWN);
        let mut after = |rtt| {
            health.note_answer(at(0), millis(rtt));
            health.patience()
        };
        assert_eq!(after(2), PATIENCE);
        assert_eq!(after(400), Duration::from_millis(1200));
        assert_eq!(after(400), Duration::from_millis(1200));
        assert_eq!(after(240), Duration::from_millis(1140));
        assert_eq!(after(5000), PATIENCE_MOST);
        assert!(!health.note_answer(at(0), None));
        assert_eq!(health.patience(), PATIENCE_MOST);
    }

    #[test]
    fn silence_marks_unless_another_syn_was_answered_meanwhile() {
        let mut health = Health::default();
        health.note_answer(at(1001), None);
        assert!(!health.note_silence(at(1250), at(1000), sent(1, None)));
        assert_eq!(health.mark(), None);
        assert!(health.note_silence(at(1251), at(1001), sent(1, None)));
        assert!(!health.note_silence(at(1252), at(1002), sent(2, None)));
        let mark = Mark {
            reason: MarkReason::Silent,
            since: at(1251),
        };
        assert_eq!(health.mark(), Some(mark));
        assert_eq!(health.find_sent(sent(1, None).source, TcpSeq(7)), None);
        let late = health.find_sent(sent(2, None).source, TcpSeq(7));
        assert_eq!(late, Some((AnswerTo::Late, sent(2, None))));
        assert_eq!(health.find_sent(sent(2, None).source, TcpSeq(8)), None);
    }

    #[test]
    fn silent_one_is_probed_at_once_and_one_that_refuses_after_a_second() {
        let mut health = Health::default();
        assert!(health.note_silence(at(500), at(0), sent(1, None)));
        let dues: alloc::vec::Vec<_> = dues(&mut health).take(8).collect();
        let expected = [500, 1500, 3500, 7500, 15_500, 31_500, 61_500, 91_500];
        assert_eq!(dues, expected);
        let mut health = Health::default();
        assert!(health.note_refusal(at(500), MarkReason::Refused));
        assert_eq!(health.probe_due(), Some(at(1500)));
    }

    /// When probes are due, in milliseconds, one sent each time.
    fn dues(health: &mut Health) -> impl Iterator<Item = u64> + '_ {
        core::iter::from_fn(|| {
            let due = health.probe_due()?;
            health.note_probe(due, Some(sent(9, Some(due))));
            Some(due.0 / 1000)
        })
    }

    #[test]
    fn probe_that_is_hastened_keeps_its_distance_from_the_last() {
        let mut health = Health::default();
        health.note_refusal(at(0), MarkReason::Refused);
        health.hasten(at(10));
        assert_eq!(health.probe_due(), Some(at(10)));
        for due in [10, 1010, 3010] {
            health.note_probe(at(due), None);
        }
        assert_eq!(health.probe_due(), Some(at(7010)));
        health.hasten(at(3100));
        assert_eq!(health.probe_due(), Some(at(3260)));
        health.hasten(at(4000));
        assert_eq!(health.probe_due(), Some(at(3260)), "never later");
        health.note_answer(at(3200), None);
        health.note_silence(at(3201), at(3201), sent(1, None));
        assert_eq!(health.probe_due(), Some(at(3260)), "whatever the mark");
    }

    #[test]
    fn answer_takes_the_mark_away() {
        let mut health = Health::default();
        assert!(health.note_refusal(at(0), MarkReason::Unreachable));
        assert!(core::mem::take(&mut health.untold));
        assert!(!health.note_refusal(at(5), MarkReason::Unreachable));
        assert!(!health.untold);
        assert!(!health.note_refusal(at(6), MarkReason::Refused));
        assert!(core::mem::take(&mut health.untold), "another reason");
        assert!(health.note_answer(at(9), millis(1)));
        assert!(!health.is_marked() && health.untold);
    }
}
