//! The fast path in the kernel: it carries most of a transfer, and leaves everything exact.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{
    Cut, End, Expect, FALLBACKS, Families, Family, FlexCp, Lab, Starvation, Strip, daemon, text,
};
use libtest_mimic::Trial;

use crate::rig::{PORT, Rig, config, transparent, with_config};
use crate::transfers::tcp_client;

crate::cases!("offload":
    carries_a_download,
    carries_a_download_over_ipv6,
    carries_an_upload,
    carries_single_segments,
    carries_a_download_by_clsact,
    filter_that_is_taken_away_comes_back,
    survives_a_cut,
    show_counts_what_is_still_installed,
    plain_tcp_is_the_kernels,
    plain_tcp_is_the_kernels_over_ipv6,
    what_has_fallen_back_is_the_kernels,
    is_off_when_the_configuration_says_so,
);

fn lab() -> flexcp_lab::LabBuilder {
    Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400)
}

/// Runs a transfer: an error unless the kernel translates most of its packets.
pub(crate) fn carried(rig: &Rig, transfer: impl FnOnce(&Rig) -> Result<()>) -> Result<()> {
    in_kernel(&rig.flexcp, &rig.starvation, || transfer(rig))
}

/// The same by this FlexCP, while it is measured how long threads wait for a processor.
pub(crate) fn in_kernel(
    flexcp: &FlexCp,
    starvation: &Starvation,
    transfer: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let counts = || -> Result<[u64; 2]> {
        let stats = flexcp.show_stats()?;
        let offloaded =
            stats.counter("offload_packets_down")? + stats.counter("offload_packets_up")?;
        Ok([offloaded, stats.counter("packets_in")?])
    };
    let before = counts()?;
    transfer()?;
    let after = counts()?;
    let share = (after[0] - before[0]) * 100 / (after[1] - before[1]).max(1);
    let starved = starvation.longest();
    let least = if starved < Starvation::EXPLAINS {
        LEAST
    } else {
        LEAST_WHEN_STARVED
    };
    ensure!(
        daemon::offload_is_off() || share >= least,
        "{share} % in the kernel, {least} have to be; threads waited {starved:?}"
    );
    Ok(())
}

/// What there is to see of the offload where it is off: that it is.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    let mut cases = cases();
    cases.retain(|case| !daemon::offload_is_off() || case.name().contains("is_off"));
    cases
}

/// Of a transfer's packets the kernel translates 93 % and more. The rest are those before the connection is installed,
/// and those after the client's DATA_FIN, which overtakes data that waits before another link.
const LEAST: u64 = 80;

/// Where threads wait for a processor, a worker hardly gets to install what it has: nobody knows when none of a
/// connection's packets waits for it. 30 % is the least that was seen, with 25 processes for two processors.
const LEAST_WHEN_STARVED: u64 = 20;

pub(crate) fn carries(lab: Lab, family: Family, job: &Job) -> Result<()> {
    carries_by(lab, "auto", family, job)
}

/// The same with the programs attached in this way.
fn carries_by(lab: Lab, attach: &str, family: Family, job: &Job) -> Result<()> {
    carries_after(lab, attach, family, job, |_| Ok(()))
}

/// The same when `before` has happened to FlexCP's host.
fn carries_after(
    lab: Lab,
    attach: &str,
    family: Family,
    job: &Job,
    before: impl Fn(&Rig) -> Result<()>,
) -> Result<()> {
    let joins = i64::from(lab.links()) - 1;
    let told = config(&lab, &daemon::transparent(&lab, &[]));
    let attached = format!("[offload]\nattach = {attach:?}\n\n");
    // Where it is off, the configuration has that section already.
    let told = if daemon::offload_is_off() {
        told
    } else {
        attached + &told
    };
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        before(rig)?;
        carried(rig, |rig| rig.run(family, job).map(drop))?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", joins))
    })
}

fn carries_a_download() -> Result<()> {
    carries(lab().build()?, Family::V4, &Job::down(40_000_000))
}

fn carries_a_download_over_ipv6() -> Result<()> {
    let lab = lab().families(Families::V6).build()?;
    carries(lab, Family::V6, &Job::down(40_000_000))
}

/// Over one subflow, where data comes up in its order or is the translator's.
fn carries_an_upload() -> Result<()> {
    let lab = Lab::builder().access_links(1).rate_mbit(1, 400).build()?;
    carries(lab, Family::V4, &Job::up(40_000_000))
}

/// Their checksums are complete, and the programs have to verify them. At 400 Mbit/s they are as many as a worker of a slow
/// machine can translate: a queue stands before it, and what waits there keeps the connection from being installed.
fn carries_single_segments() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100);
    let lab = lab.offloads(false).build()?;
    carries(lab, Family::V4, &Job::down(20_000_000))
}

/// As on kernels without tcx.
fn carries_a_download_by_clsact() -> Result<()> {
    carries_by(lab().build()?, "clsact", Family::V4, &Job::down(40_000_000))
}

fn filter_that_is_taken_away_comes_back() -> Result<()> {
    let taken_away = |rig: &Rig| {
        // With its qdisc, and alone.
        for (device, what) in [
            ("srv1", "qdisc del dev srv1 clsact"),
            ("a2", "filter del dev a2 ingress"),
        ] {
            let mut tc = rig.lab.proxy().command("tc");
            text(tc.args(what.split(' ')))?;
            let deadline = Instant::now() + Duration::from_secs(1);
            let words = format!("offload: on {device} now, too");
            while !rig.flexcp.log().contains(&words) {
                ensure!(Instant::now() < deadline, "{}", rig.flexcp.log());
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    };
    let job = Job::down(40_000_000);
    carries_after(lab().build()?, "clsact", Family::V4, &job, taken_away)
}

fn survives_a_cut() -> Result<()> {
    transparent(lab().build()?, |rig| {
        let report = rig.run_while(Family::V4, &Job::down(60_000_000), || {
            thread::sleep(Duration::from_millis(400));
            rig.lab.cut(1, Cut::Silent)
        })?;
        rig.no_stall(&report)?;
        ensure!(rig.counter("offload_evicted")? >= 1, "never evicted");
        Ok(Expect::clean()
            .disturbed("a link is cut")
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// While the kernel carries everything, and nothing else takes the connection back.
fn show_counts_what_is_still_installed() -> Result<()> {
    let lab = Lab::builder().access_links(1).rate_mbit(1, 100);
    transparent(lab.build()?, |rig| {
        rig.run_while(Family::V4, &Job::down(25_000_000), || {
            thread::sleep(Duration::from_millis(500));
            (0..4).try_for_each(|_| counts_go_on(rig))?;
            looking_takes_nothing_back(rig)
        })?;
        Ok(Expect::clean())
    })
}

/// At 100 Mbit/s some 250 packets come in a second, of up to 64 KB each.
fn counts_go_on(rig: &Rig) -> Result<()> {
    let before = rig.counter("offload_packets_down")?;
    let began = Instant::now();
    loop {
        let more = rig.counter("offload_packets_down")? - before;
        if more >= 20 {
            return Ok(());
        }
        let (passed, starved) = (began.elapsed(), rig.starved());
        ensure!(
            passed < Duration::from_millis(300) + starved,
            "{more} packets in {passed:?}; threads waited {starved:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// However often one looks: by itself the connection comes back every two seconds.
fn looking_takes_nothing_back(rig: &Rig) -> Result<()> {
    let before = rig.counter("offload_evicted")?;
    for _ in 0..50 {
        rig.counter("packets_in")?;
    }
    let more = rig.counter("offload_evicted")? - before;
    ensure!(more <= 5, "evicted {more} times while 50 times looked at");
    Ok(())
}

fn is_off_when_the_configuration_says_so() -> Result<()> {
    let lab = lab().build()?;
    let service = daemon::transparent(&lab, &[]);
    let told = config(&lab, &service);
    // Where the environment turns it off, the configuration says so already.
    let told = if daemon::offload_is_off() {
        told
    } else {
        format!("[offload]\nenabled = false\n\n{told}")
    };
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        rig.run(Family::V4, &Job::down(5_000_000))?;
        ensure!(
            rig.counter("offload_installed")? == 0,
            "something was installed"
        );
        ensure!(
            !rig.flexcp.log().contains("offload:"),
            "the log speaks of it"
        );
        Ok(Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// Packets of a transfer of so many megabytes that may come to FlexCP when the kernel forwards it.
const BEFORE_IT_IS_KNOWN: u64 = 20;

/// FlexCP sees the beginning of a connection, and nothing more of it.
fn passes_by(rig: &Rig, connections: u64) -> Result<()> {
    let (passed, seen) = (rig.counter("passed_by")?, rig.counter("packets_in")?);
    ensure!(passed == connections, "{passed} have passed by");
    ensure!(
        seen <= connections * BEFORE_IT_IS_KNOWN,
        "{seen} packets of {connections} connections came to FlexCP"
    );
    Ok(())
}

fn plain_tcp_is_the_kernels() -> Result<()> {
    passing(Families::V4, Family::V4)
}

fn plain_tcp_is_the_kernels_over_ipv6() -> Result<()> {
    passing(Families::V6, Family::V6)
}

fn passing(families: Families, family: Family) -> Result<()> {
    transparent(lab().families(families).build()?, |rig| {
        let client = tcp_client(rig, family);
        for job in [Job::down(10_000_000), Job::up(10_000_000)] {
            rig.run_client(&client, &job)?;
        }
        passes_by(rig, 2)?;
        // The next from anywhere is MPTCP's again.
        rig.run(family, &Job::both(10_000_000))?;
        ensure!(rig.counter("mp_capable_ack_rx")? == 1, "not by MPTCP");
        Ok(Expect::clean()
            .own("plain_syn", "a client without MPTCP")
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// Its client's options do not come through the handshake.
fn what_has_fallen_back_is_the_kernels() -> Result<()> {
    let lab = Lab::builder().access_links(1).rate_mbit(1, 400).build()?;
    transparent(lab, |rig| {
        rig.lab.strip(1, Strip::SynAck)?;
        rig.run(Family::V4, &Job::down(10_000_000))?;
        passes_by(rig, 1)?;
        Ok(Expect::clean()
            .own("fallback_handshake", "the SYN/ACK has no option")
            .allow_all(FALLBACKS))
    })
}
