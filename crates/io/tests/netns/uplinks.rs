//! What leaves from an address of an uplink leaves by that uplink: routes and rules as they are installed, kept, changed and
//! taken back, and what packets do.

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use flexcp_io::{
    Copies, FoundWays, KernelError, KernelTables, Plan, Tun, UplinkWay, Watch, local_addresses,
    monotonic_micros, uplink_ways,
};

use crate::host::{
    DEVICE, Host, Neighbours, assert_unchanged, assert_unchanged_but_device, ip, journal, plan,
    set_sysctl, snapshot,
};
use crate::tables::Other;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("uplinks_have_rules_and_tables", rules_and_tables),
    ("uplinks_without_a_gateway", without_a_gateway),
    ("uplinks_are_put_back", put_back),
    ("uplinks_that_change", that_change),
    ("uplinks_tables_of_others", tables_of_others),
    ("uplinks_of_a_crashed_run", crashed_run),
    ("uplinks_packets_of_the_host", packets_of_the_host),
    ("uplinks_under_strict_rp_filter", strict_rp_filter),
];

/// Two uplinks, `cli` and `srv`, with default routes of both families.
fn defaults() {
    ip("-4 route add default via 10.1.0.2 dev cli");
    ip("-4 route add default via 10.9.0.2 dev srv metric 200");
    ip("-6 route add default via fd01::2 dev cli metric 100");
    ip("-6 route add default via fd09::2 dev srv metric 200");
}

fn found() -> FoundWays {
    let uplinks = [("cli", 7301), ("srv", 7302)].map(|(name, table)| (name.to_owned(), table));
    let routed = |addr: &IpAddr| match addr {
        IpAddr::V4(addr) => !addr.is_loopback(),
        IpAddr::V6(addr) => !addr.is_unicast_link_local() && !addr.is_loopback(),
    };
    let mut addresses = local_addresses();
    addresses.retain(|(_, addr)| routed(addr));
    uplink_ways(&uplinks, &addresses).unwrap()
}

fn with_uplinks(journal: PathBuf) -> Plan {
    Plan {
        uplinks: found().ways,
        ..plan(journal)
    }
}

/// The rules by source address, and what is in the tables.
fn listed(family: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rules = ip(&format!("{family} rule"));
    let mut lines: Vec<_> = rules.lines().map(words).collect();
    lines.retain(|line| line.starts_with("3:"));
    for table in [7301, 7302] {
        let routes = ip(&format!("{family} route show table {table}"));
        let of_table = routes
            .lines()
            .map(|line| format!("{table}: {}", words(line)));
        lines.extend(of_table);
    }
    lines
}

const V4: [&str; 6] = [
    "3: from 10.1.0.1 lookup 7301 proto 117",
    "3: from 10.9.0.1 lookup 7302 proto 117",
    "7301: default via 10.1.0.2 dev cli proto 117",
    "7301: 10.1.0.0/24 dev cli proto 117 scope link",
    "7302: default via 10.9.0.2 dev srv proto 117 metric 200",
    "7302: 10.9.0.0/24 dev srv proto 117 scope link",
];

const V6: [&str; 6] = [
    "3: from fd01::1 lookup 7301 proto 117",
    "3: from fd09::1 lookup 7302 proto 117",
    "7301: fd01::/64 dev cli proto 117 metric 256 pref medium",
    "7301: default via fd01::2 dev cli proto 117 metric 100 pref medium",
    "7302: fd09::/64 dev srv proto 117 metric 256 pref medium",
    "7302: default via fd09::2 dev srv proto 117 metric 200 pref medium",
];

fn rules_and_tables() {
    let _neighbours = Neighbours::new();
    defaults();
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let with_device = snapshot();
    let tables = KernelTables::install(&with_uplinks(journal()), &mut |_| {}).unwrap();
    assert_eq!(
        (listed("-4"), listed("-6")),
        (V4.map(String::from).into(), V6.map(String::from).into())
    );
    // The host's own, and FlexCP's, which come from its device.
    for (from, device) in [("10.1.0.1", "cli"), ("10.9.0.1", "srv")] {
        let own = ip(&format!("route get 192.0.2.1 from {from}"));
        assert!(own.contains(&format!("dev {device}")), "{own}");
        let sent = ip(&format!("route get 192.0.2.1 from {from} iif {DEVICE}"));
        assert!(sent.contains(&format!("dev {device}")), "{sent}");
    }
    tables.remove(&mut |_| {}).unwrap();
    assert_unchanged_but_device(&with_device);
    drop(tun);
    assert_unchanged(&before);
}

/// As PPP has it: an address with that of the other end, and a default route that names the interface alone.
fn without_a_gateway() {
    let _neighbours = Neighbours::new();
    ip("tuntap add ppp0 mode tun");
    ip("address add 10.64.0.5 peer 10.64.0.1 dev ppp0");
    ip("link set ppp0 up");
    ip("-4 route add default dev ppp0");
    let _tun = Tun::open(DEVICE).unwrap();
    let uplinks = [("ppp0".to_owned(), 7301)];
    let ways = uplink_ways(&uplinks, &local_addresses()).unwrap().ways;
    let plan = Plan {
        uplinks: ways,
        ..plan(journal())
    };
    let tables = KernelTables::install(&plan, &mut |_| {}).unwrap();
    let routes = ip("-4 route show table 7301");
    assert!(
        routes.starts_with("default dev ppp0 proto 117 scope link"),
        "{routes}"
    );
    // What is not up has no carrier, and its routes lead nowhere.
    let peer = "10.64.0.1 dev ppp0 proto 117 scope link";
    assert!(routes.contains(peer), "{routes}");
    assert!(ip("-4 rule").contains("from 10.64.0.5 lookup 7301 proto 117"));
    tables.remove(&mut |_| {}).unwrap();
    assert_eq!(ip("-4 route show table 7301"), "");
}

fn put_back() {
    let _neighbours = Neighbours::new();
    defaults();
    let _tun = Tun::open(DEVICE).unwrap();
    let mut watch = Watch::open().unwrap();
    let mut tables = KernelTables::install(&with_uplinks(journal()), &mut |_| {}).unwrap();
    let before = snapshot();
    let mut time = monotonic_micros();
    let mut mends = |disturb: &[&str]| {
        disturb.iter().for_each(|line| drop(ip(line)));
        assert_ne!(snapshot(), before);
        time += 60_000_000;
        let look = watch.look(&mut tables, time).unwrap();
        assert!(look.problems.is_empty(), "{look:?}");
        assert_unchanged(&before);
        let again = watch.look(&mut tables, time + 30_000_000).unwrap();
        assert!(again.found.is_empty(), "{again:?}");
        (look.found.rules, look.found.routes)
    };
    assert_eq!(mends(&["-4 rule del pref 3", "-6 rule del pref 3"]), (6, 0));
    assert_eq!(
        mends(&[
            "-4 route flush table 7302",
            "-6 route del default table 7301"
        ]),
        (0, 3)
    );
    // Another's in its place, and one more of ours.
    let wrong = [
        "-4 route replace default via 10.1.0.9 dev cli table 7301 proto 117",
        "-4 route add 203.0.113.0/24 via 10.1.0.2 table 7309 proto 117",
    ];
    assert_eq!(mends(&wrong), (0, 2));
    assert_eq!(
        mends(&["rule flush protocol 117", "-6 rule flush protocol 117"]).1,
        0
    );
    tables.remove(&mut |_| {}).unwrap();
}

/// Addresses and default routes come and go, and at last the uplinks themselves.
fn that_change() {
    let _neighbours = Neighbours::new();
    defaults();
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let mut plan = with_uplinks(journal());
    let mut tables = KernelTables::install(&plan, &mut |_| {}).unwrap();
    let mut follow = |uplinks: Vec<UplinkWay>| {
        plan.uplinks = uplinks;
        tables.change(&plan, &mut |_| {}).unwrap();
        assert_eq!(tables.uplinks(), plan.uplinks);
        [listed("-4"), listed("-6")].concat().join("\n")
    };
    ip("-4 address del 10.9.0.1/24 dev srv");
    ip("-4 address add 10.9.0.77/24 dev srv");
    let now = follow(found().ways);
    // The default route has gone with the last address.
    assert!(
        !now.contains("10.9.0.1") && !now.contains("10.9.0.77"),
        "{now}"
    );
    assert_eq!(
        found().lacking,
        [("srv".to_owned(), IpAddr::from([10, 9, 0, 77]))]
    );
    ip("-4 route add default via 10.9.0.3 dev srv metric 300");
    let now = follow(found().ways);
    assert!(
        now.contains("3: from 10.9.0.77 lookup 7302 proto 117"),
        "{now}"
    );
    assert!(
        now.contains("7302: default via 10.9.0.3 dev srv proto 117 metric 300"),
        "{now}"
    );
    ip("-4 route replace default via 10.9.0.4 dev srv metric 300");
    let now = follow(found().ways);
    assert!(
        now.contains("7302: default via 10.9.0.4 ") && !now.contains("10.9.0.3"),
        "{now}"
    );
    ip("-6 route replace default via fd09::3 dev srv metric 200");
    let now = follow(found().ways);
    assert!(
        now.contains("7302: default via fd09::3 ") && !now.contains("fd09::2"),
        "{now}"
    );
    ip("-6 route replace default via fd09::2 dev srv metric 200");
    // Somebody else's rule takes an address over.
    ip("-4 rule add from 10.1.0.0/24 lookup 99 pref 500");
    let now = follow(found().ways);
    assert!(
        !now.contains("from 10.1.0.1") && now.contains("from fd01::1"),
        "{now}"
    );
    ip("-4 rule del pref 500");
    assert_eq!(follow(Vec::new()), "");
    assert_eq!(
        ip("-4 route show table all proto 117").trim(),
        "default dev flexcp0 table 7300 scope link"
    );
    tables.remove(&mut |_| {}).unwrap();
    drop(tun);
    ip("-4 address del 10.9.0.77/24 dev srv");
    ip("-4 address add 10.9.0.1/24 dev srv");
    ip("-4 route replace default via 10.9.0.2 dev srv metric 200");
    assert_unchanged(&before);
}

fn tables_of_others() {
    let _neighbours = Neighbours::new();
    defaults();
    let _tun = Tun::open(DEVICE).unwrap();
    ip("-4 route add 203.0.113.0/24 dev cli table 7302");
    let before = snapshot();
    let error = KernelTables::install(&with_uplinks(journal()), &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, KernelError::TableInUse { table: 7302, .. }),
        "{error}"
    );
    assert_unchanged(&before);
    let bad = UplinkWay {
        interface: "cli".into(),
        table: 254,
        addresses: vec![],
        routes: Copies::default(),
    };
    let plan = Plan {
        uplinks: vec![bad],
        ..plan(journal())
    };
    let error = KernelTables::install(&plan, &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, KernelError::ReservedTable { table: 254 }),
        "{error}"
    );
}

/// What a run that is killed leaves: rules, and routes that outlive the device.
fn crashed_run() {
    let _neighbours = Neighbours::new();
    defaults();
    let before = snapshot();
    let leave = |journal: &PathBuf| {
        Other::start(journal).kill();
        // That one has no uplinks.
        for line in [
            "-4 rule add from 10.9.0.1 lookup 7302 pref 3 proto 117",
            "-4 route add default via 10.9.0.2 table 7302 proto 117",
            "-6 rule add from fd09::1 lookup 7302 pref 3 proto 117",
            "-6 route add default via fd09::2 table 7302 proto 117",
        ] {
            ip(line);
        }
    };
    let journal = journal();
    leave(&journal);
    KernelTables::clean_up(&journal, &mut |_| {}).unwrap();
    assert_unchanged(&before);
    leave(&journal);
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&with_uplinks(journal), &mut |_| {}).unwrap();
    assert_eq!(listed("-4"), V4);
    tables.remove(&mut |_| {}).unwrap();
    drop(tun);
    assert_unchanged(&before);
}

/// Sends from `from` to `to`, port 7000, in the calling thread's namespace.
fn send(from: &str, to: &str) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    let _ = socket.send_to(b"hello", (to, 7000));
}

/// Whether something comes to port 7000 of `addr` there.
fn hears(host: &Host, addr: &'static str, meanwhile: impl FnOnce()) -> bool {
    host.run(move || {
        ip(&format!("address add {addr}/32 dev lo"));
        let socket = UdpSocket::bind((addr, 7000)).unwrap();
        let patience = Duration::from_millis(300);
        socket.set_read_timeout(Some(patience)).unwrap();
        HEARD.with(|heard| heard.replace(Some(socket)));
    });
    meanwhile();
    host.run(move || {
        let socket = HEARD.with(std::cell::RefCell::take).unwrap();
        ip(&format!("address del {addr}/32 dev lo"));
        socket.recv(&mut [0; 16]).is_ok()
    })
}

thread_local! {
    static HEARD: std::cell::RefCell<Option<UdpSocket>> = const { std::cell::RefCell::new(None) };
}

/// Connections of the host itself that are bound to an uplink's address leave by it, and reach the LAN nevertheless.
fn packets_of_the_host() {
    let neighbours = Neighbours::new();
    defaults();
    let lan = Host::new();
    ip("tuntap add lan0 mode tap");
    ip("address add 192.168.1.1/24 dev lan0");
    ip("link set lan0 up");
    let _tun = Tun::open(DEVICE).unwrap();
    let by_second = || {
        hears(&neighbours.server, "192.0.2.1", || {
            send("10.9.0.1", "192.0.2.1")
        })
    };
    assert!(!by_second(), "the first default route leads elsewhere");
    let tables = KernelTables::install(&with_uplinks(journal()), &mut |_| {}).unwrap();
    assert!(by_second());
    assert!(hears(&neighbours.client, "192.0.2.1", || send(
        "10.1.0.1",
        "192.0.2.1"
    )));
    // Without an address of their own they go by the first default route, as before.
    assert!(hears(&neighbours.client, "192.0.2.1", || send(
        "0.0.0.0",
        "192.0.2.1"
    )));
    // A client in the LAN that comes to the second uplink's address has its answers.
    let back = ip("route get 192.168.1.7 from 10.9.0.1");
    assert!(back.contains("dev lan0"), "{back}");
    tables.remove(&mut |_| {}).unwrap();
    drop(lan);
}

/// What comes in on the second uplink for its address passes, although the host's default route is the first.
fn strict_rp_filter() {
    let neighbours = Neighbours::new();
    defaults();
    let _tun = Tun::open(DEVICE).unwrap();
    for interface in ["cli", "srv"] {
        set_sysctl(&format!("ipv4/conf/{interface}/rp_filter"), "1");
    }
    let comes = || {
        let socket = UdpSocket::bind(("10.9.0.1", 7000)).unwrap();
        let patience = Duration::from_millis(300);
        socket.set_read_timeout(Some(patience)).unwrap();
        neighbours.server.run(|| {
            ip("address add 192.0.2.1/32 dev lo");
            send("192.0.2.1", "10.9.0.1");
            ip("address del 192.0.2.1/32 dev lo");
        });
        socket.recv(&mut [0; 16]).is_ok()
    };
    // Nor would it take questions for the link's address from there.
    neighbours.server.run(|| send("10.9.0.2", "10.9.0.1"));
    assert!(!comes(), "the filter is strict");
    let tables = KernelTables::install(&with_uplinks(journal()), &mut |_| {}).unwrap();
    assert!(comes());
    tables.remove(&mut |_| {}).unwrap();
    assert!(!comes());
}
