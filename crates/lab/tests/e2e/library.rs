//! A program that runs FlexCP itself, with a steering mode of its own.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Direction, Family, FlexCp, Lab, daemon};

use crate::rig::{PORT, ensure_same, kernel_state, until};

crate::cases!("library":
    mode_of_a_programs_own_says_where_bytes_go,
);

/// An installed connection is looked at every two seconds.
const LOOK: Duration = Duration::from_secs(2);

/// Bytes that have come to the client over each link.
fn received(lab: &Lab) -> Result<[u64; 2]> {
    let all = flexcp_lab::interfaces(lab.client())?;
    Ok([1, 2].map(|link| all[&format!("a{link}")].rx))
}

fn mode_of_a_programs_own_says_where_bytes_go() -> Result<()> {
    let limited = "delay=5ms,rate=50mbit:400kb";
    let mut builder = Lab::builder();
    for link in [1, 2] {
        builder = builder.faults(link, Direction::Down, limited);
    }
    let lab = builder.build()?;
    // What the file says would leave all of it on one path, as they are alike.
    let rule = "[[rule]]\nname = \"all\"\nmode = \"smallest-delay\"\nhold = \"200ms\"\n\n";
    let services = daemon::accesses(&lab) + rule + &daemon::transparent(&lab, &[]);
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let config = daemon::config(&lab, &services);
    let flexcp = FlexCp::start_example(&lab, &config, "proxy_socket", &["all", "a", "b"])?;
    let judged = judge(&lab, &flexcp);
    judged.with_context(|| flexcp.log())?;
    flexcp.stop()?;
    ensure_same(&before, &kernel_state(lab.proxy())?)
}

fn judge(lab: &Lab, flexcp: &FlexCp) -> Result<()> {
    let client = || {
        let to = lab.server_socket(1, Family::V4, PORT);
        Client::mptcp(to).head_start(Duration::from_millis(500))
    };
    // A light one stays on the first access.
    let start = received(lab)?;
    client().run_in(lab.client(), &Job::down(20_000))?.ok()?;
    let light = received(lab)?;
    let [one, two] = [0, 1].map(|link| light[link] - start[link]);
    ensure!(one > 20_000 && two < 5_000, "light: {one} and {two} bytes");
    // A heavy one goes down the other, as the mode says and nothing else would have it.
    thread::scope(|scope| -> Result<()> {
        let run = scope.spawn(|| client().run_in(lab.client(), &Job::down(50_000_000)));
        thread::sleep(Duration::from_millis(800) + LOOK + Duration::from_secs(1));
        let (before, began) = (received(lab)?, Instant::now());
        thread::sleep(Duration::from_millis(500));
        let after = received(lab)?;
        let [one, two] = [0, 1].map(|link| after[link] - before[link]);
        let took = began.elapsed();
        ensure!(two > 1_000_000, "heavy: {one} and {two} bytes in {took:?}");
        ensure!(one * 20 < two, "heavy: {one} and {two} bytes in {took:?}");
        let report = run.join().expect("a client does not panic")?;
        report.ok().map(drop)
    })?;
    let said = |what: &str| flexcp.log().matches(what).count();
    until("both have been accepted, and are over", || {
        Ok(said("accepted") == 2 && said("is over") == 2)
    })?;
    ensure!(said("access Some(1)") >= 1, "nothing of the second path");
    let switches = flexcp.show_stats()?.counter("subflow_switch")?;
    ensure!(switches >= 1, "no move is counted");
    Ok(())
}
