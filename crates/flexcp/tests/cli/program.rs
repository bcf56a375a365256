//! A program under test, in a directory and a network namespace of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A directory with a configuration whose sockets and state are in it, too.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new(services: &str) -> Self {
        let place = Self(TempDir::new().unwrap());
        let directory = place.0.path().display();
        let text = format!(
            "[control]\nsocket = '{directory}/flexcp.sock'\nstate_dir = '{directory}/state'\n{services}"
        );
        std::fs::write(place.config(), text).unwrap();
        place
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.0.path().join("flexcp.toml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join("flexcp.sock")
    }

    /// What is said about this place, with the directory left out.
    pub(crate) fn said(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

pub(crate) fn flexcp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcp"));
    command
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("JOURNAL_STREAM");
    command
}

pub(crate) fn check(place: &Place, more: &[&str]) -> Output {
    flexcp()
        .arg("check")
        .arg("--config")
        .arg(place.config())
        .args(more)
        .output()
        .unwrap()
}

/// A network namespace, gone when dropped.
pub(crate) struct Namespace(pub(crate) String);

impl Namespace {
    /// Panics where it is not allowed: a test that did not run has not passed.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fxd-{}-{count}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        assert!(
            made.is_ok_and(|output| output.status.success()),
            "can't make network namespaces: run this test as root"
        );
        let namespace = Self(name);
        for command in [
            "ip link set lo up",
            "ip link add eth0 type veth peer name peer0",
            // Link-local addresses would come and go while we compare.
            "ip link set eth0 addrgenmode none",
            "ip link set peer0 addrgenmode none",
            "ip addr add 10.99.0.1/24 dev eth0",
            "ip link set eth0 up",
            "ip link set peer0 up",
            // The kernel takes a moment to notice that both ends are up.
            "for _ in $(seq 100); do \
                 [ $(ip -br link | grep -c ' UP ') = 2 ] && \
                 [ $(ip -6 route show table all | grep -c 'dev \\(eth0\\|peer0\\)') = 2 ] && exit; \
                 sleep 0.05; \
             done; exit 1",
        ] {
            assert!(namespace.sh(command).status.success(), "{command}");
        }
        namespace
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.0))
            .arg(program);
        command
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("JOURNAL_STREAM");
        command
    }

    pub(crate) fn sh(&self, script: &str) -> Output {
        self.command("sh").args(["-c", script]).output().unwrap()
    }

    /// Everything that FlexCP may change.
    pub(crate) fn state(&self) -> String {
        let script = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip -br link; \
                      tc qdisc show; for i in eth0 peer0; do tc filter show dev $i ingress; done; \
                      sysctl -a 2>/dev/null | \
                      grep -E 'forwarding|rp_filter|accept_ra|accept_local|ip_forward|reserved_ports'";
        String::from_utf8(self.sh(script).stdout).unwrap()
    }

    /// Asserts that everything is as it was.
    #[track_caller]
    pub(crate) fn is_as(&self, before: &str) {
        let now = self.state();
        let only = |a: &str, b: &str| {
            a.lines()
                .filter(|line| !b.lines().any(|other| other == *line))
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(
            now == before,
            "gone:\n{}\nleft:\n{}",
            only(before, &now),
            only(&now, before)
        );
    }

    pub(crate) fn run(&self, place: &Place) -> Daemon {
        self.run_as(place, &[])
    }

    /// The same by way of another program and its arguments.
    pub(crate) fn run_as(&self, place: &Place, by: &[&str]) -> Daemon {
        let log = std::fs::File::create(place.0.path().join("log")).unwrap();
        let line: Vec<_> = by.iter().chain(&[env!("CARGO_BIN_EXE_flexcp")]).collect();
        let mut command = self.command(line[0]);
        command
            .args(&line[1..])
            .arg("run")
            .arg("--config")
            .arg(place.config())
            .stderr(log)
            .stdin(Stdio::null());
        Daemon {
            child: command.spawn().unwrap(),
            log: place.0.path().join("log"),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// A running `flexcp run`, killed when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl Daemon {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for `text` in the log.
    #[track_caller]
    pub(crate) fn says(&mut self, text: &str) {
        let began = Instant::now();
        while !self.log().contains(text) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended ({ended:?}) with\n{}", self.log());
            assert!(began.elapsed() < PATIENCE, "no `{text}` in\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        // nsenter execs the program, so the child is the daemon itself.
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const TRANSPARENT: &str = "\
[[service]]
name = 'web'
mode = 'transparent'
destinations = ['10.98.0.0/16']
ports = [80]
";

pub(crate) const BOTH: &str = "\
[[service]]
name = 'web'
mode = 'transparent'
destinations = ['10.98.0.0/16', '2001:db8:98::/48']
ports = [80]
interfaces = ['eth0']
[[service]]
name = 'shop'
mode = 'reverse'
listen = ['10.99.0.1:443']
backends = ['10.99.0.11:443']
";
