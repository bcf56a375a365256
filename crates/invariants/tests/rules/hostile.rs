//! Among hostile ends: what is a breach and what is not, which rules a breach costs, and which remain.

use flexcp_invariants::{Options, Point, Rule, Side};
use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MptcpOption, TcpFlags,
};

use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_JOIN, ISN_JOIN_PROXY, ISN_SERVER, Packet, ack_down, ack_up,
    capable, client_ack, client_data, data_down, data_up, dsn_down, dsn_up, dss, join_proof,
    join_syn, join_syn_ack, right_join_proof, seq, server_ack, server_data,
};

fn hostile() -> Exchange {
    Exchange::with_options(
        false,
        Options {
            hostile: true,
            ..Options::default()
        },
    )
}

fn breaches(exchange: &Exchange) -> Vec<(Side, &'static str)> {
    let breaches = exchange.checker.breaches();
    breaches.map(|(_, side, breach)| (side, breach)).collect()
}

/// The breach of the last packet, in an exchange of otherwise honest ends.
#[track_caller]
fn breach_of(before: &[Packet], last: &Packet) -> (Side, &'static str) {
    let exchange = hostile().pass(before);
    assert_eq!(breaches(&exchange), [], "before");
    let found = breaches(&exchange.pass(std::slice::from_ref(last)).clean());
    *found.first().expect("a breach")
}

#[test]
fn honest_ends_do_nothing_that_is_held_against_them() {
    let fin = |p: &mut Packet| p.mptcp = Some(dss(dsn_down(100), Some((dsn_up(100), 0, 1)), true));
    let exchange = hostile().pass(&[
        client_data(Flow::First, 0, 0, 100),
        data_up(0, 100),
        client_data(Flow::First, 0, 0, 100),
        data_up(0, 100),
        server_ack(100),
        ack_down(Flow::First, 100, 100),
        server_data(0, 100),
        data_down(Flow::First, 0, 0, 100)
            .with(|p| p.mptcp = Some(dss(dsn_up(100), Some((dsn_down(0), 1, 100)), false)))
            .with(|p| p.ack = seq(ISN_CLIENT, 100)),
        client_ack(Flow::First, 100, 100)
            .with(|p| p.seq = seq(ISN_CLIENT, 100))
            .with(fin),
    ]);
    assert_eq!(breaches(&exchange.clean()), []);
}

#[test]
fn other_bytes_under_the_same_number_are_a_breach() {
    let mut other = client_data(Flow::First, 0, 0, 100);
    other.payload[7] ^= 1;
    let before = [client_data(Flow::First, 0, 0, 100), data_up(0, 100)];
    assert_eq!(breach_of(&before, &other), (Side::Client, "other bytes"));
    let mut other = server_data(0, 100);
    other.payload[7] ^= 1;
    let before = [server_data(0, 100), data_down(Flow::First, 0, 0, 100)];
    assert_eq!(breach_of(&before, &other), (Side::Server, "other bytes"));
}

#[test]
fn ack_of_what_was_not_sent_is_a_breach() {
    let early = client_ack(Flow::First, 100, 100);
    assert_eq!(
        breach_of(&[server_data(0, 100)], &early),
        (Side::Client, "ACK of what was not sent")
    );
    assert_eq!(
        breach_of(&[client_data(Flow::First, 0, 0, 100)], &server_ack(100)),
        (Side::Server, "ACK of what was not sent")
    );
}

#[test]
fn ack_over_a_gap_is_a_breach() {
    let before = [
        server_data(0, 100),
        server_data(100, 100),
        data_down(Flow::First, 100, 100, 100),
    ];
    assert_eq!(
        breach_of(&before, &client_ack(Flow::First, 200, 200)),
        (Side::Client, "ACK of what was not sent")
    );
}

#[test]
fn mapping_that_contradicts_another_is_a_breach() {
    let before = [client_data(Flow::First, 0, 0, 100), data_up(0, 100)];
    assert_eq!(
        breach_of(&before, &client_data(Flow::First, 0, 500, 100)),
        (Side::Client, "another mapping")
    );
}

#[test]
fn fin_elsewhere_is_a_breach() {
    let fin = |at| server_data(at, 0).with(|p| p.flags = TcpFlags::ACK | TcpFlags::FIN);
    assert_eq!(
        breach_of(&[fin(0)], &fin(10)),
        (Side::Server, "data behind the FIN")
    );
}

#[test]
fn a_joined_subflow_without_proof_counts_for_nothing() {
    // The HMAC of this exchange's third packet is not the right one.
    let exchange = hostile().join().pass(&[
        server_data(0, 100),
        data_down(Flow::First, 0, 0, 100),
        client_ack(Flow::Joined, 0, 100),
    ]);
    assert_eq!(breaches(&exchange), [(Side::Client, "another proof")]);
    exchange.breaks(Rule::AckToServer, &ack_up(100));
}

#[test]
fn mp_join_on_the_initial_subflow_is_a_breach() {
    let odd = client_ack(Flow::First, 0, 0).with(|p| p.mptcp = Some(join_proof()));
    assert_eq!(
        breach_of(&[], &odd),
        (Side::Client, "MP_JOIN on the initial subflow")
    );
}

#[test]
fn data_far_beyond_the_window_is_a_breach_and_a_little_beyond_is_not() {
    // The window ends at 1000.
    let far = client_data(Flow::First, 0, 1001 + (1 << 16), 100);
    assert_eq!(
        breach_of(&[], &far),
        (Side::Client, "data far beyond the window")
    );
    let near = client_data(Flow::First, 0, 1000 + (1 << 16), 100);
    assert_eq!(breaches(&hostile().pass(&[near])), []);
}

#[test]
fn window_of_a_server_that_lies_is_not_what_the_proxy_goes_by() {
    let exchange = hostile().pass(&[
        client_data(Flow::First, 0, 0, 100),
        data_up(0, 100),
        server_ack(100),
        // The same again behind it: from here on the numbers differ.
        client_data(Flow::First, 100, 0, 100),
        data_up(0, 100),
        client_data(Flow::First, 200, 100, 900),
        // That was lost.
        server_ack(1000),
    ]);
    assert_eq!(
        breaches(&exchange),
        [(Side::Server, "ACK of what was not sent")]
    );
    // The window ends at 1100 all the same.
    exchange
        .pass(&[
            client_data(Flow::First, 1100, 1000, 200),
            data_up(1000, 200),
            ack_down(Flow::First, 1300, 100),
        ])
        .clean();
}

/// Numbers so far beyond the window that a proxy drops the packet.
const STRANGE: u64 = 1 << 28;

#[test]
fn servers_number_far_beyond_the_window_is_a_breach_and_a_little_beyond_is_not() {
    let ack = |at| server_data(at, 0).with(|p| p.ack = seq(ISN_CLIENT, 0));
    // The client's window ends at 4000, what the proxy has offered too.
    assert_eq!(
        breach_of(&[], &ack(4001 + (1 << 16))),
        (Side::Server, "data far beyond the window")
    );
    let near = hostile().pass(&[ack(4000 + (1 << 16))]).clean();
    assert_eq!(breaches(&near), []);
}

#[test]
fn what_a_server_says_far_beyond_the_window_counts_for_nothing() {
    // Client: 100 bytes. The server's ACK of them is in a packet that has to be dropped.
    let strange = server_ack(100).with(|p| p.seq = seq(ISN_SERVER, STRANGE));
    hostile()
        .pass(&[
            client_data(Flow::First, 0, 0, 100),
            data_up(0, 100),
            strange,
        ])
        .breaks(Rule::AckToClient, &ack_down(Flow::First, 100, 100));
}

#[test]
fn what_a_server_says_a_window_behind_counts_for_nothing_and_is_no_breach() {
    // More than any window that was ever offered has gone down since.
    let mut exchange = hostile();
    for at in (0..81_000).step_by(900) {
        exchange = exchange.pass(&[
            server_data(at, 900),
            data_down(Flow::First, at, at, 900),
            client_ack(Flow::First, at + 900, at + 900),
            ack_up(at + 900),
        ]);
    }
    let exchange = exchange.pass(&[
        client_data(Flow::First, 0, 0, 100).with(|p| {
            p.ack = seq(ISN_SERVER, 81_000);
            p.mptcp = Some(dss(dsn_down(81_000), Some((dsn_up(0), 1, 100)), false));
        }),
        data_up(0, 100).with(|p| p.ack = seq(ISN_SERVER, 81_000)),
        server_ack(100).with(|p| p.seq = seq(ISN_SERVER, 900)),
    ]);
    assert_eq!(breaches(&exchange), []);
    let ack = ack_down(Flow::First, 100, 100).with(|p| p.seq = seq(ISN_SERVER, 81_000));
    exchange.breaks(Rule::AckToClient, &ack);
}

#[test]
fn clients_number_far_beyond_the_window_is_a_breach_and_counts_for_nothing() {
    // Such a mapping would end what makes the numbers of both sides the same.
    let strange = client_data(Flow::First, STRANGE, 0, 100);
    assert_eq!(
        breach_of(&[], &strange),
        (Side::Client, "a number from elsewhere")
    );
    let bare = client_ack(Flow::First, 0, 0).with(|p| p.mptcp = None);
    let relayed = server_data(0, 100).with(|p| p.point = Point::ToClient);
    let relayed = relayed.with(|p| p.flow = Flow::First);
    let exchange = hostile().pass(&[strange, bare.clone(), ack_up(0), bare, ack_up(0)]);
    let _ = exchange.pass(&[server_data(0, 100), relayed]).clean();
    // Within twice the window it may be data again on another flow.
    let again =
        hostile().pass(&[client_ack(Flow::First, 0, 0).with(|p| p.seq = seq(ISN_CLIENT, 1 << 17))]);
    assert_eq!(breaches(&again.clean()), []);
}

#[test]
fn mappings_of_a_client_that_has_left_mptcp_mean_nothing() {
    let options = Options {
        hostile: true,
        ..Options::default()
    };
    // The bytes come again after 251, so nothing else is odd about it. Without keys data numbers count from 0.
    let mapping = DssMapping {
        dsn: DataNumber::Short(1),
        ssn: 252,
        len: 100,
        checksum: None,
    };
    let odd = MptcpOption::Dss(Dss {
        data_ack: None,
        mapping: Some(mapping),
        data_fin: false,
    });
    let first = client_data(Flow::First, 0, 0, 251).with(|p| p.mptcp = None);
    let other = client_data(Flow::First, 251, 0, 100).with(|p| p.mptcp = Some(odd));
    let plain = Exchange::opened(false, options, None).pass(&[first, data_up(0, 251)]);
    let _ = plain.pass(&[other, data_up(251, 100)]).clean();
    // While it is MPTCP they do.
    let again = client_data(Flow::First, 100, 0, 100);
    let first = [client_data(Flow::First, 0, 0, 100), data_up(0, 100), again];
    let exchange = hostile().pass(&first);
    exchange.breaks(Rule::Translation, &data_up(100, 100));
}

#[test]
fn syn_again_that_asks_for_another_mptcp_is_a_breach_and_one_without_is_not() {
    let syn = Packet::new(Point::FromClient, Flow::First, ISN_CLIENT, 0)
        .with(|p| p.flags = TcpFlags::SYN);
    assert_eq!(
        breaches(&hostile().pass(std::slice::from_ref(&syn)).clean()),
        []
    );
    let other = syn.with(|p| p.mptcp = Some(capable(CapableKeys::SynAck { sender: 7 })));
    assert_eq!(breach_of(&[], &other), (Side::Client, "another MP_CAPABLE"));
}

#[test]
fn syn_with_rst_opens_nothing() {
    let odd = |isn| {
        Packet::new(Point::FromClient, Flow::First, isn, 0)
            .with(|p| p.flags = TcpFlags::SYN | TcpFlags::RST)
    };
    let up = odd(77).with(|p| {
        p.point = Point::ToServer;
        p.flow = Flow::Server;
    });
    let exchange = hostile().pass(&[odd(77), up]);
    // Still the connection that it was.
    let exchange = exchange.pass(&[server_ack(500)]).clean();
    let found = [
        (Side::Client, "flags beside SYN"),
        (Side::Server, "ACK of what was not sent"),
    ];
    assert_eq!(breaches(&exchange), found);
}

#[test]
fn clock_of_a_server_that_leaps_all_the_way_round_goes_on_and_not_back() {
    let clocks = || {
        let options = Options {
            hostile: true,
            ..Options::default()
        };
        Exchange::with_options(true, options)
    };
    let ack = |val| server_data(0, 0).with(|p| p.timestamps = Some((val, 101)));
    let down = |val| ack_down(Flow::First, 0, 0).with(|p| p.timestamps = Some((val, 101)));
    let leap = |n: u32| 900_u32.wrapping_add(n.wrapping_mul(0x7000_0000));
    let round = [ack(leap(1)), down(leap(1)), ack(leap(2)), ack(leap(3))];
    // What comes last is late.
    let _ = clocks()
        .pass(&round)
        .pass(&[ack(leap(2)), down(leap(3))])
        .clean();
    let less = [ack(leap(1)), down(leap(1))];
    clocks().pass(&less).breaks(Rule::Timestamps, &down(900));
}

#[test]
fn what_overran_the_window_and_was_acked_may_come_again_under_its_mapping() {
    // 100 bytes move the numbers apart, then data overruns the window, which ends at 1100.
    let first = [
        client_data(Flow::First, 0, 0, 100),
        data_up(0, 100),
        client_data(Flow::First, 100, 0, 100),
        data_up(0, 100),
        server_ack(100),
        ack_down(Flow::First, 200, 100),
    ];
    let beyond = || client_data(Flow::First, 200, 1050, 100);
    let exchange = hostile().pass(&first).pass(&[
        beyond(),
        data_up(1050, 100),
        ack_down(Flow::First, 300, 100),
        beyond(),
        data_up(1050, 100),
    ]);
    assert_eq!(breaches(&exchange.clean()), []);
    let other = client_data(Flow::First, 200, 1150, 100);
    let before = hostile().pass(&first).pass(&[
        beyond(),
        data_up(1050, 100),
        ack_down(Flow::First, 300, 100),
        other,
    ]);
    assert_eq!(breaches(&before), [(Side::Client, "another mapping")]);
}

#[test]
fn answer_to_a_syn_ack_that_the_proxy_has_forgotten_is_no_breach() {
    let number = 7;
    let third = |isn| {
        let (own, ack) = (seq(ISN_JOIN, 0), seq(isn, 0));
        Packet::new(Point::FromClient, Flow::Joined, own, ack)
            .with(|p| p.mptcp = Some(join_proof()))
    };
    // The SYN was doubled on its way, and the proxy has given the first one up in between.
    let exchange = hostile().pass(&[
        join_syn(Flow::Joined),
        join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        join_syn(Flow::Joined),
        join_syn_ack(Flow::Joined, number),
        third(ISN_JOIN_PROXY),
    ]);
    assert_eq!(breaches(&exchange.clean()), []);
    let exchange = hostile().pass(&[
        join_syn(Flow::Joined),
        join_syn_ack(Flow::Joined, number),
        third(ISN_JOIN_PROXY),
    ]);
    let found = [(Side::Client, "ACK of what was not sent")];
    assert_eq!(breaches(&exchange.clean()), found);
}

#[test]
fn join_that_was_asked_for_leaves_no_way_back_to_tcp() {
    let (own, other) = (seq(ISN_JOIN, 0), seq(ISN_JOIN_PROXY, 0));
    let syn = join_syn(Flow::Joined);
    let syn_ack = join_syn_ack(Flow::Joined, ISN_JOIN_PROXY);
    let third = Packet::new(Point::FromClient, Flow::Joined, own, other)
        .with(|p| p.mptcp = Some(right_join_proof()));
    let rst = |point, from: u32, to: u32| {
        Packet::new(point, Flow::Joined, from, to).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK)
    };
    let refused = rst(Point::ToClient, 0, own);
    let reset = rst(Point::ToClient, other, own);
    let given_up = rst(Point::FromClient, own, other);
    let fallback = [
        client_ack(Flow::First, 0, 0).with(|p| p.mptcp = None),
        ack_up(0),
        server_data(0, 100),
    ];
    let relayed = server_data(0, 100).with(|p| {
        p.point = Point::ToClient;
        p.flow = Flow::First;
    });
    // Alone, it may fall back.
    let alone = hostile().pass(&fallback);
    let _ = alone.pass(std::slice::from_ref(&relayed)).clean();
    let fates: [&[Packet]; 5] = [
        std::slice::from_ref(&syn),
        &[syn.clone(), refused],
        &[syn.clone(), syn_ack.clone(), given_up],
        &[syn.clone(), syn_ack.clone(), third.clone(), reset],
        &[syn.clone(), syn_ack, third, ack_down(Flow::Joined, 0, 0)],
    ];
    for fate in fates {
        for exchange in [hostile(), Exchange::established(false)] {
            let joined = exchange.pass(fate).pass(&fallback);
            joined.breaks(Rule::StableMapping, &relayed);
        }
    }
}

#[test]
fn ack_without_mptcp_is_no_data_ack_beside_a_joined_subflow() {
    let (own, other) = (seq(ISN_JOIN, 0), seq(ISN_JOIN_PROXY, 0));
    let third = Packet::new(Point::FromClient, Flow::Joined, own, other)
        .with(|p| p.mptcp = Some(right_join_proof()));
    let bare = || {
        [
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            client_ack(Flow::First, 100, 0).with(|p| p.mptcp = None),
        ]
    };
    let joins = [
        join_syn(Flow::Joined),
        join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        third,
    ];
    let joined = hostile()
        .pass(&joins)
        .pass(&[ack_down(Flow::Joined, 0, 0)])
        .pass(&bare());
    assert_eq!(breaches(&joined), []);
    joined.breaks(Rule::AckToServer, &ack_up(100));
    let alone = hostile().pass(&bare()).pass(&[ack_up(100)]);
    let _ = alone.clean();
}

#[test]
fn syn_that_asks_for_mptcp_of_another_kind_passes_with_its_own_clock() {
    let syn = |option, val| {
        Packet::new(Point::FromClient, Flow::First, ISN_CLIENT, 0).with(|p| {
            p.flags = TcpFlags::SYN;
            p.mptcp = Some(MptcpOption::Capable(option));
            p.timestamps = Some((val, 0));
        })
    };
    let up = |val| {
        Packet::new(Point::ToServer, Flow::Server, ISN_CLIENT, 0).with(|p| {
            p.flags = TcpFlags::SYN;
            p.timestamps = Some((val, 0));
        })
    };
    let begin = |option| {
        let mut exchange = hostile();
        exchange.checker.retain(|_| false);
        exchange.pass(&[syn(option, 1007), up(1007), syn(option, 1000)])
    };
    let v1 = MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys: CapableKeys::Syn,
    };
    begin(v1).breaks(Rule::Timestamps, &up(1000));
    let (v0, checksum) = (CapableKeys::SynAck { sender: 7 }, CapableFlags::CHECKSUM);
    let others = [
        MpCapable {
            version: 0,
            keys: v0,
            ..v1
        },
        MpCapable {
            flags: CapableFlags(v1.flags.0 | checksum.0),
            ..v1
        },
    ];
    for other in others {
        let _ = begin(other).pass(&[up(1000)]).clean();
    }
}

#[test]
fn join_on_ends_of_a_syn_that_nobody_answered() {
    let odd = join_syn(Flow::Joined).with(|p| {
        p.flags = TcpFlags::SYN | TcpFlags::FIN;
        p.mptcp = None;
    });
    hostile()
        .pass(&[
            odd,
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        ])
        .clean();
}

/// A client that has acknowledged what was never sent.
fn after_a_breach() -> Exchange {
    let exchange = hostile().pass(&[client_ack(Flow::First, 5000, 5000)]);
    assert_eq!(breaches(&exchange)[0].0, Side::Client);
    exchange
}

#[test]
fn after_a_breach_other_bytes_of_the_client_are_its_own_affair() {
    let mut other = client_data(Flow::First, 0, 0, 100);
    other.payload[7] ^= 1;
    let mut up = data_up(0, 100);
    up.payload[7] ^= 1;
    let passed = after_a_breach().pass(&[
        client_data(Flow::First, 0, 0, 100),
        data_up(0, 100),
        other,
        up,
    ]);
    let _ = passed.clean();
}

#[test]
fn after_a_breach_bytes_that_did_not_come_in_are_still_wrong() {
    let mut wrong = data_up(0, 100);
    wrong.payload[7] ^= 1;
    after_a_breach()
        .pass(&[client_data(Flow::First, 0, 0, 100)])
        .breaks(Rule::SameBytes, &wrong);
}

#[test]
fn after_a_breach_the_server_is_still_told_nothing_of_its_own_account() {
    after_a_breach()
        .pass(&[server_data(0, 100), data_down(Flow::First, 0, 0, 100)])
        .breaks(Rule::AckToServer, &ack_up(100));
    after_a_breach().breaks(Rule::Window, &ack_up(0).with(|p| p.window = 60_000));
    let damaged = ack_up(0).with(|p| p.damaged = true);
    after_a_breach().breaks(Rule::Checksum, &damaged);
}

#[test]
fn after_a_breach_mappings_are_still_stable_and_data_acks_true() {
    let longer = data_down(Flow::First, 0, 0, 100)
        .with(|p| p.mptcp = Some(dss(dsn_up(0), Some((dsn_down(0), 1, 120)), false)));
    after_a_breach()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(0, 100),
        ])
        .breaks(Rule::StableMapping, &longer);
    after_a_breach()
        .pass(&[client_data(Flow::First, 0, 0, 100), data_up(0, 100)])
        .breaks(Rule::AckToClient, &ack_down(Flow::First, 0, 100));
}

#[test]
fn a_stray_goes_on_as_it_came() {
    let stray = Packet::new(Point::FromClient, Flow::Joined, 7, 9);
    let same = stray.clone().with(|p| p.point = Point::ToServer);
    let exchange = hostile().pass(&[stray, same]);
    assert_eq!(breaches(&exchange.clean()), []);
}

#[test]
fn connection_that_the_proxy_has_let_go_of_may_begin_again_on_the_same_ends() {
    let mut exchange = hostile();
    exchange.checker.retain(|_| false);
    let syn = Packet::new(Point::FromClient, Flow::First, ISN_SERVER, 0)
        .with(|p| p.flags = TcpFlags::SYN);
    let up = syn.clone().with(|p| {
        p.point = Point::ToServer;
        p.flow = Flow::Server;
    });
    assert_eq!(breaches(&exchange.pass(&[syn, up]).clean()), []);
}
