//! What can be installed, and that nothing is lost on the way out and back. The harness compares with a translator
//! whose fast path takes what it can (`taken`), and with one that installs at every opportunity (`installed`).

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers on the wire are the low halves of positions"
)]

use flexcp_translator::{FlowEntry, MappingRun};

use crate::support::{Leg, Scenario, Setup, Shelf};

/// Timestamps, both subflows heard, nothing outstanding, installed.
pub(crate) fn steady() -> Scenario {
    let mut t = Setup::new().ts().two_subflows();
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600 <ts 1000 5000>"]);
    assert_eq!(installed_subflows(&t), [1, 1, 0, 0]);
    let _ = t.moved();
    t
}

/// The same with one subflow.
pub(crate) fn alone() -> Scenario {
    let mut t = Setup::new().ts().established();
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    let _ = t.moved();
    t
}

pub(crate) fn installed_subflows(t: &Scenario) -> [u8; 4] {
    let [entry] = t.installed()[..] else {
        panic!("not installed");
    };
    entry.subflows.map(|subflow| subflow.installed)
}

/// Packets that the fast path takes of these, which all have to be forwarded.
pub(crate) fn taken(t: &mut Scenario, packets: &[(usize, &str)]) -> u64 {
    let before = t.taken();
    for &(from, line) in packets {
        let outcome = match from {
            SERVER => t.server(line),
            k => t.client(k, line),
        };
        assert_eq!(outcome.lines().len(), 1, "{line}: {outcome:?}");
    }
    t.taken() - before
}

pub(crate) const SERVER: usize = 9;

#[test]
fn steady_course_is_the_fast_paths() {
    let mut t = steady();
    let packets = [
        (SERVER, "P. 101:201(100) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 201:301(100) ack 1 win 70 <ts 5010 1000>"),
        (
            SERVER,
            ". 301:3301(3000) ack 1 win 70 <ts 5010 1000> gso 1400",
        ),
        (0, ". 1:1(0) ack 201 win 512 <ts 1020 5010,dss ack 201>"),
        (0, ". 1:1(0) ack 3301 win 512 <ts 1020 5010,dss ack 3301>"),
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900020 5000,dss ack 3301 map 1:101@1>",
        ),
        (
            1,
            "P. 101:151(50) ack 1 win 600 <ts 900020 5000,dss ack 3301 map 101:151@101>",
        ),
        (SERVER, ". 3301:3301(0) ack 101 win 64 <ts 5030 1020>"),
        (SERVER, ". 3301:3301(0) ack 151 win 64 <ts 5030 1020>"),
        (
            0,
            "P. 1:11(10) ack 3301 win 512 <ts 1030 5010,dss ack 3301 map 151:161@1>",
        ),
        (SERVER, "P. 3301:3401(100) ack 161 win 64 <ts 5040 1030>"),
    ];
    assert_eq!(taken(&mut t, &packets), packets.len() as u64);
    assert_eq!(t.moved(), "");
}

#[test]
fn mapping_of_the_fast_path_is_kept_for_what_the_server_repeats() {
    let mut t = steady();
    let packets = [
        (SERVER, ". 101:301(200) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 301:501(200) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 501:601(100) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 301 win 512 <ts 1020 5010,dss ack 301>"),
    ];
    assert_eq!(taken(&mut t, &packets), 4);
    t.server(". 401:451(50) ack 1 win 64 <ts 5050 1000>")
        .gives(&["client0 . 401:451(50) ack 1 win 64 <ts 5050 1000,dss ack 1 map 301:501@301>"]);
    let again = t.server(". 501:601(100) ack 1 win 64 <ts 5050 1000>");
    assert!(again.lines()[0].contains("map 501:601@501"), "{again:?}");
    assert_eq!(t.moved(), "retransmitted_down_bytes+150");
}

#[test]
fn duplicate_of_what_the_fast_path_sent_is_known() {
    let mut t = alone();
    // The server repeats one segment, so it may hear of one duplicate.
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5010 1000>");
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5010 1000>");
    let packets = [
        (0, ". 1:1(0) ack 201 win 512 <ts 1020 5010,dss ack 201>"),
        (SERVER, ". 201:301(100) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 301:361(60) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 361 win 512 <ts 1020 5010,dss ack 361>"),
    ];
    assert_eq!(taken(&mut t, &packets), 4);
    t.client(
        0,
        ". 1:1(0) ack 361 win 512 <ts 1020 5010,sack 201:301,dss ack 361>",
    )
    .gives(&["server . 1:1(0) ack 361 win 512 <ts 1020 5010,sack 201:301>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn data_that_the_client_repeats_without_a_mapping_is_known() {
    let mut t = alone();
    let packets = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 1:101@1>",
        ),
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 101:201@101>",
        ),
        (SERVER, ". 101:101(0) ack 201 win 64 <ts 5030 1020>"),
        (
            0,
            "P. 201:301(100) ack 101 win 512 <ts 1040 5030,dss ack 101 map 201:301@201>",
        ),
    ];
    assert_eq!(taken(&mut t, &packets), 4);
    t.client(0, "P. 101:301(200) ack 101 win 512 <ts 1040 5030>")
        .gives(&["server P. 101:301(200) ack 101 win 512 <ts 1040 5030>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_that_was_acked_before_and_while_it_was_installed_is_one_stretch() {
    let mut t = alone();
    let first = "P. 1:101(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 1:101@1>";
    assert_eq!(taken(&mut t, &[(0, first)]), 1);
    // An old number: that is the translator's.
    assert_eq!(
        taken(
            &mut t,
            &[(SERVER, ". 99:99(0) ack 101 win 64 <ts 5030 1020>")]
        ),
        0
    );
    let packets = [
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 101:201@101>",
        ),
        (SERVER, ". 101:101(0) ack 201 win 64 <ts 5030 1020>"),
    ];
    assert_eq!(taken(&mut t, &packets), 2);
    t.client(0, "P. 1:201(200) ack 101 win 512 <ts 1040 5030>")
        .gives(&["server P. 1:201(200) ack 101 win 512 <ts 1040 5030>"]);
    let _ = t.moved();
}

#[test]
fn subflow_that_was_quiet_before_brings_data_to_be_sacked() {
    let mut t = steady();
    let packets = [
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900020 5000,dss ack 101 map 1:101@1>",
        ),
        (
            1,
            "P. 101:201(100) ack 1 win 600 <ts 900020 5000,dss ack 101 map 101:201@101>",
        ),
    ];
    assert_eq!(taken(&mut t, &packets), 2);
    t.server(". 101:101(0) ack 1 win 64 <ts 5030 1020,sack 101:201>")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <ts 5030 900020,dss ack 1,sack 101:201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn part_of_what_was_outstanding_before_is_acked_by_the_fast_path() {
    let mut t = alone();
    let data = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 1:101@1>",
        ),
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 101:201@101>",
        ),
    ];
    assert_eq!(taken(&mut t, &data), 2);
    // A window alone is the translator's, which installs it again with both outstanding.
    let _ = t.server(". 101:101(0) ack 1 win 80 <ts 5010 1000>");
    let acks = [
        (SERVER, ". 101:101(0) ack 51 win 80 <ts 5030 1020>"),
        (SERVER, ". 101:101(0) ack 101 win 80 <ts 5030 1020>"),
    ];
    assert_eq!(taken(&mut t, &acks), 2);
    // What is left is compared in the end.
    assert_eq!(t.moved(), "");
}

#[test]
fn old_data_of_several_subflows_is_not_taken_for_others() {
    let mut t = steady();
    let packets = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 1:101@1>",
        ),
        (SERVER, ". 101:101(0) ack 101 win 64 <ts 5030 1020>"),
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900020 5000,dss ack 101 map 101:201@1>",
        ),
        (SERVER, ". 101:101(0) ack 201 win 64 <ts 5030 1020>"),
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1020 5000,dss ack 101 map 201:301@101>",
        ),
        (SERVER, ". 101:101(0) ack 301 win 64 <ts 5030 1020>"),
    ];
    assert_eq!(taken(&mut t, &packets), 6);
    t.client(0, "P. 1:101(100) ack 101 win 512 <ts 1040 5030>")
        .gives(&["client0 . 101:101(0) ack 201 win 64 <ts 5030 1040,dss ack 301>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ring_that_is_full_leaves_the_rest_to_the_translator() {
    let mut t = steady();
    let mut at = 101;
    for n in 0..130 {
        let end = at + 10 + n % 2;
        let _ = t.server(&format!(
            ". {at}:{end}({}) ack 1 win 64 <ts 5010 1000>",
            end - at
        ));
        at = end;
    }
    assert_eq!(t.taken(), 130, "installed anew when it was full");
    let _ = t.client(
        0,
        &format!(". 1:1(0) ack {at} win 512 <ts 1020 5010,dss ack {at}>"),
    );
    assert_eq!(t.moved(), "");
}

/// More than the 32 bits of a subflow's numbers went down and were ACKed while it was installed, but for two mappings
/// of a thousand bytes. `dropped`: the fast path has forgotten all those that are ACKed; otherwise not the last 64 MiB.
fn gigabytes(entry: &mut FlowEntry, dropped: bool) -> u64 {
    let total: u64 = (5 << 30) + (64 << 20) + 3000;
    let end = entry.subflows[0].snd_next.wrapping_add(total as u32);
    let runs = [
        MappingRun {
            ssn: end.wrapping_sub((64 << 20) + 3000),
            len: 16_384,
            count: 4096,
        },
        MappingRun {
            ssn: end.wrapping_sub(3000),
            len: 1000,
            count: 3,
        },
    ];
    let kept = if dropped { &runs[1..] } else { &runs[..] };
    // Round the ring's end.
    entry.first_run = 126;
    for (n, run) in kept.iter().enumerate() {
        entry.runs[(126 + n) % 128] = *run;
    }
    entry.runs_used = kept.len() as u32;
    let subflow = &mut entry.subflows[0];
    entry.down_next += total;
    entry.down_acked = entry.down_next - 2000;
    entry.down_edge += total;
    subflow.snd_next = end;
    subflow.snd_una = subflow.snd_next.wrapping_sub(2000);
    subflow.snd_edge = subflow.snd_edge.wrapping_add(total as u32);
    total
}

#[test]
fn more_than_the_numbers_tell_apart_goes_down_in_one_entry() {
    for dropped in [false, true] {
        let shelf = Shelf::new(1);
        let mut t = Setup::new().ts().established();
        for line in [". 1:101(100)", ". 101:201(100)", ". 201:301(100)"] {
            if line.contains(" 101:") {
                t.fast_path(&shelf);
            }
            let _ = t.server(&format!("{line} ack 1 win 64 <ts 5000 1000>"));
        }
        let mut total = 0;
        shelf.edit(|entry| total = gigabytes(entry, dropped));
        let at = (301 + total - 1000) as u32;
        let line = format!(". {at}:{}(900) ack 1 win 64 <ts 5000 1000>", at + 900);
        let (bytes, offload) = t.bytes(
            Leg::Server {
                connection: 0,
                backend: 0,
            },
            &line,
        );
        let headers = t.alone(&bytes, offload);
        let dss = headers.dss.expect("a DSS").mapping.expect("a mapping");
        assert_eq!(dss.ssn, at, "dropped: {dropped}");
        assert_eq!(dss.len, 1000, "dropped: {dropped}");
        let _ = t.moved();
        t.uncompared();
    }
}

#[test]
fn joined_subflow_is_installed_once_its_window_is_known() {
    let mut t = Setup::new().ts().two_subflows();
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 1>");
    assert_eq!(installed_subflows(&t), [1, 1, 0, 0]);
    let _ = t.moved();
}

/// A fast path would take the echo of an ACK on the other subflow for one of the repetition, which it does not know to have gone
/// elsewhere.
#[test]
fn repetition_that_went_down_a_subflow_that_is_gone_keeps_the_fast_path_away() {
    let mut t = Setup::new().ts().two_subflows();
    let ack = |data| format!(". 1:1(0) ack 101 win 512 <ts 1500 5000,dss ack {data}>");
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    t.at(300);
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5400 1000>");
    assert_eq!(t.subflows(), ["0", "1 active"]);
    let _ = t.client(1, "R. 1:1(0) ack 1 win 0");
    let _ = t.client(0, &ack(1));
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5500 1000>");
    assert_eq!(t.subflows(), ["0 active"]);
    assert!(t.installed().is_empty());
    t.client(0, &ack(101))
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1500 5400>"]);
    assert_eq!(t.installed().len(), 1);
    let _ = t.moved();
}

#[test]
fn data_of_the_client_on_two_subflows_is_the_fast_paths() {
    let mut t = steady();
    let packets = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
        ),
        // It comes before what stands before it.
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900000 5000,dss ack 101 map 201:301@1>",
        ),
        (
            SERVER,
            ". 101:101(0) ack 1 win 64 <ts 5010 1000,sack 201:301>",
        ),
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 101:201@101>",
        ),
        (
            SERVER,
            ". 101:101(0) ack 51 win 64 <ts 5010 1000,sack 201:301>",
        ),
        (
            1,
            "P. 101:201(100) ack 1 win 600 <ts 900000 5000,dss ack 101 map 301:401@101>",
        ),
        (SERVER, ". 101:101(0) ack 301 win 64 <ts 5020 1000>"),
        (SERVER, ". 101:101(0) ack 351 win 64 <ts 5020 1000>"),
    ];
    assert_eq!(taken(&mut t, &packets), packets.len() as u64);
    assert_eq!(t.moved(), "");
}

#[test]
fn ack_for_two_subflows_is_the_fast_paths() {
    let mut t = steady();
    let packets = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
        ),
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900000 5000,dss ack 101 map 101:201@1>",
        ),
    ];
    assert_eq!(taken(&mut t, &packets), 2);
    let before = t.taken();
    let both = t.server(". 101:101(0) ack 201 win 64 <ts 5000 1000>");
    assert_eq!(both.lines().len(), 2, "{both:?}");
    assert_eq!(t.taken(), before + 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_behind_a_hole_of_its_subflow_is_sacked_by_the_translator() {
    let mut t = steady();
    let packets = [
        (
            0,
            "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
        ),
        (
            0,
            "P. 101:201(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 201:301@101>",
        ),
        (
            1,
            "P. 1:101(100) ack 1 win 600 <ts 900000 5000,dss ack 101 map 101:201@1>",
        ),
    ];
    assert_eq!(taken(&mut t, &packets), 3);
    let before = t.taken();
    t.server(". 101:101(0) ack 1 win 64 <ts 5010 1000,sack 201:301>")
        .gives(&["client0 . 101:101(0) ack 1 win 64 <ts 5010 1000,dss ack 1,sack 101:201>"]);
    assert_eq!(t.taken(), before);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_out_of_order_ends_the_identity_of_the_only_subflow() {
    let mut t = alone();
    let packet = (
        0,
        "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 101:201@1>",
    );
    assert_eq!(taken(&mut t, &[packet]), 0);
    assert_eq!(t.installed()[0].ordered, 0);
    let _ = t.moved();
}

#[test]
fn mapping_of_several_packets_is_the_fast_paths() {
    for mut t in [alone(), steady()] {
        let packets = [
            (
                0,
                "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:1001@1>",
            ),
            (SERVER, ". 101:101(0) ack 51 win 64 <ts 5010 1000>"),
            (SERVER, ". 101:101(0) ack 101 win 64 <ts 5010 1000>"),
            (
                0,
                "P. 101:901(800) ack 101 win 512 <ts 1010 5010,dss ack 101 map 1:1001@1>",
            ),
            (SERVER, ". 101:101(0) ack 801 win 64 <ts 5020 1010>"),
            (
                0,
                "P. 901:1001(100) ack 101 win 512 <ts 1020 5020,dss ack 101 map 1:1001@1>",
            ),
            (
                0,
                "P. 1001:1101(100) ack 101 win 512 <ts 1020 5020,dss ack 101 map 1001:1201@1001>",
            ),
            (SERVER, ". 101:101(0) ack 1101 win 64 <ts 5030 1020>"),
        ];
        assert_eq!(taken(&mut t, &packets), packets.len() as u64);
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn rest_of_a_mapping_is_installed() {
    let mut t = alone();
    let first = "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:1001@1>";
    assert_eq!(taken(&mut t, &[(0, first)]), 1);
    // A window alone is the translator's, which installs it again with what is announced.
    let _ = t.server(". 101:101(0) ack 1 win 80 <ts 5010 1000>");
    assert_eq!(t.installed()[0].subflows[0].announced, 900);
    let packets = [
        (SERVER, ". 101:101(0) ack 101 win 80 <ts 5010 1000>"),
        (
            0,
            "P. 101:1001(900) ack 101 win 512 <ts 1010 5010,dss ack 101 map 1:1001@1>",
        ),
        (SERVER, ". 101:101(0) ack 1001 win 80 <ts 5020 1010>"),
    ];
    assert_eq!(taken(&mut t, &packets), 3);
    assert_eq!(t.moved(), "");
}

#[test]
fn mapping_that_says_otherwise_is_not_the_fast_paths() {
    let first = (
        0,
        "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:1001@1>",
    );
    for other in ["map 1:901@1", "map 101:201@101", "map 101:1002@101"] {
        let mut t = steady();
        assert_eq!(taken(&mut t, &[first]), 1);
        let line = format!("P. 101:201(100) ack 101 win 512 <ts 1000 5000,dss ack 101 {other}>");
        assert_eq!(taken(&mut t, &[(0, &line)]), 0, "{other}");
        let _ = t.moved();
    }
}
