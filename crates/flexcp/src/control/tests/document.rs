//! The API's document lists what there is, and what is answered has the form that it says.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn document() -> Value {
    serde_json::from_str(&super::super::document()).unwrap()
}

#[test]
fn document_lists_every_route() {
    let document = document();
    let listed: BTreeSet<_> = document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let paths = [
        "/metrics",
        "/openapi.json",
        "/v1/accesses",
        "/v1/config/schema",
        "/v1/connections",
        "/v1/connections/close",
        "/v1/connections/move",
        "/v1/connections/{id}",
        "/v1/connections/{id}/move",
        "/v1/events",
        "/v1/mar",
        "/v1/rules",
        "/v1/rules/{name}",
        "/v1/servers",
        "/v1/services",
        "/v1/services/{service}/backends/{address}",
        "/v1/services/{service}/drain",
        "/v1/stats",
        "/v1/status",
    ];
    assert_eq!(listed.iter().map(String::as_str).collect::<Vec<_>>(), paths);
    // Whatever is routed is described: there is one way to route.
    let source = concat!(
        include_str!("../routes.rs"),
        include_str!("../rule_routes.rs"),
        include_str!("../service_routes.rs")
    );
    assert_eq!(source.matches(".routes(routes!(").count(), paths.len());
    let items = document["paths"].as_object().unwrap().values();
    let operations: usize = items.map(|item| item.as_object().unwrap().len()).sum();
    assert_eq!(
        operations,
        paths.len() + 8,
        "and what changes rules, closes a connection, and ends a drain"
    );
    assert_eq!(source.matches("#[utoipa::path(").count(), operations);
    for other in [
        ".route(",
        ".nest(",
        ".merge(",
        "route_service",
        "nest_service",
    ] {
        assert!(!source.contains(other), "{other}");
    }
    let served = Served::by(vec![played()]);
    let answered: Value = ask_any(&served, "/openapi.json");
    assert_eq!(answered, document);
    assert_eq!(document["security"], Value::Null, "the socket needs none");
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let summary = operation["summary"].as_str();
            assert!(summary.is_some_and(|summary| summary.len() > 10), "{path}");
            let responses = &operation["responses"];
            assert!(responses["200"]["content"].is_object(), "{path}");
            assert!(responses["400"].is_object(), "{path}");
        }
    }
    for target in [
        target::STATS,
        target::STATUS,
        target::ACCESSES,
        target::SERVICES,
        target::SERVERS,
        target::CONNECTIONS,
        target::EVENTS,
    ] {
        assert!(listed.contains(target), "{target}");
    }
}

fn ask_any(served: &Served, target: &str) -> Value {
    let (status, _, body) = exchanged(&served.path(), "GET", target);
    let body = if body.starts_with('{') {
        body
    } else {
        listings::unchunked(&format!("\r\n\r\n{body}"))
    };
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The schema of a component, in which no object has more than it says.
fn schema(name: &str) -> Value {
    let mut components = document()["components"].clone();
    let schemas = components["schemas"].as_object_mut().unwrap();
    assert!(schemas.contains_key(name), "{name}");
    // What is a part of others, they close.
    let parts = ["Noted", "Switch", "Which"];
    let whole = schemas
        .iter_mut()
        .filter(|(name, _)| !parts.contains(&name.as_str()));
    whole.for_each(|(_, schema)| close(schema));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/components/schemas/{name}"),
        "components": components,
    })
}

fn close(schema: &mut Value) {
    let is_part = schema.get("allOf").is_some();
    for alternatives in ["oneOf", "anyOf"] {
        for one in schema
            .get_mut(alternatives)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            close(one);
        }
    }
    let object = schema.as_object_mut().unwrap();
    let is_open = object.contains_key("properties") && !object.contains_key("additionalProperties");
    if is_part || is_open {
        object.insert("unevaluatedProperties".into(), false.into());
    }
}

#[track_caller]
fn fits(name: &str, answer: &Value) {
    let validator = jsonschema::draft202012::new(&schema(name)).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(answer)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}\n{answer}");
    // Not all fits it.
    assert!(!validator.is_valid(&json!({"version": "1"})), "{name}");
    let mut more = answer.clone();
    more.as_object_mut()
        .unwrap()
        .insert("nobody_knows".into(), 1.into());
    assert!(
        !validator.is_valid(&more),
        "{name} says not what there is: {}",
        schema(name)["components"]["schemas"][name]
    );
}

#[test]
fn answers_have_the_form_that_the_document_says() {
    let served = Served::by(vec![played()]);
    let (status, set) = setting::sent(&served, "PUT", "/v1/mar", &setting::mar().to_string());
    assert_eq!(status, 200, "{set}");
    for (target, name) in [
        ("/v1/status", "Status"),
        ("/v1/stats", "Stats"),
        ("/v1/servers", "Servers"),
        ("/v1/services", "Services"),
        ("/v1/accesses", "Accesses"),
        ("/v1/rules", "Rules"),
        ("/v1/rules/{name}", "OneRule"),
        ("/v1/mar", "MarSet"),
        ("/v1/connections", "Connections"),
    ] {
        let said = document()["paths"][target]["get"]["responses"]["200"]["content"].clone();
        assert_eq!(
            said["application/json"]["schema"]["$ref"],
            format!("#/components/schemas/{name}"),
            "{said}"
        );
        let target = target.replace("{name}", "mar-7");
        fits(name, &ask_any(&served, &target));
    }
    let id = format!("/v1/connections/{ID}");
    fits("OneConnection", &ask_any(&served, &id));
    for (method, target, body, name) in [
        ("DELETE", id.clone(), "", "Done"),
        ("POST", id + "/move", "{\"subflow\": 1}", "Done"),
        (
            "POST",
            "/v1/connections/close?service=web".into(),
            "",
            "DoneByAll",
        ),
    ] {
        let (status, answer) = setting::sent(&served, method, &target, body);
        assert_eq!(status, 200, "{answer}");
        fits(name, &answer);
    }
    let (_, _, refused) = exchanged(&served.path(), "GET", "/v1/stats?x");
    fits("Refusal", &serde_json::from_str(&refused).unwrap());
}

#[test]
fn events_have_the_form_that_the_document_says() {
    for event in events::all() {
        fits("Event", &serde_json::to_value(event).unwrap());
    }
}
