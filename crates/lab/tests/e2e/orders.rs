//! Connections that are moved and closed from the command line.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Direction, End, Expect, Family, FlexCp, Lab, daemon, text};

use crate::rig::{PORT, until, with};
use crate::steering::share_of_the_second;

crate::cases!("orders":
    download_goes_on_where_it_is_moved,
    both_ends_of_a_connection_that_is_closed_hear_it,
);

/// Two links of 50 Mbit/s each, and what FlexCP is to do there.
fn lab() -> Result<(Lab, String)> {
    let mut builder = Lab::builder();
    for link in [1, 2] {
        builder = builder.faults(link, Direction::Down, "delay=5ms,rate=50mbit:400kb");
    }
    let lab = builder.build()?;
    let services = daemon::accesses(&lab) + &daemon::transparent(&lab, &[]);
    Ok((lab, services))
}

fn download_goes_on_where_it_is_moved() -> Result<()> {
    let (lab, services) = lab()?;
    with(lab, &services, ServeOptions::tcp(PORT), |rig| {
        let moved = |words: &[&str]| text(&mut rig.flexcp.asking(words));
        rig.run_while(Family::V4, &Job::down(40_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(500));
            for (to, least, most) in [("b", 95, 100), ("a", 0, 5)] {
                let said = moved(&["move", "--state", "translating", "--to", to])?;
                ensure!(said.starts_with("done: 1, so already: 0"), "{said}");
                thread::sleep(Duration::from_millis(200));
                let share = share_of_the_second(rig, 500)?;
                ensure!((least..=most).contains(&share), "{to}: {share} %");
            }
            let list = rig.flexcp.show_connections()?;
            let id = list["connections"][0]["id"].as_str().context("an id")?;
            let said = moved(&["move", id, "--to", "a"])?;
            ensure!(said == "it was so already\n", "{said}");
            Ok(())
        })?;
        ensure!(rig.counter("subflow_switch")? >= 2, "two moves");
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 1)
            .disturbed("data overtake each other where they change paths"))
    })
}

fn both_ends_of_a_connection_that_is_closed_hear_it() -> Result<()> {
    let (lab, services) = lab()?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services))?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
    let began = Instant::now();
    let report = thread::scope(|scope| -> Result<_> {
        let run = scope.spawn(|| client.run_in(lab.client(), &Job::down(100_000_000)));
        thread::sleep(Duration::from_secs(1));
        let said = text(&mut flexcp.asking(&["close", "--access", "a"]))?;
        ensure!(
            said.starts_with("done: 1, so already: 0, refused: 0"),
            "{said}"
        );
        run.join().expect("a client does not panic")
    })?;
    ensure!(report.ok().is_err(), "the client has all of it");
    ensure!(
        began.elapsed() < Duration::from_secs(5),
        "it was waited for"
    );
    let stats = flexcp.show_stats()?;
    ensure!(stats.counter("mp_fastclose_tx")? == 1, "the client is told");
    until("the server has heard it", || {
        let sockets = lab.server(1).command("ss").args(["-Htn"]).output()?;
        Ok(!String::from_utf8_lossy(&sockets.stdout).contains("ESTAB"))
    })?;
    flexcp.stop()
}
