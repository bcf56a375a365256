//! Several workers: every packet finds the one that has its connection.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::{Cut, End, Expect, Families, Family, Lab, daemon};

use crate::rig::{PORT, Rig, config_of_workers, with_config};

crate::cases!("workers":
    many_connections_find_their_worker,
    ipv6_connections_find_their_worker,
    back_ends_answer_the_right_worker,
    path_is_cut_while_downloading,
);

fn two_links(families: Families) -> Result<Lab> {
    Lab::builder()
        .families(families)
        .rate_mbit(1, 200)
        .rate_mbit(2, 200)
        .build()
}

fn transparent(lab: Lab, workers: u16, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let config = config_of_workers(&lab, workers, &daemon::transparent(&lab, &[]));
    with_config(lab, &config, ServeOptions::tcp(PORT), case)
}

/// All connections at once; each is joined, and some packets had to be handed over.
fn many(rig: &Rig, client: &Client, count: u32) -> Result<Expect> {
    let job = Job::both(200_000).pause_ms(10);
    let reports = client.run_many_in(rig.lab.client(), count as usize, &job)?;
    for report in &reports {
        report.ok()?;
    }
    ensure!(rig.counter("mp_capable_ack_rx")? == u64::from(count));
    for failed in [
        "mp_join_no_token",
        "mp_join_ack_hmac_failure",
        "mp_join_refused",
    ] {
        ensure!(rig.counter(failed)? == 0, "{failed} moved");
    }
    let stats = rig.flexcp.show_stats()?;
    let carrier = |name: &str| {
        let value = stats["carrier"][name].as_u64();
        value.with_context(|| format!("no {name} in {stats}"))
    };
    ensure!(carrier("handed_over")? > 0, "nothing was handed over");
    ensure!(carrier("handover_lost")? == 0, "{stats}");
    Ok(Expect::clean()
        .exactly(End::Client, "MPCapableSYNACKRX", count.into())
        // A SYN lost in the burst comes again only after the connection's end, and is reset.
        .allow("MPRstTx")
        .allow("MPRstRx")
        // Captures of this burst hold nothing beyond the edge that the subflow was told; a busy Linux client
        // refuses one or two segments that fill its window to the last byte, as its subflows compete for that.
        .allow_at(End::Client, &["BeyondWindow", "RcvWndConflict"])
        // A starved client is done before it has come to join.
        .at_least(End::Client, "MPJoinSynAckRx", (count / 4).into()))
}

fn many_connections_find_their_worker() -> Result<()> {
    transparent(two_links(Families::V4)?, 3, |rig| {
        many(rig, &rig.client(Family::V4), 100)
    })
}

fn ipv6_connections_find_their_worker() -> Result<()> {
    transparent(two_links(Families::V6)?, 2, |rig| {
        many(rig, &rig.client(Family::V6), 40)
    })
}

fn back_ends_answer_the_right_worker() -> Result<()> {
    let lab = two_links(Families::V4)?;
    let listen = SocketAddr::new(lab.proxy_addr(1, Family::V4), 8080);
    let back_end = lab.server_socket(1, Family::V4, PORT).to_string();
    let service = daemon::reverse("shop", &[listen.to_string()], &[back_end], &[]);
    let config = config_of_workers(&lab, 4, &service);
    with_config(lab, &config, ServeOptions::tcp(PORT), |rig| {
        many(rig, &Client::mptcp(listen), 60)
    })
}

fn path_is_cut_while_downloading() -> Result<()> {
    transparent(two_links(Families::V4)?, 2, |rig| {
        let report = rig.run_while(Family::V4, &Job::down(15_000_000), || {
            thread::sleep(Duration::from_millis(300));
            rig.lab.cut(1, Cut::Silent)
        })?;
        ensure!(report.longest_gap() < Duration::from_secs(3));
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}
