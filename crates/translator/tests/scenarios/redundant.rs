//! Redundant mode: the server's data goes down every path, and what comes first counts (RFC 8684 section 3.3.1).

use std::time::Duration;

use flexcp_translator::{AccessId, Redundant, RoundRobin, Thresholds};

use crate::support::{Scenario, Setup};

/// Two subflows under the mode; it is 1000 ms, and nothing has been sent.
fn two(mode: Redundant) -> Scenario {
    let setup = Setup::new().accesses(2).steered(mode, [1000, 0]);
    let mut t = setup.two_subflows();
    let _ = (t.why(), t.moved());
    t.at(1000);
    t
}

/// The server sends `len` bytes from `dsn` on: how many went down each flow, new or as a copy.
fn sends(t: &mut Scenario, dsn: u32, len: u32) -> [usize; 2] {
    let end = dsn + len;
    let gave = t.server(&format!("P. {dsn}:{end}({len}) ack 1"));
    let map = format!("map {dsn}:{end}@");
    ["client0 ", "client1 "].map(|flow| {
        let lines = gave.lines().iter();
        lines
            .filter(|line| line.starts_with(flow) && line.contains(&map))
            .count()
    })
}

/// The client ACKs all before `end` on a flow.
fn acks(t: &mut Scenario, flow: usize, ssn: u32, end: u32) {
    let line = format!(". 1:1(0) ack {ssn} win 4096 <dss ack {end}>");
    let _ = t.client(flow, &line);
}

#[test]
fn data_goes_down_every_path_and_is_acked_once() {
    let mut t = two(Redundant::default());
    t.server("P. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
    ]);
    assert_eq!(t.moved(), "copied_down_bytes+100");
    t.client(1, ". 1:1(0) ack 101 win 512 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.client(0, ". 1:1(0) ack 101 win 512 <dss ack 101>")
        .gives(&["drop stale_ack"]);
    t.server("P. 101:201(100) ack 1").gives(&[
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
        "client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    let _ = t.moved();
}

#[test]
fn data_that_is_cut_in_pieces_is_copied_piece_by_piece() {
    let mut t = two(Redundant::default());
    acks(&mut t, 0, 1, 1);
    acks(&mut t, 1, 1, 1);
    // A mapping is shorter than what a packet brings at most.
    let gave = t.server("P. 1:65466(65465) ack 1 gso 1400");
    for flow in ["client0", "client1"] {
        let bytes = ["map 1:65456@1>", "map 65456:65466@65456>"];
        for map in bytes {
            let found = gave
                .lines()
                .iter()
                .any(|line| line.starts_with(flow) && line.contains(map));
            assert!(found, "{flow} {map} {gave:?}");
        }
    }
    assert!(t.moved().contains("copied_down_bytes+65465"));
}

#[test]
fn what_the_server_sends_again_is_not_copied() {
    let mut t = two(Redundant::default());
    assert_eq!(sends(&mut t, 1, 100), [1, 1]);
    t.at(1010);
    let [one, two] = sends(&mut t, 1, 100);
    assert_eq!(one + two, 1);
    assert_eq!(
        t.moved(),
        "retransmitted_down_bytes+100 copied_down_bytes+100"
    );
}

#[test]
fn path_that_is_silent_gets_no_copies_and_the_other_goes_on() {
    for silent in [0, 1] {
        let mut t = two(Redundant::default());
        let other = 1 - silent;
        let mut counts = [0; 2];
        for n in 0..60_u32 {
            t.at(1000 + u64::from(n) * 10);
            let dsn = n * 1000 + 1;
            let went = sends(&mut t, dsn, 1000);
            assert_eq!(went[other], 1, "the other path goes on, {n}");
            counts[silent] += went[silent];
            t.at(1005 + u64::from(n) * 10);
            acks(&mut t, other, dsn + 1000, dsn + 1000);
        }
        // For as long as silence may be nothing but a long way.
        assert!((3..=11).contains(&counts[silent]), "{counts:?}");
        let [zero, one] = [0, 1].map(|flow: usize| {
            let view = t.view().expect("a connection");
            view.subflows[flow].bytes_down
        });
        assert!(zero.max(one) >= 60_000);
        let _ = (t.why(), t.moved());
    }
}

#[test]
fn path_that_lags_gets_copies_again_when_it_has_caught_up() {
    let mut t = two(Redundant::default());
    acks(&mut t, 0, 1, 1);
    acks(&mut t, 1, 1, 1);
    let mut copied = 0;
    for n in 0..12_u32 {
        t.at(1000 + u64::from(n) * 2);
        let dsn = n * 40_000 + 1;
        copied += sends(&mut t, dsn, 40_000)[1];
        acks(&mut t, 0, dsn + 40_000, dsn + 40_000);
    }
    // The seventh makes 280,000 bytes that the client has from the other path.
    assert_eq!(copied, 7);
    acks(&mut t, 1, 240_001, 480_001);
    assert_eq!(sends(&mut t, 480_001, 1000), [1, 1]);
    let _ = (t.why(), t.moved());
}

#[test]
fn active_path_that_lags_is_left() {
    let mut t = two(Redundant::default());
    acks(&mut t, 0, 1, 1);
    acks(&mut t, 1, 1, 1);
    for n in 0..8_u32 {
        t.at(1000 + u64::from(n) * 2);
        let dsn = n * 40_000 + 1;
        let went = sends(&mut t, dsn, 40_000);
        assert_eq!(went, [usize::from(n < 7), 1]);
        acks(&mut t, 1, dsn + 40_000, dsn + 40_000);
    }
    assert_eq!(t.subflows(), ["0", "1 active"]);
    assert_eq!(t.why(), "subflow_switch.lagging+1");
    let _ = t.moved();
}

/// The client has all data from the first path before it ACKs it on the second.
#[test]
fn primary_path_of_longer_delay_is_taken() {
    let mut t = two(Redundant::default());
    acks(&mut t, 0, 1, 1);
    acks(&mut t, 1, 1, 1);
    for n in 0..12_u32 {
        t.at(1000 + u64::from(n) * 20);
        if n == 5 {
            let primary = vec![AccessId(1)];
            let mode = Redundant {
                primary,
                ..Redundant::default()
            };
            let setup = Setup::new().accesses(2).steered(mode, [1000, 0]);
            t.configure_as(&setup, 1);
        }
        let dsn = n * 1000 + 1;
        assert_eq!(sends(&mut t, dsn, 1000), [1, 1], "{n}");
        t.at(1010 + u64::from(n) * 20);
        acks(&mut t, 0, dsn + 1000, dsn + 1000);
        acks(&mut t, 1, dsn.saturating_sub(1000).max(1), dsn + 1000);
    }
    assert_eq!(t.subflows(), ["0", "1 active"]);
    assert_eq!(t.why(), "subflow_switch.preferred+1");
    let _ = t.moved();
}

#[test]
fn path_that_the_client_wants_as_backup_gets_no_copies() {
    let mut t = two(Redundant::default());
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 1,prio b>");
    assert_eq!(sends(&mut t, 1, 100), [1, 0]);
    let _ = t.moved();
}

#[test]
fn copy_that_is_lost_is_filled() {
    let mut t = two(Redundant::default());
    assert_eq!(sends(&mut t, 1, 100), [1, 1]);
    assert_eq!(sends(&mut t, 101, 100), [1, 1]);
    t.at(1010);
    acks(&mut t, 0, 201, 201);
    // The first is missing there.
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <sack 101:201,dss ack 201>");
    t.at(1300);
    t.timeout()
        .gives(&["client1 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1> zeros"]);
    t.at(1310);
    acks(&mut t, 1, 201, 201);
    assert_eq!(sends(&mut t, 201, 100), [1, 1]);
    let _ = t.moved();
}

#[test]
fn connection_is_carried_by_no_fast_path() {
    for (copies, count) in [(true, 0), (false, 1)] {
        let setup = Setup::new().ts().accesses(2);
        let setup = if copies {
            setup.steered(Redundant::default(), [1000, 0])
        } else {
            setup.steered(RoundRobin, [1000, 0])
        };
        let mut t = setup.two_subflows();
        let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
        let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
        let _ = t.client(1, ". 1:1(0) ack 101 win 600 <ts 900000 5000,dss ack 101>");
        let _ = t.client(1, ". 1:1(0) ack 101 win 610 <ts 900001 5000,dss ack 101>");
        assert_eq!(t.installed().len(), count);
        let _ = t.moved();
    }
}

#[test]
fn with_thresholds_there_are_copies_while_no_path_is_within() {
    let limited = Redundant {
        primary: vec![AccessId(0)],
        thresholds: Thresholds {
            rtt: Some(Duration::from_millis(50)),
            loss: None,
        },
    };
    let mut t = two(limited);
    let mut ssns = [1, 1];
    let mut copied = vec![];
    for n in 0..12_u32 {
        let at = 2000 + u64::from(n) * 200;
        t.at(at);
        let dsn = n * 100 + 1;
        let went = sends(&mut t, dsn, 100);
        ssns[0] += 100 * u32::try_from(went[0]).unwrap();
        ssns[1] += 100 * u32::try_from(went[1]).unwrap();
        copied.push(went[1]);
        // The way takes 20 ms at first, then 90.
        t.at(at + if n < 5 { 20 } else { 90 });
        for flow in [0, 1] {
            acks(&mut t, flow, ssns[flow], dsn + 100);
        }
    }
    assert_eq!(copied[..6], [0; 6]);
    assert_eq!(copied[8..], [1; 4]);
    let _ = (t.why(), t.moved());
}
