//! A thread in a network namespace of its own, and what tests do there.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{fs, io, thread};

use flexcp_io::{Diversion, Family, Plan, Protocol};
use flexcp_translator::Prefix;
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

/// Set for the child process that installs the tables and is killed.
pub(crate) const CRASH: &str = "FLEXCP_IO_TEST_CRASH_JOURNAL";
/// The same for one that attaches the offload's programs, too.
pub(crate) const CRASH_OFFLOAD: &str = "FLEXCP_IO_TEST_CRASH_OFFLOAD_JOURNAL";
pub(crate) const DEVICE: &str = "flexcp0";
pub(crate) const TABLE: u32 = 7300;

type Task = Box<dyn FnOnce() + Send>;

/// A machine: a network namespace with one thread, which runs what it is given.
pub(crate) struct Host {
    tasks: Sender<Task>,
    thread: u32,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::try_new().unwrap()
    }

    pub(crate) fn try_new() -> io::Result<Self> {
        let (tasks, todo) = channel::<Task>();
        let (started, result) = channel();
        thread::spawn(move || {
            // SAFETY: a new network namespace takes nothing from this thread that other code
            // relies on; in particular not its file descriptors.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            started
                .send(made.map(|()| gettid().as_raw_nonzero().get()))
                .unwrap();
            if made.is_ok() {
                ip("link set lo up");
                todo.into_iter().for_each(|task| task());
            }
        });
        let thread = result.recv().unwrap()?;
        Ok(Self {
            tasks,
            thread: thread.try_into().unwrap(),
        })
    }

    /// Runs `task` there and waits for it; a panic there is an error.
    pub(crate) fn try_run<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let (done, result) = channel();
        let task = move || {
            let _ = done.send(catch_unwind(AssertUnwindSafe(task)).map_err(words));
        };
        self.tasks.send(Box::new(task)).unwrap();
        result.recv().unwrap()
    }

    pub(crate) fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        self.try_run(task).unwrap()
    }
}

fn words(panic: Box<dyn Any + Send>) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned()))
        .unwrap_or_else(|| "panic".to_owned())
}

/// The client and the server of a proxy that runs on the calling thread. Neither has an address
/// in the other's network, and each has its default route to the proxy.
///
/// ```text
/// client 10.1.0.2, fd01::2 --- cli (10.1.0.1, fd01::1) proxy srv (10.9.0.1, fd09::1) --- server 10.9.0.2, fd09::2
/// ```
pub(crate) struct Neighbours {
    pub(crate) client: Host,
    pub(crate) server: Host,
}

impl Neighbours {
    pub(crate) fn new() -> Self {
        Self {
            client: neighbour("cli", 1),
            server: neighbour("srv", 9),
        }
    }
}

fn neighbour(interface: &str, net: u8) -> Host {
    let host = Host::new();
    ip(&format!(
        "link add {interface} type veth peer name eth0 netns {}",
        host.thread
    ));
    // The detection of duplicate link-local addresses would end, and change the tables, in the
    // midst of a test.
    set_sysctl(&format!("ipv6/conf/{interface}/accept_dad"), "0");
    ip(&format!("address add 10.{net}.0.1/24 dev {interface}"));
    ip(&format!("address add fd0{net}::1/64 dev {interface} nodad"));
    ip(&format!("link set {interface} up"));
    host.run(move || {
        ip(&format!("address add 10.{net}.0.2/24 dev eth0"));
        ip(&format!("address add fd0{net}::2/64 dev eth0 nodad"));
        ip("link set eth0 up");
        ip(&format!("route add default via 10.{net}.0.1"));
        ip(&format!("-6 route add default via fd0{net}::1"));
    });
    wait_for_carrier(interface);
    host.run(|| wait_for_carrier("eth0"));
    // The kernel adds the route to an IPv6 address of its own on a worker of its.
    while !ip("-6 route show table local").contains(&format!("local fd0{net}::1 dev {interface}")) {
        thread::sleep(Duration::from_millis(1));
    }
    host
}

/// The kernel says that a link has its carrier, and adds its multicast routes, a moment after the
/// other end is up; each end on its own.
fn wait_for_carrier(interface: &str) {
    while ip(&format!("-brief link show {interface}")).contains("NO-CARRIER") {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn sysctl(key: &str) -> String {
    fs::read_to_string(format!("/proc/sys/net/{key}"))
        .unwrap()
        .trim()
        .to_owned()
}

pub(crate) fn set_sysctl(key: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
}

/// Everything in the namespace that FlexCP may have changed.
pub(crate) fn snapshot() -> Vec<String> {
    let mut lines: Vec<String> = [
        "-4 -details rule",
        "-6 -details rule",
        "-4 -details route show table all",
        "-6 -details route show table all",
        "-brief link",
    ]
    .into_iter()
    .flat_map(|arguments| {
        let title = arguments.to_owned();
        ip(arguments)
            .lines()
            // The kernel gives links their local addresses when it is ready to.
            .filter(|line| !line.contains("fe80::"))
            .map(|line| format!("{title}: {line}"))
            .collect::<Vec<_>>()
    })
    .collect();
    sysctls("/proc/sys/net".into(), &mut lines);
    lines
}

fn sysctls(directory: PathBuf, lines: &mut Vec<String>) {
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort_unstable();
    for path in paths {
        if path.is_dir() {
            sysctls(path, lines);
        } else if let Ok(value) = fs::read_to_string(&path) {
            lines.push(format!("{} = {}", path.display(), value.trim()));
        }
    }
}

/// Fails with the lines that differ.
pub(crate) fn assert_unchanged(before: &[String]) {
    assert_same(before, &snapshot());
}

/// The same but for the TUN device's own settings.
pub(crate) fn assert_unchanged_but_device(before: &[String]) {
    let of_device = |line: &&String| line.contains("flexcp0");
    let rest = |lines: &[String]| -> Vec<String> {
        lines
            .iter()
            .filter(|line| !of_device(line))
            .cloned()
            .collect()
    };
    assert_same(&rest(before), &rest(&snapshot()));
}

fn assert_same(before: &[String], after: &[String]) {
    let only = |these: &[String], those: &[String]| {
        these
            .iter()
            .filter(|line| !those.contains(line))
            .cloned()
            .collect::<Vec<_>>()
    };
    let (gone, new) = (only(before, after), only(after, before));
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}\nnew: {new:#?}"
    );
    // The order of rules counts too.
    assert!(before == after, "in another order: {after:#?}");
}

/// A path for a journal that no other test has.
pub(crate) fn journal() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    journals().join(format!("{}.json", NUMBER.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn remove_journals() {
    let _ = fs::remove_dir_all(journals());
}

fn journals() -> PathBuf {
    let directory = format!("journals-{}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(directory)
}

/// Diverts what goes from the client to port 80 of the server's network, and what comes back; and
/// what goes to two ports of an own address.
pub(crate) fn plan(journal: PathBuf) -> Plan {
    let prefix = |addr: &str, len| {
        Some(Prefix {
            addr: addr.parse().unwrap(),
            len,
        })
    };
    let mut diversions = Vec::new();
    for (family, servers) in [
        (Family::V4, prefix("10.9.0.0", 16)),
        (Family::V6, prefix("fd09::", 32)),
    ] {
        diversions.push(Diversion {
            protocol: Protocol::Tcp,
            interface: Some("cli".into()),
            source: None,
            destination: servers,
            source_ports: None,
            destination_ports: Some(80..=80),
            family,
        });
        diversions.push(Diversion {
            protocol: Protocol::Tcp,
            interface: None,
            source: servers,
            destination: None,
            source_ports: Some(80..=80),
            destination_ports: None,
            family,
        });
    }
    diversions.push(Diversion {
        protocol: Protocol::Tcp,
        interface: None,
        source: None,
        destination: prefix("10.1.0.1", 32),
        source_ports: None,
        destination_ports: Some(8080..=8081),
        family: Family::V4,
    });
    Plan {
        device: DEVICE.into(),
        vrf: None,
        table: TABLE,
        diversions,
        v4: true,
        v6: true,
        mark: 0,
        reserved_ports: None,
        uplinks: vec![],
        journal,
    }
}
