//! Steering by rules, with the client's kernel on two paths.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{Direction, End, Expect, Family, Lab, daemon};

use serde_json::Value;

use crate::rig::{PORT, Rig, until, with};

crate::cases!("steering":
    download_goes_down_the_path_with_the_smallest_delay,
    download_follows_a_delay_that_changes,
    download_goes_down_the_preferred_access,
    download_comes_back_to_the_preferred_access,
    accesses_go_by_the_interface_that_routes_lead_to,
    subflow_is_of_another_access_when_routes_change,
);

/// Two links with these delays each way, which carry 100 Mbit/s.
fn lab(delays_ms: [u32; 2]) -> Result<Lab> {
    let mut builder = Lab::builder();
    for (link, delay) in (1..).zip(delays_ms) {
        let faults = faults(delay);
        builder =
            builder
                .faults(link, Direction::Up, &faults)
                .faults(link, Direction::Down, &faults);
    }
    builder.build()
}

fn faults(delay_ms: u32) -> String {
    format!("delay={delay_ms}ms,rate=100mbit:400kb")
}

/// Runs a case under a rule of these lines, with the access `one` on link 1 and `two` on link 2.
fn steered(lab: Lab, rule: &str, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let access = |name, link| {
        let client = lab.client_addr(link, Family::V4);
        format!("[[access]]\nname = \"{name}\"\nclients = [\"{client}/32\"]\n")
    };
    let rule = format!("[[rule]]\nname = \"all\"\n{rule}\n");
    let config = access("one", 1) + &access("two", 2) + &rule + &daemon::transparent(&lab, &[]);
    with(lab, &config, ServeOptions::tcp(PORT), case)
}

/// Bytes that have come to the client over each link.
fn received(rig: &Rig) -> Result<[u64; 2]> {
    let all = flexcp_lab::interfaces(rig.lab.client())?;
    Ok([1, 2].map(|link| all[&format!("a{link}")].rx))
}

/// Of what comes in this time the share that link 2 brings, in percent.
pub(crate) fn share_of_the_second(rig: &Rig, ms: u64) -> Result<u64> {
    let before = received(rig)?;
    thread::sleep(Duration::from_millis(ms));
    let after = received(rig)?;
    let [one, two] = [0, 1].map(|link| after[link] - before[link]);
    ensure!(one + two > 100_000, "only {one} and {two} bytes came");
    Ok(two * 100 / (one + two))
}

fn expected() -> Expect {
    Expect::clean()
        .at_least(End::Client, "MPJoinSynAckRx", 1)
        .disturbed("data overtake each other where they change paths")
}

fn download_goes_down_the_path_with_the_smallest_delay() -> Result<()> {
    steered(lab([40, 5])?, "mode = \"smallest-delay\"", |rig| {
        rig.run_while(Family::V4, &Job::down(12_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(200));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share >= 95, "{share} % came over the faster path");
            Ok(())
        })?;
        Ok(expected())
    })
}

/// An installed connection is looked at every two seconds.
const LOOK_MS: u64 = 2000;

fn download_follows_a_delay_that_changes() -> Result<()> {
    steered(lab([5, 20])?, "mode = \"smallest-delay\"", |rig| {
        rig.run_while(Family::V4, &Job::down(40_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(300));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share <= 5, "{share} % came over the slower path");
            for direction in [Direction::Up, Direction::Down] {
                rig.lab.set_faults(1, direction, &faults(100))?;
            }
            thread::sleep(Duration::from_millis(LOOK_MS + 1000));
            let share = share_of_the_second(rig, 300)?;
            ensure!(
                share >= 95,
                "{share} % came over what is the faster path now"
            );
            Ok(())
        })?;
        Ok(expected())
    })
}

const STANDBY: &str = "mode = \"active-standby\"\naccesses = [\"two\", \"one\"]\nhold = \"200ms\"\nfail_back = \"1s\"";

fn download_goes_down_the_preferred_access() -> Result<()> {
    steered(lab([5, 20])?, STANDBY, |rig| {
        rig.run_while(Family::V4, &Job::down(12_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(300));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share >= 95, "{share} % came over the preferred access");
            Ok(())
        })?;
        Ok(expected())
    })
}

fn download_comes_back_to_the_preferred_access() -> Result<()> {
    steered(lab([5, 20])?, STANDBY, |rig| {
        rig.run_while(Family::V4, &Job::down(80_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(300));
            rig.lab.set_faults(2, Direction::Down, "loss=100%")?;
            thread::sleep(Duration::from_millis(1000));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share <= 5, "{share} % came over a path that is dead");
            rig.lab.set_faults(2, Direction::Down, &faults(20))?;
            thread::sleep(Duration::from_millis(LOOK_MS + 1500));
            let share = share_of_the_second(rig, 300)?;
            ensure!(
                share >= 95,
                "{share} % came over the preferred access again"
            );
            Ok(())
        })?;
        Ok(expected())
    })
}

/// Accesses `one` and `two`, told apart by nothing but the interface, and what is to come before services.
fn by_interface(lab: &Lab, rule: &str) -> String {
    let access =
        |name, link| format!("[[access]]\nname = \"{name}\"\ninterfaces = [\"a{link}\"]\n");
    access("one", 1) + &access("two", 2) + rule + &daemon::transparent(lab, &[])
}

fn accesses_go_by_the_interface_that_routes_lead_to() -> Result<()> {
    let lab = lab([5, 20])?;
    let config = by_interface(&lab, &format!("[[rule]]\nname = \"all\"\n{STANDBY}\n"));
    with(lab, &config, ServeOptions::tcp(PORT), |rig| {
        rig.run_while(Family::V4, &Job::down(12_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(300));
            let share = share_of_the_second(rig, 300)?;
            ensure!(share >= 95, "{share} % came over the preferred access");
            ensure!(accesses(rig)? == ["one", "two"], "{:?}", accesses(rig)?);
            Ok(())
        })?;
        let sums = show(rig, &["show", "accesses", "--json"])?;
        for access in sums["accesses"].as_array().context("no accesses")? {
            ensure!(access["opened"] == 1 && access["stripped"] == 0, "{sums}");
        }
        Ok(expected())
    })
}

/// While nothing is sent: the client's kernel takes nothing for a subflow that comes by another of its interfaces.
fn subflow_is_of_another_access_when_routes_change() -> Result<()> {
    let lab = Lab::builder().build()?;
    let config = by_interface(&lab, "");
    with(lab, &config, ServeOptions::tcp(PORT), |rig| {
        let job = Job::ping_pong(2, 500).pause_ms(4000);
        rig.run_while(Family::V4, &job, || {
            rig.wait_for_a_join()?;
            ensure!(accesses(rig)? == ["one", "two"], "{:?}", accesses(rig)?);
            // What goes to the second address leaves by the first link from here on.
            let second = rig.lab.client_addr(2, Family::V4);
            let route = |action| {
                let route = format!("route {action} {second}/32 dev a1");
                rig.lab.proxy().ip(&route)
            };
            route("add")?;
            until("the second subflow is of the first access", || {
                Ok(accesses(rig)? == ["one", "one"])
            })?;
            route("del")?;
            until("it is of the second again", || {
                Ok(accesses(rig)? == ["one", "two"])
            })
        })?;
        Ok(Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn show(rig: &Rig, words: &[&str]) -> Result<Value> {
    let output = flexcp_lab::output(&mut rig.flexcp.asking(words))?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Of the subflows of the only connection.
fn accesses(rig: &Rig) -> Result<Vec<String>> {
    let shown = rig.flexcp.show_connections()?;
    let subflows = shown["connections"][0]["subflows"].as_array();
    let subflows = subflows.with_context(|| format!("{shown}"))?;
    let names = subflows.iter().map(|subflow| subflow["access"].as_str());
    Ok(names.map(|name| name.unwrap_or("-").to_owned()).collect())
}
