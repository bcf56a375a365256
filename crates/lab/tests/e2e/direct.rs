//! The lab on its own: MPTCP from kernel to kernel through a plain router.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, ServeOptions, Server};
use flexcp_lab::{
    Cut, Direction, End, Expect, FALLBACKS, Families, Family, Lab, Oracle, Strip, WINDOW_OVERRUN,
    interfaces,
};

crate::cases!("lab":
    download_over_two_links_joins_and_stays_mptcp,
    upload_uses_both_links,
    every_mode_moves_every_byte,
    ipv6_joins_too,
    mixed_families_join_after_an_announcement,
    silent_cut_moves_the_transfer_to_the_other_link,
    silent_cut_of_the_only_link_stalls_until_restored,
    link_down_and_up_is_survived,
    carrier_loss_is_survived,
    strip_from_syn_gives_plain_tcp,
    strip_from_synack_falls_back,
    strip_from_third_ack_falls_back,
    strip_of_all_after_some_bytes_falls_back,
    server_reset_is_seen_as_econnreset,
    client_abort_is_seen_by_the_server,
    refused_port_is_econnrefused,
    tcp_client_of_mptcp_server_stays_tcp,
    wrong_byte_is_found,
    thousand_connections_at_once,
    lab_without_a_wire_works,
    lab_without_offloads_works,
    capture_has_both_sides_of_the_proxy,
    nothing_stays_behind,
);

const PORT: u16 = 5000;

/// A lab with an MPTCP server, and a client for it.
fn direct(lab: &Lab, family: Family) -> Result<(Server, Client)> {
    let server = Server::start(lab.server(1), ServeOptions::mptcp(PORT))?;
    Ok((server, Client::mptcp(lab.server_socket(1, family, PORT))))
}

fn two_links() -> Result<Lab> {
    Lab::builder().build()
}

/// Nothing of note, apart from what the kernel's MPTCP does to itself.
///
/// With data on several subflows its receiver's window is now and then overrun.
fn quiet() -> Expect {
    Expect::clean()
        .allow_all(WINDOW_OVERRUN)
        .allow("NoDSSInWindow")
        .allow("RcvWndConflict")
}

/// Joined so often, and nothing else of note.
fn joined(times: i64) -> Expect {
    quiet()
        .exactly(End::Client, "MPJoinSynAckRx", times)
        .exactly(End::Servers, "MPJoinAckRx", times)
}

fn download_over_two_links_joins_and_stays_mptcp() -> Result<()> {
    let lab = two_links()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::down(20_000_000))?.ok()?;
    oracle.check(&lab, &joined(1))
}

fn upload_uses_both_links() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::up(10_000_000))?.ok()?;
    let bytes = interfaces(lab.proxy())?;
    for link in ["a1", "a2"] {
        ensure!(
            bytes[link].rx > 1_000_000,
            "{link} carried {} bytes up",
            bytes[link].rx
        );
    }
    oracle.check(&lab, &joined(1))
}

fn every_mode_moves_every_byte() -> Result<()> {
    let lab = two_links()?;
    let (server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    let jobs = [
        Job::down(1),
        Job::down(0),
        Job::up(1),
        Job::both(3_000_000),
        Job::new(Mode::UpThenDown, 100_001, 200_003),
        Job::new(Mode::DownThenUp, 100_001, 200_003),
        Job::ping_pong(100, 333),
        Job::hold(20),
    ];
    for (number, job) in jobs.iter().enumerate() {
        let report = client.run_in(lab.client(), job)?;
        report.ok()?;
        ensure!(
            report.down
                == if job.mode == Mode::PingPong {
                    33_300
                } else {
                    job.down
                }
        );
        let served = server.wait_for(number + 1, Duration::from_secs(5))?;
        ensure!(
            served[number].failure.is_none(),
            "server: {:?}",
            served[number]
        );
        ensure!(
            served[number].up == report.up,
            "server: {:?}",
            served[number]
        );
    }
    let slow = client.clone().receive_buffer(16 << 10).read_rate(4_000_000);
    let report = slow.run_in(lab.client(), &Job::down(1_000_000))?;
    report.ok()?;
    ensure!(
        report.total_us > 200_000,
        "a slow reader took only {} us",
        report.total_us
    );
    // A connection may end before its join has gone through.
    oracle.check(&lab, &quiet().allow("MPRstTx").allow("MPRstRx"))
}

fn ipv6_joins_too() -> Result<()> {
    let lab = Lab::builder()
        .access_links(4)
        .families(Families::V6)
        .build()?;
    let (_server, client) = direct(&lab, Family::V6)?;
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::both(20_000_000))?.ok()?;
    oracle.check(&lab, &joined(3))
}

fn mixed_families_join_after_an_announcement() -> Result<()> {
    for (first, second) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let lab = Lab::builder()
            .families(Families::Both)
            .endpoints(Families::Neither)
            .build()?;
        let (_server, client) = direct(&lab, first)?;
        let announced = lab.server_addr(1, second);
        lab.server(1)
            .ip(&format!("mptcp endpoint add {announced} dev eth0 signal"))?;
        let oracle = Oracle::start(&lab)?;
        let job = Job::ping_pong(20, 1000).pause_ms(10);
        client.mapped().run_in(lab.client(), &job)?.ok()?;
        let expect =
            joined(1)
                .exactly(End::Client, "AddAddr", 1)
                .exactly(End::Servers, "EchoAdd", 1);
        oracle.check(&lab, &expect)?;
    }
    Ok(())
}

fn silent_cut_moves_the_transfer_to_the_other_link() -> Result<()> {
    for link in [1, 2] {
        let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
        let (_server, client) = direct(&lab, Family::V4)?;
        let oracle = Oracle::start(&lab)?;
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| client.run_in(lab.client(), &Job::down(20_000_000)));
            thread::sleep(Duration::from_millis(400));
            lab.cut(link, Cut::Silent)?;
            run.join().expect("the client does not panic")
        })?;
        report.ok()?;
        let hits = lab.fault_hits(link, Direction::Up)? + lab.fault_hits(link, Direction::Down)?;
        ensure!(hits > 0, "the cut of link {link} hit nothing");
        ensure!(
            report.longest_gap() < Duration::from_secs(2),
            "{:?}",
            report.longest_gap()
        );
        oracle.check(&lab, &joined(1))?;
    }
    Ok(())
}

fn silent_cut_of_the_only_link_stalls_until_restored() -> Result<()> {
    let lab = Lab::builder().access_links(1).rate_mbit(1, 100).build()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    let report = thread::scope(|scope| {
        let run = scope.spawn(|| client.run_in(lab.client(), &Job::down(8_000_000)));
        thread::sleep(Duration::from_millis(200));
        lab.cut(1, Cut::SilentDown)?;
        thread::sleep(Duration::from_millis(500));
        lab.restore(1)?;
        run.join().expect("the client does not panic")
    })?;
    report.ok()?;
    ensure!(
        report.longest_gap() > Duration::from_millis(400),
        "{:?}",
        report.longest_gap()
    );
    oracle.check(&lab, &quiet())
}

fn link_down_and_up_is_survived() -> Result<()> {
    cut_and_restore(Cut::LinkDown)
}

fn carrier_loss_is_survived() -> Result<()> {
    cut_and_restore(Cut::NoCarrier)
}

fn cut_and_restore(cut: Cut) -> Result<()> {
    let lab = Lab::builder()
        .families(Families::Both)
        .rate_mbit(1, 100)
        .rate_mbit(2, 100)
        .build()?;
    let _server = Server::start(lab.server(1), ServeOptions::mptcp(PORT))?;
    for family in [Family::V4, Family::V6] {
        let client = Client::mptcp(lab.server_socket(1, family, PORT));
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| client.run_in(lab.client(), &Job::down(20_000_000)));
            thread::sleep(Duration::from_millis(400));
            lab.cut(2, cut)?;
            thread::sleep(Duration::from_millis(400));
            lab.restore(2)?;
            run.join().expect("the client does not panic")
        })?;
        report.ok()?;
        // The restored link is as good as new.
        let oracle = Oracle::start(&lab)?;
        let from_two = client.from(lab.client_addr(2, family));
        from_two.run_in(lab.client(), &Job::down(100_000))?.ok()?;
        // The subflow of before may only now be given up.
        oracle.check(&lab, &quiet().allow("MPRstTx").allow("MPRstRx"))?;
    }
    Ok(())
}

fn strip_from_syn_gives_plain_tcp() -> Result<()> {
    let expect = quiet()
        .exactly(End::Client, "MPCapableFallbackSYNACK", 1)
        .exactly(End::Servers, "MPCapableSYNRX", 0);
    stripped(Strip::Syn, Direction::Up, &expect)
}

fn strip_from_synack_falls_back() -> Result<()> {
    let expect = quiet()
        .exactly(End::Client, "MPCapableFallbackSYNACK", 1)
        .exactly(End::Servers, "MPCapableFallbackACK", 1)
        .exactly(End::Servers, "MPCapableSYNRX", 1);
    stripped(Strip::SynAck, Direction::Down, &expect)
}

fn strip_from_third_ack_falls_back() -> Result<()> {
    // The client carries the keys again on its first data: nothing is lost.
    stripped(
        Strip::ThirdAck,
        Direction::Up,
        &quiet().allow_all(FALLBACKS),
    )
}

fn strip_of_all_after_some_bytes_falls_back() -> Result<()> {
    let expect = quiet()
        .at_least(End::Client, "DssFallback", 1)
        .allow_all(FALLBACKS);
    stripped(Strip::AllAfter(100_000), Direction::Down, &expect)
}

/// One link, one strip: the bytes arrive all the same.
fn stripped(strip: Strip, direction: Direction, expect: &Expect) -> Result<()> {
    // Slow, or the kernel's sender has data on its way twice, and the stream is
    // wrong after a fallback in its middle: its own bug, at full speed only.
    let lab = Lab::builder().access_links(1).rate_mbit(1, 100).build()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    lab.strip(1, strip)?;
    let oracle = Oracle::start(&lab)?;
    // Not in bulk: after a fallback in mid-stream the kernel's own MPTCP sender
    // misses the data ACKs and sends data again, which its receiver, fallen back,
    // takes for new data.
    let job = Job::ping_pong(300, 1000);
    client.run_in(lab.client(), &job)?.ok()?;
    ensure!(lab.fault_hits(1, direction)? > 0, "{strip:?} hit no packet");
    oracle.check(&lab, expect)
}

fn server_reset_is_seen_as_econnreset() -> Result<()> {
    let lab = two_links()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    for bytes in [0, 1, 1_000_000] {
        let job = Job::new(Mode::ServerReset, 0, bytes);
        let report = client.run_in(lab.client(), &job)?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        ensure!(report.down == bytes, "{report:?}");
        ensure!(report.reset_us < Some(1_000_000), "{report:?}");
    }
    let expect = quiet()
        // One for each subflow there is by then.
        .between(End::Client, "MPFastcloseRx", 3..=6)
        .between(End::Servers, "MPFastcloseTx", 3..=6)
        .allow("MPRstTx")
        .allow("MPRstRx");
    oracle.check(&lab, &expect)
}

fn client_abort_is_seen_by_the_server() -> Result<()> {
    let lab = two_links()?;
    let (server, client) = direct(&lab, Family::V4)?;
    let job = Job::new(Mode::ClientAbort, 1_000_000, 1_000_000_000);
    let report = client.run_in(lab.client(), &job)?;
    report.ok()?;
    let served = server.wait_for(1, Duration::from_secs(2))?;
    ensure!(
        matches!(served[0].failure_kind(), "ECONNRESET" | "EPIPE"),
        "{:?}",
        served[0]
    );
    Ok(())
}

fn refused_port_is_econnrefused() -> Result<()> {
    let lab = two_links()?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, 4999));
    let report = client.run_in(lab.client(), &Job::down(1))?;
    ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
    Ok(())
}

fn tcp_client_of_mptcp_server_stays_tcp() -> Result<()> {
    let lab = two_links()?;
    let _server = Server::start(lab.server(1), ServeOptions::mptcp(PORT).banner(500))?;
    let client = Client::tcp(lab.server_socket(1, Family::V4, PORT)).banner(500);
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::both(1_000_000))?.ok()?;
    let expect = quiet().exactly(End::Client, "MPCapableSYNTX", 0).exactly(
        End::Servers,
        "MPCapableSYNRX",
        0,
    );
    oracle.check(&lab, &expect)
}

fn wrong_byte_is_found() -> Result<()> {
    let lab = two_links()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    // The banner was never sent: what comes is something else.
    let client = client.banner(10).patience(Duration::from_millis(300));
    let report = client.run_in(lab.client(), &Job::down(100))?;
    ensure!(report.failure_kind() == "timeout", "{report:?}");

    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT + 1).banner(64))?;
    let client = Client::tcp(lab.server_socket(1, Family::V4, PORT + 1));
    let report = client.run_in(lab.client(), &Job::down(100))?;
    ensure!(report.failure_kind() == "data", "{report:?}");
    ensure!(report.down == 0, "{report:?}");
    Ok(())
}

fn thousand_connections_at_once() -> Result<()> {
    let lab = two_links()?;
    let (server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    let job = Job::ping_pong(5, 4000).pause_ms(100);
    let reports = client.run_many_in(lab.client(), 1000, &job)?;
    ensure!(reports.len() == 1000);
    for report in &reports {
        report.ok()?;
    }
    server.wait_for(1000, Duration::from_secs(10))?;
    let expect = quiet()
        .exactly(End::Client, "MPCapableSYNACKRX", 1000)
        .exactly(End::Client, "MPJoinSynAckRx", 1000)
        .allow("MPRstTx")
        .allow("MPRstRx");
    oracle.check(&lab, &expect)
}

fn lab_without_a_wire_works() -> Result<()> {
    let lab = Lab::builder()
        .wire(false)
        .rate_mbit(1, 500)
        .rate_mbit(2, 500)
        .build()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::both(20_000_000))?.ok()?;
    oracle.check(&lab, &joined(1))?;
    ensure!(lab.cut(1, Cut::Silent).is_err());
    Ok(())
}

fn lab_without_offloads_works() -> Result<()> {
    let builder = Lab::builder().offloads(false).mtu(2, 1400);
    let lab = builder.rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let oracle = Oracle::start(&lab)?;
    client.run_in(lab.client(), &Job::down(30_000_000))?.ok()?;
    oracle.check(&lab, &joined(1))
}

fn capture_has_both_sides_of_the_proxy() -> Result<()> {
    let lab = two_links()?;
    let (_server, client) = direct(&lab, Family::V4)?;
    let capture = lab.capture("case")?;
    client
        .run_in(lab.client(), &Job::ping_pong(10, 1000).pause_ms(10))?
        .ok()?;
    let files = capture.stop()?;
    ensure!(files.len() == 3, "{files:?}");
    for file in files {
        // More than the file's header.
        ensure!(std::fs::metadata(&file)?.len() > 500, "{file:?} is empty");
    }
    Ok(())
}

fn nothing_stays_behind() -> Result<()> {
    let lab = two_links()?;
    let prefix = lab.prefix().to_owned();
    let dir = lab.dir().to_owned();
    let mut sleeper = lab.client().command("sleep").arg("1000").spawn()?;
    ensure!(namespaces(&prefix)? == 4);
    // It is not in the namespace at once.
    while lab
        .client()
        .ip(&format!("netns pids {}", lab.client().name()))?
        .is_empty()
    {
        thread::sleep(Duration::from_millis(2));
    }
    drop(lab);
    ensure!(namespaces(&prefix)? == 0);
    ensure!(!dir.exists());
    ensure!(!sleeper.wait()?.success());
    Ok(())
}

fn namespaces(prefix: &str) -> Result<usize> {
    let ours = format!("{prefix}-");
    let names = std::fs::read_dir("/run/netns")?
        .flatten()
        .map(|entry| entry.file_name());
    Ok(names
        .filter(|name| name.to_string_lossy().starts_with(&ours))
        .count())
}
