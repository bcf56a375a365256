//! One network namespace: creation, removal, and ways to act inside it.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::{feed, output, text};

/// A named network namespace under `/run/netns`.
///
/// A handle only: dropping it does not remove the namespace, the lab does.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
    /// Programs outlive the lab process.
    keep: bool,
}

impl Namespace {
    /// Creates the namespace and brings its loopback up.
    pub(crate) fn create(name: &str, keep: bool) -> Result<Self> {
        output(Command::new("ip").args(["netns", "add", name]))?;
        let namespace = Self {
            name: name.to_owned(),
            keep,
        };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Gives a name to the namespace that this process is in.
    pub(crate) fn here(name: &str, keep: bool) -> Result<Self> {
        let pid = std::process::id().to_string();
        output(Command::new("ip").args(["netns", "attach", name, &pid]))?;
        Ok(Self {
            name: name.to_owned(),
            keep,
        })
    }

    /// The name, as in `ip netns exec NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file to enter it by.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that runs `program` in this namespace.
    ///
    /// It keeps the mounts of the host (unlike `ip netns exec`, which mounts
    /// another /sys) and is killed when the thread that started it ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg("--");
        if self.keep {
            command.process_group(0);
        } else {
            command.args(["setpriv", "--pdeathsig", "KILL", "--"]);
        }
        command.arg(program);
        command
    }

    /// Runs a closure on a thread that lives in this namespace.
    ///
    /// Sockets opened there belong to it for good, wherever they are used.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let file = File::open(self.path())
                    .with_context(|| format!("opening namespace {}", self.name))?;
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .with_context(|| format!("entering namespace {}", self.name))?;
                work()
            });
            worker
                .join()
                .map_err(|_| anyhow!("a thread in {} panicked", self.name))?
        })
    }

    /// Runs `ip -n NAME ARGS`; the arguments are split at blanks.
    pub fn ip(&self, args: &str) -> Result<String> {
        text(
            Command::new("ip")
                .args(["-n", &self.name])
                .args(args.split_whitespace()),
        )
    }

    /// Runs many `ip` commands, one a line.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        feed(
            Command::new("ip").args(["-n", &self.name, "-batch", "-"]),
            lines,
        )
    }

    /// Runs `tc -n NAME ARGS`; the arguments are split at blanks.
    pub fn tc(&self, args: &str) -> Result<String> {
        text(
            Command::new("tc")
                .args(["-n", &self.name])
                .args(args.split_whitespace()),
        )
    }

    /// Loads nftables rules.
    pub fn nft(&self, rules: &str) -> Result<()> {
        feed(self.command("nft").args(["-f", "-"]), rules)
    }

    /// Sets `net.*` sysctls, e.g. `("net.ipv4.tcp_sack", "0")`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (name, value) in settings {
                let path = format!("/proc/sys/{}", name.replace('.', "/"));
                fs::write(&path, value).with_context(|| format!("sysctl {name}={value}"))?;
            }
            Ok(())
        })
    }

    /// Reads a file of `/proc/net` as this namespace sees it.
    pub fn proc_net(&self, file: &str) -> Result<String> {
        self.run(|| {
            let path = format!("/proc/thread-self/net/{file}");
            fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        })
    }

    /// Kills every process in it, then removes it. Of the namespace that this process is in, only the name goes.
    pub(crate) fn remove(&self) -> Result<()> {
        if !self.is_here() {
            kill_all(&self.name);
        }
        output(Command::new("ip").args(["netns", "del", &self.name]))?;
        Ok(())
    }
}

impl Namespace {
    fn is_here(&self) -> bool {
        let file = |path: PathBuf| {
            let file = fs::metadata(path).ok()?;
            Some((file.dev(), file.ino()))
        };
        file(self.path()).is_some_and(|there| file("/proc/self/ns/net".into()) == Some(there))
    }
}

/// Names of all namespaces on this machine.
pub(crate) fn list() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Kills the processes that `ip netns pids` names.
fn kill_all(name: &str) {
    let pids = text(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    let pids: Vec<_> = pids.split_whitespace().collect();
    if !pids.is_empty() {
        let _ = Command::new("kill").arg("-9").args(pids).output();
    }
}

/// Removes a namespace by name, with its processes.
pub(crate) fn remove_by_name(name: &str) -> Result<()> {
    Namespace {
        name: name.to_owned(),
        keep: false,
    }
    .remove()
}
