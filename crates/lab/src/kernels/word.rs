//! What items say of themselves: a line of JSON each, marked so that it is told from whatever else is on a serial port.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::carried::Carried;

/// A line from the kernel that is being tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The items begin, on this kernel.
    Kernel {
        /// As `uname -r` says it.
        release: String,
    },
    /// An item begins.
    Begin {
        /// Its name.
        item: String,
    },
    /// An item has ended.
    Ended(Outcome),
    /// All items were run.
    End,
}

/// What came of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name.
    pub item: String,
    /// Whether it did what it has to.
    pub passed: bool,
    /// What the kernel is without, so that it was not run.
    pub not_had: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// Of a transfer, who carried its data.
    pub carried: Option<Carried>,
    /// What was waited for.
    pub waits: Vec<Wait>,
    /// What was wrong; empty when nothing was. Of an item that passed: why it took a second attempt.
    pub detail: String,
}

/// How long something took, and may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// What was waited for.
    pub what: String,
    /// How long it took.
    pub seconds: f64,
    /// How long it may take: the aim.
    pub most: f64,
}

impl Wait {
    /// Whether it took no longer than it may.
    pub(super) fn is_short(&self) -> bool {
        self.seconds <= self.most
    }
}

impl Word {
    /// The line, with its end.
    pub(super) fn line(&self) -> Result<String> {
        Ok(format!("{MARK}{}\n", serde_json::to_string(self)?))
    }

    /// The word of a line; `None` for a line that is not one.
    ///
    /// # Errors
    ///
    /// A marked line that can't be read.
    pub(super) fn parse(line: &str) -> Result<Option<Self>> {
        let Some((_, json)) = line.split_once(MARK) else {
            return Ok(None);
        };
        let word = serde_json::from_str(json.trim_end());
        word.map(Some)
            .with_context(|| format!("a garbled word: {line}"))
    }
}

const MARK: &str = "@flexcp ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_survives_its_line() {
        let outcome = Outcome {
            item: "demo".to_owned(),
            passed: false,
            not_had: Some("VLAN".to_owned()),
            seconds: 1.5,
            carried: None,
            waits: vec![],
            detail: "two\nlines \"quoted\"".to_owned(),
        };
        for word in [Word::Ended(outcome), Word::End] {
            let line = word.line().unwrap();
            assert_eq!(line.matches('\n').count(), 1);
            let on_a_port = format!("noise{}\r", line.trim_end());
            assert_eq!(Word::parse(&on_a_port).unwrap(), Some(word));
        }
    }

    #[test]
    fn other_lines_are_no_words() {
        assert_eq!(Word::parse("test result: ok").unwrap(), None);
        assert!(Word::parse("@flexcp {\"ended\":{\"item\":\"de").is_err());
    }
}
