//! Uplinks of an aggregation box that lose their carrier or their address, and come back, under connections that go on.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Job, Report, ServeOptions};
use flexcp_lab::{Cut, Family};

use crate::aggregation::{PORT, Rig, boxed, lab, lab_of, quiet};
use crate::rig::until;

crate::cases!("uplinks":
    carrier_lost_in_mid_download,
    carrier_lost_in_mid_download_ipv6,
    carrier_lost_in_mid_upload,
    address_changes_in_mid_download,
    connection_begins_where_there_is_a_carrier,
    all_carriers_lost_for_a_while,
);

/// So long no byte comes at most when a carrier is lost, on a busy machine: `make uplinks` measures it.
const GAP: Duration = Duration::from_millis(500);
/// `tcp_rmem` of who downloads: the server sends all again that it has no data ACK of (docs/box.md).
const WINDOW: &str = "4096 131072 1000000";

/// Does a job while `meanwhile` runs, from when both uplinks carry it.
pub(crate) fn run_while(
    rig: &Rig,
    job: &Job,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Report> {
    let _server = rig.serve(ServeOptions::mptcp(PORT))?;
    thread::scope(|scope| {
        let run = scope.spawn(|| rig.run(job));
        rig.joined(1)?;
        thread::sleep(Duration::from_millis(500));
        let done = meanwhile();
        let report = run.join().expect("a client does not panic")?;
        done.map(|()| report)
    })
}

fn ends(rig: &Rig, cause: &str) -> Result<bool> {
    let log = rig.flexcp.log();
    Ok(log.contains(cause))
}

fn carrier_lost(family: Family, job: &Job) -> Result<()> {
    boxed(lab_of(family, 50)?, |rig| {
        let client = rig.lab.server(1);
        client.sysctl(&[("net.ipv4.tcp_rmem", WINDOW)])?;
        let report = run_while(rig, job, || {
            rig.lab.cut(1, Cut::NoCarrier)?;
            until("the server hears of it", || {
                Ok(rig.counter("rm_addr_tx")? > 0)
            })
        })?;
        ensure!(ends(rig, "uplink a1: no carrier")?, "the log is silent");
        ensure!(report.longest_gap() < GAP, "{:?}", report.longest_gap());
        Ok(quiet().disturbed("an uplink has no carrier"))
    })
}

fn carrier_lost_in_mid_download() -> Result<()> {
    carrier_lost(Family::V4, &Job::down(15_000_000))
}

fn carrier_lost_in_mid_download_ipv6() -> Result<()> {
    carrier_lost(Family::V6, &Job::down(15_000_000))
}

fn carrier_lost_in_mid_upload() -> Result<()> {
    boxed(lab(50)?, |rig| {
        run_while(rig, &Job::up(8_000_000), || rig.lab.cut(1, Cut::NoCarrier))?;
        Ok(quiet().disturbed("an uplink has no carrier"))
    })
}

/// As by DHCP, ten times: the old address goes, another comes.
fn address_changes_in_mid_download() -> Result<()> {
    const TIMES: u8 = 10;
    boxed(lab(20)?, |rig| {
        let proxy = rig.lab.proxy();
        let mut old = rig.lab.proxy_addr(2, Family::V4).to_string();
        run_while(rig, &Job::down(22_000_000), || {
            for time in 1..=TIMES {
                let new = format!("10.1.2.{}", 100 + time);
                proxy.ip(&format!("addr del {old}/24 dev a2"))?;
                proxy.ip(&format!("addr add {new}/24 dev a2"))?;
                // The default route has gone with the last address, and comes a moment after the new one.
                thread::sleep(Duration::from_millis(50));
                let via = rig.lab.client_addr(2, Family::V4);
                proxy.ip(&format!("route add default via {via} dev a2 metric 200"))?;
                let began = Instant::now();
                rig.joined(u64::from(time) + 1)?;
                // Not only when a first SYN that went elsewhere is repeated, after a second.
                let took = began.elapsed();
                ensure!(took < Duration::from_millis(900), "joined after {took:?}");
                old = new;
            }
            Ok(())
        })?;
        let told = rig.counter("rm_addr_tx")?;
        ensure!(told >= u64::from(TIMES), "{told} REMOVE_ADDR");
        Ok(quiet().disturbed("an uplink's address changes"))
    })
}

fn connection_begins_where_there_is_a_carrier() -> Result<()> {
    boxed(lab(50)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        rig.lab.cut(1, Cut::NoCarrier)?;
        until("FlexCP knows", || ends(rig, "uplink a1: no carrier"))?;
        rig.run(&Job::both(1_000_000))?;
        rig.ensure(&[("mp_capable_synack_rx", 1), ("mp_join_syn_tx", 0)])?;
        Ok(quiet().disturbed("an uplink has no carrier"))
    })
}

/// Then one comes back: the connection goes on there.
fn all_carriers_lost_for_a_while() -> Result<()> {
    boxed(lab(50)?, |rig| {
        run_while(rig, &Job::down(10_000_000), || {
            rig.lab.cut(1, Cut::NoCarrier)?;
            rig.lab.cut(2, Cut::NoCarrier)?;
            thread::sleep(Duration::from_millis(500));
            rig.lab.restore(2)
        })?;
        Ok(quiet().disturbed("no uplink has a carrier"))
    })
}
