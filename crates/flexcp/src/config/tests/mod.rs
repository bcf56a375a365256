//! Each thing that can be wrong, with the exact message and its position; and what follows from
//! configurations that are right.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use flexcp_io::{Diversion, Protocol};
use flexcp_translator::{Announce, Limits, Timeouts};

use super::file::{Config, Mode};
use super::live::{self, Host};
use super::value::{ShowPorts, ShowPrefix};
use super::{load, parse, plan, summary};

mod access;
mod aggregation;
mod backends;
mod claims;
mod convert;
mod fixed;
mod host;
mod location;
mod many;
mod rule;
mod schema;
mod split;

/// Asserts that the file made of `lines` gives just these messages.
#[track_caller]
fn said(text: &str, messages: &[&str]) {
    let (_, found) = parse("f", text);
    let found = found.to_string();
    assert_eq!(found.lines().collect::<Vec<_>>(), messages);
}

/// Asserts that `section` before a good service gives just this message.
#[track_caller]
fn section(section: &str, message: &str) {
    said(&format!("{section}\n{TRANSPARENT}"), &[message]);
}

/// Asserts that `line` in a transparent service gives just this message.
#[track_caller]
fn transparent(line: &str, message: &str) {
    said(
        &format!(
            "[[service]]\nname = \"web\"\nmode = \"transparent\"\ndestinations = [\"10.0.0.0/8\"]\n{line}\n"
        ),
        &[message],
    );
}

/// Asserts that `line` in a reverse service gives just this message.
#[track_caller]
fn reverse(line: &str, message: &str) {
    said(&format!("{REVERSE}{line}\n"), &[message]);
}

#[track_caller]
fn good(text: &str) -> Config {
    let (config, found) = parse("f", text);
    assert_eq!(found.to_string(), "");
    config.unwrap()
}

const TRANSPARENT: &str = "\
[[service]]
name = 'web'
mode = 'transparent'
destinations = ['10.9.0.0/16']
";

const REVERSE: &str = "\
[[service]]
name = 'shop'
mode = 'reverse'
listen = ['203.0.113.5:443']
backends = ['10.0.0.11:443', '10.0.0.12:443']
";

#[test]
fn not_toml() {
    said(
        "[device\nname = 1\n",
        &["f:1:8: error: unclosed table, expected `]`"],
    );
    said(
        "[control]\nsocket = /run\n[limits]\nsubflows = \n",
        &[
            "f:2:10: error: string values must be quoted, expected literal string",
            "f:4:12: error: string values must be quoted, expected literal string",
        ],
    );
}

#[test]
fn no_service() {
    said(
        "",
        &["f:1:1: error: there is no service; write at least one [[service]] section"],
    );
    said(
        "service = []\n",
        &["f:1:11: error: there is no service; write at least one [[service]] section"],
    );
    said(
        "[service]\nname = 'web'\n",
        &["f:1:1: error: `service` is a table; write [[service]], in two brackets, for each"],
    );
}

#[test]
fn unknown_keys() {
    section(
        "[devices]",
        "f:1:2: error: unknown key `devices` in the file; did you mean `device`?",
    );
    section(
        "[device]\nnmae = 'x'",
        "f:2:1: error: unknown key `nmae` in [device]; did you mean `name`?",
    );
    section(
        "[device]\nqueues = 4",
        "f:2:1: error: unknown key `queues` in [device]; known here: name, table, workers, \
         placement, pin, vrf",
    );
    section(
        "[device]\nsteering = 'owner'",
        "f:2:1: error: unknown key `steering` in [device]; write `placement` instead",
    );
    section(
        "[limits]\nsteering = 4",
        "f:2:1: error: unknown key `steering` in [limits]; known here: connections, half_open, \
         subflows, half_open_joins, mappings, memory, client_connections, client_rate",
    );
    section(
        "[limits]\nhalf-open = 4",
        "f:2:1: error: unknown key `half-open` in [limits]; did you mean `half_open`?",
    );
    transparent(
        "port = [80]",
        "f:5:1: error: unknown key `port` in a transparent service; did you mean `ports`?",
    );
    transparent(
        "listen = ['192.0.2.1:80']",
        "f:5:1: error: unknown key `listen` in a transparent service; it belongs in a reverse service",
    );
    reverse(
        "end_to_end = false",
        "f:6:1: error: unknown key `end_to_end` in a reverse service; it belongs in a transparent service",
    );
}

#[test]
fn modes() {
    let service = |mode: &str| format!("[[service]]\nname = 'web'\n{mode}\n");
    said(
        &service("mode = 'tranparent'\ndestinations = ['10.0.0.0/8']"),
        &["f:3:8: error: there is no mode \"tranparent\"; did you mean \"transparent\"?"],
    );
    // What else is wrong is said as well, as far as it can be told.
    said(
        &service("mode = 'tranparent'\ndestinations = ['10.0.0.0/33']\nport = 80"),
        &[
            "f:3:8: error: there is no mode \"tranparent\"; did you mean \"transparent\"?",
            "f:4:17: error: `destinations`: `/33` is not a prefix length; an IPv4 prefix has 0 to 32 bits",
            "f:5:1: error: unknown key `port` in a transparent service; did you mean `ports`?",
        ],
    );
    said(
        &service("mode = 'splice'\nlisten = ['192.0.2.1']\nbackends = ['10.0.0.1:80']"),
        &[
            "f:3:8: error: there is no mode \"splice\"; the modes are \"transparent\", \"reverse\", \"convert\", \"socks5\" and \"box\"",
            "f:4:11: error: `listen`: `192.0.2.1` has no port; write it like \"192.0.2.1:443\"",
        ],
    );
    said(
        "[[service]]\nmode = 'splice'\ninterfaces = 1\n",
        &[
            "f:1:1: error: a service has no `name`; write name = \"web\"",
            "f:2:8: error: there is no mode \"splice\"; the modes are \"transparent\", \"reverse\", \"convert\", \"socks5\" and \"box\"",
            "f:3:14: error: `interfaces` is an integer; write a list: [\"eth0\"]",
        ],
    );
    said(
        &service("mode = 'splice'"),
        &[
            "f:3:8: error: there is no mode \"splice\"; the modes are \"transparent\", \"reverse\", \"convert\", \"socks5\" and \"box\"",
        ],
    );
    said(
        &service("mode = 1"),
        &[
            "f:3:8: error: `mode` can't be an integer; write \"transparent\", \"reverse\", \"convert\", \"socks5\" or \"box\"",
        ],
    );
    said(
        &service(""),
        &[
            "f:1:1: error: a service has no `mode`; write mode = \"transparent\", \"reverse\", \"convert\", \"socks5\" or \"box\"",
        ],
    );
    said(
        &service("listen = ['192.0.2.1:80']\nbackends = ['10.0.0.1:80']"),
        &["f:1:1: error: a service has no `mode`; write mode = \"reverse\""],
    );
    said(
        &service("destinations = ['10.0.0.0/8']"),
        &["f:1:1: error: a service has no `mode`; write mode = \"transparent\""],
    );
    said(
        &service("listen = ['192.0.2.1:80']\nallow = ['10.0.0.0/8']"),
        &["f:1:1: error: a service has no `mode`; write mode = \"convert\" or \"socks5\""],
    );
}

#[test]
fn numbers_are_named_as_they_stand() {
    section(
        "[limits]\nconnections = 99999999999999999999",
        "f:2:15: error: `connections`: 99999999999999999999 is too large a number",
    );
    section(
        "[device]\ntable = -99999999999999999999",
        "f:2:9: error: `table`: -99999999999999999999 is too small a number",
    );
    section(
        "[timeouts]\nidle = 0xffffffffffffffff",
        "f:2:8: error: `idle`: 0xffffffffffffffff is too large a number",
    );
    transparent(
        "ports = [18446744073709551696]",
        "f:5:10: error: `ports`: 18446744073709551696 is too large a number",
    );
}

#[test]
fn missing_keys_are_all_named() {
    said(
        "[[service]]\nmode = 'transparent'\n",
        &[
            "f:1:1: error: a transparent service has no `name`; write name = \"web\"",
            "f:1:1: error: a transparent service has no `destinations`; list the servers' prefixes, \
         or [\"0.0.0.0/0\", \"::/0\"] for all servers",
        ],
    );
    said(
        "[[service]]\nname = 'a'\nmode = 'reverse'\nlisten = []\n",
        &[
            "f:1:1: error: a reverse service has no `backends`; write the servers' addresses, \
         like [\"10.0.0.11:443\"]",
            "f:4:10: error: `listen` is empty; write the addresses that clients connect to, \
         like [\"192.0.2.1:443\"]",
        ],
    );
}

#[test]
fn wrong_types() {
    section(
        "device = 1",
        "f:1:10: error: `device` is an integer; write a [device] section",
    );
    section(
        "[device]\nname = 7",
        "f:2:8: error: `name` can't be an integer; write \"eth0\"",
    );
    section(
        "[device]\ntable = '7'",
        "f:2:9: error: `table` can't be a string; write a number",
    );
    section(
        "[timeouts]\nidle = 1.5",
        "f:2:8: error: `idle` can't be a float; write seconds, or a duration like \"30s\"",
    );
    transparent(
        "ports = 80",
        "f:5:9: error: `ports` is an integer; write a list: [80 or \"8000-8999\"]",
    );
    transparent(
        "end_to_end = 'no'",
        "f:5:14: error: `end_to_end` can't be a string; write true or false",
    );
    transparent(
        "interfaces = [1]",
        "f:5:15: error: `interfaces` can't be an integer; write \"eth0\"",
    );
}

#[test]
fn wrong_values_stand_with_their_own_position() {
    transparent(
        "ports = [80, 0]",
        "f:5:14: error: `ports`: 0 is not a port; ports are 1 to 65535",
    );
    transparent(
        "ports = [80, \"8999-8000\"]",
        "f:5:14: error: `ports`: range 8999-8000 is upside down; write \"8000-8999\"",
    );
    transparent(
        "ports = [70000]",
        "f:5:10: error: `ports`: 70000 is not a port; ports are 1 to 65535",
    );
    transparent(
        "interfaces = ['a_very_long_name0']",
        "f:5:15: error: `interfaces`: `a_very_long_name0` has 17 characters; \
         the kernel takes 15 in the name of an interface",
    );
    section(
        "[timeouts]\nidle = '5 min'",
        "f:2:8: error: `idle`: `5 min` is not a duration; write it like \"30s\", \"2h5m\" or \"100ms\"",
    );
    section(
        "[timeouts]\nidle = -1",
        "f:2:8: error: `idle`: -1 is negative; write seconds, or a duration like \"30s\"",
    );
    section(
        "[control]\nlisten = '127.0.0.1:7301'",
        "f:2:10: error: `listen` has no `token_file`, without which anybody could ask; write token_file = \
         \"/etc/flexcp/token\"",
    );
    section(
        "[control]\ntoken_file = '/etc/flexcp/token'",
        "f:2:14: warning: `token_file` is of no use without `listen`: whoever may open the socket needs no token; \
         remove it",
    );
    section(
        "[control]\nsocket = 'flexcp.sock'",
        "f:2:10: error: `socket`: `flexcp.sock` must begin with /",
    );
    said(
        &TRANSPARENT.replace("10.9.0.0/16", "10.9.0.1/16"),
        &[
            "f:4:17: error: `destinations`: `10.9.0.1/16` has bits set behind the prefix; \
         the network is 10.9.0.0/16",
        ],
    );
    said(
        &REVERSE.replace("10.0.0.12:443", "10.0.0.12"),
        &["f:5:30: error: `backends`: `10.0.0.12` has no port; write it like \"10.0.0.12:443\""],
    );
    reverse(
        "source = ['10.0.0.1:80']",
        "f:6:11: error: `source`: `10.0.0.1:80` has a port; only an address belongs here: \"10.0.0.1\"",
    );
}

#[test]
fn device_and_control() {
    section(
        "[device]\nname = 'flexcp0123456789'",
        "f:2:8: error: `name`: `flexcp0123456789` has 16 characters; \
         the kernel takes 15 in the name of an interface",
    );
    section(
        "[device]\nname = 'all'",
        "f:2:8: error: FlexCP can't make a device named `all`; write a name like \"flexcp0\"",
    );
    section(
        "[device]\ntable = 254",
        "f:2:9: error: routing table 254 belongs to the kernel; use another, like 7300",
    );
    section(
        "[device]\ntable = -1",
        "f:2:9: error: -1 is not a routing table; write a number from 1 to 4294967295",
    );
    section(
        "[device]\nworkers = 0",
        "f:2:11: error: `workers` can't be 0; write a number from 1 to 64",
    );
    section(
        "[device]\nworkers = 65",
        "f:2:11: error: `workers` can't be 65; write a number from 1 to 64",
    );
    section(
        "[device]\nplacement = 'random'",
        "f:2:13: error: `placement`: there is no placement `random`; write \"owner\", \"kernel\" or \"scatter\"",
    );
    section(
        "[device]\nplacement = true",
        "f:2:13: error: `placement` can't be a boolean; write \"owner\", \"kernel\" or \"scatter\"",
    );
    section(
        "[device]\npin = 'yes'",
        "f:2:7: error: `pin` can't be a string; write true or false",
    );
    section(
        "[offload]\nenabled = 1",
        "f:2:11: error: `enabled` can't be an integer; write true or false",
    );
    section(
        "[offload]\nconnections = 0",
        "f:2:15: error: `connections` of the offload can't be 0; write a number from 1 to 1048576, or \
         `enabled = false`",
    );
    section(
        "[offload]\nattach = 'xdp'",
        "f:2:10: error: `attach`: there is no way to attach `xdp`; write \"auto\" or \"clsact\"",
    );
    let long = "x".repeat(107);
    section(
        &format!("[control]\nsocket = '/{long}'"),
        "f:2:10: error: the socket's path has 108 bytes; the kernel takes 107",
    );
}

#[test]
fn limits_and_timeouts() {
    section(
        "[limits]\nsubflows = 9",
        "f:2:12: error: `subflows` can't be 9; a connection has 1 to 8",
    );
    section(
        "[limits]\nsubflows = 0",
        "f:2:12: error: `subflows` can't be 0; a connection has 1 to 8",
    );
    section(
        "[limits]\nmappings = 0",
        "f:2:12: error: `mappings` can't be 0; write at least 1",
    );
    section(
        "[limits]\nmemory = 512",
        "f:2:10: error: `memory` can't be an integer; write \"512MB\"",
    );
    section(
        "[limits]\nmemory = '512 MB'",
        "f:2:10: error: `memory`: `512 MB` is not an amount of memory; write it like \"512MB\" or \"4GB\"",
    );
    section(
        "[device]\nworkers = 2\n[limits]\nmemory = '1999kB'",
        "f:4:10: error: `memory` is too little for the workers; write at least \"2MB\"",
    );
    section(
        "[limits]\nconnections = 5_000_000_000",
        "f:2:15: error: `connections` can't be 5000000000; write at most 4294967295",
    );
    section(
        "[timeouts]\nrejoin = 0",
        "f:2:10: error: `rejoin` can't be 0; write a duration like \"30s\"",
    );
    section(
        "[timeouts]\nidle = '1h'",
        "f:2:8: warning: `idle` is shorter than RFC 5382 section 5 allows; write at least \"2h4m\"",
    );
    section(
        "[timeouts]\nhalf_open = 30",
        "f:2:13: warning: `half_open` is shorter than RFC 5382 section 5 allows; write at least \"4m\"",
    );
}

#[test]
fn names_are_words_and_used_once() {
    said(
        &format!("{TRANSPARENT}{}", REVERSE.replace("shop", "web")),
        &["f:6:8: error: the name `web` is taken on line 2; write another"],
    );
    said(
        &TRANSPARENT.replace("web", "my web"),
        &["f:2:8: error: \"my web\" is not a name for a service; write one word, like \"web\""],
    );
}

#[test]
fn lists_name_each_thing_once() {
    transparent(
        "interfaces = ['eth0', 'eth0']",
        "f:5:23: error: eth0 is listed twice; remove one",
    );
    transparent(
        "announce = ['192.0.2.1', '192.0.2.1']",
        "f:5:26: error: 192.0.2.1 is listed twice; remove one",
    );
    transparent(
        "ports = [80, '80']",
        "f:5:14: error: 80 is listed twice; remove one",
    );
    transparent(
        "ports = [80, '1-100']",
        "f:5:14: error: 1-100 and 80 of the same list overlap; keep the wider",
    );
    said(
        &TRANSPARENT.replace("'10.9.0.0/16'", "'10.9.0.0/16', '10.0.0.0/8'"),
        &["f:4:32: error: 10.0.0.0/8 and 10.9.0.0/16 of the same list overlap; keep the wider"],
    );
    said(
        &REVERSE.replace("10.0.0.12", "10.0.0.11"),
        &["f:5:30: error: 10.0.0.11:443 is listed twice; remove one"],
    );
    said(
        &REVERSE.replace(
            "['203.0.113.5:443']",
            "['203.0.113.5:443', '203.0.113.5:443']",
        ),
        &["f:4:30: error: 203.0.113.5:443 is listed twice; remove one"],
    );
}

#[test]
fn addresses_that_hosts_do_not_have() {
    transparent(
        "announce = ['0.0.0.0']",
        "f:5:13: error: `announce`: 0.0.0.0 is the unspecified address; \
         write an address that other hosts can reach",
    );
    transparent(
        "announce = ['::ffff:192.0.2.1']",
        "f:5:13: error: `announce`: ::ffff:192.0.2.1 is an IPv4 address in IPv6 clothes; write 192.0.2.1",
    );
    said(
        &REVERSE.replace("203.0.113.5", "0.0.0.0"),
        &[
            "f:4:11: error: `listen`: 0.0.0.0 is the unspecified address; \
         write an address that other hosts can reach",
        ],
    );
    said(
        &REVERSE.replace("10.0.0.12", "[::1]"),
        &["f:5:30: error: `backends`: ::1 is a loopback address; \
         write an address that other hosts can reach"],
    );
    said(
        &TRANSPARENT.replace("10.9.0.0/16", "239.0.0.0/8"),
        &[
            "f:4:17: error: `destinations`: 239.0.0.0 is a multicast address; \
         write an address that other hosts can reach",
        ],
    );
    reverse(
        "source = ['224.0.0.1']",
        "f:6:11: error: `source`: 224.0.0.1 is a multicast address; \
         write an address that other hosts can reach",
    );
}

#[test]
fn everything_wrong_is_said_in_one_run_in_the_files_order() {
    said(
        "[device]\ntable = 0\n[limits]\nsubflow = 3\n[[service]]\nname = 'a'\nmode = 'reverse'\n\
         listen = ['1.2.3.4']\nbackends = ['0.0.0.0:80']\nports = [80]\n",
        &[
            "f:2:9: error: routing table 0 belongs to the kernel; use another, like 7300",
            "f:4:1: error: unknown key `subflow` in [limits]; did you mean `subflows`?",
            "f:8:11: error: `listen`: `1.2.3.4` has no port; write it like \"1.2.3.4:443\"",
            "f:9:13: error: `backends`: 0.0.0.0 is the unspecified address; \
             write an address that other hosts can reach",
            "f:10:1: error: unknown key `ports` in a reverse service; it belongs in a transparent service",
        ],
    );
}

#[test]
fn defaults() {
    let config = good(TRANSPARENT);
    assert_eq!(config.device.name.value, "flexcp0");
    assert_eq!(config.device.table.value, 7300);
    assert_eq!(
        config.control.socket.value,
        Path::new("/run/flexcp/flexcp.sock")
    );
    assert_eq!(
        plan::journal(&config),
        Path::new("/run/flexcp/flexcp0.json")
    );
    let translator = plan::translator(&config, &[Vec::new()], &plan::first_ids(&config), 0);
    let memory = plan::memory(&config);
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: usize = machine.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(memory, kib * 1024 / 4, "a quarter of the machine's");
    let limits = Limits {
        memory,
        ..Limits::default()
    };
    assert_eq!(translator.limits, limits);
    assert_eq!(translator.timeouts, Timeouts::default());
    assert_eq!(
        translator.services[0].mode,
        flexcp_translator::Mode::Transparent {
            destinations: vec![flexcp_translator::Prefix {
                addr: [10, 9, 0, 0].into(),
                len: 16
            }],
            ports: Vec::new(),
            end_to_end: true,
        }
    );
    let Mode::Reverse { source_ports, .. } = &good(REVERSE).services[0].mode else {
        panic!()
    };
    assert_eq!(source_ports.value, 61000..=65534);
}

#[test]
fn every_key_is_read() {
    let config = good(
        "[device]\nname = 'fx1'\ntable = 99\n\
         [control]\nsocket = '/tmp/s'\nstate_dir = '/tmp'\n\
         [limits]\nconnections = 1\nhalf_open = 2\nsubflows = 3\nhalf_open_joins = 4\nmappings = 5\nmemory = '64MB'\nclient_connections = 6\nclient_rate = 7\n\
         [timeouts]\nidle = '3h'\nhalf_open = '5m'\nrejoin = 1\nlinger = '2s'\nadd_addr = '3s'\nsilence = '4ms'\n\
         [[service]]\nname = 'web'\nmode = 'transparent'\ndestinations = ['10.9.0.0/16', '2001:db8::/32']\n\
         ports = [80, '8000-8999']\ninterfaces = ['eth0']\nannounce = ['192.0.2.1', '[2001:db8::1]:444']\n\
         end_to_end = false\n",
    );
    let kernel = plan::kernel(&config, &[Vec::new()], &[]);
    assert_eq!((kernel.device.as_str(), kernel.table), ("fx1", 99));
    assert_eq!(kernel.journal, Path::new("/tmp/fx1.json"));
    let translator = plan::translator(&config, &[Vec::new()], &plan::first_ids(&config), 0);
    assert_eq!(
        translator.limits,
        Limits {
            connections: 1,
            half_open: 2,
            subflows: 3,
            half_open_joins: 4,
            mappings: 5,
            memory: 64_000_000,
            client_connections: 6,
            client_rate: 7,
        }
    );
    assert_eq!(
        translator.timeouts,
        Timeouts {
            idle: Duration::from_secs(10800),
            half_open: Duration::from_secs(300),
            rejoin: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            add_addr: Duration::from_secs(3),
            silence: Duration::from_millis(4),
        }
    );
    let service = &translator.services[0];
    assert_eq!(service.name, "web");
    assert_eq!(
        service.announce,
        [
            Announce {
                addr: "192.0.2.1".parse().unwrap(),
                port: None
            },
            Announce {
                addr: "2001:db8::1".parse().unwrap(),
                port: Some(444)
            },
        ]
    );
    let flexcp_translator::Mode::Transparent {
        ports, end_to_end, ..
    } = &service.mode
    else {
        panic!()
    };
    assert_eq!(
        (ports.as_slice(), *end_to_end),
        (&[80..=80, 8000..=8999][..], false)
    );
}

#[test]
fn every_worker_needs_a_port_towards_the_back_ends() {
    let text = |ports| {
        format!(
            "[device]\nworkers = 8\n[[service]]\nname = 'a'\nmode = 'reverse'\nlisten = ['10.0.0.1:80']\n\
             backends = ['10.0.1.1:80']\nsource_ports = '{ports}'\n"
        )
    };
    let found = |ports| {
        let (_, found) = parse("f", &text(ports));
        found.to_string()
    };
    let few = found("61000-61006");
    assert!(
        few.contains("f:8:16: error: 7 ports are too few for 8 workers; each needs one at least"),
        "{few}"
    );
    assert!(!found("61000-61007").contains("error"));
}

#[test]
fn limits_are_shared_out_among_the_workers() {
    let config = good(&format!(
        "[device]\nworkers = 3\n[limits]\nconnections = 10\nhalf_open = 3\nmemory = '9MB'\n{TRANSPARENT}"
    ));
    for worker in 0..plan::workers(&config) {
        let told = plan::translator(&config, &[Vec::new()], &plan::first_ids(&config), worker);
        assert_eq!((told.share.worker, told.share.workers), (worker, 3));
        assert_eq!((told.limits.connections, told.limits.half_open), (4, 1));
        assert_eq!(told.limits.memory, 3_000_000);
    }
}
