//! I14 to I18: for each decision one exchange without a cause, and one with each of its causes.

use flexcp_invariants::{Bounds, Options, Point, Rule};
use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpFail,
    MpFastClose, MpPrio, MptcpOption, RemoveAddr, TcpFlags, TcpOption,
};

use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_JOIN, ISN_JOIN_PROXY, ISN_SERVER, KEY_CLIENT, KEY_PROXY,
    Packet, ack_down, ack_up, capable, client_ack, client_data, data_down, data_up, dsn_up, dss,
    join_proof, join_syn, join_syn_ack, seq, server_ack, server_data,
};

pub(crate) const BOUNDS: Bounds = Bounds {
    subflows: 4,
    joins: 2,
    mappings: 4,
    crowded: false,
    short_of_memory: false,
    ending: false,
    redundant: false,
    half_open: 240_000_000,
    rejoin: 60_000_000,
    idle: 7_500_000_000,
    add_addr: 1_000_000,
    silence: 100_000,
};

pub(crate) fn judged(bounds: Bounds) -> Options {
    Options {
        bounds: Some(bounds),
        ..Options::default()
    }
}

/// The client's proof, which is taken.
fn proof(flow: Flow) -> [Packet; 2] {
    let (isn, own) = (seq(ISN_JOIN_PROXY, 0), seq(ISN_JOIN, 0));
    let third = Packet::new(Point::FromClient, flow, own, isn);
    let answer = Packet::new(Point::ToClient, flow, isn, own);
    [
        third.with(|p| p.mptcp = Some(join_proof())),
        answer.with(|p| p.mptcp = Some(dss(dsn_up(0), None, false))),
    ]
}

fn two_with(bounds: Bounds) -> Exchange {
    two_of(judged(bounds))
}

fn two_of(options: Options) -> Exchange {
    Exchange::with_options(false, options)
        .pass(&[
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        ])
        .pass(&proof(Flow::Joined))
        .clean()
}

/// An initial subflow and a joined one.
fn two() -> Exchange {
    two_with(BOUNDS)
}

/// FlexCP resets a subflow.
fn rst(flow: Flow) -> Packet {
    ack_down(flow, 0, 0).with(|p| {
        p.flags = TcpFlags::RST | TcpFlags::ACK;
        p.mptcp = None;
    })
}

/// A client's packet without data, with this option.
fn says(flow: Flow, option: MptcpOption) -> Packet {
    client_ack(flow, 0, 0).with(|p| p.mptcp = Some(option))
}

fn fast_close(key: u64) -> Packet {
    says(Flow::First, MptcpOption::FastClose(MpFastClose { key }))
}

fn server_rst() -> Packet {
    server_ack(0).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK)
}

fn prio(flow: Flow) -> Packet {
    says(flow, MptcpOption::Prio(MpPrio { backup: true }))
}

/// Data with a mapping that differs from an honest one.
fn odd_data(change: impl FnOnce(&mut DssMapping)) -> Packet {
    client_data(Flow::Joined, 0, 0, 100).with(|p| {
        let mut mapping = DssMapping {
            dsn: DataNumber::Long(dsn_up(0)),
            ssn: 1,
            len: 100,
            checksum: None,
        };
        change(&mut mapping);
        p.mptcp = Some(MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(crate::exchange::dsn_down(0))),
            mapping: Some(mapping),
            data_fin: false,
        }));
    })
}

#[test]
fn i14_subflow_that_gives_no_reason_is_reset() {
    two().breaks(Rule::Reset, &rst(Flow::Joined));
    // Nor do a healthy transfer, a key that is not the proxy's, or too short a stall.
    let data = [client_data(Flow::Joined, 0, 0, 100), data_up(0, 100)];
    two().pass(&data).breaks(Rule::Reset, &rst(Flow::Joined));
    two()
        .pass(&[fast_close(KEY_CLIENT)])
        .breaks(Rule::Reset, &rst(Flow::Joined));
    two()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(0, 100),
        ])
        .wait(1900)
        .pass(&[server_data(0, 100)])
        .breaks(Rule::Reset, &rst(Flow::Joined));
    two().wait(59_000).breaks(Rule::Reset, &rst(Flow::Joined));
}

#[test]
fn i14_subflow_whose_client_or_server_gives_a_reason_is_reset() {
    let bare = client_ack(Flow::Joined, 0, 0).with(|p| p.mptcp = None);
    let removed = says(Flow::First, MptcpOption::RemoveAddr(RemoveAddr::new(&[1])));
    let unmapped = client_data(Flow::Joined, 0, 0, 100).with(|p| p.mptcp = None);
    let mappings: Vec<Packet> = (0..5)
        .map(|n| client_data(Flow::Joined, n * 200, n * 200, 100))
        .collect();
    let ends = client_ack(Flow::Joined, 0, 0).with(|p| p.flags = TcpFlags::RST);
    let causes: Vec<(&str, Vec<Packet>)> = vec![
        ("the server resets", vec![server_rst()]),
        ("the client closes fast", vec![fast_close(KEY_PROXY)]),
        ("the client resets", vec![ends]),
        ("the address is removed", vec![removed]),
        (
            "MP_FAIL",
            vec![says(Flow::Joined, MptcpOption::Fail(MpFail { dsn: 1 }))],
        ),
        ("an infinite mapping", vec![odd_data(|m| m.len = 0)]),
        ("a DSS checksum", vec![odd_data(|m| m.checksum = Some(1))]),
        ("data without a mapping", vec![unmapped]),
        (
            "options are stripped",
            vec![bare.clone(), bare.clone(), bare],
        ),
        ("too many mappings", mappings),
    ];
    for (cause, packets) in causes {
        let seen = two().pass(&packets).pass(&[rst(Flow::Joined)]);
        let found = seen.checker.violations();
        assert!(
            found.iter().all(|v| v.rule != Rule::Reset),
            "{cause}: {found:?}"
        );
    }
}

#[test]
fn i14_subflow_is_reset_for_a_stall_a_hole_or_a_client_that_has_left() {
    let _ = two()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(0, 100),
        ])
        .wait(2000)
        .pass(&[server_data(0, 100), rst(Flow::Joined)])
        .clean();
    let _ = two()
        .wait(60_001)
        .pass(&[rst(Flow::Joined), rst(Flow::First)])
        .clean();
    let filler = data_down(Flow::First, 0, 0, 100).with(|p| p.payload = vec![0; 100]);
    let filled = |times: usize| {
        let captured = vec![filler.clone(); times];
        two()
            .pass(&[server_data(0, 100), data_down(Flow::First, 0, 0, 100)])
            .pass(&[server_data(0, 100), data_down(Flow::Joined, 0, 0, 100)])
            .pass(&[client_ack(Flow::Joined, 100, 100), ack_up(100)])
            .pass(&captured)
    };
    assert!(
        filled(6)
            .checker
            .violations()
            .iter()
            .all(|v| v.rule != Rule::Reset)
    );
    let reset = rst(Flow::First).with(|p| p.seq = seq(ISN_SERVER, 100));
    // Zeros that only a capture shows do not count: the proxy's own are marked.
    let found = filled(6).pass(&[reset]);
    assert!(
        found
            .checker
            .violations()
            .iter()
            .any(|v| v.rule == Rule::Reset)
    );
}

#[test]
fn i14_pending_join_is_reset_for_a_wrong_answer_or_for_none() {
    let pending = || {
        Exchange::with_options(false, judged(BOUNDS)).pass(&[
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        ])
    };
    pending().breaks(Rule::Reset, &rst(Flow::Joined));
    let _ = pending().wait(60_000).pass(&[rst(Flow::Joined)]).clean();
    let third = client_ack(Flow::Joined, 0, 0).with(|p| p.mptcp = None);
    let _ = pending().pass(&[third, rst(Flow::Joined)]).clean();
}

#[test]
fn i14_server_is_reset_with_a_cause_only() {
    let reset = ack_up(0).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK);
    two().breaks(Rule::Reset, &reset);
    let strange = client_ack(Flow::First, 0, 0).with(|p| p.flags = TcpFlags::RST);
    two().pass(&[strange]).breaks(Rule::Reset, &reset);
    let _ = two().pass(&[fast_close(KEY_PROXY), reset.clone()]).clean();
    let _ = two()
        .pass(&[server_rst(), server_ack(0), reset.clone()])
        .clean();
    let _ = two().wait(60_001).pass(&[reset]).clean();
}

/// A client's SYN, and what the proxy makes of it and of the server's answer.
fn opening(bounds: Bounds, change: impl Fn(&mut Packet)) -> Exchange {
    let syn = |point, flow, option| {
        Packet::new(point, flow, ISN_CLIENT, 0).with(|p| {
            p.flags = TcpFlags::SYN;
            p.others = vec![TcpOption::Mss(1000)];
            p.mptcp = option;
        })
    };
    let asks = syn(
        Point::FromClient,
        Flow::First,
        Some(capable(CapableKeys::Syn)),
    )
    .with(change);
    let answer = Packet::new(
        Point::FromServer,
        Flow::Server,
        ISN_SERVER,
        seq(ISN_CLIENT, 0),
    );
    Exchange::start(judged(bounds)).pass(&[
        asks,
        syn(Point::ToServer, Flow::Server, None),
        answer.with(|p| p.flags = TcpFlags::SYN | TcpFlags::ACK),
    ])
}

fn plain_answer() -> Packet {
    Packet::new(Point::ToClient, Flow::First, ISN_SERVER, seq(ISN_CLIENT, 0))
        .with(|p| p.flags = TcpFlags::SYN | TcpFlags::ACK)
}

#[test]
fn i15_request_that_can_be_honoured_is_answered_in_plain_tcp() {
    opening(BOUNDS, |_| {}).breaks(Rule::Plain, &plain_answer());
}

#[test]
fn i15_request_that_cannot_be_honoured_passes() {
    let with = |version, flags| {
        move |p: &mut Packet| {
            p.mptcp = Some(MptcpOption::Capable(MpCapable {
                version,
                flags: CapableFlags(flags),
                keys: CapableKeys::Syn,
            }));
        }
    };
    let sha = CapableFlags::HMAC_SHA256.0;
    type Change = Box<dyn Fn(&mut Packet)>;
    let causes: [(&str, Change); 6] = [
        ("no option", Box::new(|p| p.mptcp = None)),
        ("another version", Box::new(with(2, sha))),
        (
            "checksums",
            Box::new(with(1, sha | CapableFlags::CHECKSUM.0)),
        ),
        ("no HMAC", Box::new(with(1, 0))),
        ("data", Box::new(|p| p.payload = vec![1; 10])),
        (
            "a small MSS",
            Box::new(|p| p.others = vec![TcpOption::Mss(100)]),
        ),
    ];
    for (cause, change) in causes {
        let found = opening(BOUNDS, change).pass(&[plain_answer()]);
        let found = found.checker.violations();
        assert!(
            found.iter().all(|v| v.rule != Rule::Plain),
            "{cause}: {found:?}"
        );
    }
    let crowded = Bounds {
        crowded: true,
        ..BOUNDS
    };
    let _ = opening(crowded, |_| {}).pass(&[plain_answer()]).clean();
}

/// The join of a third subflow is refused, and something comes behind it.
fn refused(exchange: Exchange, syn: Packet) -> Vec<Rule> {
    let refusal = Packet::new(Point::ToClient, Flow::Third, 0, seq(ISN_JOIN, 0));
    let refusal = refusal.with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK);
    let seen = exchange.pass(&[syn, refusal, server_ack(0)]);
    let found = seen.checker.violations().iter();
    found.map(|violation| violation.rule).collect()
}

#[test]
fn i16_join_is_refused_with_a_cause_only() {
    assert_eq!(refused(two(), join_syn(Flow::Third)), [Rule::Join]);
    let full = Bounds {
        subflows: 2,
        ..BOUNDS
    };
    assert_eq!(refused(two_with(full), join_syn(Flow::Third)), []);
    let busy = Bounds { joins: 0, ..BOUNDS };
    assert_eq!(refused(two_with(busy), join_syn(Flow::Third)), []);
    let small = join_syn(Flow::Third).with(|p| p.others = vec![TcpOption::Mss(100)]);
    assert_eq!(refused(two(), small), []);
    assert_eq!(
        refused(two().pass(&[server_rst()]), join_syn(Flow::Third)),
        []
    );
}

/// Only with the next number it is one, and the subflow's place is free (RFC 5961 section 3.2).
#[test]
fn i16_subflow_lives_on_after_a_reset_that_is_not_believed() {
    let full = Bounds {
        subflows: 2,
        ..BOUNDS
    };
    let reset = |offset| {
        Packet::new(
            Point::FromClient,
            Flow::Joined,
            seq(ISN_JOIN, offset),
            seq(ISN_JOIN_PROXY, 0),
        )
        .with(|p| p.flags = TcpFlags::RST)
    };
    let refused = |resets: &[Packet]| refused(two_with(full).pass(resets), join_syn(Flow::Third));
    assert_eq!(refused(&[reset(1), reset(2)]), []);
    assert_eq!(refused(&[reset(0)]), [Rule::Join]);
    assert_eq!(refused(&[reset(0), reset(1)]), [Rule::Join]);
}

#[test]
fn i16_join_is_answered_and_its_proof_too() {
    two()
        .pass(&[join_syn(Flow::Third)])
        .breaks(Rule::Join, &server_ack(0));
    let [third, _] = proof(Flow::Third);
    two()
        .pass(&[
            join_syn(Flow::Third),
            join_syn_ack(Flow::Third, ISN_JOIN_PROXY),
            third,
        ])
        .breaks(Rule::Join, &server_ack(0));
}

/// The initial subflow carries data, and its client ACKs it in a window of 4,000 bytes.
fn carrying() -> Exchange {
    carry(two())
}

fn carry(exchange: Exchange) -> Exchange {
    let acked = client_ack(Flow::First, 100, 100);
    exchange.pass(&[
        server_data(0, 100),
        data_down(Flow::First, 0, 0, 100),
        acked,
        ack_up(100),
    ])
}

fn next(exchange: Exchange) -> Exchange {
    exchange.pass(&[server_data(100, 100)])
}

#[test]
fn i17_data_leaves_a_subflow_with_a_cause_only() {
    let moved = data_down(Flow::Joined, 0, 100, 100);
    next(carrying()).breaks(Rule::Switch, &moved);
    next(carrying().wait(1000)).breaks(Rule::Switch, &moved);
    let gone = client_ack(Flow::First, 100, 100).with(|p| p.flags = TcpFlags::RST);
    let leaves =
        client_ack(Flow::First, 100, 100).with(|p| p.flags = TcpFlags::FIN | TcpFlags::ACK);
    for cause in [gone, leaves, prio(Flow::First)] {
        let found = next(carrying().pass(&[cause])).pass(std::slice::from_ref(&moved));
        let found = found.checker.violations();
        assert!(found.iter().all(|v| v.rule != Rule::Switch), "{found:?}");
    }
    // No room: less than what comes.
    let much = [
        server_data(100, 4200),
        data_down(Flow::Joined, 0, 100, 4200),
    ];
    let full = carrying().pass(&much);
    assert!(
        full.checker
            .violations()
            .iter()
            .all(|v| v.rule != Rule::Switch)
    );
    // Silence while something is outstanding.
    let silent = next(carrying())
        .pass(&[data_down(Flow::First, 100, 100, 100)])
        .wait(100)
        .pass(&[server_data(200, 100), data_down(Flow::Joined, 0, 200, 100)]);
    let _ = silent.clean();
}

/// What the first subflow carries has been silent for 100 ms; then `next` goes over the second.
fn left() -> Exchange {
    next(carrying())
        .pass(&[data_down(Flow::First, 100, 100, 100)])
        .wait(100)
        .pass(&[server_data(200, 100), data_down(Flow::Joined, 0, 200, 100)])
}

#[test]
fn i17_new_data_goes_where_the_proxy_tells() {
    let told = || {
        let options = Options {
            told: true,
            ..judged(BOUNDS)
        };
        // The client has told of room on both.
        carry(two_of(options)).pass(&[client_ack(Flow::Joined, 0, 100)])
    };
    let moved = data_down(Flow::Joined, 0, 100, 100);
    next(told()).breaks(Rule::Switch, &moved);
    // As a rule wants it there needs no cause.
    let ruled = next(told()).switches_to(Flow::Joined, true);
    let ruled = ruled.pass(std::slice::from_ref(&moved)).clean();
    let again = ruled.pass(&[server_data(200, 100)]);
    again.breaks(Rule::Switch, &data_down(Flow::First, 100, 200, 100));
    next(told().switches_to(Flow::Joined, true))
        .breaks(Rule::Switch, &data_down(Flow::First, 100, 100, 100));
    // A part of a packet may have gone before a second switch.
    next(told())
        .switches_to(Flow::Joined, true)
        .switches_to(Flow::First, true)
        .pass(std::slice::from_ref(&moved))
        .clean();
    // Otherwise there has to be one.
    next(told())
        .switches_to(Flow::Joined, false)
        .breaks(Rule::Switch, &moved);
    next(told().pass(&[prio(Flow::First)]))
        .switches_to(Flow::Joined, false)
        .pass(&[moved])
        .clean();
}

/// The proxy knows a path's round trip from it, and may leave the path that much earlier.
#[test]
fn i17_answer_to_a_question_without_data_shows_a_round_trip() {
    let asks = ack_down(Flow::First, 0, 0);
    let silent = |exchange: Exchange| {
        let data = data_down(Flow::First, 100, 100, 100);
        let late = next(exchange)
            .pass(&[data])
            .wait(20)
            .pass(&[server_data(200, 100)]);
        late.pass(&[data_down(Flow::Joined, 0, 200, 100)])
    };
    let switches = |exchange: Exchange| {
        let found = exchange.checker.violations().iter();
        found.filter(|v| v.rule == Rule::Switch).count()
    };
    let slow = || {
        let acked = client_ack(Flow::First, 100, 100);
        let sent = [server_data(0, 100), data_down(Flow::First, 0, 0, 100)];
        two().pass(&sent).wait(30).pass(&[acked, ack_up(100)])
    };
    assert_eq!(switches(silent(slow())), 1);
    let asked = slow()
        .pass(&[asks])
        .wait(2)
        .pass(&[client_ack(Flow::First, 100, 100)]);
    assert_eq!(switches(silent(asked)), 0);
}

#[test]
fn i17_subflow_that_is_not_heard_yet_may_be_left_and_gone_back_to() {
    let away = left().pass(&[server_data(300, 100), data_down(Flow::First, 200, 300, 100)]);
    let heard = away
        .clean()
        .wait(1000)
        .pass(&[client_ack(Flow::Joined, 100, 100), ack_up(100)]);
    let back = heard.pass(&[
        server_data(400, 100),
        data_down(Flow::Joined, 100, 400, 100),
    ]);
    // Once it has been heard there has to be another cause to leave it.
    back.clean()
        .pass(&[server_data(500, 100)])
        .breaks(Rule::Switch, &data_down(Flow::First, 300, 500, 100));
}

#[test]
fn i9_data_goes_over_both_subflows_now_and_then() {
    let repeated = |exchange: Exchange, ssn| {
        exchange.pass(&[
            server_data(100, 100),
            data_down(Flow::Joined, ssn, 100, 100),
        ])
    };
    let copy = data_down(Flow::First, 100, 100, 100);
    let copied = || {
        repeated(left(), 100)
            .pass(std::slice::from_ref(&copy))
            .clean()
    };
    repeated(copied().wait(99), 100).breaks(Rule::Amplification, &copy);
    let later = repeated(copied().wait(100), 100).pass(std::slice::from_ref(&copy));
    let _ = later.clean();
}

#[test]
fn i9_data_goes_over_both_subflows_always_where_a_rule_may_want_it() {
    let both = |exchange: Exchange| {
        exchange.pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            data_down(Flow::Joined, 0, 0, 100),
            server_data(100, 100),
            data_down(Flow::First, 100, 100, 100),
        ])
    };
    let copy = data_down(Flow::Joined, 100, 100, 100);
    both(two()).breaks(Rule::Amplification, &copy);
    let redundant = Bounds {
        redundant: true,
        ..BOUNDS
    };
    let _ = both(two_with(redundant)).pass(&[copy]).clean();
}

/// The proxy announces an address.
fn announces(id: u8) -> Packet {
    let option = AddAddr {
        echo: false,
        id,
        addr: "10.9.0.9".parse().expect("an address"),
        port: None,
        hmac: Some(1),
    };
    ack_down(Flow::First, 0, 0).with(|p| p.mptcp = Some(MptcpOption::AddAddr(option)))
}

fn echoes(id: u8) -> Packet {
    let option = AddAddr {
        echo: true,
        id,
        addr: "10.9.0.9".parse().expect("an address"),
        port: None,
        hmac: None,
    };
    says(Flow::First, MptcpOption::AddAddr(option))
}

#[test]
fn i18_address_is_announced_again_after_a_pause_until_it_is_echoed() {
    let once = || two().pass(&[announces(1)]);
    once().breaks(Rule::Announcement, &announces(1));
    once().wait(900).breaks(Rule::Announcement, &announces(1));
    let twice = || once().wait(1000).pass(&[announces(1)]);
    let _ = twice().wait(2000).pass(&[announces(1)]).clean();
    twice().wait(1900).breaks(Rule::Announcement, &announces(1));
    once()
        .pass(&[echoes(1)])
        .wait(1000)
        .breaks(Rule::Announcement, &announces(1));
    // One at a time.
    once().breaks(Rule::Announcement, &announces(2));
    let _ = once().pass(&[echoes(1), announces(2)]).clean();
    // And it is not forgotten.
    once().wait(2100).breaks(Rule::Announcement, &server_ack(0));
    let _ = once()
        .pass(&[echoes(1)])
        .wait(2100)
        .pass(&[server_ack(0)])
        .clean();
}
