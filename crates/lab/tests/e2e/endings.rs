//! FlexCP ends under its clients: stopped, it lets them end and tells the others; killed, its next run tells them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::endings::{Ending, Endings};
use flexcp_lab::transfer::{Client, Job, Report, ServeOptions, Server};
use flexcp_lab::{Family, FlexCp, Lab, Manager, Namespace, Oracle, daemon, output};

use crate::rig::{PORT, ensure_same, kernel_state, until};

crate::cases!("endings":
    stopped_on_the_path_both_ends_hear_of_it,
    stopped_where_it_is_addressed_both_ends_hear_of_it,
    killed_on_the_path_both_ends_hear_of_it_from_the_next_run,
    killed_where_it_is_addressed_both_ends_hear_of_it_from_the_next_run,
    drain_lets_a_transfer_end_and_passes_new_ones_as_tcp,
    drain_refuses_new_ones_where_it_is_addressed,
    second_signal_does_not_wait_and_the_kernel_is_as_it_was,
    killed_and_started_with_another_configuration_leaves_nothing,
    kept_device_is_taken_over_without_its_rules,
);

/// As many as make each kind of transfer meet each moment.
const CLIENTS: usize = 20;

fn judged(mode: &'static str, ending: Ending) -> Result<()> {
    let endings = Endings {
        clients: CLIENTS,
        results: "lab/results".into(),
    };
    endings.row(mode, ending)?.judge()
}

fn stopped_on_the_path_both_ends_hear_of_it() -> Result<()> {
    judged("transparent", Ending::Stop)
}

fn stopped_where_it_is_addressed_both_ends_hear_of_it() -> Result<()> {
    judged("reverse", Ending::Stop)
}

fn killed_on_the_path_both_ends_hear_of_it_from_the_next_run() -> Result<()> {
    judged("transparent", Ending::Kill)
}

fn killed_where_it_is_addressed_both_ends_hear_of_it_from_the_next_run() -> Result<()> {
    judged("reverse", Ending::Kill)
}

/// Slow links, so that a transfer takes its time.
fn lab() -> Result<Lab> {
    Lab::builder().rate_mbit(1, 20).rate_mbit(2, 20).build()
}

/// A configuration with so much time to end.
fn draining(lab: &Lab, seconds: u32, services: &str) -> String {
    let timeouts = format!("[timeouts]\ndrain = {seconds}\n\n");
    daemon::config(lab, &(timeouts + services))
}

/// Waits until FlexCP has a connection whose client has proved its keys.
fn wait_for_a_connection(flexcp: &FlexCp) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while flexcp.show_stats()?.counter("mp_capable_ack_rx")? == 0 {
        ensure!(Instant::now() < deadline, "no connection");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn established(namespace: &Namespace) -> Result<usize> {
    let mut command = namespace.command("ss");
    let output = command.args(["-Htn", "state", "established"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}

/// The drain lets a transfer that was there end as it should, and FlexCP ends with it.
fn ends_with(flexcp: FlexCp, transfer: thread::ScopedJoinHandle<'_, Result<Report>>) -> Result<()> {
    thread::scope(|scope| {
        let stopped = scope.spawn(|| flexcp.ended());
        let report = transfer.join().expect("a client does not panic")?;
        report.ok().context("the transfer that was there")?;
        stopped.join().expect("nothing panics")
    })
}

fn drain_lets_a_transfer_end_and_passes_new_ones_as_tcp() -> Result<()> {
    let lab = lab()?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let config = draining(&lab, 20, &daemon::transparent(&lab, &[]));
    let flexcp = FlexCp::start(&lab, &config)?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
    thread::scope(|scope| {
        // Two seconds over both links.
        let transfer = scope.spawn(|| client.run_in(lab.client(), &Job::both(8_000_000)));
        wait_for_a_connection(&flexcp)?;
        let oracle = Oracle::start(&lab)?;
        flexcp.begin_to_stop()?;
        thread::sleep(Duration::from_millis(100));
        client
            .run_in(lab.client(), &Job::both(10_000))?
            .ok()
            .context("a new connection during the drain")?;
        ensure!(
            oracle.client(&lab)?.get("MPCapableFallbackSYNACK")
                + oracle.client(&lab)?.get("MPCapableSYNACKRX")
                > 0,
            "the new connection has not asked for MPTCP"
        );
        ensure!(
            oracle.client(&lab)?.get("MPCapableSYNACKRX") == 0,
            "a new connection has got MPTCP during the drain"
        );
        ends_with(flexcp, transfer)
    })
}

fn drain_refuses_new_ones_where_it_is_addressed() -> Result<()> {
    let lab = lab()?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let to = std::net::SocketAddr::new(lab.proxy_addr(1, Family::V4), PORT);
    let backend = lab.server_socket(1, Family::V4, PORT).to_string();
    let service = daemon::reverse("shop", &[to.to_string()], &[backend], &[]);
    let flexcp = FlexCp::start(&lab, &draining(&lab, 20, &service))?;
    thread::scope(|scope| {
        let transfer =
            scope.spawn(|| Client::mptcp(to).run_in(lab.client(), &Job::both(8_000_000)));
        wait_for_a_connection(&flexcp)?;
        flexcp.begin_to_stop()?;
        thread::sleep(Duration::from_millis(100));
        for client in [Client::mptcp(to), Client::tcp(to)] {
            let report = client.run_in(lab.client(), &Job::both(10_000))?;
            ensure!(
                report.failure_kind() == "ECONNREFUSED",
                "a new connection during the drain: {report:?}"
            );
        }
        ends_with(flexcp, transfer)
    })
}

fn second_signal_does_not_wait_and_the_kernel_is_as_it_was() -> Result<()> {
    let lab = lab()?;
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let config = draining(&lab, 60, &daemon::transparent(&lab, &[]));
    let flexcp = FlexCp::start(&lab, &config)?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
    thread::scope(|scope| {
        let load = scope.spawn(|| client.run_in(lab.client(), &Job::both(1 << 40)));
        wait_for_a_connection(&flexcp)?;
        flexcp.begin_to_stop()?;
        thread::sleep(Duration::from_millis(100));
        flexcp.terminate().context("the second signal")?;
        let report = load.join().expect("a client does not panic")?;
        ensure!(report.failure.is_some(), "the transfer outlived FlexCP");
        ensure!(established(lab.server(1))? == 0, "the server has not heard");
        ensure_same(&before, &kernel_state(lab.proxy())?)
    })
}

/// What a killed run has left is taken over; nothing of it may outlive the next.
fn killed_and_started_with_another_configuration_leaves_nothing() -> Result<()> {
    let lab = Lab::builder().build()?;
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let to = std::net::SocketAddr::new(lab.proxy_addr(1, Family::V4), PORT);
    let backend = lab.server_socket(1, Family::V4, PORT).to_string();
    let both = daemon::config(&lab, &daemon::transparent(&lab, &[]));
    let other = daemon::config_of_workers(
        &lab,
        2,
        &daemon::reverse("shop", &[to.to_string()], &[backend], &[]),
    );
    let mut manager = Manager::new(lab.dir())?;
    for config in [&both, &other, &both] {
        FlexCp::start_as_service(&lab, config, &mut manager)?.kill()?;
    }
    ensure!(manager.stored()? == 1, "the device's queue is not kept");
    let flexcp = FlexCp::start_as_service(&lab, &other, &mut manager)?;
    Client::mptcp(to)
        .run_in(lab.client(), &Job::both(100_000))?
        .ok()?;
    ensure!(
        flexcp.show_stats()?.counter("mp_capable_ack_rx")? == 1,
        "not by MPTCP"
    );
    flexcp.terminate()?;
    ensure!(manager.stored()? == 0, "the device outlives a clean stop");
    ensure_same(&before, &kernel_state(lab.proxy())?)
}

/// While FlexCP can't start, packets must not wait for it; when it can, the device that was kept is still its own.
fn kept_device_is_taken_over_without_its_rules() -> Result<()> {
    let lab = Lab::builder().build()?;
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let config = daemon::config(&lab, &daemon::transparent(&lab, &[]));
    let mut manager = Manager::new(lab.dir())?;
    FlexCp::start_as_service(&lab, &config, &mut manager)?.kill()?;
    let mut clean = lab.proxy().command(daemon::binary()?);
    let file = lab.dir().join("flexcp.toml");
    output(clean.args(["clean", "--config"]).arg(file))?;
    let rules = lab.proxy().ip("rule")?;
    ensure!(!rules.contains("7300"), "rules are left:\n{rules}");
    ensure!(manager.stored()? == 1, "the device's queue is not kept");
    let flexcp = FlexCp::start_as_service(&lab, &config, &mut manager)?;
    Client::mptcp(lab.server_socket(1, Family::V4, PORT))
        .run_in(lab.client(), &Job::both(100_000))?
        .ok()?;
    ensure!(
        flexcp.show_stats()?.counter("mp_capable_ack_rx")? == 1,
        "not by MPTCP"
    );
    flexcp.terminate()?;
    ensure!(manager.stored()? == 0, "the device outlives a clean stop");
    // It goes with the last of its descriptors, which a program that another case is just starting may have for a moment.
    let _ = until("the device is gone", || {
        Ok(kernel_state(lab.proxy())? == before)
    });
    ensure_same(&before, &kernel_state(lab.proxy())?)
}
