//! What is told about services and their back ends.

use serde_json::{Value, json};

use super::{Client, ClientError, Served, played, target};
use crate::control::view::{BackendStatus, Health, OneService};
use crate::rulebook::Keeper;

/// Tells something about a back end of `shop`.
fn put(served: &Served, address: &str, body: &Value) -> Result<Vec<BackendStatus>, ClientError> {
    let target = target::backend("shop", address);
    let answer = Client::new(&served.path()).send("PUT", &target, Some(&body.to_string()))?;
    let one: OneService = answer.read().unwrap();
    assert_eq!(one.service.name, "shop");
    Ok(one.service.backends)
}

/// Why it is refused: what, where.
fn refused(served: &Served, target: &str, body: &str) -> (String, String) {
    match Client::new(&served.path()).send("PUT", target, Some(body)) {
        Err(ClientError::Refused(fault)) => {
            assert_ne!(fault.fix, "", "{body}: {fault:?}");
            (fault.place, fault.what)
        }
        other => panic!("{body}: {other:?}"),
    }
}

const SECOND: &str = "10.0.0.12:443";

#[test]
fn services_have_their_back_ends() {
    let served = Served::by(vec![played(), played()]);
    let all = Client::new(&served.path()).ask(target::SERVICES).unwrap();
    let all: Value = all.read().unwrap();
    assert_eq!(all["services"][0]["backends"], json!([]));
    assert_eq!(all["services"][0]["marked_backends"][0]["workers"], 2);
    let backends = &all["services"][1]["backends"];
    assert_eq!(
        backends[1],
        json!({
            "address": SECOND, "weight": 4, "weight_set": false, "maintenance": false, "health": "up", "down_workers": 0,
            "last_down": null, "connections": 14,
        })
    );
    assert_eq!(backends[0]["last_down"]["reason"], "refused");
    assert_eq!(backends[0]["connections"], 10, "of both workers");
}

#[test]
fn weight_and_maintenance_are_told_and_taken_back() {
    let served = Served::by(vec![played()]);
    let before = Client::new(&served.path()).ask(target::SERVICES).unwrap();
    let before: Value = before.read().unwrap();
    for (body, weight, set, maintenance) in [
        (json!({"weight": 0}), 0, true, false),
        (json!({"maintenance": true}), 0, true, true),
        (json!({"weight": null}), 4, false, true),
        (
            json!({"weight": 256, "maintenance": false}),
            256,
            true,
            false,
        ),
        (json!({"weight": 3.0}), 3, true, false),
        (json!({"weight": null}), 4, false, false),
    ] {
        let backends = put(&served, SECOND, &body).unwrap();
        let second = &backends[1];
        let told = (second.weight, second.weight_set, second.maintenance);
        assert_eq!(told, (weight, set, maintenance), "{body}");
        assert_eq!(backends[0].weight, 1);
        assert_eq!(second.health, Health::Up);
    }
    let after: Value = Client::new(&served.path())
        .ask(target::SERVICES)
        .unwrap()
        .read()
        .unwrap();
    let second = |all: &Value| all["services"][1]["backends"][1].clone();
    assert_eq!(second(&after), second(&before));
    assert_eq!(after["generation"], 7, "each of six is in force by itself");
}

#[test]
fn what_is_wrong_is_named_by_its_field_and_changes_nothing() {
    let served = Served::by(vec![played()]);
    let second = target::backend("shop", SECOND);
    for (body, place, what) in [
        ("{\"weight\": 257}", "weight", "257 is no weight"),
        ("{\"weight\": -1}", "weight", "-1 is no weight"),
        ("{\"weight\": 1.5}", "weight", "1.5 is no weight"),
        ("{\"weight\": \"2\"}", "weight", "\"2\" is no weight"),
        ("{\"maintenance\": 1}", "maintenance", "1 is neither"),
        ("{\"maintenance\": null}", "maintenance", "null is neither"),
        ("{\"wieght\": 1}", "wieght", "there is no such field"),
        (
            "{\"weight\": 2, \"maintenance\": 1}",
            "maintenance",
            "1 is neither",
        ),
        ("{}", "the body", "there is nothing to change"),
        ("[]", "the body", "invalid type"),
    ] {
        let (field, said) = refused(&served, &second, body);
        assert_eq!(field, place, "{body}");
        assert!(said.starts_with(what), "{body}: {said}");
    }
    let good = "{\"weight\": 1}";
    for (service, address, place) in [
        ("shop", "10.0.0.13:443", "the back end's address"),
        ("shop", "10.0.0.12", "the back end's address"),
        ("web", SECOND, "the back end's address"),
        ("mail/../shop", SECOND, "the service"),
    ] {
        let (field, _) = refused(&served, &target::backend(service, address), good);
        assert_eq!(field, place, "{service} {address}");
    }
    let (field, _) = refused(&served, "/v1/services/%ff/backends/x", good);
    assert_eq!(field, "the path");
    let backends = put(&served, SECOND, &json!({"maintenance": false})).unwrap();
    assert_eq!((backends[1].weight, backends[1].weight_set), (4, false));
}

/// The drain of `shop` as it is answered.
fn drained(served: &Served, method: &'static str, body: &str) -> Value {
    let answer = Client::new(&served.path()).send(method, &target::drain("shop"), Some(body));
    let one: Value = answer.unwrap().read().unwrap();
    one["service"]["drain"].clone()
}

#[test]
fn services_are_drained_and_taken_back() {
    let served = Served::by(vec![played()]);
    for body in [
        "",
        "null",
        "{}",
        "{\"within\": null}",
        "{\"within\": \"30s\"}",
        "{\"within\": 0}",
    ] {
        let drain = drained(&served, "POST", body);
        assert_eq!(drain["state"], "draining", "{body}");
        assert!(
            drain["left_us"].as_u64().unwrap() > 0,
            "the played one has much time"
        );
    }
    assert_eq!(drained(&served, "DELETE", ""), Value::Null);
    let wrong = |body: &str, place: &str| {
        let target = target::drain("shop");
        match Client::new(&served.path()).send("POST", &target, Some(body)) {
            Err(ClientError::Refused(fault)) => assert_eq!(fault.place, place, "{body}: {fault:?}"),
            other => panic!("{body}: {other:?}"),
        }
    };
    wrong("{\"within\": \"soon\"}", "within");
    wrong("{\"within\": -1}", "within");
    wrong("{\"within\": \"25h\"}", "within");
    wrong("{\"wihtin\": 1}", "wihtin");
    wrong("[", "the body");
    assert_eq!(drained(&served, "DELETE", ""), Value::Null);
    match Client::new(&served.path()).send("POST", &target::drain("mail"), None) {
        Err(ClientError::Refused(fault)) => assert_eq!(fault.place, "the service"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_told_is_kept() {
    let served = Served::by(vec![played()]);
    let target = target::backend("shop", SECOND) + "?saved=true";
    let mut client = Client::new(&served.path());
    client
        .send(
            "PUT",
            &target,
            Some("{\"weight\": 9, \"maintenance\": true}"),
        )
        .unwrap();
    let file = served.directory.path().join("rules.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let order = json!({"service": "shop", "address": SECOND, "weight": 9, "maintenance": true});
    assert_eq!(
        kept,
        json!({"rules": null, "services": {"backends": [order]}})
    );
    let kept = Keeper::new(file).read().unwrap();
    assert_eq!(kept.orders.backends.len(), 1);
}
