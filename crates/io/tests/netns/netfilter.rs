//! The table with the zones of the clients' legs, as `nft` lists it.

use std::process::Command;

use flexcp_io::{ClientLeg, Family, NetfilterError, Zones};
use flexcp_translator::Prefix;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::host::DEVICE;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("netfilter_zones_as_nft_lists_them", zones_as_listed),
    ("netfilter_zones_go_when_dropped", zones_dropped),
    ("netfilter_zones_replaced_at_once", zones_replaced),
    (
        "netfilter_zones_beside_a_foreign_table",
        zones_beside_foreign_table,
    ),
    ("netfilter_zones_of_two", zones_of_two),
    ("netfilter_zones_that_cannot_be", zones_that_cannot_be),
    ("netfilter_zones_of_many_legs", zones_of_many_legs),
];

fn zones_as_listed() {
    let _zones = Zones::install(7, DEVICE, &legs()).unwrap();
    assert_eq!(listed(), LISTED);
}

const LISTED: &str = r#"	flags owner

	chain zones {
		type filter hook prerouting priority raw; policy accept;
		iifname "flexcp0" ip saddr 10.9.0.0/17 tcp sport 80-90 ct zone set 7
		iifname "cli" meta mark & 0x00010000 == 0x00000000 ip daddr 10.9.0.0/17 tcp dport 80-90 ct zone set 7
		iifname "wlan1" meta mark & 0x00010000 == 0x00000000 ip daddr 10.9.0.0/17 tcp dport 80-90 ct zone set 7
		iifname "flexcp0" ip6 saddr fd09::/32 tcp sport 443 ct zone set 7
		iifname != "flexcp0" iifname != "lo" ip6 daddr fd09::/32 tcp dport 443 ct zone set 7
		iifname "flexcp0" ip saddr 192.0.2.77 meta l4proto tcp ct zone set 7
		iifname "cli" meta mark & 0x00000003 == 0x00000000 ip daddr 192.0.2.77 meta l4proto tcp ct zone set 7
		iifname "flexcp0" meta nfproto ipv6 tcp sport 8080 ct zone set 7
		iifname != "flexcp0" iifname != "lo" meta mark & 0x00000003 == 0x00000000 meta nfproto ipv6 tcp dport 8080 ct zone set 7
	}

	chain marks {
		type filter hook prerouting priority mangle; policy accept;
		meta mark & 0x00010003 == 0x00010003 ct mark set ct mark | 0x00010003
		iifname != "flexcp0" ct direction reply ct mark & 0x00010003 == 0x00010003 meta mark set meta mark | 0x00010003
	}
}
"#;

fn zones_dropped() {
    let zones = Zones::install(7, DEVICE, &legs()).unwrap();
    assert_eq!(nft("list tables"), "table inet flexcp\n");
    drop(zones);
    assert_eq!(nft("list tables"), "");
}

fn zones_replaced() {
    let mut zones = Zones::install(7, DEVICE, &legs()).unwrap();
    let before = generation();
    zones.replace(8, DEVICE, &legs()[2..3]).unwrap();
    // One generation of the ruleset follows the other: there was nothing between the old table and the new.
    assert_eq!(generation(), before + 1);
    let rules: Vec<_> = LISTED.lines().collect();
    let expected = [&rules[..4], &rules[9..11], &rules[13..]].concat();
    let expected = expected.join("\n").replace("zone set 7", "zone set 8");
    let expected = expected.replace("0x00010003", "0x00000003");
    assert_eq!(listed().trim_end(), expected);
    // What cannot be leaves what is there.
    zones.replace(9, DEVICE, &[of_wrong_family()]).unwrap_err();
    assert_eq!(listed().trim_end(), expected);
}

fn zones_beside_foreign_table() {
    nft("add table inet flexcp");
    let error = Zones::install(7, DEVICE, &legs()).unwrap_err();
    assert!(matches!(error, NetfilterError::Zones { .. }));
    let words = error.to_string();
    assert!(
        words.contains("File exists") && words.contains("nft delete table inet flexcp"),
        "{words}"
    );
    assert_eq!(nft("list ruleset"), "table inet flexcp {\n}\n");
}

fn zones_of_two() {
    let first = Zones::install(7, DEVICE, &legs()).unwrap();
    let words = Zones::install(8, DEVICE, &legs()).unwrap_err().to_string();
    assert!(
        words.contains("Operation not permitted") && words.contains("no other process holds"),
        "{words}"
    );
    assert_eq!(listed(), LISTED);
    drop(first);
    Zones::install(8, DEVICE, &legs()).unwrap();
}

fn zones_that_cannot_be() {
    let error = Zones::install(7, DEVICE, &[of_wrong_family()]).unwrap_err();
    assert_eq!(error.to_string(), "10.9.0.0/17 is no ipv6 prefix");
    let mut leg = legs().remove(0);
    leg.interfaces.push("a name that is too long".into());
    let error = Zones::install(7, DEVICE, &[leg]).unwrap_err();
    assert!(
        matches!(error, NetfilterError::InterfaceName { .. }),
        "{error}"
    );
    let error = Zones::install(7, "", &[]).unwrap_err();
    assert!(
        matches!(error, NetfilterError::InterfaceName { .. }),
        "{error}"
    );
    assert_eq!(nft("list ruleset"), "");
}

fn zones_of_many_legs() {
    const LEGS: u16 = 3000;
    let legs = |first: u16| -> Vec<ClientLeg> {
        let leg = |port| ClientLeg {
            ports: Some(port..=port),
            ..legs().remove(2)
        };
        (first..first + LEGS).map(leg).collect()
    };
    let mut zones = Zones::install(7, DEVICE, &legs(1)).unwrap();
    zones.replace(8, DEVICE, &legs(9000)).unwrap();
    let rules = listed().matches("ct zone set 8").count();
    assert_eq!(rules, 2 * usize::from(LEGS));
}

fn of_wrong_family() -> ClientLeg {
    ClientLeg {
        family: Family::V6,
        ..legs().remove(0)
    }
}

fn legs() -> Vec<ClientLeg> {
    vec![
        ClientLeg {
            interfaces: vec!["cli".into(), "wlan1".into()],
            destination: prefix("10.9.0.0", 17),
            ports: Some(80..=90),
            except_mark: 0x1_0000,
            family: Family::V4,
        },
        ClientLeg {
            interfaces: Vec::new(),
            destination: prefix("fd09::", 32),
            ports: Some(443..=443),
            except_mark: 0,
            family: Family::V6,
        },
        ClientLeg {
            interfaces: vec!["cli".into()],
            destination: prefix("192.0.2.77", 32),
            ports: None,
            except_mark: 3,
            family: Family::V4,
        },
        ClientLeg {
            interfaces: Vec::new(),
            destination: None,
            ports: Some(8080..=8080),
            except_mark: 3,
            family: Family::V6,
        },
    ]
}

fn prefix(addr: &str, len: u8) -> Option<Prefix> {
    Some(Prefix {
        addr: addr.parse().unwrap(),
        len,
    })
}

/// The table, without the line that names its owner.
fn listed() -> String {
    let listed = nft("list table inet flexcp");
    let (first, rest) = listed.split_once('\n').unwrap();
    assert!(first.starts_with("table inet flexcp {"), "{first}");
    rest.to_owned()
}

/// How often the namespace's ruleset has been changed.
fn generation() -> u32 {
    const GET_GENERATION: [u8; 20] = {
        let mut request = [0; 20];
        request[0] = 20;
        request[4] = libc::NFT_MSG_GETGEN.to_le_bytes()[0];
        request[5] = libc::NFNL_SUBSYS_NFTABLES.to_le_bytes()[0];
        request[6] = libc::NLM_F_REQUEST.to_le_bytes()[0];
        request
    };
    let socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.connect(&SocketAddr::new(0, 0)).unwrap();
    socket.send(&GET_GENERATION, 0).unwrap();
    let (answer, _) = socket.recv_from_full().unwrap();
    // The first attribute, behind both headers.
    u32::from_be_bytes(answer[24..28].try_into().unwrap())
}

/// Runs `nft` in the calling thread's namespace.
pub(crate) fn nft(arguments: &str) -> String {
    let output = Command::new("nft").arg(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
