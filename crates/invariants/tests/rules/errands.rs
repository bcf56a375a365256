//! Where the proxy has an aggregation server connect on: what that is told, what its answer comes to, and who is asked next.

use flexcp_invariants::{Options, Point, Preamble, Rule};
use flexcp_wire::{CapableKeys, TcpFlags, TcpOption};

use crate::causes::BOUNDS;
use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_SERVER, KEY_CLIENT, KEY_PROXY, Packet, bytes, capable,
    dsn_down, dsn_up, dss, seq,
};

pub(crate) const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
/// Port 3000 of 10.9.0.2, by Convert and by SOCKS5.
pub(crate) const CONVERT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 11, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 9, 0, 2,
];
pub(crate) const SOCKS5: [u8; 13] = [5, 1, 0, 5, 1, 0, 1, 10, 9, 0, 2, 11, 184];
/// A converter has connected, is not allowed to, has been refused.
pub(crate) const GRANTED: &[u8] = &[1, 1, 0x22, 0x63];
pub(crate) const DECLINED: &[u8] = &[1, 2, 0x22, 0x63, 30, 1, 32, 0];
const REFUSED: &[u8] = &[1, 2, 0x22, 0x63, 30, 1, 96, 0];

/// A converter on one flow, a server of SOCKS5 on the other.
fn asking() -> Exchange {
    let mut exchange = Exchange::start(Options {
        asks: true,
        bounds: Some(BOUNDS),
        ..Options::default()
    });
    let server = |text: &str| text.parse().unwrap();
    exchange.checker.expect_errands([
        (server("10.1.0.1:1000"), Preamble::Convert),
        (server("10.2.0.1:2000"), Preamble::Socks5),
    ]);
    exchange
}

pub(crate) fn offer() -> Packet {
    Packet::new(Point::FromServer, Flow::Server, ISN_SERVER, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.others = vec![TcpOption::Mss(1200), TcpOption::SackPermitted];
    })
}

/// The SYN to somebody who is told so many bytes.
pub(crate) fn syn(flow: Flow, told: u32) -> Packet {
    offer().with(|p| {
        (p.point, p.flow) = (Point::ToClient, flow);
        p.seq = ISN_SERVER.wrapping_sub(told);
        p.mptcp = Some(capable(CapableKeys::Syn));
    })
}

pub(crate) fn convert_syn() -> Packet {
    syn(Flow::First, 24).with(|p| p.payload = CONVERT.to_vec())
}

pub(crate) fn socks_syn() -> Packet {
    syn(Flow::Joined, 13)
}

pub(crate) fn direct_syn() -> Packet {
    syn(Flow::Third, 0)
}

/// The SYN/ACK of an aggregation server that has taken what the SYN carried, or had none to take.
pub(crate) fn answer(flow: Flow, ack: u32) -> Packet {
    Packet::new(Point::FromClient, flow, ISN_CLIENT, ack).with(|p| {
        p.flags = SYN_ACK;
        p.others = vec![TcpOption::Mss(1000), TcpOption::SackPermitted];
        p.mptcp = Some(capable(CapableKeys::SynAck { sender: KEY_CLIENT }));
    })
}

pub(crate) const fn both(data_len: u16) -> CapableKeys {
    let (sender, receiver) = (KEY_PROXY, KEY_CLIENT);
    if data_len == 0 {
        return CapableKeys::Ack { sender, receiver };
    }
    CapableKeys::AckData {
        sender,
        receiver,
        data_len,
        checksum: None,
    }
}

pub(crate) fn third() -> Packet {
    let (own, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, 0));
    Packet::new(Point::ToClient, Flow::First, own, ack).with(|p| p.mptcp = Some(capable(both(0))))
}

/// The converter has taken what it is told.
fn told() -> Exchange {
    let behind = seq(ISN_SERVER, 0);
    asking().pass(&[offer(), convert_syn(), answer(Flow::First, behind), third()])
}

/// What the converter says.
pub(crate) fn says(bytes: &[u8]) -> Packet {
    let (own, ack) = (seq(ISN_CLIENT, 0), seq(ISN_SERVER, 0));
    Packet::new(Point::FromClient, Flow::First, own, ack).with(|p| {
        p.mptcp = Some(dss(
            dsn_down(0),
            Some((dsn_up(0), 1, bytes.len() as u16)),
            false,
        ));
        p.payload = bytes.to_vec();
    })
}

pub(crate) fn heard(len: u64) -> Packet {
    let (own, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, len));
    Packet::new(Point::ToClient, Flow::First, own, ack)
        .with(|p| p.mptcp = Some(dss(dsn_up(len), None, false)))
}

/// The SYN/ACK to the end with TCP, behind an answer of so many bytes.
pub(crate) fn reply(len: u32) -> Packet {
    let ack = seq(ISN_SERVER, 0);
    Packet::new(
        Point::ToServer,
        Flow::Server,
        ISN_CLIENT.wrapping_add(len),
        ack,
    )
    .with(|p| {
        p.flags = SYN_ACK;
        p.others = vec![TcpOption::Mss(972), TcpOption::SackPermitted];
    })
}

fn granted() -> Exchange {
    told().pass(&[says(GRANTED), heard(4), reply(4)])
}

/// The RST to the end with TCP, and to the aggregation server.
fn refusal() -> Packet {
    reply(0).with(|p| {
        (p.flags, p.seq) = (TcpFlags::RST | TcpFlags::ACK, 0);
        p.others = vec![];
    })
}

fn leaves(len: u64) -> Packet {
    heard(len).with(|p| (p.flags, p.mptcp) = (TcpFlags::RST | TcpFlags::ACK, None))
}

/// Of the end with TCP, and of the server behind the converter.
pub(crate) fn up(at: u64, payload: Vec<u8>) -> Packet {
    let ack = seq(ISN_CLIENT, 4);
    Packet::new(Point::FromServer, Flow::Server, seq(ISN_SERVER, at), ack)
        .with(|p| p.payload = payload)
}

pub(crate) fn up_out(payload: Vec<u8>) -> Packet {
    heard(4).with(|p| {
        let len = payload.len() as u16;
        p.mptcp = Some(dss(dsn_up(4), Some((dsn_down(0), 1, len)), false));
        p.payload = payload;
    })
}

#[test]
fn streams_of_both_ends_begin_behind_what_is_said_by_convert() {
    let down = says(&bytes(4, 50)).with(|p| {
        p.seq = seq(ISN_CLIENT, 4);
        p.mptcp = Some(dss(dsn_down(0), Some((dsn_up(4), 5, 50)), false));
    });
    let down_out = Packet::new(
        Point::ToServer,
        Flow::Server,
        seq(ISN_CLIENT, 4),
        seq(ISN_SERVER, 0),
    );
    let _ = granted()
        .pass(&[up(0, bytes(0, 100)), up_out(bytes(0, 100))])
        .clean();
    let _ = granted()
        .pass(&[down, down_out.with(|p| p.payload = bytes(4, 50))])
        .clean();
}

#[test]
fn socks5_is_said_behind_the_handshake() {
    let behind = ISN_SERVER.wrapping_sub(13);
    let flight = |bytes: &[u8]| {
        let (own, ack) = (seq(behind, 0), seq(ISN_CLIENT, 0));
        Packet::new(Point::ToClient, Flow::Joined, own, ack).with(|p| {
            p.mptcp = Some(capable(both(bytes.len() as u16)));
            p.payload = bytes.to_vec();
        })
    };
    let open = || {
        let ack = seq(behind, 0);
        asking().pass(&[offer(), convert_syn()]).wait(300).pass(&[
            offer(),
            socks_syn(),
            answer(Flow::Joined, ack),
        ])
    };
    let _ = open().pass(&[flight(&SOCKS5)]).clean();
    let mut other = SOCKS5;
    other[9] = 3;
    open().breaks(Rule::Preamble, &flight(&other));
    open().breaks(Rule::Preamble, &flight(&[&SOCKS5[..], &[7]].concat()));
}

#[test]
fn syn_leaves_room_for_what_is_told_and_names_the_server() {
    let asked = || asking().pass(&[offer()]);
    let breaks = |change: &dyn Fn(&mut Packet)| {
        asked().breaks(Rule::Preamble, &convert_syn().with(change));
    };
    breaks(&|p| p.payload[23] = 3);
    breaks(&|p| p.payload = vec![]);
    breaks(&|p| p.seq = p.seq.wrapping_sub(1));
    asked().breaks(
        Rule::Preamble,
        &socks_syn().with(|p| p.payload = SOCKS5.to_vec()),
    );
    asked().breaks(Rule::Preamble, &direct_syn().with(|p| p.payload = vec![1]));
    let _ = asked().pass(&[convert_syn()]).clean();
}

#[test]
fn end_with_tcp_is_answered_when_the_server_has_connected_on_and_behind_its_answer() {
    told().breaks(Rule::Preamble, &reply(4));
    let half = || told().pass(&[says(&GRANTED[..2]), heard(2)]);
    half().breaks(Rule::Preamble, &reply(4));
    let whole = || told().pass(&[says(GRANTED), heard(4)]);
    whole().breaks(Rule::Translation, &reply(0));
    whole().breaks(Rule::Preamble, &up(0, vec![]));
    let _ = whole().pass(&[reply(4)]).clean();
}

#[test]
fn nothing_of_the_answer_goes_to_the_end_with_tcp() {
    let leak = Packet::new(
        Point::ToServer,
        Flow::Server,
        seq(ISN_CLIENT, 2),
        seq(ISN_SERVER, 0),
    );
    granted().pass(&[says(GRANTED)]).breaks(
        Rule::Preamble,
        &leak.with(|p| p.payload = GRANTED[2..].to_vec()),
    );
}

#[test]
fn nothing_of_the_stream_goes_before_the_server_has_connected_on() {
    let data = third().with(|p| {
        p.mptcp = Some(capable(both(5)));
        p.payload = b"early".to_vec();
    });
    told().breaks(Rule::Preamble, &data);
}

#[test]
fn next_one_is_asked_for_a_cause_and_once() {
    asking()
        .pass(&[offer(), convert_syn(), offer()])
        .breaks(Rule::Preamble, &socks_syn());
    told().breaks(Rule::Reset, &leaves(0));
    let declined = || told().pass(&[says(DECLINED), leaves(8)]);
    let _ = declined().pass(&[socks_syn()]).clean();
    let _ = declined().pass(&[direct_syn()]).clean();
    let silent = || declined().pass(&[socks_syn()]).wait(300);
    let again = convert_syn().with(|p| p.others[0] = TcpOption::Mss(1200));
    let other = again.with(|p| p.flow = Flow::Joined);
    silent().pass(&[offer()]).breaks(
        Rule::Preamble,
        &other.with(|p| p.seq = p.seq.wrapping_add(11)),
    );
    let _ = silent().pass(&[offer(), direct_syn()]).clean();
}

#[test]
fn what_is_refused_is_refused() {
    told().breaks(Rule::Reset, &refusal());
    let refused = || told().pass(&[says(REFUSED)]);
    let _ = refused().pass(&[refusal(), leaves(8)]).clean();
    refused().breaks(Rule::Preamble, &socks_syn());
    refused().pass(&[heard(8)]).breaks(Rule::Preamble, &offer());
}

#[test]
fn servers_that_were_left_are_probed_and_no_others() {
    let probe = syn(Flow::First, 4000).with(|p| {
        p.mptcp = None;
        p.others = vec![TcpOption::Mss(1460)];
    });
    let mut fresh = asking();
    fresh.checker.observe_timeout();
    fresh.breaks(Rule::Translation, &probe);
    let mut left = told().pass(&[says(DECLINED), leaves(8), socks_syn()]);
    left.checker.observe_timeout();
    let _ = left.pass(&[probe]).clean();
}

#[test]
fn servers_that_are_left_alone_are() {
    let passes = || {
        let mut exchange = asking();
        let server = "10.9.0.2:3000".parse().unwrap();
        exchange.checker.expect_to_pass(server);
        exchange.pass(&[offer()])
    };
    passes().breaks(Rule::Plain, &convert_syn());
}
