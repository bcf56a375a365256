//! The copy of the workspace that is damaged and mended: the tree that is worked in stays as it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What of the workspace is copied.
const FILES: [&str; 2] = ["Cargo.toml", "Cargo.lock"];
const DIRECTORIES: [&str; 4] = ["bpf", "scripts", "crates", "docs"];

/// A copy of the sources, and a directory of its own for what is built of them.
pub(crate) struct Copy {
    root: PathBuf,
    /// The sources.
    pub(crate) source: PathBuf,
    /// Cargo's target directory.
    pub(crate) build: PathBuf,
    /// Locked as long as this lives: two runs in one copy would test each other's bugs.
    _lock: fs::File,
}

impl Copy {
    /// Brings the copy in `target/seeded-bugs` up to date.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let copy = root.join("target/seeded-bugs");
        fs::create_dir_all(&copy)?;
        let lock = fs::File::create(copy.join("lock"))?;
        lock.try_lock()
            .map_err(|_| io::Error::other(format!("another run works in {}", copy.display())))?;
        let copy = Self {
            root: root.to_owned(),
            source: copy.join("source"),
            build: copy.join("build"),
            _lock: lock,
        };
        copy.mend()?;
        Ok(copy)
    }

    /// Makes the copy equal to the tree; a file that is the same keeps its time, so that little is built again.
    pub(crate) fn mend(&self) -> io::Result<()> {
        fs::create_dir_all(&self.source)?;
        for name in FILES {
            copy_file(&self.root.join(name), &self.source.join(name))?;
        }
        DIRECTORIES
            .iter()
            .try_for_each(|name| mirror(&self.root.join(name), &self.source.join(name)))
    }

    /// A number for what the copy holds, apart from this program: results of other sources are of no use.
    pub(crate) fn digest(&self) -> io::Result<String> {
        let mut sum = 0;
        for name in FILES {
            sum = digest(&fs::read(self.source.join(name))?, sum);
        }
        for name in DIRECTORIES {
            digest_tree(&self.source.join(name), &mut sum)?;
        }
        Ok(format!("{sum:016x}"))
    }
}

/// FNV-1a, going on from `sum`: the same for the same bytes in every build.
pub(crate) fn digest(bytes: &[u8], sum: u64) -> u64 {
    bytes.iter().fold(sum ^ 0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn digest_tree(directory: &Path, sum: &mut u64) -> io::Result<()> {
    let mut paths: Vec<_> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.ends_with("crates/mutants") {
            continue;
        }
        if path.is_dir() {
            digest_tree(&path, sum)?;
        } else {
            let name = path.file_name().unwrap_or_default();
            *sum = digest(name.as_encoded_bytes(), *sum);
            *sum = digest(&fs::read(&path)?, *sum);
        }
    }
    Ok(())
}

fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        names.insert(entry.file_name());
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            mirror(&entry.path(), &target)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Copies contents and permissions, if the contents differ.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read(to).ok() != Some(fs::read(from)?) {
        fs::copy(from, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_brings_new_takes_away_old_and_leaves_the_same_alone() {
        let base = std::env::temp_dir().join(format!("flexcp-mirror-{}", std::process::id()));
        let (from, to) = (base.join("from"), base.join("to"));
        fs::create_dir_all(from.join("deep")).unwrap();
        fs::create_dir_all(to.join("gone")).unwrap();
        fs::write(from.join("deep/new"), "new").unwrap();
        fs::write(from.join("same"), "same").unwrap();
        fs::write(to.join("same"), "same").unwrap();
        let before = fs::metadata(to.join("same")).unwrap().modified().unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("deep/new")).unwrap(), b"new");
        assert!(!to.join("gone").exists());
        let after = fs::metadata(to.join("same")).unwrap().modified().unwrap();
        assert_eq!(before, after);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn digest_depends_on_every_byte_and_on_what_was_before() {
        assert_ne!(digest(b"ab", 0), digest(b"ba", 0));
        assert_ne!(digest(b"", 1), digest(b"", 2));
    }
}
