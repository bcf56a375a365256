//! The harness as a whole, in a few seconds: `make e2e` runs it as root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use flexcp_bench::{Plan, Report, Subject};

#[test]
fn one_short_round() {
    main_item();
    other_circumstances();
    reads();
}

/// What looking costs, with few connections beside: by the program itself, which is its own helper.
fn reads() {
    let results = env!("CARGO_TARGET_TMPDIR").to_owned() + "/reads";
    let words = [
        "--reads",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--idle",
        "300",
    ];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    let done = bench.args(words).args(["--results", &results]).output();
    let done = done.expect("the program");
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(done.status.success(), "{said}");
    let written = fs::read_to_string(results + "/latest.json").expect("the results");
    let results: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    for subject in [Subject::FlexCp, Subject::Watched, Subject::Listed] {
        let mut records = results["records"].as_array().into_iter().flatten();
        let rate = records.find(|record| {
            record["name"] == "throughput/down/64x1-reads" && record["subject"] == subject.name()
        });
        let rate = rate.and_then(|record| record["median"].as_f64());
        assert!(rate.is_some_and(|rate| rate > 0.0), "{written}");
    }
}

/// The TUN device alone, which says when packets pass it by, and links without steering.
fn other_circumstances() {
    let plan = Plan {
        rounds: 1,
        seconds: 0.3,
        quick: false,
        only: vec!["down/64x2-tun".into(), "down/64x2-unsteered".into()],
        subjects: vec![Subject::Tun, Subject::Tcp],
        congestion: None,
        idle: 0,
    };
    let results = plan.run(|_| (), |_| Ok(())).expect("both can be measured");
    let said = Report(&results).to_string();
    for (cell, subject) in [("tun", Subject::Tun), ("unsteered", Subject::Tcp)] {
        let rate = results.median(&format!("throughput/down/64x2-{cell}"), subject);
        assert!(rate.is_some_and(|rate| rate > 0.0), "{said}");
    }
}

fn main_item() {
    let subjects = [
        Subject::FlexCp,
        Subject::Translator,
        Subject::Haproxy,
        Subject::Tcp,
    ];
    let plan = Plan {
        rounds: 1,
        seconds: 0.3,
        quick: true,
        only: vec!["64x2".into()],
        subjects: subjects.to_vec(),
        congestion: None,
        idle: 0,
    };
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join("smoke.json");
    let results = plan
        .run(|_| (), |results| results.write(&file))
        .expect("something can be measured");

    let said = Report(&results).to_string();
    for subject in subjects {
        // `make setup` brings the peers: a subject that could not be measured is a failure, whatever the reason.
        let rate = results.median("throughput/down/64x2", subject);
        let name = subject.name();
        assert!(
            rate.is_some_and(|rate| rate > 0.0),
            "{name} is missing\n{said}"
        );
    }
    let written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("results are written"))
            .expect("as JSON");
    assert_eq!(
        written["records"].as_array().map(Vec::len),
        Some(results.records.len())
    );
}
