//! A client that has not shown where it is gets no more bytes than came from its address, whatever goes there and why.

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, icmp_error, ip_header, quoted};
use flexcp_translator::{Config, DropReason, Mode, Order, Verdict};
use flexcp_wire::{CapableKeys, Ends, TcpFlags, TcpOption, Timestamps, protocol};

use crate::guest::{ALL, Guest, Uses};
use crate::world::*;

/// What a SYN/ACK with a key is longer than a SYN without data.
const KEY: usize = 8;

/// Counts what goes to the client's address, and what comes from there.
struct Meter {
    world: World,
    came: usize,
    went: usize,
    /// Packets that went there.
    packets: Vec<Packet>,
}

fn socks(config: &mut Config) {
    let Mode::Explicit { protocol, .. } = &mut config.services[0].mode else {
        panic!("another mode");
    };
    *protocol = Protocol::Socks5;
}

/// Options as a client of today's has them; `mptcp`: it asks for that.
fn options(mptcp: bool) -> Vec<TcpOption<'static>> {
    let mut options = vec![
        mss(),
        TcpOption::SackPermitted,
        TcpOption::Timestamps(Timestamps { val: 7, ecr: 0 }),
        TcpOption::WindowScale(7),
    ];
    options.extend(mptcp.then(|| capable(CapableKeys::Syn)));
    options
}

impl Meter {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        Self {
            world: World::with(change),
            came: 0,
            went: 0,
            packets: vec![],
        }
    }

    fn take(&mut self, out: Vec<Out>) {
        for Out { to_server, packet } in out {
            if !to_server {
                self.went += packet.bytes().len();
                self.packets.push(packet);
            }
        }
    }

    /// From the client's address; whoever sends it knows FlexCP's number or has guessed one.
    fn send(&mut self, flags: TcpFlags, ack: u32, options: Vec<TcpOption<'_>>, data: &[u8]) {
        let seq = at(CLIENT_ISN, i32::from(!flags.contains(SYN)));
        let packet = Packet::new(client(), proxy()).flags(flags);
        let packet = packet.numbers(seq, ack).with_options(options);
        let packet = packet.with_payload(data);
        self.came += packet.bytes().len();
        let (_, out) = self.world.put(&packet);
        self.take(out);
    }

    /// Connect in the SYN of a client, and the server's answer.
    fn answered(mptcp: bool) -> Self {
        let mut meter = Self::new(|_| {});
        meter.send(SYN, 0, options(mptcp), &CONNECT);
        let (_, out) = meter
            .world
            .of_server(SYN | ACK, [0, 25], options(false), &[]);
        meter.take(out);
        assert_eq!(meter.packets.len(), 1);
        meter
    }

    fn check(&self, more: usize, what: &str) {
        let (came, went) = (self.came, self.went);
        assert!(went <= came + more, "{what}: {went} bytes for {came}");
    }
}

#[test]
fn repeated_syns_are_answered_with_no_more_than_they_bring_but_for_a_key() {
    for mptcp in [true, false] {
        for is_socks in [true, false] {
            let mut meter = Meter::new(|config| {
                if is_socks {
                    socks(config);
                }
            });
            for round in 1..=20 {
                meter.send(SYN, 0, options(mptcp), &[]);
                meter.check(if mptcp { KEY * round } else { 0 }, "SYNs");
                assert_eq!(meter.packets.len(), round);
            }
            // Nothing goes again by itself.
            for _ in 0..100 {
                meter.world.pass(10_000);
                let out = meter.world.timeout();
                meter.take(out);
            }
            assert_eq!(meter.packets.len(), 20);
            assert_eq!(meter.world.translator.gauges().connections, 0);
        }
    }
}

#[test]
fn server_gets_a_syn_for_a_syn_and_for_nothing_else() {
    for mptcp in [true, false] {
        let mut world = World::new();
        let said = [0, 0];
        let (_, out) = world.of_client(SYN, said, options(mptcp), &CONNECT);
        assert_eq!(out.len(), 1);
        let (_, out) = world.of_client(SYN, said, options(mptcp), &[]);
        assert_eq!(out.len(), 1);
        for flags in [ACK, TcpFlags::FIN, TcpFlags::RST] {
            let (verdict, out) = world.of_client(SYN | flags, said, options(mptcp), &[]);
            assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
            assert!(out.is_empty(), "{mptcp} {flags:?}");
        }
    }
}

#[test]
fn whoever_sends_too_little_for_a_syn_ack_is_answered_at_his_next() {
    // Without an MSS it is 4 bytes shorter than what answers it.
    let mut meter = Meter::new(socks);
    meter.send(SYN, 0, vec![], &[]);
    assert!(meter.packets.is_empty());
    meter.send(SYN, 0, vec![], &[]);
    assert_eq!(meter.packets.len(), 1);
    meter.check(0, "a SYN without options");
    let isn = meter.packets[0].tcp.seq;
    meter.send(ACK, isn.wrapping_add(1), vec![], &[5, 1, 0]);
    let said = meter.packets.last().expect("the method");
    assert_eq!(said.payload, [5, 0]);
}

#[test]
fn whoever_guesses_gets_no_more_than_he_sends() {
    for mptcp in [true, false] {
        let mut meter = Meter::new(socks);
        meter.send(SYN, 0, options(mptcp), &[]);
        let isn = meter.packets[0].tcp.seq;
        for wrong in [0, 2, 3, 0x8000_0000] {
            meter.send(ACK, isn.wrapping_add(wrong), vec![], &[]);
            meter.check(if mptcp { KEY } else { 0 }, "an ACK");
            meter.send(ACK | TcpFlags::FIN, isn.wrapping_add(wrong), vec![], &[5]);
            meter.check(if mptcp { KEY } else { 0 }, "a FIN");
        }
        // What he sends counts: a plain client hears in the end that he is wrong. One of MPTCP has to bring keys first.
        assert_eq!(meter.packets.len() > 1, !mptcp);
    }
}

#[test]
fn what_a_server_sends_goes_to_nobody_who_has_not_shown_where_he_is() {
    for mptcp in [true, false] {
        for flags in [TcpFlags::RST | ACK, TcpFlags::FIN | ACK, SYN | ACK, ACK] {
            let mut meter = Meter::answered(mptcp);
            for round in 0..4 {
                let seq = i32::from(!flags.contains(SYN));
                let (_, out) = meter
                    .world
                    .of_server(flags, [seq, 25], options(false), b"data");
                meter.take(out);
                meter.check(0, &format!("{mptcp} {flags:?} {round}"));
            }
            assert_eq!(meter.packets.len(), 1, "{mptcp} {flags:?}");
        }
    }
}

#[test]
fn a_servers_challenge_goes_to_nobody_whose_syn_was_shorter() {
    let mut meter = Meter::new(|_| {});
    meter.send(SYN, 0, options(true), &CONNECT);
    for _ in 0..4 {
        let (_, out) = meter.world.of_server(ACK, [7, 9], options(false), &[]);
        meter.take(out);
        meter.check(0, "a challenge");
    }
    assert_eq!(meter.packets.len(), 1);
}

#[test]
fn refused_servers_client_is_answered_with_what_he_has_sent() {
    for mptcp in [true, false] {
        let mut meter = Meter::new(|_| {});
        meter.send(SYN, 0, options(mptcp), &CONNECT);
        let (_, out) = meter.world.of_server(TcpFlags::RST | ACK, [0, 25], [], &[]);
        meter.take(out);
        assert_eq!(meter.packets.len(), 1, "a responder answers");
        meter.check(0, "a refusal");
        for round in 1..=20 {
            meter.send(SYN, 0, options(mptcp), &[]);
            meter.check(if mptcp { KEY * round } else { 0 }, "SYNs behind it");
        }
    }
}

#[test]
fn errors_and_an_operators_wish_are_no_way_around() {
    for mptcp in [true, false] {
        let mut meter = Meter::answered(mptcp);
        let ends = Ends {
            from: meter.world.source().expect("a SYN"),
            to: server(),
        };
        let router = ip_header(end("10.55.0.1:0").ip(), ends.from.ip(), protocol::ICMP);
        // The only number that is under way.
        let quote = quoted(ends, at(CLIENT_ISN, 24));
        assert_eq!(
            meter.world.put_raw(&icmp_error(&router, (3, 1), 0, &quote)),
            0
        );
        let now = meter.world.now;
        let id = meter.world.translator.connections(now).next();
        let id = id.expect("a connection").id;
        let translator = &mut meter.world.translator;
        assert!(translator.carry_out(now, id, &Order::Close).is_ok());
        let out = meter.world.sent();
        meter.take(out);
        meter.check(0, "a close");
        // A RST answers what comes then, and is no longer than that.
        for _ in 0..10 {
            meter.send(ACK, 99, vec![], &[]);
            meter.check(0, "an ACK behind it");
        }
        assert!(meter.packets.len() > 10, "{mptcp}");
    }
}

#[test]
fn data_of_a_syn_ack_does_not_take_the_answers_place() {
    for mptcp in [true, false] {
        let mut meter = Meter::new(|_| {});
        let said = [&CONNECT[..], &[b'x'; 200]].concat();
        meter.send(SYN, 0, options(mptcp), &said);
        for _ in 0..2 {
            let (_, out) = meter
                .world
                .of_server(SYN | ACK, [0, 25], options(false), b"hello");
            meter.take(out);
        }
        assert_eq!(meter.packets.len(), 2);
        for packet in &meter.packets {
            let answer: &[u8] = if mptcp { &[] } else { &ANSWER };
            assert_eq!(packet.payload, answer);
        }
    }
}

#[test]
fn what_does_not_go_is_counted() {
    let mut meter = Meter::answered(true);
    for _ in 0..3 {
        let _ = meter
            .world
            .of_server(SYN | ACK, [0, 25], options(false), &[]);
    }
    assert_eq!(meter.world.translator.drops().get(DropReason::Unproved), 3);
}

#[test]
fn handshakes_of_strangers_keep_nobody_from_his_server() {
    for mptcp in [true, false] {
        let mut guest = Guest::new(Protocol::Convert, Uses { mptcp, ..ALL }, &[]);
        guest.world = World::with(|config| {
            let Mode::Explicit { source_ports, .. } = &mut config.services[0].mode else {
                panic!("another mode");
            };
            *source_ports = 61000..=61000;
        });
        let stranger = Packet::new(end("10.1.0.3:40000"), proxy()).flags(SYN);
        let stranger = stranger.with_options(options(true)).with_payload(CONNECT);
        assert_eq!(guest.world.put_raw(&stranger.bytes()), 1);
        guest.open(&[]);
        guest.say(&CONNECT);
        let [rst, syn] = &guest.to_server[..] else {
            panic!("{:?}", guest.to_server)
        };
        assert!(rst.tcp.flags.contains(TcpFlags::RST));
        assert_eq!((syn.tcp.flags, syn.ends()), (SYN, rst.ends()));
        guest.answer_call();
        assert_eq!(guest.heard, ANSWER, "{mptcp}");
    }
}
