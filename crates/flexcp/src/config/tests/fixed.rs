//! What a reload refuses.

use super::super::{fixed, parse};

const RUNNING: &str = r#"
[device]
name = "flexcp0"
workers = 2

[limits]
connections = 1000

[[service]]
name = "web"
mode = "transparent"
destinations = ["10.9.0.0/16"]
interfaces = ["eth0", "eth1"]

[[service]]
name = "any"
mode = "transparent"
destinations = ["10.8.0.0/16"]
"#;

/// What is said about the file with `from` replaced by `to`.
fn said(from: &str, to: &str) -> String {
    let (running, found) = parse("f.toml", RUNNING);
    assert!(!found.has_errors(), "{found}");
    assert!(RUNNING.contains(from), "{from}");
    let (new, mut found) = parse("f.toml", &RUNNING.replacen(from, to, 1));
    assert!(!found.has_errors(), "{found}");
    fixed::check(&running.unwrap(), &new.unwrap(), 1000, &mut found);
    found.to_string()
}

#[test]
fn what_needs_a_restart_is_refused_where_it_stands() {
    for (from, to, place, key) in [
        ("\"flexcp0\"", "\"flexcp1\"", "3:8", "name"),
        ("workers = 2", "workers = 3", "4:11", "workers"),
        ("workers = 2", "", "1:1", "workers"),
        ("workers = 2", "workers = 2\ntable = 7301", "5:9", "table"),
        (
            "workers = 2",
            "workers = 2\nplacement = \"kernel\"",
            "5:13",
            "placement",
        ),
        ("workers = 2", "workers = 2\npin = true", "5:7", "pin"),
        ("workers = 2", "workers = 2\nvrf = \"red\"", "5:7", "vrf"),
        (
            "[limits]",
            "[offload]\nenabled = false\n[limits]",
            "7:11",
            "enabled",
        ),
        (
            "[limits]",
            "[offload]\nconnections = 1\n[limits]",
            "7:15",
            "connections",
        ),
        (
            "[limits]",
            "[offload]\nattach = \"clsact\"\n[limits]",
            "7:10",
            "attach",
        ),
        ("[limits]", "[offload]\nmark = 1\n[limits]", "7:8", "mark"),
        (
            "[limits]",
            "[control]\nsocket = \"/run/a\"\n[limits]",
            "7:10",
            "socket",
        ),
        (
            "[limits]",
            "[control]\nstate_dir = \"/run/a\"\n[limits]",
            "7:13",
            "state_dir",
        ),
    ] {
        let said = said(from, to);
        let expected = format!(
            "f.toml:{place}: error: `{key}` can't change while FlexCP runs; restart FlexCP, or write what it started with\n"
        );
        assert_eq!(said, expected);
    }
}

#[test]
fn limits_of_the_start_are_not_exceeded() {
    assert_eq!(said("= 1000", "= 999"), "");
    let said = said("= 1000", "= 1001");
    assert!(
        said.starts_with("f.toml:7:15: error: `connections` can't be larger than the 1000"),
        "{said}"
    );
}

#[test]
fn service_loses_no_interface() {
    assert_eq!(
        said("[\"eth0\", \"eth1\"]", "[\"eth1\", \"eth2\", \"eth0\"]"),
        ""
    );
    assert_eq!(
        said("interfaces = [\"eth0\", \"eth1\"]", ""),
        "",
        "any has them, too"
    );
    assert_eq!(
        said("name = \"web\"", "name = \"other\""),
        "",
        "it is another"
    );
    let lost = said("[\"eth0\", \"eth1\"]", "[\"eth0\"]");
    assert!(
        lost.starts_with("f.toml:13:15: error: `interfaces` of a service can't lose eth1 while"),
        "{lost}"
    );
    let lost = said(
        "[\"10.8.0.0/16\"]",
        "[\"10.8.0.0/16\"]\ninterfaces = [\"eth0\"]",
    );
    assert!(
        lost.starts_with("f.toml:19:15: error: `interfaces` of a service can't lose any while"),
        "{lost}"
    );
    assert!(lost.contains("another `name`"), "{lost}");
}

#[test]
fn what_is_listened_on_stays() {
    let with = |listen: &str, token: &str| {
        let control = format!("[control]\nlisten = \"{listen}\"\ntoken_file = \"{token}\"\n");
        parse(
            "f.toml",
            &RUNNING.replacen("[limits]", &format!("{control}[limits]"), 1),
        )
    };
    let (running, _) = with("127.0.0.1:7301", "/t");
    let running = running.unwrap();
    for (listen, token, place, key) in [
        ("127.0.0.1:7302", "/t", "7:10", "listen"),
        ("127.0.0.1:7301", "/u", "8:14", "token_file"),
    ] {
        let (new, mut found) = with(listen, token);
        fixed::check(&running, &new.unwrap(), 1000, &mut found);
        assert_eq!(
            found.to_string(),
            format!(
                "f.toml:{place}: error: `{key}` can't change while FlexCP runs; restart FlexCP, or write what it started with\n"
            )
        );
    }
}
