//! How a box chooses among its servers, and `[responder]`.

use std::time::Duration;

use flexcp_location::Rate;

use super::host::FakeHost;
use super::{good, live, said, summary};
use crate::config::file::Mode;
use crate::config::location::{Choose, choice_of, is_measured};
use crate::config::span::Diagnostics;

const BOX: &str = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['eth2']\n\
                   destinations = ['10.9.0.0/16']\nuplinks = ['eth0', 'eth1']\n";
const SERVERS: &str = "servers = [{ address = '203.0.113.5:7124', mode = 'convert', name = 'fra', \
                       probe = '203.0.113.5:7125', key_file = '/key' }, \
                       { address = '203.0.113.6:1080', mode = 'socks5' }]\n";

#[test]
fn servers_have_names_and_are_chosen_as_the_file_says() {
    let config = good(&format!(
        "{BOX}{SERVERS}choose = 'latency'\ncontent = '198.51.100.1:443'\nprobe_interval = '1m'\nprobe_bytes = '1MB'\n"
    ));
    assert!(is_measured(&config));
    let Mode::Box { servers, .. } = &config.services[0].mode else {
        panic!("another mode");
    };
    let names: Vec<_> = servers.iter().map(|server| server.value.name()).collect();
    assert_eq!(names, ["fra", "203.0.113.6:1080"]);
    let first = &servers[0].value;
    assert_eq!(first.probe, "203.0.113.5:7125".parse().ok());
    assert_eq!(first.key_file.as_deref(), Some("/key".as_ref()));
    let choice = choice_of(&config.services[0]).unwrap();
    assert_eq!(
        (choice.choose.value, choice.bytes.value),
        (Choose::Latency, 1_000_000)
    );
    assert_eq!(choice.interval.value, Duration::from_secs(60));
    let content = choice.content.as_ref().map(|content| content.value.port());
    assert_eq!(content, Some(443));
    let line = summary(&config).join("\n");
    assert!(
        line.contains(
            "by fra 203.0.113.5:7124 (convert), 203.0.113.6:1080 (socks5), chosen by latency"
        ),
        "{line}"
    );
    let config = good(BOX);
    assert!(!is_measured(&config));
    let choice = choice_of(&config.services[0]).unwrap();
    assert_eq!(
        (choice.choose.value, choice.bytes.value),
        (Choose::Fixed, 64 << 20)
    );
    assert_eq!(choice.interval.value, Duration::from_secs(300));
}

#[test]
fn choices_that_are_none() {
    let wrong = |lines: &str, errors: &[&str]| said(&format!("{BOX}{lines}"), errors);
    wrong(
        "choose = 'speed'\n",
        &[
            "f:7:10: error: `choose`: servers can't be chosen by `speed`; write \"fixed\", \"throughput\" or \"latency\"",
        ],
    );
    wrong(
        "choose = 'throughput'\n",
        &[
            "f:7:10: error: `choose` is \"throughput\", and there is no server to choose; list them in `servers`",
        ],
    );
    wrong(
        "content = '198.51.100.1:443'\n",
        &[
            "f:7:11: warning: `content` is of no use while the order is fixed; write choose = \"throughput\" or \"latency\", or remove it",
        ],
    );
    wrong(
        "probe_interval = '9s'\nprobe_bytes = '1kB'\n",
        &[
            "f:7:18: error: `probe_interval` is from 10 seconds to a day; write one like \"5m\"",
            "f:8:15: error: `probe_bytes` does not pay for one round in an hour; write at least \"200kB\"",
        ],
    );
    wrong(
        SERVERS,
        &[
            "f:7:12: warning: server fra is not probed, as the order is fixed; write choose = \"throughput\" or \"latency\"",
        ],
    );
    let server = |more: &str, error: &str| {
        let server = format!("{{ address = '203.0.113.5:7124', mode = 'convert', {more} }}");
        wrong(
            &format!("servers = [{server}]\nchoose = 'throughput'\n"),
            &[&format!("f:7:12: {error}")],
        );
    };
    server(
        "name = 'fra', probe = '203.0.113.5:7125'",
        "error: server fra has a `probe` and no `key_file`, and answers nobody without a key; write key_file = \"/etc/flexcp/probe.key\"",
    );
    server(
        "name = 'fra', key_file = '/key'",
        "warning: `key_file` of server fra is of no use without `probe`; write where it answers probes, or remove it",
    );
    server(
        "name = 'fra kfurt'",
        "error: \"fra kfurt\" is not a name for a server; write one word, like \"fra\"",
    );
    server(
        "name = 'fra', probe = '0.0.0.0:7125', key_file = '/key'",
        "error: `probe` of server fra: 0.0.0.0 is the unspecified address; write an address that other hosts can reach",
    );
    for (more, error) in [
        ("key_file = 'key'", "`key` must begin with /"),
        (
            "probe = 7125",
            "`probe` is no string; write one like \"203.0.113.5:7125\"",
        ),
    ] {
        let server = format!("{{ address = '203.0.113.5:7124', mode = 'convert', {more} }}");
        wrong(
            &format!("servers = [{server}]\n"),
            &[&format!("f:7:12: error: `servers`: {error}")],
        );
    }
    wrong(
        &SERVERS
            .replace("'203.0.113.6:1080'", "'203.0.113.6:1080', name = 'fra'")
            .replace("]\n", "]\nchoose = 'latency'\n"),
        &["f:7:125: error: another server is called fra, too; write another `name`"],
    );
}

const RESPONDER: &str = "[responder]\nlisten = ['10.0.0.1:7125']\nkey_file = '/key'\n";

#[test]
fn responder_says_whom_it_answers() {
    let config = good(&format!(
        "{RESPONDER}content = ['198.51.100.0/24']\nports = [80, 443]\ncontent_rate = '1Gbit'\n{BOX}"
    ));
    let responder = config.responder.unwrap();
    assert_eq!(responder.listen[0].value.port(), 7125);
    assert_eq!(responder.ports.len(), 2);
    let rate = responder.content_rate.unwrap();
    assert_eq!(rate.value, Rate::from_kbit(1_000_000));
    assert_eq!(good(BOX).responder, None);
    said(
        &format!("[responder]\n{BOX}"),
        &[
            "f:1:1: error: [responder] has no `listen`; write the addresses at which boxes probe, like [\"203.0.113.5:7125\"]",
            "f:1:1: error: [responder] has no `key_file`; without a key nobody is answered; write key_file = \"/etc/flexcp/probe.key\"",
        ],
    );
    let wrong = |lines: &str, error: &str| {
        said(
            &format!("{RESPONDER}{lines}{BOX}"),
            &[&format!("f:{error}")],
        );
    };
    wrong(
        "content = ['198.51.100.0/24']\nports = [0]\n",
        "5:10: error: 0 is no port; write one from 1 to 65535",
    );
    wrong(
        "content_rate = '1Gbit'\n",
        "4:16: warning: `content_rate` is of no use without `content`; list prefixes there, or remove it",
    );
    wrong(
        "content = ['198.51.100.0/24']\ncontent_rate = '1 Gbit'\n",
        "5:16: error: `content_rate`: `1 Gbit` is no rate; write it like \"500kbit\", \"100Mbit\" or \"1Gbit\"",
    );
}

#[test]
fn key_files_are_read_when_the_host_is_looked_at() {
    let found = |text: &str| {
        let config = good(text);
        let mut found = Diagnostics::new("f", text);
        let _ = live::check(&config, &FakeHost, &mut found);
        found.to_string()
    };
    let measured = format!("{RESPONDER}{BOX}{SERVERS}choose = 'latency'\n");
    let said = found(&measured);
    assert!(!said.contains("key"), "{said}");
    for (file, error) in [
        (
            "/open",
            "error: `key_file`: everybody may read the key file /open; chmod o= /open",
        ),
        (
            "/weak",
            "error: `key_file`: the key file /weak has no key in line 1; write 16 characters at least",
        ),
        (
            "/theirs",
            "warning: `key_file`: this user can't read /theirs; let the user that runs flexcp read it",
        ),
    ] {
        let said = found(&measured.replace("'/key'", &format!("'{file}'")));
        let lines = said.lines().filter(|line| line.contains(error));
        assert_eq!(
            lines.count(),
            2,
            "of the responder and of the server: {said}"
        );
    }
    let said = found(&measured.replace("10.0.0.1:7125", "192.0.2.99:7125"));
    assert!(
        said.contains("this host has no address 192.0.2.99 now, FlexCP waits for it"),
        "{said}"
    );
}
