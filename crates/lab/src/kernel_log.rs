//! The kernel's log as a judge: every record from a moment on, none lost unnoticed.
//!
//! Records come from /dev/kmsg, which numbers them. A record that was overwritten before it was read leaves a gap in
//! the numbers, and a gap is a failure of the watch: an alarm may have been in it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;

/// A watch of the kernel's log; trouble reported after its beginning is a failure.
///
/// A thread reads along, so that a flood of records does not overwrite what has not been read.
#[derive(Debug)]
pub struct KernelLog {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Log {
    file: File,
    judge: Records,
}

/// What records say, judged one after the other.
#[derive(Debug, Default)]
struct Records {
    /// Number that the next record has to have; `None` before the first.
    next: Option<u64>,
    /// An alarm besides [`ALARMS`].
    own: Option<String>,
    complaints: Vec<String>,
}

impl KernelLog {
    /// Begins to watch.
    pub fn mark() -> Result<Self> {
        Self::watching_for(None)
    }

    /// The same; a record with this text is an alarm as well.
    pub fn watching_for(text: Option<&str>) -> Result<Self> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(KMSG);
        let mut file = opened.with_context(|| format!("opening {KMSG}"))?;
        file.seek(SeekFrom::End(0))
            .with_context(|| format!("the end of {KMSG}"))?;
        let shared = Arc::new(Shared {
            log: Mutex::new(Log {
                file,
                judge: Records {
                    own: text.map(str::to_owned),
                    ..Records::default()
                },
            }),
            stop: AtomicBool::new(false),
        });
        let reader = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("kernel-log".to_owned())
                .spawn(move || shared.read_along())?
        };
        Ok(Self {
            shared,
            reader: Some(reader),
        })
    }

    /// What has been alarming so far, a line each; gaps of the watch are among them.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let mut log = self.shared.log();
        log.drain()?;
        Ok(log.judge.complaints.clone())
    }

    /// An error if there is anything alarming.
    pub fn silent(&self) -> Result<()> {
        let alarms = self.complaints()?;
        ensure!(alarms.is_empty(), "{}", alarms.join("\n"));
        Ok(())
    }
}

impl Drop for KernelLog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.thread().unpark();
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_along(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            // An error comes again when somebody asks for complaints.
            let _ = self.log().drain();
            thread::park_timeout(EVERY);
        }
    }
}

impl Log {
    /// Reads all that there is. Each read gives one record.
    fn drain(&mut self) -> Result<()> {
        let mut record = vec![0; RECORD];
        loop {
            match self.file.read(&mut record) {
                Ok(0) => return Ok(()),
                Ok(len) => self.judge.take(&String::from_utf8_lossy(&record[..len])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The record that was next has been overwritten; the one after it has a number too large.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.judge.overwritten(),
                Err(error) => return Err(error).with_context(|| format!("reading {KMSG}")),
            }
        }
    }
}

impl Records {
    /// A record: `priority,number,microseconds,flags;text`, then lines that begin with a space.
    fn take(&mut self, record: &str) {
        let Some((head, rest)) = record.split_once(';') else {
            let lost = format!("the kernel's log has a record without a head: {record:?}");
            return self.complaints.push(lost);
        };
        let number = head
            .split(',')
            .nth(1)
            .and_then(|number| number.parse().ok());
        match (self.next, number) {
            (Some(next), Some(number)) if number > next => {
                let lost = number - next;
                self.complaints
                    .push(format!("the watch of the kernel's log lost {lost} records"));
            }
            (_, None) => self.complaints.push(format!(
                "the kernel's log has a record without a number: {record:?}"
            )),
            _ => {}
        }
        self.next = number.map(|number: u64| number + 1).or(self.next);
        let text = rest.lines().next().unwrap_or_default();
        let own = self.own.as_ref().is_some_and(|own| text.contains(own));
        if own || is_alarm(text) {
            self.complaints.push(format!("kernel log: {text}"));
        }
    }

    /// Where no number says how many were lost: the first record was overwritten before it was read.
    fn overwritten(&mut self) {
        if self.next.is_none() {
            let lost = "the watch of the kernel's log lost its first records";
            self.complaints.push(lost.to_owned());
        }
    }
}

fn is_alarm(text: &str) -> bool {
    ALARMS.iter().any(|alarm| text.contains(alarm))
}

/// What none of FlexCP's tests may bring about.
const ALARMS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "general protection fault",
    "Kernel panic",
    "Call Trace:",
    // Hung tasks, and processors that do not come round.
    "blocked for more than",
    "detected stalls",
    "detected stall on",
    "LOCKUP",
    "lockup",
    // Lockdep and its relatives.
    "possible circular locking dependency",
    "possible recursive locking",
    "possible irq lock inversion",
    "inconsistent lock state",
    "suspicious RCU usage",
    "sleeping function called from invalid context",
    "scheduling while atomic",
    "refcount_t:",
    "UBSAN:",
    // The network: packets or devices that are not what they have to be, and devices that nobody lets go.
    "hw csum failure",
    "NETDEV WATCHDOG",
    "unregister_netdevice: waiting for",
    "skb_over_panic",
    "skb_under_panic",
    "bad gso",
    "TCP: recvmsg bug",
    "TCP: cleanup rbuf bug",
    "unexpectedly shrunk window",
    "TCP: out of memory",
    "too many orphaned sockets",
    "neighbour: arp_cache: neighbor table overflow",
    // The program under test, and what the machine had no room for.
    "flexcp[",
    "Out of memory: Killed process",
];

/// The kernel's log, a record for each read.
const KMSG: &str = "/dev/kmsg";

/// No record is longer (`CONSOLE_EXT_LOG_MAX` in Linux).
const RECORD: usize = 8192;

/// Between two looks; the smallest log of a kernel holds far more than what comes meanwhile.
const EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(records: &[&str]) -> Vec<String> {
        let mut judge = Records::default();
        records.iter().for_each(|record| judge.take(record));
        judge.complaints
    }

    #[test]
    fn record_of_everyday_life_is_no_alarm() {
        let records = [
            "6,10,1000,-;eth0: renamed from veth1\n",
            "6,11,1001,-;IPv6: ADDRCONF(NETDEV_CHANGE): a1: link becomes ready\n SUBSYSTEM=net\n",
        ];
        assert_eq!(complaints(&records), <[String; 0]>::default());
    }

    #[test]
    fn alarms_of_each_kind_are_told() {
        for text in [
            "WARNING: CPU: 1 PID: 7 at net/core/skbuff.c:4912",
            "BUG: kernel NULL pointer dereference",
            "INFO: task flexcp:123 blocked for more than 120 seconds.",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "WARNING: possible circular locking dependency detected",
            "flexcp0: hw csum failure",
            "unregister_netdevice: waiting for a1 to become free. Usage count = 2",
        ] {
            let record = format!("4,10,1000,-;{text}\n");
            assert_eq!(complaints(&[&record]), [format!("kernel log: {text}")]);
        }
    }

    #[test]
    fn gap_in_the_numbers_is_a_failure_of_the_watch() {
        let records = ["6,10,1000,-;a\n", "6,11,1000,-;b\n", "6,14,1000,-;c\n"];
        let lost = "the watch of the kernel's log lost 2 records";
        assert_eq!(complaints(&records), [lost]);
    }

    #[test]
    fn overwritten_first_record_is_a_failure_of_the_watch() {
        let mut judge = Records::default();
        judge.overwritten();
        assert_eq!(judge.complaints.len(), 1);
    }

    #[test]
    fn record_without_a_number_is_not_passed_over() {
        assert_eq!(complaints(&["nonsense"]).len(), 1);
        assert_eq!(complaints(&["6;text\n"]).len(), 1);
    }
}
