//! A hole on a subflow that was left, which the data ACK has overtaken: nobody sends the data again, so
//! FlexCP fills it with bytes of no meaning (design section 4; RFC 8684 section 3.3.6).

use crate::support::{Scenario, Setup};

const FILLER: &str = "client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1> zeros";

/// 1:101 went down on flow 0 and got lost; flow 1 brought it, and its data ACK is there.
fn overtaken() -> Scenario {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+100");
    t
}

/// The client is heard on flow 0 again.
fn heard() -> Scenario {
    let mut t = overtaken();
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    assert_eq!(t.moved(), "");
    t
}

#[test]
fn overtaken_hole_is_filled_even_while_the_subflow_is_not_heard() {
    let mut t = overtaken();
    t.at(399);
    t.timeout().gives(&[]);
    t.at(400);
    t.timeout().gives(&[FILLER]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn overtaken_hole_of_a_subflow_that_is_never_heard_does_not_end_it() {
    let mut t = overtaken();
    for at in (400..60_000).step_by(100) {
        t.at(at);
        assert!(t.timeout().lines().iter().all(|line| line == FILLER));
    }
    assert_eq!(t.subflows(), ["0", "1 active"]);
    let _ = t.moved();
}

#[test]
fn overtaken_hole_is_filled_soon_after_the_subflow_is_heard() {
    let mut t = heard();
    assert_eq!(t.next_timeout(), Some(400));
    t.at(399);
    t.timeout().gives(&[]);
    t.at(400);
    t.timeout().gives(&[FILLER]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn filled_hole_that_is_acknowledged_is_done() {
    let mut t = heard();
    t.at(400);
    t.timeout().gives(&[FILLER]);
    t.client(0, ". 1:1(0) ack 101 win 700 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 700"]);
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn filled_hole_without_an_answer_is_filled_again_and_later_each_time() {
    let mut t = heard();
    for at in [400, 600, 1000, 1800, 3400] {
        t.at(at - 1);
        t.timeout().gives(&[]);
        t.client(0, ". 1:1(0) ack 1 <dss ack 101>")
            .gives(&["drop stale_ack"]);
        t.at(at);
        t.timeout().gives(&[FILLER]);
    }
    assert_eq!(t.moved(), "filler_tx+5 stale_ack+5");
}

#[test]
fn filled_hole_that_a_living_client_never_acknowledges_ends_the_subflow() {
    let mut t = heard();
    let mut resets = Vec::new();
    for at in (400..30_000).step_by(100) {
        t.at(at);
        if let Some(line) = t.timeout().lines().iter().find(|line| *line != FILLER) {
            resets.push(line.clone());
        } else if t.subflows().len() == 2 {
            t.client(0, ". 1:1(0) ack 1 <dss ack 101>")
                .gives(&["drop stale_ack"]);
        }
    }
    assert_eq!(
        resets,
        ["client0 R. 101:101(0) ack 1 win 64 <rst reason 5 transient>"]
    );
    let moved = t.moved();
    assert!(moved.starts_with("mp_rst_tx+1 filler_tx+6"), "{moved}");
    assert_eq!(t.subflows(), ["1 active"]);
    assert_eq!(t.why(), "rst.hole+1 subflow_switch.failed+1");
}

#[test]
fn overtaken_hole_gets_no_new_data_behind_it() {
    let mut t = heard();
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn overtaken_hole_is_filled_at_once_when_the_subflow_is_needed() {
    let mut t = heard();
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 101:201(100) ack 1").gives(&[
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
        FILLER,
    ]);
    assert_eq!(t.moved(), "mp_rst_rx+1 subflow_switch+1 filler_tx+1");
}

#[test]
fn overtaken_hole_of_several_mappings_is_filled_under_each() {
    let mut t = Scenario::two_subflows();
    for (a, b) in [(1, 101), (101, 151)] {
        let line = format!("P. {a}:{b}({}) ack 1", b - a);
        t.server(&line).gives(&[&format!(
            "client0 {line} win 64 <dss ack 1 map {a}:{b}@{a}>"
        )]);
    }
    t.at(200);
    t.server("P. 1:151(150) ack 1")
        .gives(&["client1 P. 1:151(150) ack 1 win 64 <dss ack 1 map 1:151@1>"]);
    t.client(1, ". 1:1(0) ack 151 <dss ack 151>")
        .gives(&["server . 1:1(0) ack 151 win 512"]);
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 151>")
        .gives(&["server . 1:1(0) ack 151 win 600"]);
    t.at(400);
    t.timeout().gives(&[FILLER]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 151>").gives(&[
        "drop stale_ack",
        "client0 . 101:151(50) ack 1 win 64 <dss ack 1 map 101:151@101> zeros",
    ]);
    t.client(0, ". 1:1(0) ack 151 <dss ack 151>")
        .gives(&["drop stale_ack"]);
    assert_eq!(
        t.moved(),
        "subflow_switch+1 retransmitted_down_bytes+150 filler_tx+2 stale_ack+2"
    );
}

#[test]
fn overtaken_hole_that_is_acknowledged_in_part_is_filled_from_there() {
    let mut t = heard();
    t.client(0, ". 1:1(0) ack 41 win 700 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 700"]);
    t.at(400);
    t.timeout()
        .gives(&["client0 . 41:101(60) ack 1 win 64 <dss ack 1 map 1:101@1> zeros"]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn overtaken_hole_that_was_only_reserved_is_declared_by_its_filler() {
    let mut t = Scenario::two_subflows();
    // 1:101 gets lost before FlexCP, 101:201 does not; then flow 0 falls silent.
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(200);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 1:101@101>"]);
    t.client(1, ". 1:1(0) ack 201 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 600"]);
    t.at(400);
    t.timeout().gives(&[FILLER]);
    let _ = t.moved();
}

#[test]
fn overtaken_hole_whose_data_arrives_late_needs_no_filler() {
    let mut t = overtaken();
    t.client(0, ". 1:1(0) ack 101 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn filled_hole_of_a_subflow_that_is_reset_is_forgotten() {
    let mut t = heard();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "mp_rst_rx+1");
}

/// Packets of filler in each burst for a hole of 20 packets whose client ACKs so many of them at once.
fn bursts(at_once: usize) -> Vec<usize> {
    let mut t = Scenario::two_subflows();
    for n in 0..20 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!(". {a}:{b}(100) ack 1")).gives(&[&format!(
            "client0 . {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
        )]);
    }
    t.at(200);
    let _ = t.server(". 1:2001(2000) ack 1 gso 1400");
    let _ = t.client(1, ". 1:1(0) ack 2001 <dss ack 2001>");
    t.at(400);
    let zeros = |lines: &[String]| lines.iter().filter(|line| line.ends_with("zeros")).count();
    let mut bursts = vec![zeros(t.timeout().lines())];
    let (mut acked, mut sent) = (0, bursts[0]);
    while acked < sent {
        acked = sent.min(acked + at_once);
        let ack = 1 + 100 * acked;
        let filler = zeros(
            t.client(0, &format!(". 1:1(0) ack {ack} <dss ack 2001>"))
                .lines(),
        );
        assert!(
            filler == 0 || acked == sent,
            "before all of a burst is there"
        );
        if filler > 0 {
            bursts.push(filler);
            sent += filler;
        }
    }
    let _ = t.moved();
    bursts
}

#[test]
fn filled_hole_that_gets_answers_is_filled_faster_and_faster() {
    for at_once in [1, 2, 3, 16] {
        assert_eq!(bursts(at_once), [1, 2, 4, 8, 5], "{at_once} ACKed at once");
    }
}

#[test]
fn repeated_data_behind_filler_goes_where_nothing_is_before_it() {
    let mut t = Scenario::two_subflows();
    for n in 0..3 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!(". {a}:{b}(100) ack 1")).gives(&[&format!(
            "client0 . {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
        )]);
    }
    // Flow 0 loses 101:201 and is not heard for a while; flow 1 brings that.
    t.at(200);
    let _ = t.server(". 1:201(200) ack 1");
    let _ = t.client(1, ". 1:1(0) ack 201 <dss ack 201>");
    let _ = t.client(0, ". 1:1(0) ack 101 <sack 201:301, dss ack 201>");
    // As long as it may only be an ACK that is late, 201:301 goes again where it stands.
    t.server(". 201:301(100) ack 1")
        .gives(&["client0 . 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.at(590);
    let _ = t.client(0, ". 1:1(0) ack 101 <sack 201:301, dss ack 201>");
    t.at(600);
    t.timeout()
        .gives(&["client0 . 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101> zeros"]);
    t.server(". 201:301(100) ack 1")
        .gives(&["client1 . 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    let _ = t.client(0, ". 1:1(0) ack 301 <dss ack 301>");
    let _ = t.moved();
}

#[test]
fn overtaken_part_of_what_was_only_reserved_is_filled_alone() {
    let mut t = Scenario::two_subflows();
    t.server("P. 201:301(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.at(200);
    t.server("P. 201:301(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 201:301@1>"]);
    let _ = t.server("P. 1:101(100) ack 1");
    let outcome = t.client(1, ". 1:1(0) ack 201 <dss ack 101>");
    assert!(
        outcome.lines()[0].starts_with("server . 1:1(0) ack 101"),
        "{:?}",
        outcome.lines()
    );
    t.at(400);
    t.timeout().gives(&[FILLER]);
    // Its mapping is kept when it goes again.
    t.at(800);
    assert_eq!(t.timeout().lines()[0], FILLER);
    let _ = t.moved();
}

#[test]
fn overtaken_hole_of_a_client_that_has_vanished_is_filled_three_times() {
    // Linux takes a path for stale only once nothing comes there any more.
    let mut t = overtaken();
    let mut fillers = 0;
    for at in (400..7_000_000).step_by(100) {
        t.at(at);
        fillers += t.timeout().lines().len();
    }
    assert_eq!(fillers, 3, "0.4, 0.6 and 1 s");
    let _ = t.moved();
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    t.at(7_000_200);
    t.timeout().gives(&[FILLER]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn hole_before_flexcps_own_fin_is_filled_too() {
    // The client waits for that FIN, and it for what stands before it.
    let mut t = heard();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 101>")
        .gives(&["client0 F. 101:101(0) ack 2 win 64 <dss ack 1>"]);
    t.at(400);
    t.timeout()
        .gives(&["client0 . 1:101(100) ack 2 win 64 <dss ack 1 map 1:101@1> zeros"]);
    t.client(0, ". 2:2(0) ack 102 <dss ack 101>").gives(&[]);
    assert_eq!(t.subflows(), ["1 active"]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn flexcps_own_fin_is_repeated_once_the_hole_before_it_is_closed_however_late() {
    let mut t = heard();
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101 fin 1>");
    let _ = t.server("F. 101:101(0) ack 2");
    let _ = t.client(1, "F. 1:1(0) ack 101 <dss ack 102>");
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 102>");
    for at in (500..=70_000).step_by(500) {
        t.at(at);
        let _ = t.timeout();
        let _ = t.client(0, ". 2:2(0) ack 1 <dss ack 102>");
    }
    let _ = t.client(0, ". 2:2(0) ack 101 <dss ack 102>");
    t.at(71_000);
    t.timeout()
        .gives(&["client0 F. 101:101(0) ack 2 win 64 <dss ack 2>"]);
    let _ = t.moved();
}

#[test]
fn closed_hole_before_flexcps_own_fin_is_filled_too() {
    let mut t = heard();
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101 fin 1>");
    let _ = t.server("F. 101:101(0) ack 2");
    let _ = t.client(1, "F. 1:1(0) ack 101 <dss ack 102>");
    assert_eq!(t.state(), "closed");
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 102>");
    let _ = t.moved();
    t.at(400);
    t.timeout()
        .gives(&["client0 . 1:101(100) ack 2 win 64 <dss ack 2 map 1:101@1> zeros"]);
    assert_eq!(t.moved(), "filler_tx+1");
}

#[test]
fn closed_hole_that_is_filled_in_vain_does_not_end_the_subflow() {
    let mut t = heard();
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101 fin 1>");
    let _ = t.server("F. 101:101(0) ack 2");
    let _ = t.client(1, "F. 1:1(0) ack 101 <dss ack 102>");
    let _ = t.client(1, ". 2:2(0) ack 102 <dss ack 102>");
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 102>");
    for at in (400..30_000).step_by(100) {
        t.at(at);
        let outcome = t.timeout();
        let reset = outcome.lines().iter().find(|line| line.contains(" R"));
        assert_eq!(reset, None, "at {at}");
        t.client(0, ". 2:2(0) ack 1 <dss ack 102>").gives(&[]);
    }
    let moved = t.moved();
    assert!(moved.starts_with("filler_tx+"), "{moved}");
    assert_eq!(t.subflows().len(), 1);
    t.client(0, ". 2:2(0) ack 102 <dss ack 102>").gives(&[]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.moved(), "");
}

#[test]
fn filler_of_what_was_only_reserved_keeps_its_bounds_when_the_data_ack_moves_on() {
    let mut t = Scenario::two_subflows();
    let _ = t.server("P. 201:301(100) ack 1");
    t.at(200);
    let _ = t.server("P. 201:301(100) ack 1");
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(1, ". 1:1(0) ack 201 <dss ack 101>");
    t.at(400);
    t.timeout().gives(&[FILLER]);
    let _ = t.server("P. 101:151(50) ack 1");
    let _ = t.client(1, ". 1:1(0) ack 251 <dss ack 151>");
    t.at(800);
    assert_eq!(t.timeout().lines()[0], FILLER, "not 1:151");
    let _ = t.moved();
}

#[test]
fn given_up_subflow_hears_of_it_again_though_another_has_joined_since() {
    let setup = Setup::new();
    let mut t = setup.clone().two_subflows();
    for client in 1..=4 {
        if client > 1 {
            setup.join(&mut t, client);
        }
        let _ = t.client(client, "P. 1:101(100) ack 1");
        t.at(client as u64 * 100);
    }
    let _ = t.client(0, "R 1:1(0) win 0");
    assert_eq!(t.subflows(), Vec::<String>::new());
    t.at(1000);
    let outcome = t.server("P. 1:101(100) ack 1");
    let told: Vec<_> = outcome.lines().iter().map(|line| &line[..7]).collect();
    // The first of them had to make room.
    assert_eq!(told, ["drop no", "client4", "client2", "client3"]);
    let _ = t.moved();
}

#[test]
fn given_up_subflow_hears_nothing_of_it_once_its_client_comes_back_from_there() {
    let setup = Setup::new();
    let mut t = setup.clone().two_subflows();
    setup.join(&mut t, 2);
    let _ = t.client(2, "R 1:1(0) win 0");
    let _ = t.client(1, "P. 1:101(100) ack 1");
    // It takes the place of the other one.
    t.restart(1);
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    let _ = t.client(0, "R 1:1(0) win 0");
    t.at(1000);
    t.server("P. 1:101(100) ack 1").gives(&["drop no_subflow"]);
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    assert_eq!(t.subflows(), ["1 active"]);
    let _ = t.moved();
}

/// The only subflow misses later data, which the server believes delivered: nothing could go down.
fn stuck() -> Scenario {
    let mut t = Scenario::two_subflows();
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 1:101@201>"]);
    t
}

#[test]
fn only_subflow_of_a_client_that_is_not_heard_is_not_given_up() {
    let mut t = stuck();
    for at in [2000, 60_000] {
        t.at(at);
        t.server("P. 1:101(100) ack 1")
            .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 1:101@201>"]);
    }
    t.client(0, ". 1:1(0) ack 101 <dss ack 101,sack 201:301>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    let _ = t.moved();
    assert_eq!(t.why(), "");
}

#[test]
fn given_up_subflow_hears_of_it_again_while_the_server_repeats_its_data() {
    let mut t = stuck();
    t.at(100);
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 1,sack 201:301>");
    t.at(2000);
    let reset = "client0 R. 301:301(0) ack 1 win 64 <rst reason 5 transient>";
    t.server("P. 1:101(100) ack 1")
        .gives(&["drop no_subflow", reset]);
    t.at(4000);
    t.server("P. 1:101(100) ack 1")
        .gives(&["drop no_subflow", reset]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    let _ = t.moved();
    assert_eq!(t.why(), "rst.stuck+1 rst.repeated+1");
}

#[test]
fn what_a_hole_holds_up_is_no_news_for_the_server_however_it_is_mapped() {
    let mut t = Scenario::two_subflows();
    for (from, end) in [(1, 101), (101, 151), (151, 251)] {
        let len = end - from;
        let _ = t.server(&format!("P. {from}:{end}({len}) ack 1"));
    }
    t.at(200);
    let _ = t.server("P. 1:101(100) ack 1");
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.client(0, ". 1:1(0) ack 1 win 600 <sack 101:251,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    let _ = t.moved();
}
