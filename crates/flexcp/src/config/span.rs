//! Where in the file something is said, and what is wrong there.

use std::fmt;

/// A value and the byte offset in the file at which it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located<T> {
    /// What is said.
    pub value: T,
    /// Byte offset of its first character; 0 for a default.
    pub at: usize,
}

impl<T> Located<T> {
    /// `value`, said at byte `at`.
    pub const fn new(value: T, at: usize) -> Self {
        Self { value, at }
    }

    /// `value`, not said in the file.
    pub const fn default(value: T) -> Self {
        Self { value, at: 0 }
    }
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// FlexCP does not start.
    Error,
    /// FlexCP starts, and something may not work as meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// All that is wrong with one file.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    file: String,
    /// Byte offset of each line's start.
    lines: Vec<usize>,
    text: String,
    found: Vec<Diagnostic>,
}

impl Diagnostics {
    /// Nothing wrong so far with `text`, which `file` holds.
    #[must_use]
    pub fn new(file: &str, text: &str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        Self {
            file: file.into(),
            lines: lines.collect(),
            text: text.into(),
            found: Vec::new(),
        }
    }

    /// Nothing wrong so far with the same file.
    #[must_use]
    pub fn without_findings(&self) -> Self {
        Self {
            found: Vec::new(),
            ..self.clone()
        }
    }

    /// FlexCP can't start with what stands at byte `at`.
    pub fn error(&mut self, at: usize, message: impl Into<String>) {
        self.push(Severity::Error, at, message.into());
    }

    /// What stands at byte `at` may not work as meant.
    pub fn warning(&mut self, at: usize, message: impl Into<String>) {
        self.push(Severity::Warning, at, message.into());
    }

    /// Whether FlexCP can't start.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.found
            .iter()
            .any(|found| found.severity == Severity::Error)
    }

    /// How many errors there are.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.found
            .iter()
            .filter(|found| found.severity == Severity::Error)
            .count()
    }

    /// Everything found, in the order of the file.
    #[must_use]
    pub fn found(&self) -> Vec<&Diagnostic> {
        let mut found: Vec<_> = self.found.iter().collect();
        found.sort_by_key(|found| (found.line, found.column));
        found
    }

    /// The file's name, as the user gave it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1, on which byte `at` stands.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|&start| start <= at)
    }

    /// `file:line:column: error: message`.
    #[must_use]
    pub fn render(&self, found: &Diagnostic) -> String {
        let Diagnostic {
            severity,
            line,
            column,
            message,
        } = found;
        format!("{}:{line}:{column}: {severity}: {message}", self.file)
    }

    fn push(&mut self, severity: Severity, at: usize, message: String) {
        let line = self.line(at);
        let before = self.text.get(self.lines[line - 1]..at).unwrap_or_default();
        let column = before.chars().count() + 1;
        self.found.push(Diagnostic {
            severity,
            line,
            column,
            message: one_line(&message),
        });
    }
}

/// A message quotes what stands in the file, where a string may hold line breaks and worse: each such character is
/// written as its escape.
fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.found()
            .into_iter()
            .try_for_each(|found| writeln!(f, "{}", self.render(found)))
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let mut found = Diagnostics::new("f.toml", "a = 1\nµé = 2\n");
        found.error(10 + 1, "second");
        found.warning(0, "first");
        found.error(14, "at the end");
        assert_eq!(
            found.to_string(),
            "f.toml:1:1: warning: first\nf.toml:2:4: error: second\nf.toml:2:7: error: at the end\n"
        );
        assert_eq!(found.errors(), 2);
    }

    #[test]
    fn a_message_is_one_line_whatever_it_quotes() {
        let mut found = Diagnostics::new("f.toml", "a = 1\n");
        found.error(0, "`a\nb\u{1b}[2J` is no \u{e4}");
        assert_eq!(
            found.to_string(),
            "f.toml:1:1: error: `a\\nb\\u{1b}[2J` is no \u{e4}\n"
        );
    }
}
