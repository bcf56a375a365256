//! What an earlier run has left behind: both ends are told, at the number that they believe, and silent ones are asked
//! for it.

use crate::support::{Outcome, Scenario, Setup};

/// One connection with two subflows, of a run that was killed.
fn left(setup: Setup) -> Scenario {
    let mut t = setup.start();
    let key = Some(t.net.connections[0].client_key);
    t.adopt(&[(0, key), (1, key)]);
    t.net.connections[0].flexcp_key = Some(0x1234_5678);
    t.net.connections[0].sources[0] = Some(t.net.flow(0).client);
    t
}

/// Whom the packets are for, and their flags: the numbers are anybody's.
fn asked(outcome: &Outcome) -> Vec<String> {
    let words = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let mut asked: Vec<_> = outcome.lines().iter().map(words).collect();
    asked.sort();
    asked
}

#[test]
fn client_that_is_heard_is_told_with_its_key_at_what_it_has_acked() {
    let mut t = left(Setup::new());
    t.client(0, "P. 101:201(100) ack 51 <dss ack 51 map 101:201@101>")
        .gives(&["client0 R 51:51(0) win 0 <fastclose>"]);
    t.client(1, ". 1:1(0) ack 7 <dss ack 51>")
        .gives(&["client1 R 7:7(0) win 0 <fastclose>"]);
    assert_eq!(t.why(), "rst.orphaned+2");
    assert_eq!(t.moved(), "orphans+1");
}

#[test]
fn server_that_is_heard_is_told_at_what_it_has_acked() {
    let mut t = left(Setup::new());
    t.server("P. 1:101(100) ack 301")
        .gives(&["server R 301:301(0) win 0"]);
    assert_eq!(t.why(), "rst.orphaned+1");
    assert_eq!(t.moved(), "orphans+1");
}

#[test]
fn rst_says_that_its_sender_knows() {
    let mut t = left(Setup::new());
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("R 1:1(0) win 0").gives(&[]);
    assert_eq!(asked(&t.timeout()), ["client1 ."]);
    assert_eq!(t.moved(), "orphans+1 orphan_probes_tx+1");
}

#[test]
fn silent_ends_are_asked_in_turns_by_a_number_out_of_place_and_by_a_syn() {
    let mut t = left(Setup::new());
    for (at, flags) in [(0, "."), (200, "S"), (500, "."), (1500, "S")] {
        assert_eq!(t.next_timeout(), Some(at));
        t.at(at);
        let ends = ["client0", "client1", "server"].map(|end| format!("{end} {flags}"));
        assert_eq!(asked(&t.timeout()), ends, "at {at}");
    }
    assert_eq!(t.next_timeout(), Some(60_000));
    t.at(59_999);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 R 1:1(0) win 0 <fastclose>"]);
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.next_timeout(), None);
    // From here on it is a packet of nobody's.
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>").gives(&[
        "drop no_connection",
        "client0 R 1:1(0) win 0 <rst reason 0>",
    ]);
    assert_eq!(t.moved(), "orphans+1 orphan_probes_tx+12 no_connection+1");
}

#[test]
fn many_are_asked_a_few_at_a_time() {
    let mut t = Setup::new().backends(1).connections(200).start();
    let all: Vec<_> = (0..200)
        .map(|connection| (connection * 10, Some(7)))
        .collect();
    t.adopt(&all);
    let mut asked = vec![];
    for at in 0..4 {
        assert_eq!(t.next_timeout(), Some(at));
        t.at(at);
        // What the checker says of many packets at once is about one connection's.
        let outcome = t.timeout();
        let packets = outcome.lines().iter().filter(|line| !line.starts_with('!'));
        asked.push(packets.count());
    }
    assert_eq!(asked, [128, 128, 128, 16]);
    assert_eq!(t.next_timeout(), Some(200));
    assert_eq!(t.moved(), "orphans+200 orphan_probes_tx+400");
}

#[test]
fn client_alone_on_the_path_may_fall_back() {
    let mut t = Setup::new().start();
    let key = Some(t.net.connections[0].client_key);
    t.adopt(&[(0, key)]);
    t.net.connections[0].sources[0] = Some(t.net.flow(0).client);
    // The server's own data is what makes the client fall back.
    t.server("P. 1:101(100) ack 1 win 512")
        .gives(&["client0 P. 1:101(100) ack 1 win 512"]);
    assert_eq!(asked(&t.timeout()), ["client0 ."], "not the server");
    t.client(0, ". 1:1(0) ack 101 win 512")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("P. 101:201(100) ack 1 win 512")
        .gives(&["client0 P. 101:201(100) ack 1 win 512"]);
    t.at(200);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "orphans+1 orphan_probes_tx+1");
}

#[test]
fn client_alone_on_the_path_that_still_speaks_mptcp_is_told_and_so_is_its_server() {
    let mut t = Setup::new().start();
    let key = Some(t.net.connections[0].client_key);
    t.adopt(&[(0, key)]);
    t.net.connections[0].flexcp_key = Some(0x1234_5678);
    t.net.connections[0].sources[0] = Some(t.net.flow(0).client);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["client0 R 1:1(0) win 0 <fastclose>"]);
    t.server("P. 1:101(100) ack 1 win 512")
        .gives(&["server R 1:1(0) win 0"]);
    // Nor does it fall back from there.
    assert_eq!(asked(&t.timeout()), ["client0 .", "server ."]);
    assert_eq!(t.moved(), "orphans+1 orphan_probes_tx+2");
}

#[test]
fn plain_client_of_flexcp_is_told_with_a_rst() {
    let mut t = Setup::new().backends(1).start();
    t.adopt(&[(0, None)]);
    t.client(0, "P. 1:101(100) ack 51 win 512")
        .gives(&["client0 R 51:51(0) win 0"]);
    assert_eq!(t.moved(), "orphans+1");
}

#[test]
fn client_that_begins_anew_from_the_same_place_is_served() {
    let mut t = left(Setup::new());
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 orphans+1 connections_opened+1"
    );
}

#[test]
fn packet_with_a_wrong_checksum_says_nothing() {
    let mut t = left(Setup::new());
    t.edited(crate::support::Leg::Client(0), "R 1:1(0) win 0 bad", |_| {})
        .gives(&["drop checksum"]);
    assert_eq!(asked(&t.timeout()), ["client0 .", "client1 .", "server ."]);
    assert_eq!(t.moved(), "orphans+1 orphan_probes_tx+3 checksum+1");
}
