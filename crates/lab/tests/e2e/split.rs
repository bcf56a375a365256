//! Split connections: the kernel's MPTCP has the client's end, a relay the server's.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, Proto, ServeOptions};
use flexcp_lab::{
    Cut, End, Expect, Families, Family, FlexCp, Lab, Nginx, SERVER_RESET, TOLD, daemon,
};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::proxied;
use crate::reads::{closed, listening, told};
use crate::rig::{PORT, Rig, short, until, with};

crate::cases!("split":
    bytes_both_ways_over_two_links,
    bytes_both_ways_over_two_links_ipv6,
    download_goes_on_when_a_link_is_cut,
    upload_goes_on_when_a_link_is_cut,
    plain_tcp_client,
    half_closed_connection_goes_on,
    server_reset_arrives,
    client_reset_arrives,
    backend_that_refuses_is_skipped,
    no_backend_answers,
    many_connections_at_once,
    rule_says_for_some_clients,
    translated_beside,
    back_end_is_told_of_its_client,
    reload_begins_and_ends_it,
    stop_resets_what_has_not_ended,
    drained_service_resets_what_has_not_ended,
    service_that_went_resets_what_has_not_ended,
    events_and_back_ends_are_told,
    kernel_without_mptcp_refuses_the_start,
    taken_address_refuses_the_start,
    foreign_address_refuses_the_start,
);

/// Those that apply: without the offload's programs nothing can be split.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    if daemon::offload_is_off() {
        return vec![];
    }
    cases()
}

const LISTEN: u16 = 8080;

fn listen_on(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

fn service(lab: &Lab, family: Family, backends: &[u8], carrier: &str) -> String {
    let backends = backends.iter();
    let backends = backends.map(|number| lab.server_socket(*number, family, PORT).to_string());
    let backends: Vec<_> = backends.collect();
    let listen = [listen_on(lab, family).to_string()];
    let service = daemon::reverse("shop", &listen, &backends, &[]);
    format!("{service}carrier = {carrier:?}\n")
}

fn split(lab: Lab, family: Family, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let service = service(&lab, family, &[1], "split");
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

fn client(rig: &Rig, family: Family) -> Client {
    Client::mptcp(listen_on(&rig.lab, family))
}

fn paced(families: Families) -> Result<Lab> {
    let builder = Lab::builder().families(families);
    builder.rate_mbit(1, 100).rate_mbit(2, 100).build()
}

/// So many connections were split, and nothing else came of them.
pub(crate) fn ensure_split(rig: &Rig, connections: u64) -> Result<()> {
    let split = rig.counter("split")?;
    ensure!(split >= connections, "{split} of {connections} SYNs");
    for name in ["split_refused", "connections_opened", "mp_join_no_token"] {
        let moved = rig.counter(name)?;
        ensure!(moved == 0, "{name} moved by {moved}");
    }
    Ok(())
}

/// Connections of the kernel's: what it says to subflows of one that is over is its own affair.
pub(crate) fn kernels_own() -> Expect {
    // What its sender does now and then to its receiver's window, as without FlexCP.
    let windows = ["RcvWndConflict", "NoDSSInWindow"];
    short()
        .allow_all(&windows)
        .allow_all(flexcp_lab::WINDOW_OVERRUN)
        .allow_all(&["MPFastcloseRx", "MPFastcloseTx"])
}

fn both_ways(family: Family, families: Families) -> Result<()> {
    split(paced(families)?, family, |rig| {
        for job in [
            Job::down(20_000_000),
            Job::up(20_000_000),
            Job::both(10_000_000),
        ] {
            rig.run_client(&client(rig, family), &job)?;
        }
        ensure_split(rig, 3)?;
        let joins = rig.counter("split_joins")?;
        ensure!(joins >= 3, "{joins} joins");
        Ok(kernels_own().exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

fn bytes_both_ways_over_two_links() -> Result<()> {
    both_ways(Family::V4, Families::V4)
}

fn bytes_both_ways_over_two_links_ipv6() -> Result<()> {
    both_ways(Family::V6, Families::V6)
}

/// The link of the initial subflow fails in the middle: bytes go on over the other.
fn cut(job: &Job) -> Result<()> {
    split(paced(Families::V4)?, Family::V4, |rig| {
        let client = client(rig, Family::V4);
        thread::scope(|scope| {
            let run = scope.spawn(|| rig.run_client(&client, job));
            thread::sleep(Duration::from_millis(500));
            rig.lab.cut(1, Cut::Silent)?;
            run.join().expect("a client does not panic")
        })?;
        ensure_split(rig, 1)?;
        Ok(kernels_own()
            .disturbed("a link is cut")
            .at_least(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn download_goes_on_when_a_link_is_cut() -> Result<()> {
    cut(&Job::down(20_000_000))
}

fn upload_goes_on_when_a_link_is_cut() -> Result<()> {
    cut(&Job::up(20_000_000))
}

fn plain_tcp_client() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        let client = Client::tcp(listen_on(&rig.lab, Family::V4));
        for job in [Job::both(5_000_000), Job::new(Mode::UpThenDown, 1000, 1000)] {
            rig.run_client(&client, &job)?;
        }
        ensure_split(rig, 2)?;
        Ok(kernels_own())
    })
}

fn half_closed_connection_goes_on() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::new(Mode::UpThenDown, 1_000_000, 1_000_000);
        rig.run_client(&client(rig, Family::V4), &job)?;
        Ok(kernels_own())
    })
}

fn server_reset_arrives() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::new(Mode::ServerReset, 0, 100_000);
        for client in [
            client(rig, Family::V4),
            Client::tcp(listen_on(&rig.lab, Family::V4)),
        ] {
            let report = rig.attempt(&client, &job)?;
            ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
            ensure!(report.reset_us < Some(500_000), "{report:?}");
        }
        Ok(kernels_own().own(SERVER_RESET, "the server resets"))
    })
}

fn client_reset_arrives() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::new(Mode::ClientAbort, 100_000, 10_000_000);
        let _ = rig.attempt(&client(rig, Family::V4), &job)?;
        let served = rig.server.wait_for(1, Duration::from_secs(5))?;
        ensure!(served.len() == 1, "{served:?}");
        Ok(kernels_own().own(SERVER_RESET, "the client resets"))
    })
}

fn backend_that_refuses_is_skipped() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let service = service(&lab, Family::V4, &[2, 1], "split");
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        for _ in 0..6 {
            rig.run_client(&client(rig, Family::V4), &Job::both(10_000))?;
        }
        ensure_split(rig, 6)?;
        Ok(kernels_own())
    })
}

fn no_backend_answers() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let service = service(&lab, Family::V4, &[2], "split");
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let report = rig.attempt(&client(rig, Family::V4), &Job::down(1))?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        // It has been connected, and is reset before it was told anything.
        Ok(kernels_own().allow("MPCapableDataFallback"))
    })
}

fn many_connections_at_once() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        let job = Job::both(100_000);
        let reports = client(rig, Family::V4).run_many_in(rig.lab.client(), 100, &job)?;
        for report in &reports {
            report.ok()?;
        }
        ensure_split(rig, 100)?;
        Ok(kernels_own())
    })
}

fn rule_says_for_some_clients() -> Result<()> {
    let lab = Lab::builder().build()?;
    let service = service(&lab, Family::V4, &[1], "splitless");
    let from = lab.client_addr(2, Family::V4);
    let rule = format!(
        "[[rule]]\nname = \"far\"\nmode = \"smallest-delay\"\nclients = [\"{from}\"]\ncarrier = \"split\"\n"
    );
    with(
        lab,
        &format!("{service}\n{rule}"),
        ServeOptions::tcp(PORT),
        |rig| {
            rig.run_client(&client(rig, Family::V4), &Job::both(100_000))?;
            ensure!(rig.counter("split")? == 0, "no rule is for that client");
            let client = client(rig, Family::V4).from(from);
            rig.run_client(&client, &Job::both(100_000))?;
            ensure!(rig.counter("split")? == 1, "the rule is for this one");
            Ok(kernels_own())
        },
    )
}

fn translated_beside() -> Result<()> {
    let lab = Lab::builder().build()?;
    let services =
        daemon::transparent(&lab, &[]) + "\n" + &service(&lab, Family::V4, &[1], "split");
    with(lab, &services, ServeOptions::tcp(PORT), |rig| {
        rig.run(Family::V4, &Job::both(1_000_000))?;
        rig.run_client(&client(rig, Family::V4), &Job::both(1_000_000))?;
        ensure!(rig.counter("connections_opened")? == 1);
        ensure!(rig.counter("split")? == 1);
        Ok(kernels_own())
    })
}

/// By the header that a translated connection would have.
fn back_end_is_told_of_its_client() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::builder().families(Families::Both).build()?;
        let _nginx = Nginx::start(&lab, 1, &[], Proto::Tcp)?;
        let service = proxied::service(&lab, family, lab.server_socket(1, family, TOLD));
        let service = service + "carrier = \"split\"\n";
        with(lab, &service, ServeOptions::tcp(PORT), |rig| {
            for program in [proxied::MPTCP, proxied::PLAIN] {
                proxied::ask(rig, family, program)?;
            }
            ensure_split(rig, 2)?;
            Ok(kernels_own())
        })?;
    }
    Ok(())
}

fn reload_begins_and_ends_it() -> Result<()> {
    let lab = Lab::builder().build()?;
    let server = flexcp_lab::transfer::Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let of = |carrier| daemon::config(&lab, &service(&lab, Family::V4, &[1], carrier));
    let without = of("split").replace("carrier = \"split\"\n", "");
    let mut flexcp = FlexCp::start(&lab, &without)?;
    let client = Client::mptcp(listen_on(&lab, Family::V4));
    let count = |flexcp: &FlexCp| -> Result<u64> { Ok(flexcp.show_stats()?.counter("split")?) };
    for (config, split) in [(of("split"), 1), (of("splitless"), 1), (of("split"), 2)] {
        flexcp.reload(&lab, &config)?;
        client.run_in(lab.client(), &Job::both(100_000))?.ok()?;
        let counted = count(&flexcp)?;
        ensure!(counted == split, "{counted} were split, not {split}");
    }
    // What listens there is FlexCP's own.
    let checked = daemon::check_live(&lab, &of("split"))?;
    ensure!(checked.status.success(), "{checked:?}");
    // The address is taken by another when it is to be listened at: what was goes on.
    flexcp.reload(&lab, &without)?;
    client.run_in(lab.client(), &Job::both(100_000))?.ok()?;
    ensure!(count(&flexcp)? == 2, "nothing is split");
    drop(server);
    flexcp.stop()
}

fn stop_resets_what_has_not_ended() -> Result<()> {
    let lab = Lab::builder().build()?;
    let _server = flexcp_lab::transfer::Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let services = format!(
        "[timeouts]\ndrain = \"300ms\"\n\n{}",
        service(&lab, Family::V4, &[1], "split")
    );
    let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services))?;
    let client = Client::mptcp(listen_on(&lab, Family::V4));
    thread::scope(|scope| {
        let run = scope.spawn(|| client.run_in(lab.client(), &Job::hold(3_000)));
        until("a connection is split", || {
            Ok(flexcp.show_stats()?.counter("split")? == 1)
        })?;
        thread::sleep(Duration::from_millis(300));
        flexcp.stop()?;
        let report = run.join().expect("a client does not panic")?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        Ok(())
    })
}

/// A client that waits for long beside what is done, and is reset.
fn reset_while(rig: &Rig, done: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = rig.counter("split")?;
    thread::scope(|scope| {
        let run = scope.spawn(|| rig.attempt(&client(rig, Family::V4), &Job::hold(3_000)));
        until("a connection is split", || {
            Ok(rig.counter("split")? > before && rig.states()? == ["relayed"])
        })?;
        done()?;
        let report = run.join().expect("a client does not panic")?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        Ok(())
    })
}

fn drained_service_resets_what_has_not_ended() -> Result<()> {
    split(Lab::builder().build()?, Family::V4, |rig| {
        reset_while(rig, || {
            rig.flexcp
                .tell(&["drain", "shop", "--within", "500ms"])
                .map(drop)
        })?;
        let refused = rig.attempt(&client(rig, Family::V4), &Job::both(1))?;
        ensure!(refused.failure_kind() == "ECONNREFUSED", "{refused:?}");
        rig.flexcp.tell(&["undrain", "shop"])?;
        rig.run_client(&client(rig, Family::V4), &Job::both(100_000))?;
        const DRAINED: &str = "the service is drained";
        Ok(["draining", SERVER_RESET]
            .iter()
            .fold(kernels_own(), |expect, name| expect.own(name, DRAINED)))
    })
}

fn service_that_went_resets_what_has_not_ended() -> Result<()> {
    let lab = Lab::builder().build()?;
    let _server = flexcp_lab::transfer::Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let of = |services: &str| {
        let timeouts = "[timeouts]\ndrain = \"500ms\"\n\n";
        daemon::config(&lab, &format!("{timeouts}{services}"))
    };
    let stays = daemon::transparent(&lab, &[]);
    let goes = service(&lab, Family::V4, &[1], "split");
    let mut flexcp = FlexCp::start(&lab, &of(&format!("{stays}\n{goes}")))?;
    let client = Client::mptcp(listen_on(&lab, Family::V4));
    thread::scope(|scope| {
        let run = scope.spawn(|| client.run_in(lab.client(), &Job::hold(3_000)));
        until("a connection is split", || {
            Ok(flexcp.show("connections")?.contains("relayed"))
        })?;
        flexcp.reload(&lab, &of(&stays))?;
        let report = run.join().expect("a client does not panic")?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    flexcp.stop()
}

fn events_and_back_ends_are_told() -> Result<()> {
    let lab = Lab::builder().servers(2).build()?;
    let service = service(&lab, Family::V4, &[2, 1], "split");
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let listener = listening(rig, "events", &["--json"])?;
        let hold = Job::hold(1_000);
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| rig.attempt(&client(rig, Family::V4), &hold));
            // The first does not answer, the second has the connection.
            until("back ends are told", || {
                let all = rig.flexcp.show_json("services")?;
                let of = |at: usize| &all["services"][0]["backends"][at];
                Ok(of(0)["health"] == "down"
                    && of(0)["down_workers"] == 0
                    && of(0)["last_down"]["reason"] == "refused"
                    && of(1)["health"] == "up"
                    && of(1)["connections"] == 1)
            })?;
            run.join().expect("a client does not panic")
        })?;
        report.ok()?;
        closed(&listener, 1)?;
        reset_while(rig, || {
            let id = rig.flexcp.show_connections()?["connections"][0]["id"].clone();
            let id = id.as_str().unwrap_or_default();
            rig.flexcp.tell(&["close", id]).map(drop)
        })?;
        closed(&listener, 2)?;
        let events = told(&listener)?;
        let what = |event: &Value| {
            let of = |key| event[key].as_str().unwrap_or_default().to_owned();
            [of("event"), of("carrier"), of("cause"), of("reason")]
        };
        let expected = [
            ["backend_marked", "", "", "refused"],
            ["opened", "split", "", ""],
            ["closed", "", "finished", ""],
            ["opened", "split", "", ""],
            ["closed", "", "asked", ""],
        ];
        let told: Vec<_> = events.iter().map(what).collect();
        ensure!(told == expected, "{events:?}");
        ensure!(events[1]["id"] == events[2]["id"], "{events:?}");
        Ok(kernels_own().own(SERVER_RESET, "an operator closes the second"))
    })
}

/// What FlexCP says when it can't start so.
fn refusal(lab: &Lab) -> Result<String> {
    refusal_of(lab, &service(lab, Family::V4, &[1], "split"))
}

fn refusal_of(lab: &Lab, service: &str) -> Result<String> {
    match FlexCp::start(lab, &daemon::config(lab, service)) {
        Ok(_) => anyhow::bail!("it starts"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

fn kernel_without_mptcp_refuses_the_start() -> Result<()> {
    let lab = Lab::builder().build()?;
    flexcp_lab::text(
        lab.proxy()
            .command("sysctl")
            .args(["-w", "net.mptcp.enabled=0"]),
    )?;
    let said = refusal(&lab)?;
    ensure!(
        said.contains("the kernel makes no MPTCP socket") && said.contains("net.mptcp.enabled"),
        "{said}"
    );
    Ok(())
}

fn taken_address_refuses_the_start() -> Result<()> {
    let lab = Lab::builder().build()?;
    let _taken = flexcp_lab::transfer::Server::start(lab.proxy(), ServeOptions::tcp(LISTEN))?;
    let said = refusal(&lab)?;
    ensure!(said.contains("address already in use: 10."), "{said}");
    Ok(())
}

fn foreign_address_refuses_the_start() -> Result<()> {
    let lab = Lab::builder().build()?;
    let own = listen_on(&lab, Family::V4).to_string();
    let service = service(&lab, Family::V4, &[1], "split").replace(&own, "10.77.0.1:80");
    let said = refusal_of(&lab, &service)?;
    let expected = "connections of service shop can't be split: 10.77.0.1:80: ";
    ensure!(said.contains(expected), "{said}");
    Ok(())
}
