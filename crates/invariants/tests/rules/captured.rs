//! Captures of a box: packets stand in the order in which they passed the interfaces, and what one of them has caused may stand behind
//! others.

use flexcp_invariants::{Options, Point, Preamble, Rule};
use flexcp_testkit::keys;
use flexcp_wire::{CapableKeys, MptcpOption, RemoveAddr, TcpFlags, TcpOption};

use crate::asking::{
    answer, first_data, join, key, offer, plain_syn, proof, reply, right_answer, syn, third,
};
use crate::errands;
use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_SERVER, KEY_CLIENT, KEY_PROXY, Packet, ack_down, ack_up, bytes,
    capable, client_ack, client_data, data_down, data_up, dsn_up, dss, seq, server_ack,
    server_data,
};

const BOTH: CapableKeys = CapableKeys::Ack {
    sender: KEY_PROXY,
    receiver: KEY_CLIENT,
};

fn start() -> Exchange {
    Exchange::start(Options {
        asks: true,
        ..Options::capture()
    })
}

fn capture() -> Exchange {
    let mut exchange = start();
    exchange.direct = true;
    exchange
}

/// The same of a box with a converter and a server of SOCKS5.
fn by_servers() -> Exchange {
    let mut exchange = start();
    let server = |text: &str| text.parse().unwrap();
    exchange.checker.expect_errands([
        (server("10.1.0.1:1000"), Preamble::Convert),
        (server("10.2.0.1:2000"), Preamble::Socks5),
    ]);
    exchange
}

fn answered() -> Exchange {
    capture().pass(&[offer(), syn(), answer(key()), reply(972)])
}

fn confirmed() -> Exchange {
    answered().pass(&[
        server_ack(0),
        third(Some(BOTH)),
        client_ack(Flow::First, 0, 0),
        ack_up(0),
    ])
}

fn proved() -> Packet {
    proof(keys::join_ack((KEY_PROXY, KEY_CLIENT), (2, 1)))
}

/// The SYN of a second end with TCP, to the same server.
fn other_offer() -> Packet {
    offer().with(|p| (p.flow, p.seq) = (Flow::Other, 77))
}

/// A box's own SYN or data of a connection that it has nothing to do with.
fn of_the_host() -> Packet {
    plain_syn().with(|p| (p.flow, p.seq) = (Flow::Third, 4000))
}

fn withdraws(id: u8) -> Packet {
    third(None).with(|p| {
        p.mptcp = Some(dss(dsn_up(0), None, false));
        let removed = MptcpOption::RemoveAddr(RemoveAddr::new(&[id]));
        p.others.push(TcpOption::Mptcp(removed));
    })
}

#[test]
fn both_ways_with_keys_and_a_join() {
    let _ = answered()
        .pass(&[server_ack(0), third(Some(BOTH))])
        .pass(&[server_data(0, 100), first_data(100)])
        .pass(&[client_ack(Flow::First, 100, 100), ack_up(100)])
        .pass(&[join(), right_answer(), proved()])
        .pass(&[
            server_data(100, 100),
            data_down(Flow::First, 100, 100, 100),
            client_ack(Flow::First, 200, 200),
            ack_up(200),
        ])
        .pass(&[
            client_data(Flow::First, 0, 0, 50),
            data_up(0, 50).with(|p| p.ack = seq(ISN_SERVER, 200)),
            server_ack(50),
            ack_down(Flow::First, 50, 50),
        ])
        .clean();
}

/// What has come in may pass another interface before what came of the packet in front of it.
#[test]
fn packets_that_come_in_meanwhile_change_nothing() {
    let data = client_data(Flow::First, 0, 0, 50);
    let _ = confirmed()
        .pass(&[server_data(0, 100), data, first_data(100), data_up(0, 50)])
        .clean();
    // Others' SYNs, and what passes without the proxy.
    let _ = capture()
        .pass(&[offer(), other_offer(), of_the_host(), syn()])
        .pass(&[answer(key()), other_offer(), reply(972)])
        .clean();
}

#[test]
fn keys_may_be_on_their_way_when_the_client_shows_that_it_has_them() {
    let keys = third(Some(BOTH));
    let _ = confirmed()
        .wait(15)
        .pass(std::slice::from_ref(&keys))
        .clean();
    confirmed().wait(25).breaks(Rule::StableMapping, &keys);
}

#[test]
fn first_syns_ask_and_the_third_does_not() {
    capture().pass(&[offer()]).breaks(Rule::Plain, &plain_syn());
    let twice = || capture().pass(&[offer(), syn(), offer(), syn(), offer()]);
    twice().breaks(Rule::Plain, &syn());
    let _ = twice().pass(&[plain_syn()]).clean();
    let _ = twice().pass(&[answer(key()), plain_syn()]).clean();
}

#[test]
fn nobody_is_asked_for_mptcp_whom_no_end_with_tcp_has_addressed() {
    capture().breaks(Rule::Translation, &syn());
    let elsewhere = syn().with(|p| p.flow = Flow::Joined);
    capture()
        .pass(&[offer()])
        .breaks(Rule::Translation, &elsewhere);
    let later = syn().with(|p| p.seq += 1);
    capture().pass(&[offer()]).breaks(Rule::Translation, &later);
    let _ = capture().pass(&[of_the_host()]).clean();
}

#[test]
fn end_with_tcp_is_answered_behind_the_server() {
    capture()
        .pass(&[offer(), syn()])
        .breaks(Rule::AckToServer, &reply(972));
    let asked = || capture().pass(&[offer(), syn(), answer(key())]);
    asked().breaks(Rule::Size, &reply(1000));
    let _ = asked().pass(&[reply(972)]).clean();
}

#[test]
fn each_packet_with_the_first_byte_has_the_keys() {
    answered()
        .pass(&[server_ack(0)])
        .breaks(Rule::StableMapping, &third(None));
    answered()
        .pass(&[server_ack(0), third(Some(BOTH)), server_data(0, 100)])
        .breaks(Rule::StableMapping, &data_down(Flow::First, 0, 0, 100));
}

#[test]
fn joins_follow_the_keys_and_prove_them() {
    let opened = answered().pass(&[server_ack(0), third(Some(BOTH))]);
    opened.breaks(Rule::Join, &join());
    confirmed()
        .pass(&[join(), right_answer()])
        .breaks(Rule::Join, &proof([0; 20]));
    let again = join().with(|p| p.seq = 9);
    let asked = |millis| confirmed().pass(&[join()]).wait(millis);
    asked(970).breaks(Rule::Join, &again);
    let _ = asked(990).pass(std::slice::from_ref(&again)).clean();
}

/// That an uplink is lost nobody tells: a subflow on it is withdrawn, or nothing is heard on it any more.
#[test]
fn joins_come_again_where_an_uplink_may_have_been_lost() {
    let again = join().with(|p| p.seq = 9);
    let ack = Packet::new(Point::FromClient, Flow::Uplink, 0, 0);
    let joined = || {
        let heard = client_ack(Flow::Joined, 0, 0).with(|p| p.flow = ack.flow);
        confirmed().pass(&[join(), right_answer(), proved(), heard])
    };
    joined().breaks(Rule::Join, &again);
    joined().wait(900).breaks(Rule::Join, &again);
    let _ = joined()
        .wait(1100)
        .pass(std::slice::from_ref(&again))
        .clean();
    let _ = joined().pass(&[withdraws(2), again]).clean();
    joined().breaks(Rule::Announcement, &withdraws(3));
}

#[test]
fn mapping_that_moves_is_noticed() {
    let more = || {
        confirmed().pass(&[
            server_data(0, 100),
            first_data(100),
            client_ack(Flow::First, 100, 100),
            server_data(100, 100),
        ])
    };
    let right = data_down(Flow::First, 100, 100, 100);
    let moved = right.clone().with(|p| {
        let mapping = (crate::exchange::dsn_down(99), 101, 100);
        p.mptcp = Some(dss(dsn_up(0), Some(mapping), false));
    });
    more().breaks(Rule::SameBytes, &moved);
    more().pass(&[right]).breaks(Rule::StableMapping, &moved);
}

#[test]
fn ack_that_the_other_leg_has_not_given_is_noticed() {
    let up = || confirmed().pass(&[server_data(0, 100), first_data(100)]);
    up().breaks(Rule::AckToServer, &ack_up(100));
    let down = || confirmed().pass(&[client_data(Flow::First, 0, 0, 50), data_up(0, 50)]);
    down().breaks(Rule::AckToClient, &ack_down(Flow::First, 0, 50));
    down().breaks(Rule::AckToClient, &ack_down(Flow::First, 50, 0));
    let _ = down()
        .pass(&[server_ack(50), ack_down(Flow::First, 50, 50)])
        .clean();
}

/// The converter has taken what it is told.
fn told() -> Exchange {
    let (behind, syn) = (seq(ISN_SERVER, 0), errands::convert_syn());
    let answer = errands::answer(Flow::First, behind);
    by_servers().pass(&[errands::offer(), syn, answer, errands::third()])
}

fn granted() -> Exchange {
    let said = errands::says(errands::GRANTED);
    told().pass(&[said, errands::heard(4), errands::reply(4)])
}

#[test]
fn converter_connects_on() {
    let _ = granted()
        .pass(&[
            errands::up(0, bytes(0, 100)),
            errands::up_out(bytes(0, 100)),
        ])
        .clean();
    let part = errands::says(&errands::GRANTED[..2]);
    told()
        .pass(&[part])
        .breaks(Rule::Preamble, &errands::reply(4));
    told().breaks(Rule::Preamble, &errands::reply(4));
    let asked = || by_servers().pass(&[errands::offer()]);
    let other = errands::convert_syn().with(|p| p.payload[23] = 3);
    asked().breaks(Rule::Preamble, &other);
    let long = errands::convert_syn().with(|p| p.seq = p.seq.wrapping_sub(1));
    asked().breaks(Rule::Preamble, &long);
    let early = errands::third().with(|p| {
        p.mptcp = Some(capable(errands::both(5)));
        p.payload = b"early".to_vec();
    });
    told().breaks(Rule::Preamble, &early);
    let leak = errands::reply(2).with(|p| {
        p.flags = TcpFlags::ACK;
        (p.seq, p.others) = (seq(ISN_CLIENT, 2), vec![]);
        p.payload = errands::GRANTED[2..].to_vec();
    });
    granted().breaks(Rule::Preamble, &leak);
}

#[test]
fn socks5_server_connects_on() {
    let behind = ISN_SERVER.wrapping_sub(13);
    let flight = || {
        let (own, ack) = (seq(behind, 0), seq(ISN_CLIENT, 0));
        Packet::new(Point::ToClient, Flow::Joined, own, ack).with(|p| {
            p.mptcp = Some(capable(errands::both(13)));
            p.payload = errands::SOCKS5.to_vec();
        })
    };
    let open = || {
        let (syn, ack) = (errands::socks_syn(), seq(behind, 0));
        by_servers().pass(&[errands::offer(), syn, errands::answer(Flow::Joined, ack)])
    };
    let _ = open().pass(&[flight()]).clean();
    open()
        .pass(&[flight()])
        .breaks(Rule::Preamble, &errands::reply(12));
    open().breaks(Rule::Preamble, &flight().with(|p| p.payload[9] = 3));
}

#[test]
fn next_one_is_asked_for_a_cause() {
    let asked = || by_servers().pass(&[errands::offer(), errands::convert_syn()]);
    let next = errands::socks_syn;
    let direct = errands::direct_syn().with(|p| p.flow = Flow::Wanted);
    asked().wait(220).breaks(Rule::Preamble, &next());
    let _ = asked().wait(240).pass(&[next()]).clean();
    let _ = asked().wait(300).pass(&[errands::offer(), next()]).clean();
    let _ = asked().wait(300).pass(&[direct]).clean();
    let declined = told().pass(&[errands::says(errands::DECLINED)]);
    let _ = declined.pass(&[next()]).clean();
    told().breaks(Rule::Preamble, &next());
    granted().breaks(Rule::Preamble, &next());
}

/// A FlexCP that connects on echoes what lies between two values of the client's, and a server does not.
#[test]
fn echo_of_an_aggregation_server_need_not_be_exact() {
    let at = |packet: Packet, val, ecr| packet.with(|p| p.timestamps = Some((val, ecr)));
    let answer = errands::answer(Flow::First, seq(ISN_SERVER, 0));
    let open = || {
        by_servers().pass(&[
            at(errands::offer(), 100, 0),
            at(errands::convert_syn(), 100, 0),
            at(answer.clone(), 900, 100),
            at(errands::third(), 100, 900),
            at(errands::says(errands::GRANTED), 901, 100),
            at(errands::heard(4), 100, 901),
            at(errands::reply(4), 901, 100),
            at(errands::up(0, bytes(0, 100)), 110, 901),
            at(errands::up_out(bytes(0, 100)), 110, 901),
        ])
    };
    let ack = |ecr| {
        let (own, ack) = (seq(ISN_CLIENT, 4), seq(ISN_SERVER, 0));
        at(
            Packet::new(Point::ToServer, Flow::Server, own, ack),
            902,
            ecr,
        )
    };
    let heard = |ecr| at(errands::says(errands::GRANTED), 902, ecr);
    let _ = open().pass(&[heard(105), ack(105)]).clean();
    open()
        .pass(&[heard(111)])
        .breaks(Rule::Timestamps, &ack(111));
    let direct = capture().pass(&[
        at(offer(), 100, 0),
        at(syn(), 100, 0),
        at(crate::asking::answer(key()), 900, 100),
        at(reply(972), 900, 100),
        at(server_ack(0), 110, 900),
        at(third(Some(BOTH)), 110, 900),
        at(client_ack(Flow::First, 0, 0), 902, 105),
    ]);
    direct.breaks(Rule::Timestamps, &at(ack_up(0), 902, 105));
}
