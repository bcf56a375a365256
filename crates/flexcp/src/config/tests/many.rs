//! A file of many services: each is judged like the first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::parse;

/// So many that what goes wrong with every 200th shows (`make drawn-bugs` makes such bugs).
const SERVICES: usize = 401;

/// The messages about so many services, without their places, and how often each came. In a service, `%` is its number.
fn said_of_many(service: &str) -> BTreeMap<String, usize> {
    let mut text = String::new();
    for number in 1..=SERVICES {
        writeln!(text, "{}", service.replace('%', &number.to_string())).expect("memory");
    }
    let (_, found) = parse("f", &text);
    let mut said = BTreeMap::new();
    for line in found.to_string().lines() {
        let message = line.splitn(4, ':').nth(3).unwrap_or(line);
        *said.entry(message.trim().to_owned()).or_default() += 1;
    }
    said
}

#[track_caller]
fn each_says(service: &str, message: &str) {
    let all = BTreeMap::from([(message.to_owned(), SERVICES)]);
    assert_eq!(said_of_many(service), all);
}

/// A reverse service with this line.
fn reverse(line: &str) -> String {
    format!(
        "[[service]]\nname = 's%'\nmode = 'reverse'\nlisten = ['203.0.113.5:%']\nbackends = ['10.0.0.11:443']\n{line}"
    )
}

#[test]
fn good_ones_are_good() {
    assert_eq!(said_of_many(&reverse("")), BTreeMap::new());
    let ports = "source_ports = '20000-60000'";
    assert_eq!(said_of_many(&reverse(ports)), BTreeMap::new());
}

#[test]
fn source_listed_twice() {
    each_says(
        &reverse("source = ['192.0.2.1', '192.0.2.1']"),
        "error: 192.0.2.1 is listed twice; remove one",
    );
}

#[test]
fn few_source_ports() {
    each_says(
        &reverse("source_ports = '61000-61009'"),
        "warning: `source_ports` 61000-61009 has 10 ports, and each connection to a server at one time \
         takes one; use more, like \"61000-65534\"",
    );
}

#[test]
fn more_than_there_are_ids() {
    let (config, mut found) = parse("f", &reverse("").replace('%', "1"));
    let mut config = config.expect("a good one");
    let one = config.services[0].clone();
    config.services.resize((1 << 16) + 1, one);
    let too_many = "there can't be more than 65536 services";
    super::super::check::check(&config, &mut found);
    assert_eq!(found.errors(), 1);
    assert!(found.to_string().contains(too_many), "{found}");
}
