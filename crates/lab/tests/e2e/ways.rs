//! What leaves from an uplink's address leaves by that uplink: FlexCP sees to it, beside what the host has, and by whatever an
//! uplink gets its address.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{DhcpClient, Family, Lab, Modem, output};

use crate::aggregation::{PORT, Rig, SERVICE, boxed, boxed_with, lab, lab_of, quiet};
use crate::bare::{Segments, tun_link};
use crate::rig::until;
use crate::uplinks::run_while;

crate::cases!("ways":
    rules_of_the_host_stay_in_force,
    routes_of_the_host_alone,
    uplink_without_a_default_route_is_told,
    strict_reverse_path_filter,
    own_connections_of_the_box,
    lease_changes_in_mid_download,
    point_to_point_uplink,
);

/// What FlexCP has among the rules, for addresses of uplinks.
fn rules(rig: &Rig) -> Result<Vec<String>> {
    let rules = rig.lab.proxy().ip("rule")?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let ours = rules.lines().filter(|line| line.starts_with("3:"));
    Ok(ours.map(words).collect())
}

fn problems(rig: &Rig) -> Result<Vec<String>> {
    let status = rig.flexcp.show_json("status")?;
    let problems = status["problems"].as_array().context("no list")?;
    let lines = problems.iter().filter_map(|line| line.as_str());
    Ok(lines.map(str::to_owned).collect())
}

/// A transfer over both uplinks, each of which carries a good part of it.
fn over_both(rig: &Rig) -> Result<()> {
    let _server = rig.serve(ServeOptions::mptcp(PORT))?;
    let before = rig.received()?;
    rig.run(&Job::down(15_000_000))?;
    let after = rig.received()?;
    let over = [0, 1].map(|uplink| after[uplink] - before[uplink]);
    ensure!(over.iter().all(|bytes| *bytes > 3_000_000), "{over:?}");
    rig.run(&Job::up(2_000_000))?;
    rig.ensure(&[("mp_join_synack_rx", 2), ("fallback_established", 0)])
}

/// As an operator writes them, and as they were needed when FlexCP made none.
fn route_by_hand(lab: &Lab) -> Result<()> {
    let proxy = lab.proxy();
    for link in [1, 2] {
        proxy.ip(&format!("route del default dev a{link}"))?;
        let (via, own) = (
            lab.client_addr(link, Family::V4),
            lab.proxy_addr(link, Family::V4),
        );
        proxy.ip(&format!(
            "route add default via {via} dev a{link} table 20{link}"
        ))?;
        proxy.ip(&format!("rule add from {own} lookup 20{link} pref 100"))?;
    }
    Ok(())
}

fn rules_of_the_host_stay_in_force() -> Result<()> {
    let lab = lab(50)?;
    route_by_hand(&lab)?;
    boxed(lab, |rig| {
        ensure!(rules(rig)?.is_empty(), "{:?}", rules(rig)?);
        over_both(rig)?;
        ensure!(problems(rig)?.is_empty(), "{:?}", problems(rig)?);
        // What the host gives up FlexCP takes over.
        let proxy = rig.lab.proxy();
        proxy.ip("rule del pref 100")?;
        let via = rig.lab.client_addr(1, Family::V4);
        proxy.ip(&format!("route add default via {via} dev a1"))?;
        let own = rig.lab.proxy_addr(1, Family::V4);
        let rule = format!("3: from {own} lookup 7301 proto 117");
        until("FlexCP has a rule of its own", || {
            Ok(rules(rig)? == [rule.clone()])
        })?;
        Ok(quiet())
    })
}

fn routes_of_the_host_alone() -> Result<()> {
    let lab = lab(50)?;
    let service = format!("{SERVICE}routes = false\n");
    route_by_hand(&lab)?;
    // Of these FlexCP would not know that they are meant for it.
    for link in [1, 2] {
        let own = lab.proxy_addr(link, Family::V4);
        lab.proxy().ip("rule del pref 100")?;
        let rule = format!("rule add from {own} iif flexcp0 lookup 20{link} pref 101");
        lab.proxy().ip(&rule)?;
    }
    boxed_with(lab, &service, |rig| {
        over_both(rig)?;
        ensure!(rules(rig)?.is_empty(), "{:?}", rules(rig)?);
        ensure!(problems(rig)?.is_empty(), "{:?}", problems(rig)?);
        Ok(quiet())
    })
}

/// Its packets go by the other, as the host has it; once there is a default route, they leave by their own.
fn uplink_without_a_default_route_is_told() -> Result<()> {
    let lab = lab(50)?;
    lab.proxy().ip("route del default dev a2")?;
    boxed(lab, |rig| {
        let said = || {
            Ok(problems(rig)?
                .first()
                .is_some_and(|line| line.contains("uplink a2 has")))
        };
        until("the lack is told", said)?;
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        rig.run(&Job::down(1_000_000))?;
        let via = rig.lab.client_addr(2, Family::V4);
        let route = format!("route add default via {via} dev a2 metric 200");
        rig.lab.proxy().ip(&route)?;
        until("nothing is lacking", || Ok(problems(rig)?.is_empty()))?;
        let before = rig.received()?;
        rig.run(&Job::down(15_000_000))?;
        let after = rig.received()?;
        ensure!(after[1] - before[1] > 3_000_000, "{before:?} {after:?}");
        Ok(quiet().disturbed("an uplink has no default route"))
    })
}

fn strict_reverse_path_filter() -> Result<()> {
    let lab = lab(50)?;
    let strict = [
        ("net.ipv4.conf.a1.rp_filter", "1"),
        ("net.ipv4.conf.a2.rp_filter", "1"),
        ("net.ipv4.conf.srv1.rp_filter", "1"),
    ];
    lab.proxy().sysctl(&strict)?;
    boxed(lab, |rig| {
        over_both(rig)?;
        Ok(quiet())
    })
}

/// What is bound to an uplink's address leaves by it and comes back, and reaches the LAN, too.
fn own_connections_of_the_box() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        boxed(lab_of(family, 100)?, |rig| {
            let (lab, proxy) = (&rig.lab, rig.lab.proxy());
            let server = crate::aggregation::server(family).ip();
            for (link, device) in [(1, "a1:"), (2, "a2:")] {
                let from = lab.proxy_addr(link, family);
                for (to, by) in [(server, device), (lab.server_addr(1, family), "srv1:")] {
                    let before = sent(rig, by)?;
                    let mut ping = proxy.command("ping");
                    ping.args(["-c", "3", "-i", "0.1", "-W", "2", "-I"]);
                    output(ping.arg(from.to_string()).arg(to.to_string()))?;
                    let after = sent(rig, by)?;
                    ensure!(
                        after >= before + 3,
                        "{from} to {to}: {before} to {after} by {by}"
                    );
                }
            }
            Ok(quiet())
        })?;
    }
    Ok(())
}

/// Packets that have left by a device.
fn sent(rig: &Rig, device: &str) -> Result<u64> {
    let table = rig.lab.proxy().proc_net("dev")?;
    let mut lines = table.lines().map(str::trim_start);
    let line = lines.find_map(|line| line.strip_prefix(device));
    let packets = line.and_then(|line| line.split_whitespace().nth(9));
    Ok(packets.context("no such device")?.parse()?)
}

/// The modem gives another address when the lease is to be renewed, as after a reconnection.
fn lease_changes_in_mid_download() -> Result<()> {
    let (old, new) = ("10.1.2.100", "10.1.2.150");
    let lab = lab(20)?;
    let modem = Modem::start(&lab, 2, old)?;
    let client = DhcpClient::start(&lab, 2)?;
    client.wait_for_lease(&lab, old)?;
    boxed(lab, |rig| {
        let rule = |addr: &str| format!("3: from {addr} lookup 7302 proto 117");
        ensure!(rules(rig)?.contains(&rule(old)), "{:?}", rules(rig)?);
        let before = rig.received()?;
        run_while(rig, &Job::down(30_000_000), || {
            modem.give(new)?;
            client.renew()?;
            // A refused client rests for three seconds.
            thread::sleep(Duration::from_secs(3));
            client.wait_for_lease(&rig.lab, new)?;
            rig.joined(2)
        })?;
        let now = rules(rig)?;
        ensure!(now.contains(&rule(new)) && now.len() == 2, "{now:?}");
        let after = rig.received()?;
        ensure!(after[1] - before[1] > 3_000_000, "{before:?} {after:?}");
        ensure!(rig.counter("rm_addr_tx")? > 0, "nobody was told");
        ensure!(problems(rig)?.is_empty(), "{:?}", problems(rig)?);
        Ok(quiet().disturbed("an uplink's address changes"))
    })
}

/// Its default route names no gateway, and no Ethernet carries it.
fn point_to_point_uplink() -> Result<()> {
    let lab = lab(20)?;
    let wire = tun_link(&lab, "ppp0", Segments::Single)?;
    let ends = [
        (lab.proxy(), "10.64.0.5", "10.64.0.1"),
        (lab.client(), "10.64.0.1", "10.64.0.5"),
    ];
    for (end, own, peer) in ends {
        end.ip(&format!("addr add {own} peer {peer} dev ppp0"))?;
        end.ip("link set ppp0 up txqueuelen 1000")?;
    }
    lab.proxy().ip("route add default dev ppp0 metric 300")?;
    let service = SERVICE.replace("\"a2\"", "\"ppp0\"");
    boxed_with(lab, &service, |rig| {
        let table = rig.lab.proxy().ip("-4 route show table 7302")?;
        ensure!(table.contains("default dev ppp0"), "{table}");
        let before = sent(rig, "ppp0:")?;
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        rig.run(&Job::down(10_000_000))?;
        rig.run(&Job::up(1_000_000))?;
        let packets = sent(rig, "ppp0:")? - before;
        ensure!(packets > 500, "{packets} packets over the link");
        rig.ensure(&[("mp_join_synack_rx", 2), ("fallback_established", 0)])?;
        Ok(quiet())
    })?;
    drop(wire);
    Ok(())
}
