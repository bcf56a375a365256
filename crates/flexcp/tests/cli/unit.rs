//! The unit's promises, without a service manager: a user of its own with the unit's capabilities and no others is enough,
//! for the offload too, and the watchdog is served.

use std::fmt::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{BOTH, Daemon, Namespace, PATIENCE, Place, heard};

/// Nobody's, in place of the unit's.
const USER: u32 = 47_117;

/// What the unit says of `key`, over all of its lines.
fn unit(key: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/flexcp.service");
    let text = std::fs::read_to_string(path).unwrap();
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let words = values.flat_map(|value| value.split(' ').map(str::to_owned));
    words.collect()
}

/// A place that belongs to `USER`, with the program in it.
struct Unit {
    place: Place,
    program: PathBuf,
}

impl Unit {
    fn new(services: &str) -> Self {
        let place = Place::new(services);
        let program = place.0.path().join("flexcp");
        std::fs::write(&program, "").unwrap();
        for path in [place.0.path(), &place.config()] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        Self { place, program }
    }

    /// A shell's line that runs the program with `arguments` as the unit would.
    fn line(&self, capabilities: &[String], arguments: &str) -> String {
        let mut set = "-all".to_owned();
        for capability in capabilities {
            let name = capability.strip_prefix("CAP_").unwrap().to_lowercase();
            write!(set, ",+{name}").unwrap();
        }
        // udev gives the driver's file that mode. Nobody but root may be able to reach the program where it was built.
        format!(
            "mount -t tmpfs none /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && \
             mount --bind '{built}' {program} && exec setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs --bounding-set={set} \
             --inh-caps={set} --ambient-caps={set} {program} {arguments} --config {config}",
            built = env!("CARGO_BIN_EXE_flexcp"),
            program = self.program.display(),
            config = self.place.config().display(),
        )
    }

    fn run(&self, namespace: &Namespace) -> Daemon {
        let capabilities = unit("AmbientCapabilities");
        assert_eq!(capabilities, unit("CapabilityBoundingSet"));
        let log = self.place.0.path().join("log");
        let line = self.line(&capabilities, "run");
        let mut command = namespace.command("unshare");
        command
            .args(["--mount", "sh", "-c", &line])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Daemon { child, log }
    }

    fn output(&self, namespace: &Namespace, capabilities: &[String], arguments: &str) -> Output {
        let line = self.line(capabilities, arguments);
        let mut command = namespace.command("unshare");
        command
            .args(["--mount", "sh", "-c", &line])
            .output()
            .unwrap()
    }
}

/// Each thread's capabilities: effective, permitted, inheritable and ambient, together.
fn rights(daemon: &Daemon) -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} in\n{text}"))
                .trim()
                .to_owned()
        };
        let sets = ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"];
        let sets = sets.map(|set| u64::from_str_radix(&field(set), 16).unwrap());
        (
            field("Name:"),
            sets.into_iter().fold(0, |all, set| all | set),
        )
    };
    tasks.map(of).collect()
}

#[test]
fn user_and_capabilities_of_the_unit_suffice_for_everything() {
    assert_eq!(unit("User"), ["flexcp"]);
    let namespace = Namespace::new();
    let before = namespace.state();
    for (attach, by) in [("auto", "tcx"), ("clsact", "clsact")] {
        let unit = Unit::new(&format!(
            "[device]\nworkers = 2\n[offload]\nattach = '{attach}'\n{BOTH}"
        ));
        let mut daemon = unit.run(&namespace);
        daemon.says("ready");
        let log = daemon.log();
        for said in [
            format!("offload: up to 4096 connections, by {by}, on "),
            "steering: packets come to their worker".into(),
            "kernel: sysctl: net/ipv4/ip_forward = 1 (was 0)".into(),
            "kernel: sysctl: net/ipv6/conf/all/forwarding = 1 (was 0)".into(),
            "kernel: sysctl: net/ipv4/ip_local_reserved_ports = ".into(),
        ] {
            assert!(log.contains(&said), "no `{said}` in\n{log}");
        }
        assert!(!log.contains(" WARN "), "{log}");

        // Nothing is left of what loading took, on any thread, once each has begun.
        let net_admin = 1_u64 << 12;
        let began = Instant::now();
        let rights = loop {
            let rights = rights(&daemon);
            if rights.iter().all(|(_, rights)| *rights == net_admin) {
                break rights;
            }
            assert!(began.elapsed() < PATIENCE, "{rights:x?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(
            rights.iter().any(|(name, _)| name == "worker-1"),
            "{rights:?}"
        );
        assert!(
            rights.iter().any(|(name, _)| name == "memory"),
            "{rights:?}"
        );

        let shown = unit.output(&namespace, &[], "show stats");
        assert_eq!(shown.status.code(), Some(0), "{shown:?}");
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(&format!("offload: by {by}, on ")), "{shown}");

        daemon.signal(Signal::TERM);
        assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
        namespace.is_as(&before);
        assert_eq!(
            std::fs::read_dir(unit.place.0.path().join("state"))
                .unwrap()
                .count(),
            0
        );
        assert!(!unit.place.socket().exists());
    }
}

#[test]
fn what_the_unit_does_after_a_crash_takes_everything_back() {
    let stop = unit("ExecStopPost");
    assert_eq!(stop[..2], ["/usr/bin/flexcp", "clean"]);
    let namespace = Namespace::new();
    let before = namespace.state();
    let place = Unit::new(&format!("[offload]\nattach = 'clsact'\n{BOTH}"));
    let mut daemon = place.run(&namespace);
    daemon.says("ready");
    daemon.signal(Signal::KILL);
    daemon.ends();
    assert_ne!(namespace.state(), before);
    let cleaned = place.output(&namespace, &unit("AmbientCapabilities"), &stop[1]);
    assert_eq!(cleaned.status.code(), Some(0), "{cleaned:?}");
    namespace.is_as(&before);
}

#[test]
fn watchdog_hears_of_a_daemon_whose_workers_answer() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let notify = place.0.path().join("notify");
    let socket = UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let log = place.0.path().join("log");
    let child = namespace
        .command(env!("CARGO_BIN_EXE_flexcp"))
        .arg("run")
        .arg("--config")
        .arg(place.config())
        .env("NOTIFY_SOCKET", &notify)
        .env("WATCHDOG_USEC", "400000")
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut daemon = Daemon { child, log };
    assert_eq!(heard(&socket), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }
    daemon.signal(Signal::TERM);
    while heard(&socket) != "STOPPING=1\n" {}
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
}
