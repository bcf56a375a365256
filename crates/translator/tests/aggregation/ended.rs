//! Aggregation servers that end a connection before they have connected on, and what they say again once they have.

use flexcp_preamble::{Protocol, Refusal};
use flexcp_testkit::{Packet, keys};
use flexcp_translator::{DropReason, Verdict};
use flexcp_wire::{DataNumber, Dss, DssMapping, MptcpOption, TcpOption, Timestamps};

use crate::errands::{CONVERT, SOCKS5, answer_to, answers, by, int, told};
use crate::world::*;

/// A data FIN alone, behind so many bytes of the server's.
fn data_fin(world: &World, behind: u64) -> TcpOption<'static> {
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: Some(DataNumber::Long(world.idsn() + 1)),
        mapping: Some(DssMapping {
            dsn: DataNumber::Long(first.wrapping_add(behind)),
            ssn: 0,
            len: 1,
            checksum: None,
        }),
        data_fin: true,
    }))
}

/// MPTCP ends a connection by its data FIN: the subflow's FIN may come a minute later.
#[test]
fn server_that_ends_the_connection_without_a_word_has_declined() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let fin = data_fin(&world, 0);
    let (_, out) = world.of_server(0, ACK, [1, 1 + int(told.len())], [fin], &[]);
    assert!(out[0].packet.tcp.flags.contains(RST));
    assert_eq!(world.peers[1], server(), "the server itself is asked");
    assert_eq!(world.translator.counters().server_declined, 1);
}

/// What it says is on its way, and has been overtaken: it counts, and not the end.
#[test]
fn end_that_has_overtaken_the_answer_says_nothing() {
    for by_subflow in [false, true] {
        let mut world = by(&[SOCKS5]);
        let told = told(&mut world);
        let said = answer_to(Protocol::Socks5, &told, false, Some(Refusal::Reset));
        let ack = 1 + int(told.len());
        let (flags, option) = if by_subflow {
            (FIN | ACK, dss(world.idsn() + 1, None))
        } else {
            (ACK, data_fin(&world, said.len() as u64))
        };
        let at = 1 + int(said.len());
        let _ = world.of_server(0, flags, [at, ack], [option], &[]);
        assert_eq!(world.translator.counters().server_declined, 0);
        let (_, out) = answers(&mut world, &said, told.len(), &[]);
        assert_eq!((out[0].subflow, out[0].packet.tcp.flags), (None, RST | ACK));
        assert_eq!(world.translator.counters().server_refused, 1);
    }
}

/// RFC 9293 section 3.5.1: nobody answers a reset.
#[test]
fn server_that_resets_hears_no_more() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    let (_, out) = world.of_server(0, RST | ACK, [1, 1 + int(told.len())], [], &[]);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!(syn.packet.tcp.flags, SYN);
    assert_eq!(world.peers[1], server());
}

/// The ACK of the answer got lost.
#[test]
fn answer_that_comes_again_without_mptcp_is_not_the_clients_to_see() {
    let mut world = by(&[SOCKS5]);
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let (ack, behind) = (1 + int(told.len()), 1 + int(said.len()));
    let bytes = [said.as_slice(), b"220 hello"].concat();
    for _ in 0..2 {
        let (_, out) = world.of_server(0, ACK, [1, ack], [], &bytes);
        let banner = out.last().unwrap();
        assert_eq!((banner.subflow, banner.seq()), (None, behind));
        assert_eq!(banner.packet.payload, b"220 hello");
    }
    let (_, out) = world.of_server(0, ACK, [1, ack], [], &said);
    assert!(
        out.iter().all(|out| out.packet.payload.is_empty()),
        "{out:?}"
    );
}

const fn ts(val: u32, ecr: u32) -> TcpOption<'static> {
    TcpOption::Timestamps(Timestamps { val, ecr })
}

/// A server with TCP alone, whose SYN/ACK (TSval 9000) holds its answer; the client (TSval 100 in its SYN) is answered. What was told
/// with the SYN, and what was answered.
fn granted_with_the_syn_ack(world: &mut World) -> (Vec<u8>, Vec<u8>) {
    let scaled = TcpOption::WindowScale(7);
    let (_, out) = world.of_client(SYN, [0, 0], [mss(), ts(100, 0), scaled], &[]);
    let told = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Convert, &told, false, None);
    let behind = 1 + int(told.len());
    let options = [mss(), ts(9000, 100), scaled];
    let _ = world.of_server(0, SYN | ACK, [0, behind], options, &said);
    (told, said)
}

/// PAWS drops what is older than what the server has got from the client (RFC 7323 section 5.3).
#[test]
fn answer_to_a_repeated_syn_ack_has_the_clients_latest_clock_and_window() {
    let mut world = by(&[CONVERT]);
    let (told, said) = granted_with_the_syn_ack(&mut world);
    let answer = 1 + int(said.len());
    let mut request = Packet::new(client(), server())
        .flags(ACK)
        .numbers(at(CLIENT_ISN, 1), at(SERVER_ISN, answer))
        .with_options([ts(160, 9000)])
        .with_payload(b"GET");
    request.tcp.window = 777;
    let (verdict, _) = world.put(&request);
    assert_eq!(verdict, Verdict::Forward);
    // One that it has overtaken is older.
    let mut late = request.clone().with_options([ts(150, 9000)]);
    late.payload.clear();
    let _ = world.put(&late);
    let options = [mss(), ts(10_000, 100), TcpOption::WindowScale(7)];
    let behind = 1 + int(told.len());
    let (verdict, out) = world.of_server(0, SYN | ACK, [0, behind], options, &said);
    assert_eq!(verdict, Verdict::Consume);
    let [ack] = &out[..] else { panic!("{out:?}") };
    assert_eq!((ack.subflow, ack.ack()), (Some(0), answer));
    let timestamps = ack.packet.view().timestamps;
    assert_eq!(timestamps.map(|timestamps| timestamps.val), Some(160));
    assert_eq!(ack.packet.tcp.window, 777);
}

/// A copy of the client's SYN that comes late has not the number of FlexCP's, and says nothing of whom to connect with.
#[test]
fn late_syn_of_the_client_is_not_for_a_server_without_mptcp() {
    let mut world = by(&[CONVERT]);
    let (_, said) = granted_with_the_syn_ack(&mut world);
    let answer = 1 + int(said.len());
    let _ = world.of_client(ACK, [1, answer], [ts(160, 9000)], b"GET");
    let mut reply = Packet::new(aggregation(), world.subflows[0])
        .flags(ACK)
        .numbers(at(SERVER_ISN, answer), at(CLIENT_ISN, 4))
        .with_options([ts(9060, 160)])
        .with_payload(b"ok");
    reply.tcp.window = 600;
    assert_eq!(world.put(&reply).0, Verdict::Forward);
    let scaled = TcpOption::WindowScale(7);
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), ts(100, 0), scaled], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    let [challenge] = &out[..] else {
        panic!("{out:?}")
    };
    // RFC 5961 section 4.
    assert_eq!(challenge.packet.tcp.flags, ACK);
    assert_eq!(
        (challenge.subflow, challenge.seq(), challenge.ack()),
        (None, answer + 2, 4)
    );
    let told = challenge.packet.view().timestamps;
    let latest = Timestamps {
        val: 9060,
        ecr: 160,
    };
    assert_eq!((challenge.packet.tcp.window, told), (600, Some(latest)));
}
