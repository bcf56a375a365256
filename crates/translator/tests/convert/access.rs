//! Who is let in, and to whom: targets, limits of clients, cookies, and what goes to an address that has shown nothing.

use std::net::{IpAddr, SocketAddr};

use flexcp_preamble::Protocol;
use flexcp_testkit::Packet;
use flexcp_translator::{Allowed, Config, Mode, PreambleRefused, Prefix, ServerName};
use flexcp_wire::{CapableKeys, ConvertError, ConvertMessage, ConvertTlv, ConvertWriter};

use crate::guest::{ALL, GREETING, Guest, REQUEST};
use crate::world::*;

/// Connect for a server, with a cookie if there is one.
fn connect(to: SocketAddr, cookie: Option<&[u8]>) -> Vec<u8> {
    let IpAddr::V6(addr) = to.ip() else {
        let IpAddr::V4(v4) = to.ip() else {
            unreachable!()
        };
        let mapped = v4.to_ipv6_mapped().into();
        return connect(SocketAddr::new(mapped, to.port()), cookie);
    };
    let tlv = [&[10, 5][..], &to.port().to_be_bytes(), &addr.octets()].concat();
    let mut out = [0; 64];
    let mut writer = ConvertWriter::new(&mut out);
    if let Some(cookie) = cookie {
        assert!(writer.push(&ConvertTlv::Cookie(cookie)));
    }
    let len = writer.finish();
    let mut message = [&out[..len], &tlv].concat();
    message[1] = u8::try_from(message.len() / 4).unwrap();
    message
}

fn prefix(text: &str) -> Prefix {
    let (addr, len) = text.split_once('/').expect("a prefix");
    Prefix {
        addr: addr.parse().expect("an address"),
        len: len.parse().expect("a length"),
    }
}

/// A service that lets its clients name these.
fn allowing(config: &mut Config, servers: &[&str]) {
    let Mode::Explicit {
        allowed, source, ..
    } = &mut config.services[0].mode
    else {
        panic!("another mode");
    };
    source.push(end("[2001:db8:7::8]:0").ip());
    *allowed = servers
        .iter()
        .map(|servers| Allowed {
            servers: prefix(servers),
            ports: vec![80..=443],
        })
        .collect();
}

/// The SYN of a client without MPTCP, with this in it.
fn syn(from: SocketAddr, said: &[u8]) -> Vec<u8> {
    let packet = Packet::new(from, proxy()).flags(SYN).numbers(CLIENT_ISN, 0);
    packet.with_options([mss()]).with_payload(said).bytes()
}

/// Why a client from there is refused; `None`: the server is called.
fn judged(servers: &[&str], from: &str, to: &str) -> Option<PreambleRefused> {
    let mut world = World::with(|config| allowing(config, servers));
    let host = ["198.51.100.7", "2001:db8:7::7"].map(|ip| ip.parse().unwrap());
    world.translator.set_host_addresses(host.to_vec());
    assert_eq!(world.put_raw(&syn(end(from), &connect(end(to), None))), 1);
    let counters = world.translator.counters();
    let causes = [PreambleRefused::NotAllowed, PreambleRefused::Malformed];
    let why = causes
        .into_iter()
        .find(|why| counters.causes.get(*why) == 1);
    assert_eq!(counters.preambles, u64::from(why.is_none()), "{to}");
    assert_eq!(counters.preambles_refused, u64::from(why.is_some()), "{to}");
    why
}

#[test]
fn targets_are_refused_that_nobody_has_named() {
    const CLIENT: &str = "203.0.113.9:40000";
    let all: &[&str] = &["0.0.0.0/0", "::/0"];
    let nat64: &[&str] = &["64:ff9b::/96"];
    let no = Some(PreambleRefused::NotAllowed);
    // Convert itself knows no such server (RFC 8803 section 6.2.5).
    let nobody = Some(PreambleRefused::Malformed);
    let table = [
        (all, "192.0.2.1:80", None),
        (all, "[2001:db8::1]:443", None),
        (all, "192.0.2.1:22", no),
        (all, "127.0.0.1:80", nobody),
        (all, "[::1]:80", nobody),
        (all, "224.0.0.1:80", nobody),
        (all, "[ff02::1]:80", nobody),
        (all, "0.0.0.0:80", nobody),
        (all, "[::]:80", nobody),
        (all, "255.255.255.255:80", nobody),
        (all, "0.1.2.3:80", no),
        (all, "10.1.2.3:80", no),
        (all, "172.16.0.1:80", no),
        (all, "192.168.0.1:80", no),
        (all, "100.64.0.1:80", no),
        (all, "169.254.169.254:80", no),
        (all, "198.18.0.1:80", no),
        (all, "240.0.0.1:80", no),
        (all, "[fe80::1]:80", no),
        (all, "[fec0::1]:80", no),
        (all, "[fd00::1]:80", no),
        (all, "[64:ff9b::192.0.2.1]:80", no),
        (all, "[2002:a00:1::1]:80", no),
        (nat64, "[64:ff9b::192.0.2.1]:80", None),
        (nat64, "[64:ff9b::10.0.0.1]:80", no),
        (nat64, "[64:ff9b::127.0.0.1]:80", no),
        (nat64, "[64:ff9b::198.51.100.7]:80", no),
        (&["::/0"], "192.0.2.1:80", no),
        (&["::ffff:0:0/96"], "192.0.2.1:80", no),
        // FlexCP's host, its listener, and the client itself.
        (all, "198.51.100.7:80", no),
        (&["198.51.100.0/24"], "198.51.100.7:80", no),
        (&["198.51.100.7/32"], "198.51.100.7:80", None),
        (all, "[2001:db8:7::7]:80", no),
        (&["2001:db8:7::/48"], "[2001:db8:7::8]:80", no),
        (&["10.2.0.0/16"], "10.2.0.1:80", no),
        (&["10.2.0.1/32"], "10.2.0.1:80", None),
        (all, "203.0.113.9:80", no),
        (&["203.0.113.9/32"], "203.0.113.9:80", None),
    ];
    for (servers, to, why) in table {
        assert_eq!(judged(servers, CLIENT, to), why, "{servers:?} {to}");
    }
}

#[test]
fn names_are_judged_by_what_they_resolve_to() {
    let named = |addrs: &[&str]| {
        let mut guest = Guest::greeted(ALL);
        let mut request = vec![5, 1, 0, 3, 4];
        request.extend_from_slice(b"host\0\x50");
        guest.say(&request);
        let lookup = guest.world.translator.poll_lookup().expect("a name");
        let addrs: Vec<IpAddr> = addrs.iter().map(|ip| ip.parse().unwrap()).collect();
        let now = guest.world.now;
        guest.world.translator.resolved(now, lookup.id, &addrs);
        let out = guest.world.sent();
        guest.take(out);
        guest
    };
    for refused in [&["10.56.1.1"][..], &["127.0.0.1", "::ffff:10.56.0.1"]] {
        let guest = named(refused);
        assert!(guest.to_server.is_empty());
        assert_eq!(guest.heard[2..4], [5, 2], "{refused:?}");
    }
    let guest = named(&["10.56.1.1", "10.55.9.9"]);
    assert_eq!(guest.to_server.len(), 1);
}

fn limited(connections: usize, rate: usize) -> impl FnOnce(&mut Config) {
    move |config| {
        config.limits.client_connections = connections;
        config.limits.client_rate = rate;
    }
}

#[test]
fn client_beyond_its_limit_is_told_and_then_turned_away() {
    for (limits, other) in [((2, 1000), 0), ((1000, 2), 1)] {
        let mut world = World::with(limited(limits.0, limits.1));
        for port in 0..2 {
            let from = SocketAddr::new(client().ip(), 40000 + port);
            assert_eq!(world.put_raw(&syn(from, &CONNECT)), 1);
        }
        let counts = |world: &World| {
            let counters = world.translator.counters();
            let told = counters.causes.get(PreambleRefused::ClientLimit);
            (counters.preambles, counters.hosted, told)
        };
        assert_eq!(counts(&world), (2, 0, 0));
        for port in 0..100 {
            let from = SocketAddr::new(client().ip(), 41000 + port);
            world.put_raw(&syn(from, &CONNECT));
        }
        assert_eq!(counts(&world), (2, 16, 100), "{limits:?}");
        // Nobody else suffers.
        let from = SocketAddr::new([10, 1, 0, 3 + other].into(), 40000);
        world.put_raw(&syn(from, &CONNECT));
        assert_eq!(counts(&world).0, 3);
    }
}

#[test]
fn client_beyond_its_limit_hears_it_in_its_protocols_words() {
    let mut guest = Guest::new(Protocol::Convert, ALL, &[]);
    guest.world = World::with(limited(0, 1000));
    guest.open(&CONNECT);
    assert_eq!(guest.heard, [1, 2, 0x22, 0x63, 30, 1, 64, 0]);
    assert!(guest.ended && guest.to_server.is_empty());

    let mut guest = Guest::new(Protocol::Socks5, ALL, &[]);
    guest.world = World::with(|config| {
        limited(0, 1000)(config);
        let Mode::Explicit { protocol, .. } = &mut config.services[0].mode else {
            panic!("another mode");
        };
        *protocol = Protocol::Socks5;
    });
    guest.open(&[]);
    guest.say(&GREETING);
    guest.say(&REQUEST);
    assert_eq!(guest.heard[2..4], [5, 2]);
    assert!(guest.ended && guest.to_server.is_empty());
}

#[test]
fn connection_that_is_over_counts_no_more() {
    let mut world = World::with(limited(1, 1000));
    world.put_raw(&syn(client(), &CONNECT));
    assert_eq!(world.translator.counters().preambles, 1);
    // Nobody answers.
    for _ in 0..10 {
        world.pass(60_000);
        let _ = world.timeout();
    }
    assert_eq!(world.translator.gauges().connections, 0);
    world.put_raw(&syn(client(), &CONNECT));
    assert_eq!(world.translator.counters().preambles, 2);
}

fn with_cookies() -> Guest {
    let mut guest = Guest::new(Protocol::Convert, ALL, &[]);
    guest.world = World::with(|config| config.services[0].intake.cookies = true);
    guest
}

/// The cookie of "Missing Cookie".
fn handed_out(heard: &[u8]) -> Vec<u8> {
    let (message, _) = ConvertMessage::parse(heard).expect("an answer");
    let mut tlvs = message.tlvs();
    match tlvs.next() {
        Some(ConvertTlv::Error(ConvertError::MissingCookie(cookie))) => cookie.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn cookie_is_asked_for_handed_out_and_taken() {
    let mut guest = with_cookies();
    guest.open(&CONNECT);
    assert!(guest.to_server.is_empty() && guest.ended);
    let cookie = handed_out(&guest.heard);
    let mut guest = with_cookies();
    guest.send_syn(&connect(server(), Some(&cookie)));
    assert_eq!(guest.to_server.len(), 1, "the server is called");

    // A wrong one, behind the handshake.
    let mut guest = with_cookies();
    guest.open(&[]);
    guest.say(&connect(server(), Some(&[0; 16])));
    assert_eq!(guest.heard, [1, 2, 0x22, 0x63, 30, 1, 32, 0]);
    assert!(guest.to_server.is_empty());
    let causes = guest.world.translator.counters().causes;
    assert_eq!(causes.get(PreambleRefused::Credentials), 1);
}

#[test]
fn whoever_shows_nothing_gets_one_packet_that_is_no_longer_than_its_own() {
    let refused = connect(end("10.56.0.1:80"), None);
    let malformed = [&[1, 6, 0x22, 0x63, 10, 9][..], &[0; 18]].concat();
    let info = [1, 2, 0x22, 0x63, 1, 1, 0, 0].to_vec();
    let cases = [refused, malformed, info, CONNECT.to_vec()];
    for (at, said) in cases.iter().enumerate() {
        let mut world = World::with(|config| config.services[0].intake.cookies = at == 3);
        let options = [mss(), capable(CapableKeys::Syn)];
        let packet = Packet::new(client(), proxy()).flags(SYN);
        let packet = packet.numbers(CLIENT_ISN, 0).with_options(options);
        let packet = packet.with_payload(&said[..]);
        let (_, mut out) = world.put(&packet);
        for _ in 0..200 {
            world.pass(500);
            out.extend(world.timeout());
        }
        let lens: Vec<_> = out.iter().map(|out| out.packet.bytes().len()).collect();
        assert!(out.iter().all(|out| !out.to_server), "{said:?}");
        // The last is a RST to a client that has not come back.
        let syn_acks = out.iter().filter(|out| out.packet.tcp.flags == SYN | ACK);
        assert_eq!(syn_acks.count(), 1, "{out:?}");
        let most = packet.bytes().len();
        assert!(lens.iter().sum::<usize>() <= most, "{lens:?} of {most}");
    }
}

/// Whom the client is refused, and why, as the log has it.
fn denials(world: &mut World) -> Vec<(Option<String>, PreambleRefused)> {
    let translator = &mut world.translator;
    let all = std::iter::from_fn(|| translator.poll_denial());
    let told = all.map(|denial| {
        assert_eq!((denial.client, denial.by), (client(), proxy()));
        let wish = denial.wish.map(|wish| {
            let to = match wish.to {
                ServerName::Ip(addr) => addr.to_string(),
                ServerName::Name(name) => name.escape_ascii().to_string(),
            };
            format!("{to} {}", wish.port)
        });
        (wish, denial.cause)
    });
    told.collect()
}

#[test]
fn each_refusal_is_told_with_what_was_wanted() {
    let wanted = |to: &str| Some(to.to_string());
    // In the SYN.
    let cases: [(&[u8], _); 3] = [
        (
            &connect(end("10.56.0.1:80"), None),
            (wanted("10.56.0.1 80"), PreambleRefused::NotAllowed),
        ),
        (
            &[1, 2, 0x22, 0x63, 1, 1, 0, 0],
            (None, PreambleRefused::Asked),
        ),
        (b"GET / HTTP/1.1\r\n", (None, PreambleRefused::Protocol)),
    ];
    for (said, told) in cases {
        let mut world = World::new();
        world.put_raw(&syn(client(), said));
        assert_eq!(denials(&mut world), [told]);
    }
    // A server that refuses, called at once.
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [mss()], &CONNECT);
    let _ = world.of_server(flexcp_wire::TcpFlags::RST | ACK, [0, 25], [], &[]);
    let told = (wanted("10.55.9.9 80"), PreambleRefused::ServerReset);
    assert_eq!(denials(&mut world), [told]);
    // After the handshake.
    let mut guest = Guest::greeted(ALL);
    guest.say(b"\x05\x01\x00\x03\x08a\nb.test\x00\x50");
    let told = (wanted("a\\nb.test 80"), PreambleRefused::NoName);
    assert_eq!(denials(&mut guest.world), [told]);
    let mut guest = Guest::greeted(ALL);
    guest.pass(10_100);
    assert_eq!(denials(&mut guest.world), [(None, PreambleRefused::Late)]);
}

#[test]
fn of_many_refusals_a_few_are_told_and_the_others_counted() {
    let mut world = World::new();
    for _ in 0..3 {
        for _ in 0..100 {
            world.put_raw(&syn(client(), b"GET / HTTP/1.1\r\n"));
        }
        assert_eq!(denials(&mut world).len(), 16);
        assert_eq!(world.translator.denials_lost(), 84);
        assert_eq!(world.translator.denials_lost(), 0);
    }
}
