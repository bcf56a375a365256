//! Ends of connections, regular and not, and connections that never begin.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode};
use flexcp_lab::{End, Expect, Family, Lab, SERVER_RESET};

use crate::rig::{PORT, Rig, short, transparent};

crate::cases!("close":
    client_half_closes_first,
    server_half_closes_first,
    nothing_is_sent_at_all,
    idle_connection_stays_up,
    server_reset_before_any_data,
    server_reset_after_data,
    server_reset_of_many_subflows,
    client_abort_in_the_middle,
    client_killed_in_the_middle,
    refused_port,
    unreachable_server,
    server_that_never_answers,
);

fn two_links() -> Result<Lab> {
    Lab::builder().build()
}

fn client_half_closes_first() -> Result<()> {
    half_close(Mode::UpThenDown)
}

fn server_half_closes_first() -> Result<()> {
    half_close(Mode::DownThenUp)
}

fn half_close(mode: Mode) -> Result<()> {
    transparent(two_links()?, |rig| {
        let sizes = [
            (1, 1),
            (1, 2_000_000),
            (2_000_000, 1),
            (3_000_000, 3_000_000),
        ];
        for (number, (up, down)) in (1..).zip(sizes) {
            rig.run(Family::V4, &Job::new(mode, up, down))?;
            let served = rig.server.wait_for(number, Duration::from_secs(3))?;
            let served = &served[number - 1];
            ensure!(
                served.failure.is_none() && served.up == up,
                "server: {served:?}"
            );
        }
        Ok(short())
    })
}

fn nothing_is_sent_at_all() -> Result<()> {
    transparent(two_links()?, |rig| {
        for _ in 0..10 {
            rig.run(Family::V4, &Job::hold(0))?;
        }
        rig.run(Family::V4, &Job::hold(300))?;
        let served = rig.server.wait_for(11, Duration::from_secs(3))?;
        ensure!(
            served.iter().all(|report| report.failure.is_none()),
            "{served:?}"
        );
        Ok(short())
    })
}

fn idle_connection_stays_up() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.run(Family::V4, &Job::ping_pong(2, 1000).pause_ms(3000))?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn server_reset_before_any_data() -> Result<()> {
    server_reset(two_links()?, 0)
}

fn server_reset_after_data() -> Result<()> {
    server_reset(two_links()?, 1_000_000)
}

fn server_reset_of_many_subflows() -> Result<()> {
    let builder = Lab::builder().access_links(4);
    let lab = (1..=4)
        .fold(builder, |builder, link| builder.rate_mbit(link, 100))
        .build()?;
    server_reset(lab, 5_000_000)
}

/// A bare RST would leave the client's application waiting for 60 s.
fn server_reset(lab: Lab, bytes: u64) -> Result<()> {
    transparent(lab, |rig| {
        let report = rig.attempt(
            &rig.client(Family::V4),
            &Job::new(Mode::ServerReset, 0, bytes),
        )?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        ensure!(report.down == bytes, "{report:?}");
        ensure!(report.reset_us < Some(500_000), "{report:?}");
        Ok(short()
            .own("mp_fastclose_tx", "the server resets")
            .own(SERVER_RESET, "the server resets")
            .at_least(End::Client, "MPFastcloseRx", 1))
    })
}

fn client_abort_in_the_middle() -> Result<()> {
    transparent(two_links()?, |rig| {
        let job = Job::new(Mode::ClientAbort, 1_000_000, 1_000_000_000);
        rig.run(Family::V4, &job)?;
        server_sees_reset(rig)?;
        Ok(short()
            .own(
                SERVER_RESET,
                "the client gives up, and FlexCP tells the server",
            )
            .own("no_connection", LATE)
            .own("blind_reset", LATE)
            .allow("MPFastcloseTx"))
    })
}

/// The client's process dies with data unread.
fn client_killed_in_the_middle() -> Result<()> {
    transparent(two_links()?, |rig| {
        let mut command = rig.lab.client().command(env!("CARGO_BIN_EXE_lab"));
        let server = rig.lab.server_socket(1, Family::V4, PORT).to_string();
        command.args([
            "transfer",
            "get",
            &server,
            "1000000000",
            "--read-rate",
            "1000000",
        ]);
        let mut client = command.stdout(std::process::Stdio::null()).spawn()?;
        thread::sleep(Duration::from_millis(500));
        client.kill()?;
        client.wait()?;
        server_sees_reset(rig)?;
        Ok(short()
            .own(
                SERVER_RESET,
                "the client gives up, and FlexCP tells the server",
            )
            .own("no_connection", LATE)
            .own("blind_reset", LATE)
            .allow("MPFastcloseTx"))
    })
}

/// Why packets come for a connection that is gone.
const LATE: &str = "what was on its way when the client gave up";

fn server_sees_reset(rig: &Rig) -> Result<()> {
    let served = rig.server.wait_for(1, Duration::from_secs(2))?;
    ensure!(
        matches!(served[0].failure_kind(), "ECONNRESET" | "EPIPE"),
        "{:?}",
        served[0]
    );
    Ok(())
}

fn refused_port() -> Result<()> {
    transparent(two_links()?, |rig| {
        let client = Client::mptcp(rig.lab.server_socket(1, Family::V4, PORT - 1));
        for _ in 0..3 {
            let report = rig.attempt(&client, &Job::down(1))?;
            ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
            ensure!(report.connect_us < 500_000, "{report:?}");
        }
        Ok(Expect::clean())
    })
}

/// No such host behind the router: ICMP host unreachable comes through.
fn unreachable_server() -> Result<()> {
    transparent(two_links()?, |rig| {
        let client = Client::mptcp(SocketAddr::from(([10, 9, 1, 77], PORT)));
        let report = rig.attempt(&client.patience(Duration::from_secs(8)), &Job::down(1))?;
        ensure!(report.failure_kind() == "EHOSTUNREACH", "{report:?}");
        Ok(Expect::clean()
            .disturbed("nobody answers")
            .own("plain_syn", "the client's last SYN does without MPTCP"))
    })
}

/// SYNs are lost behind FlexCP: the client retries, and then its kernel gives up MPTCP.
fn server_that_never_answers() -> Result<()> {
    transparent(two_links()?, |rig| {
        rig.lab.server(1).nft(
            "table inet mute { chain input { type filter hook input priority 0; \
             tcp dport 5000 drop; }; }",
        )?;
        let client = rig.client(Family::V4).patience(Duration::from_secs(2));
        let report = rig.attempt(&client, &Job::down(1))?;
        ensure!(report.failure_kind() == "timeout", "{report:?}");
        rig.lab.server(1).nft("delete table inet mute")?;
        rig.run(Family::V4, &Job::both(1_000_000))?;
        Ok(short()
            .disturbed("the server is mute at first")
            .own("plain_syn", "the client's last SYN does without MPTCP"))
    })
}
