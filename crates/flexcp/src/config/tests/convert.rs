//! Services whose clients name their server.

use flexcp_translator::{Mode, Protocol};

use super::host::{diversions, on_host};
use super::{good, plan, said, summary};

const CONVERT: &str = "\
[[service]]
name = 'converter'
mode = 'convert'
listen = ['203.0.113.5:1080']
allow = ['0.0.0.0/0', '10.1.0.0/16']
ports = [80, '8000-8999']
";

#[test]
fn servers_may_be_named_that_the_file_allows_at_its_ports() {
    let config = good(CONVERT);
    let sources = on_host(CONVERT, &[]);
    assert_eq!(
        sources,
        [["203.0.113.5".parse::<std::net::IpAddr>().unwrap()]]
    );
    let told = plan::translator(&config, &sources, &plan::first_ids(&config), 0);
    let Mode::Explicit {
        protocol,
        listen,
        allowed,
        users,
        source,
        source_ports,
    } = &told.services[0].mode
    else {
        panic!("{:?}", told.services[0]);
    };
    assert_eq!(*protocol, Protocol::Convert);
    assert!(users.is_empty());
    assert_eq!(listen, &["203.0.113.5:1080".parse().unwrap()]);
    assert_eq!((source, source_ports), (&sources[0], &(61000..=65534)));
    let of = |at: usize| (allowed[at].servers.len, &allowed[at].ports[..]);
    let ports = [80..=80, 8000..=8999];
    assert_eq!([of(0), of(1)], [(0, &ports[..]), (16, &ports[..])]);
    assert_eq!(
        summary(&config),
        [
            "converter: convert, 203.0.113.5:1080 to 0.0.0.0/0, 10.1.0.0/16 port 80, 8000-8999 ports 61000-65534"
        ]
    );
}

#[test]
fn whatever_comes_to_its_ports_comes_to_flexcp() {
    let config = good(CONVERT);
    assert_eq!(
        diversions(&config, &on_host(CONVERT, &[])),
        [
            "to 203.0.113.5/32 dport 1080",
            "to 203.0.113.5/32 dport 61000-65534",
            "to 203.0.113.5/32 icmp",
        ]
    );
    let plan = plan::kernel(&config, &on_host(CONVERT, &[]), &[]);
    assert_eq!(plan.reserved_ports, Some(61000..=65534));
}

#[test]
fn source_is_that_of_the_listener_unless_given() {
    let own = format!("{CONVERT}source = ['10.0.0.1']\n");
    let sources = on_host(&own, &[]);
    assert_eq!(sources, [["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]]);
}

#[test]
fn nothing_is_allowed_by_default() {
    let text = CONVERT.replace("allow = ['0.0.0.0/0', '10.1.0.0/16']\n", "");
    said(
        &text,
        &[
            "f:1:1: error: a convert service has no `allow`; list the servers' prefixes, or \
           [\"0.0.0.0/0\", \"::/0\"] for all public servers",
        ],
    );
    said(
        &CONVERT.replace("allow", "backends"),
        &[
            "f:1:1: error: a convert service has no `allow`; list the servers' prefixes, or \
             [\"0.0.0.0/0\", \"::/0\"] for all public servers",
            "f:5:1: error: unknown key `backends` in a convert service; it belongs in a reverse service",
        ],
    );
}

#[test]
fn lists_and_ports_are_checked() {
    said(
        &CONVERT.replace("'10.1.0.0/16'", "'0.0.0.0/0'"),
        &["f:5:23: error: 0.0.0.0/0 is listed twice; remove one"],
    );
    said(
        &CONVERT.replace("[80, '8000-8999']", "[80, '80-8999']"),
        &["f:6:14: error: 80-8999 and 80 of the same list overlap; keep the wider"],
    );
    said(
        &format!("{CONVERT}source_ports = '61000-65535'\n"),
        &["f:7:16: error: the kernel's routing rules can't tell port 65535; write \"61000-65534\""],
    );
    said(
        &CONVERT.replace("203.0.113.5:1080", "0.0.0.0:1080"),
        &[
            "f:4:11: error: `listen`: 0.0.0.0 is the unspecified address; write an address that other hosts can reach",
        ],
    );
}

const SOCKS5: &str = "\
[[service]]
name = 'socks'
mode = 'socks5'
listen = ['203.0.113.5:1080']
allow = ['0.0.0.0/0']
users = ['joe:secret', 'jim:with:colons']
";

#[test]
fn users_of_socks_come_in_with_their_passwords() {
    let config = good(SOCKS5);
    let sources = on_host(SOCKS5, &[]);
    let told = plan::translator(&config, &sources, &plan::first_ids(&config), 0);
    let Mode::Explicit {
        protocol, users, ..
    } = &told.services[0].mode
    else {
        panic!("{:?}", told.services[0]);
    };
    assert_eq!(*protocol, Protocol::Socks5);
    let of = |at: usize| (&users[at].name[..], &users[at].password[..]);
    assert_eq!(of(0), (&b"joe"[..], &b"secret"[..]));
    assert_eq!(of(1), (&b"jim"[..], &b"with:colons"[..]));
    // No password is shown.
    assert_eq!(
        summary(&config),
        ["socks: socks5, 203.0.113.5:1080 by 2 users to 0.0.0.0/0 ports 61000-65534"]
    );
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn users_are_checked_without_a_word_of_their_passwords() {
    said(
        &SOCKS5.replace("'joe:secret'", "'joe', ':secret', 'joe:'"),
        &[
            "f:6:10: error: `users`: a user is written with its password; write \"name:password\"",
            "f:6:17: error: `users`: the name of a user has 0 bytes; SOCKS5 takes 1 to 255",
            "f:6:28: error: `users`: the password of a user has 0 bytes; SOCKS5 takes 1 to 255",
        ],
    );
    said(
        &SOCKS5.replace("socks5", "convert"),
        &["f:6:1: error: unknown key `users` in a convert service; it belongs in a socks5 service"],
    );
}
