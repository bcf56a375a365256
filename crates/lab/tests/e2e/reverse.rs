//! Reverse mode: clients connect to FlexCP, back ends see FlexCP's address.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, ServeOptions, Server};
use flexcp_lab::{Cut, End, Expect, Families, Family, Lab, SENT_AGAIN, SERVER_RESET, daemon};

use crate::rig::{PORT, Rig, config_of_workers, lively, short, until, with, with_config};

crate::cases!("reverse":
    bytes_both_ways_over_two_links,
    backend_sees_flexcps_address,
    backends_are_taken_in_turn,
    backend_that_refuses_is_skipped,
    all_backends_refuse,
    silent_backend_is_passed_by_and_taken_again,
    silent_and_refusing_backends_are_passed_by,
    plain_client_passes_a_silent_backend_by,
    each_worker_finds_out_for_itself,
    announced_address_is_joined,
    cut_while_downloading,
    ipv6_listener,
    plain_tcp_client,
    server_reset_arrives,
    many_connections_at_once,
    two_services_side_by_side,
    backend_on_the_same_host,
    backend_on_the_same_host_ipv6,
    backend_on_the_loopback_device,
    backend_on_the_same_host_that_refuses,
    backends_on_the_same_host_and_elsewhere,
);

const LISTEN: u16 = 8080;

fn listen_on(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

fn service(lab: &Lab, family: Family, backends: &[u8], announce: &[String]) -> String {
    let backends: Vec<_> = backends
        .iter()
        .map(|number| lab.server_socket(*number, family, PORT).to_string())
        .collect();
    daemon::reverse(
        "shop",
        &[listen_on(lab, family).to_string()],
        &backends,
        announce,
    )
}

/// A case with one back end, FlexCP listening on the first link's address.
fn reverse(lab: Lab, family: Family, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let service = service(&lab, family, &[1], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

fn client(rig: &Rig, family: Family) -> Client {
    Client::mptcp(listen_on(&rig.lab, family))
}

fn paced() -> Result<Lab> {
    Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()
}

fn bytes_both_ways_over_two_links() -> Result<()> {
    reverse(paced()?, Family::V4, |rig| {
        for job in [
            Job::down(10_000_000),
            Job::up(10_000_000),
            Job::both(10_000_000),
        ] {
            rig.run_client(&client(rig, Family::V4), &job)?;
        }
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

fn backend_sees_flexcps_address() -> Result<()> {
    reverse(Lab::builder().build()?, Family::V4, |rig| {
        rig.run_client(&client(rig, Family::V4), &Job::both(1000))?;
        let served = rig.server.wait_for(1, Duration::from_secs(2))?;
        ensure!(
            served[0].peer.ip().to_string() == "10.9.1.1",
            "{:?}",
            served[0]
        );
        Ok(short())
    })
}

fn backends_are_taken_in_turn() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let second = Server::start(lab.server(2), ServeOptions::tcp(PORT))?;
    let service = service(&lab, Family::V4, &[1, 2], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        for _ in 0..10 {
            rig.run_client(&client(rig, Family::V4), &Job::both(10_000))?;
        }
        let (one, two) = (rig.server.accepted(), second.accepted());
        ensure!(
            (one, two) == (5, 5),
            "the back ends got {one} and {two} of 10 connections"
        );
        Ok(short())
    })
}

fn backend_that_refuses_is_skipped() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let service = service(&lab, Family::V4, &[2, 1], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        for _ in 0..6 {
            rig.run_client(&client(rig, Family::V4), &Job::both(10_000))?;
        }
        ensure!(rig.counter("backend_skipped")? >= 1);
        Ok(refused("a back end refuses", short()))
    })
}

fn all_backends_refuse() -> Result<()> {
    let lab = Lab::builder().servers(3).build()?;
    let service = service(&lab, Family::V4, &[2, 3], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let report = rig.attempt(&client(rig, Family::V4), &Job::down(1))?;
        ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
        Ok(refused("all back ends refuse", Expect::clean()))
    })
}

/// Back ends are marked, and connections leave them.
fn refused(why: &'static str, expect: Expect) -> Expect {
    expect
        .own("backend_skipped", why)
        .own("backend_marked", why)
}

/// A back end that is there and says nothing: what comes for it is dropped until [`speak`].
fn be_silent(lab: &Lab, number: u8) -> Result<()> {
    let drop = format!(
        "table inet silence {{\n chain input {{\n  type filter hook input priority 0\n  tcp dport {PORT} drop\n }}\n}}\n"
    );
    lab.server(number).nft(&drop)
}

fn speak(lab: &Lab, number: u8) -> Result<()> {
    lab.server(number).nft("delete table inet silence")
}

/// Connections one after the other: the first may wait for a back end that is dead, no other does.
fn connects_fast(rig: &Rig, client: &Client, count: usize) -> Result<()> {
    let mut times = vec![];
    for _ in 0..=count {
        let report = rig.run_client(client, &Job::both(10_000))?;
        times.push(Duration::from_micros(report.connect_us));
    }
    let first = times.remove(0);
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    ensure!(
        first < Duration::from_millis(900),
        "the first took {first:?}"
    );
    ensure!(
        median < Duration::from_millis(300) && longest < Duration::from_millis(900),
        "connecting took {times:?}"
    );
    Ok(())
}

/// Address, reason and number of workers of each marked back end, as `show status` has them.
fn marked(rig: &Rig) -> Result<Vec<(String, String, u64)>> {
    let status = rig.flexcp.show_json("status")?;
    let services = status["services"].as_array().into_iter().flatten();
    let marked = services.flat_map(|service| service["marked_backends"].as_array());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let facts = marked.flatten().map(|marked| {
        let workers = marked["workers"].as_u64().unwrap_or_default();
        (text(&marked["address"]), text(&marked["reason"]), workers)
    });
    Ok(facts.collect())
}

fn is_state(rig: &Rig, state: &str) -> Result<bool> {
    Ok(rig.flexcp.show_json("status")?["state"] == state)
}

fn silent_backend_is_passed_by_and_taken_again() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let silent = lab.server_socket(2, Family::V4, PORT).to_string();
    let second = Server::start(lab.server(2), ServeOptions::tcp(PORT))?;
    be_silent(&lab, 2)?;
    let service = service(&lab, Family::V4, &[2, 1], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let client = client(rig, Family::V4);
        connects_fast(rig, &client, 6)?;
        let expected = [(silent.clone(), "silent".to_owned(), 1)];
        ensure!(marked(rig)? == expected, "{:?}", marked(rig)?);
        ensure!(rig.counter("backend_skipped")? == 1);
        until("the mark is told", || is_state(rig, "degraded"))?;
        let line = format!("back end {silent} of service shop does not answer");
        let told = |start: &str| rig.flexcp.log().matches(&format!("{start}{line}")).count();
        ensure!(told("") == 1, "{}", rig.flexcp.log());
        let text = rig.flexcp.show("status")?;
        ensure!(
            text.contains(&format!("  back end {silent} marked")),
            "{text}"
        );

        ensure!(second.accepted() == 0);
        speak(&rig.lab, 2)?;
        until("the back end is back", || Ok(marked(rig)?.is_empty()))?;
        until("that is told", || is_state(rig, "ready"))?;
        ensure!(told("over: ") == 1, "{}", rig.flexcp.log());
        ensure!(second.accepted() == 0, "a probe was taken for a connection");
        for _ in 0..4 {
            rig.run_client(&client, &Job::both(10_000))?;
        }
        ensure!(second.accepted() == 2, "{}", second.accepted());
        ensure!(rig.counter("backend_skipped")? == 1 && rig.counter("backend_back")? == 1);
        Ok(refused("a back end is silent", short()))
    })
}

fn silent_and_refusing_backends_are_passed_by() -> Result<()> {
    let lab = Lab::builder().servers(3).build()?;
    let ends = [2, 3].map(|number| lab.server_socket(number, Family::V4, PORT).to_string());
    be_silent(&lab, 2)?;
    let service = service(&lab, Family::V4, &[2, 3, 1], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        connects_fast(rig, &client(rig, Family::V4), 6)?;
        let reasons = ["silent", "refused"].map(str::to_owned);
        let expected: Vec<_> = ends.into_iter().zip(reasons).collect();
        let found: Vec<_> = marked(rig)?
            .into_iter()
            .map(|(to, why, _)| (to, why))
            .collect();
        ensure!(found == expected, "{found:?}");
        let served = rig.server.wait_for(7, Duration::from_secs(2))?;
        ensure!(served.len() == 7);
        ensure!(rig.counter("backend_skipped")? == 2);
        Ok(refused("two back ends are dead", short()))
    })
}

fn plain_client_passes_a_silent_backend_by() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    be_silent(&lab, 2)?;
    let service = service(&lab, Family::V4, &[2, 1], &[]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let client = Client::tcp(listen_on(&rig.lab, Family::V4));
        connects_fast(rig, &client, 6)?;
        let expect = Expect::clean().own("plain_syn", "a client without MPTCP");
        Ok(refused("a back end is silent", expect))
    })
}

/// Probes and their answers meet the worker that has sent them.
fn each_worker_finds_out_for_itself() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let second = Server::start(lab.server(2), ServeOptions::tcp(PORT))?;
    be_silent(&lab, 2)?;
    let services = service(&lab, Family::V4, &[2, 1], &[]);
    let config = config_of_workers(&lab, 2, "owner", &services);
    with_config(lab, &config, ServeOptions::tcp(PORT), |rig| {
        let client = client(rig, Family::V4);
        let both = || Ok(marked(rig)?.iter().any(|(.., workers)| *workers == 2));
        for _ in 0..12 {
            let report = rig.run_client(&client, &Job::both(10_000))?;
            ensure!(report.connect_us < 900_000, "{report:?}");
        }
        until("both workers have marked it", both)?;
        ensure!(rig.counter("backend_skipped")? == 2);
        speak(&rig.lab, 2)?;
        until("the back end is back", || Ok(marked(rig)?.is_empty()))?;
        ensure!(rig.counter("backend_back")? == 2);
        for _ in 0..8 {
            rig.run_client(&client, &Job::both(10_000))?;
        }
        ensure!(second.accepted() > 0);
        Ok(refused("a back end is silent", short()))
    })
}

fn announced_address_is_joined() -> Result<()> {
    let builder = Lab::builder().endpoints(Families::Neither);
    let lab = builder.rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let announce = [lab.proxy_addr(2, Family::V4).to_string()];
    let service = service(&lab, Family::V4, &[1], &announce);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        rig.run_client(&client(rig, Family::V4), &Job::both(10_000_000))?;
        Ok(Expect::clean().exactly(End::Client, "AddAddr", 1).exactly(
            End::Client,
            "MPJoinSynAckRx",
            1,
        ))
    })
}

fn cut_while_downloading() -> Result<()> {
    reverse(paced()?, Family::V4, |rig| {
        let report = std::thread::scope(|scope| {
            let run =
                scope.spawn(|| rig.run_client(&client(rig, Family::V4), &Job::down(20_000_000)));
            std::thread::sleep(Duration::from_millis(300));
            rig.lab.cut(1, Cut::Silent)?;
            run.join().expect("a client does not panic")
        })?;
        rig.no_stall(&report)?;
        Ok(short()
            .disturbed("a link is cut")
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn ipv6_listener() -> Result<()> {
    let builder = Lab::builder().families(Families::V6);
    let lab = builder.rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    reverse(lab, Family::V6, |rig| {
        rig.run_client(&client(rig, Family::V6), &Job::both(10_000_000))?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn plain_tcp_client() -> Result<()> {
    reverse(Lab::builder().build()?, Family::V4, |rig| {
        let client = Client::tcp(listen_on(&rig.lab, Family::V4));
        for job in [Job::both(5_000_000), Job::new(Mode::UpThenDown, 1000, 1000)] {
            rig.run_client(&client, &job)?;
        }
        Ok(Expect::clean().own("plain_syn", "a client without MPTCP"))
    })
}

fn server_reset_arrives() -> Result<()> {
    reverse(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::new(Mode::ServerReset, 0, 100_000);
        let report = rig.attempt(&client(rig, Family::V4), &job)?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        ensure!(report.reset_us < Some(500_000), "{report:?}");
        Ok(short()
            .own("mp_fastclose_tx", "the server resets")
            .own(SERVER_RESET, "the server resets")
            .at_least(End::Client, "MPFastcloseRx", 1))
    })
}

fn many_connections_at_once() -> Result<()> {
    reverse(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::ping_pong(5, 4000).pause_ms(50);
        lively(&client(rig, Family::V4).run_many_in(rig.lab.client(), 300, &job)?)?;
        let crowd = "two processors take a while to come round to 300 connections";
        Ok(short().own(SENT_AGAIN, crowd))
    })
}

fn two_services_side_by_side() -> Result<()> {
    let lab = Lab::builder().build()?;
    let services = daemon::transparent(&lab, &[]) + "\n" + &service(&lab, Family::V4, &[1], &[]);
    with(lab, &services, ServeOptions::tcp(PORT), |rig| {
        rig.run(Family::V4, &Job::both(1_000_000))?;
        rig.run_client(&client(rig, Family::V4), &Job::both(1_000_000))?;
        let served = rig.server.wait_for(2, Duration::from_secs(2))?;
        ensure!(
            served[0].peer.ip() == rig.lab.client_addr(1, Family::V4),
            "{served:?}"
        );
        ensure!(served[1].peer.ip().to_string() == "10.9.1.1", "{served:?}");
        Ok(short())
    })
}

/// A case whose back end is on FlexCP's own host, at this address.
fn own_backend(lab: Lab, family: Family, backend: SocketAddr) -> Result<()> {
    let listen = listen_on(&lab, family);
    let service = daemon::reverse("shop", &[listen.to_string()], &[backend.to_string()], &[]);
    let server = Server::start(lab.proxy(), ServeOptions::tcp(PORT))?;
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        for job in [
            Job::down(10_000_000),
            Job::up(10_000_000),
            Job::both(10_000_000),
        ] {
            rig.run_client(&client(rig, family), &job)?;
        }
        // This host's own connections to it pass by.
        let local = Client::tcp(backend);
        let report = local.run_in(rig.lab.proxy(), &Job::both(100_000))?;
        report.ok()?;
        let served = server.wait_for(4, Duration::from_secs(2))?;
        let peers: Vec<_> = served.iter().map(|report| report.peer).collect();
        ensure!(
            peers[..3]
                .iter()
                .all(|peer| peer.ip() == backend.ip() && peer.port() >= 61000),
            "{peers:?}"
        );
        // The programs would not see its answers.
        ensure!(rig.counter("offload_installed")? == 0, "it was installed");
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

fn backend_on_the_same_host() -> Result<()> {
    let lab = paced()?;
    let backend = SocketAddr::new(lab.proxy_addr(2, Family::V4), PORT);
    own_backend(lab, Family::V4, backend)
}

fn backend_on_the_same_host_ipv6() -> Result<()> {
    let lab = Lab::builder().families(Families::V6);
    let lab = lab.rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let backend = SocketAddr::new(lab.proxy_addr(2, Family::V6), PORT);
    own_backend(lab, Family::V6, backend)
}

fn backend_on_the_loopback_device() -> Result<()> {
    let lab = paced()?;
    lab.proxy().ip("link set lo up")?;
    own_backend(lab, Family::V4, SocketAddr::from(([127, 0, 0, 1], PORT)))
}

/// Nobody listens there: its kernel's RST comes to FlexCP, too.
fn backend_on_the_same_host_that_refuses() -> Result<()> {
    let lab = Lab::builder().build()?;
    let backend = SocketAddr::new(lab.proxy_addr(2, Family::V4), PORT);
    let listen = listen_on(&lab, Family::V4);
    let service = daemon::reverse("shop", &[listen.to_string()], &[backend.to_string()], &[]);
    let flexcp = flexcp_lab::FlexCp::start(&lab, &daemon::config(&lab, &service))?;
    let report = Client::mptcp(listen).run_in(lab.client(), &Job::both(1000))?;
    ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
    ensure!(report.connect_us < 500_000, "{report:?}");
    flexcp.stop()
}

/// The address towards the other one will do for both.
fn backends_on_the_same_host_and_elsewhere() -> Result<()> {
    let lab = Lab::builder().build()?;
    let own = SocketAddr::new(lab.proxy_addr(2, Family::V4), PORT);
    let other = lab.server_socket(1, Family::V4, PORT);
    let listen = listen_on(&lab, Family::V4).to_string();
    let service = daemon::reverse(
        "shop",
        &[listen],
        &[own, other].map(|to| to.to_string()),
        &[],
    );
    let server = Server::start(lab.proxy(), ServeOptions::tcp(PORT))?;
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        for _ in 0..4 {
            rig.run_client(&client(rig, Family::V4), &Job::both(100_000))?;
        }
        for server in [&server, &rig.server] {
            let served = server.wait_for(2, Duration::from_secs(2))?;
            ensure!(
                served.len() == 2 && served[0].peer.ip().to_string() == "10.9.1.1",
                "{served:?}"
            );
        }
        Ok(short())
    })
}
