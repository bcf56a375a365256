//! `carrier`: what the translator is told, and what stands in the way.

use flexcp_translator::{Carrier, ServiceId};

use super::{REVERSE, TRANSPARENT, good, plan, said, section};

const RULE: &str = "[[rule]]\nname = 'far'\nmode = 'smallest-delay'\n";

fn split(lines: &str) -> String {
    format!("{REVERSE}carrier = 'split'\n{lines}")
}

#[test]
fn service_and_rule_say_what_carries_connections() {
    let config = good(&format!("{RULE}carrier = 'splitless'\n{}", split("")));
    let told = plan::translator(&config, &[vec![]], &[ServiceId(0)], 0);
    assert_eq!(told.services[0].intake.carrier, Some(Carrier::Split));
    assert_eq!(told.rules[0].carrier, Some(Carrier::Splitless));
    let config = good(&format!("{RULE}{REVERSE}"));
    let told = plan::translator(&config, &[vec![]], &[ServiceId(0)], 0);
    assert_eq!(told.services[0].intake.carrier, None);
    assert_eq!(told.rules[0].carrier, None);
}

#[test]
fn what_does_not_carry_is_refused() {
    let text = format!("{REVERSE}carrier = 'spliced'\n");
    let at = text.lines().count();
    said(
        &text,
        &[&format!(
            "f:{at}:11: error: `carrier`: nothing called `spliced` carries connections; write \"splitless\", \"split\" or \"auto\""
        )],
    );
}

#[test]
fn service_that_can_not_be_split_says_why() {
    let why = |text: &str, why: &str| {
        let (_, found) = super::parse("f", text);
        let found = found.to_string();
        assert_eq!(found.lines().count(), 1, "{found}");
        let expected = format!("connections of this service can't be split: {why}");
        assert!(found.contains(&expected), "{found}");
    };
    why(
        &format!("{TRANSPARENT}carrier = 'split'\n"),
        "mode = \"transparent\" can't",
    );
    why(
        &format!("[offload]\nenabled = false\n{}", split("")),
        "`enabled` in [offload] is false",
    );
    why(
        &format!("[offload]\nmark = 0\n{}", split("")),
        "`mark` in [offload] is 0",
    );
    why(&split("interfaces = ['eth0']\n"), "it names `interfaces`");
    for mode in ["convert", "socks5"] {
        let named = format!(
            "[[service]]\nname = 'any'\nmode = '{mode}'\nlisten = ['192.0.2.1:1080']\nallow = ['10.0.0.0/8']\n"
        );
        good(&format!("{named}carrier = 'split'\n"));
    }
}

#[test]
fn rule_is_for_services_with_a_carrier_before_they_have_a_server() {
    section(
        &format!("{RULE}carrier = 'split'\nports = [80]\n{}", split("")),
        "f:4:11: error: what carries a connection is decided at its SYN, before it has a server: a rule with `carrier` can't name \
         `servers` or `ports`; name `services` or `clients`",
    );
    section(
        &format!("{RULE}carrier = 'split'\nservices = ['shop']\n{REVERSE}"),
        "f:4:11: error: service `shop` has no `carrier`, so that no relay listens for it; write carrier = \"splitless\" there",
    );
    section(
        &format!("{RULE}carrier = 'split'\n"),
        "f:4:11: error: no service has a `carrier`, so that no relay listens; write carrier = \"splitless\" in one",
    );
    good(&format!("{RULE}carrier = 'splitless'\n{REVERSE}"));
}
