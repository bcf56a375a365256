//! Several workers: every packet finds the one that has its connection, brought there by the placement program or
//! handed over by whoever got it.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::{Cut, End, Expect, Families, Family, Lab, RENEGED, daemon};

use crate::rig::{PORT, Rig, config_of_workers, lively, short, with_config};

crate::cases!("workers":
    many_connections_find_their_worker,
    two_workers_are_placed,
    ipv6_connections_find_their_worker,
    back_ends_answer_the_right_worker,
    path_is_cut_while_downloading,
    workers_hand_over_what_the_kernel_brings,
    workers_hand_over_scattered_packets,
    scattered_back_ends_answer_the_right_worker,
);

fn two_links(families: Families) -> Result<Lab> {
    Lab::builder()
        .families(families)
        .rate_mbit(1, 200)
        .rate_mbit(2, 200)
        .build()
}

/// How packets come to workers.
const OWNER: &str = "owner";
const KERNEL: &str = "kernel";
const SCATTER: &str = "scatter";

fn transparent(
    lab: Lab,
    (workers, placement): (u16, &str),
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let services = daemon::transparent(&lab, &[]);
    let config = config_of_workers(&lab, workers, placement, &services);
    with_config(lab, &config, ServeOptions::tcp(PORT), case)
}

fn reverse(lab: Lab, (workers, placement): (u16, &str), count: u32) -> Result<()> {
    let listen = SocketAddr::new(lab.proxy_addr(1, Family::V4), 8080);
    let back_end = lab.server_socket(1, Family::V4, PORT).to_string();
    let service = daemon::reverse("shop", &[listen.to_string()], &[back_end], &[]);
    let config = config_of_workers(&lab, workers, placement, &service);
    with_config(lab, &config, ServeOptions::tcp(PORT), |rig| {
        many(rig, &Client::mptcp(listen), count, placement)
    })
}

/// All connections at once, each is joined; packets were handed over as the placement has it.
fn many(rig: &Rig, client: &Client, count: u32, placement: &str) -> Result<Expect> {
    let job = Job::both(200_000).pause_ms(10);
    let reports = client.run_many_in(rig.lab.client(), count as usize, &job)?;
    lively(&reports)?;
    ensure!(rig.counter("mp_capable_ack_rx")? == u64::from(count));
    for failed in [
        "mp_join_no_token",
        "mp_join_ack_hmac_failure",
        "mp_join_refused",
    ] {
        ensure!(rig.counter(failed)? == 0, "{failed} moved");
    }
    judge_handover(rig, placement)?;
    let expect = if placement == SCATTER {
        const OVERTAKE: &str = "workers overtake each other";
        // The server takes that for loss, and the client gets segments twice.
        short()
            .own("out_of_window", OVERTAKE)
            .own("handover_lost", "a worker that lags behind has full rings")
    } else {
        short()
    };
    let kernel = rig.oracle.client(&rig.lab)?;
    let asked = kernel.get("MPJoinSynTx");
    // A client whose connection has ended meanwhile resets the join that it has asked for.
    let answered = asked - kernel.get("MPRstTx");
    Ok(expect
        .disturbed("so many connections at once overflow the queues of their links")
        .own(
            "stale_ack",
            "each subflow ACKs what has come on it while the data before that is late on another",
        )
        .allow_all(RENEGED)
        .exactly(End::Client, "MPCapableSYNACKRX", count.into())
        // Captures of this burst hold nothing beyond the edge that the subflow was told; a busy Linux client
        // refuses one or two segments that fill its window to the last byte, as its subflows compete for that, and
        // does not answer each of the ACKs behind them.
        .allow_at(
            End::Client,
            &["BeyondWindow", "RcvWndConflict", "TCPACKSkippedSeq"],
        )
        // A client is done with its 200 KB before its kernel has come to join: more than two thirds of them at worst,
        // on a busy machine. A SYN lost in the burst comes again only after the connection's end, and is reset. FlexCP
        // refuses none of those that come: that is judged above.
        .at_least(End::Client, "MPJoinSynTx", (count / 8).into())
        .at_least(End::Client, "MPJoinSynAckRx", answered * 3 / 4))
}

fn judge_handover(rig: &Rig, placement: &str) -> Result<()> {
    let stats = rig.flexcp.show_stats()?;
    let carrier = |name: &str| stats.number(&format!("carrier.{name}"));
    let (handed_over, packets) = (carrier("handed_over")?, rig.counter("packets_in")?);
    println!("{placement}: {handed_over} of {packets} packets handed over");
    match placement {
        // What waits at a worker whose subflow has just gone is not its own any more.
        OWNER => ensure!(
            handed_over * 1000 <= packets,
            "{handed_over} of {packets} handed over"
        ),
        KERNEL => ensure!(handed_over > 0, "nothing was handed over"),
        _ => ensure!(
            handed_over * 4 > packets,
            "only {handed_over} of {packets} handed over"
        ),
    }
    // A worker that lags behind has full rings when they carry everything; TCP repairs that.
    ensure!(
        placement == SCATTER || carrier("handover_lost")? == 0,
        "{stats}"
    );
    ensure!(carrier("placement_full")? == 0, "{stats}");
    Ok(())
}

fn many_connections_find_their_worker() -> Result<()> {
    transparent(two_links(Families::V4)?, (4, OWNER), |rig| {
        many(rig, &rig.client(Family::V4), 100, OWNER)
    })
}

fn two_workers_are_placed() -> Result<()> {
    transparent(two_links(Families::V4)?, (2, OWNER), |rig| {
        many(rig, &rig.client(Family::V4), 60, OWNER)
    })
}

fn ipv6_connections_find_their_worker() -> Result<()> {
    transparent(two_links(Families::V6)?, (3, OWNER), |rig| {
        many(rig, &rig.client(Family::V6), 40, OWNER)
    })
}

fn back_ends_answer_the_right_worker() -> Result<()> {
    reverse(two_links(Families::V4)?, (4, OWNER), 60)
}

fn workers_hand_over_what_the_kernel_brings() -> Result<()> {
    transparent(two_links(Families::V4)?, (3, KERNEL), |rig| {
        many(rig, &rig.client(Family::V4), 100, KERNEL)
    })
}

fn workers_hand_over_scattered_packets() -> Result<()> {
    transparent(two_links(Families::V4)?, (2, SCATTER), |rig| {
        many(rig, &rig.client(Family::V4), 24, SCATTER)
    })
}

fn scattered_back_ends_answer_the_right_worker() -> Result<()> {
    reverse(two_links(Families::V4)?, (4, SCATTER), 24)
}

fn path_is_cut_while_downloading() -> Result<()> {
    transparent(two_links(Families::V4)?, (2, OWNER), |rig| {
        let report = rig.run_while(Family::V4, &Job::down(15_000_000), || {
            thread::sleep(Duration::from_millis(300));
            rig.lab.cut(1, Cut::Silent)
        })?;
        rig.no_stall(&report)?;
        Ok(Expect::clean()
            .disturbed("a link is cut")
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}
