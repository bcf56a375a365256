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
        self.worst(path) > WHOLE
    }

    /// Whether connections may be led to a path: it is within four fifths of what it may show, so that the next
    /// variation does not lead them away again.
    #[must_use]
    pub fn admit(&self, path: &SteeredPath) -> bool {
        self.worst(path) <= WHOLE * 4 / 5
    }

    /// Whether connections leave the active path for this one: it is worse than it may be, and this one well within the
    /// thresholds, or at least better by a fifth. Paths that are used up may all be beyond them, and still one of them be
    /// much worse than another.
    #[must_use]
    pub fn relieves(&self, active: &SteeredPath, path: &SteeredPath) -> bool {
        let better = self.worst(path) * 5 <= self.worst(active) * 4;
        self.exceeded_by(active) && (self.admit(path) || better)
    }

    /// Whether connections of the active path may be led to this one for other reasons: it is well within the thresholds,
    /// or no worse than the active one.
    pub(super) fn bears(&self, active: &SteeredPath, path: &SteeredPath) -> bool {
        self.admit(path) || self.worst(path) <= self.worst(active)
    }

    /// Round-trip time above which a mode is to be asked at once: then the active path would be left for one that it may take.
    /// Where there is none, a connection need not ask.
    pub(super) fn patience(
        &self,
        view: &View<'_>,
        may_take: impl Fn(&SteeredPath) -> bool,
    ) -> Option<Duration> {
        let most = self.rtt?;
        let others = view.others.iter().filter(|path| may_take(path));
        let bearable = others.map(|path| match path.rtt {
            Some(rtt) if !self.admit(path) => most.max(rtt * 5 / 4),
            _ => most,
        });
        bearable.min()
    }

    /// What a path shows of that of which it shows the most, measured by what it may show; 0 where nothing is known or
    /// asked for.
    fn worst(&self, path: &SteeredPath) -> u64 {
        let part = |known: u64, most: u64| known.saturating_mul(WHOLE) / most.max(1);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let slow = path.rtt.zip(self.rtt);
        let slow = slow.map_or(0, |(known, most)| part(micros(known), micros(most)));
        let lossy = path.load.loss.zip(self.loss);
        let lossy = lossy.map_or(0, |(known, most)| part(known.into(), most.into()));
        // Room to compare multiples.
        slow.max(lossy).min(u64::MAX / 8)
    }
}

/// As much as a path may show.
const WHOLE: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::{Flow, Load};

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

    #[test]
    fn worse_path_is_left_for_one_within_or_better_by_a_fifth() {
        let at = |ms| path(Some(ms), Some(0));
        assert!(BOTH.relieves(&at(51), &at(40)));
        assert!(!BOTH.relieves(&at(50), &at(1)), "it is within");
        assert!(!BOTH.relieves(&at(51), &at(41)));
        // Both beyond, one much more.
        assert!(BOTH.relieves(&at(200), &at(160)));
        assert!(!BOTH.relieves(&at(200), &at(161)));
        // Each counts by its own measure.
        assert!(BOTH.relieves(&path(Some(10), Some(800)), &path(Some(160), Some(0))));
        assert!(!BOTH.relieves(&path(Some(10), Some(800)), &path(Some(161), Some(0))));
        assert!(BOTH.relieves(&at(51), &path(None, None)));
    }

    #[test]
    fn path_bears_connections_of_one_that_is_no_better() {
        let at = |ms| path(Some(ms), Some(0));
        assert!(BOTH.bears(&at(1), &at(40)));
        assert!(!BOTH.bears(&at(1), &at(41)));
        assert!(BOTH.bears(&at(80), &at(80)));
        assert!(!BOTH.bears(&at(80), &at(81)));
    }

    #[test]
    fn patience_ends_where_another_path_relieves() {
        let at = |ms| path(Some(ms), Some(0));
        let patience = |others: &[SteeredPath]| {
            let view = View {
                flow: Flow::default(),
                active: at(1),
                others,
            };
            BOTH.patience(&view, |_| true)
        };
        let millis = Duration::from_millis;
        assert_eq!(patience(&[]), None);
        assert_eq!(patience(&[at(40)]), Some(millis(50)));
        assert_eq!(patience(&[at(160)]), Some(millis(200)));
        assert_eq!(patience(&[at(160), at(60)]), Some(millis(75)));
        assert_eq!(patience(&[path(None, None)]), Some(millis(50)));
    }
}
