//! Connections that are asked to move, or to close.

use std::sync::mpsc;

use flexcp_translator::{Filter, Place};
use serde_json::Value;

use super::setting::sent;
use super::*;

fn of_one(more: &str) -> String {
    format!("/v1/connections/{ID}{more}")
}

/// A worker that hands over what all connections are asked for.
fn ordered() -> (WorkerHandle, mpsc::Receiver<(Arc<Filter>, Order)>) {
    let (handle, requests) = WorkerHandle::new(Arc::new(Waker::new().unwrap()));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for request in requests {
            match request {
                Request::OrderAll(wanted) => tell.send(wanted.play()).unwrap(),
                Request::Stop => return,
                _ => {}
            }
        }
    });
    (handle, told)
}

#[test]
fn connection_is_read_moved_and_closed_by_its_id() {
    let served = Served::by(vec![played()]);
    let (status, one) = sent(&served, "GET", &of_one(""), "");
    assert_eq!((status, &one["connection"]["id"]), (200, &json!(ID)));
    assert_eq!(one["connection"]["subflows"][0]["subflow"], 1);
    for body in ["{\"subflow\": 1}", "{\"access\": \"lte\"}"] {
        let (status, done) = sent(&served, "POST", &of_one("/move"), body);
        assert_eq!(
            (status, done),
            (200, json!({"version": 1, "changed": false}))
        );
    }
    let (status, done) = sent(&served, "DELETE", &of_one(""), "");
    assert_eq!(
        (status, done),
        (200, json!({"version": 1, "changed": true}))
    );
}

#[test]
fn what_a_connection_does_not_do_is_told_with_the_reason() {
    let served = Served::by(vec![played()]);
    let refused = |method: &str, target: &str, body: &str| {
        let (status, refusal) = sent(&served, method, target, body);
        let error = &refusal["error"];
        (
            status,
            format!(
                "{}: {}",
                error["where"].as_str().unwrap(),
                error["what"].as_str().unwrap()
            ),
        )
    };
    let (status, said) = refused("POST", &of_one("/move"), "{\"access\": \"dsl\"}");
    assert_eq!(status, 409);
    assert_eq!(
        said,
        format!("connection {ID}: the connection has no such subflow")
    );
    let gone = "/v1/connections/deadbeef00000008";
    for (method, target) in [
        ("GET", gone.into()),
        ("DELETE", gone.into()),
        ("POST", format!("{gone}/move")),
    ] {
        let (status, said) = refused(method, &target, "{\"subflow\": 1}");
        assert_eq!(status, 404, "{said}");
        assert!(said.contains("there is no such connection"), "{said}");
    }
    for (target, body, place) in [
        (of_one("/move"), "", "the body"),
        (of_one("/move"), "{}", "the body"),
        (
            of_one("/move"),
            "{\"subflow\": 1, \"access\": \"lte\"}",
            "the body",
        ),
        (of_one("/move"), "{\"subflow\": 256}", "the body"),
        (of_one("/move"), "{\"access\": \"5g\"}", "access"),
        (
            "/v1/connections/7/move".into(),
            "{\"subflow\": 1}",
            "the path",
        ),
        (
            of_one("/move?state=plain"),
            "{\"subflow\": 1}",
            "parameter `state`",
        ),
        (
            "/v1/connections/move".into(),
            "{\"subflow\": 1}",
            "the query",
        ),
        ("/v1/connections/close".into(), "", "the query"),
        ("/v1/connections/move?service=web".into(), "", "the body"),
        (
            "/v1/connections/close?service=mail".into(),
            "",
            "parameter `service`",
        ),
    ] {
        let (status, said) = refused("POST", &target, body);
        assert_eq!(status, 400, "{target}: {said}");
        assert!(said.starts_with(place), "{target}: {said}");
    }
    for (method, target) in [
        ("GET", "/v1/connections/close?service=web".into()),
        ("POST", of_one("")),
        ("DELETE", of_one("/move")),
        ("DELETE", "/v1/connections?service=web".into()),
    ] {
        assert_eq!(refused(method, &target, "").0, 405, "{method} {target}");
    }
}

#[test]
fn all_that_a_filter_finds_are_asked_on_every_worker() {
    let (workers, told): (Vec<_>, Vec<_>) = [ordered(), ordered()].into_iter().unzip();
    let served = Served::by(workers);
    let target = "/v1/connections/move?service=web&client=:443";
    let (status, done) = sent(&served, "POST", target, "{\"access\": \"lte\"}");
    assert_eq!(status, 200, "{done}");
    let both = json!({"version": 1, "done": 2, "already": 2, "refused": {"hole": 2}});
    assert_eq!(done, both);
    let port = Place {
        prefix: None,
        port: Some(443),
    };
    let wanted = Filter {
        service: Some(ServiceId(0)),
        client: Some(port),
        ..Filter::default()
    };
    for told in &told {
        let (filter, order) = told.recv().unwrap();
        assert_eq!(*filter, wanted);
        assert!(
            matches!(order, Order::Move(Target::Access(AccessId(1)))),
            "{order:?}"
        );
    }
    let (_, done): (u16, Value) = sent(&served, "POST", "/v1/connections/close?access=dsl", "");
    assert_eq!(done, both);
    let (filter, order) = told[1].recv().unwrap();
    assert_eq!(filter.access, Some(AccessId(0)));
    assert!(matches!(order, Order::Close), "{order:?}");
}

#[test]
fn client_has_it_done_and_is_told_of_refusals() {
    let served = Served::by(vec![played()]);
    let mut client = Client::new(&served.path());
    let done = client
        .send("POST", &of_one("/move"), Some("{\"subflow\": 1}"))
        .unwrap();
    assert_eq!(done.line(), "{\"version\":1,\"changed\":false}");
    let refused = client.send("POST", &of_one("/move"), Some("{\"subflow\": 3}"));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .starts_with("flexcp refuses: the connection has no such subflow")
    );
    assert!(client.send("DELETE", &of_one(""), None).is_ok());
}
