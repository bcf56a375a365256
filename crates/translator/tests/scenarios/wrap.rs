//! Wraps: of TCP and subflow numbers at 2^32, and of data numbers in their low half and at 2^64 (RFC
//! 8684 section 3.3.1). Keys were searched for that have initial data numbers right before the wrap.

use crate::support::{Scenario, Setup};

/// Its initial data number ends in `ffff_fd69`: 663 bytes before the low half wraps.
const CLIENT_LOW: u64 = 0x0503_34cf_0074_9a39;
/// With this seed FlexCP's first initial data number ends in `ffff_febb`: 325 bytes before.
const SEED_LOW: u64 = 0x61_6aa8;
/// Initial data number `ffff_fff1_fb08_b499`: 56 GiB before the end of all numbers.
const CLIENT_HIGH: u64 = 0x0503_34cf_0786_69f2;
/// FlexCP's is `ffff_ffc5_b950_8170`: 233 GiB before.
const SEED_HIGH: u64 = 0x47d_a46e;

/// Initial numbers 300 before the wrap on all legs.
fn low_isns() -> Setup {
    let isn = u32::MAX - 299;
    Setup::new().isns(isn, isn)
}

/// `count` packets of 100 bytes down on flow 0, one after the other, each acknowledged.
fn down(t: &mut Scenario, count: u32) {
    for n in 0..count {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!("P. {a}:{b}(100) ack 1"))
            .gives(&[&format!(
                "client0 P. {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
            )]);
        t.client(0, &format!(". 1:1(0) ack {b} <dss ack {b}>"))
            .gives(&[&format!("server . 1:1(0) ack {b} win 512")]);
    }
}

/// The same up.
fn up(t: &mut Scenario, count: u32) {
    for n in 0..count {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.client(
            0,
            &format!("P. {a}:{b}(100) ack 1 <dss ack 1 map {a}:{b}@{a}>"),
        )
        .gives(&[&format!("server P. {a}:{b}(100) ack 1 win 512")]);
        t.server(&format!(". 1:1(0) ack {b}"))
            .gives(&[&format!("client0 . 1:1(0) ack {b} win 64 <dss ack {b}>")]);
    }
}

#[test]
fn tcp_numbers_wrap_in_data_down() {
    let mut t = low_isns().established();
    down(&mut t, 8);
    assert_eq!(t.moved(), "");
}

#[test]
fn tcp_numbers_wrap_in_data_up() {
    let mut t = low_isns().established();
    up(&mut t, 8);
    assert_eq!(t.moved(), "");
}

#[test]
fn tcp_numbers_wrap_in_the_handshake() {
    for isn in [u32::MAX, u32::MAX - 1, 0] {
        let mut t = Setup::new().isns(isn, isn).established();
        down(&mut t, 2);
        assert_eq!(t.moved(), "");
        let mut t = Setup::new().isns(isn, isn).established();
        up(&mut t, 2);
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn tcp_numbers_wrap_within_a_packet_that_is_sent_again_in_parts() {
    let mut t = low_isns().established();
    t.server(". 1:801(800) ack 1")
        .gives(&["client0 . 1:801(800) ack 1 win 64 <dss ack 1 map 1:801@1>"]);
    t.server(". 201:401(200) ack 1")
        .gives(&["client0 . 201:401(200) ack 1 win 64 <dss ack 1 map 1:801@1>"]);
    t.client(0, ". 1:1(0) ack 351 <dss ack 351>")
        .gives(&["server . 1:1(0) ack 351 win 512"]);
    t.server(". 351:401(50) ack 1")
        .gives(&["client0 . 351:401(50) ack 1 win 64 <dss ack 1 map 1:801@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+250");
}

#[test]
fn tcp_numbers_wrap_in_sack_both_ways() {
    let mut t = low_isns().established();
    for (a, b) in [(1, 201), (201, 401)] {
        t.server(&format!(". {a}:{b}(200) ack 1")).gives(&[&format!(
            "client0 . {a}:{b}(200) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
        )]);
    }
    t.client(0, ". 1:1(0) ack 1 <sack 201:401,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 201:401>"]);
    t.client(0, ". 201:401(200) ack 1 <dss ack 1 map 201:401@201>")
        .gives(&["server . 201:401(200) ack 1 win 512"]);
    t.server(". 401:401(0) ack 1 win 64 <sack 201:401>")
        .gives(&["client0 . 401:401(0) ack 1 win 64 <dss ack 1,sack 201:401>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn tcp_numbers_wrap_with_two_subflows_and_a_switch() {
    let mut t = low_isns().two_subflows();
    t.server(". 1:201(200) ack 1")
        .gives(&["client0 . 1:201(200) ack 1 win 64 <dss ack 1 map 1:201@1>"]);
    t.client(0, ". 1:1(0) ack 201 <dss ack 201,prio b>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    t.server(". 201:401(200) ack 1")
        .gives(&["client1 . 1:201(200) ack 1 win 64 <dss ack 1 map 201:401@1>"]);
    t.client(1, ". 1:401(400) ack 201 <dss ack 401 map 1:401@1>")
        .gives(&["server . 1:401(400) ack 401 win 512"]);
    t.server(". 401:401(0) ack 401")
        .gives(&["client1 . 201:201(0) ack 401 win 64 <dss ack 401>"]);
    assert_eq!(t.moved(), "mp_prio_rx+1 subflow_switch+1");
}

#[test]
fn tcp_numbers_wrap_at_the_fins() {
    let mut t = Setup::new().isns(u32::MAX - 1, u32::MAX - 1).established();
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    assert_eq!(t.state(), "closed");
    assert_eq!(t.moved(), "");
}

#[test]
fn reset_at_the_wrap_is_exact() {
    let mut t = Setup::new().isns(u32::MAX - 1, u32::MAX - 1).two_subflows();
    t.client(0, "R 0:0(0) win 0").gives(&[
        "drop blind_reset",
        "client0 . 1:1(0) ack 1 win 509 <dss ack 1>",
    ]);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    assert_eq!(t.moved(), "mp_rst_rx+1 blind_reset+1");
}

#[test]
fn short_data_numbers_of_the_client_wrap() {
    let mut t = Setup::new().keys(CLIENT_LOW, 7).established();
    for n in 0..12 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.client(
            0,
            &format!("P. {a}:{b}(100) ack 1 <dss ack32 1 map32 {a}:{b}@{a}>"),
        )
        .gives(&[&format!("server P. {a}:{b}(100) ack 1 win 512")]);
        t.server(&format!(". 1:1(0) ack {b}"))
            .gives(&[&format!("client0 . 1:1(0) ack {b} win 64 <dss ack {b}>")]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn short_data_numbers_of_the_client_out_of_order_at_the_wrap() {
    let mut t = Setup::new().keys(CLIENT_LOW, 7).two_subflows();
    // 701 lies behind the wrap, 601 before.
    t.client(1, ". 1:101(100) ack 1 <dss ack32 1 map32 701:801@1>")
        .gives(&["server . 701:801(100) ack 1 win 512"]);
    t.client(0, ". 1:101(100) ack 1 <dss ack32 1 map32 501:601@1>")
        .gives(&["server . 501:601(100) ack 1 win 512"]);
    t.client(0, ". 101:201(100) ack 1 <dss ack32 1 map32 601:701@101>")
        .gives(&["server . 601:701(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn short_data_acks_of_the_client_wrap() {
    let mut t = Setup::new().keys(CLIENT_LOW, SEED_LOW).established();
    for n in 0..8 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!("P. {a}:{b}(100) ack 1"))
            .gives(&[&format!(
                "client0 P. {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
            )]);
        t.client(0, &format!(". 1:1(0) ack {b} <dss ack32 {b}>"))
            .gives(&[&format!("server . 1:1(0) ack {b} win 512")]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn short_data_ack_from_before_the_wrap_is_not_one_from_after_it() {
    let mut t = Setup::new().keys(CLIENT_LOW, SEED_LOW).two_subflows();
    for n in 0..4 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!("P. {a}:{b}(100) ack 1"))
            .gives(&[&format!(
                "client0 P. {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
            )]);
    }
    t.client(0, ". 1:1(0) ack 401 <dss ack32 401>")
        .gives(&["server . 1:1(0) ack 401 win 512"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack32 201>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn short_data_fin_behind_the_wrap() {
    let mut t = Setup::new().keys(CLIENT_LOW, 7).established();
    t.client(0, "P. 1:701(700) ack 1 <dss ack 1 map 1:701@1>")
        .gives(&["server P. 1:701(700) ack 1 win 512"]);
    t.client(0, ". 701:701(0) ack 1 <dss ack32 1 fin32 701>")
        .gives(&["server F. 701:701(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

/// Both ends offer nearly a GiB, so that jumps of half a GiB are inside the window.
fn widest_windows(setup: Setup) -> Scenario {
    let mut t = setup.scales(Some(14), Some(14)).established();
    t.server(". 1:1(0) ack 1 win 60000")
        .gives(&["client0 . 1:1(0) ack 1 win 60000 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 1 win 60000 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 60000"]);
    t
}

#[test]
fn data_numbers_of_the_client_wrap_at_the_end_of_all_numbers() {
    const STEP: u64 = 1 << 29;
    let mut t = widest_windows(Setup::new().keys(CLIENT_HIGH, 7));
    let mut dsn = 1;
    let mut ssn = 1_u32;
    // A hundred bytes in every half GiB: the client jumps, which no honest one does.
    for _ in 0..120 {
        let seq = dsn % (1 << 32);
        let line = format!("P. {ssn}:{}(100) ack 1 win 60000", ssn + 100);
        t.client(
            0,
            &format!("{line} <dss ack 1 map {dsn}:{}@{ssn}>", dsn + 100),
        )
        .gives(&[&format!(
            "server P. {seq}:{}(100) ack 1 win 60000",
            (seq + 100) % (1 << 32)
        )]);
        t.server(&format!(". 1:1(0) ack {} win 60000", dsn + 100))
            .gives(&[&format!(
                "client0 . 1:1(0) ack {} win 60000 <dss ack {}>",
                ssn + 100,
                dsn + 100
            )]);
        dsn += STEP;
        ssn += 100;
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn data_numbers_of_the_server_wrap_at_the_end_of_all_numbers() {
    const STEP: u64 = 1 << 29;
    let mut t = widest_windows(Setup::new().keys(CLIENT_HIGH, SEED_HIGH));
    let mut dsn = 1_u64;
    for _ in 0..500 {
        let (seq, end) = (dsn % (1 << 32), (dsn + 100) % (1 << 32));
        let outcome = t.server(&format!("P. {seq}:{end}(100) ack 1"));
        let said = format!("<dss ack 1 map {dsn}:{}@{seq}>", dsn + 100);
        assert!(
            outcome.lines()[0].ends_with(&said),
            "{:?}, not {said}",
            outcome.lines()
        );
        let _ = t.client(
            0,
            &format!(". 1:1(0) ack {end} win 60000 <dss ack {}>", dsn + 100),
        );
        dsn += STEP;
    }
    assert!(!t.moved().contains("drop"));
}
