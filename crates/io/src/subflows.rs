//! The subflows of established connections, on disk: what the next run has to know of them if this one is killed.
//!
//! A file for each worker: a header that names the network namespace and the boot, then a slot for each subflow, at
//! whose start a byte says whether it is taken. A slot is written with one call, which a kill does not cut in two.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flexcp_translator::{Registry, SubflowRecord};
use rustix::fs::OFlags;

use crate::kernel::{boot, namespace};

/// Bytes of a slot: state, four ends of 16 + 2 bytes, the key.
const SLOT: usize = 1 + 4 * END + 8;
const END: usize = 18;
/// Bytes before the first slot.
const HEADER: usize = 256;
const MAGIC: &str = "flexcp subflows 1";

/// The state of a slot that is taken, and what more it says.
const TAKEN: u8 = 1;
const WITH_KEY: u8 = 2;
/// The n-th end has an IPv6 address: this bit, shifted by n.
const IS_V6: u8 = 4;

/// Where a worker writes its subflows down. The file goes with [`remove`](Self::remove) only.
#[derive(Debug)]
pub struct SubflowFile {
    file: File,
    /// Slots that were taken once, and are free.
    free: Vec<u32>,
    /// The first slot that was never taken.
    next: u32,
    /// So many slots there may be.
    limit: u32,
}

impl SubflowFile {
    /// Makes the file anew, with room for `limit` subflows.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(path: &Path, limit: u32) -> io::Result<Self> {
        // Whatever stands there is replaced: a link is not followed, and nobody has it open for us.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all_at(&header(), 0)?;
        Ok(Self {
            file,
            free: Vec::new(),
            next: 0,
            limit,
        })
    }

    /// Where the worker with that number has its file.
    #[must_use]
    pub fn path(state_dir: &Path, device: &str, worker: usize) -> PathBuf {
        state_dir.join(format!("{}{worker}", prefix(device)))
    }

    /// All that earlier runs with that device have left in the directory, if it is of this network namespace and boot;
    /// and a line for each file that can't be believed. The files stay.
    #[must_use]
    pub fn left(state_dir: &Path, device: &str) -> (Vec<SubflowRecord>, Vec<String>) {
        let (mut records, mut complaints) = (Vec::new(), Vec::new());
        for path in files(state_dir, device) {
            match read(&path) {
                Ok(more) => records.extend(more),
                Err(error) => complaints.push(format!("{}: {error}", path.display())),
            }
        }
        (records, complaints)
    }

    /// Removes the files of earlier runs, and of this one.
    pub fn remove(state_dir: &Path, device: &str) {
        for path in files(state_dir, device) {
            // Another start reads it, and tells the ends of what is over already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Registry for SubflowFile {
    fn enter(&mut self, record: &SubflowRecord) -> Option<u32> {
        let fresh = self.free.is_empty();
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.next < self.limit => self.next,
            None => return None,
        };
        if self
            .file
            .write_all_at(&encode(record), offset(place))
            .is_err()
        {
            // As when the disk is full: the place is as it was.
            if !fresh {
                self.free.push(place);
            }
            return None;
        }
        self.next += u32::from(fresh);
        Some(place)
    }

    fn leave(&mut self, place: u32) {
        // A slot that can't be cleared costs the ends a few packets after a crash.
        let _ = self.file.write_all_at(&[0], offset(place));
        self.free.push(place);
    }
}

fn prefix(device: &str) -> String {
    format!("{device}.subflows.")
}

fn files(state_dir: &Path, device: &str) -> Vec<PathBuf> {
    let prefix = prefix(device);
    let entries = std::fs::read_dir(state_dir).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        number.is_some_and(|number| number.parse::<u16>().is_ok())
    });
    let mut paths: Vec<_> = ours.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> io::Result<Vec<SubflowRecord>> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(no_follow)
        .open(path)?;
    let metadata = file.metadata()?;
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    if !metadata.is_file() || !ours || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "not a file of FlexCP's own: others may have written it",
        ));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let Some((head, slots)) = bytes.split_at_checked(HEADER) else {
        // The run ended before it had written anything.
        return Ok(Vec::new());
    };
    if !head.starts_with(MAGIC.as_bytes()) {
        return Err(io::Error::other("not understood"));
    }
    if head != header() {
        // Connections of another namespace are none of ours, and none has outlived a boot.
        return Ok(Vec::new());
    }
    Ok(slots.chunks_exact(SLOT).filter_map(decode).collect())
}

fn header() -> [u8; HEADER] {
    let text = format!("{MAGIC} {} {}\n", namespace(), boot());
    let mut header = [0; HEADER];
    let len = text.len().min(HEADER);
    header[..len].copy_from_slice(&text.as_bytes()[..len]);
    header
}

fn offset(place: u32) -> u64 {
    HEADER as u64 + u64::from(place) * SLOT as u64
}

fn encode(record: &SubflowRecord) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[0] = TAKEN;
    let ends = [record.source, record.backend, record.client, record.local];
    for (n, end) in ends.iter().enumerate() {
        let bytes = &mut slot[1 + n * END..1 + (n + 1) * END];
        match end.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[..16].copy_from_slice(&ip.octets()),
        }
        bytes[16..].copy_from_slice(&end.port().to_be_bytes());
        slot[0] |= u8::from(end.is_ipv6()) * (IS_V6 << n);
    }
    if let Some(key) = record.key {
        slot[0] |= WITH_KEY;
        slot[SLOT - 8..].copy_from_slice(&key.to_be_bytes());
    }
    slot
}

/// `None`: the slot is free, or nothing that FlexCP writes.
fn decode(slot: &[u8]) -> Option<SubflowRecord> {
    let state = *slot.first()?;
    if state & TAKEN == 0 {
        return None;
    }
    let end = |n: usize| {
        let bytes = slot.get(1 + n * END..1 + (n + 1) * END)?;
        let (ip, port) = bytes.split_at(16);
        let v6: [u8; 16] = ip.try_into().ok()?;
        let ip = if state & (IS_V6 << n) == 0 {
            IpAddr::from([v6[0], v6[1], v6[2], v6[3]])
        } else {
            IpAddr::from(v6)
        };
        let port = u16::from_be_bytes(port.try_into().ok()?);
        (port != 0 && !ip.is_unspecified() && !ip.is_multicast()).then(|| SocketAddr::new(ip, port))
    };
    let key = slot.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    Some(SubflowRecord {
        source: end(0)?,
        backend: end(1)?,
        client: end(2)?,
        local: end(3)?,
        key: key.filter(|_| state & WITH_KEY != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("flexcp-io-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn record(port: u16, key: Option<u64>) -> SubflowRecord {
        SubflowRecord {
            source: format!("10.1.0.2:{port}").parse().unwrap(),
            backend: "10.9.0.2:80".parse().unwrap(),
            client: format!("[2001:db8::7]:{port}").parse().unwrap(),
            local: "[2001:db8::1]:443".parse().unwrap(),
            key,
        }
    }

    #[test]
    fn what_was_entered_and_not_left_is_there_after_a_crash() {
        let directory = directory("entered");
        let mut all = Vec::new();
        for worker in 0..2 {
            let path = SubflowFile::path(&directory, "fx0", worker);
            let mut file = SubflowFile::create(&path, 10).unwrap();
            let base = 1000 * u16::try_from(worker + 1).unwrap();
            let records = [base, base + 1, base + 2]
                .map(|port| record(port, (port % 2 == 0).then_some(u64::from(port) << 40)));
            let places = records.map(|record| file.enter(&record).unwrap());
            file.leave(places[1]);
            all.extend([records[0], records[2]]);
            // The place is taken again.
            let again = record(base + 9, None);
            assert_eq!(file.enter(&again), Some(places[1]));
            all.push(again);
        }
        std::fs::write(directory.join("fx0.json"), "{}").unwrap();
        let (mut left, complaints) = SubflowFile::left(&directory, "fx0");
        assert_eq!(complaints, Vec::<String>::new());
        left.sort_unstable();
        all.sort_unstable();
        assert_eq!(left, all);
        assert_eq!(SubflowFile::left(&directory, "fx").0, []);
        SubflowFile::remove(&directory, "fx0");
        assert_eq!(SubflowFile::left(&directory, "fx0").0, []);
        assert!(directory.join("fx0.json").exists());
    }

    #[test]
    fn room_is_bounded() {
        let directory = directory("bounded");
        let path = SubflowFile::path(&directory, "fx0", 0);
        let mut file = SubflowFile::create(&path, 2).unwrap();
        let places = [1, 2, 3].map(|port| file.enter(&record(port, None)));
        assert_eq!(places, [Some(0), Some(1), None]);
        file.leave(0);
        assert_eq!(file.enter(&record(4, None)), Some(0));
    }

    #[test]
    fn file_of_another_namespace_or_boot_says_nothing() {
        let directory = directory("another");
        let path = SubflowFile::path(&directory, "fx0", 0);
        let mut file = SubflowFile::create(&path, 2).unwrap();
        file.enter(&record(1, Some(7))).unwrap();
        file.file
            .write_all_at(b"x", MAGIC.len() as u64 + 3)
            .unwrap();
        assert_eq!(SubflowFile::left(&directory, "fx0"), (vec![], vec![]));
    }

    #[test]
    fn file_that_others_may_have_written_is_not_believed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let directory = directory("others");
        let path = SubflowFile::path(&directory, "fx0", 0);
        let mut file = SubflowFile::create(&path, 2).unwrap();
        file.enter(&record(1, Some(7))).unwrap();
        symlink(&path, SubflowFile::path(&directory, "fx0", 1)).unwrap();
        let (left, complaints) = SubflowFile::left(&directory, "fx0");
        assert_eq!((left.len(), complaints.len()), (1, 1), "{complaints:?}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let (left, complaints) = SubflowFile::left(&directory, "fx0");
        assert_eq!((left.len(), complaints.len()), (0, 2), "{complaints:?}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, [b'z'; 1000]).unwrap();
        assert_eq!(SubflowFile::left(&directory, "fx0").1.len(), 2);
    }

    #[test]
    fn garbage_in_a_slot_is_no_record() {
        let good = encode(&record(5, Some(9)));
        assert_eq!(decode(&good), Some(record(5, Some(9))));
        for (at, byte) in [(0, 0), (0, WITH_KEY)] {
            let mut slot = good;
            slot[at] = byte;
            assert_eq!(decode(&slot), None);
        }
        let mut no_port = good;
        no_port[17..19].fill(0);
        assert_eq!(decode(&no_port), None);
        assert_eq!(decode(&good[..40]), None);
    }
}
