//! Rules that are set.

use serde_json::{Value, json};

use super::{Served, parted, played, raw, raw_unread};
use crate::rulebook::Keeper;

/// Sends a request with a body; status and answer.
fn sent(served: &Served, method: &str, target: &str, body: &str) -> (u16, Value) {
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, _, body) = parted(&raw(&served.path(), request.as_bytes()));
    (status, serde_json::from_str(&body).unwrap())
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
    refused("{\"rules\": 1}", "the body");
    refused("{\"rules\": [], \"more\": 1}", "the body");
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
        (400, &json!("the query"))
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
