//! SIGHUP: another configuration takes effect, or nothing changes.

use std::fs;

use rustix::process::Signal;

use crate::program::{BOTH, Daemon, Namespace, Place, flexcp};
use crate::{heard, manager};

/// A daemon with two services that is ready.
fn ready(namespace: &Namespace, place: &Place) -> Daemon {
    let mut daemon = namespace.run(place);
    daemon.says("ready");
    daemon
}

/// Replaces `from` in the file by `to`, and has the daemon read it.
#[track_caller]
fn reload(daemon: &mut Daemon, place: &Place, from: &str, to: &str) -> String {
    let text = fs::read_to_string(place.config()).unwrap();
    assert!(text.contains(from), "no {from} in\n{text}");
    fs::write(place.config(), text.replacen(from, to, 1)).unwrap();
    let before = daemon.log().len();
    daemon.signal(Signal::HUP);
    let over = |log: &str| log.contains("is in force") || log.contains("stays in force");
    let began = std::time::Instant::now();
    while !over(&daemon.log()[before..]) {
        assert!(began.elapsed() < crate::PATIENCE, "{}", daemon.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let log = daemon.log().split_off(before);
    place.said(log.as_bytes())
}

/// `flexcp show status`
fn status(place: &Place) -> String {
    let mut command = flexcp();
    command
        .args(["show", "status", "--socket"])
        .arg(place.socket());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn broken_file_changes_nothing_and_the_log_says_where() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let mut daemon = ready(&namespace, &place);
    let state = namespace.state();
    for (from, to, line) in [
        // Not TOML, not known, and what a running process can't change.
        ("name = 'web'", "name = 'web", "flexcp.toml:5:"),
        (
            "name = 'web\n",
            "nane = 'web'\n",
            "flexcp.toml:5:1: error: ",
        ),
        (
            "[[service]]\nnane = 'web'\n",
            "[device]\nname = 'flexcp1'\n[[service]]\nname = 'web'\n",
            "flexcp.toml:5:8: error: `name` can't change",
        ),
        ("[device]\nname = 'flexcp1'\n", "", ""),
    ] {
        let log = reload(&mut daemon, &place, from, to);
        assert!(log.contains(line), "{log}");
        assert_eq!(
            line.is_empty(),
            log.contains("configuration 2 is in force"),
            "{log}"
        );
        assert_eq!(namespace.state(), state);
        let number = if line.is_empty() { 2 } else { 1 };
        let shown = status(&place);
        assert!(
            shown.contains(&format!("configuration {number}\n")),
            "{shown}"
        );
    }
    fs::remove_file(place.config()).unwrap();
    daemon.signal(Signal::HUP);
    daemon.says("No such file or directory (os error 2); the configuration before stays in force");
    assert_eq!(namespace.state(), state);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
}

#[test]
fn services_come_and_go_and_the_end_leaves_everything_as_it_was() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("[timeouts]\ndrain = '100ms'\n{BOTH}"));
    let before = namespace.state();
    let mut daemon = ready(&namespace, &place);
    let with_both = namespace.state();
    let log = reload(&mut daemon, &place, "'10.98.0.0/16', ", "");
    assert!(log.contains("configuration 2 is in force"), "{log}");
    assert!(
        namespace.state().contains("to 10.98.0.0/16"),
        "gone before its time"
    );
    let began = std::time::Instant::now();
    while namespace.state().contains("10.98.0.0/16") {
        assert!(began.elapsed() < crate::PATIENCE, "{}", namespace.state());
    }
    let log = reload(&mut daemon, &place, "name = 'shop'", "name = 'store'");
    assert!(log.contains("configuration 3 is in force"), "{log}");
    assert!(
        status(&place).contains("gone, and drained: shop\n"),
        "{}",
        status(&place)
    );
    daemon.says("service shop is gone");
    let log = reload(
        &mut daemon,
        &place,
        "['2001:db8",
        "['10.98.0.0/16', '2001:db8",
    );
    assert!(log.contains("configuration 4 is in force"), "{log}");
    let sorted = |state: &str| {
        let mut lines: Vec<_> = state.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&namespace.state()), sorted(&with_both));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
}

#[test]
fn service_manager_hears_when_a_reload_begins_and_when_it_is_over() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let (manager, variable) = manager(&place);
    let mut daemon = namespace.run_as(&place, &["env", &variable]);
    while !heard(&manager).contains("READY=1") {}
    for (from, to) in [("ports = [80]", "ports = [80, 81]"), ("ports", "prots")] {
        reload(&mut daemon, &place, from, to);
        let said = heard(&manager);
        let now = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        let _: u64 = now.trim_end().parse().unwrap();
        assert_eq!(heard(&manager), "READY=1\n");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
}
