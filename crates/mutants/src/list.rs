//! The lists of bugs, as text:
//!
//! ```text
//! == the name of the bug
//! @ translator Connection::place_down
//! - fragment of that function
//! + what stands there instead
//! ```
//!
//! The first word behind `@` says where: `bpf` or the name of a crate, of which `src` is meant, with a path below it
//! where two functions have one name (`translator/dtree/installed.rs`). What stands before the first `==` explains the list.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A bug: what in which function is replaced by what.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Bug {
    pub(crate) name: String,
    /// `bpf`, a crate, or a path below them.
    pub(crate) place: String,
    /// Path of the function, as [`Item::path`](crate::item::Item::path).
    pub(crate) function: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Bug {
    /// `bpf` or the crate that it is in.
    pub(crate) fn area(&self) -> &str {
        self.place.split('/').next().unwrap_or_default()
    }

    /// What tells it from another bug of the same name: results of one are not those of the other.
    pub(crate) fn fingerprint(&self) -> String {
        let text = [&*self.place, &self.function, &self.old, &self.new].join("\n");
        format!("{:016x}", crate::copy::digest(text.as_bytes(), 0))
    }

    /// As a list has it.
    pub(crate) fn to_text(&self) -> String {
        let lines = |mark: char, text: &str| -> String {
            let line = |line: &str| format!("{mark} {line}").trim_end().to_owned() + "\n";
            text.lines().map(line).collect()
        };
        format!(
            "== {}\n@ {} {}\n{}{}",
            self.name,
            self.place,
            self.function,
            lines('-', &self.old),
            lines('+', &self.new)
        )
    }
}

/// Reads one list.
pub(crate) fn load(file: &Path) -> Result<Vec<Bug>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Reads all lists of a directory; no name may stand twice.
pub(crate) fn load_all(directory: &Path) -> Result<Vec<Bug>, String> {
    let mut bugs = Vec::new();
    for file in lists(directory)? {
        bugs.extend(load(&file)?);
    }
    let mut names = BTreeSet::new();
    match bugs.iter().find(|bug| !names.insert(&bug.name)) {
        Some(twice) => Err(format!("two bugs are called {:?}: rename one", twice.name)),
        None => Ok(bugs),
    }
}

/// The files of a directory that are lists, by name.
pub(crate) fn lists(directory: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    files.sort();
    Ok(files)
}

/// Reads the text of a list.
pub(crate) fn parse(text: &str) -> Result<Vec<Bug>, String> {
    let mut bugs: Vec<Bug> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("== ") {
            bugs.push(Bug {
                name: name.trim().to_owned(),
                ..Bug::default()
            });
        } else if let Some(bug) = bugs.last_mut() {
            take(bug, line).ok_or_else(|| {
                format!(
                    "line {}: {line:?} starts with none of \"== \", \"@ \", \"-\", \"+\"",
                    number + 1
                )
            })?;
        }
    }
    for bug in &bugs {
        if bug.place.is_empty() || bug.function.is_empty() || bug.old.is_empty() {
            return Err(format!(
                "{:?} lacks its place, function or fragment",
                bug.name
            ));
        }
    }
    Ok(bugs)
}

/// One line of a bug; `None`: it means nothing.
fn take(bug: &mut Bug, line: &str) -> Option<()> {
    if line.trim().is_empty() {
        return Some(());
    }
    if let Some(address) = line.strip_prefix("@ ") {
        let (place, function) = address.trim().split_once(' ')?;
        bug.place = place.to_owned();
        bug.function = function.trim().to_owned();
        return Some(());
    }
    let (mark, text) = line.split_at_checked(1)?;
    let to = match mark {
        "-" => &mut bug.old,
        "+" => &mut bug.new,
        _ => return None,
    };
    let text = match text.strip_prefix(' ') {
        Some(text) => text,
        None if text.is_empty() => text,
        None => return None,
    };
    if !to.is_empty() {
        to.push('\n');
    }
    to.push_str(text);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Explains.\n\n== one\n@ translator/auth.rs Keys::token\n- a\n-     b\n+ c\n\n== two\n@ bpf judge\n- d\n";

    #[test]
    fn list_is_read_and_written_again() {
        let bugs = parse(TEXT).unwrap();
        assert_eq!(bugs.len(), 2);
        assert_eq!(bugs[0].area(), "translator");
        assert_eq!(bugs[0].old, "a\n    b");
        assert_eq!(bugs[1].new, "", "nothing stands there instead");
        let again: String = bugs.iter().map(Bug::to_text).collect();
        assert_eq!(parse(&again).unwrap(), bugs);
    }

    #[test]
    fn line_without_a_meaning_is_refused_with_its_number() {
        let error = parse("== one\n@ bpf judge\n- a\nwhat\n").unwrap_err();
        assert!(error.starts_with("line 4: \"what\""), "{error}");
    }

    #[test]
    fn bug_without_its_parts_is_refused() {
        for text in [
            "== one\n- a\n",
            "== one\n@ bpf judge\n",
            "== one\n@ bpf\n- a\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
