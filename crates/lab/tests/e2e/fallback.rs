//! Connections that are not, or do not stay, MPTCP on the client's side.

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Job, Mode, ServeOptions};
use flexcp_lab::{
    Direction, End, Expect, FALLBACKS, Families, Family, Lab, RENEGED, SERVER_RESET, Strip,
    WINDOW_OVERRUN, daemon,
};

use crate::rig::{PORT, Rig, transparent, with};
use crate::transfers::tcp_client;

crate::cases!("fallback":
    plain_tcp_clients,
    plain_tcp_clients_ipv6,
    server_that_speaks_mptcp_itself,
    option_stripped_from_syn,
    option_stripped_from_synack,
    option_stripped_from_third_ack,
    option_stripped_from_all_down_after_some_bytes,
    option_stripped_from_all_up_after_some_bytes,
    option_stripped_from_all_both_ways_at_once,
    option_stripped_from_mappings_down,
    option_stripped_on_the_second_link_only,
    join_option_stripped_on_the_second_link,
);

fn plain_tcp_clients() -> Result<()> {
    plain(Families::V4, Family::V4)
}

fn plain_tcp_clients_ipv6() -> Result<()> {
    plain(Families::V6, Family::V6)
}

fn plain(families: Families, family: Family) -> Result<()> {
    transparent(Lab::builder().families(families).build()?, |rig| {
        let client = tcp_client(rig, family);
        for job in [
            Job::down(1),
            Job::both(20_000_000),
            Job::new(Mode::UpThenDown, 1_000_000, 1_000_000),
            Job::ping_pong(50, 100),
        ] {
            rig.run_client(&client, &job)?;
        }
        let report = rig.attempt(&client, &Job::new(Mode::ServerReset, 0, 100_000))?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        Ok(Expect::clean()
            .own("plain_syn", "a client without MPTCP")
            .own(SERVER_RESET, "the server resets")
            .exactly(End::Client, "MPCapableSYNTX", 0))
    })
}

/// FlexCP steps aside: both ends are MPTCP, and the join goes to the server itself.
fn server_that_speaks_mptcp_itself() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let service = daemon::transparent(&lab, &[]);
    with(lab, &service, ServeOptions::mptcp(PORT), |rig| {
        rig.run(Family::V4, &Job::down(10_000_000))?;
        rig.run(Family::V4, &Job::up(10_000_000))?;
        ensure!(rig.counter("end_to_end")? == 2);
        const ASIDE: &str = "FlexCP steps aside";
        Ok(Expect::clean()
            .own("end_to_end", ASIDE)
            .own("mp_join_no_token", ASIDE)
            .exactly(End::Client, "MPJoinSynAckRx", 2)
            .exactly(End::Servers, "MPJoinAckRx", 2)
            // What the kernel's own MPTCP does to itself without FlexCP, too.
            .allow_all(WINDOW_OVERRUN)
            .allow_all(&["NoDSSInWindow", "RcvWndConflict"]))
    })
}

fn option_stripped_from_syn() -> Result<()> {
    let expect = Expect::clean().own("plain_syn", STRIPPED).exactly(
        End::Client,
        "MPCapableFallbackSYNACK",
        JOBS,
    );
    stripped(&[Strip::Syn], expect, |_| Ok(()))
}

fn option_stripped_from_synack() -> Result<()> {
    let expect = Expect::clean().own("fallback_handshake", STRIPPED).exactly(
        End::Client,
        "MPCapableFallbackSYNACK",
        JOBS,
    );
    stripped(&[Strip::SynAck], expect, |_| Ok(()))
}

/// The keys come again with the client's first data; from a client that only
/// listens they never come.
fn option_stripped_from_third_ack() -> Result<()> {
    stripped(
        &[Strip::ThirdAck],
        Expect::clean()
            .own("fallback_handshake", STRIPPED)
            .allow_all(FALLBACKS),
        |_| Ok(()),
    )
}

fn option_stripped_from_all_down_after_some_bytes() -> Result<()> {
    let strip = Strip::After(Direction::Down, 300_000);
    stripped_midway(strip)
}

fn option_stripped_from_all_up_after_some_bytes() -> Result<()> {
    let strip = Strip::After(Direction::Up, 300_000);
    stripped_midway(strip)
}

fn option_stripped_from_all_both_ways_at_once() -> Result<()> {
    let strip = Strip::AllAfter(500_000);
    stripped_midway(strip)
}

fn option_stripped_from_mappings_down() -> Result<()> {
    let strip = Strip::Data(Direction::Down);
    stripped_midway(strip)
}

const STRIPPED: &str = "a middlebox removes the option";

/// Jobs in [`stripped`].
const JOBS: i64 = 3;

/// One link, and a middlebox on it that removes options: the bytes arrive all the same.
fn stripped(strips: &[Strip], expect: Expect, check: fn(&Rig) -> Result<()>) -> Result<()> {
    let jobs = [
        Job::down(2_000_000),
        Job::up(2_000_000),
        Job::both(2_000_000),
    ];
    stripped_in(&jobs, strips, expect, check)
}

/// Options that go in mid-stream. No bulk upload: a Linux 6.18 client that uploads does not come through
/// that towards a kernel MPTCP server either (it stalls; downloads between two kernels get wrong bytes).
fn stripped_midway(strip: Strip) -> Result<()> {
    let jobs = [Job::down(2_000_000), Job::ping_pong(200, 20_000)];
    let expect = Expect::clean()
        .own("fallback_established", STRIPPED)
        .allow_all(FALLBACKS);
    stripped_in(&jobs, &[strip], expect, |_| Ok(()))
}

fn stripped_in(
    jobs: &[Job],
    strips: &[Strip],
    expect: Expect,
    check: fn(&Rig) -> Result<()>,
) -> Result<()> {
    transparent(Lab::builder().access_links(1).build()?, |rig| {
        let mut hit = 0;
        for job in jobs {
            // Anew each time: what counts bytes starts again from 0.
            rig.lab.heal(1)?;
            for strip in strips {
                rig.lab.strip(1, *strip)?;
            }
            rig.run(Family::V4, job)?;
            hit += rig.lab.fault_hits(1, Direction::Up)?;
            hit += rig.lab.fault_hits(1, Direction::Down)?;
        }
        ensure!(hit > 0, "{strips:?} hit no packet");
        check(rig)?;
        Ok(expect)
    })
}

/// Data without a mapping on a joined subflow: that subflow goes, the connection stays.
fn option_stripped_on_the_second_link_only() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
    transparent(lab, |rig| {
        rig.lab.strip(2, Strip::After(Direction::Up, 500_000))?;
        rig.run(Family::V4, &Job::up(10_000_000))?;
        ensure!(rig.lab.fault_hits(2, Direction::Up)? > 0);
        Ok(Expect::clean()
            .disturbed("a middlebox removes the option: what came without is dropped")
            .own("no_mapping", STRIPPED)
            .own("no_subflow", STRIPPED)
            .own("mp_rst_tx", STRIPPED)
            .own("mp_fail_rx", STRIPPED)
            .allow_at(End::Client, RENEGED)
            .allow("MPRstRx")
            .allow("MPRstTx")
            .allow("MPFailRx"))
    })
}

/// The join never comes about; the connection does not mind.
fn join_option_stripped_on_the_second_link() -> Result<()> {
    transparent(Lab::builder().build()?, |rig| {
        rig.lab.strip(2, Strip::Syn)?;
        rig.run(Family::V4, &Job::ping_pong(10, 100_000).pause_ms(20))?;
        ensure!(rig.lab.fault_hits(2, Direction::Up)? > 0);
        Ok(Expect::clean()
            .own("plain_syn", STRIPPED)
            .exactly(End::Client, "MPJoinSynAckRx", 0)
            .allow("MPRstTx"))
    })
}
