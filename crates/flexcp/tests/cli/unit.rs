//! The unit's promises, without a service manager: a user of its own with the unit's capabilities and no others is enough,
//! for the offload too, and the watchdog is served.

use std::fmt::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::heard;
use crate::program::{BOTH, Daemon, Namespace, PATIENCE, Place};

/// Nobody's, in place of the unit's.
const USER: u32 = 47_117;

/// What the unit says of `key`, a line each.
fn values(key: &str) -> Vec<String> {
    values_of("flexcp.service", key)
}

/// The same of a file that is shipped.
fn values_of(file: &str, key: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("dist")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

/// The words of all of these lines.
fn unit(key: &str) -> Vec<String> {
    let values = values(key);
    let words = values.iter().flat_map(|value| value.split(' '));
    words.map(str::to_owned).collect()
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
        let (program, config) = (self.program.display(), self.place.config());
        let command = format!("{program} {arguments} --config {}", config.display());
        self.line_of(capabilities, &command)
    }

    /// A shell's line that runs `command` as the unit would.
    fn line_of(&self, capabilities: &[String], command: &str) -> String {
        let mut set = "-all".to_owned();
        for capability in capabilities {
            let name = capability.strip_prefix("CAP_").unwrap().to_lowercase();
            write!(set, ",+{name}").unwrap();
        }
        // udev gives the driver's file that mode. Nobody but root may be able to reach the program where it was built.
        format!(
            "mount -t tmpfs none /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && \
             mount --bind '{built}' {program} && exec setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs --bounding-set={set} \
             --inh-caps={set} --ambient-caps={set} {command}",
            built = env!("CARGO_BIN_EXE_flexcp"),
            program = self.program.display(),
        )
    }

    fn run(&self, namespace: &Namespace) -> Daemon {
        let capabilities = unit("AmbientCapabilities");
        assert_eq!(capabilities, unit("CapabilityBoundingSet"));
        self.run_with(namespace, &capabilities)
    }

    fn run_with(&self, namespace: &Namespace, capabilities: &[String]) -> Daemon {
        let log = self.place.0.path().join("log");
        let line = self.line(capabilities, "run");
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
fn drop_in_suffices_for_split_services() {
    let more = |key| values_of("sockets.conf", key);
    assert_eq!(more("RestrictAddressFamilies"), ["AF_INET AF_INET6"]);
    assert_eq!(more("AmbientCapabilities"), more("CapabilityBoundingSet"));
    let namespace = Namespace::new();
    let service = "[[service]]\nname = 'films'\nmode = 'reverse'\nlisten = ['10.99.0.1:443']\n\
        backends = ['10.99.0.11:443']\ncarrier = 'split'\n";
    let own = Unit::new(service);
    let mut daemon = own.run(&namespace);
    daemon.says("a port below 1024 takes CAP_NET_BIND_SERVICE");
    assert!(daemon.ends().is_some_and(|code| code != 0));
    let rights = [unit("AmbientCapabilities"), more("AmbientCapabilities")].concat();
    let mut daemon = own.run_with(&namespace, &rights);
    daemon.says("split: listens on 10.99.0.1:443");
    daemon.says("ready");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), Some(0));
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
            "placement: packets come to their worker".into(),
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
fn what_the_unit_does_after_the_end_keeps_what_the_next_start_takes_over_and_nothing_else() {
    let namespace = Namespace::new();
    let before = namespace.state();
    let unit = Unit::new(&format!("[offload]\nattach = 'clsact'\n{BOTH}"));
    let mut daemon = unit.run(&namespace);
    daemon.says("ready");
    daemon.signal(Signal::KILL);
    daemon.ends();
    let after = namespace.state();
    assert_ne!(after, before);
    let [stop] = &values("ExecStopPost")[..] else {
        panic!("ExecStopPost is not one line")
    };
    let stop = stop
        .replace("/usr/bin/flexcp", &unit.program.display().to_string())
        .replace(
            "/etc/flexcp/flexcp.toml",
            &unit.place.config().display().to_string(),
        );
    let line = unit.line_of(&self::unit("AmbientCapabilities"), &stop);
    let end_with = |result: &str| {
        let mut command = namespace.command("unshare");
        command
            .args(["--mount", "sh", "-c", &line])
            .env("SERVICE_RESULT", result);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{result}: {ended:?}");
    };
    for killed in ["signal", "core-dump", "watchdog", "oom-kill"] {
        end_with(killed);
        assert_eq!(namespace.state(), after, "{killed}");
    }
    end_with("exit-code");
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
    // The queues that it wants kept come first.
    while !heard(&socket).contains("READY=1\n") {}
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }
    daemon.signal(Signal::TERM);
    while heard(&socket) != "STOPPING=1\n" {}
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
}
