//! A machine that QEMU makes: boots a kernel, hears what its items say, and is gone at the end.
//!
//! Its first serial port is the kernel's console, which goes to a file; the second carries the items' words, a line each.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::package::Kernel;
use super::word::Word;

/// How a guest is made.
#[derive(Clone, Debug)]
pub(super) struct Guest<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) root: Root,
    /// The file that its console goes to.
    pub(super) console: PathBuf,
    /// Processors.
    pub(super) processors: u8,
    /// From power on to power off.
    pub(super) limit: Duration,
}

/// Where a guest's root is.
#[derive(Clone, Debug)]
pub(super) enum Root {
    /// In memory, unpacked from this file; `/init` is the first process.
    Initramfs(PathBuf),
    /// On a disk with this content, which the guest may change; `/sbin/init` is the first process.
    Disk(PathBuf),
}

impl Guest<'_> {
    /// Boots it and waits until it is off; `hear` has each word as it comes.
    ///
    /// # Errors
    ///
    /// It did not come to its end in time, or ended without having said that all was run; the console's last lines
    /// are part of the error.
    pub(super) fn run(&self, mut hear: impl FnMut(Word)) -> Result<()> {
        let machine = Machine::start(self)?;
        let deadline = Instant::now() + self.limit;
        let mut ended = false;
        let failed = loop {
            match machine
                .lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) => match Word::parse(&line) {
                    Ok(Some(word)) => {
                        ended |= matches!(word, Word::End);
                        hear(word);
                    }
                    Ok(None) => {}
                    Err(error) => break Some(format!("{error:#}")),
                },
                Err(RecvTimeoutError::Timeout) => {
                    break Some(format!("not off after {:?}", self.limit));
                }
                Err(RecvTimeoutError::Disconnected) if ended => break None,
                Err(RecvTimeoutError::Disconnected) => {
                    break Some("off before all was run".to_owned());
                }
            }
        };
        drop(machine);
        let Some(failed) = failed else {
            return Ok(());
        };
        bail!("{failed}; the console's end:\n{}", tail(&self.console, 25))
    }

    /// What its kernel complained of, as far as its console has it.
    pub(super) fn alarms(&self) -> Result<Vec<String>> {
        let console = fs::read(&self.console).context("reading the guest's console")?;
        Ok(alarms(&String::from_utf8_lossy(&console)))
    }

    fn command(&self) -> Command {
        // The machine ends with this process, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
        let (accelerator, processor) = if has_kvm() {
            ("kvm", "host")
        } else {
            ("tcg,thread=multi", "max")
        };
        command.args(["-accel", accelerator, "-cpu", processor, "-m", MEMORY_MB]);
        command.args(["-smp", &self.processors.to_string()]);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        command.arg("-kernel").arg(self.kernel.image());
        let root = match &self.root {
            Root::Initramfs(file) => {
                command.arg("-initrd").arg(file);
                "rdinit=/init"
            }
            Root::Disk(file) => {
                let drive = "if=none,id=root,format=raw,cache=unsafe";
                let file = file.display();
                command.args(["-drive", &format!("{drive},file={file}")]);
                // Debian's kernels have the driver of no other disk built in.
                command.args(["-device", "nvme,drive=root,serial=root"]);
                "root=/dev/nvme0n1 rw"
            }
        };
        command.args(["-append", &format!("{root} {COMMAND_LINE}")]);
        command
            .arg("-serial")
            .arg(format!("file:{}", self.console.display()));
        command.args(["-serial", "stdio"]);
        command
    }
}

/// The running QEMU; killed when dropped.
struct Machine {
    child: Child,
    lines: Receiver<String>,
}

impl Machine {
    fn start(guest: &Guest<'_>) -> Result<Self> {
        let mut child = guest
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting qemu-system-x86_64 (scripts/setup installs it)")?;
        let port = child.stdout.take().context("QEMU's output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(port).split(b'\n').map_while(Result::ok) {
                if sender
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this processor can run guests by itself. A /dev/kvm without that is one of a nested, paravirtual kind, which
/// Debian's kernels do not run on.
fn has_kvm() -> bool {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = processor
        .split_whitespace()
        .any(|flag| flag == "vmx" || flag == "svm");
    able && fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

/// Lines of a console that a guest in good health does not write.
fn alarms(console: &str) -> Vec<String> {
    let alarming = |line: &&str| ALARMS.iter().any(|alarm| line.contains(alarm));
    console
        .lines()
        .filter(alarming)
        .map(|line| line.trim().to_owned())
        .collect()
}

fn tail(file: &Path, lines: usize) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The demo's file twice, and the initramfs while it is unpacked.
const MEMORY_MB: &str = "2048";

/// A panic ends the machine, and an oops is one.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=-1 oops=panic quiet loglevel=5 nokaslr mitigations=off net.ifnames=0";

const ALARMS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "general protection fault",
    "Kernel panic",
    "blocked for more than",
    "rcu: INFO:",
    "detected stall",
    "soft lockup",
    "Out of memory",
    "modprobe: ",
    // Of the script that is init.
    "/init: ",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_told_from_what_a_kernel_says_anyway() {
        let console = "[ 1.0] Key type encrypted registered\n\
                       [ 2.0] WARNING: CPU: 0 PID: 7 at net/core/skbuff.c:1 skb_x+0x1\n\
                       [ 3.0] rcu: INFO: rcu_sched self-detected stall on CPU\n\
                       [ 4.0] INFO: task lab:7 blocked for more than 120 seconds.\n\
                       [ 5.0] Kernel panic - not syncing: x\n\
                       [ 6.0] sysrq: Power Off\n";
        let found = alarms(console);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("skb_x"));
        assert!(alarms("[ 1.0] sysrq: Power Off\n").is_empty());
    }
}
