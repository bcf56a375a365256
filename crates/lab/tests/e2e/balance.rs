//! Back ends by their weights, in maintenance and checked, and services that are drained: what the command line tells a running
//! FlexCP.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Expect, Family, Lab, SERVER_RESET, daemon};
use serde_json::Value;

use crate::rig::{PORT, Rig, short, until, with};

crate::cases!("balance":
    back_ends_get_connections_by_their_weights_and_none_in_maintenance,
    checks_find_a_back_end_down_and_up_again_without_a_client,
    drained_service_lets_connections_end_and_tells_the_rest,
);

const LISTEN: u16 = 8080;

/// A service with these back ends, the second with weight 3, and more keys.
fn service(lab: &Lab, servers: &[u8], more: &str) -> String {
    let listen = format!("{}:{LISTEN}", lab.proxy_addr(1, Family::V4));
    let backends: Vec<_> = servers.iter().map(|n| address(lab, *n)).collect();
    let service = daemon::reverse("shop", &[listen], &backends, &[]);
    let second = address(lab, 2);
    let weighed = format!("{{ address = {second:?}, weight = 3 }}");
    service.replace(&format!("{second:?}"), &weighed) + more
}

fn address(lab: &Lab, server: u8) -> String {
    lab.server_socket(server, Family::V4, PORT).to_string()
}

fn client(rig: &Rig) -> Client {
    let listen = (rig.lab.proxy_addr(1, Family::V4), LISTEN);
    Client::mptcp(listen.into())
}

/// What `show services` says of a back end.
fn back_end(rig: &Rig, server: u8) -> Result<Value> {
    let all = rig.flexcp.show_json("services")?;
    let backends = all["services"][0]["backends"].as_array();
    let address = address(&rig.lab, server);
    let mut of_it = backends.into_iter().flatten();
    let found = of_it.find(|backend| backend["address"] == address.as_str());
    found
        .cloned()
        .with_context(|| format!("no {address}: {all}"))
}

fn connect(rig: &Rig, count: usize) -> Result<()> {
    for _ in 0..count {
        rig.run_client(&client(rig), &Job::both(10_000))?;
    }
    Ok(())
}

fn back_ends_get_connections_by_their_weights_and_none_in_maintenance() -> Result<()> {
    let lab = Lab::builder()
        .servers(2)
        .rate_mbit(1, 100)
        .rate_mbit(2, 100)
        .build()?;
    let second = Server::start(lab.server(2), ServeOptions::tcp(PORT))?;
    let (service, away) = (service(&lab, &[1, 2], ""), address(&lab, 2));
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        connect(rig, 8)?;
        let accepted = || (rig.server.accepted(), second.accepted());
        ensure!(accepted() == (2, 6), "{:?} of 8", accepted());
        thread::scope(|scope| {
            // The next one is the second's, and goes on through its maintenance.
            let run = scope.spawn(|| rig.run_client(&client(rig), &Job::down(20_000_000)));
            until("the second has it", || {
                let connections = back_end(rig, 2)?["connections"].as_u64();
                Ok(connections >= Some(1) && second.accepted() == 7)
            })?;
            let said = rig
                .flexcp
                .tell(&["backend", "shop", &away, "--maintenance", "on"])?;
            ensure!(said.contains("maintenance"), "{said}");
            connect(rig, 4)?;
            run.join().expect("a client does not panic").map(drop)
        })?;
        ensure!(accepted() == (6, 7), "{:?}", accepted());
        let table = rig.flexcp.show("backends")?;
        ensure!(
            table.contains(&away) && table.contains("maintenance"),
            "{table}"
        );
        rig.flexcp.tell(&[
            "backend",
            "shop",
            &away,
            "--maintenance",
            "off",
            "--weight",
            "1",
        ])?;
        connect(rig, 4)?;
        ensure!(accepted() == (8, 9), "{:?}", accepted());
        ensure!(
            back_end(rig, 2)?["weight_set"] == true,
            "{}",
            back_end(rig, 2)?
        );
        Ok(short())
    })
}

/// What comes for a server is dropped.
fn be_silent(lab: &Lab, number: u8) -> Result<()> {
    let drop = format!(
        "table inet silence {{\n chain input {{\n  type filter hook input priority 0\n  tcp dport {PORT} drop\n }}\n}}\n"
    );
    lab.server(number).nft(&drop)
}

fn checks_find_a_back_end_down_and_up_again_without_a_client() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let second = Server::start(lab.server(2), ServeOptions::tcp(PORT))?;
    let check = "check = { every = \"200ms\", timeout = \"150ms\", fall = 2, rise = 2 }\n";
    let service = service(&lab, &[1, 2], check);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let health = |is: &'static str| move || Ok(back_end(rig, 2)?["health"] == is);
        until("checks have left", || {
            Ok(rig.counter("backend_checks_tx")? >= 6)
        })?;
        ensure!(health("up")()?, "{}", back_end(rig, 2)?);
        be_silent(&rig.lab, 2)?;
        until("the second is down", health("down"))?;
        let last = &back_end(rig, 2)?["last_down"];
        ensure!(last["reason"] == "silent", "{last}");
        connect(rig, 4)?;
        ensure!(rig.counter("backend_skipped")? == 0, "nobody waited for it");
        ensure!((rig.server.accepted(), second.accepted()) == (4, 0));
        rig.lab.server(2).nft("delete table inet silence")?;
        until("the second is up", health("up"))?;
        connect(rig, 4)?;
        ensure!(second.accepted() == 3, "{}", second.accepted());
        ensure!(rig.counter("backend_back")? == 1);
        Ok(short().own("backend_marked", "a back end is silent"))
    })
}

fn drained_service_lets_connections_end_and_tells_the_rest() -> Result<()> {
    let lab = Lab::builder()
        .servers(2)
        .rate_mbit(1, 50)
        .rate_mbit(2, 50)
        .build()?;
    let service = service(&lab, &[1], "");
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let served = |count| rig.server.accepted() == count;
        thread::scope(|scope| {
            let short = scope.spawn(|| rig.attempt(&client(rig), &Job::down(2_000_000)));
            let long = scope.spawn(|| rig.attempt(&client(rig), &Job::down(200_000_000)));
            until("both run", || Ok(served(2)))?;
            let said = rig.flexcp.tell(&["drain", "shop", "--within", "3s"])?;
            ensure!(said.contains("draining"), "{said}");
            let refused = rig.attempt(&client(rig), &Job::down(1))?;
            ensure!(refused.failure_kind() == "ECONNREFUSED", "{refused:?}");
            short.join().expect("a client does not panic")?.ok()?;
            let long = long.join().expect("a client does not panic")?;
            ensure!(long.ok().is_err(), "it has ended by itself: {long:?}");
            Ok(())
        })?;
        let is_drained = || Ok(rig.flexcp.show("services")?.contains(" drained "));
        until("it is drained", is_drained)?;
        rig.flexcp.tell(&["undrain", "shop"])?;
        connect(rig, 1)?;
        ensure!(served(3), "{}", rig.server.accepted());
        thread::sleep(Duration::from_millis(100));
        const DRAINED: &str = "the service is drained";
        Ok(["mp_fastclose_tx", "draining", SERVER_RESET]
            .iter()
            .fold(short(), |expect: Expect, name| expect.own(name, DRAINED))
            .allow("MPFastcloseRx")
            .disturbed("a transfer is broken off"))
    })
}
