//! What came of `flexcp move` and `flexcp close`.

use crate::control::view::{Done, DoneByAll};

/// With one connection.
#[must_use]
pub fn done(done: &Done) -> String {
    let said = if done.changed {
        "done\n"
    } else {
        "it was so already\n"
    };
    said.into()
}

/// With all that a filter finds.
#[must_use]
pub fn done_by_all(all: &DoneByAll) -> String {
    let refused = &all.refused.0;
    let sum = refused
        .iter()
        .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    let mut text = format!(
        "done: {}, so already: {}, refused: {sum}",
        all.done, all.already
    );
    for (place, (reason, count)) in refused.iter().enumerate() {
        let before = if place == 0 { " (" } else { ", " };
        text += &format!("{before}{reason} {count}");
    }
    text += if refused.is_empty() { "\n" } else { ")\n" };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERSION;
    use crate::control::view::Numbers;

    #[test]
    fn refusals_stand_behind_their_sum() {
        let all = |refused: &[(&str, u64)]| DoneByAll {
            version: VERSION,
            done: 12,
            already: 3,
            refused: Numbers(
                refused
                    .iter()
                    .map(|&(name, count)| (name.into(), count))
                    .collect(),
            ),
        };
        assert_eq!(
            done_by_all(&all(&[])),
            "done: 12, so already: 3, refused: 0\n"
        );
        assert_eq!(
            done_by_all(&all(&[("no_subflow", 2), ("hole", 1)])),
            "done: 12, so already: 3, refused: 3 (no_subflow 2, hole 1)\n"
        );
    }

    #[test]
    fn one_connection_has_done_it_or_was_so() {
        let one = |changed| {
            done(&Done {
                version: VERSION,
                changed,
            })
        };
        assert_eq!([one(true), one(false)], ["done\n", "it was so already\n"]);
    }
}
