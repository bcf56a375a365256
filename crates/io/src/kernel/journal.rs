//! What has to be undone, on disk before it is done, so that a crash does not lose it. Holding the
//! file's lock is what "running" means.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Plan;
use super::filter::Filter;
use super::sysctl::Change;

/// The journal's file, locked by us until dropped.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    /// Whether something is still to be undone: then the file outlives us.
    outstanding: bool,
}

/// What the journal says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    device: String,
    process: u32,
    /// The kernel's name for the network namespace: the switches of another are none of ours.
    pub(crate) namespace: String,
    /// The kernel's name for the time since boot: a reboot has undone everything.
    boot: String,
    pub(crate) changes: Vec<Change>,
    /// Filters at devices, which outlive the process.
    #[serde(default)]
    pub(crate) filters: Vec<Filter>,
}

impl Record {
    pub(crate) fn new(plan: &Plan, changes: &[Change]) -> Self {
        Self {
            version: VERSION,
            device: plan.device.clone(),
            process: std::process::id(),
            namespace: namespace(),
            boot: boot(),
            changes: changes.to_vec(),
            filters: Vec::new(),
        }
    }

    /// Whether there is nothing to undo.
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.filters.is_empty()
    }

    pub(crate) fn is_of_this_namespace(&self) -> bool {
        self.namespace == namespace() && self.boot == boot()
    }
}

impl Journal {
    /// Locks the file, made if it is missing, and reads what an earlier run left in it.
    pub(crate) fn claim(path: &Path) -> Result<(Self, Option<Record>), JournalError> {
        let open = |source| JournalError::Open {
            path: path.to_owned(),
            source,
        };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(open)?;
        }
        let mut file = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(open)?;
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
            // The last owner may have deleted the file between our opening and locking it.
            let inode = file.metadata().map_err(open)?.ino();
            if fs::metadata(path).is_ok_and(|metadata| metadata.ino() == inode) {
                break file;
            }
        };
        let mut text = String::new();
        let read = file.read_to_string(&mut text);
        let mut journal = Self {
            file,
            path: path.to_owned(),
            outstanding: true,
        };
        read.map_err(open)?;
        // An empty file: the run ended before it changed anything.
        if text.is_empty() {
            journal.outstanding = false;
            return Ok((journal, None));
        }
        let record = parse(&text).map_err(|source| JournalError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Ok((journal, Some(record)))
    }

    /// Writes down what is going to be changed.
    pub(crate) fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        let text = serde_json::to_string_pretty(record).expect("a record is plain data");
        let written = self.replace(text.as_bytes());
        // What was written in part is no record; nothing has been changed yet, unless there was a record before.
        self.outstanding = self.outstanding || (written.is_ok() && !record.is_empty());
        written.map_err(|source| JournalError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// Everything has been undone.
    pub(crate) fn settle(&mut self) -> Result<(), JournalError> {
        self.outstanding = false;
        self.replace(b"").map_err(|source| JournalError::Write {
            path: self.path.clone(),
            source,
        })
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text)?;
        self.file.sync_all()
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

fn parse(text: &str) -> Result<Record, serde_json::Error> {
    let record: Record = serde_json::from_str(text)?;
    if record.version == VERSION {
        Ok(record)
    } else {
        Err(serde::de::Error::custom(format_args!(
            "version {}",
            record.version
        )))
    }
}

/// Who holds the journal, as far as it tells.
fn owner(mut file: &File) -> String {
    let mut text = String::new();
    let record = file
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| parse(&text).ok());
    record
        .map(|record| format!(" (process {}, device {})", record.process, record.device))
        .unwrap_or_default()
}

/// The kernel's name for the network namespace.
pub(crate) fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net")
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The kernel's name for the time since boot.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
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
    /// It is not in our words: a file of something else, or of another version.
    #[error(
        "the journal {} is not understood ({source}): restore the sysctls it lists by hand, then \
         delete it", path.display()
    )]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
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

const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

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
        Record {
            version: VERSION,
            device: "flexcp0".into(),
            process: 77,
            namespace: namespace(),
            boot: boot(),
            changes: changes.iter().map(change).collect(),
            filters: vec![],
        }
    }

    #[test]
    fn what_was_written_is_there_after_a_crash() {
        let path = path("crash");
        let written = record(&[
            ("net/ipv4/ip_forward", "0", "1"),
            ("net/a.b/\"c", "", "1-2,3"),
        ]);
        let (mut journal, left) = Journal::claim(&path).unwrap();
        assert_eq!(left, None);
        journal.write(&written).unwrap();
        // Closes the file, as the end of the process does; there is something to be undone.
        drop(journal);

        let (mut journal, left) = Journal::claim(&path).unwrap();
        assert_eq!(left.as_ref(), Some(&written));
        assert!(written.is_of_this_namespace());
        // A shorter record leaves nothing of the longer one.
        journal.write(&record(&[("a", "b", "c")])).unwrap();
        drop(journal);
        let (mut journal, left) = Journal::claim(&path).unwrap();
        assert_eq!(left, Some(record(&[("a", "b", "c")])));
        journal.settle().unwrap();
        drop(journal);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_to_undo_leaves_no_file() {
        let path = path("nothing");
        let (mut journal, _) = Journal::claim(&path).unwrap();
        journal.write(&record(&[])).unwrap();
        drop(journal);
        assert!(!path.exists());
    }

    #[test]
    fn held_by_another() {
        let path = path("held");
        let (mut journal, _) = Journal::claim(&path).unwrap();
        let error = Journal::claim(&path).unwrap_err();
        assert!(matches!(&error, JournalError::Busy { owner, .. } if owner.is_empty()));
        journal.write(&record(&[("a", "b", "c")])).unwrap();
        let words = Journal::claim(&path).unwrap_err().to_string();
        assert!(words.contains("(process 77, device flexcp0)"), "{words}");
        journal.settle().unwrap();
    }

    #[test]
    fn of_another_namespace_or_boot() {
        let (mut namespace, mut boot) = (record(&[]), record(&[]));
        namespace.namespace = "net:[1]".into();
        boot.boot = "0000".into();
        assert!(record(&[]).is_of_this_namespace());
        assert!(!namespace.is_of_this_namespace() && !boot.is_of_this_namespace());
    }
}
