//! The budget of memory over all connections: who is refused, who gives back, who pays, and who is left alone.

use flexcp_translator::Gauges;

use crate::support::{FLOWS_PER_CONNECTION, Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <capable>";

/// What belongs to a connection, however little is left.
const RESERVE: usize = 2048;

/// Room for 32 connections.
const SMALL: usize = 32 * RESERVE;

/// So many connections, of which the first is established, with `memory` bytes for all.
fn with_memory(memory: usize, connections: usize) -> Setup {
    Setup::new()
        .connections(connections)
        .limits(|limits| limits.memory = memory)
}

/// Connection `number` comes to be; `false`: as plain TCP.
fn open(t: &mut Scenario, number: usize) -> bool {
    let id = number * FLOWS_PER_CONNECTION;
    let _ = t.client(id, SYN);
    if t.state_of(number).is_none() {
        return false;
    }
    let _ = t.server_of(number, SYN_ACK);
    let _ = t.client(id, THIRD);
    assert_eq!(
        t.state_of(number),
        Some(flexcp_translator::ConnectionState::Translating)
    );
    true
}

/// Connections from `first` on, until a new one passes as plain TCP; the first that does.
fn fill(t: &mut Scenario, first: usize) -> usize {
    (first..64)
        .find(|&number| !open(t, number))
        .expect("a bound")
}

/// Ten bytes that start at `ssn` and touch no others.
fn island(ssn: u32) -> String {
    let end = ssn + 10;
    format!(". {ssn}:{end}(10) ack 1 <dss ack 1 map {ssn}:{end}@{ssn}>")
}

/// Islands on flow `id` from `ssn` on until one is dropped: how many were taken, and what came of the last.
fn islands(t: &mut Scenario, id: usize, ssn: u32) -> (u32, Vec<String>) {
    for n in 0..4096 {
        let outcome = t.client(id, &island(ssn + 20 * n));
        if outcome.lines()[0].starts_with("drop") {
            return (n, outcome.lines().to_vec());
        }
    }
    panic!("all were taken");
}

#[test]
fn mappings_beyond_the_part_of_the_budget_are_dropped_and_the_connection_goes_on() {
    let mut t = with_memory(SMALL, 1).established();
    let (taken, last) = islands(&mut t, 0, 1);
    assert_eq!(last, ["drop memory"]);
    // 2048 bytes and a part of what is left, less the connection itself, at 20 bytes each, by doubling.
    assert_eq!(taken, 64);
    assert_eq!(t.moved(), "memory_refused+1 memory+1");
    // What was there already goes again, and so does the refused one once the first is done with.
    let again = t.client(0, &island(21));
    assert!(
        again.lines()[0].starts_with("server . 21:31"),
        "{:?}",
        again.lines()
    );
    t.server(". 1:1(0) ack 11 win 512")
        .gives(&["client0 . 1:1(0) ack 11 win 512 <dss ack 11>"]);
    let refused = t.client(0, &island(1 + 20 * taken));
    assert!(
        refused.lines()[0].starts_with("server ."),
        "{:?}",
        refused.lines()
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn what_is_next_on_a_subflow_without_room_for_it_resets_that() {
    let mut t = with_memory(SMALL, 1).established();
    let (_, last) = islands(&mut t, 0, 21);
    assert_eq!(last, ["drop memory"]);
    let _ = t.moved();
    t.client(0, ". 1:11(10) ack 1 <dss ack 1 map 1:11@1>")
        .gives(&[
            "drop memory",
            "client0 R. 1:1(0) ack 1 win 509 <rst reason 4 transient>",
        ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 memory_refused+1 memory+1");
    assert_eq!(t.why(), "rst.memory+1");
    assert!(
        t.translator.gauges().memory_bytes < 1200,
        "its mappings are gone"
    );
}

#[test]
fn the_more_is_taken_the_less_each_may_have_and_small_ones_are_left_alone() {
    let mut t = with_memory(2 * SMALL, 20).established();
    let mut counts = vec![];
    for number in 0..20 {
        assert!(number == 0 || open(&mut t, number));
        let (taken, last) = islands(&mut t, number * FLOWS_PER_CONNECTION, 1);
        assert_eq!(last, ["drop memory"]);
        counts.push(taken);
    }
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    assert_eq!((counts[0], counts[19]), (128, 64), "{counts:?}");
    let _ = t.moved();
}

#[test]
fn connection_within_its_reserve_is_refused_nothing() {
    let mut t = with_memory(SMALL, 40).two_subflows();
    let plain = fill(&mut t, 1);
    let _ = t.moved();
    for id in [0, 1] {
        for n in 0..8 {
            let (ssn, dsn) = (1 + 20 * n, 1 + 20 * (2 * n + u32::try_from(id).unwrap()));
            let end = ssn + 10;
            let line = format!(
                ". {ssn}:{end}(10) ack 1 <dss ack 1 map {dsn}:{}@{ssn}>",
                dsn + 10
            );
            let outcome = t.client(id, &line);
            assert!(
                outcome.lines()[0].starts_with("server"),
                "{:?}",
                outcome.lines()
            );
        }
    }
    assert_eq!(t.moved(), "", "{plain} connections");
}

#[test]
fn new_connection_without_memory_for_it_passes_as_plain_tcp() {
    let mut t = with_memory(SMALL, 40).established();
    let plain = fill(&mut t, 1);
    // An eighth of the budget is kept for those that there are.
    assert_eq!(plain, 28);
    assert_eq!(
        t.moved(),
        format!(
            "mp_capable_syn_rx+{0} mp_capable_ack_rx+{0} plain_syn+1 connections_opened+{0}",
            plain - 1
        )
    );
    assert_eq!(t.why(), "plain_syn.memory+1");
    let _ = t.client(0, "R. 1:1(0) ack 1 <fastclose>");
    t.at(20_000);
    t.timeout().gives(&[]);
    let _ = t.moved();
    assert!(open(&mut t, plain), "there is room again");
    let _ = t.moved();
}

#[test]
fn handshake_that_is_stale_makes_room_where_memory_is_short() {
    let mut t = with_memory(SMALL, 40).syn_sent();
    t.at(1000);
    let plain = fill(&mut t, 1);
    let _ = t.moved();
    t.at(3000);
    assert!(open(&mut t, plain));
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 half_open_evicted+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn reverse_without_memory_takes_plain_ones_then_refuses_aloud() {
    let mut t = with_memory(SMALL, 40).backends(1).established();
    let mut number = 1;
    let refused = loop {
        let id = number * FLOWS_PER_CONNECTION;
        let outcome = t.client(id, SYN);
        if outcome.lines()[0].starts_with("drop") {
            break outcome.lines().to_vec();
        }
        let _ = t.server_of(number, SYN_ACK);
        let plain = t.state_of(number) == Some(flexcp_translator::ConnectionState::Plain);
        assert_eq!(plain, number >= 28, "{number}");
        let third = if plain {
            ". 1:1(0) ack 1 win 512"
        } else {
            THIRD
        };
        let _ = t.client(id, third);
        number += 1;
    };
    assert_eq!(number, 32, "all of the budget");
    assert_eq!(refused[0], "drop limit_reached");
    assert!(refused[1].starts_with("client320 R."), "{refused:?}");
    assert_eq!(t.why(), "plain_syn.memory+4 rst.no_room+1");
    let _ = t.moved();
}

#[test]
fn join_without_memory_for_its_subflow_is_refused() {
    // What is left over beyond the reserves has to do for a third subflow.
    let setup = with_memory(SMALL + 600, 40);
    let mut t = setup.clone().two_subflows();
    let _ = fill(&mut t, 1);
    setup.join(&mut t, 2);
    let _ = t.moved();
    t.client(3, &setup.join_syn(3)).gives(&[
        "drop limit_reached",
        "client3 R. 0:0(0) ack 1 win 0 <rst reason 2 transient>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_join_refused+1 memory_refused+1 limit_reached+1"
    );
    assert!(t.why().contains("join_refused.memory+1"), "{}", t.why());
}

#[test]
fn mappings_down_beyond_the_part_of_the_budget_are_dropped_until_acks_make_room() {
    let mut t = with_memory(SMALL, 1).established();
    let (mut at, mut len) = (1, 1);
    while t
        .server(&format!(". {at}:{}({len}) ack 1", at + len))
        .lines()
        != ["drop no_subflow"]
    {
        at += len;
        len += 1;
        assert!(len < 200);
    }
    assert_eq!(len, 65);
    assert_eq!(t.moved(), "memory_refused+1 no_subflow+1");
    let _ = t.client(0, ". 1:1(0) ack 4 <dss ack 4>");
    let again = t.server(&format!(". {at}:{}({len}) ack 1", at + len));
    assert!(
        again.lines()[0].starts_with("client0 ."),
        "{:?}",
        again.lines()
    );
    let _ = t.moved();
}

/// A connection with 64 runs on one subflow, beside others that leave little.
fn hoard() -> Scenario {
    let mut t = with_memory(SMALL, 40).established();
    for n in 0..64 {
        // In pairs that change places, so that no two can be one.
        let (ssn, dsn) = (1 + 10 * n, 1 + 10 * (n ^ 1));
        let (end, dsn_end) = (ssn + 10, dsn + 10);
        let line = format!(". {ssn}:{end}(10) ack 1 <dss ack 1 map {dsn}:{dsn_end}@{ssn}>");
        let outcome = t.client(0, &line);
        assert!(
            outcome.lines()[0].starts_with("server"),
            "{:?}",
            outcome.lines()
        );
    }
    let _ = fill(&mut t, 1);
    let _ = t.moved();
    t
}

/// All other connections are heard, and so every place of the table comes to its turn.
fn others_speak(t: &mut Scenario) {
    for number in 1..26 {
        let id = number * FLOWS_PER_CONNECTION;
        let _ = t.client(id, ". 1:1(0) ack 1 win 512 <dss ack 1>");
    }
}

#[test]
fn quiet_connection_gives_back_what_stands_ready_when_memory_is_short() {
    let mut t = hoard();
    let before = t.translator.gauges().memory_bytes;
    // Half of its mappings are done with.
    let _ = t.server(". 1:1(0) ack 321 win 512");
    t.at(900);
    others_speak(&mut t);
    assert_eq!(
        t.translator.gauges().memory_bytes,
        before,
        "it is not quiet yet"
    );
    t.at(1100);
    others_speak(&mut t);
    assert_eq!(t.translator.gauges().memory_bytes, before - 32 * 20);
    assert_eq!(t.moved(), "memory_trimmed+1");
}

#[test]
fn silent_connection_with_more_than_its_part_pays_when_memory_is_short() {
    let mut t = hoard();
    t.at(29_000);
    others_speak(&mut t);
    assert_eq!(t.moved(), "", "it may come back");
    t.at(30_100);
    others_speak(&mut t);
    assert_eq!(t.moved(), "mp_rst_tx+1");
    assert!(t.subflows().is_empty(), "{:?}", t.subflows());
    assert!(t.why().contains("rst.memory+1"), "{}", t.why());
}

#[test]
fn silent_connection_keeps_what_it_has_while_there_is_enough() {
    let mut t = with_memory(2 * SMALL, 40).established();
    let (taken, _) = islands(&mut t, 0, 1);
    for number in 1..26 {
        assert!(open(&mut t, number));
    }
    let _ = t.moved();
    t.at(100_000);
    others_speak(&mut t);
    let again = t.client(0, &island(1 + 20 * (taken - 1)));
    assert!(
        again.lines()[0].starts_with("server ."),
        "{:?}",
        again.lines()
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn nothing_is_held_when_all_connections_are_gone() {
    let mut t = hoard();
    for number in 0..27 {
        let _ = t.client(number * FLOWS_PER_CONNECTION, "R. 1:1(0) ack 1 <fastclose>");
    }
    t.at(20_000);
    let _ = t.timeout();
    assert_eq!(t.translator.gauges(), Gauges::default());
    let _ = t.moved();
}
