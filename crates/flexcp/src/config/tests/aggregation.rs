//! `mode = "box"`: what the kernel and the translator are told, and what is wrong.

use std::net::IpAddr;

use flexcp_translator::Protocol;

use super::host::{FakeHost, diversions};
use super::{good, live, plan, said, summary};
use crate::config::span::Diagnostics;

const BOX: &str = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['eth2']\n\
                   destinations = ['10.9.0.0/16']\nports = [443]\nuplinks = ['eth0', 'eth1']\n";

#[test]
fn packets_of_clients_and_to_uplinks_are_diverted() {
    let config = good(BOX);
    let uplinks: Vec<IpAddr> = ["203.0.113.5", "10.0.0.1"]
        .map(|addr| addr.parse().unwrap())
        .into();
    let sources = std::slice::from_ref(&uplinks);
    assert_eq!(
        diversions(&config, sources),
        [
            "iif eth2 to 10.9.0.0/16 dport 443",
            "to 203.0.113.5/32 dport 61000-65534",
            "to 10.0.0.1/32 dport 61000-65534",
            "to 203.0.113.5/32 icmp",
            "to 10.0.0.1/32 icmp",
        ]
    );
    let ids = plan::first_ids(&config);
    let told = plan::translator(&config, sources, &ids, 0);
    let flexcp_translator::Mode::Box { uplinks: told, .. } = &told.services[0].mode else {
        panic!("another mode");
    };
    let expected = uplinks.iter().map(|addr| (*addr).into());
    assert_eq!(*told, expected.collect::<Vec<flexcp_translator::Uplink>>());
}

#[test]
fn uplinks_have_the_addresses_of_their_interfaces_in_their_order() {
    let config = good(BOX);
    let mut found = Diagnostics::new("f", BOX);
    let sources = live::check(&config, &FakeHost, &mut found);
    let shown: Vec<_> = sources[0].iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["203.0.113.5", "2001:db8::5", "10.0.0.1"]);
    let config = good(&BOX.replace("'eth1'", "'eth3'"));
    let _ = live::check(&config, &FakeHost, &mut found);
    let said = found.to_string();
    assert!(said.contains("uplink `eth3` has no address"), "{said}");
}

#[test]
fn what_is_no_box_says_so() {
    said(
        &BOX.replace("interfaces = ['eth2']\n", ""),
        &[
            "f:1:1: error: a box has to know where its clients come in; write interfaces = [\"lan0\"]",
        ],
    );
    said(
        &BOX.replace("['eth2']", "['eth1']"),
        &["f:7:20: error: clients come in on `eth1`, so it can be no uplink"],
    );
    let nine: Vec<_> = (0..9).map(|n| format!("'wan{n}'")).collect();
    said(
        &BOX.replace("'eth0', 'eth1'", &nine.join(", ")),
        &["f:7:76: error: there can be 8 uplinks; remove this one"],
    );
    said(
        &BOX.replace("['eth0', 'eth1']", "['eth0', 'eth0']"),
        &["f:7:20: error: eth0 is listed twice; remove one"],
    );
    said(
        &format!("{BOX}announce = ['192.0.2.1']\n"),
        &[
            "f:8:13: error: a box is the client of its servers, and announces no addresses; remove `announce`",
        ],
    );
    said(
        &BOX.replace("uplinks = ['eth0', 'eth1']\n", ""),
        &[
            "f:1:1: error: a box service has no `uplinks`; list the interfaces that connections go out by, like [\"dsl0\", \"lte0\"]",
        ],
    );
}

#[test]
fn servers_and_exceptions_are_told() {
    let text = format!(
        "{BOX}servers = [{{ address = '203.0.113.5:7124', mode = 'convert', early = true }}, \
         {{ mode = 'socks5', user = 'me:secret', address = '203.0.113.6:1080' }}]\n\
         except = ['10.9.1.0/24', {{ prefix = '10.9.0.0/16', ports = [22, '5000-5999'] }}]\n"
    );
    let config = good(&text);
    let ids = plan::first_ids(&config);
    let told = plan::translator(&config, &[vec![]], &ids, 0);
    let flexcp_translator::Mode::Box {
        servers, except, ..
    } = &told.services[0].mode
    else {
        panic!("another mode");
    };
    let addrs: Vec<_> = servers.addrs().iter().map(ToString::to_string).collect();
    assert_eq!(addrs, ["203.0.113.5:7124", "203.0.113.6:1080"]);
    let approaches = [0, 1].map(|place| servers.approach(place).unwrap());
    assert_eq!(approaches[0].protocol, Protocol::Convert);
    assert_eq!(approaches[0].user, None);
    assert_eq!(approaches.map(|approach| approach.early), [true, false]);
    assert_eq!(approaches[1].protocol, Protocol::Socks5);
    let user = approaches[1].user.as_ref().unwrap();
    assert_eq!((&*user.name, &*user.password), (&b"me"[..], &b"secret"[..]));
    assert_eq!(except[0].ports, []);
    assert_eq!(except[1].ports, [22..=22, 5000..=5999]);
    assert!(!except[1].contains("10.9.0.1:443".parse().unwrap()));
    assert!(except[1].contains("10.9.0.1:5555".parse().unwrap()));
    assert_eq!(
        summary(&config).join("\n"),
        "home: box, to 10.9.0.0/16 port 443 except 10.9.1.0/24, 10.9.0.0/16, over eth0, eth1 by \
         203.0.113.5:7124 (convert), 203.0.113.6:1080 (socks5), clients on eth2"
    );
}

#[test]
fn servers_that_are_none() {
    let servers = |server: &str, error: &str| {
        let text = format!("{BOX}servers = [{server}]\n");
        said(&text, &[&format!("f:8:12: error: {error}")]);
    };
    servers(
        "{ address = '203.0.113.5:7124' }",
        "`servers`: a server has an `address` and a `mode`; write { address = \"203.0.113.5:7124\", mode = \"convert\" }",
    );
    servers(
        "{ address = 5, mode = 'convert' }",
        "`servers`: `address` is no string; write one like \"203.0.113.5:7124\"",
    );
    servers(
        "{ address = '203.0.113.5:7124', mode = 'http' }",
        "`servers`: `mode` is what the server speaks; write \"convert\" or \"socks5\"",
    );
    servers(
        "{ address = '203.0.113.5:7124', mode = 'convert', user = 'me:secret' }",
        "`servers`: a converter asks nobody who he is; remove `user`",
    );
    servers(
        "{ address = '203.0.113.5:7124', mode = 'socks5', user = 1 }",
        "`servers`: `user` is no string; write \"name:password\"",
    );
    servers(
        "{ address = '203.0.113.5:7124', mode = 'socks5', users = '' }",
        "`servers`: unknown key `users` in a server; did you mean `user`?",
    );
    servers(
        "{ address = '203.0.113.5:1080', mode = 'socks5', early = true }",
        "`servers`: `early` is a converter's; remove it",
    );
    servers(
        "{ address = '203.0.113.5:7124', mode = 'convert', early = 1 }",
        "`servers`: `early` is neither true nor false",
    );
    servers(
        "'203.0.113.5:7124'",
        "`servers` can't be a string; write { address = \"203.0.113.5:7124\", mode = \"convert\" }",
    );
    let one = |last: usize| format!("{{ address = '203.0.113.5:{last}', mode = 'convert' }}");
    let many: Vec<_> = (1..=17).map(one).collect();
    let text = format!("{BOX}servers = [\n{}]\n", many.join(",\n"));
    said(
        &text,
        &["f:25:1: error: there can be 16 servers; remove this one"],
    );
    let text = format!("{BOX}servers = [{}, {}]\n", one(1), one(1));
    said(
        &text,
        &["f:8:61: error: 203.0.113.5:1 is listed twice; remove one"],
    );
}

#[test]
fn exceptions_that_are_none() {
    let except = |set: &str, error: &str| {
        let text = format!("{BOX}except = [{set}]\n");
        said(&text, &[&format!("f:8:11: error: {error}")]);
    };
    let example = "\"192.0.2.0/24\", or { prefix = \"192.0.2.0/24\", ports = [22] }";
    except(
        "{ ports = [22] }",
        &format!("`except`: an exception has a `prefix`; write {example}"),
    );
    except(
        "{ prefix = '10.9.0.0/16', ports = 22 }",
        "`except`: `ports` is no list; write one like [22, \"8000-8999\"]",
    );
    except(
        "{ prefix = '10.9.0.0/16', ports = [] }",
        "`except`: `ports` is empty; name one, or leave it out for all",
    );
    except(
        "{ prefix = '10.9.0.0/16', ports = [true] }",
        "`except`: a port is 80 or \"8000-8999\"",
    );
    except(
        "{ prefix = '10.9.0.0/16', port = [22] }",
        "`except`: unknown key `port` in an exception; did you mean `ports`?",
    );
    except(
        "7",
        &format!("`except` can't be an integer; write {example}"),
    );
}
