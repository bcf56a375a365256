//! A server that has taken over from FlexCP: what it is told, and what the client sees of it.

use std::net::SocketAddr;

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, keys};
use flexcp_wire::{MpJoin, MptcpOption, SackBlocks, TcpOption, Timestamps};

use crate::guest::*;
use crate::hosted::every_kind;
use crate::world::*;

#[test]
fn server_that_speaks_at_once_hears_of_nothing_before_its_first_byte() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        guest.say(&REQUEST);
        guest.speak(
            SYN | ACK,
            &[],
            vec![TcpOption::Mss(1400), TcpOption::SackPermitted],
        );
        guest.speaks = guest.speaks.wrapping_add(1);
        // The client has got nothing of the answer, and says so.
        guest.heard.clear();
        let before = (guest.wants, guest.to_server.len());
        guest.wants = before.0.wrapping_sub(10);
        guest.say_and_repeat(b"x");
        let seen = &guest.to_server[before.1..];
        assert!(!seen.is_empty());
        for packet in seen {
            assert_eq!(packet.tcp.ack, SERVER.wrapping_add(1), "{uses:?}");
        }
    }
}

#[test]
fn clocks_of_client_and_server_are_a_constant_apart() {
    for mptcp in [true, false] {
        let mut guest = Guest::connected(Uses { mptcp, ..ALL });
        let before = guest.shown;
        guest.to_server.clear();
        guest.world.pass(250);
        guest.server_says(b"data");
        assert_eq!(guest.shown, before + 250);
        guest.acknowledge();
        let echo = guest.to_server[0]
            .view()
            .timestamps
            .expect("timestamps")
            .ecr;
        assert_eq!(echo, SERVER_CLOCK + 250);
    }
}

#[test]
fn server_is_not_echoed_what_was_before_it() {
    for mptcp in [true, false] {
        let mut guest = Guest::greeted(Uses { mptcp, ..ALL });
        guest.say(&REQUEST);
        let early = guest.shown;
        guest.world.pass(100);
        guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
        guest.speaks = guest.speaks.wrapping_add(1);
        guest.shown = early;
        guest.acknowledge();
        for packet in &guest.to_server[1..] {
            let echo = packet.view().timestamps.expect("timestamps").ecr;
            assert_eq!(echo, SERVER_CLOCK + 100, "{mptcp}");
        }
    }
}

#[test]
fn windows_are_told_in_the_scale_that_each_end_knows() {
    for (mptcp, scale) in [
        (true, Some(9)),
        (true, None),
        (false, Some(9)),
        (false, None),
    ] {
        let uses = Uses {
            mptcp,
            scale,
            ..ALL
        };
        let mut guest = Guest::connected(uses);
        guest.to_client.clear();
        let window: u16 = if scale.is_some() { 10_000 } else { 65_400 };
        let packet = Packet::new(server(), guest.source())
            .flags(ACK)
            .numbers(guest.speaks, guest.expects)
            .with_options([TcpOption::Timestamps(Timestamps {
                val: SERVER_CLOCK + 1,
                ecr: 1,
            })])
            .with_payload(*b"data");
        let packet = Packet {
            tcp: flexcp_wire::TcpHeader {
                window,
                ..packet.tcp
            },
            ..packet
        };
        let (_, out) = guest.world.put(&packet);
        let told = out[0].packet.tcp.window;
        // FlexCP has told the client a scale of 7.
        assert_eq!(
            told,
            u16::try_from((u32::from(window) << scale.unwrap_or(0)) >> 7).unwrap()
        );
        guest.take(out);
        guest.speaks = guest.speaks.wrapping_add(4);
        guest.to_server.clear();
        guest.acknowledge();
        let told = guest.to_server[0].tcp.window;
        let offered = Packet::new(client(), proxy()).tcp.window;
        let expected = if scale.is_some() {
            offered
        } else {
            u16::try_from(u32::from(offered) << 2).unwrap_or(u16::MAX)
        };
        assert_eq!(told, expected, "{uses:?}");
    }
}

#[test]
fn sack_blocks_name_the_numbers_of_the_end_that_gets_them() {
    let mut guest = Guest::connected(Uses {
        mptcp: false,
        ..ALL
    });
    guest.to_server.clear();
    let mut blocks = SackBlocks::default();
    blocks.push(guest.wants.wrapping_add(10), guest.wants.wrapping_add(20));
    guest.send(ACK, &[], vec![TcpOption::Sack(blocks)]);
    let told = guest.to_server[0].view().sack;
    let at = guest.speaks;
    assert_eq!(
        told.as_slice(),
        [(at.wrapping_add(10), at.wrapping_add(20))]
    );

    // A server that has not agreed on them gets none.
    let mut guest = Guest::greeted(Uses {
        mptcp: false,
        ..ALL
    });
    guest.say(&REQUEST);
    guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
    guest.speaks = guest.speaks.wrapping_add(1);
    guest.acknowledge();
    guest.to_server.clear();
    let mut blocks = SackBlocks::default();
    blocks.push(guest.wants.wrapping_add(10), guest.wants.wrapping_add(20));
    guest.send(ACK, &[], vec![TcpOption::Sack(blocks)]);
    assert!(guest.to_server[0].view().sack.is_empty());
}

/// The server gets the client's window behind an answer that it has not sent: without the room that this takes.
#[test]
fn window_ends_where_the_client_has_offered_that() {
    for mptcp in [true, false] {
        let mut guest = Guest::greeted(Uses { mptcp, ..ALL });
        guest.say(&REQUEST);
        let offered = u32::from(Packet::new(client(), proxy()).tcp.window) << 2;
        let options = vec![TcpOption::Mss(1400), TcpOption::WindowScale(9)];
        guest.speak(SYN | ACK, &[], options);
        let told = guest.to_server.last().expect("an ACK").tcp.window;
        // The answer has ten bytes, and the client's windows have a scale of 2.
        assert_eq!(u32::from(told), (offered - 10) >> 2, "{mptcp}");
    }
}

/// Its ACK may have got lost, and the client have ACKed the answer since. A server takes no ACK of less than its SYN, and may answer
/// one with a reset (RFC 9293 section 3.10.7.4).
#[test]
fn server_that_repeats_its_syn_ack_is_acked_that() {
    for uses in every_kind() {
        let mut guest = Guest::connected(uses);
        guest.to_server.truncate(1);
        guest.speaks = SERVER;
        guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
        let told = guest.to_server.last().expect("an ACK").tcp;
        assert_eq!(told.ack, SERVER.wrapping_add(1), "{uses:?}");
    }
}

/// A server drops what is older than what it has (RFC 7323 section 5.3), and would never have its SYN/ACK acknowledged.
#[test]
fn server_that_repeats_its_syn_ack_is_not_shown_an_earlier_time() {
    for mptcp in [true, false] {
        let mut guest = Guest::connected(Uses { mptcp, ..ALL });
        guest.world.pass(100);
        guest.say(b"lost");
        let shown = |guest: &Guest| {
            let last = guest.to_server.last().expect("a packet");
            last.view().timestamps.expect("timestamps").val
        };
        let before = shown(&guest);
        guest.speaks = SERVER;
        guest.expects = guest.expects.wrapping_sub(4);
        guest.to_server.clear();
        guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
        assert_eq!(shown(&guest), before, "{mptcp}");
    }
}

/// A client's window is rounded, and what remains of it behind the answer once more: the server's window would shrink by two units.
#[test]
fn right_edge_does_not_move_left_while_the_answer_is_acked_bit_by_bit() {
    for mptcp in [true, false] {
        let mut guest = Guest::greeted(Uses { mptcp, ..ALL });
        guest.say(&REQUEST);
        let options = vec![TcpOption::Mss(1400), TcpOption::WindowScale(9)];
        guest.speak(SYN | ACK, &[], options);
        let told = guest.to_server.last().expect("an ACK").tcp;
        // A byte of ten, and with that the window has shrunk by one unit, which is four bytes.
        guest.wants = guest.wants.wrapping_sub(9);
        guest.got -= 9;
        let mut packet = guest.packet(ACK, &[]);
        packet.tcp.window -= 1;
        let (_, out) = guest.world.put(&packet);
        guest.take(out);
        let now = guest.to_server.last().expect("an ACK").tcp;
        assert_eq!((now.ack, now.window), (told.ack, told.window), "{mptcp}");
    }
}

/// RFC 7323 section 3.2: each segment has timestamps once both have them, and echoes what has come.
#[test]
fn client_is_shown_a_clock_and_echoed_where_the_server_has_none() {
    for mptcp in [true, false] {
        let mut guest = Guest::greeted(Uses { mptcp, ..ALL });
        guest.say(&REQUEST);
        let says = |guest: &mut Guest, flags, options: Vec<TcpOption<'static>>| {
            let packet = Packet::new(server(), guest.source())
                .flags(flags)
                .numbers(guest.speaks, guest.expects)
                .with_options(options);
            guest.to_client.clear();
            let (_, out) = guest.world.put(&packet);
            guest.take(out);
        };
        let options = vec![TcpOption::Mss(1400), TcpOption::SackPermitted];
        says(&mut guest, SYN | ACK, options);
        guest.speaks = guest.speaks.wrapping_add(1);
        guest.acknowledge();
        guest.world.pass(50);
        guest.say(b"0123456789");
        let sent = match guest.packet(ACK, &[]).view().timestamps {
            Some(timestamps) => timestamps.val,
            None => unreachable!("it uses them"),
        };
        // As many blocks as there is room for without timestamps.
        let mut blocks = SackBlocks::default();
        for left in [1, 3, 5, 7] {
            let at = |offset| guest.expects.wrapping_sub(10).wrapping_add(offset);
            blocks.push(at(left), at(left + 1));
        }
        guest.expects = guest.expects.wrapping_sub(10);
        says(&mut guest, ACK, vec![TcpOption::Sack(blocks)]);
        let told = guest.to_client.first().expect("an ACK").view();
        let timestamps = told.timestamps.expect("timestamps");
        assert_eq!(timestamps.ecr, sent, "{mptcp}");
    }
}

/// A receiver drops what ACKs far less than it knows of (RFC 5961 section 5.2), and a client may have said a lot by then.
#[test]
fn answer_that_goes_again_acks_what_the_server_has_acked() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        guest.say(&REQUEST);
        guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
        guest.speaks = guest.speaks.wrapping_add(1);
        guest.wants = guest.wants.wrapping_sub(10);
        guest.got -= 10;
        for _ in 0..200 {
            guest.say(&[7; 1000]);
            guest.speak(ACK, &[], vec![]);
        }
        guest.to_client.clear();
        guest.pass(300);
        let [answer] = &guest.to_client[..] else {
            panic!("{uses:?}: {:?}", guest.to_client)
        };
        assert_eq!(answer.payload.len(), 10, "{uses:?}");
        assert_eq!(answer.tcp.ack, guest.next, "{uses:?}");
        // The server does not scale.
        let offered = Packet::new(server(), client()).tcp.window;
        let told = if uses.scales { offered >> 7 } else { offered };
        assert_eq!(answer.tcp.window, told, "{uses:?}");
    }
}

/// A join of the client's from this port.
fn join_from(guest: &Guest, port: u16) -> Packet {
    let join = MpJoin::Syn {
        backup: false,
        address_id: 1,
        token: keys::token(guest.world.key.expect("a key")),
        nonce: 1,
    };
    Packet::new(SocketAddr::new(end("10.1.0.3:0").ip(), port), proxy())
        .flags(SYN)
        .numbers(1, 0)
        .with_options([mss(), TcpOption::Mptcp(MptcpOption::Join(join))])
}

/// Joins that have been refused.
fn refused_joins(guest: &Guest) -> u64 {
    let causes = guest.world.translator.counters().causes;
    let refused = causes.iter().filter(|&(what, ..)| what == "join_refused");
    refused.map(|(.., count)| count).sum()
}

/// FlexCP agrees to SACK before there is a server. Without it at the server a connection has one subflow at a time.
#[test]
fn join_is_refused_once_the_server_turns_out_to_do_without_sack() {
    for sack in [true, false] {
        let mut guest = Guest::greeted(ALL);
        guest.say(&REQUEST);
        let permitted = sack.then_some(TcpOption::SackPermitted);
        let options = [Some(TcpOption::Mss(1400)), permitted];
        guest.speak(SYN | ACK, &[], options.into_iter().flatten().collect());
        let join = join_from(&guest, 40_001);
        let _ = guest.world.put_raw(&join.bytes());
        assert_eq!(refused_joins(&guest), u64::from(!sack));
    }
}

/// The other was there before, and its client may not have heard of that yet.
#[test]
fn join_that_is_refused_takes_the_place_of_no_other() {
    let mut guest = Guest::new(Protocol::Socks5, ALL, &[]);
    guest.world = World::with(|config| {
        speaks(config, Protocol::Socks5, &[]);
        config.limits.half_open_joins = 1;
    });
    guest.open(&[]);
    guest.say(&GREETING);
    let first = join_from(&guest, 40_001);
    assert_eq!(guest.world.put_raw(&first.bytes()), 1);
    guest.world.pass(5000);
    guest.say(&REQUEST);
    guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
    let second = join_from(&guest, 40_002);
    let _ = guest.world.put_raw(&second.bytes());
    assert_eq!(refused_joins(&guest), 1);
    assert_eq!(guest.world.put_raw(&first.bytes()), 1);
    assert_eq!(refused_joins(&guest), 1);
}
