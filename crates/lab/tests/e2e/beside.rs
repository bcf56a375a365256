//! FlexCP beside others' rules on its host: firewalls that follow connections, NAT, marks.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::firewall::{MASQUERADE, Rules, STATEFUL, Scene};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{End, Expect, Family, Lab, daemon, text};
use libtest_mimic::Trial;

use crate::offload::carried;
use crate::rig::{PORT, Rig, config, transparent, with_config};

crate::cases!("beside":
    stateful_firewall_passes_mptcp_and_tcp,
    stateful_firewall_leaves_the_offload_on,
    masquerade_is_applied_to_mptcp_and_tcp,
    rules_that_come_while_flexcp_runs_are_heeded,
    service_whose_offload_is_off_stays_with_the_workers,
    ipsec_policy_is_heeded_at_once,
    policy_is_heard_of_when_it_comes,
    policy_that_is_there_holds_from_the_first_connection,
    routing_by_mark_is_heeded_at_once,
    routing_by_interface_is_told_and_met_by_the_device,
);

/// What the log says of the offload can't be seen where it is off.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    let mut cases = cases();
    cases.retain(|case| !daemon::offload_is_off() || !case.name().contains("is_heard_of"));
    cases
}

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

fn stateful_firewall_leaves_the_offload_on() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    lab.proxy().nft(STATEFUL)?;
    transparent(lab, |rig| {
        let down = Job::down(40_000_000);
        carried(rig, |rig| rig.run(Family::V4, &down).map(drop))?;
        let mut command = rig.lab.proxy().command("nft");
        let counters = text(command.args(["list", "counters"]))?;
        let unused = counters.matches("packets 0 bytes 0").count();
        ensure!(unused == 2, "invalid or refused: {counters}");
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn masquerade_is_applied_to_mptcp_and_tcp() -> Result<()> {
    judged(Rules::Masquerade)
}

/// Waits until the log says so.
pub(crate) fn logged(rig: &Rig, words: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !rig.flexcp.log().contains(words) {
        ensure!(
            Instant::now() < deadline,
            "no {words:?} in the log:\n{}",
            rig.flexcp.log()
        );
        sleep(Duration::from_millis(20));
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
        ensure!(rig.counter("offload_installed")? == 0, "it was installed");
        if !daemon::offload_is_off() {
            logged(rig, "offload: not for service web")?;
            let stats = rig.flexcp.show("stats")?;
            ensure!(stats.contains("not for service web"), "{stats}");
        }
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// Packets that have left towards the server.
fn sent_up(rig: &Rig) -> Result<u64> {
    let mut command = rig.lab.proxy().command("cat");
    let text = command.arg("/proc/net/dev").output()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("srv1:"));
    let sent = line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok());
    sent.context("no srv1 in /proc/net/dev")
}

/// Runs these on FlexCP's host.
fn on_host(rig: &Rig, lines: &[&str]) -> Result<()> {
    lines.iter().try_for_each(|line| {
        let mut words = line.split_whitespace();
        let mut command = rig.lab.proxy().command(words.next().unwrap_or_default());
        text(command.args(words)).map(drop)
    })
}

/// While a transfer runs in the kernel, `block` has the host let nothing more through, and `told` says so: what is installed
/// does not go on beside that. Then `free` ends it, and so does the transfer.
fn blocked(block: &[&str], free: &[&str], told: impl Fn(&Rig, bool) -> Result<()>) -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
    transparent(lab, |rig| {
        rig.run_while(Family::V4, &Job::both(12_000_000), || {
            rig.wait_for_a_join()?;
            sleep(Duration::from_millis(300));
            on_host(rig, block)?;
            told(rig, true)?;
            sleep(Duration::from_millis(50));
            let before = sent_up(rig)?;
            sleep(Duration::from_millis(500));
            let passed = sent_up(rig)? - before;
            // Neighbour discovery.
            ensure!(passed < 5, "{passed} packets have left all the same");
            on_host(rig, free)?;
            told(rig, false)
        })?;
        Ok(Expect::clean().disturbed("the host lets nothing through for a while"))
    })
}

/// The same, where the log says what that means for the offload.
fn heeded(block: &[&str], free: &[&str]) -> Result<()> {
    blocked(block, free, |rig, blocks| match blocks {
        _ if daemon::offload_is_off() => Ok(()),
        true => logged(rig, "offload: not for service web"),
        false => logged(rig, "offload: for service web again"),
    })
}

fn ipsec_policy_is_heeded_at_once() -> Result<()> {
    heeded(
        &["ip xfrm policy add src 0.0.0.0/0 dst 10.9.0.0/16 dir out action block"],
        &["ip xfrm policy delete src 0.0.0.0/0 dst 10.9.0.0/16 dir out"],
    )
}

/// It would take 0.5 s in the mean if nobody told of it.
fn policy_is_heard_of_when_it_comes() -> Result<()> {
    let lab = Lab::builder().build()?;
    transparent(lab, |rig| {
        let policy = |verb: &str| -> Result<()> {
            let mut ip = rig.lab.proxy().command("ip");
            let words = [
                "xfrm",
                "policy",
                verb,
                "src",
                "10.8.0.0/24",
                "dst",
                "10.9.0.0/16",
            ];
            ip.args(words).args(["dir", "out"]);
            if verb == "add" {
                ip.args(["action", "block"]);
            }
            text(&mut ip).map(drop)
        };
        let times = |words| rig.flexcp.log().matches(words).count();
        for number in 1..=5 {
            for (verb, words) in [
                ("add", "offload: not for service web"),
                ("delete", "offload: for service web again"),
            ] {
                let begun = Instant::now();
                policy(verb)?;
                while times(words) < number {
                    ensure!(
                        begun.elapsed() < Duration::from_millis(600),
                        "{verb} {number}: not heard of after {:?}:\n{}",
                        begun.elapsed(),
                        rig.flexcp.log()
                    );
                    sleep(Duration::from_millis(10));
                }
            }
        }
        Ok(Expect::clean())
    })
}

/// The workers have heard of it before they may install, and who checks a file hears of it without a start.
fn policy_that_is_there_holds_from_the_first_connection() -> Result<()> {
    const NOTE: &str = "offload: not for service web: an IPsec policy covers its packets (out 10.8.0.0/24 to 10.9.0.0/16)";
    let lab = Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let mut ip = lab.proxy().command("ip");
    let words = [
        "xfrm",
        "policy",
        "add",
        "src",
        "10.8.0.0/24",
        "dst",
        "10.9.0.0/16",
    ];
    text(ip.args(words).args(["dir", "out", "action", "block"]))?;
    let checked = daemon::check_live(&lab, &config(&lab, &daemon::transparent(&lab, &[])))?;
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    let off = daemon::offload_is_off();
    ensure!(off || checked.contains(NOTE), "{checked}");
    transparent(lab, |rig| {
        rig.run(Family::V4, &Job::both(4_000_000))?;
        ensure!(rig.counter("offload_installed")? == 0, "it was installed");
        let log = rig.flexcp.log();
        let (told, installs) = (log.find(NOTE), log.find("offload: up to"));
        ensure!(off || (told.is_some() && told < installs), "{log}");
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// Netfilter marks what comes out of FlexCP's device, and a rule has nothing with that mark pass.
fn routing_by_mark_is_heeded_at_once() -> Result<()> {
    heeded(
        &[
            "nft add table ip marks",
            "nft add chain ip marks pre { type filter hook prerouting priority mangle ; }",
            "nft add rule ip marks pre iifname flexcp0 ip daddr 10.9.0.0/16 meta mark set 7",
            "ip rule add fwmark 7 priority 90 blackhole",
        ],
        &["ip rule delete priority 90", "nft delete table ip marks"],
    )
}

/// What FlexCP has handled comes from its device: a rule for an access interface is told until there is one for the device,
/// which holds for both tiers.
fn routing_by_interface_is_told_and_met_by_the_device() -> Result<()> {
    const TOLD: &str = "the routing rule `ipv4 iif a1 to 10.9.0.0/16 -> blackhole` does not meet what FlexCP has handled";
    let status = |rig: &Rig, has: bool| -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while rig.flexcp.show("status")?.contains(TOLD) != has {
            ensure!(Instant::now() < deadline, "{}", rig.flexcp.show("status")?);
            sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    blocked(
        &[
            "ip rule add iif a1 to 10.9.0.0/16 priority 90 blackhole",
            "ip rule add iif flexcp0 to 10.9.0.0/16 priority 90 blackhole",
        ],
        &["ip rule delete iif flexcp0 priority 90"],
        |rig, blocks| {
            status(rig, !blocks)?;
            if blocks {
                return Ok(());
            }
            logged(rig, TOLD)?;
            on_host(rig, &["ip rule delete iif a1 priority 90"])?;
            status(rig, false)
        },
    )
}
