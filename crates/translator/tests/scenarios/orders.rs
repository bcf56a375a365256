//! Single connections that are asked for something: another path, a rule of their own, their end.

use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{
    AccessId, ActiveStandby, ConnectionState, Filter, Order, Ordered, Pinned, Place, Refused,
    RoundRobin, Rule, Target,
};

use crate::support::{Scenario, Setup, Shelf, millis};

const DONE: Result<Ordered, Refused> = Ok(Ordered::Done);
const ALREADY: Result<Ordered, Refused> = Ok(Ordered::Already);

fn to_access(access: u8) -> Order {
    Order::Move(Target::Access(AccessId(access)))
}

fn to_subflow(subflow: u8) -> Order {
    Order::Move(Target::Subflow(subflow))
}

fn standby() -> ActiveStandby {
    ActiveStandby {
        accesses: vec![AccessId(0), AccessId(1)],
    }
}

/// Two subflows, each of an access of its own, at 1000 ms.
fn two(setup: Setup) -> Scenario {
    let mut t = setup.accesses(2).two_subflows();
    let _ = (t.why(), t.moved());
    t.at(1000);
    t
}

/// The server sends 100 bytes, which the client ACKs where they come: on that flow.
fn carried_on(t: &mut Scenario, next: &mut [u32; 3]) -> usize {
    let from = next[2];
    let gave = t.server(&format!("P. {from}:{}(100) ack 1", from + 100));
    let flow = usize::from(gave.lines()[0].starts_with("client1"));
    next[flow] += 100;
    next[2] += 100;
    let ack = next[flow];
    let _ = t.client(flow, &format!(". 1:1(0) ack {ack} <dss ack {}>", next[2]));
    flow
}

/// A rule for one connection.
fn own(mode: impl flexcp_translator::SteeringMode + 'static, fail_back: u64) -> Order {
    Order::Steer(Some(Arc::new(Rule {
        name: "own".into(),
        services: vec![],
        servers: vec![],
        ports: vec![],
        clients: vec![],
        mode: Arc::new(mode),
        hold: Duration::ZERO,
        fail_back: millis(fail_back),
        heeds_backup: true,
        carrier: None,
    })))
}

#[test]
fn moved_connection_goes_on_where_it_was_asked_to() {
    let mut t = two(Setup::new());
    let mut next = [1; 3];
    assert_eq!(carried_on(&mut t, &mut next), 0);
    let (said, gave) = t.order(&to_access(1));
    assert_eq!(said, DONE);
    gave.gives(&[]);
    assert_eq!(t.subflows(), ["0", "1 active"]);
    t.at(60_000);
    assert_eq!(carried_on(&mut t, &mut next), 1);
    assert_eq!(t.why(), "subflow_switch.asked+1");
    assert_eq!(t.moved(), "subflow_switch+1");
    // Once is enough.
    let (said, gave) = t.order(&to_subflow(1));
    assert_eq!(said, ALREADY);
    gave.gives(&[]);
    assert_eq!(carried_on(&mut t, &mut next), 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn mode_takes_a_moved_connection_back_after_the_hold_time_alone() {
    let mut t = two(Setup::new().steered(standby(), [2000, 0]));
    let mut next = [1; 3];
    // It was never moved: without the hold time the mode would have it back with the next packet.
    let (said, gave) = t.order(&to_access(1));
    assert_eq!(said, DONE);
    // The client is told at once what is for when others fail.
    gave.gives(&[
        "client0 . 1:1(0) ack 1 win 509 <prio b,dss ack 1>",
        "client1 . 1:1(0) ack 1 win 509 <prio,dss ack 1>",
    ]);
    for (at, flow) in [(1010, 1), (1900, 1), (2990, 1), (3110, 0)] {
        t.at(at);
        assert_eq!(carried_on(&mut t, &mut next), flow, "{at}");
    }
    assert_eq!(t.why(), "subflow_switch.preferred+1 subflow_switch.asked+1");
    let _ = t.moved();
}

#[test]
fn asking_again_begins_the_hold_time_anew() {
    let mut t = two(Setup::new().steered(standby(), [2000, 0]));
    let mut next = [1; 3];
    assert_eq!(t.order(&to_access(1)).0, DONE);
    t.at(2900);
    assert_eq!(t.order(&to_access(1)).0, ALREADY);
    for (at, flow) in [(3110, 1), (4800, 1), (5010, 0)] {
        t.at(at);
        assert_eq!(carried_on(&mut t, &mut next), flow, "{at}");
    }
    let _ = t.moved();
}

#[test]
fn offloaded_connection_is_evicted_before_it_is_moved() {
    let mut t = two(Setup::new().ts());
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 101>");
    assert_eq!(t.installed().len(), 1);
    assert_eq!(t.order(&to_access(1)).0, DONE);
    assert_eq!(t.installed().len(), 0);
    let gave = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    assert!(gave.lines()[0].starts_with("client1"), "{gave:?}");
    let _ = t.client(1, ". 1:1(0) ack 101 win 600 <ts 900000 5000,dss ack 201>");
    let [entry] = t.installed()[..] else {
        panic!("not installed");
    };
    assert_eq!(entry.active, 1);
    let _ = t.moved();
}

#[test]
fn move_is_refused_with_what_speaks_against_the_path() {
    let refused = |line: &str, reason| {
        let mut t = two(Setup::new());
        let _ = t.client(1, line);
        assert_eq!(t.order(&to_access(1)).0, Err(reason), "{line}");
        assert_eq!(t.order(&to_subflow(1)).0, Err(reason), "{line}");
        assert_eq!(t.view().expect("a connection").subflows[0].subflow, 0);
        assert!(t.subflows()[0].starts_with("0 active"), "{line}");
        let _ = t.moved();
    };
    refused(". 1:1(0) ack 1 <dss ack 1,prio b>", Refused::Backup);
    refused("F. 1:1(0) ack 1 <dss ack 1>", Refused::NotCarrying);
    refused("R 1:1(0) win 0", Refused::NoSubflow);
    let mut t = two(Setup::new());
    assert_eq!(t.order(&to_subflow(2)).0, Err(Refused::NoSubflow));
    assert_eq!(t.order(&to_subflow(200)).0, Err(Refused::NoSubflow));
    assert_eq!(t.order(&to_access(7)).0, Err(Refused::NoSubflow));
    let _ = t.client(2, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    assert_eq!(t.order(&to_subflow(2)).0, Err(Refused::NotCarrying));
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn move_to_a_path_that_was_silent_is_refused() {
    let mut t = two(Setup::new());
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    t.at(1400);
    let again = t.server("P. 1:201(200) ack 1");
    assert!(again.lines()[0].starts_with("client1"), "{again:?}");
    assert_eq!(t.order(&to_access(0)).0, Err(Refused::Failed));
    let _ = t.client(1, ". 1:1(0) ack 201 <dss ack 201>");
    // It answers, and misses what came over the other.
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 201>");
    assert_eq!(t.order(&to_access(0)).0, Err(Refused::Hole));
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    assert_eq!(t.order(&to_access(0)).0, DONE);
    assert_eq!(t.why(), "subflow_switch.failed+1 subflow_switch.asked+1");
    let _ = t.moved();
}

#[test]
fn what_is_not_translated_can_not_be_moved() {
    let mut t = Setup::new().syn_received();
    assert_eq!(t.order(&to_subflow(0)).0, Err(Refused::NotTranslated));
    assert_eq!(t.moved(), "");
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    assert_eq!(t.order(&to_subflow(0)).0, Err(Refused::NotTranslated));
    let _ = t.moved();
    let mut t = two(Setup::new());
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    assert_eq!(t.order(&to_access(1)).0, Err(Refused::NotTranslated));
    let id = t.id_of(0);
    t.at(3_600_000);
    let _ = t.timeout();
    assert_eq!(t.order_by(id, &to_access(1)).0, Err(Refused::Unknown));
    let _ = t.moved();
}

#[test]
fn id_of_another_time_names_nobody() {
    let mut t = two(Setup::new());
    let id = t.id_of(0).to_string();
    let (token, opened) = id.split_at(8);
    for other in ["00000001", "ffffffff"] {
        assert_ne!(opened, other);
        let id = format!("{token}{other}").parse().expect("an id");
        assert_eq!(t.order_by(id, &Order::Close).0, Err(Refused::Unknown));
        let now = flexcp_translator::Instant::default();
        assert_eq!(t.translator.connection(now, id), None);
    }
    let now = flexcp_translator::Instant::from_millis(1000);
    let view = t.translator.connection(now, t.id_of(0));
    assert_eq!(view, t.view());
    assert_eq!(t.moved(), "");
}

#[test]
fn subflow_that_takes_the_place_of_a_backup_is_none() {
    let mut t = two(Setup::new());
    let backup = Order::SetBackup {
        subflow: 1,
        backup: true,
    };
    assert_eq!(t.order(&backup).0, DONE);
    let _ = t.client(1, "R 1:1(0) win 0");
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    assert_eq!(t.subflows(), ["0 active", "1"]);
    assert_eq!(t.order(&to_subflow(1)).0, DONE);
    let _ = t.moved();
}

#[test]
fn pinned_connection_keeps_to_its_path_and_comes_back_to_it() {
    let mut t = two(Setup::new().steered(standby(), [100, 100]));
    let mut next = [1; 3];
    let pin = own(Pinned(Target::Access(AccessId(1))), 1000);
    assert_eq!(t.order(&pin).0, DONE);
    for at in [1010, 1500, 9000] {
        t.at(at);
        assert_eq!(carried_on(&mut t, &mut next), 1, "{at}");
    }
    // The client wants it when no other is left, for a while.
    let line =
        |prio, next: &[u32; 3]| format!(". 1:1(0) ack {} <dss ack {},{prio}>", next[1], next[2]);
    let _ = t.client(1, &line("prio b", &next));
    t.at(9100);
    assert_eq!(carried_on(&mut t, &mut next), 0);
    let _ = t.client(1, &line("prio", &next));
    t.at(9900);
    assert_eq!(carried_on(&mut t, &mut next), 0);
    t.at(10_200);
    assert_eq!(carried_on(&mut t, &mut next), 1);
    assert_eq!(t.why(), "subflow_switch.backup+1 subflow_switch.asked+2");
    // And then by the operator's rules again.
    assert_eq!(t.order(&Order::Steer(None)).0, DONE);
    t.at(10_400);
    assert_eq!(carried_on(&mut t, &mut next), 0);
    let _ = t.moved();
}

#[test]
fn other_rules_take_nothing_from_a_rule_of_its_own() {
    let setup = Setup::new().accesses(2);
    let service = setup.service(0);
    let mut t = two(setup);
    let mut next = [1; 3];
    let pin = own(Pinned(Target::Subflow(1)), 0);
    assert_eq!(t.order(&pin).0, DONE);
    t.configure(&[service], 1);
    assert_eq!(carried_on(&mut t, &mut next), 1);
    assert_eq!(t.order(&to_subflow(0)).0, DONE);
    t.at(1200);
    assert_eq!(carried_on(&mut t, &mut next), 1, "it comes back");
    let _ = t.moved();
}

#[test]
fn mode_that_shares_is_no_single_connections() {
    let mut t = two(Setup::new());
    assert_eq!(t.order(&own(RoundRobin, 0)).0, Err(Refused::Shares));
    assert_eq!(t.moved(), "");
}

#[test]
fn subflow_that_is_asked_to_be_backup_is_left_and_the_client_hears_it() {
    let mut t = two(Setup::new());
    let mut next = [1; 3];
    let backup = |subflow, backup| Order::SetBackup { subflow, backup };
    let (said, gave) = t.order(&backup(0, true));
    assert_eq!(said, DONE);
    gave.gives(&["client0 . 1:1(0) ack 1 win 509 <prio b,dss ack 1>"]);
    assert_eq!(carried_on(&mut t, &mut next), 1);
    assert_eq!(t.why(), "subflow_switch.backup+1");
    assert_eq!(t.order(&to_subflow(0)).0, Err(Refused::Backup));
    let (said, gave) = t.order(&backup(0, true));
    assert_eq!(said, ALREADY);
    assert!(gave.lines().len() <= 1, "{gave:?}");
    let (said, gave) = t.order(&backup(0, false));
    assert_eq!(said, DONE);
    gave.gives(&["client0 . 1:1(0) ack 1 win 64 <prio,dss ack 1>"]);
    assert_eq!(t.order(&to_subflow(0)).0, DONE);
    assert_eq!(t.order(&backup(5, true)).0, Err(Refused::NoSubflow));
    let _ = t.moved();
}

#[test]
fn both_ends_of_a_closed_connection_are_told() {
    let mut t = two(Setup::new());
    t.translator.keep_events(true);
    let _ = t.server("P. 1:101(100) ack 1");
    let (said, gave) = t.order(&Order::Close);
    assert_eq!(said, DONE);
    gave.gives(&[
        "client0 R. 101:101(0) ack 1 win 64 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 64 <fastclose>",
        "server R. 1:1(0) ack 1 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.why(), "rst.asked+3");
    assert_eq!(crate::events::told(&mut t), ["0 closed: asked"]);
    let (said, gave) = t.order(&Order::Close);
    assert_eq!(said, ALREADY);
    gave.gives(&[]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn offloaded_connection_is_closed_at_the_numbers_that_it_has_come_to() {
    let mut t = two(Setup::new().ts());
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 101>");
    assert_eq!(t.installed().len(), 1);
    // The programs have it by now.
    let _ = t.server(". 101:201(100) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(t.order(&Order::Close).0, DONE);
    assert_eq!(t.installed().len(), 0);
    let _ = t.moved();
}

#[test]
fn plain_connection_and_handshake_are_closed_too() {
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1");
    let (said, gave) = t.order(&Order::Close);
    assert_eq!(said, DONE);
    gave.gives(&[
        "server0 R. 1:1(0) ack 1 win 0",
        "client0 R. 1:1(0) ack 1 win 0",
    ]);
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
    let mut t = Setup::new().backends(1).syn_received();
    assert_eq!(t.order(&Order::Close).0, DONE);
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
}

#[test]
fn connection_that_the_kernel_forwards_is_not_closed() {
    let mut t = Setup::new().start();
    let shelf = Shelf::passing();
    t.fast_path(&shelf);
    t.uncompared();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1");
    assert_eq!(t.state(), "fallback");
    assert!(!shelf.passed_by().is_empty());
    let id = t.id_of(0);
    let refused = t
        .translator
        .carry_out(flexcp_translator::Instant::default(), id, &Order::Close);
    assert_eq!(refused, Err(Refused::PassedBy));
    let _ = t.moved();
}

#[test]
fn filter_says_which_connections_are_asked() {
    let setup = Setup::new().accesses(2).connections(3);
    let mut t = setup.clone().start();
    for connection in 0..3 {
        let of = connection * 10;
        let _ = t.client(of, &setup.syn());
        let _ = t.server_of(connection, &setup.syn_ack());
        let _ = t.client(of, &setup.third());
    }
    let _ = (t.why(), t.moved());
    let client = t.net.flow(10).client;
    let one = Filter {
        client: Some(Place {
            prefix: None,
            port: Some(client.port()),
        }),
        ..Filter::default()
    };
    let (tally, _) = t.order_all(&one, &Order::Close);
    assert_eq!(
        (tally.done, tally.already, tally.refused().count()),
        (1, 0, 0)
    );
    let states = [0, 1, 2].map(|connection| t.state_of(connection));
    let translating = Some(ConnectionState::Translating);
    assert_eq!(
        states,
        [translating, Some(ConnectionState::Reset), translating]
    );
    let (tally, _) = t.order_all(&Filter::default(), &Order::Close);
    assert_eq!((tally.done, tally.already), (2, 1));
    let (tally, _) = t.order_all(&Filter::default(), &to_subflow(1));
    let refused: Vec<_> = tally.refused().collect();
    assert_eq!(refused, [(Refused::NotTranslated, 3)]);
    let _ = t.moved();
}
