//! What stands on disk: the journal, what a crash has left, and files that somebody has removed.

use crate::program::{BOTH, Namespace, Place};

#[test]
fn clean_takes_back_what_a_killed_daemon_left() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("[offload]\nattach = 'clsact'\n{BOTH}"));
    let clean = || {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_flexcp"));
        command.arg("clean").arg("--config").arg(place.config());
        let output = command.output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| place.said(&text));
        (output.status.code(), out, err)
    };
    let before = namespace.state();
    let nothing = (Some(0), "nothing to clean\n".to_owned(), String::new());
    assert_eq!(clean(), nothing);
    assert!(!place.0.path().join("state").exists());

    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    let during = namespace.state();
    let (code, out, err) = clean();
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let process = daemon.child.id();
    assert_eq!(
        err,
        format!(
            "flexcp: flexcp is running (process {process}, device flexcp0) and holds state/flexcp0.json; stop it, and \
             it takes back everything itself\n"
        )
    );
    namespace.is_as(&during);

    daemon.signal(rustix::process::Signal::KILL);
    daemon.ends();
    // A service that has become wrong since the crash is in nobody's way.
    let text = std::fs::read_to_string(place.config()).unwrap();
    std::fs::write(place.config(), text.replace("transparent", "tranparent")).unwrap();
    let (code, out, err) = clean();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.starts_with("flexcp: flexcp.toml has errors; "), "{err}");
    for line in [
        "rule: ipv4 1: iif lo -> rule 2 removed\n",
        "sysctl: net/ipv4/ip_forward = 0 again\n",
        "filter: eth0 removed\n",
        "qdisc: clsact of eth0 removed\n",
    ] {
        assert!(out.contains(line), "no {line:?} in\n{out}");
    }
    namespace.is_as(&before);
    std::fs::write(place.config(), text).unwrap();
    assert_eq!(clean(), nothing);
}

#[test]
fn broken_journal_is_told_and_in_nobodys_way() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let state = place.0.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("flexcp0.json"), "{\"version\": 1,").unwrap();
    let before = namespace.state();
    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    let log = place.said(daemon.log().as_bytes());
    let warns =
        |line: &&str| line.contains(" WARN ") && line.contains("journal: state/flexcp0.json");
    assert!(log.lines().any(|line| warns(&line)), "{log}");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
    assert!(state.join("flexcp0.json.bad").exists());
}

#[test]
fn removed_state_directory_is_no_stopped_daemon() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let state = place.0.path().join("state");
    let before = namespace.state();
    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::remove_file(place.socket()).unwrap();
    let mut show = namespace.command(env!("CARGO_BIN_EXE_flexcp"));
    show.args(["show", "stats", "--config"]).arg(place.config());
    assert_eq!(
        place.said(&show.output().unwrap().stderr),
        "flexcp: flexcp is running here with the device flexcp0, but nobody listens on the control socket \
         flexcp.sock: name the one it has with --socket or --config, or restart it if that file was removed\n"
    );
    // While it is running its device is its own.
    let mut check = namespace.command(env!("CARGO_BIN_EXE_flexcp"));
    check
        .args(["check", "--live", "--config"])
        .arg(place.config());
    assert_eq!(check.output().unwrap().status.code(), Some(0));
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.ends(), Some(0), "{}", daemon.log());
    namespace.is_as(&before);
}
