//! `flexcp rule` and what shows rules.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::program::{Namespace, Place, TRANSPARENT, check, flexcp};

const RULES: &str = "\
[[access]]
name = 'dsl'
clients = ['10.1.0.0/16']
[[access]]
name = 'lte'
clients = ['10.2.0.0/16']
[[rule]]
name = 'video'
mode = 'active-standby'
accesses = ['lte', 'dsl']
ports = [443]
[[rule]]
name = 'rest'
mode = 'load-balancing'
weights = { dsl = 30, lte = 70 }
";

/// What a command says: whether it succeeded, and its output.
fn said(place: &Place, words: &[&str]) -> (bool, String) {
    said_to(place, words, "")
}

/// The same with standard input.
fn said_to(place: &Place, words: &[&str], input: &str) -> (bool, String) {
    let mut command = flexcp();
    command.args(words).arg("--config").arg(place.config());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Who does not read it has ended before.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = place.said(&output.stdout) + &place.said(&output.stderr);
    (output.status.success(), text)
}

/// What must succeed.
#[track_caller]
fn done(place: &Place, words: &[&str], input: &str) -> String {
    let (success, text) = said_to(place, words, input);
    assert!(success, "{words:?}: {text}");
    text
}

/// The rules in force.
fn names(place: &Place) -> Vec<String> {
    let listed = done(place, &["rule", "list", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let rules = listed["rules"].as_array().unwrap();
    let names = rules.iter().map(|rule| rule["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[test]
fn check_lists_the_rules_behind_the_services() {
    let place = Place::new(&format!("{TRANSPARENT}{RULES}"));
    let output = check(&place, &[]);
    assert_eq!(
        place.said(&output.stdout),
        "ok: flexcp.toml: 1 service, 2 rules\n  web: transparent, to 10.98.0.0/16 port 80\n  \
         rule video: active-standby, lte, dsl; port 443\n  rule rest: load-balancing, dsl 30, lte 70; all\n"
    );
}

#[test]
fn rules_are_set_placed_removed_and_given_back() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("{TRANSPARENT}{RULES}"));
    let mut daemon = namespace.run(&place);
    daemon.says("ready");

    let listed = done(&place, &["rule", "list"], "");
    assert!(
        listed.starts_with("rules of the configuration file\nRULE "),
        "{listed}"
    );
    assert_eq!(listed, done(&place, &["show", "rules"], ""));
    let words = "rule set name=mail mode=random ports=25,465 hold=2s --before rest --saved --move";
    let set = done(&place, &words.split(' ').collect::<Vec<_>>(), "");
    assert!(set.starts_with("rules set by the API\n"), "{set}");
    assert_eq!(names(&place), ["video", "mail", "rest"]);
    let kept = std::fs::read_to_string(place.0.path().join("state/flexcp0.rules.json")).unwrap();
    assert!(kept.contains("mail"), "{kept}");
    let shown = done(&place, &["rule", "show", "mail"], "");
    assert!(
        shown.starts_with("[[rule]]\n") && shown.contains("ports = [\"25\", \"465\"]"),
        "{shown}"
    );

    // There is one of that name.
    let again = ["rule", "add", "name=mail", "mode=random", "ports=1"];
    let (success, text) = said(&place, &again);
    assert!(
        !success && text.contains("changes[0].add.name: there is a rule `mail` already; "),
        "{text}"
    );
    let file = json!({ "name": "a b/c", "mode": "smallest-delay", "ports": [80] }).to_string();
    done(&place, &["rule", "add", "-", "--before", "mail"], &file);
    done(&place, &["rule", "remove", "mail"], "");
    assert_eq!(names(&place), ["video", "a b/c", "rest"]);
    let shown = done(&place, &["rule", "show", "a b/c", "--json"], "");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["place"], 1);

    done(&place, &["rule", "reset"], "");
    assert_eq!(names(&place), ["video", "rest"]);
}

#[test]
fn files_are_applied_by_what_they_say() {
    let namespace = Namespace::new();
    let place = Place::new(&format!("{TRANSPARENT}{RULES}"));
    let mut daemon = namespace.run(&place);
    daemon.says("ready");

    let rule = json!({ "name": "mail", "mode": "random", "ports": [25] });
    let changes = json!({ "changes": [{ "remove": "video" }, { "add": rule, "before": "rest" }] });
    let file = place.0.path().join("changes.json");
    std::fs::write(&file, changes.to_string()).unwrap();
    done(&place, &["rule", "apply", file.to_str().unwrap()], "");
    assert_eq!(names(&place), ["mail", "rest"]);
    let (success, text) = said(&place, &["rule", "apply", file.to_str().unwrap()]);
    assert!(
        !success && text.contains("changes[0].remove: there is no rule `video`; "),
        "{text}"
    );
    assert_eq!(names(&place), ["mail", "rest"]);
    done(
        &place,
        &["rule", "apply", "-"],
        &json!({ "rules": [rule] }).to_string(),
    );
    assert_eq!(names(&place), ["mail"]);
    let mar = json!({ "accesses": { "3gpp": "lte", "non_3gpp": "dsl" }, "mars": [{
        "mar_id": 4, "precedence": 1, "steering_functionality": "mptcp", "steering_mode": "smallest-delay",
        "3gpp": { "far_id": 1 }, "non_3gpp": { "far_id": 2 },
    }] });
    done(&place, &["rule", "apply", "-", "--move"], &mar.to_string());
    assert_eq!(names(&place), ["mar-4"]);
    for (input, expected) in [
        (
            "{}",
            "flexcp: - says nothing to apply; write an object with `changes`, `rules` or `mars`\n",
        ),
        ("{", "flexcp: - is not JSON: EOF while parsing"),
    ] {
        let (success, text) = said_to(&place, &["rule", "apply", "-"], input);
        assert!(!success && text.starts_with(expected), "{text}");
    }
    let (success, text) = said(&place, &["rule", "show", "video"]);
    assert!(
        !success
            && text.starts_with("flexcp: flexcp refuses: the path: there is no rule `video`; "),
        "{text}"
    );
    let (success, text) = said(&place, &["show", "connections", "--rule", "video"]);
    assert!(
        !success && text.contains("there is no rule `video`"),
        "{text}"
    );
    assert_eq!(
        done(&place, &["show", "connections", "--rule", "mar-4"], ""),
        "no connections\n"
    );
}
