//! What has to be undone, on disk before it is done, so that a crash does not lose it. Holding the
//! file's lock is what "running" means.
//!
//! The file is replaced as a whole, and read back with suspicion: what it says is done with the rights of FlexCP.

mod record;

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

pub(crate) use self::record::{Record, boot, namespace};

/// The journal's file, locked by us until dropped.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    /// Whether something is still to be undone: then the file outlives us.
    outstanding: bool,
}

impl Journal {
    /// Locks the file, made if it is missing, and reads what an earlier run left in it. A journal that can't be
    /// believed is set aside, and `report` told what that means.
    pub(crate) fn claim(
        path: &Path,
        report: &mut dyn FnMut(&str),
    ) -> Result<(Self, Option<Record>), JournalError> {
        let open = |source| JournalError::Open {
            path: path.to_owned(),
            source,
        };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(open)?;
        }
        loop {
            let Some((file, metadata)) = Self::lock(path, report)? else {
                continue;
            };
            let left = match distrusted(&metadata, path) {
                None => read(&file).map_err(open)?,
                Some(reason) => Err(reason),
            };
            let record = match left {
                Ok(record) => record,
                Err(reason) => {
                    set_aside(path, &reason, report)?;
                    continue;
                }
            };
            let journal = Self {
                file,
                path: path.to_owned(),
                outstanding: record.is_some(),
            };
            return Ok((journal, record));
        }
    }

    /// Opens and locks the file. `None`: it was no file, or another has taken its place meanwhile.
    fn lock(
        path: &Path,
        report: &mut dyn FnMut(&str),
    ) -> Result<Option<(File, Metadata)>, JournalError> {
        let open = |source| JournalError::Open {
            path: path.to_owned(),
            source,
        };
        let file = match open_private(path, OFlags::CREATE | OFlags::NONBLOCK) {
            Ok(file) => file,
            // A symbolic link, a directory, a socket.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                set_aside(path, NO_FILE, report)?;
                return Ok(None);
            }
            Err(error) => return Err(open(error.into())),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(JournalError::Busy {
                    path: path.to_owned(),
                    owner: owner(&file),
                });
            }
            Err(error) => return Err(open(error.into())),
        }
        // The last owner may have deleted or replaced the file between our opening and locking it.
        let metadata = file.metadata().map_err(open)?;
        let is_there = fs::symlink_metadata(path).is_ok_and(|there| there.ino() == metadata.ino());
        Ok(is_there.then_some((file, metadata)))
    }

    /// Writes down what is going to be changed.
    pub(crate) fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        let text = serde_json::to_string_pretty(record).expect("a record is plain data");
        let directory = fs::create_dir_all(directory_of(&self.path));
        let written = directory.and_then(|()| self.replace(text.as_bytes()));
        written.map_err(|source| self.not_written(source))?;
        self.outstanding = self.outstanding || !record.is_empty();
        Ok(())
    }

    /// Everything has been undone.
    pub(crate) fn settle(&mut self) -> Result<(), JournalError> {
        self.outstanding = false;
        match self.replace(b"") {
            // Somebody has removed the directory, and the journal with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            settled => settled.map_err(|source| self.not_written(source)),
        }
    }

    fn not_written(&self, source: io::Error) -> JournalError {
        JournalError::Write {
            path: self.path.clone(),
            source,
        }
    }

    /// Gives the name to a file with `text` in it, which is locked by then; the one before stays whole until then.
    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        let next = beside(&self.path, ".next");
        let replaced = write_next(&next, text).and_then(|file| {
            fs::rename(&next, &self.path)?;
            self.file = file;
            sync_directory(&self.path)
        });
        replaced.inspect_err(|_| {
            let _ = fs::remove_file(&next);
        })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.outstanding {
            // While the lock is held; closing the file gives it up.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file for reading and writing that nobody else may open; no symbolic link is followed.
fn open_private(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// A new file at `path` with `text` in it, on disk and locked.
fn write_next(path: &Path, text: &[u8]) -> io::Result<File> {
    if text.len() > MAX_LEN {
        return Err(io::Error::other("too much to be undone to be written down"));
    }
    // Whoever holds the journal's lock writes here: it is what a crash has left.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = open_private(path, OFlags::CREATE | OFlags::EXCL)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    file.write_all(text)?;
    file.sync_all()?;
    Ok(file)
}

/// The name is on disk, too.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// `path` with something behind its last name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Why the file can't be FlexCP's own; `None` when it can. What it says is done by us, so nobody may have written it but
/// root, ourselves, or whoever the directory belongs to: the configuration has named that one.
fn distrusted(file: &Metadata, path: &Path) -> Option<String> {
    if !file.is_file() {
        return Some(NO_FILE.into());
    }
    let owner = file.uid();
    let own = rustix::process::geteuid().as_raw();
    let directory = fs::metadata(directory_of(path)).ok();
    if owner != 0 && owner != own && directory.is_none_or(|directory| directory.uid() != owner) {
        return Some(format!("it belongs to user {owner}"));
    }
    (file.mode() & WRITABLE_BY_OTHERS != 0).then(|| "others may write it".into())
}

/// The record in `file`, or why it is none; nothing at all when a run ended before it changed anything.
fn read(file: &File) -> io::Result<Result<Option<Record>, String>> {
    let mut bytes = Vec::new();
    file.take(BOUND).read_to_end(&mut bytes)?;
    Ok(match bytes.len() {
        0 => Ok(None),
        1..=MAX_LEN => Record::parse(&bytes).map(Some),
        _ => Err(format!("it is longer than {MAX_LEN} bytes")),
    })
}

/// Takes the name from what stands at `path`, for somebody to look at.
fn set_aside(path: &Path, reason: &str, report: &mut dyn FnMut(&str)) -> Result<(), JournalError> {
    let bad = beside(path, ".bad");
    fs::rename(path, &bad).map_err(|source| JournalError::SetAside {
        path: path.to_owned(),
        source,
    })?;
    report(&format!(
        "journal: {} can't be believed ({reason}), so it is {} now and no sysctl or filter in it is taken back: compare \
         each \"before\" there with that sysctl, and look for flexcp_offload (tc filter show dev DEVICE ingress)",
        path.display(),
        bad.display()
    ));
    Ok(())
}

/// Who holds the journal, as far as it tells.
fn owner(file: &File) -> String {
    match read(file) {
        Ok(Ok(Some(record))) => format!(" ({})", record.owner()),
        _ => String::new(),
    }
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A run holds it.
    #[error(
        "another FlexCP is running with the journal {}{owner}: stop it, or give one of the two a \
         network namespace and a journal of its own", path.display()
    )]
    Busy {
        /// Its path.
        path: PathBuf,
        /// Which run, in brackets, or nothing.
        owner: String,
    },
    /// It cannot be opened, locked or read.
    #[error("cannot open the journal {}: {source}", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It cannot be believed, nor be set aside.
    #[error("cannot set the journal {} aside, which is not FlexCP's own: {source}; move it away", path.display())]
    SetAside {
        /// Its path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write the journal {}: {source}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
}

/// Of a journal, in bytes: some 100,000 changes. A host has a few for each interface.
const MAX_LEN: usize = 16 << 20;
/// One more, which tells.
const BOUND: u64 = MAX_LEN as u64 + 1;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const NO_FILE: &str = "it is no regular file";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::Plan;
    use super::super::sysctl::Change;
    use super::*;

    fn claim(path: &Path) -> Result<(Journal, Option<Record>), JournalError> {
        Journal::claim(path, &mut |line| panic!("{line}"))
    }

    fn path(name: &str) -> PathBuf {
        let directory = format!("flexcp-io-journal-{}", std::process::id());
        std::env::temp_dir().join(directory).join(name)
    }

    fn record(changes: &[(&str, &str, &str)]) -> Record {
        let change = |&(key, before, after): &(&str, &str, &str)| Change {
            key: key.into(),
            before: before.into(),
            after: after.into(),
        };
        let plan = Plan {
            device: "flexcp0".into(),
            vrf: None,
            table: 7300,
            diversions: vec![],
            v4: true,
            v6: true,
            mark: 0,
            reserved_ports: None,
            uplinks: vec![],
            journal: PathBuf::new(),
        };
        Record::new(&plan, &changes.iter().map(change).collect::<Vec<_>>())
    }

    #[test]
    fn what_was_written_is_there_after_a_crash() {
        let path = path("crash");
        let written = record(&[
            ("net/ipv4/ip_forward", "0", "1"),
            ("net/ipv4/conf/a.b\"c/forwarding", "0", "1"),
            ("net/ipv4/ip_local_reserved_ports", "", "1-2,3"),
        ]);
        let (mut journal, left) = claim(&path).unwrap();
        assert_eq!(left, None);
        journal.write(&written).unwrap();
        // Closes the file, as the end of the process does; there is something to be undone.
        drop(journal);

        let (mut journal, left) = claim(&path).unwrap();
        assert_eq!(left.as_ref(), Some(&written));
        assert!(written.is_of_this_namespace());
        // A shorter record leaves nothing of the longer one.
        journal
            .write(&record(&[("net/ipv4/ip_forward", "0", "1")]))
            .unwrap();
        drop(journal);
        let (mut journal, left) = claim(&path).unwrap();
        assert_eq!(left, Some(record(&[("net/ipv4/ip_forward", "0", "1")])));
        journal.settle().unwrap();
        drop(journal);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_to_undo_leaves_no_file() {
        let path = path("nothing");
        let (mut journal, _) = claim(&path).unwrap();
        journal.write(&record(&[])).unwrap();
        drop(journal);
        assert!(!path.exists());
    }

    #[test]
    fn held_by_another() {
        let path = path("held");
        let (mut journal, _) = claim(&path).unwrap();
        let error = claim(&path).unwrap_err();
        assert!(matches!(&error, JournalError::Busy { owner, .. } if owner.is_empty()));
        journal
            .write(&record(&[("net/ipv4/ip_forward", "0", "1")]))
            .unwrap();
        let words = claim(&path).unwrap_err().to_string();
        assert!(
            words.contains(&format!("(process {}, device flexcp0)", std::process::id())),
            "{words}"
        );
        journal.settle().unwrap();
    }

    /// What is on disk is one record or the next, whole, whenever the process or the machine stops.
    #[test]
    fn replaced_as_a_whole_and_still_locked() {
        let path = path("whole");
        let (mut journal, _) = claim(&path).unwrap();
        journal.write(&record(&[])).unwrap();
        // Somebody who has opened the record before sees all of it for ever, and no lock is on it.
        let mut before = String::new();
        let mut opened = File::open(&path).unwrap();
        // What a crash in the midst of writing has left is in nobody's way.
        fs::write(beside(&path, ".next"), "half").unwrap();
        journal
            .write(&record(&[("net/ipv4/ip_forward", "0", "1")]))
            .unwrap();
        opened.read_to_string(&mut before).unwrap();
        assert_eq!(Record::parse(before.as_bytes()), Ok(record(&[])));
        assert!(matches!(claim(&path), Err(JournalError::Busy { .. })));
        assert!(!beside(&path, ".next").exists());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        journal.settle().unwrap();
        assert!(matches!(claim(&path), Err(JournalError::Busy { .. })));
    }

    /// The record that was there stays when the next can't be written.
    #[test]
    fn no_room_for_the_next_record() {
        let path = path("room");
        let (mut journal, _) = claim(&path).unwrap();
        let written = record(&[("net/ipv4/ip_forward", "0", "1")]);
        journal.write(&written).unwrap();
        fs::create_dir(beside(&path, ".next")).unwrap();
        let error = journal.write(&record(&[])).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the journal "), "{error}");
        drop(journal);
        fs::remove_dir(beside(&path, ".next")).unwrap();
        let (mut journal, left) = claim(&path).unwrap();
        assert_eq!(left, Some(written));
        journal.settle().unwrap();
    }

    #[test]
    fn directory_that_is_removed_meanwhile() {
        let path = path("removed/j");
        let (mut journal, _) = claim(&path).unwrap();
        let written = record(&[("net/ipv4/ip_forward", "0", "1")]);
        journal.write(&written).unwrap();
        fs::remove_dir_all(directory_of(&path)).unwrap();
        // What is changed from here on is noted again.
        journal.write(&written).unwrap();
        assert!(path.exists());
        fs::remove_dir_all(directory_of(&path)).unwrap();
        journal.settle().unwrap();
    }

    #[test]
    fn longer_than_any_journal() {
        let path = path("long");
        fs::create_dir_all(directory_of(&path)).unwrap();
        File::create(&path).unwrap().set_len(BOUND + 1).unwrap();
        let mut lines = vec![];
        let (_journal, left) =
            Journal::claim(&path, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(left, None);
        assert!(lines[0].contains("it is longer than"), "{lines:?}");
        fs::remove_file(beside(&path, ".bad")).unwrap();
    }
}
