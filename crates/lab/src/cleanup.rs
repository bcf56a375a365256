//! Leftovers: finding and removing what dead lab processes left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::namespace;

/// Namespaces and temp directories start with this, then the owner's pid.
pub(crate) const PREFIX: &str = "fxl";

/// A file of this name in the lab's directory says that the lab is to stay.
const KEEP_MARK: &str = "keep";

/// Which labs to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Those of dead processes, except the ones that were asked to stay.
    Leftovers,
    /// Those of dead processes, also the ones that were asked to stay.
    DeadAndKept,
}

/// Removes what dead lab processes left; returns the prefixes removed.
pub fn sweep(what: Sweep) -> Vec<String> {
    let mut removed = BTreeSet::new();
    for name in namespace::list() {
        let Some((prefix, _)) = name.split_once('-') else {
            continue;
        };
        if is_dead(prefix) && (what == Sweep::DeadAndKept || !is_kept(prefix)) {
            removed.insert(prefix.to_owned());
            let _ = namespace::remove_by_name(&name);
        }
    }
    // Directories last: they carry the mark that says whether a lab stays.
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if is_dead(&name) && (what == Sweep::DeadAndKept || !is_kept(&name)) {
            removed.insert(name);
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    removed.into_iter().collect()
}

/// Removes one lab by its prefix, whoever owns it; false if there is none.
pub fn remove(prefix: &str) -> bool {
    let ours = format!("{prefix}-");
    let names: Vec<_> = namespace::list()
        .into_iter()
        .filter(|n| n.starts_with(&ours))
        .collect();
    let found = owner(prefix).is_some() && !names.is_empty();
    if found {
        for name in names {
            let _ = namespace::remove_by_name(&name);
        }
        let _ = fs::remove_dir_all(directory(prefix));
    }
    found
}

/// Where the lab with this prefix keeps its files.
pub(crate) fn directory(prefix: &str) -> PathBuf {
    std::env::temp_dir().join(prefix)
}

/// Marks the lab whose files are in `dir` as one that stays.
pub(crate) fn mark_kept(dir: &Path) -> std::io::Result<()> {
    fs::write(dir.join(KEEP_MARK), "")
}

fn is_kept(prefix: &str) -> bool {
    directory(prefix).join(KEEP_MARK).exists()
}

/// True for `fxl<pid>` and `fxl<pid>.<n>` when no such process exists.
fn is_dead(prefix: &str) -> bool {
    owner(prefix).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn owner(prefix: &str) -> Option<u32> {
    let digits = prefix.strip_prefix(PREFIX)?;
    let pid = digits.split_once('.').map_or(digits, |(pid, _)| pid);
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_read_from_names_of_ours_only() {
        assert_eq!(owner("fxl12"), Some(12));
        assert_eq!(owner("fxl12.3"), Some(12));
        assert_eq!(owner("fxlfoo"), None);
        assert_eq!(owner("eth12"), None);
    }
}
