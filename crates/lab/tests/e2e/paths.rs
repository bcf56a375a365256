//! Paths that come and go while a connection lives.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::Job;
use flexcp_lab::{
    Cut, Direction, End, Expect, Families, Family, Lab, RENEGED, Starvation, interfaces,
};

use crate::rig::{Rig, transparent};

crate::cases!("path":
    active_link_cut_silently_while_downloading,
    active_link_cut_silently_while_uploading,
    active_link_cut_silently_both_ways,
    idle_link_cut_silently,
    only_the_way_down_is_cut,
    only_the_way_up_is_cut,
    only_the_way_up_is_cut_while_uploading,
    cut_and_restored_to_and_fro,
    cut_while_idle_then_data,
    three_of_four_links_cut_in_turn,
    all_links_cut_then_restored,
    all_links_cut_then_one_restored,
    link_down_while_downloading,
    link_down_and_up_while_uploading,
    carrier_lost_while_downloading,
    join_before_data,
    join_during_data,
    join_after_data,
    endpoint_removed_while_downloading,
    backup_link_idle_until_the_other_is_cut,
    made_backup_while_downloading,
    link_cut_ipv6,
);

fn two_links() -> Result<Lab> {
    Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()
}

fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// What a cut may bring about: the client gives up the dead subflow.
fn joined() -> Expect {
    Expect::clean()
        .disturbed("a path goes")
        .allow_all(RENEGED)
        .at_least(End::Client, "MPJoinSynAckRx", 1)
        .allow("MPRstTx")
        .allow("MPRstRx")
}

/// Which link carries the download: the one that FlexCP says is active.
fn active_link(rig: &Rig) -> Result<u8> {
    let before = interfaces(rig.lab.client())?;
    pause(100);
    let after = interfaces(rig.lab.client())?;
    let gain = |link: &u8| {
        let name = format!("a{link}");
        after[&name].rx - before[&name].rx
    };
    Ok((1..=rig.lab.links()).max_by_key(gain).unwrap_or(1))
}

fn active_link_cut_silently_while_downloading() -> Result<()> {
    cut_active(&Job::down(15_000_000), Cut::Silent)
}

fn active_link_cut_silently_while_uploading() -> Result<()> {
    cut_active(&Job::up(25_000_000), Cut::Silent)
}

fn active_link_cut_silently_both_ways() -> Result<()> {
    cut_active(&Job::both(15_000_000), Cut::Silent)
}

fn only_the_way_down_is_cut() -> Result<()> {
    cut_active(&Job::both(15_000_000), Cut::SilentDown)
}

fn only_the_way_up_is_cut() -> Result<()> {
    cut_active(&Job::both(15_000_000), Cut::SilentUp)
}

fn only_the_way_up_is_cut_while_uploading() -> Result<()> {
    cut_active(&Job::up(25_000_000), Cut::SilentUp)
}

fn link_down_while_downloading() -> Result<()> {
    cut_active(&Job::down(15_000_000), Cut::LinkDown)
}

fn carrier_lost_while_downloading() -> Result<()> {
    cut_active(&Job::down(15_000_000), Cut::NoCarrier)
}

/// Cuts the busier link and does not restore it.
fn cut_active(job: &Job, cut: Cut) -> Result<()> {
    transparent(two_links()?, |rig| {
        let report = rig.run_while(Family::V4, job, || {
            rig.wait_for_a_join()?;
            pause(300);
            rig.lab.cut(active_link(rig)?, cut)
        })?;
        rig.no_stall(&report)?;
        Ok(joined())
    })
}

fn idle_link_cut_silently() -> Result<()> {
    transparent(two_links()?, |rig| {
        let report = rig.run_while(Family::V4, &Job::down(10_000_000), || {
            pause(300);
            rig.lab.cut(3 - active_link(rig)?, Cut::Silent)
        })?;
        // Nothing has to move; what threads wait for a processor is no stall.
        let bound = Duration::from_millis(200) + 2 * rig.starved();
        let gap = report.longest_gap();
        ensure!(gap < bound, "stalled for {gap:?}, {bound:?} may be");
        Ok(joined())
    })
}

fn cut_and_restored_to_and_fro() -> Result<()> {
    for job in [Job::down(40_000_000), Job::up(60_000_000)] {
        transparent(two_links()?, |rig| {
            rig.run_while(Family::V4, &job, || {
                pause(300);
                for link in [1, 2, 1] {
                    rig.lab.cut(link, Cut::Silent)?;
                    pause(500);
                    rig.lab.restore(link)?;
                    pause(400);
                }
                Ok(())
            })?;
            Ok(joined())
        })?;
    }
    Ok(())
}

fn cut_while_idle_then_data() -> Result<()> {
    transparent(two_links()?, |rig| {
        let job = Job::ping_pong(2, 200_000).pause_ms(1000);
        rig.run_while(Family::V4, &job, || {
            pause(500);
            rig.lab.cut(1, Cut::Silent)
        })?;
        Ok(joined())
    })
}

fn three_of_four_links_cut_in_turn() -> Result<()> {
    let builder = Lab::builder().access_links(4);
    let lab = (1..=4)
        .fold(builder, |builder, link| builder.rate_mbit(link, 50))
        .build()?;
    transparent(lab, |rig| {
        rig.run_while(Family::V4, &Job::both(15_000_000), || {
            for _ in 0..3 {
                pause(400);
                rig.lab.cut(active_link(rig)?, Cut::Silent)?;
            }
            Ok(())
        })?;
        Ok(joined())
    })
}

fn all_links_cut_then_restored() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.run_while(Family::V4, &Job::both(15_000_000), || {
            pause(300);
            rig.lab.cut(1, Cut::Silent)?;
            rig.lab.cut(2, Cut::Silent)?;
            pause(1000);
            rig.lab.restore(1)?;
            rig.lab.restore(2)
        })?;
        Ok(joined())
    })
}

/// What went down last was lost on a path that works again, and the rest on one that does not.
fn all_links_cut_then_one_restored() -> Result<()> {
    for link in [1, 2] {
        transparent(two_links()?, |rig| {
            rig.run_while(Family::V4, &Job::down(15_000_000), || {
                pause(300);
                rig.lab.cut(1, Cut::Silent)?;
                rig.lab.cut(2, Cut::Silent)?;
                pause(1000);
                rig.lab.restore(link)
            })?;
            Ok(joined())
        })?;
    }
    Ok(())
}

fn link_down_and_up_while_uploading() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.run_while(Family::V4, &Job::up(40_000_000), || {
            pause(300);
            rig.lab.cut(2, Cut::LinkDown)?;
            pause(500);
            rig.lab.restore(2)
        })?;
        Ok(joined())
    })
}

fn join_before_data() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.run_while(
            Family::V4,
            &Job::ping_pong(3, 500_000).pause_ms(300),
            || Ok(()),
        )?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// The client learns of its second link while data flows.
fn join_during_data() -> Result<()> {
    for job in [
        Job::down(15_000_000),
        Job::up(15_000_000),
        Job::both(10_000_000),
    ] {
        transparent(late_endpoint()?, |rig| {
            rig.run_while(Family::V4, &job, || {
                pause(300);
                add_endpoint(rig)
            })?;
            Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
        })?;
    }
    Ok(())
}

/// The client learns of its second link after all data, and needs it for the rest.
fn join_after_data() -> Result<()> {
    transparent(late_endpoint()?, |rig| {
        let job = Job::ping_pong(3, 500_000).pause_ms(800);
        rig.run_while(Family::V4, &job, || {
            pause(400);
            add_endpoint(rig)?;
            pause(200);
            rig.lab.cut(1, Cut::Silent)
        })?;
        Ok(joined().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn late_endpoint() -> Result<Lab> {
    let builder = Lab::builder().endpoints(Families::Neither);
    builder.rate_mbit(1, 100).rate_mbit(2, 100).build()
}

fn add_endpoint(rig: &Rig) -> Result<()> {
    let address = rig.lab.client_addr(2, Family::V4);
    rig.lab
        .client()
        .ip(&format!("mptcp endpoint add {address} dev a2 subflow"))
        .map(drop)
}

/// The client takes its second address back: REMOVE_ADDR, and a closed subflow.
fn endpoint_removed_while_downloading() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.run_while(Family::V4, &Job::both(15_000_000), || {
            pause(400);
            rig.lab.client().ip("mptcp endpoint del id 1").map(drop)
        })?;
        ensure!(rig.counter("rm_addr_rx")? >= 1);
        const REMOVED: &str = "its subflow is closed with the address";
        Ok(joined()
            .own("mp_rst_tx", REMOVED)
            .own("no_subflow", REMOVED)
            .own("blind_reset", REMOVED)
            .at_least(End::Client, "RmAddrTx", 1))
    })
}

fn backup_link_idle_until_the_other_is_cut() -> Result<()> {
    let lab = Lab::builder()
        .backup(2)
        .rate_mbit(1, 100)
        .rate_mbit(2, 100)
        .build()?;
    transparent(lab, |rig| {
        let starvation = Starvation::measure()?;
        rig.run_while(Family::V4, &Job::down(20_000_000), || {
            pause(500);
            let idle = interfaces(rig.lab.client())?["a2"].rx;
            // Of some 6 MB the handshake alone. A client that owes an ACK for 5 ms makes the other link look silent, so
            // that a window of data goes here.
            let owes = starvation.longest() >= Duration::from_millis(5);
            let bound = if owes { 400_000 } else { 20_000 };
            ensure!(
                idle < bound,
                "the backup link brought {idle} bytes before the cut, {bound} may be"
            );
            rig.lab.cut(1, Cut::Silent)
        })?;
        let hits = rig.lab.fault_hits(1, Direction::Down)?;
        ensure!(hits > 0, "the cut hit nothing");
        Ok(joined())
    })
}

/// The number that the client's path manager knows its address on a link by.
fn endpoint_id(rig: &Rig, link: u8) -> Result<u8> {
    let address = format!("{} ", rig.lab.client_addr(link, Family::V4));
    let known = rig.lab.client().ip("mptcp endpoint show")?;
    let mut lines = known.lines();
    let line = lines.find(|line| line.starts_with(&address));
    let id = line.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
    id.with_context(|| format!("no endpoint {address}in\n{known}"))
}

/// MP_PRIO: the client makes the busy link a backup, and the download moves.
fn made_backup_while_downloading() -> Result<()> {
    let lab = two_links()?;
    let address = lab.client_addr(1, Family::V4);
    lab.client().ip(&format!(
        "mptcp endpoint add {address} id 100 dev a1 subflow"
    ))?;
    transparent(lab, |rig| {
        rig.run_while(Family::V4, &Job::down(20_000_000), || {
            pause(400);
            // On a busy machine it may have moved already: whichever has it becomes the backup.
            let busy = active_link(rig)?;
            let id = if busy == 1 {
                100
            } else {
                endpoint_id(rig, busy)?
            };
            let change = format!("mptcp endpoint change id {id} backup");
            rig.lab.client().ip(&change)?;
            pause(200);
            ensure!(
                active_link(rig)? != busy,
                "the download stays on a backup link"
            );
            Ok(())
        })?;
        ensure!(rig.counter("mp_prio_rx")? >= 1);
        Ok(joined().at_least(End::Client, "MPPrioTx", 1))
    })
}

fn link_cut_ipv6() -> Result<()> {
    let builder = Lab::builder().families(Families::V6);
    transparent(
        builder.rate_mbit(1, 100).rate_mbit(2, 100).build()?,
        |rig| {
            let report = rig.run_while(Family::V6, &Job::both(15_000_000), || {
                pause(300);
                rig.lab.cut(active_link(rig)?, Cut::Silent)
            })?;
            rig.no_stall(&report)?;
            Ok(joined())
        },
    )
}
