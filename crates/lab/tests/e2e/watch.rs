//! The kernel's tables are changed under live transfers: FlexCP puts back what is its own and tells the rest.

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::watch::{self, Disturbance};
use flexcp_lab::{Family, FlexCp, Lab, daemon};

use crate::rig::{PORT, config, until};

crate::cases!("watch":
    rules_flushed,
    rules_flushed_in_reverse_mode,
    one_rule_deleted,
    routes_flushed,
    device_down,
    device_down_and_up,
    access_link_renamed_and_back,
    access_link_deleted_and_made_again,
    forwarding_off_and_on,
    address_to_the_servers_lost_and_back,
    interface_that_comes_later,
    told_once,
);

/// Few transfers: what is judged is what becomes of them. `make watch` runs it under many.
///
/// Packets that pass by FlexCP for longer than a retransmission timeout, as on a machine that stands still for a moment, have the
/// server's host reset all subflows of a client: its kernel tells that nobody (docs/linux.md). Then it is done once more.
fn passes(name: &str) -> Result<()> {
    let disturbance: Disturbance = watch::named(name).with_context(|| name.to_owned())?;
    let mut row = watch::run(&disturbance, 4)?;
    if row.has_left_clients_alone() {
        eprintln!("done once more: {row}");
        row = watch::run(&disturbance, 4)?;
    }
    ensure!(row.misses.is_empty(), "{row}");
    ensure!(row.live == 4, "{row}");
    Ok(())
}

fn rules_flushed() -> Result<()> {
    passes("rules flushed")
}

fn rules_flushed_in_reverse_mode() -> Result<()> {
    passes("rules flushed, reverse")
}

fn one_rule_deleted() -> Result<()> {
    passes("one rule deleted")
}

fn routes_flushed() -> Result<()> {
    passes("routes flushed")
}

fn device_down() -> Result<()> {
    passes("device down")
}

fn device_down_and_up() -> Result<()> {
    passes("device down and up")
}

fn access_link_renamed_and_back() -> Result<()> {
    passes("access link renamed")
}

fn access_link_deleted_and_made_again() -> Result<()> {
    passes("access link deleted")
}

fn forwarding_off_and_on() -> Result<()> {
    passes("forwarding off")
}

fn address_to_the_servers_lost_and_back() -> Result<()> {
    passes("address to the servers lost")
}

/// A listed interface that is not there at the start: the others work, and so does this one when it is there.
fn interface_that_comes_later() -> Result<()> {
    let lab = Lab::builder().build()?;
    let proxy = lab.proxy();
    proxy.ip("link set a2 down")?;
    proxy.ip("link set a2 name later")?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let flexcp = FlexCp::start(&lab, &config(&lab, &daemon::transparent(&lab, &[])))?;
    let is = |state: &str| -> Result<bool> { Ok(flexcp.show_json("status")?["state"] == state) };
    let joined = || -> Result<bool> { Ok(flexcp.show_stats()?.counter("mp_join_ack_rx")? != 0) };
    until("degraded", || is("degraded"))?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
    client.run_in(lab.client(), &Job::both(100_000))?.ok()?;
    ensure!(!joined()?, "a join over a link that is down");
    proxy.ip("link set later name a2")?;
    proxy.ip("link set a2 up")?;
    until("ready", || is("ready"))?;
    let rules = proxy.ip("rule")?;
    ensure!(!rules.contains("[detached]"), "{rules}");
    let job = Job::ping_pong(8, 1000).pause_ms(50);
    // The client's kernel has to find its neighbour there again.
    until("a join over the link that came", || {
        client.run_in(lab.client(), &job)?.ok()?;
        joined()
    })?;
    flexcp.stop()
}

/// What lasts is one line in the log when it begins and one when it is over, whatever else happens.
fn told_once() -> Result<()> {
    let lab = Lab::builder().build()?;
    let config = config(&lab, &daemon::transparent(&lab, &[]));
    let flexcp = FlexCp::start(&lab, &config)?;
    let forward = |value| lab.proxy().sysctl(&[("net.ipv4.ip_forward", value)]);
    let is = |state: &str| -> Result<bool> { Ok(flexcp.show_json("status")?["state"] == state) };
    forward("0")?;
    until("forwarding is told", || Ok(!is("ready")?))?;
    for number in 0..5 {
        lab.proxy()
            .ip(&format!("route add 192.0.2.{number}/32 via 10.9.1.2"))?;
    }
    ensure!(lab.proxy().ip("rule")?.contains("117"));
    forward("1")?;
    until("forwarding is back", || is("ready"))?;
    let log = flexcp.log();
    let line = "net.ipv4.ip_forward is 0";
    ensure!(log.matches(line).count() == 2, "{log}");
    ensure!(log.matches(&format!("over: {line}")).count() == 1, "{log}");
    // Nobody has forced it.
    ensure!(flexcp.show_json("status")?["mended_times"] == 0, "{log}");
    flexcp.stop()
}
