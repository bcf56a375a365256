//! FlexCP beside others' rules on its host: firewalls that follow connections, NAT, marks.

use anyhow::{Result, ensure};
use flexcp_lab::firewall::{MASQUERADE, Rules, STATEFUL, Scene};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{End, Expect, Family, Lab, daemon};

use crate::rig::{PORT, Rig, config, transparent, with_config};

crate::cases!("beside":
    stateful_firewall_passes_mptcp_and_tcp,
    masquerade_is_applied_to_mptcp_and_tcp,
    rules_that_come_while_flexcp_runs_are_heeded,
    service_whose_offload_is_off_stays_with_the_workers,
);

/// Twice four transfers at once, of each kind of clients.
fn judged(rules: Rules) -> Result<()> {
    for plain in [false, true] {
        let mut scene = Scene::build(rules, plain)?;
        for _ in 0..2 {
            scene.round()?;
        }
        // Against its own speed: what rules cost is for `make firewall`.
        let speed = scene.speed();
        scene.row(speed)?.judge(1.0)?;
    }
    Ok(())
}

fn stateful_firewall_passes_mptcp_and_tcp() -> Result<()> {
    judged(Rules::Stateful)
}

fn masquerade_is_applied_to_mptcp_and_tcp() -> Result<()> {
    judged(Rules::Masquerade)
}

/// Waits until the log says so.
fn logged(rig: &Rig, words: &str) -> Result<()> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !rig.flexcp.log().contains(words) {
        ensure!(
            std::time::Instant::now() < deadline,
            "no {words:?} in the log:\n{}",
            rig.flexcp.log()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

/// What goes through the server's side of the host behind its address.
fn rules_that_come_while_flexcp_runs_are_heeded() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    transparent(lab, |rig| {
        rig.run(Family::V4, &Job::both(4_000_000))?;
        rig.lab.proxy().nft(STATEFUL)?;
        rig.lab.proxy().nft(MASQUERADE)?;
        logged(rig, "conntrack is in use")?;
        logged(rig, "conntrack zone")?;
        rig.run(Family::V4, &Job::both(4_000_000))?;
        let kept = rig.counter("offload_kept")?;
        ensure!(kept <= 1, "{kept} connections were kept");
        let peers = rig.server.take_reports();
        let own = rig.lab.proxy_addr_towards(1, Family::V4);
        ensure!(
            peers.last().is_some_and(|report| report.peer.ip() == own),
            "not masqueraded: {peers:?}"
        );
        rig.lab.proxy().nft("delete table inet nat")?;
        rig.lab.proxy().nft("delete table inet firewall")?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 2))
    })
}

fn service_whose_offload_is_off_stays_with_the_workers() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let told = config(&lab, &daemon::transparent(&lab, &[])) + "offload = \"off\"\n";
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        rig.run(Family::V4, &Job::both(10_000_000))?;
        ensure!(rig.counter("offload_lent")? == 0, "it was lent");
        if !daemon::offload_is_off() {
            logged(rig, "offload: not for service web")?;
            let stats = rig.flexcp.show("stats")?;
            ensure!(stats.contains("not for service web"), "{stats}");
        }
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}
