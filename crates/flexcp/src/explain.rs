//! What each number of `flexcp show stats` means, and which to alarm on: from the sources that count them.

use std::fmt::Write as _;

use crate::split::Tally;
use flexcp_io::Reasons;
use flexcp_translator::{Causes, Counters, DropReason, Gauges, Meaning};

use crate::worker::CarrierCounters;

/// Numbers that are shown under one title.
struct Group {
    title: String,
    about: String,
    rows: Vec<(&'static str, String)>,
}

/// What to alarm on when it moves, and what it says.
const ALARMS: [(&str, &str); 14] = [
    (
        "unaccounted",
        "any of them: a defect of FlexCP's, please report it",
    ),
    (
        "records_refused",
        "the state directory is full: after a crash some ends would not be told",
    ),
    (
        "handover_lost",
        "a worker lags behind: more workers, or `placement = \"owner\"`",
    ),
    (
        "placement_full",
        "more joined subflows than the placement program has room for",
    ),
    (
        "send_failed",
        "the kernel takes no packets from FlexCP's device",
    ),
    ("receive_failed", "FlexCP's device can't be read"),
    (
        "malformed_rx",
        "a driver or a program hands FlexCP packets that nobody agreed on",
    ),
    (
        "overload_plain",
        "`[limits]` are reached: clients get plain TCP instead of MPTCP",
    ),
    (
        "limit_reached",
        "the same where clients address FlexCP: they are refused",
    ),
    (
        "memory_refused",
        "connections want more than `[limits] memory` has left: it is too little for them, or it is taken by hostile ones",
    ),
    (
        "backend_marked",
        "a back end refuses or does not answer; `flexcp show status` and the log say which",
    ),
    (
        "backend_skipped",
        "connections had to go to another back end: each has waited for the first",
    ),
    (
        "offload_refused",
        "more busy connections than `[offload] connections`",
    ),
    (
        "rewrite_failed",
        "the kernel could not change a packet: it is lost",
    ),
];

/// All of it, or what has `word` in its name; `None`: nothing has.
#[must_use]
pub fn text(word: Option<&str>) -> Option<String> {
    let mut text = String::new();
    for group in groups() {
        let fits = |name: &str| word.is_none_or(|word| name.contains(word));
        let whole = fits(&group.title);
        let rows: Vec<_> = group
            .rows
            .iter()
            .filter(|(name, _)| whole || fits(name))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}: {}", group.title, group.about);
        for (name, meaning) in rows {
            let _ = writeln!(text, "  {name}\n      {meaning}");
            if let Some((_, why)) = ALARMS.iter().find(|(alarm, _)| alarm == name) {
                let _ = writeln!(text, "      Alarm when it moves: {why}.");
            }
        }
        text.push('\n');
    }
    (!text.is_empty()).then_some(text)
}

/// The same as a document.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(
        "# What `flexcp show stats` counts\n\nMade from the sources by `make counters`. `flexcp explain WORD` says the same \
         of whatever has WORD in its name.\n\n## What to alarm on\n\n| when this moves | it says |\n|---|---|\n",
    );
    for (name, why) in ALARMS {
        let _ = writeln!(text, "| `{name}` | {why} |");
    }
    for group in groups() {
        let _ = writeln!(
            text,
            "\n## {}\n\n{}\n\n| | |\n|---|---|",
            group.title, group.about
        );
        for (name, meaning) in group.rows {
            let _ = writeln!(text, "| `{name}` | {} |", meaning.replace('|', "\\|"));
        }
    }
    text
}

fn groups() -> Vec<Group> {
    let mut groups = vec![Group {
        title: "counters".into(),
        about: "What has been done so far.".into(),
        rows: rows(Counters::MEANINGS),
    }];
    for ((name, meaning), causes) in Causes::MEANINGS {
        groups.push(Group {
            title: format!("{name} by cause"),
            about: joined(meaning),
            rows: rows(causes),
        });
    }
    groups.push(Group {
        title: "drops".into(),
        about: "Packets that were dropped, by reason.".into(),
        rows: rows(DropReason::MEANINGS),
    });
    groups.push(Group {
        title: "carrier".into(),
        about: "Packets between FlexCP's device and the translator.".into(),
        rows: rows(CarrierCounters::MEANINGS),
    });
    let reasons = Reasons::meanings().iter();
    groups.push(Group {
        title: "offload".into(),
        about: "What the kernel's programs have done with packets of connections that were installed once, and why others of those \
                went to the workers."
            .into(),
        rows: reasons.map(|(name, meaning)| (*name, (*meaning).to_owned())).collect(),
    });
    groups.push(Group {
        title: "split".into(),
        about: "What the relay of split connections has done.".into(),
        rows: rows(Tally::MEANINGS),
    });
    groups.push(Group {
        title: "held now".into(),
        about: "What is held now; all 0 without connections.".into(),
        rows: rows(Gauges::MEANINGS),
    });
    groups
}

fn rows(meanings: &[Meaning]) -> Vec<(&'static str, String)> {
    let row = |&(name, lines): &Meaning| (name, joined(lines));
    meanings.iter().map(row).collect()
}

/// Lines of a comment, as one.
fn joined(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_counted_has_a_meaning() {
        for group in groups() {
            assert!(!group.about.is_empty(), "{}", group.title);
            for (name, meaning) in group.rows {
                assert!(
                    meaning.len() > 10 && meaning.ends_with('.'),
                    "{name}: {meaning}"
                );
            }
        }
        let names = Counters::default();
        assert_eq!(names.iter().count(), Counters::MEANINGS.len());
    }

    #[test]
    fn alarms_are_about_what_is_counted() {
        let all: Vec<_> = groups().into_iter().flat_map(|group| group.rows).collect();
        for (alarm, _) in &ALARMS[1..] {
            assert!(all.iter().any(|(name, _)| name == alarm), "{alarm}");
        }
    }

    #[test]
    fn word_finds_what_has_it_in_its_name() {
        let text = text(Some("handover_lost")).unwrap();
        assert!(
            text.contains("another worker") && text.contains("Alarm"),
            "{text}"
        );
        assert!(!text.contains("packets_in"));
        assert!(
            super::text(Some("rst by cause"))
                .unwrap()
                .contains("fast_close")
        );
        assert_eq!(super::text(Some("no such thing")), None);
    }

    #[test]
    fn document_is_what_the_sources_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md");
        let document = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            document == markdown(),
            "docs/counters.md is old: run `make counters`"
        );
    }
}
