//! The program as its users meet it: exit codes, and what it says. What changes the kernel runs in a
//! network namespace of its own, and fails where that is not allowed.

#[path = "cli/leftovers.rs"]
mod leftovers;
#[path = "cli/library.rs"]
mod library;
#[path = "cli/program.rs"]
mod program;
#[path = "cli/refusals.rs"]
mod refusals;
#[path = "cli/reload.rs"]
mod reload;
#[path = "cli/rules.rs"]
mod rules;
#[path = "cli/unit.rs"]
mod unit;

use crate::program::{BOTH, Daemon, Namespace, PATIENCE, Place, TRANSPARENT, check, flexcp};

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn check_of_a_good_file_says_ok_and_lists_the_services() {
    let place = Place::new(TRANSPARENT);
    let output = check(&place, &[]);
    assert_eq!(place.said(&output.stderr), "");
    assert_eq!(
        place.said(&output.stdout),
        "ok: flexcp.toml: 1 service\n  web: transparent, to 10.98.0.0/16 port 80\n"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn check_of_a_bad_file_says_all_that_is_wrong_and_fails() {
    let place =
        Place::new("[device]\ntable = 254\n[[service]]\nname = 'web'\nmode = 'tranparent'\n");
    let output = check(&place, &[]);
    assert_eq!(
        place.said(&output.stderr),
        "flexcp.toml:5:9: error: routing table 254 belongs to the kernel; use another, like 7300\n\
         flexcp.toml:6:1: error: a transparent service has no `destinations`; list the servers' prefixes, or \
         [\"0.0.0.0/0\", \"::/0\"] for all servers\n\
         flexcp.toml:8:8: error: there is no mode \"tranparent\"; did you mean \"transparent\"?\n\
         flexcp: flexcp.toml: 3 errors\n"
    );
    assert_eq!(place.said(&output.stdout), "");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn check_of_a_file_with_a_warning_succeeds() {
    let place = Place::new(&format!("[timeouts]\nidle = '1h'\n{TRANSPARENT}"));
    let output = check(&place, &[]);
    assert!(
        place
            .said(&output.stderr)
            .starts_with("flexcp.toml:5:8: warning: `idle` is shorter")
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn check_of_a_file_that_is_not_there() {
    let output = flexcp()
        .args(["check", "--config", "/nonexistent.toml"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "flexcp: can't read the configuration /nonexistent.toml: No such file or directory (os error 2)\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn live_check_finds_an_interface_that_is_not_there() {
    let place = Place::new(&format!("{TRANSPARENT}interfaces = ['fxnone0']\n"));
    let output = check(&place, &["--live"]);
    let said = place.said(&output.stderr);
    assert!(
        said.starts_with(
            "flexcp.toml:9:15: warning: there is no interface `fxnone0` now, FlexCP waits for it"
        ),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn run_with_a_bad_file_fails_before_anything_else() {
    let place = Place::new("");
    let output = flexcp()
        .arg("run")
        .arg("--config")
        .arg(place.config())
        .output()
        .unwrap();
    let said = place.said(&output.stderr);
    assert!(
        said.ends_with(
            "flexcp.toml:1:1: error: there is no service; write at least one [[service]] section\n\
             flexcp: flexcp.toml: 1 error, does not start\n"
        ),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(!place.socket().exists());
}

#[test]
fn run_without_privileges_says_which_are_missing() {
    let place = Place::new(TRANSPARENT);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(env!("CARGO_BIN_EXE_flexcp"));
    if !rustix::process::geteuid().is_root() {
        command = flexcp();
    }
    let output = command
        .arg("run")
        .arg("--config")
        .arg(place.config())
        .output()
        .unwrap();
    let said = place.said(&output.stderr);
    let last = said.lines().last().unwrap();
    assert_eq!(
        last,
        "flexcp: no permission to change the network: run flexcp as root or with the capability \
         CAP_NET_ADMIN"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(!place.socket().exists());
}

#[test]
fn show_without_a_daemon_says_so_in_one_line() {
    let place = Place::new(TRANSPARENT);
    let shown = ["connections", "rules", "stats", "status"].map(|what| vec!["show", what]);
    for words in shown
        .into_iter()
        .chain([vec!["events"], vec!["rule", "list"]])
    {
        let output = flexcp()
            .args(words)
            .arg("--config")
            .arg(place.config())
            .output()
            .unwrap();
        assert_eq!(
            place.said(&output.stderr),
            "flexcp: flexcp is not running: nobody listens on the control socket flexcp.sock; if it has \
             another one, name it with --socket or --config\n"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn wrong_arguments_are_a_usage_error() {
    assert_eq!(flexcp().arg("run").output().unwrap().status.code(), Some(2));
    let both = ["show", "stats", "--socket", "/a", "--config", "/b"];
    assert_eq!(flexcp().args(both).output().unwrap().status.code(), Some(2));
    assert_eq!(
        flexcp().arg("--version").output().unwrap().status.code(),
        Some(0)
    );
}

#[test]
fn runs_until_sigterm_and_takes_everything_back() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();

    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    assert_ne!(namespace.state(), before);
    let log = daemon.log();
    for said in [
        "service web: transparent, to 10.98.0.0/16, 2001:db8:98::/48 port 80, clients on eth0",
        "service shop: reverse, 10.99.0.1:443 to 10.99.0.11:443 ports 61000-65534",
        "control socket at ",
        "kernel: ",
    ] {
        assert!(log.contains(said), "no `{said}` in\n{log}");
    }

    let stats = flexcp()
        .args(["show", "stats", "--json", "--config"])
        .arg(place.config())
        .output();
    let stats: serde_json::Value = serde_json::from_slice(&stats.unwrap().stdout).unwrap();
    assert_eq!(
        (&stats["version"], &stats["connections"]),
        (&1.into(), &0.into())
    );
    let shown = flexcp()
        .args(["show", "connections", "--socket"])
        .arg(place.socket())
        .output();
    assert_eq!(
        String::from_utf8_lossy(&shown.unwrap().stdout),
        "no connections\n"
    );

    daemon.signal(rustix::process::Signal::HUP);
    daemon.says("configuration 2 is in force");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
    assert!(!place.socket().exists());
    assert!(!place.0.path().join("state/flexcp0.json").exists());
}

#[test]
fn packets_come_to_their_workers_or_the_log_says_what_is_missing() {
    let namespace = Namespace::new();
    let placed = "placement: packets come to their worker";
    let place = Place::new(&format!("[device]\nworkers = 2\npin = true\n{BOTH}"));
    let before = namespace.state();
    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    daemon.says("worker 0 stays on CPU");
    daemon.says("worker 1 stays on CPU");
    assert!(daemon.log().contains(placed), "{}", daemon.log());
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);

    // With the unit's capabilities but those for the offload it runs all the same.
    let no_bpf = [
        "setpriv",
        "--bounding-set=-all,+net_admin",
        "--inh-caps=-all,+net_admin",
    ];
    let mut daemon = namespace.run_as(&place, &no_bpf);
    daemon.says("ready");
    let log = daemon.log();
    assert!(log.contains("no placement: the kernel does not load"));
    assert!(log.contains("CAP_BPF; workers hand packets over"));
    assert!(!log.contains(placed), "{log}");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);

    // No other worker, or nobody who wants it.
    for device in ["", "[device]\nworkers = 2\nplacement = 'kernel'\n"] {
        let place = Place::new(&format!("{device}{BOTH}"));
        let mut daemon = namespace.run(&place);
        daemon.says("ready");
        assert!(!daemon.log().contains("placement:"), "{}", daemon.log());
        daemon.signal(rustix::process::Signal::TERM);
        assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    }
}

#[test]
fn what_a_killed_daemon_left_is_taken_back_by_the_next() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();

    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ends();
    assert_ne!(namespace.state(), before);
    assert!(place.socket().exists());

    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    daemon.signal(rustix::process::Signal::INT);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
}

#[test]
fn offload_by_clsact_is_named_and_taken_back() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("[offload]\nattach = 'clsact'\n{BOTH}"));
    let before = namespace.state();

    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    daemon.says("offload: up to 4096 connections, by clsact, on ");
    daemon.says("kernel: filter: eth0 ingress priority 65117 handle 0x75, qdisc clsact made");
    assert!(namespace.state().contains("flexcp_offload"));
    let mut show = flexcp();
    show.args(["show", "stats", "--socket"]).arg(place.socket());
    let shown = String::from_utf8(show.output().unwrap().stdout).unwrap();
    let notes = shown.lines().filter(|line| line.starts_with("offload: "));
    let notes: Vec<_> = notes.collect();
    assert!(notes[0].starts_with("offload: by clsact, on "), "{shown}");
    assert_eq!(notes.len(), 1, "{shown}");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ends();
    assert!(namespace.state().contains("flexcp_offload"));

    let mut daemon = namespace.run(&place);
    daemon.says("kernel: qdisc: clsact of eth0 removed");
    daemon.says("ready");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
}

#[test]
fn live_check_tries_the_programs() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("[device]\nworkers = 2\n{BOTH}"));
    let before = namespace.state();
    let check = |rights: &[&str]| {
        let program = [
            env!("CARGO_BIN_EXE_flexcp"),
            "check",
            "--live",
            "--verifier-log",
        ];
        let words: Vec<_> = rights.iter().chain(&program).collect();
        let mut command = namespace.command(words[0]);
        command
            .args(&words[1..])
            .arg("--config")
            .arg(place.config());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let [said, text] = [output.stderr, output.stdout].map(|text| place.said(&text));
        (said, text)
    };
    let (said, text) = check(&[]);
    assert!(
        !said.contains("offload") && !said.contains("placement"),
        "{said}"
    );
    let works = "\n  offload: the kernel takes it, by ";
    assert!(text.starts_with("ok: ") && text.contains(works), "{text}");

    let (said, text) = check(&["setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    for miss in ["no offload: ", "no placement: "] {
        let line = format!("flexcp.toml: warning: {miss}the kernel ");
        assert!(said.contains(&line) && said.contains("CAP_BPF"), "{said}");
    }
    assert!(text.starts_with("ok: ") && !text.contains(works), "{text}");
    namespace.is_as(&before);
}

/// Asserts that a daemon fails with just this as its last line, and leaves the kernel as it was.
#[track_caller]
fn fails(namespace: &Namespace, place: &Place, last: &str) {
    let before = namespace.state();
    let mut daemon = namespace.run(place);
    assert_eq!(daemon.ends(), Some(1), "{}", daemon.log());
    namespace.is_as(&before);
    let log = place.said(daemon.log().as_bytes());
    let lines: Vec<_> = log
        .lines()
        .filter(|line| !line.contains(" INFO "))
        .collect();
    assert!(
        lines.last().is_some_and(|line| line.starts_with(last)),
        "{log}"
    );
}

/// The service manager hears of the state, and that FlexCP is ready when packets can flow.
#[test]
fn interface_that_is_not_there_is_waited_for() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("{TRANSPARENT}interfaces = ['eth7']\n"));
    let before = namespace.state();
    let (manager, notify) = manager(&place);
    let mut daemon = namespace.run_as(&place, &["env", &notify]);
    let missing = "interface eth7 of service web is missing, FlexCP waits for it";
    assert_eq!(
        heard(&manager),
        format!("STATUS=waiting: {missing}\nEXTEND_TIMEOUT_USEC=60000000\n")
    );
    daemon.says(missing);
    let status = || {
        let mut command = flexcp();
        command
            .args(["show", "status", "--config"])
            .arg(place.config());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let shown = status();
    assert!(shown.contains(": waiting, up "), "{shown}");
    assert!(shown.contains(&format!("problem: {missing}\n")), "{shown}");
    assert!(
        shown.ends_with("web      transparent  no      eth7 (missing)\n"),
        "{shown}"
    );

    // What happens meanwhile is no reason to tell it again.
    namespace.sh("for i in 1 2 3; do ip route add blackhole 192.0.2.$i; sleep 0.05; done");
    namespace.sh("ip route flush root 192.0.2.0/24; ip link add eth7 type veth peer name peer7; ip link set eth7 up");
    let ready = std::iter::repeat_with(|| heard(&manager)).find(|said| said.contains("READY=1"));
    assert_eq!(ready.unwrap(), "STATUS=ready\nREADY=1\n");
    daemon.says(&format!("over: {missing}"));
    let rules = namespace.sh("ip rule").stdout;
    assert!(!String::from_utf8(rules).unwrap().contains("[detached]"));
    assert!(status().contains(": ready, up "), "{}", status());
    let log = daemon.log();
    assert_eq!(log.matches(missing).count(), 2, "not told once:\n{log}");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    assert_eq!(heard(&manager), "STOPPING=1\n");
    namespace.sh("ip link delete eth7");
    namespace.is_as(&before);
}

#[test]
fn address_already_in_use() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let script = "import socket,time\n\
                  s = socket.create_server(('10.99.0.1', 443))\nprint('listens', flush=True)\ntime.sleep(60)";
    let mut listener = namespace
        .command("python3")
        .args(["-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .map(|child| Daemon {
            child,
            log: place.0.path().join("log"),
        })
        .unwrap();
    let mut ready = [0; 7];
    std::io::Read::read_exact(listener.child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let before = namespace.state();
    let mut daemon = namespace.run(&place);
    assert_eq!(daemon.ends(), Some(1));
    namespace.is_as(&before);
    let log = place.said(daemon.log().as_bytes());
    assert!(
        log.contains(
            "flexcp.toml:13:11: error: address already in use: 10.99.0.1:443: a TCP socket"
        ),
        "{log}"
    );
}

#[test]
fn second_daemon_with_the_same_socket_or_device() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let mut daemon = namespace.run(&place);
    daemon.says("ready");

    let same = Place::new(BOTH);
    std::fs::copy(place.config(), same.config()).unwrap();
    fails(
        &namespace,
        &same,
        "flexcp: another flexcp is running: it answers on the control socket ",
    );
    let other = Place::new(BOTH);
    fails(
        &namespace,
        &other,
        "flexcp: there is an interface flexcp0 already",
    );

    // The first has not noticed.
    let output = flexcp()
        .args(["show", "stats", "--config"])
        .arg(place.config())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn device_driver_that_is_not_there() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();
    // A mount namespace in which /dev/net is empty.
    let script = "mount -t tmpfs none /dev/net && exec \"$0\" run --config \"$1\"";
    let output = namespace
        .command("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_flexcp")])
        .arg(place.config())
        .output()
        .unwrap();
    let said = place.said(&output.stderr);
    assert!(
        said.lines()
            .last()
            .unwrap()
            .starts_with("flexcp: /dev/net/tun is missing: "),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
    namespace.is_as(&before);
    assert!(!place.socket().exists());
}

#[test]
fn service_manager_is_told_when_ready() {
    let namespace = Namespace::new();
    let place = Place::new(TRANSPARENT);
    let (manager, notify) = manager(&place);
    let mut daemon = namespace.run_as(&place, &["env", &notify]);
    assert_eq!(heard(&manager), "STATUS=ready\nREADY=1\n");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(heard(&manager), "STOPPING=1\n");
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
}

/// A service manager's socket, and the variable that names it.
fn manager(place: &Place) -> (UnixDatagram, String) {
    let path = place.0.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    (manager, format!("NOTIFY_SOCKET={}", path.display()))
}

/// What the service manager hears of the state. What it is given to keep is for the lab's manager, which keeps it.
fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 1000];
    loop {
        let len = match manager.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            len => len.unwrap(),
        };
        let said = String::from_utf8_lossy(&buffer[..len]);
        if !said.starts_with("FDSTORE") {
            return said.into_owned();
        }
    }
}

/// The device goes away under the daemon: it ends, and still takes the rest back.
#[test]
fn device_deleted_under_the_daemon() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();
    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    assert!(namespace.sh("ip link del flexcp0").status.success());
    assert_eq!(daemon.ends(), Some(1), "{}", daemon.log());
    let log = daemon.log();
    assert!(
        log.lines()
            .last()
            .unwrap()
            .starts_with("flexcp: the device can't be read any more: "),
        "{log}"
    );
    namespace.is_as(&before);
    assert!(!Path::new(&place.socket()).exists());
}
