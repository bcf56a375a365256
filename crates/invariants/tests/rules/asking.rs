//! Where the proxy opens towards the MPTCP side, as an aggregation box does: the end with TCP sends the SYN.

use flexcp_invariants::{Options, Point, Rule};
use flexcp_testkit::keys;
use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MpJoin, MptcpOption, RemoveAddr, TcpFlags, TcpOption,
};

use crate::causes::{BOUNDS, judged};
use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_JOIN, ISN_JOIN_PROXY, ISN_SERVER, KEY_CLIENT, KEY_PROXY,
    Packet, ack_up, bytes, capable, client_ack, data_down, dsn_up, dss, seq, server_ack,
    server_data,
};

const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);

fn asking() -> Exchange {
    Exchange::start(Options {
        asks: true,
        ..judged(BOUNDS)
    })
}

pub(crate) fn offer() -> Packet {
    Packet::new(Point::FromServer, Flow::Server, ISN_SERVER, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.others = vec![TcpOption::Mss(1200), TcpOption::SackPermitted];
    })
}

pub(crate) fn syn() -> Packet {
    offer().with(|p| {
        (p.point, p.flow) = (Point::ToClient, Flow::First);
        p.mptcp = Some(capable(CapableKeys::Syn));
    })
}

pub(crate) fn plain_syn() -> Packet {
    syn().with(|p| p.mptcp = None)
}

pub(crate) fn answer(mptcp: Option<MptcpOption>) -> Packet {
    let ack = ISN_SERVER.wrapping_add(1);
    Packet::new(Point::FromClient, Flow::First, ISN_CLIENT, ack).with(|p| {
        p.flags = SYN_ACK;
        p.others = vec![TcpOption::Mss(1000), TcpOption::SackPermitted];
        p.mptcp = mptcp;
    })
}

pub(crate) fn key() -> Option<MptcpOption> {
    Some(capable(CapableKeys::SynAck { sender: KEY_CLIENT }))
}

pub(crate) fn reply(mss: u16) -> Packet {
    answer(None).with(|p| {
        (p.point, p.flow) = (Point::ToServer, Flow::Server);
        p.others[0] = TcpOption::Mss(mss);
    })
}

pub(crate) const fn both() -> CapableKeys {
    CapableKeys::Ack {
        sender: KEY_PROXY,
        receiver: KEY_CLIENT,
    }
}

pub(crate) fn third(keys: Option<CapableKeys>) -> Packet {
    let (own, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, 0));
    Packet::new(Point::ToClient, Flow::First, own, ack).with(|p| p.mptcp = keys.map(capable))
}

/// The SYN of the end with TCP, the proxy's, and both answers.
fn answered() -> Exchange {
    asking().pass(&[offer(), syn(), answer(key()), reply(972)])
}

/// The same, and the end's ACK.
fn opened() -> Exchange {
    answered().pass(&[server_ack(0), third(Some(both()))])
}

/// The same, and the client has shown that it has the keys.
fn confirmed() -> Exchange {
    opened().pass(&[client_ack(Flow::First, 0, 0), ack_up(0)])
}

pub(crate) fn first_data(data_len: u16) -> Packet {
    third(Some(CapableKeys::AckData {
        sender: KEY_PROXY,
        receiver: KEY_CLIENT,
        data_len,
        checksum: None,
    }))
    .with(|p| p.payload = bytes(0, 100))
}

pub(crate) fn join() -> Packet {
    let join = MpJoin::Syn {
        backup: false,
        address_id: 2,
        token: keys::token(KEY_CLIENT),
        nonce: 2,
    };
    Packet::new(Point::ToClient, Flow::Uplink, ISN_JOIN_PROXY, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.mptcp = Some(MptcpOption::Join(join));
    })
}

pub(crate) fn join_answer(hmac: u64) -> Packet {
    let join = MpJoin::SynAck {
        backup: false,
        address_id: 0,
        hmac,
        nonce: 1,
    };
    let ack = ISN_JOIN_PROXY.wrapping_add(1);
    Packet::new(Point::FromClient, Flow::Uplink, ISN_JOIN, ack).with(|p| {
        p.flags = SYN_ACK;
        p.mptcp = Some(MptcpOption::Join(join));
    })
}

pub(crate) fn right_answer() -> Packet {
    join_answer(keys::join_syn_ack((KEY_CLIENT, KEY_PROXY), (1, 2)))
}

pub(crate) fn proof(hmac: [u8; 20]) -> Packet {
    let (own, ack) = (seq(ISN_JOIN_PROXY, 0), seq(ISN_JOIN, 0));
    Packet::new(Point::ToClient, Flow::Uplink, own, ack)
        .with(|p| p.mptcp = Some(MptcpOption::Join(MpJoin::Ack { hmac })))
}

#[test]
fn both_ways_with_keys_and_a_join() {
    let right = keys::join_ack((KEY_PROXY, KEY_CLIENT), (2, 1));
    let _ = opened()
        .pass(&[
            server_data(0, 100),
            first_data(100),
            client_ack(Flow::First, 100, 100),
            ack_up(100),
            server_data(100, 100),
            data_down(Flow::First, 100, 100, 100),
        ])
        .pass(&[join(), right_answer(), proof(right)])
        .clean();
}

#[test]
fn client_without_mptcp() {
    let _ = asking()
        .pass(&[offer(), syn(), answer(None), reply(1000)])
        .pass(&[server_ack(0), third(None), server_data(0, 100)])
        .pass(&[third(None).with(|p| p.payload = bytes(0, 100))])
        .clean();
}

#[test]
fn first_syns_ask_and_the_third_does_not() {
    asking().pass(&[offer()]).breaks(Rule::Plain, &plain_syn());
    let twice = || asking().pass(&[offer(), syn(), offer(), syn(), offer()]);
    twice().breaks(Rule::Plain, &syn());
    let _ = twice().pass(&[plain_syn()]).clean();
}

#[test]
fn syn_offers_what_was_offered() {
    let wider = syn().with(|p| p.window += 1);
    asking().pass(&[offer()]).breaks(Rule::Translation, &wider);
    asking().breaks(Rule::Translation, &syn());
}

#[test]
fn reply_leaves_room_where_there_is_mptcp() {
    let answered = |mptcp| asking().pass(&[offer(), syn(), answer(mptcp)]);
    answered(key()).breaks(Rule::Size, &reply(1000));
    answered(None).breaks(Rule::Size, &reply(972));
    // Checksums are nothing that the proxy goes on with.
    let wants = MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags(CapableFlags::HMAC_SHA256.0 | CapableFlags::CHECKSUM.0),
        keys: CapableKeys::SynAck { sender: KEY_CLIENT },
    });
    let _ = answered(Some(wants)).pass(&[reply(1000)]).clean();
    answered(key()).breaks(Rule::Translation, &reply(972).with(|p| p.mptcp = key()));
}

#[test]
fn keys_stand_in_what_has_the_first_number_until_the_client_has_them() {
    let bare = third(None);
    answered()
        .pass(&[server_ack(0)])
        .breaks(Rule::StableMapping, &bare);
    let later = server_data(100, 100);
    let overtakes = data_down(Flow::First, 100, 100, 100);
    answered()
        .pass(&[later])
        .breaks(Rule::StableMapping, &overtakes);
    let data = || opened().pass(&[server_data(0, 100)]);
    data().breaks(Rule::StableMapping, &data_down(Flow::First, 0, 0, 100));
    data().breaks(Rule::Size, &first_data(99));
    confirmed().breaks(Rule::StableMapping, &third(Some(both())));
    let other = CapableKeys::Ack {
        sender: KEY_PROXY + 1,
        receiver: KEY_CLIENT,
    };
    opened()
        .pass(&[server_ack(0)])
        .breaks(Rule::StableMapping, &third(Some(other)));
}

#[test]
fn joins_follow_the_keys_and_prove_them() {
    opened().breaks(Rule::Join, &join());
    let other = MptcpOption::Join(MpJoin::Syn {
        backup: false,
        address_id: 2,
        token: 1,
        nonce: 2,
    });
    confirmed().breaks(Rule::Join, &join().with(|p| p.mptcp = Some(other)));
    let again = join().with(|p| (p.flow, p.seq) = (Flow::Uplink, 9));
    confirmed().pass(&[join()]).breaks(Rule::Join, &again);
    confirmed()
        .pass(&[join(), right_answer()])
        .breaks(Rule::Join, &proof([0; 20]));
}

/// Confirmed, by a client that takes no joins.
fn closed() -> Exchange {
    let closed = MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags(CapableFlags::HMAC_SHA256.0 | CapableFlags::NO_JOIN_INITIAL.0),
        keys: CapableKeys::SynAck { sender: KEY_CLIENT },
    });
    asking()
        .pass(&[offer(), syn(), answer(Some(closed)), reply(972)])
        .pass(&[
            server_ack(0),
            third(Some(both())),
            client_ack(Flow::First, 0, 0),
        ])
}

#[test]
fn client_that_takes_no_joins_is_asked_for_none() {
    closed().breaks(Rule::Join, &join());
}

/// Nothing brings that connection back.
#[test]
fn end_is_reset_whose_client_has_left_no_subflow_and_takes_no_joins() {
    let left = client_ack(Flow::First, 0, 0).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK);
    let reset = ack_up(0).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK);
    closed().breaks(Rule::Reset, &reset);
    let _ = closed().pass(&[left.clone(), reset.clone()]).clean();
    confirmed().pass(&[left]).breaks(Rule::Reset, &reset);
}

#[test]
fn wrong_answer_to_a_join_gets_no_proof() {
    let right = keys::join_ack((KEY_PROXY, KEY_CLIENT), (2, 1));
    let wrong = confirmed().pass(&[join(), join_answer(1)]);
    wrong.breaks(Rule::Join, &proof(right));
}

/// Addresses that are withdrawn are those of uplinks that are lost.
#[test]
fn addresses_are_withdrawn_that_are_lost() {
    let right = keys::join_ack((KEY_PROXY, KEY_CLIENT), (2, 1));
    let joined = || confirmed().pass(&[join(), right_answer(), proof(right)]);
    let removal = client_ack(Flow::First, 0, 0).with(|p| {
        p.point = Point::ToClient;
        (p.seq, p.ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, 0));
        p.mptcp = Some(dss(dsn_up(0), None, false));
        let removed = MptcpOption::RemoveAddr(RemoveAddr::new(&[2]));
        p.others.push(TcpOption::Mptcp(removed));
    });
    joined().breaks(Rule::Announcement, &removal);
    let mut lost = joined();
    let uplink = "10.9.1.1".parse().unwrap();
    lost.checker.observe_uplinks(0, &[uplink]);
    let _ = lost.pass(&[removal]).clean();
}
