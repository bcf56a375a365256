//! Converters that take a message with the SYN only once they have connected on: the client is answered with their SYN/ACK.

use flexcp_preamble::{Protocol, Refusal};
use flexcp_testkit::keys;
use flexcp_translator::{Approach, DropReason, Mode, Verdict};
use flexcp_wire::{CapableKeys, DataNumber, Dss, MpFastClose, MptcpOption, TcpFlags, TcpOption};

use crate::errands::{answer_to, answers, int, server_at, told};
use crate::world::*;

/// A box whose converters say by their SYN/ACKs that they have connected on.
fn early(servers_of: usize) -> World {
    World::with(|config| {
        let Mode::Box { servers, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        for place in 0..servers_of {
            let approach = Approach {
                protocol: Protocol::Convert,
                user: None,
                early: true,
            };
            assert!(servers.push(server_at(place), approach));
        }
    })
}

/// Its client's SYN; the message that went with the one to the converter.
fn asked(world: &mut World) -> Vec<u8> {
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    out[0].packet.payload.clone()
}

/// The same, whose SYN/ACK has taken that.
fn promised(world: &mut World) -> (Vec<u8>, Vec<Out>) {
    let message = asked(world);
    let behind = 1 + int(message.len());
    let (_, out) = world.of_server(0, SYN | ACK, [0, behind], answer(), &[]);
    (message, out)
}

/// The answer that was promised.
fn answer_of(message: &[u8]) -> Vec<u8> {
    answer_to(Protocol::Convert, message, false, None)
}

fn data_ack(out: &Out) -> Option<u64> {
    match out.dss()?.data_ack? {
        DataNumber::Long(ack) => Some(ack),
        DataNumber::Short(_) => None,
    }
}

/// The first data number of the server's.
fn first() -> u64 {
    keys::idsn(SERVER_KEY).wrapping_add(1)
}

#[test]
fn client_is_answered_with_the_syn_ack_behind_an_answer_of_known_length() {
    let mut world = early(1);
    let (message, out) = promised(&mut world);
    let [third, syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((third.seq(), third.ack()), (1 + int(message.len()), 1));
    assert!(matches!(third.keys(), Some(CapableKeys::Ack { .. })));
    let len = int(answer_of(&message).len());
    assert_eq!(
        (syn_ack.subflow, syn_ack.packet.tcp.flags),
        (None, SYN | ACK)
    );
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (len, 1));
    let counters = world.translator.counters();
    assert_eq!((counters.server_granted, counters.server_early), (1, 1));
    // It has not heard: it is told again.
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!((out.len(), out[0].seq()), (1, len));
}

/// The converter's socket has not sent what stands between its SYN/ACK and the stream.
#[test]
fn nothing_is_acked_that_has_not_come() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let (behind, len) = (1 + int(message.len()), int(answer_of(&message).len()));
    let (_, out) = world.of_client(ACK, [1, len + 1], [], &[]);
    assert_eq!((out.len(), out[0].seq(), out[0].ack()), (1, behind, 1));
    let (_, out) = world.of_client(ACK, [1, len + 1], [], b"GET");
    assert_eq!((out[0].seq(), out[0].ack()), (behind, 1));
    assert!(matches!(out[0].keys(), Some(CapableKeys::AckData { .. })));
    // The converter has the keys by now: data ACKs are in each packet.
    let acks = dss(world.idsn() + 4, None);
    let (_, out) = world.of_server(0, ACK, [1, behind + 3], [acks], &[]);
    let [ack] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        (ack.seq(), ack.ack()),
        (len + 1, 4),
        "in the client's window"
    );
    let (_, out) = world.of_client(ACK, [4, len + 1], [], b" /");
    assert_eq!((out[0].ack(), data_ack(&out[0])), (1, Some(first())));
    // Once it has come all of it is ACKed.
    let said = answer_of(&message);
    let data = dss(world.idsn() + 4, Some((first(), 1, 4)));
    let (_, out) = world.of_server(0, ACK, [1, behind + 3], [data], &said);
    let [probe] = &out[..] else { panic!("{out:?}") };
    assert_eq!((probe.subflow, probe.packet.payload.len()), (None, 0));
    let (_, out) = world.of_client(ACK, [6, len + 1], [], &[]);
    assert_eq!(out[0].ack(), len + 1);
    assert_eq!(
        data_ack(&out[0]),
        Some(first() + u64::from(len.unsigned_abs()))
    );
}

#[test]
fn stream_comes_behind_the_answer_in_one_packet_and_in_pieces() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let said = answer_of(&message);
    let (_, out) = answers(&mut world, &said, message.len(), b"220 hello");
    let [banner] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(banner.packet.payload, b"220 hello");
    assert_eq!(banner.seq(), int(said.len()) + 1);
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let behind = 1 + int(message.len());
    for at in [0, 0, 1, 2, 1, 3] {
        let data = dss(
            world.idsn() + 1,
            Some((first() + at as u64, u32::try_from(at).unwrap() + 1, 1)),
        );
        let numbers = [int(at) + 1, behind];
        let (verdict, out) = world.of_server(0, ACK, numbers, [data], &said[at..=at]);
        assert_eq!(
            (verdict, out[0].packet.payload.len()),
            (Verdict::Forward, 0)
        );
    }
    let (_, out) = world.of_client(ACK, [1, int(said.len()) + 1], [], &[]);
    assert_eq!(out[0].ack(), int(said.len()) + 1);
    assert_eq!(world.translator.counters().server_retracted, 0);
}

/// The stream that has overtaken the answer comes again; the data ACK in it counts.
#[test]
fn what_has_overtaken_the_answer_is_dropped() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let (behind, said) = (1 + int(message.len()), answer_of(&message));
    let _ = world.of_client(ACK, [1, int(said.len()) + 1], [], &[]);
    let data = dss(world.idsn() + 1, Some((first() + 4, 5, 2)));
    let (verdict, out) = world.of_server(0, ACK, [5, behind], [data], b"ok");
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    assert!(out.is_empty());
    let (_, out) = world.of_client(ACK, [1, int(said.len()) + 1], [], b"GET");
    assert_eq!(
        data_ack(&out[0]),
        Some(first()),
        "the converter has the keys"
    );
    let _ = answers(&mut world, &said, message.len(), &[]);
    let (verdict, _) = world.of_server(0, ACK, [5, behind], [data], b"ok");
    assert_eq!(verdict, Verdict::Forward);
}

#[test]
fn joins_wait_for_the_answer() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let (behind, said) = (1 + int(message.len()), answer_of(&message));
    let acks = dss(world.idsn() + 1, None);
    let _ = world.of_client(ACK, [1, int(said.len()) + 1], [], &[]);
    let _ = world.of_server(0, ACK, [1, behind], [acks], &[]);
    assert!(world.timeout().is_empty());
    let _ = answers(&mut world, &said, message.len(), &[]);
    let out = world.timeout();
    assert!(out.iter().any(|out| out.join().is_some()), "{out:?}");
}

/// It promises nothing where it has not taken the message, has answered at once, or has done without MPTCP.
#[test]
fn other_syn_acks_are_waited_behind() {
    let mut world = early(1);
    let message = asked(&mut world);
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let [again] = &out[..] else { panic!("{out:?}") };
    assert_eq!(again.packet.payload, message);
    let mut world = early(1);
    let message = asked(&mut world);
    let behind = 1 + int(message.len());
    let (_, out) = world.of_server(0, SYN | ACK, [0, behind], offer(), &[]);
    assert!(out.iter().all(|out| out.subflow == Some(0)), "{out:?}");
    let mut world = early(1);
    let message = asked(&mut world);
    let no = answer_to(Protocol::Convert, &message, false, Some(Refusal::Reset));
    let (_, out) = world.of_server(0, SYN | ACK, [0, behind], answer(), &no);
    let refusal = out.iter().find(|out| out.subflow.is_none()).unwrap();
    assert_eq!(refusal.packet.tcp.flags, RST | ACK);
    assert_eq!(world.translator.counters().server_early, 0);
    // One of which nobody says so has to say it.
    let mut world = crate::errands::by(&[crate::errands::CONVERT]);
    let _ = told(&mut world);
    assert_eq!(world.translator.counters().server_granted, 0);
}

/// A packet of the converter's that breaks its promise: flags, numbers from the byte behind the SYN on, options and data.
fn breaks(
    world: &mut World,
    flags: TcpFlags,
    (seq, acked): (i32, usize),
    option: Option<TcpOption<'_>>,
    data: &[u8],
) -> (Verdict, Vec<Out>) {
    world.of_server(0, flags, [1 + seq, 1 + int(acked)], option, data)
}

/// Both ends hear of it, and its SYN/ACKs are not believed any more.
#[test]
fn who_says_something_else_resets_both_ends() {
    let refused = |message: &[u8], why| answer_to(Protocol::Convert, message, false, Some(why));
    let says = |case, message: &[u8]| match case {
        0 => refused(message, Refusal::Reset),
        1 => refused(message, Refusal::NotAllowed),
        // With another TLV than none the stream would stand elsewhere.
        2 => vec![1, 3, 0x22, 0x63, 20, 2, 0, 0, 4, 2, 0, 0],
        _ => b"HTTP/1.1 400".to_vec(),
    };
    for (case, marked) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let mut world = early(1);
        let (message, _) = promised(&mut world);
        let said = says(case, &message);
        let len = u16::try_from(said.len()).unwrap();
        let option = dss(world.idsn() + 1, Some((first(), 1, len)));
        let (_, out) = breaks(&mut world, ACK, (0, message.len()), Some(option), &said);
        both_are_reset(&world, &out);
        assert_eq!(world.translator.counters().backend_marked, marked, "{case}");
        assert!(!is_believed(&mut world));
    }
}

#[test]
fn options_that_are_taken_away_reset_both_ends() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let (_, out) = breaks(&mut world, ACK, (0, message.len()), None, &[]);
    both_are_reset(&world, &out);
    assert!(!is_believed(&mut world));
}

/// By a FIN, or by a DATA_FIN: it may yet have meant what it said.
#[test]
fn who_goes_without_an_answer_resets_both_ends() {
    for by_fin in [true, false] {
        let mut world = early(1);
        let (message, _) = promised(&mut world);
        let (flags, mapping) = if by_fin {
            (FIN | ACK, None)
        } else {
            (ACK, Some((first(), 0, 1)))
        };
        let TcpOption::Mptcp(MptcpOption::Dss(dss)) = dss(world.idsn() + 1, mapping) else {
            unreachable!("it is a DSS");
        };
        let data_fin = !by_fin;
        let option = TcpOption::Mptcp(MptcpOption::Dss(Dss { data_fin, ..dss }));
        let (_, out) = breaks(&mut world, flags, (0, message.len()), Some(option), &[]);
        both_are_reset(&world, &out);
        assert!(is_believed(&mut world));
    }
}

/// RFC 9293 section 3.10.7: a RST has no answer.
#[test]
fn who_resets_its_connection_hears_no_more() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let (_, out) = breaks(&mut world, RST | ACK, (0, message.len()), None, &[]);
    let [reset] = &out[..] else { panic!("{out:?}") };
    assert_eq!((reset.subflow, reset.packet.tcp.flags), (None, RST | ACK));
    assert_eq!(reset.seq(), int(answer_of(&message).len()) + 1);
    assert!(is_believed(&mut world));
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let close = TcpOption::Mptcp(MptcpOption::FastClose(MpFastClose {
        key: world.box_key(),
    }));
    let (_, out) = breaks(&mut world, RST | ACK, (0, message.len()), Some(close), &[]);
    assert!(out.iter().any(|out| out.subflow.is_none()), "{out:?}");
}

/// RFC 5961: what anybody may have sent ends no connection.
#[test]
fn what_stands_elsewhere_breaks_nothing() {
    let mut world = early(1);
    let (message, _) = promised(&mut world);
    let said = answer_of(&message);
    for (flags, seq, reason) in [
        (RST | ACK, -1, DropReason::BlindReset),
        (RST | ACK, 1, DropReason::Unexpected),
        (ACK, -1, DropReason::OutOfWindow),
        (ACK, 1, DropReason::Unexpected),
        (FIN | ACK, 1, DropReason::Unexpected),
    ] {
        let (verdict, out) = breaks(&mut world, flags, (seq, message.len()), None, &[]);
        assert_eq!(
            (verdict, out.len()),
            (Verdict::Drop(reason), 0),
            "{flags:?} {seq}"
        );
    }
    // Where a part of the answer has come, that is behind what is next.
    let data = dss(world.idsn() + 1, Some((first(), 1, 1)));
    let _ = breaks(&mut world, ACK, (0, message.len()), Some(data), &said[..1]);
    let (verdict, _) = breaks(&mut world, RST | ACK, (0, message.len()), Some(data), &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::BlindReset));
    let (verdict, _) = answers(&mut world, &said, message.len(), &[]);
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!(world.translator.counters().server_retracted, 0);
}

fn both_are_reset(world: &World, out: &[Out]) {
    let of = |subflow| out.iter().find(move |out| out.subflow == subflow);
    let (client, server) = (
        of(None).expect("to the client"),
        of(Some(0)).expect("to the server"),
    );
    assert_eq!(client.packet.tcp.flags, RST | ACK);
    assert_eq!(client.seq(), 5, "it is the one that comes next");
    assert!(server.packet.tcp.flags.contains(RST), "{server:?}");
    assert!(server.packet.view().fast_close.is_some(), "{server:?}");
    assert_eq!(world.translator.counters().server_retracted, 1);
}

/// Whether its next SYN/ACK is believed, once it answers again.
fn is_believed(world: &mut World) -> bool {
    let early = world.translator.counters().server_early;
    for _ in 0..200 {
        for out in world.timeout() {
            let probes = out.packet.tcp.flags == SYN && out.keys().is_none();
            if let Some(subflow) = out.subflow.filter(|_| probes) {
                let _ = world.of_server(subflow, SYN | ACK, [0, 1], [], &[]);
            }
        }
        world.pass(1000);
    }
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let syn = out.iter().find(|out| out.keys() == Some(CapableKeys::Syn));
    let syn = syn.expect("it is asked again");
    let (subflow, len) = (syn.subflow.unwrap(), int(syn.packet.payload.len()));
    assert!(len > 0, "{syn:?}");
    let _ = world.of_server(subflow, SYN | ACK, [0, 1 + len], answer(), &[]);
    world.translator.counters().server_early > early
}
