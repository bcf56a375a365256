//! What can't be installed: a rule each.

use crate::flow_entry::{SERVER, alone, installed_subflows, steady};
use crate::support::{Scenario, Setup};

/// After `line`, which is forwarded, the connection is not installed.
#[track_caller]
fn refuses(t: &mut Scenario, from: usize, line: &str) {
    let outcome = match from {
        SERVER => t.server(line),
        k => t.client(k, line),
    };
    let verdict = outcome.lines().first().map_or("", |line| line);
    assert!(
        !verdict.starts_with("drop") && !verdict.is_empty(),
        "{outcome:?}"
    );
    assert_eq!(t.installed(), [], "{line}");
    let _ = t.moved();
}

#[test]
fn end_of_the_servers_data_refuses() {
    let mut t = steady();
    refuses(
        &mut t,
        SERVER,
        "FP. 101:201(100) ack 1 win 64 <ts 5000 1000>",
    );
    // Also once the client has all of it.
    refuses(
        &mut t,
        0,
        ". 1:1(0) ack 201 win 512 <ts 1000 5000,dss ack 202>",
    );
}

#[test]
fn end_of_the_clients_data_refuses() {
    let mut t = steady();
    refuses(
        &mut t,
        0,
        ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101 fin 1>",
    );
    // Also once the server has all of it.
    refuses(&mut t, SERVER, ". 101:101(0) ack 2 win 64 <ts 5000 1000>");
}

#[test]
fn repeated_data_that_waits_for_its_answer_refuses() {
    let mut t = steady();
    let data = "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>";
    let _ = t.client(0, data);
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5000 1000>");
    refuses(&mut t, 0, data);
    // Its answer goes where it came from.
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5000 1000>");
    assert_eq!(installed_subflows(&t), [1, 1, 0, 0]);
}

#[test]
fn servers_probe_that_waits_for_its_answer_refuses() {
    let mut t = steady();
    refuses(&mut t, SERVER, ". 100:100(0) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn data_beyond_the_servers_window_refuses() {
    let mut t = alone();
    let _ = t.server(". 101:201(100) ack 1 win 1 <ts 5000 1000>");
    // 64 of 128 bytes was the furthest that was offered.
    let line = "P. 1:9001(9000) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:9001@1> gso 1400";
    refuses(&mut t, 0, line);
}

#[test]
fn joined_subflow_that_does_not_scale_windows_refuses() {
    let mut t = alone();
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,join>");
    // What is not authenticated yet takes no part.
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>");
    refuses(&mut t, SERVER, ". 201:301(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn subflow_of_the_other_family_is_not_installed() {
    let mut t = Setup::new().ts().mixed().two_subflows();
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 1>");
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    // Nor the connection while it is the active one, or something has come up on it.
    refuses(
        &mut t,
        1,
        "P. 1:101(100) ack 1 win 600 <ts 900000 5000,dss ack 1 map 1:101@1>",
    );
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    t.client(
        0,
        ". 1:1(0) ack 101 win 512 <ts 1000 5000,prio b,dss ack 101>",
    )
    .gives(&[]);
    refuses(
        &mut t,
        SERVER,
        ". 101:201(100) ack 101 win 64 <ts 5000 1000>",
    );
}

#[test]
fn active_subflow_that_is_meant_as_backup_refuses() {
    let mut t = alone();
    t.client(
        0,
        ". 1:1(0) ack 101 win 512 <ts 1000 5000,prio b,dss ack 101>",
    )
    .gives(&[]);
    refuses(&mut t, SERVER, ". 101:201(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn data_outstanding_on_a_subflow_that_was_left_refuses() {
    let mut t = steady();
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    t.client(
        0,
        ". 1:1(0) ack 101 win 512 <ts 1000 5000,prio b,dss ack 101>",
    )
    .gives(&[]);
    refuses(&mut t, SERVER, ". 201:301(100) ack 1 win 64 <ts 5000 1000>");
    // Until it is ACKed, on both levels.
    refuses(
        &mut t,
        0,
        ". 1:1(0) ack 201 win 700 <ts 1000 5000,dss ack 101>",
    );
    let _ = t.client(0, ". 1:1(0) ack 201 win 512 <ts 1000 5000,dss ack 201>");
    assert_eq!(installed_subflows(&t), [1, 1, 0, 0]);
    let _ = t.moved();
}

#[test]
fn suspect_subflow_refuses_and_so_does_its_hole() {
    let mut t = steady();
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    t.at(1000);
    let again = t.server(". 101:201(100) ack 1 win 64 <ts 6000 1000>");
    assert!(again.lines()[0].starts_with("client1"), "{again:?}");
    assert_eq!(t.installed(), []);
    refuses(
        &mut t,
        1,
        ". 1:1(0) ack 101 win 600 <ts 901000 6000,dss ack 201>",
    );
}

#[test]
fn suspect_subflow_refuses_though_it_is_the_only_one() {
    let mut t = alone();
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    t.at(1000);
    refuses(&mut t, SERVER, ". 101:201(100) ack 1 win 64 <ts 6000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 201 win 512 <ts 2000 6000,dss ack 201>");
    assert_eq!(installed_subflows(&t), [1, 0, 0, 0]);
    let _ = t.moved();
}

#[test]
fn gap_in_the_servers_data_refuses() {
    let mut t = steady();
    refuses(&mut t, SERVER, ". 201:301(100) ack 1 win 64 <ts 5000 1000>");
    // It comes late, and then all is declared.
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(installed_subflows(&t), [1, 1, 0, 0]);
    let _ = t.moved();
}

#[test]
fn more_stretches_than_a_entry_holds_refuse() {
    let mut t = steady();
    for n in 0..17 {
        let (seq, dsn) = (1 + 10 * n, 1 + 20 * n);
        let _ = t.client(
            0,
            &format!(
                "P. {seq}:{}(10) ack 101 win 512 <ts 1000 5000,dss ack 101 map {dsn}:{}@{seq}>",
                seq + 10,
                dsn + 10
            ),
        );
        assert_eq!(t.installed().len(), usize::from(n < 15), "{n}");
    }
    let _ = t.moved();
}

#[test]
fn repeated_in_vain_refuses() {
    let mut t = steady();
    let line = "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>";
    for _ in 0..3 {
        let _ = t.client(0, line);
    }
    assert_eq!(t.installed().len(), 1);
    refuses(&mut t, 0, line);
}

#[test]
fn gap_in_the_clients_data_refuses() {
    let mut t = alone();
    refuses(
        &mut t,
        0,
        "P. 101:201(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 101:201@101>",
    );
}

#[test]
fn two_mappings_ahead_of_their_data_refuse() {
    let mut t = steady();
    let _ = t.client(
        0,
        "P. 1:51(50) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
    );
    assert_eq!(t.installed().len(), 1);
    // Without data it is dropped, but what it announces counts.
    let _ = t.client(
        0,
        ". 51:51(0) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:51@101>",
    );
    refuses(&mut t, SERVER, ". 101:201(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn ack_whose_options_were_stripped_refuses() {
    let mut t = steady();
    refuses(&mut t, 0, ". 1:1(0) ack 101 win 512 <ts 1000 5000>");
}

#[test]
fn subflow_that_the_client_has_closed_refuses() {
    let mut t = steady();
    let _ = t.client(1, "F. 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 101>");
    refuses(&mut t, SERVER, ". 101:201(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn fifth_subflow_refuses() {
    let setup = Setup::new().ts();
    let mut t = setup.clone().established();
    for id in 1..5 {
        let _ = t.server(". 1:1(0) ack 1 win 64 <ts 5000 1000>");
        assert_eq!(t.installed().len(), 1, "with {id} subflows");
        setup.join(&mut t, id);
    }
    let _ = t.server(". 1:1(0) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(t.installed().len(), 1, "not heard yet, it takes no part");
    refuses(
        &mut t,
        4,
        "P. 1:101(100) ack 1 win 600 <ts 3600000 5000,dss ack 1 map 1:101@1>",
    );
}

#[test]
fn lane_without_room_for_a_entry_refuses() {
    let mut t = Setup::new()
        .ts()
        .limits(|limits| limits.mappings = 132)
        .established();
    let _ = t.server(". 1:1(0) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(t.installed().len(), 1);
    refuses(&mut t, SERVER, ". 1:101(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn negotiated_ecn_refuses() {
    let mut t = Setup::new().ts().start();
    let _ = t.client(
        0,
        "SEW 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8,capable>",
    );
    let _ = t.server("S.E 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 1000,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <ts 1000 5000,capable>");
    refuses(&mut t, SERVER, ". 1:101(100) ack 1 win 64 <ts 5000 1000>");
}

#[test]
fn numbers_that_have_moved_apart_unseen_refuse() {
    let mut t = alone();
    // Data with an option but no mapping: the number counts, the data does not.
    t.client(0, "P. 11:21(10) ack 101 win 512 <ts 1000 5000,dss ack 101>")
        .gives(&["drop no_mapping"]);
    refuses(&mut t, SERVER, ". 101:201(100) ack 1 win 64 <ts 5000 1000>");
}
