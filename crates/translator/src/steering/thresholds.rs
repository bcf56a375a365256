//! Thresholds: how bad a path may become before its connections are led elsewhere (3GPP TS 29.244 section 8.2.188).

use core::time::Duration;

use super::{SteeredPath, View};

/// The most that a path may show; `None`: anything.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Thresholds {
    /// Round-trip time between FlexCP and the client.
    pub rtt: Option<Duration>,
    /// Of what the rule's connections send over its access, the part that is sent again, in ten thousandths.
    pub loss: Option<u16>,
}

impl Thresholds {
    /// Whether there are any.
    #[must_use]
    pub const fn are_set(&self) -> bool {
        self.rtt.is_some() || self.loss.is_some()
    }

    /// Whether a path is worse than it may be. What is not known is not.
    #[must_use]
    pub fn exceeded_by(&self, path: &SteeredPath) -> bool {
        let slow = exceeds(path.rtt, self.rtt);
        let lossy = exceeds(path.load.loss, self.loss);
        slow || lossy
    }

    /// Whether connections may be led to a path: it is within four fifths of what it may show, so that the next
    /// variation does not lead them away again.
    #[must_use]
    pub fn admit(&self, path: &SteeredPath) -> bool {
        let slow = exceeds(path.rtt, self.rtt.map(|most| most * 4 / 5));
        let lossy = exceeds(path.load.loss, self.loss.map(|most| most - most / 5));
        !slow && !lossy
    }

    /// Round-trip time above which a mode is to be asked at once, if there is another path that it may take: where there is
    /// none, a connection need not ask.
    pub(super) fn patience(
        &self,
        view: &View<'_>,
        may_take: impl Fn(&SteeredPath) -> bool,
    ) -> Option<Duration> {
        let mut others = view.others.iter();
        let elsewhere = others.any(|path| may_take(path) && self.admit(path));
        self.rtt.filter(|_| elsewhere)
    }
}

fn exceeds<T: PartialOrd>(known: Option<T>, most: Option<T>) -> bool {
    matches!((known, most), (Some(known), Some(most)) if known > most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::Load;

    fn path(rtt: Option<u64>, loss: Option<u16>) -> SteeredPath {
        SteeredPath {
            rtt: rtt.map(Duration::from_millis),
            load: Load {
                loss,
                ..Load::default()
            },
            ..SteeredPath::default()
        }
    }

    const BOTH: Thresholds = Thresholds {
        rtt: Some(Duration::from_millis(50)),
        loss: Some(200),
    };

    #[test]
    fn path_exceeds_one_of_them_or_none() {
        assert!(!BOTH.exceeded_by(&path(Some(50), Some(200))));
        assert!(BOTH.exceeded_by(&path(Some(51), Some(0))));
        assert!(BOTH.exceeded_by(&path(Some(1), Some(201))));
        assert!(!BOTH.exceeded_by(&path(None, None)));
        assert!(!Thresholds::default().exceeded_by(&path(Some(9999), Some(9999))));
        assert!(BOTH.are_set() && !Thresholds::default().are_set());
    }

    #[test]
    fn path_is_taken_again_only_well_within_both() {
        assert!(BOTH.admit(&path(Some(40), Some(160))));
        assert!(!BOTH.admit(&path(Some(41), Some(0))));
        assert!(!BOTH.admit(&path(Some(1), Some(161))));
        assert!(BOTH.admit(&path(None, None)));
        assert!(Thresholds::default().admit(&path(Some(9999), Some(9999))));
    }
}
