//! Connections through a router with conntrack, NAT and zones, as the router is told of them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use flexcp_io::{ClientLeg, Conntrack, Family, KernelTables, Tun, Zones};
use flexcp_translator::Prefix;
use flexcp_wire::Ends;

use crate::host::{DEVICE, Host, Neighbours, journal, plan, set_sysctl};
use crate::netfilter::nft;
use crate::relay::Relay;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("conntrack_of_a_plain_connection", plain),
    ("conntrack_of_a_masqueraded_connection", masqueraded),
    ("conntrack_of_a_connection_to_another_server", dnat),
    ("conntrack_of_a_connection_translated_at_both_ends", both),
    ("conntrack_of_a_connection_with_a_helper", helper),
    ("conntrack_of_a_connection_in_a_zone", zone),
    (
        "conntrack_zones_have_nat_applied_on_the_path",
        nat_on_the_path,
    ),
    ("conntrack_of_marked_packets_in_no_zone", marked),
    ("conntrack_of_what_it_does_not_know", unknown),
    ("conntrack_answers_in_few_microseconds", time),
];

/// A router between its neighbours, and a connection through it.
struct Routed {
    _neighbours: Neighbours,
    conntrack: Conntrack,
    /// As the client sees it, then as the server does.
    client: Ends,
    server: Ends,
    _streams: [TcpStream; 2],
}

impl Routed {
    /// `called`: whom the client calls; `server`: who answers.
    fn new(called: &str, server: &str) -> Self {
        Self::with_mark(called, server, 0)
    }

    fn with_mark(called: &str, server: &str, mark: u32) -> Self {
        let neighbours = Neighbours::new();
        set_sysctl("ipv4/ip_forward", "1");
        set_sysctl("ipv6/conf/all/forwarding", "1");
        if mark != 0 {
            nft(&format!(
                "table netdev m {{ chain c {{ type filter hook ingress device cli priority 0; meta mark set {mark}; }}; }}"
            ));
        }
        let [called, server]: [SocketAddr; 2] = [called, server].map(|end| end.parse().unwrap());
        let listener = neighbours
            .server
            .run(move || TcpListener::bind(server).unwrap());
        let mut near = neighbours
            .client
            .run(move || TcpStream::connect(called).unwrap());
        let (mut far, peer) = listener.accept().unwrap();
        // There and back, so that conntrack has seen both directions.
        let mut byte = [0];
        near.write_all(b"x").unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(b"y").unwrap();
        near.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"y");
        Self {
            _neighbours: neighbours,
            conntrack: Conntrack::open().unwrap(),
            client: ends(near.local_addr().unwrap(), called),
            server: ends(peer, server),
            _streams: [near, far],
        }
    }

    /// Asks about packets of the client with these ends, and about those of the server that answer them.
    fn touches(&mut self, packets: Ends, zone: u16) -> bool {
        let answers = ends(packets.to, packets.from);
        let [there, back] =
            [packets, answers].map(|ends| self.conntrack.touches(ends, zone).unwrap());
        assert_eq!(there, back, "{packets:?}");
        there
    }

    fn translated(&mut self, packets: Ends, zone: u16) -> Option<bool> {
        self.conntrack.translated(packets, zone).unwrap()
    }
}

fn plain() {
    for server in ["10.9.0.2:80", "[fd09::2]:80"] {
        Host::new().run(move || {
            nft(TRACKING);
            let mut routed = Routed::new(server, server);
            assert_eq!(routed.client, routed.server);
            let client = routed.client;
            assert_eq!(routed.translated(client, 0), Some(false));
            assert_eq!(
                routed.translated(ends(client.to, client.from), 0),
                Some(false)
            );
            assert!(!routed.touches(client, 0));
        });
    }
}

fn masqueraded() {
    for (family, server) in [("ip", "10.9.0.2:80"), ("ip6", "[fd09::2]:80")] {
        Host::new().run(move || {
            nft(&format!(
                "table {family} nat {{ chain p {{ type nat hook postrouting priority 100; oifname srv masquerade; }}; }}"
            ));
            let mut routed = Routed::new(server, server);
            let (client, server) = (routed.client, routed.server);
            assert_ne!(client.from.ip(), server.from.ip());
            // FlexCP meets the client's address, in packets of either direction.
            assert!(routed.touches(client, 0));
            assert_eq!(routed.translated(client, 0), Some(true));
            assert_eq!(routed.translated(ends(client.to, client.from), 0), None);
            assert_eq!(routed.translated(ends(server.to, server.from), 0), Some(true));
        });
    }
}

fn dnat() {
    for (family, called, server) in [
        ("ip", "10.1.0.1:8080", "10.9.0.2:80"),
        ("ip6", "[fd01::1]:8080", "[fd09::2]:80"),
    ] {
        Host::new().run(move || {
            nft(&format!(
                "table {family} nat {{ chain p {{ type nat hook prerouting priority -100; \
                 iifname cli tcp dport 8080 dnat to {server}; }}; }}"
            ));
            let mut routed = Routed::new(called, server);
            let (client, server) = (routed.client, routed.server);
            assert_eq!(client.from, server.from);
            // FlexCP meets the address of the server that answers.
            assert!(routed.touches(server, 0));
            assert_eq!(routed.translated(server, 0), None);
            assert_eq!(
                routed.translated(ends(server.to, server.from), 0),
                Some(true)
            );
            assert_eq!(routed.translated(client, 0), Some(true));
        });
    }
}

/// Between the two translations packets have ends that are in no tuple of the connection.
fn both() {
    nft(
        "table ip nat { chain p { type nat hook prerouting priority -100; \
         iifname cli tcp dport 8080 dnat to 10.9.0.2:80; }; \
         chain q { type nat hook postrouting priority 100; oifname srv masquerade; }; }",
    );
    let mut routed = Routed::new("10.1.0.1:8080", "10.9.0.2:80");
    let between = ends(routed.client.from, routed.server.to);
    assert!(routed.touches(between, 0));
}

fn helper() {
    nft("table ip t { ct helper f { type \"ftp\" protocol tcp; }; \
         chain c { type filter hook prerouting priority 0; tcp dport 80 ct helper set \"f\"; }; }");
    let mut routed = Routed::new("10.9.0.2:80", "10.9.0.2:80");
    let client = routed.client;
    assert_eq!(routed.translated(client, 0), Some(false));
    assert!(routed.touches(client, 0));
}

/// The server's link stands for the TUN device.
fn zone() {
    let _zones = Zones::install(7, "srv", &[leg(0)]).unwrap();
    let mut routed = Routed::new("10.9.0.2:80", "10.9.0.2:80");
    let client = routed.client;
    assert_eq!(routed.translated(client, 7), Some(false));
    assert_eq!(
        routed.translated(ends(client.to, client.from), 7),
        Some(false)
    );
    assert_eq!(routed.translated(client, 0), None);
    assert_eq!(routed.translated(client, 8), None);
    assert!(!routed.touches(client, 7));
}

/// Packets of one connection pass this host twice, by the TUN device; NAT is for the second pass.
fn nat_on_the_path() {
    for (with_zones, seen_by_server) in [(false, "10.1.0.2"), (true, "10.9.0.1")] {
        Host::new().run(move || {
            nft(MASQUERADE);
            let _zones = with_zones.then(|| Zones::install(7, DEVICE, &[leg(0)]).unwrap());
            let tun = Tun::open(DEVICE).unwrap();
            let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
            let relay = Relay::start(tun, None);
            let mut routed = Routed::new("10.9.0.2:80", "10.9.0.2:80");
            assert!(relay.seen.packets.load(Relaxed) > 0);
            assert_eq!(routed.server.from.ip().to_string(), seen_by_server);
            if with_zones {
                let client = routed.client;
                assert!(!routed.touches(client, 7), "the clients' leg");
                assert!(routed.touches(client, 0), "the server's leg");
            }
            drop(relay.stop());
        });
    }
}

fn marked() {
    let _zones = Zones::install(7, "none0", &[leg(4)]).unwrap();
    let mut routed = Routed::with_mark("10.9.0.2:80", "10.9.0.2:80", 5);
    let client = routed.client;
    assert_eq!(routed.translated(client, 7), None);
    assert_eq!(routed.translated(client, 0), Some(false));
}

fn unknown() {
    let mut conntrack = Conntrack::open().unwrap();
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:1", "192.0.2.2:2"].map(|end| end.parse().unwrap());
    assert_eq!(conntrack.translated(ends(a, b), 0).unwrap(), None);
    assert!(conntrack.touches(ends(a, b), 0).unwrap());
    assert!(conntrack.touches(ends(a, b), 9).unwrap());
    let v6 = "[fd09::2]:80".parse().unwrap();
    let error = conntrack.touches(ends(a, v6), 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

fn time() {
    const ROUNDS: u32 = 2000;
    nft(TRACKING);
    let mut routed = Routed::new("10.9.0.2:80", "10.9.0.2:80");
    let known = routed.client;
    let other = SocketAddr::new(known.from.ip(), known.from.port() ^ 1);
    for (what, ends, touches) in [
        ("known", known, false),
        ("unknown", ends(other, known.to), true),
    ] {
        // The best of several rounds: others use the machine.
        let best = (0..20)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..ROUNDS / 20 {
                    assert_eq!(routed.conntrack.touches(ends, 0).unwrap(), touches);
                }
                began.elapsed() / (ROUNDS / 20)
            })
            .min()
            .unwrap();
        println!("a question about a connection that is {what} takes {best:?}");
        assert!(best.as_micros() < 100, "{best:?}");
    }
}

const MASQUERADE: &str =
    "table ip nat { chain p { type nat hook postrouting priority 100; oifname srv masquerade; }; }";
/// Has connections tracked and nothing else.
const TRACKING: &str =
    "table inet t { chain c { type filter hook forward priority 0; ct state established; }; }";

fn leg(except_mark: u32) -> ClientLeg {
    ClientLeg {
        interfaces: vec!["cli".into()],
        destination: Some(Prefix {
            addr: "10.9.0.0".parse().unwrap(),
            len: 16,
        }),
        ports: Some(80..=80),
        except_mark,
        family: Family::V4,
    }
}

fn ends(from: SocketAddr, to: SocketAddr) -> Ends {
    Ends { from, to }
}
