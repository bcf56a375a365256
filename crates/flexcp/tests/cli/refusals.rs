//! What the kernel refuses, and what FlexCP says then.

use std::process::{Command, Output};

use crate::program::{BOTH, Namespace, Place, TRANSPARENT, flexcp};

/// Runs flexcp with `arguments` in a mount namespace of its own, after `script`.
fn output_after(namespace: &Namespace, place: &Place, script: &str, arguments: &str) -> Output {
    let script = format!("{script} && exec \"$0\" {arguments} --config \"$1\"");
    let mut command = namespace.command("unshare");
    command
        .args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_flexcp")])
        .arg(place.config());
    command.output().unwrap()
}

#[test]
fn device_driver_that_may_not_be_opened() {
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();
    // The unit's device cgroup, or a container, does the same: no capability opens it.
    let script = "mount -t tmpfs -o nodev none /dev/net && mknod /dev/net/tun c 10 200";
    let output = output_after(&namespace, &place, script, "run");
    let said = place.said(&output.stderr);
    assert_eq!(
        said.lines().last().unwrap(),
        "flexcp: cannot open /dev/net/tun: Permission denied (os error 13); let the user that runs flexcp read and \
         write it (chmod 0666 /dev/net/tun), and its service or container use it (DeviceAllow=/dev/net/tun rw, \
         --device /dev/net/tun)"
    );
    assert_eq!(output.status.code(), Some(1));
    namespace.is_as(&before);
}

/// What the kernel says stands once in a message.
#[test]
fn sysctls_that_are_read_only() {
    let namespace = Namespace::new();
    let place = Place::new(TRANSPARENT);
    let before = namespace.state();
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    let output = output_after(&namespace, &place, script, "run");
    let said = place.said(&output.stderr);
    assert_eq!(
        said.lines().last().unwrap(),
        "flexcp: cannot set the sysctl net/ipv4/ip_forward to 1: Read-only file system (os error 30): set it from \
         outside of this container, or mount /proc/sys writable"
    );
    namespace.is_as(&before);
}

#[test]
fn live_check_finds_a_device_and_a_directory_that_can_not_be_had() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("[device]\nname = 'eth0'\n{TRANSPARENT}"));
    let state = place.0.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let script = format!("mount -t tmpfs -o ro none {}", state.display());
    for command in ["check --live", "run"] {
        let output = output_after(&namespace, &place, &script, command);
        assert_eq!(output.status.code(), Some(1));
        let said = place.said(&output.stderr);
        for line in [
            "flexcp.toml:3:13: error: `state_dir`: no files can be made in ",
            "state: Read-only file system (os error 30); write another directory, like \"/run/flexcp\"\n",
            "flexcp.toml:5:8: error: there is an interface `eth0` already, which is not FlexCP's; ",
        ] {
            assert!(said.contains(line), "no {line:?} in {said}");
        }
    }
    assert!(namespace.sh("ip link show eth0").status.success());
}

#[test]
fn control_socket_survives_a_lack_of_descriptors() {
    let namespace = Namespace::new();
    let place = Place::new(TRANSPARENT);
    let mut daemon = namespace.run(&place);
    daemon.says("ready");
    let pid = daemon.child.id();
    let limit = |files: usize| {
        let limit = [format!("--pid={pid}"), format!("--nofile={files}")];
        assert!(
            Command::new("prlimit")
                .args(limit)
                .status()
                .unwrap()
                .success()
        );
    };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    limit(open + 2);
    let connect = |_| std::os::unix::net::UnixStream::connect(place.socket()).unwrap();
    let clients: Vec<_> = (0..5).map(connect).collect();
    daemon
        .says("control: can't take a request now: Too many open files (os error 24); tries again");
    drop(clients);
    let show = || {
        let mut show = flexcp();
        show.args(["show", "stats", "--socket"]).arg(place.socket());
        show.output().unwrap()
    };
    let output = show();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        daemon.log().matches("can't take a request").count(),
        1,
        "{}",
        daemon.log()
    );
}
