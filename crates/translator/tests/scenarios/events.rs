//! What is told of connections and back ends as it happens.

use flexcp_translator::{
    AccessId, ActiveStandby, ConnectionEnds, EventKind, Instant, Order, Part, SubflowEnds, Switch,
    Target,
};

use crate::support::{Scenario, Setup, millis};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN_SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <capable>";
const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
const JOIN_THIRD: &str = ". 1:1(0) ack 1 win 512 <join>";
const REFUSED: &str = "R. 0:0(0) ack 1 win 0";

/// What has been told since, a line each: connections and subflows by the number of the client's flow, back ends by their
/// port.
pub(crate) fn told(t: &mut Scenario) -> Vec<String> {
    let mut lines = vec![];
    while let Some(event) = t.translator.poll_event() {
        assert_eq!(event.service, flexcp_translator::ServiceId(0));
        let flow = |addr| {
            let is = |id: &usize| t.net.flow(*id).client == addr;
            let among = (0..40).filter(|id| id % 10 < 4);
            among.into_iter().find(is).expect("a client of the test")
        };
        let of = |ends: ConnectionEnds| {
            let id = flow(ends.client);
            assert_eq!(ends.server, t.net.flow(id).local);
            let mut views = t.translator.connections(Instant::default());
            let same = views.find(|view| (view.client, view.server) == (ends.client, ends.server));
            // It may be over by now.
            assert!(same.is_none_or(|view| view.id == ends.id));
            let kind = ends.token.map_or("plain ", |_| "");
            format!("{kind}{id}")
        };
        let on = |ends: SubflowEnds| {
            let id = flow(ends.client);
            assert_eq!(ends.local, t.net.flow(id).local);
            // One that is over may have left it its number.
            assert!(usize::from(ends.subflow) <= id % 10);
            id
        };
        lines.push(match event.kind {
            EventKind::Opened {
                connection,
                source,
                backend,
            } => {
                let mut views = t.translator.connections(Instant::default());
                let view = views.find(|view| {
                    (view.client, view.server) == (connection.client, connection.server)
                });
                // It may be over by now.
                if let Some(view) = view {
                    assert_eq!((source, backend), (view.source, view.backend));
                    assert_eq!(connection.token, view.token);
                }
                format!("{} opened", of(connection))
            }
            EventKind::Joined {
                connection,
                subflow,
            } => format!("{} joined on {}", of(connection), on(subflow)),
            EventKind::Switched { connection, switch } => {
                let Switch {
                    from,
                    to,
                    cause,
                    rule,
                } = switch;
                let (cause, rule) = (cause.name(), rule.as_deref().unwrap_or("no rule"));
                let accesses = [from, to].map(|ends| ends.access.map(|access| access.0));
                format!(
                    "{} from {} to {}: {cause} by {rule} {accesses:?}",
                    of(connection),
                    on(from),
                    on(to)
                )
            }
            EventKind::SubflowClosed {
                connection,
                subflow,
                cause,
            } => format!("{} less {}: {}", of(connection), on(subflow), cause.name()),
            EventKind::Closed { connection, cause } => {
                format!("{} closed: {}", of(connection), cause.name())
            }
            EventKind::BackendMarked { backend, reason } => {
                format!("{backend} marked: {}", reason.name())
            }
            EventKind::BackendMaintenance { backend, on } => {
                format!("{backend} maintenance: {on}")
            }
            EventKind::BackendBack { backend } => format!("{backend} back"),
        });
    }
    lines
}

fn listening(setup: Setup) -> Scenario {
    let mut t = setup.start();
    t.translator.keep_events(true);
    t
}

/// Two subflows, of which all has been told.
fn two_subflows() -> Scenario {
    let mut t = Setup::new().two_subflows();
    t.translator.keep_events(true);
    t
}

#[test]
fn connection_opens_when_its_client_has_proved_its_keys() {
    let mut t = listening(Setup::new());
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.client(0, THIRD);
    assert_eq!(told(&mut t), ["0 opened"]);
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.client(1, JOIN);
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.client(1, JOIN_THIRD);
    assert_eq!(told(&mut t), ["0 joined on 1"]);
    let _ = t.moved();
}

#[test]
fn nothing_is_kept_while_nobody_listens() {
    let mut t = Setup::new().two_subflows();
    assert_eq!(told(&mut t), [""; 0]);
    t.translator.keep_events(true);
    let _ = t.client(1, "R 1:1(0) win 0");
    t.translator.keep_events(false);
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.translator.keep_events(true);
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
}

#[test]
fn connection_without_mptcp_opens_when_its_client_has_acked_the_answer() {
    let mut t = listening(Setup::new().backends(1));
    let _ = t.client(0, PLAIN_SYN);
    let _ = t.server(SYN_ACK);
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.client(0, ". 1:1(0) ack 1");
    assert_eq!(told(&mut t), ["plain 0 opened"]);
    let _ = t.client(0, "P. 1:101(100) ack 1");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
}

#[test]
fn connection_that_falls_back_in_the_handshake_opens() {
    let mut t = listening(Setup::new());
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1");
    assert_eq!(t.state(), "fallback");
    assert_eq!(told(&mut t), ["0 opened"]);
    let _ = t.moved();
}

#[test]
fn handshake_that_comes_to_nothing_is_not_told() {
    let mut t = listening(
        Setup::new()
            .backends(1)
            .timeouts(|timeouts| timeouts.half_open = millis(300)),
    );
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    t.at(300);
    let _ = t.timeout();
    assert_eq!(t.state(), "gone");
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    assert_eq!(t.state(), "gone");
    assert_eq!(told(&mut t), ["10.8.0.1:8080 marked: refused"]);
    let _ = t.moved();
}

#[test]
fn connection_that_ends_in_order_is_finished_and_then_told_no_more() {
    let mut t = Scenario::established();
    t.translator.keep_events(true);
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 1 fin 1>");
    let _ = t.server("F. 1:1(0) ack 2");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.client(0, ". 2:2(0) ack 1 <dss ack 2>");
    assert_eq!(t.state(), "closed");
    assert_eq!(told(&mut t), ["0 closed: finished"]);
    // Its subflow's FINs, and the end of the time for stragglers.
    let _ = t.client(0, ". 2:2(0) ack 2 <dss ack 2>");
    t.at(3_600_000);
    let _ = t.timeout();
    assert_eq!(t.state(), "gone");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
}

#[test]
fn switch_is_told_with_its_cause() {
    let mut t = two_subflows();
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.server("P. 1:101(100) ack 1");
    assert_eq!(
        told(&mut t),
        ["0 from 0 to 1: backup by no rule [None, None]"]
    );
    let _ = t.server("P. 101:201(100) ack 1");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
}

/// It has the active one's number, and is another subflow: whatever was there has been left before.
#[test]
fn join_in_the_place_of_the_active_subflow_is_chosen_like_any_other() {
    let mut t = two_subflows();
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(1, "R 1:1(0) win 0");
    assert_eq!(
        told(&mut t),
        [
            "0 from 0 to 1: backup by no rule [None, None]",
            "0 less 1: reset"
        ]
    );
    let _ = t.client(2, JOIN);
    let _ = t.client(2, JOIN_THIRD);
    assert_eq!(
        told(&mut t),
        [
            "0 from 1 to 0: closed by no rule [None, None]",
            "0 joined on 2"
        ]
    );
    let _ = t.server("P. 101:201(100) ack 1");
    assert_eq!(
        told(&mut t),
        ["0 from 0 to 2: backup by no rule [None, None]"]
    );
    let _ = t.moved();
}

#[test]
fn subflow_that_ends_is_told_with_its_cause() {
    let mut t = two_subflows();
    let _ = t.client(1, "R 1:1(0) win 0");
    assert_eq!(told(&mut t), ["0 less 1: reset"]);
    let _ = t.moved();
    let mut t = two_subflows();
    let _ = t.client(1, "F. 1:1(0) ack 1 <dss ack 1>");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.client(1, ". 2:2(0) ack 2 <dss ack 1>");
    assert_eq!(told(&mut t), ["0 less 1: finished"]);
    let _ = t.moved();
    let mut t = two_subflows();
    let _ = t.client(1, "F. 1:1(0) ack 1 <dss ack 1>");
    t.at(100_000);
    let _ = t.timeout();
    assert_eq!(told(&mut t), ["0 less 1: unanswered"]);
    let _ = t.moved();
    // FlexCP gives it up.
    let mut t = two_subflows();
    let _ = t.client(1, "P. 1:101(100) ack 1");
    assert_eq!(told(&mut t), ["0 less 1: no_mapping"]);
    let _ = t.moved();
}

#[test]
fn join_that_never_was_one_is_not_told() {
    let mut t = Scenario::established();
    t.translator.keep_events(true);
    let _ = t.client(1, JOIN);
    let _ = t.client(1, "R 1:1(0) win 0");
    let _ = t.client(1, JOIN);
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join bad>");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
}

#[test]
fn connection_that_is_reset_is_told_once_with_the_cause() {
    let mut t = two_subflows();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    assert_eq!(told(&mut t), ["0 closed: server_reset"]);
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    t.at(3_600_000);
    let _ = t.timeout();
    assert_eq!(t.state(), "gone");
    assert_eq!(told(&mut t), [""; 0]);
    let _ = t.moved();
    let mut t = two_subflows();
    let _ = t.client(1, ". 1:1(0) ack 1 <dss ack 1,fastclose>");
    assert_eq!(told(&mut t), ["0 closed: fast_close"]);
    let _ = t.moved();
}

#[test]
fn connection_that_nobody_uses_is_told_as_idle() {
    let idle = || Setup::new().timeouts(|timeouts| timeouts.idle = millis(9000));
    let mut t = idle().two_subflows();
    t.translator.keep_events(true);
    t.at(9000);
    let _ = t.timeout();
    assert_eq!(told(&mut t), ["0 closed: idle"]);
    let _ = t.moved();
    let mut t = listening(idle().backends(1));
    let _ = t.client(0, PLAIN_SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1");
    t.at(9000);
    let _ = t.timeout();
    assert_eq!(told(&mut t), ["plain 0 opened", "plain 0 closed: idle"]);
    let _ = t.moved();
}

#[test]
fn plain_connection_closes_when_it_leaves() {
    let plain = || {
        let mut t = listening(Setup::new().backends(1));
        let _ = t.client(0, PLAIN_SYN);
        let _ = t.server(SYN_ACK);
        let _ = t.client(0, ". 1:1(0) ack 1");
        t
    };
    let mut t = plain();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.at(3_600_000);
    let _ = t.timeout();
    assert_eq!(told(&mut t), ["plain 0 opened", "plain 0 closed: reset"]);
    let _ = t.moved();
    let mut t = plain();
    let _ = t.client(0, "F. 1:1(0) ack 1");
    let _ = t.server("F. 1:1(0) ack 2");
    let _ = t.client(0, ". 2:2(0) ack 2");
    t.at(3_600_000);
    let _ = t.timeout();
    assert_eq!(told(&mut t), ["plain 0 opened", "plain 0 closed: finished"]);
    let _ = t.moved();
}

#[test]
fn connections_that_are_ended_are_told_once() {
    let mut t = two_subflows();
    t.drain();
    let _ = t.end(1);
    let _ = t.end(1);
    assert_eq!(told(&mut t), ["0 closed: ending"]);
    let _ = t.moved();
}

#[test]
fn maintenance_of_back_ends_is_told_once() {
    let mut t = listening(Setup::new().backends(2));
    let mut service = Setup::new().backends(2).service(0);
    let parts = |on| {
        [
            Part::of(1),
            Part {
                weight: 1,
                maintenance: on,
            },
        ]
        .into()
    };
    for (number, on) in [(1, true), (2, true), (3, false), (4, false)] {
        service.intake.parts = parts(on);
        t.configure(std::slice::from_ref(&service), number);
    }
    assert_eq!(
        told(&mut t),
        [
            "10.8.0.2:8080 maintenance: true",
            "10.8.0.2:8080 maintenance: false"
        ]
    );
}

#[test]
fn marks_of_back_ends_are_told() {
    let mut t = listening(Setup::new().backends(2));
    let _ = t.client(0, SYN);
    t.at(600);
    let _ = t.client(0, SYN);
    assert_eq!(told(&mut t), ["10.8.0.1:8080 marked: silent"]);
    // Late, and without a connection.
    t.at(700);
    let _ = t.backend(0, SYN_ACK);
    assert_eq!(told(&mut t), ["10.8.0.1:8080 back"]);
    let _ = t.moved();
    // It answers a connection that has been sent to it all the same.
    let mut t = listening(Setup::new().backends(1));
    let _ = t.client(0, SYN);
    t.at(1000);
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    assert_eq!(
        told(&mut t),
        ["10.8.0.1:8080 marked: silent", "10.8.0.1:8080 back"]
    );
    let _ = t.moved();
}

#[test]
fn switch_is_told_with_both_paths_and_why() {
    let accesses = vec![AccessId(1), AccessId(0)];
    let mut t = Setup::new()
        .accesses(2)
        .steered(ActiveStandby { accesses }, [100, 100])
        .established();
    t.translator.keep_events(true);
    let _ = t.client(1, JOIN);
    let _ = t.client(1, JOIN_THIRD);
    assert_eq!(
        told(&mut t),
        [
            "0 joined on 1",
            "0 from 0 to 1: preferred by all [Some(0), Some(1)]"
        ]
    );
    let _ = t.order(&Order::Move(Target::Subflow(0)));
    assert_eq!(
        told(&mut t),
        ["0 from 1 to 0: asked by no rule [Some(1), Some(0)]"]
    );
    t.at(1000);
    let _ = t.client(0, "R 1:1(0) win 0");
    let _ = t.server("P. 1:101(100) ack 1");
    assert_eq!(
        told(&mut t),
        [
            "0 less 0: reset",
            "0 from 0 to 1: closed by no rule [Some(0), Some(1)]"
        ]
    );
    let _ = t.moved();
}
