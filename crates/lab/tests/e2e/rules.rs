//! Rules that are set while FlexCP runs.

use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::steering::RuleChanges;
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{Direction, End, Expect, Family, FlexCp, Lab, daemon};
use serde_json::{Value, json};

use crate::rig::{PORT, with};
use crate::steering::share_of_the_second;

crate::cases!("rules":
    download_goes_where_rules_that_are_set_lead_it,
    download_moves_at_once_where_that_is_asked_for,
    rules_that_are_set_stay_over_reloads_and_restarts,
    rules_that_change_under_downloads_lose_nothing_and_are_saved_once_a_second,
);

/// Has curl send a request; status and answer.
fn ask(flexcp: &FlexCp, method: &str, target: &str, body: &Value) -> Result<(u16, Value)> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-X", method, "-w", "\n%{http_code}", "--unix-socket"])
        .arg(flexcp.socket())
        .args(["--data", &body.to_string()])
        .arg(format!("http://localhost{target}"));
    let said = curl.output().context("curl")?;
    ensure!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout)?;
    let (answer, status) = said.rsplit_once('\n').context("a status")?;
    Ok((status.parse()?, serde_json::from_str(answer)?))
}

fn set(flexcp: &FlexCp, target: &str, first: &str, second: &str) -> Result<()> {
    set_with(flexcp, target, [first, second], "200ms")
}

/// No connection is moved again within that time.
fn set_with(flexcp: &FlexCp, target: &str, accesses: [&str; 2], time: &str) -> Result<()> {
    let rule = json!({
        "name": "set", "mode": "active-standby", "accesses": accesses, "hold": time, "fail_back": time,
    });
    let (status, answer) = ask(flexcp, "PUT", target, &json!({ "rules": [rule] }))?;
    ensure!(status == 200 && answer["source"] == "api", "{answer}");
    Ok(())
}

fn source(flexcp: &FlexCp) -> Result<String> {
    let (_, rules) = ask(flexcp, "GET", "/v1/rules", &Value::Null)?;
    Ok(rules["source"].as_str().context("a source")?.to_owned())
}

/// An installed connection is looked at every two seconds.
const LOOK: Duration = Duration::from_secs(2);

/// Two paths of 50 Mbit/s with accesses of their own.
fn limited() -> Result<(Lab, String)> {
    let limited = "delay=5ms,rate=50mbit:400kb";
    let mut builder = Lab::builder();
    for link in [1, 2] {
        builder = builder.faults(link, Direction::Down, limited);
    }
    let lab = builder.build()?;
    let config = daemon::accesses(&lab) + &daemon::transparent(&lab, &[]);
    Ok((lab, config))
}

fn download_goes_where_rules_that_are_set_lead_it() -> Result<()> {
    let (lab, config) = limited()?;
    with(lab, &config, ServeOptions::tcp(PORT), |rig| {
        set(&rig.flexcp, "/v1/rules", "a", "b")?;
        rig.run_while(Family::V4, &Job::down(60_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(500));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share <= 5, "{share} % came over the access for failures");
            set(&rig.flexcp, "/v1/rules", "b", "a")?;
            thread::sleep(LOOK + Duration::from_secs(1));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share >= 95, "{share} % came over the access that is set");
            Ok(())
        })?;
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 1)
            .disturbed("data overtake each other where they change paths"))
    })
}

fn download_moves_at_once_where_that_is_asked_for() -> Result<()> {
    let (lab, config) = limited()?;
    with(lab, &config, ServeOptions::tcp(PORT), |rig| {
        set(&rig.flexcp, "/v1/rules", "a", "b")?;
        rig.run_while(Family::V4, &Job::down(60_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(500));
            for (accesses, expected) in [(["b", "a"], 95..=100), (["a", "b"], 0..=5)] {
                set_with(&rig.flexcp, "/v1/rules?move=true", accesses, "1h")?;
                // What was under way comes the old way.
                thread::sleep(Duration::from_millis(500));
                let share = share_of_the_second(rig, 300)?;
                ensure!(
                    expected.contains(&share),
                    "{share} % came over the second with {accesses:?}"
                );
            }
            Ok(())
        })?;
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 1)
            .disturbed("data overtake each other where they change paths"))
    })
}

fn rules_that_are_set_stay_over_reloads_and_restarts() -> Result<()> {
    let lab = Lab::builder().build()?;
    let service = daemon::transparent(&lab, &[]);
    let config = daemon::config(&lab, &(daemon::accesses(&lab) + &service));
    let mut flexcp = FlexCp::start(&lab, &config)?;
    ensure!(source(&flexcp)? == "file", "nothing is set");
    set(&flexcp, "/v1/rules?saved=true", "a", "b")?;
    ensure!(flexcp.reload(&lab, &config)?.in_force, "{}", flexcp.log());
    ensure!(source(&flexcp)? == "api", "a reload has taken them back");
    // A configuration that they can't go with.
    let without = daemon::config(&lab, &service);
    let reloaded = flexcp.reload(&lab, &without)?;
    let named = reloaded.log.contains("rules[0].accesses");
    ensure!(!reloaded.in_force && named, "{}", reloaded.log);
    flexcp.kill()?;
    let flexcp = FlexCp::start(&lab, &config)?;
    ensure!(source(&flexcp)? == "api", "kill -9 has taken them back");
    // Not waited for: the end saves it.
    let (status, answer) = ask(&flexcp, "DELETE", "/v1/rules", &Value::Null)?;
    ensure!(status == 200, "{answer}");
    flexcp.stop()?;
    let flexcp = FlexCp::start(&lab, &config)?;
    ensure!(source(&flexcp)? == "file", "what was taken back is there");
    flexcp.stop()
}

/// A short form of `make rule-changes`.
fn rules_that_change_under_downloads_lose_nothing_and_are_saved_once_a_second() -> Result<()> {
    let changes = RuleChanges {
        clients: 16,
        seconds: 2.0,
        rounds: 1,
        results: "lab/results".into(),
    };
    changes.measure()?.judge(true)
}
