//! Rules that are set.

use std::thread;

use serde_json::{Value, json};

use super::{Served, parted, played, raw, raw_unread};
use crate::rulebook::{Keeper, Rulebook};

/// Sends a request with a body; status and answer.
pub(super) fn sent(served: &Served, method: &str, target: &str, body: &str) -> (u16, Value) {
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, _, body) = parted(&raw(&served.path(), request.as_bytes()));
    (status, serde_json::from_str(&body).unwrap())
}

/// A document of multi-access rules.
pub(super) fn mar() -> Value {
    let mar = |id: u16, precedence: u32, port: u16| {
        json!({
            "mar_id": id, "precedence": precedence, "traffic": { "ports": [port] }, "steering_functionality": "mptcp",
            "steering_mode": "load-balancing", "thresholds": { "rtt_ms": 80 },
            "3gpp": { "far_id": 1, "weight": 30, "urr_ids": [7], "rat_type": 6 }, "non_3gpp": { "far_id": 2, "weight": 70 },
        })
    };
    json!({ "mars": [mar(9, 20, 80), mar(7, 10, 443)], "accesses": { "non_3gpp": "dsl", "3gpp": "lte" } })
}

fn names(answer: &Value) -> Vec<&str> {
    let rules = answer["rules"].as_array().unwrap();
    rules
        .iter()
        .map(|rule| rule["name"].as_str().unwrap())
        .collect()
}

#[test]
fn rules_that_are_set_take_the_place_of_the_files_until_they_are_taken_back() {
    let served = Served::by(vec![played()]);
    let (_, before) = sent(&served, "GET", "/v1/rules", "");
    assert_eq!(before["source"], "file");
    let wanted = json!({ "rules": [
        { "name": "fast", "mode": "smallest-delay", "hold": "2s" },
    ] });
    let (status, set) = sent(&served, "PUT", "/v1/rules", &wanted.to_string());
    assert_eq!((status, &set["source"]), (200, &json!("api")));
    assert_eq!(
        (names(&set), &set["rules"][0]["hold_us"]),
        (vec!["fast"], &json!(2_000_000))
    );
    assert_eq!(
        set["generation"].as_u64(),
        before["generation"].as_u64().map(|before| before + 1)
    );
    let (_, now) = sent(&served, "GET", "/v1/rules", "");
    assert_eq!(now, set);
    let (status, back) = sent(&served, "DELETE", "/v1/rules", "");
    assert_eq!((status, &back["source"]), (200, &json!("file")));
    assert_eq!(names(&back), ["video", "rest"]);
}

#[test]
fn rules_with_something_wrong_change_nothing_and_are_told_by_field() {
    let served = Served::by(vec![played()]);
    let (_, before) = sent(&served, "GET", "/v1/rules", "");
    let refused = |body: &str, place: &str| {
        let (status, refusal) = sent(&served, "PUT", "/v1/rules", body);
        assert_eq!(status, 400, "{body}: {refusal}");
        assert_eq!(refusal["error"]["where"], place, "{body}");
        assert_ne!(refusal["error"]["fix"], "", "{body}");
    };
    refused("", "the body");
    refused("{}", "the body");
    refused("{\"rules\": []} and more", "the body");
    refused("{\"rules\": 1}", "rules");
    refused("{\"rules\": [{}, 1]}", "rules[1]");
    refused("{\"rules\": [], \"more\": 1}", "more");
    refused(
        "{\"rules\": [{\"name\": \"a\", \"mode\": \"random\", \"hold\": null}]}",
        "rules[0].hold",
    );
    refused(
        "{\"rules\": [{\"name\": \"a\", \"mode\": \"random\", \"ports\": [1]}, {\"name\": \"b\", \"mode\": \"fast\"}]}",
        "rules[1].mode",
    );
    let (status, refusal) = sent(&served, "PUT", "/v1/rules?save=true", "{\"rules\": []}");
    assert_eq!(
        (status, &refusal["error"]["where"]),
        (400, &json!("parameter `save`"))
    );
    let large = format!("{{\"rules\": [\"{}\"]}}", "x".repeat(9 << 20));
    let head = "PUT /v1/rules HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length:";
    let request = format!("{head} {}\r\n\r\n{large}", large.len());
    let answer = raw_unread(&served.path(), request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let (status, _) = sent(&served, "POST", "/v1/rules", "{\"rules\": []}");
    assert_eq!(status, 405);
    assert_eq!(sent(&served, "GET", "/v1/rules", "").1, before);
}

#[test]
fn single_rules_are_read_set_placed_and_removed() {
    let served = Served::by(vec![played()]);
    let (status, video) = sent(&served, "GET", "/v1/rules/video", "");
    assert_eq!((status, &video["source"]), (200, &json!("file")));
    assert_eq!(
        (&video["place"], &video["rule"]["mode"]),
        (&json!(0), &json!("active-standby"))
    );
    assert_eq!(video["keys"]["ports"], json!(["443", "8000-8999"]));
    // What was read can be set.
    let (status, same) = sent(
        &served,
        "PUT",
        "/v1/rules/video",
        &video["keys"].to_string(),
    );
    assert_eq!(
        (status, &same["source"], &same["rule"]),
        (200, &json!("api"), &video["rule"])
    );
    let narrow = json!({ "mode": "random", "ports": [25] }).to_string();
    let (status, mail) = sent(
        &served,
        "PUT",
        "/v1/rules/a%20mail%2F%C3%A4?before=rest",
        &narrow,
    );
    assert_eq!(
        (status, &mail["place"], &mail["rule"]["name"]),
        (201, &json!(1), &json!("a mail/\u{e4}"))
    );
    let all = || sent(&served, "GET", "/v1/rules", "").1;
    assert_eq!(names(&all()), ["video", "a mail/\u{e4}", "rest"]);
    let (status, left) = sent(&served, "DELETE", "/v1/rules/rest?saved=true", "");
    assert_eq!(
        (status, names(&left).len(), &left["source"]),
        (200, 2, &json!("api"))
    );
    let (status, last) = sent(&served, "PUT", "/v1/rules/last", &narrow);
    assert_eq!((status, &last["place"]), (201, &json!(2)));
    // They are those that are saved.
    let kept = std::fs::read(served.directory.path().join("rules.json")).unwrap();
    assert!(String::from_utf8(kept).unwrap().contains("a mail/"));
    let (_, back) = sent(&served, "DELETE", "/v1/rules", "");
    assert_eq!(names(&back), ["video", "rest"]);
}

#[test]
fn single_rules_with_something_wrong_change_nothing() {
    let served = Served::by(vec![played()]);
    let (_, before) = sent(&served, "GET", "/v1/rules", "");
    let refused = |method: &str, target: &str, body: &str, status: u16, place: &str| {
        let (said, refusal) = sent(&served, method, target, body);
        assert_eq!(
            (said, &refusal["error"]["where"]),
            (status, &json!(place)),
            "{refusal}"
        );
        assert_ne!(refusal["error"]["fix"], "", "{refusal}");
    };
    let good = "{\"mode\": \"random\", \"ports\": [1]}";
    for method in ["GET", "DELETE"] {
        refused(method, "/v1/rules/x", "", 404, "the path");
    }
    refused("PUT", "/v1/rules/x", "[]", 400, "the body");
    refused("PUT", "/v1/rules/x", "{}", 400, "the body");
    refused(
        "PUT",
        "/v1/rules/x",
        "{\"mode\": \"random\", \"hold\": 0, \"ports\": [1]}",
        400,
        "the body",
    );
    refused(
        "PUT",
        "/v1/rules/x?before=rest",
        "{\"mode\": \"fast\"}",
        400,
        "mode",
    );
    refused(
        "PUT",
        "/v1/rules/x",
        "{\"mode\": \"random\", \"name\": \"y\"}",
        400,
        "name",
    );
    refused(
        "PUT",
        "/v1/rules/x?before=y",
        good,
        400,
        "parameter `before`",
    );
    refused(
        "PUT",
        "/v1/rules/x?before=rest&before=rest",
        good,
        400,
        "parameter `before`",
    );
    refused(
        "PUT",
        "/v1/rules/video?before=video",
        good,
        400,
        "parameter `before`",
    );
    refused(
        "PUT",
        "/v1/rules/x?before=rest&saved=yes",
        good,
        400,
        "parameter `saved`",
    );
    refused(
        "PUT",
        "/v1/rules/video",
        "{\"mode\": \"random\"}",
        400,
        "rule `rest`",
    );
    refused(
        "GET",
        "/v1/rules/video?saved=true",
        "",
        400,
        "parameter `saved`",
    );
    refused(
        "DELETE",
        "/v1/rules/video?before=rest",
        "",
        400,
        "parameter `before`",
    );
    refused("PATCH", "/v1/rules/video", good, 405, "method PATCH");
    refused("GET", "/v1/rules/%FF", "", 400, "the path");
    assert_eq!(sent(&served, "GET", "/v1/rules", "").1, before);
}

#[test]
fn batches_are_all_or_nothing() {
    let served = Served::by(vec![played()]);
    let (_, before) = sent(&served, "GET", "/v1/rules", "");
    let patched = |changes: &Value| {
        sent(
            &served,
            "PATCH",
            "/v1/rules",
            &json!({ "changes": changes }).to_string(),
        )
    };
    let rule = |name: &str, hold: &str| json!({ "name": name, "mode": "random", "ports": [7], "hold": hold });
    for (changes, place) in [
        (
            json!([{ "remove": "video" }, { "set": rule("a", "1ms"), "before": "rest" }]),
            "changes[1].set.hold",
        ),
        (
            json!([{ "remove": "video" }, { "remove": "video" }]),
            "changes[1].remove",
        ),
        (
            json!([{ "remove": "video" }, { "set": rule("a", "1s"), "before": "b" }]),
            "changes[1].before",
        ),
        (json!([{ "remove": "video" }, {}]), "changes[1]"),
        (
            json!([{ "remove": "video" }, { "remove": "rest", "before": "x" }]),
            "changes[1]",
        ),
        (
            json!([{ "remove": "video", "set": rule("a", "1s") }]),
            "changes[0]",
        ),
        (
            json!([{ "add": rule("video", "1s") }]),
            "changes[0].add.name",
        ),
        (
            json!([{ "add": rule("a", "1ms"), "before": "rest" }]),
            "changes[0].add.hold",
        ),
        (json!([{ "remove": 1 }]), "changes[0].remove"),
        (json!([{ "remove": "video", "more": 1 }]), "changes[0].more"),
        (
            json!([{ "set": { "mode": "random" } }]),
            "changes[0].set.name",
        ),
        (json!(1), "changes"),
    ] {
        let (status, refusal) = patched(&changes);
        assert_eq!(
            (status, &refusal["error"]["where"]),
            (400, &json!(place)),
            "{refusal}"
        );
        assert_ne!(refusal["error"]["fix"], "", "{refusal}");
        assert_eq!(sent(&served, "GET", "/v1/rules", "").1, before, "{changes}");
    }
    let (status, set) = patched(&json!([
        { "set": rule("a", "2s"), "before": "rest" }, { "remove": "video" }, { "add": rule("b", "1s"), "before": "a" },
    ]));
    assert_eq!(
        (status, names(&set), &set["source"]),
        (200, vec!["b", "a", "rest"], &json!("api"))
    );
    assert_eq!(
        set["generation"].as_u64(),
        before["generation"].as_u64().map(|number| number + 1)
    );
    let (status, set) = patched(&json!([]));
    assert_eq!((status, names(&set)), (200, vec!["b", "a", "rest"]));
}

#[test]
fn clients_that_change_rules_at_once_lose_nothing() {
    let served = Served::by(vec![played()]);
    let path = served.path();
    let one = |client: u16| {
        let path = path.clone();
        thread::spawn(move || {
            for number in 0..20 {
                let body =
                    json!({ "mode": "random", "ports": [client * 100 + number + 1] }).to_string();
                let target = format!("/v1/rules/of-{client}-{number}?before=rest");
                let request = format!(
                    "PUT {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                assert_eq!(parted(&raw(&path, request.as_bytes())).0, 201);
            }
        })
    };
    let clients: Vec<_> = (0..4).map(one).collect();
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
    let (_, all) = sent(&served, "GET", "/v1/rules", "");
    assert_eq!(names(&all).len(), 2 + 4 * 20);
}

#[test]
fn rules_are_saved_when_that_is_waited_for() {
    let served = Served::by(vec![played()]);
    let wanted = json!({ "rules": [{ "name": "fast", "mode": "random" }] }).to_string();
    let file = served.directory.path().join("rules.json");
    for _ in 0..2 {
        let (status, _) = sent(&served, "PUT", "/v1/rules?saved=true", &wanted);
        assert_eq!(status, 200);
        let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(kept, serde_json::from_str::<Value>(&wanted).unwrap());
        assert!(Keeper::new(file.clone()).read().unwrap().rules.is_some());
        let (status, _) = sent(&served, "DELETE", "/v1/rules?saved=true", "");
        assert_eq!(status, 200);
        assert!(Keeper::new(file.clone()).read().unwrap().rules.is_none());
    }
    // Where they can't be, they are in force all the same, and it is said.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    let (status, refusal) = sent(&served, "PUT", "/v1/rules?saved=true", &wanted);
    assert_eq!(status, 503, "{refusal}");
    assert!(
        refusal["error"]["what"]
            .as_str()
            .unwrap()
            .contains("can't be saved")
    );
    assert_eq!(names(&sent(&served, "GET", "/v1/rules", "").1), ["fast"]);
}

#[test]
fn document_of_multi_access_rules_is_given_back_as_it_was_until_rules_are_changed() {
    let served = Served::by(vec![played()]);
    assert_eq!(sent(&served, "GET", "/v1/mar", "").0, 404);
    let (status, set) = sent(
        &served,
        "PUT",
        "/v1/mar?saved=true&move=true",
        &mar().to_string(),
    );
    assert_eq!(
        (status, &set["source"], names(&set)),
        (200, &json!("api"), vec!["mar-7", "mar-9"])
    );
    assert_eq!(set["rules"][0]["weights"], json!({ "dsl": 70, "lte": 30 }));
    let (status, back) = sent(&served, "GET", "/v1/mar", "");
    assert_eq!((status, &back["mar"]), (200, &mar()));
    // It is kept with the rules, and found by the next run.
    let kept = Keeper::new(served.directory.path().join("rules.json"))
        .read()
        .unwrap();
    let (book, config) = Rulebook::begin(kept, super::generation().config);
    assert_eq!(book.set().mar.as_deref(), Some(&mar()));
    assert_eq!(config.rules[1].name.value, "mar-9");
    // What is wrong changes nothing.
    let mut wrong = mar();
    wrong["mars"][1]["3gpp"]["weight"] = 31.into();
    let (status, refusal) = sent(&served, "PUT", "/v1/mar", &wrong.to_string());
    assert_eq!(
        (status, &refusal["error"]["where"]),
        (400, &json!("mars[1].3gpp.weight"))
    );
    assert_eq!(sent(&served, "GET", "/v1/mar", "").1, back);
    assert_eq!(sent(&served, "POST", "/v1/mar", "").0, 405);
    // A rule may be called as its path ends.
    let rule = json!({ "mode": "random", "ports": [7] }).to_string();
    assert_eq!(sent(&served, "PUT", "/v1/rules/mar", &rule).0, 201);
    assert_eq!(sent(&served, "GET", "/v1/mar", "").0, 404);
    let (_, rules) = sent(&served, "GET", "/v1/rules", "");
    assert_eq!(names(&rules), ["mar-7", "mar-9", "mar"]);
}

#[test]
fn file_that_is_none_is_not_read() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("rules.json");
    assert!(Keeper::new(file.clone()).read().unwrap().rules.is_none());
    std::fs::write(&file, "{\"rules\": [1]}").unwrap();
    let error = Keeper::new(file).read().unwrap_err().to_string();
    assert!(
        error.contains("rules.json") && error.contains("remove it"),
        "{error}"
    );
}
