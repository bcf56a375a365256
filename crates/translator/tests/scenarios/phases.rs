//! Each phase of a connection meets each kind of packet: what goes out, what is dropped, and the phase after it, as one
//! table (`phases.txt`). A change in the table is a change of what FlexCP does, and has to be meant.

use std::fmt::Write as _;

use crate::close::{DATA_FIN_DOWN, SERVER_FIN};
use crate::support::{Outcome, Scenario, Setup};

const TABLE: &str = include_str!("phases.txt");

/// A phase, and a connection in it.
type Phase = (&'static str, fn() -> Scenario);

const PHASES: [Phase; 7] = [
    ("syn-sent", || Setup::new().syn_sent()),
    ("syn-received", || Setup::new().syn_received()),
    ("established", Scenario::established),
    ("closed", closed),
    ("reset", reset),
    ("fallback", fallback),
    ("plain", plain),
];

/// Who sends.
#[derive(Clone, Copy)]
enum From {
    Client,
    Server,
}

const EVENTS: [(From, &str); 18] = [
    (
        From::Client,
        "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>",
    ),
    (From::Client, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"),
    (
        From::Client,
        "S 7000:7000(0) win 65535 <mss 1460,sackok,ws 8,capable>",
    ),
    (From::Client, ". 1:1(0) ack 1 win 512 <capable>"),
    (From::Client, ". 1:1(0) ack 1 win 512"),
    (
        From::Client,
        "P. 1:101(100) ack 1 win 512 <dss ack 1 map 1:101@1>",
    ),
    (From::Client, "P. 1:101(100) ack 1 win 512"),
    (From::Client, "F. 1:1(0) ack 1 win 512 <dss ack 1>"),
    (From::Client, "R 1:1(0) win 0"),
    (From::Client, "R 900:900(0) win 0"),
    (
        From::Server,
        "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>",
    ),
    (
        From::Server,
        "S. 0:0(0) ack 900 win 65160 <mss 1460,sackok,ws 7>",
    ),
    (From::Server, ". 1:1(0) ack 1 win 512"),
    (From::Server, "P. 1:101(100) ack 1 win 512"),
    (From::Server, "F. 1:1(0) ack 1 win 512"),
    (From::Server, "R. 0:0(0) ack 1 win 0"),
    (From::Server, "R 1:1(0) win 0"),
    (From::Server, "R 900:900(0) win 0"),
];

fn closed() -> Scenario {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    t
}

fn reset() -> Scenario {
    let mut t = Scenario::established();
    let _ = t.server("R 1:1(0) win 0");
    t
}

fn fallback() -> Scenario {
    let mut t = Setup::new().syn_received();
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    t
}

/// In reverse mode, and the server has answered: on the path nothing is kept of plain TCP.
fn plain() -> Scenario {
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    t
}

fn table() -> String {
    let mut table = String::new();
    for (name, phase) in PHASES {
        let mut first = phase();
        let state = first.state();
        let _ = first.moved();
        let _ = writeln!(table, "== {name} ({state})");
        for (from, line) in EVENTS {
            let mut t = phase();
            let (who, outcome): (_, Outcome) = match from {
                From::Client => ("client", t.client(0, line)),
                From::Server => ("server", t.server(line)),
            };
            let _ = writeln!(table, "{who} {line}");
            for out in outcome.lines() {
                let _ = writeln!(table, "    {out}");
            }
            if t.state() != state {
                let _ = writeln!(table, "    -> {}", t.state());
            }
            let _ = t.moved();
            let _ = t.why();
            let _ = t.breaches();
        }
    }
    table
}

#[test]
fn each_phase_meets_each_kind_of_packet() {
    let table = table();
    if table != TABLE {
        println!("{table}");
    }
    for (number, (is, was)) in (1..).zip(table.lines().zip(TABLE.lines())) {
        assert_eq!(is, was, "line {number} of phases.txt");
    }
    assert_eq!(
        table.len(),
        TABLE.len(),
        "phases.txt, which is printed above"
    );
}
