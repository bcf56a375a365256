//! Accesses: what can be wrong with them, and what the translator is told.

use flexcp_translator::Way;

use super::{TRANSPARENT, good, plan, said, section};
use crate::config::access::interfaces;

const LTE: &str = "[[access]]\nname = 'lte'\nclients = ['10.64.0.0/10']\n";

/// Asserts that `text`, behind an access `lte` of 10.64.0.0/10, gives just this message.
#[track_caller]
fn second(text: &str, message: &str) {
    section(&format!("{LTE}{text}"), message);
}

#[test]
fn accesses_are_told_in_their_order() {
    let dsl = "[[access]]\nname = 'dsl'\nclients = ['10.0.0.0/8']\naddresses = ['192.0.2.1']\n";
    let config = good(&format!("{LTE}{dsl}{TRANSPARENT}"));
    let told = plan::translator(&config, &[vec![]], &plan::first_ids(&config), 0);
    let [lte, dsl] = told.accesses.as_slice() else {
        panic!("{:?}", told.accesses);
    };
    assert_eq!((lte.name.as_str(), lte.clients.len()), ("lte", 1));
    assert!(lte.addresses.is_empty());
    assert_eq!((dsl.name.as_str(), dsl.clients.len()), ("dsl", 1));
    assert_eq!(
        dsl.addresses,
        ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]
    );
    assert!(good(TRANSPARENT).accesses.is_empty());
}

#[test]
fn access_that_is_no_section() {
    section(
        "access = 'lte'",
        "f:1:10: error: `access` is a string; write [[access]], in two brackets, for each",
    );
    section(
        "access = ['lte']",
        "f:1:11: error: an access can't be a string; write an [[access]] section",
    );
}

#[test]
fn access_without_a_name() {
    section(
        "[[access]]\nclients = ['10.0.0.0/8']",
        "f:1:1: error: an access has no `name`; write name = \"lte\"",
    );
}

#[test]
fn access_that_says_nothing() {
    section(
        "[[access]]\nname = 'lte'",
        "f:1:1: error: an access has neither `clients`, `addresses` nor `interfaces`; say which subflows are of it, like clients = \
         [\"192.0.2.0/24\"]",
    );
}

#[test]
fn access_with_a_key_that_nobody_knows() {
    section(
        "[[access]]\nname = 'lte'\nclient = ['10.0.0.0/8']\naddresses = ['192.0.2.1']",
        "f:3:1: error: unknown key `client` in an access; did you mean `clients`?",
    );
}

#[test]
fn accesses_of_one_name() {
    second(
        "[[access]]\nname = 'lte'\nclients = ['10.0.0.0/16']",
        "f:5:8: error: there is an access named `lte` already; give each its own name",
    );
}

#[test]
fn access_that_no_subflow_can_be_of() {
    const NONE: &str = "f:4:1: error: no subflow can be of this access: all are of `lte` before it; put it there, or narrow \
                        the other";
    for covered in [
        "clients = ['10.65.0.0/16', '10.127.0.0/16']",
        "clients = ['10.64.0.0/10']\naddresses = ['192.0.2.1']",
    ] {
        second(&format!("[[access]]\nname = 'dsl'\n{covered}"), NONE);
    }
    for free in [
        "clients = ['10.65.0.0/16', '10.128.0.0/16']",
        "clients = ['10.0.0.0/8']",
        "clients = ['2001:db8::/32']",
        "addresses = ['192.0.2.1']",
    ] {
        good(&format!(
            "{LTE}[[access]]\nname = 'dsl'\n{free}\n{TRANSPARENT}"
        ));
    }
}

#[test]
fn accesses_by_address_that_the_first_takes() {
    said(
        &format!(
            "[[access]]\nname = 'a'\naddresses = ['192.0.2.1', '192.0.2.2']\n\
             [[access]]\nname = 'b'\naddresses = ['192.0.2.2']\n{TRANSPARENT}"
        ),
        &[
            "f:4:1: error: no subflow can be of this access: all are of `a` before it; put it there, or narrow the other",
        ],
    );
}

#[test]
fn too_many_accesses() {
    let all: String = (0..65)
        .map(|n| format!("[[access]]\nname = 'a{n}'\naddresses = ['192.0.2.{n}']\n"))
        .collect();
    said(
        &format!("{all}{TRANSPARENT}"),
        &["f:193:1: error: there can't be more than 64 accesses; give each more `clients`"],
    );
}

#[test]
fn access_by_interfaces() {
    let config = good(&format!(
        "[[access]]\nname = 'dsl'\ninterfaces = ['ppp0', 'eth1']\n\
         [[access]]\nname = 'lte'\nclients = ['10.64.0.0/10']\ninterfaces = ['wwan0', 'eth1']\n{TRANSPARENT}"
    ));
    assert_eq!(interfaces(&config.accesses), ["ppp0", "eth1", "wwan0"]);
    let told = plan::translator(&config, &[vec![]], &plan::first_ids(&config), 0);
    let ways = |places: [usize; 2]| places.map(Way::named).to_vec();
    assert_eq!(told.accesses[0].ways, ways([0, 1]));
    assert_eq!(told.accesses[1].ways, ways([2, 1]));
    section(
        "[[access]]\nname = 'all'\ninterfaces = ['eth1', 'ppp0']\n\
         [[access]]\nname = 'one'\nclients = ['10.64.0.0/10']\ninterfaces = ['ppp0']",
        "f:4:1: error: no subflow can be of this access: all are of `all` before it; put it there, or narrow the other",
    );
    section(
        "[[access]]\nname = 'one'\ninterfaces = ['eth0', 'a name that is too long']",
        "f:3:23: error: `interfaces`: `a name that is too long` has 23 characters; the kernel takes 15 in the name of an interface",
    );
}
