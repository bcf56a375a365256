//! Checks of one back end: a SYN of FlexCP's own at regular times, whether it is marked or not.
//!
//! One is under way at a time at most. A SYN/ACK within the time limit passes it; a RST, or none of both, fails it. What
//! comes behind the limit says nothing any more.

use core::net::SocketAddr;

use flexcp_wire::TcpSeq;

use super::Sent;
use crate::config::Check;
use crate::time::Instant;

/// What the checks of a back end have found.
#[derive(Default, Debug)]
pub(crate) struct Checked {
    /// When the next is due; `None`: they have not begun.
    next: Option<Instant>,
    /// The last: an answer to it is known until there is another.
    sent: Option<Sent>,
    /// Until when an answer to it counts; `None`: it has passed or failed.
    limit: Option<Instant>,
    /// So many in a row have passed.
    passed: u8,
    /// So many in a row have failed.
    failed: u8,
}

impl Checked {
    /// When there is something to do: at once before they have begun.
    pub(crate) fn due(&self) -> Instant {
        self.limit.or(self.next).unwrap_or_default()
    }

    /// Begins with them, so that those of a service's `count` back ends come one after the other. `false`: they have begun.
    pub(crate) fn begin(&mut self, now: Instant, check: Check, (at, count): (u32, u32)) -> bool {
        if self.next.is_some() {
            return false;
        }
        self.next = Some(now + check.every * at / count.max(1));
        true
    }

    /// One leaves, or should and can't (`None`), as no port is free: that says nothing of the back end.
    pub(crate) fn note_sent(&mut self, now: Instant, sent: Option<Sent>, check: Check) {
        self.next = Some(now + check.every);
        self.limit = sent.map(|_| now + check.timeout);
        self.sent = sent;
    }

    /// The last check, if a packet to `source` with this ACK answers it.
    pub(crate) fn find_sent(&self, source: SocketAddr, ack: TcpSeq) -> Option<Sent> {
        self.sent
            .filter(|sent| sent.source == source && sent.ack == ack)
    }

    /// Whether an answer to the last from `source` may still come.
    pub(crate) fn has_sent_from(&self, source: SocketAddr) -> bool {
        self.sent.is_some_and(|sent| sent.source == source)
    }

    /// Whether the last waits for its answer at `now`.
    pub(crate) fn waits(&self, now: Instant) -> bool {
        self.limit.is_some_and(|limit| now < limit)
    }

    /// Whether the time of the last is over without an answer.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.limit.is_some_and(|limit| limit <= now)
    }

    /// The last has passed. `true`: with it enough in a row have.
    pub(crate) fn pass(&mut self, check: Check) -> bool {
        self.limit = None;
        self.failed = 0;
        self.passed = self.passed.saturating_add(1);
        self.passed >= check.rise
    }

    /// The last has failed. `true`: with it enough in a row have.
    pub(crate) fn fail(&mut self, check: Check) -> bool {
        self.limit = None;
        self.passed = 0;
        self.failed = self.failed.saturating_add(1);
        self.failed >= check.fall
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const CHECK: Check = Check {
        every: Duration::from_millis(2000),
        timeout: Duration::from_millis(500),
        fall: 3,
        rise: 2,
    };

    const fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn sent(port: u16) -> Sent {
        Sent {
            source: SocketAddr::from(([10, 8, 0, 100], port)),
            ack: TcpSeq(7),
            at: None,
        }
    }

    #[test]
    fn checks_of_a_service_begin_one_after_the_other() {
        let begun = [0, 1, 2, 3].map(|n| {
            let mut checked = Checked::default();
            assert_eq!(checked.due(), Instant::default());
            assert!(checked.begin(at(100), CHECK, (n, 4)));
            assert!(!checked.begin(at(200), CHECK, (n, 4)));
            checked.due()
        });
        assert_eq!(begun, [100, 600, 1100, 1600].map(at));
    }

    #[test]
    fn one_waits_for_its_answer_until_its_time_is_over() {
        let mut checked = Checked::default();
        checked.note_sent(at(1000), Some(sent(1)), CHECK);
        assert_eq!(checked.due(), at(1500));
        assert!(checked.waits(at(1499)) && !checked.is_overdue(at(1499)));
        assert!(!checked.waits(at(1500)) && checked.is_overdue(at(1500)));
        assert!(!checked.fail(CHECK));
        assert_eq!(checked.due(), at(3000));
        assert!(!checked.is_overdue(at(9999)), "it was judged");
        let found = |checked: &Checked, port| checked.find_sent(sent(port).source, TcpSeq(7));
        assert_eq!(found(&checked, 1), Some(sent(1)), "a late answer is known");
        assert_eq!(found(&checked, 2), None);
        assert_eq!(checked.find_sent(sent(1).source, TcpSeq(8)), None);
        checked.note_sent(at(3000), None, CHECK);
        assert_eq!((found(&checked, 1), checked.due()), (None, at(5000)));
        assert!(!checked.has_sent_from(sent(1).source));
    }

    #[test]
    fn only_what_comes_in_a_row_counts() {
        let mut checked = Checked::default();
        let fails = [(); 3].map(|()| checked.fail(CHECK));
        assert_eq!(fails, [false, false, true]);
        assert!(!checked.pass(CHECK));
        assert!(!checked.fail(CHECK) && !checked.fail(CHECK));
        assert!(!checked.pass(CHECK));
        assert!(checked.pass(CHECK) && checked.pass(CHECK));
    }
}
