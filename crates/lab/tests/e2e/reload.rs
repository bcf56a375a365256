//! FlexCP reloads its configuration under real clients.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::reload::{OFFLOADED, Reload, TOLD};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Family, FlexCp, Lab, Oracle, daemon};

use crate::rig::{PORT, ensure_same, kernel_state, until};

crate::cases!("reload":
    services_that_stay_lose_nothing_while_others_come_change_and_go,
    service_that_went_tells_its_connections_and_leaves_the_kernel,
    service_that_comes_takes_connections_and_broken_files_change_nothing,
);

/// A short form of `make reload`.
fn services_that_stay_lose_nothing_while_others_come_change_and_go() -> Result<()> {
    let reload = Reload {
        reloads: 30,
        transfers: 4,
        results: "lab/results".into(),
    };
    let results = reload.measure()?;
    // Thirty reloads may meet no transfer of a service that goes; that one is told has a case of its own.
    let mut left_out = vec![TOLD];
    if daemon::offload_is_off() {
        ensure!(results.offloaded == 0, "offloaded without the offload");
        left_out.push(OFFLOADED);
    }
    results.judge(&left_out)
}

/// A service on the path for one port of the server.
fn service(name: &str, port: u16) -> String {
    format!(
        "[[service]]\nname = {name:?}\nmode = \"transparent\"\ninterfaces = [\"a1\", \"a2\"]\n\
         destinations = [\"10.9.0.0/16\"]\nports = [{port}]\n\n"
    )
}

fn config(lab: &Lab, drain: &str, services: &[String]) -> String {
    let timeouts = format!("[timeouts]\ndrain = {drain:?}\n\n");
    daemon::config(lab, &(timeouts + &services.concat()))
}

fn rules(lab: &Lab) -> Result<usize> {
    Ok(lab.proxy().ip("rule")?.matches("lookup 7300").count())
}

fn established(flexcp: &FlexCp, count: usize) -> Result<()> {
    until("the transfers have begun", || {
        let list = flexcp.show_connections()?;
        let connections = list["connections"].as_array();
        let of_two = connections.into_iter().flatten().filter(|connection| {
            connection["subflows"]
                .as_array()
                .is_some_and(|all| all.len() == 2)
        });
        Ok(of_two.count() == count)
    })
}

fn service_that_went_tells_its_connections_and_leaves_the_kernel() -> Result<()> {
    const OTHER: u16 = PORT + 1;
    let lab = Lab::builder().rate_mbit(1, 50).rate_mbit(2, 50).build()?;
    let before = kernel_state(lab.proxy())?;
    let _servers = [PORT, OTHER].map(|port| Server::start(lab.server(1), ServeOptions::tcp(port)));
    let (web, other) = (service("web", PORT), service("other", OTHER));
    let both = config(&lab, "1s", &[web.clone(), other]);
    let one = config(&lab, "1s", &[web]);
    let mut flexcp = FlexCp::start(&lab, &both)?;
    let with_both = rules(&lab)?;
    let client = |port| Client::mptcp(lab.server_socket(1, Family::V4, port));
    let (stays, goes) = (client(PORT), client(OTHER));
    thread::scope(|scope| {
        // Four seconds over both links, beside the other one while that is there.
        let stays = scope.spawn(|| stays.run_in(lab.client(), &Job::both(20_000_000)));
        let goes = scope.spawn(|| goes.run_in(lab.client(), &Job::both(1 << 40)));
        established(&flexcp, 2)?;
        ensure!(flexcp.reload(&lab, &one)?.in_force, "{}", flexcp.log());
        ensure!(
            rules(&lab)? == with_both,
            "rules went before their connections"
        );
        let told = goes.join().expect("a client does not panic")?;
        // Who has heard it while writing reads the end of the file.
        let kinds = ["ECONNRESET", "EPIPE", "eof"];
        ensure!(kinds.contains(&told.failure_kind()), "{told:?}");
        until("the rules are gone", || Ok(rules(&lab)? < with_both))?;
        let report = stays.join().expect("a client does not panic")?;
        report.ok().context("over the service that stays")?;
        Ok::<_, anyhow::Error>(())
    })?;
    // It passes as plain TCP.
    let oracle = Oracle::start(&lab)?;
    let plain = client(OTHER).run_in(lab.client(), &Job::both(10_000))?;
    plain.ok().context("past FlexCP")?;
    ensure!(
        oracle.client(&lab)?.get("MPCapableSYNACKRX") == 0,
        "by MPTCP"
    );
    let status = flexcp.show("status")?;
    ensure!(status.contains("configuration 2\n"), "{status}");
    flexcp.stop()?;
    ensure_same(&before, &kernel_state(lab.proxy())?)
}

fn service_that_comes_takes_connections_and_broken_files_change_nothing() -> Result<()> {
    let lab = Lab::builder().build()?;
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let to = std::net::SocketAddr::new(lab.proxy_addr(1, Family::V4), PORT);
    let backend = lab.server_socket(1, Family::V4, PORT).to_string();
    let shop = daemon::reverse("shop", &[to.to_string()], &[backend], &[]);
    let web = service("web", PORT);
    let mut flexcp = FlexCp::start(&lab, &config(&lab, "100ms", std::slice::from_ref(&web)))?;
    let both = config(&lab, "100ms", &[web, shop]);
    let broken = both.replace("listen", "lisen");
    let line = both[..both.find("listen").context("listen")?]
        .matches('\n')
        .count()
        + 1;
    let with_one = rules(&lab)?;
    let reloaded = flexcp.reload(&lab, &broken)?;
    let place = format!("flexcp.toml:{line}:");
    ensure!(
        !reloaded.in_force && reloaded.log.contains(&place),
        "{}",
        reloaded.log
    );
    ensure!(rules(&lab)? == with_one, "a broken file has changed rules");
    let refused = Client::tcp(to).run_in(lab.client(), &Job::both(1000))?;
    ensure!(refused.failure_kind() == "ECONNREFUSED", "{refused:?}");
    ensure!(flexcp.reload(&lab, &both)?.in_force, "{}", flexcp.log());
    let oracle = Oracle::start(&lab)?;
    let report = Client::mptcp(to).run_in(lab.client(), &Job::both(3_000_000))?;
    report.ok().context("over the service that came")?;
    ensure!(
        oracle.client(&lab)?.get("MPCapableSYNACKRX") == 1,
        "not by MPTCP"
    );
    thread::sleep(Duration::from_millis(100));
    flexcp.stop()?;
    ensure_same(&before, &kernel_state(lab.proxy())?)
}
