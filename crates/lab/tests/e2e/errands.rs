//! A box whose connections go by an aggregation server, a second FlexCP at the far end of its uplinks, to servers without MPTCP behind
//! that.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, Report, ServeOptions, Server};
use flexcp_lab::{Beyond, Cut, Expect, FAR_END, Family, FlexCp, Lab};

use crate::aggregation::{PORT, boxed_with, lab_of, quiet};
use crate::rig::short;

crate::cases!("errands":
    convert_both_ways,
    convert_both_ways_ipv6,
    socks5_both_ways,
    socks5_with_a_password,
    server_speaks_first,
    refused_connection_is_refused,
    unreachable_server_is_told,
    one_that_is_not_there_is_left,
    one_that_is_silent_is_left,
    servers_are_reached_without_any,
    download_goes_on_when_an_uplink_is_cut,
    exceptions_pass,
);

pub(crate) const CONVERT: u16 = 7124;
pub(crate) const SOCKS5: u16 = 1080;

/// What is there beside the lab and its box.
pub(crate) struct Far {
    pub(crate) beyond: Beyond,
    pub(crate) server: FlexCp,
    family: Family,
}

impl Far {
    pub(crate) fn serve(&self, options: ServeOptions) -> Result<Server> {
        Server::start(self.beyond.namespace(), options)
    }

    pub(crate) fn attempt(&self, lab: &Lab, job: &Job) -> Result<Report> {
        Client::tcp(Beyond::socket(self.family, PORT)).run_in(lab.server(1), job)
    }

    /// The host behind the far end leads nowhere, and says so: the client hears that it is not connected.
    pub(crate) fn attempt_unreachable(&self, lab: &Lab) -> Result<()> {
        let gateway = Beyond::socket(Family::V4, 0).ip();
        let route = format!("route add 10.77.99.0/24 via {gateway}");
        lab.client().ip(&route)?;
        let beyond = self.beyond.namespace();
        beyond.sysctl(&[("net/ipv4/ip_forward", "1")])?;
        beyond.ip("route add unreachable 10.77.99.0/24")?;
        let nowhere = "10.77.99.99:5000".parse().context("an end")?;
        let report = Client::tcp(nowhere).run_in(lab.server(1), &Job::both(1))?;
        ensure!(!report.failure_kind().is_empty(), "{report:?}");
        Ok(())
    }

    pub(crate) fn run(&self, lab: &Lab, job: &Job) -> Result<()> {
        let report = self.attempt(lab, job)?;
        report.ok().with_context(|| format!("{job:?}"))?;
        Ok(())
    }
}

pub(crate) fn listen(family: Family, port: u16) -> String {
    match family {
        Family::V4 => format!("{}:{port}", FAR_END[0]),
        Family::V6 => format!("[{}]:{port}", FAR_END[1]),
    }
}

/// The far end's services, of both protocols.
fn services(family: Family, users: &str) -> String {
    let users = match users {
        "" => String::new(),
        user => format!("users = [{user:?}]"),
    };
    service("convert", (family, CONVERT), "") + &service("socks5", (family, SOCKS5), &users)
}

/// One of them, with further lines.
pub(crate) fn service(mode: &str, (family, port): (Family, u16), lines: &str) -> String {
    format!(
        "[[service]]\nname = {mode:?}\nmode = {mode:?}\nlisten = [{:?}]\nallow = {:?}\n{lines}\n",
        listen(family, port),
        Beyond::NETWORKS
    )
}

/// A box whose `servers` and further lines are these.
pub(crate) fn config(servers: &[String], lines: &str) -> String {
    format!(
        "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
         destinations = {:?}\nuplinks = [\"a1\", \"a2\"]\nservers = [{}]\n{lines}\n",
        Beyond::NETWORKS,
        servers.join(", ")
    )
}

pub(crate) fn server(mode: &str, end: &str, more: &str) -> String {
    format!("{{ address = {end:?}, mode = {mode:?}{more} }}")
}

/// A lab of a box that goes by these servers.
fn by(
    (family, mbit): (Family, u32),
    (servers, lines): (&[String], &str),
    users: &str,
    case: impl FnOnce(&crate::aggregation::Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    by_in(
        (lab_of(family, mbit)?, family),
        (servers, lines),
        users,
        case,
    )
}

fn by_in(
    (lab, family): (Lab, Family),
    (servers, lines): (&[String], &str),
    users: &str,
    case: impl FnOnce(&crate::aggregation::Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    let services = services(family, users);
    with_far_end((lab, family), &services, (servers, lines), case)
}

/// The same with other services at the far end.
pub(crate) fn with_far_end(
    (lab, family): (Lab, Family),
    services: &str,
    (servers, lines): (&[String], &str),
    case: impl FnOnce(&crate::aggregation::Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    let beyond = Beyond::build(&lab)?;
    lab.lead_beyond(family)?;
    let far = Far {
        server: FlexCp::start_at_far_end(&lab, services)?,
        beyond,
        family,
    };
    boxed_with(lab, &config(servers, lines), |rig| case(rig, &far))
        .with_context(|| format!("at the far end:\n{}", far.server.log()))
}

/// The same of one server at the far end that speaks this.
pub(crate) fn by_one(
    mode: &str,
    port: u16,
    case: impl FnOnce(&crate::aggregation::Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    by_one_in((lab_of(Family::V4, 100)?, Family::V4), mode, port, case)
}

/// The same in a lab that has been built for it.
pub(crate) fn by_one_in(
    (lab, family): (Lab, Family),
    mode: &str,
    port: u16,
    case: impl FnOnce(&crate::aggregation::Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    let servers = [server(mode, &listen(family, port), "")];
    by_in((lab, family), (&servers, ""), "", case)
}

fn both_ways(family: Family, mode: &str, port: u16, user: &str) -> Result<()> {
    let more = match user {
        "" => String::new(),
        user => format!(", user = {user:?}"),
    };
    let servers = [server(mode, &listen(family, port), &more)];
    by((family, 100), (&servers, ""), user, |rig, far| {
        let content = far.serve(ServeOptions::tcp(PORT))?;
        for job in [
            Job::down(20_000_000),
            Job::up(10_000_000),
            Job::both(5_000_000),
            Job::new(Mode::UpThenDown, 100_000, 2_000_000),
        ] {
            far.run(&rig.lab, &job)?;
        }
        rig.ensure(&[
            ("mp_capable_synack_rx", 4),
            ("server_granted", 4),
            ("server_bypassed", 0),
            ("mp_join_synack_rx", 4),
            ("fallback_handshake", 0),
            ("fallback_established", 0),
        ])?;
        ensure!(content.accepted() == 4, "{}", content.accepted());
        let stats = far.server.show_stats()?;
        for (name, expected) in [("fallback_handshake", 0), ("mp_join_ack_rx", 4)] {
            let counted = stats.counter(name)?;
            ensure!(counted == expected, "at the far end {name} is {counted}");
        }
        Ok(quiet())
    })
}

fn convert_both_ways() -> Result<()> {
    both_ways(Family::V4, "convert", CONVERT, "")
}

fn convert_both_ways_ipv6() -> Result<()> {
    both_ways(Family::V6, "convert", CONVERT, "")
}

fn socks5_both_ways() -> Result<()> {
    both_ways(Family::V4, "socks5", SOCKS5, "")
}

fn socks5_with_a_password() -> Result<()> {
    both_ways(Family::V4, "socks5", SOCKS5, "me:secret")
}

/// Servers of each protocol.
fn of_each() -> [Vec<String>; 2] {
    [("convert", CONVERT), ("socks5", SOCKS5)]
        .map(|(mode, port)| vec![server(mode, &listen(Family::V4, port), "")])
}

fn server_speaks_first() -> Result<()> {
    for servers in of_each() {
        by((Family::V4, 100), (&servers, ""), "", |rig, far| {
            let _content = far.serve(ServeOptions::tcp(PORT).banner(3000))?;
            for _ in 0..10 {
                let client = Client::tcp(Beyond::socket(Family::V4, PORT)).banner(3000);
                client
                    .run_in(rig.lab.server(1), &Job::both(100_000))?
                    .ok()?;
            }
            rig.ensure(&[("server_granted", 10)])?;
            Ok(quiet())
        })?;
    }
    Ok(())
}

/// The aggregation server hears that nothing comes of its connection, and ends that, too.
pub(crate) fn left(expect: Expect) -> Expect {
    expect
        .own("mp_fastclose_tx", "the aggregation server is left")
        .own("no_connection", "the server ends what is over")
}

fn refused_connection_is_refused() -> Result<()> {
    for servers in of_each() {
        by((Family::V4, 100), (&servers, ""), "", |rig, far| {
            let report = far.attempt(&rig.lab, &Job::both(1))?;
            ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
            rig.ensure(&[("server_refused", 1), ("server_bypassed", 0)])?;
            Ok(left(short()))
        })?;
    }
    Ok(())
}

fn unreachable_server_is_told() -> Result<()> {
    for servers in of_each() {
        by((Family::V4, 100), (&servers, ""), "", |rig, far| {
            far.attempt_unreachable(&rig.lab)?;
            rig.ensure(&[("server_refused", 1), ("server_bypassed", 0)])?;
            Ok(left(short()))
        })?;
    }
    Ok(())
}

/// Nobody listens on the first one's port, so its host refuses.
fn one_that_is_not_there_is_left() -> Result<()> {
    let servers = [
        server("convert", &listen(Family::V4, 7999), ""),
        server("convert", &listen(Family::V4, CONVERT), ""),
    ];
    by((Family::V4, 100), (&servers, ""), "", |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        for _ in 0..3 {
            far.run(&rig.lab, &Job::both(100_000))?;
        }
        rig.ensure(&[
            ("server_granted", 3),
            ("server_skipped", 1),
            ("backend_marked", 1),
        ])?;
        let told = rig.flexcp.show_json("servers")?;
        let granted = [0, 1].map(|at| told["boxes"][0]["servers"][at]["granted"].as_u64());
        ensure!(granted == [Some(0), Some(3)], "{told}");
        Ok(quiet()
            .own("backend_marked", "the first server is not there")
            .own("backend_probes_tx", "it is asked whether it is back")
            .allow("TcpOutRsts"))
    })
}

/// Packets to the first one are lost: the second gets the SYN before the client asks again.
fn one_that_is_silent_is_left() -> Result<()> {
    let servers = [
        server("convert", "10.201.0.1:7124", ""),
        server("socks5", &listen(Family::V4, SOCKS5), ""),
    ];
    by((Family::V4, 100), (&servers, ""), "", |rig, far| {
        let via = rig.lab.client_addr(1, Family::V4);
        rig.lab
            .proxy()
            .ip(&format!("route add 10.201.0.0/16 via {via}"))?;
        rig.lab.client().ip("route add blackhole 10.201.0.0/16")?;
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let begun = std::time::Instant::now();
        far.run(&rig.lab, &Job::both(100_000))?;
        let first = begun.elapsed();
        ensure!(first < Duration::from_millis(950), "{first:?}");
        far.run(&rig.lab, &Job::both(100_000))?;
        rig.ensure(&[("server_granted", 2), ("server_skipped", 1)])?;
        Ok(quiet()
            .own("backend_marked", "the first server is not there")
            .own("backend_probes_tx", "it is asked whether it is back")
            .allow("TcpOutRsts"))
    })
}

fn servers_are_reached_without_any() -> Result<()> {
    let servers = [
        server("convert", &listen(Family::V4, 7999), ""),
        server("socks5", &listen(Family::V4, 7998), ""),
    ];
    by((Family::V4, 100), (&servers, ""), "", |rig, far| {
        let _content = far.serve(ServeOptions::mptcp(PORT))?;
        for _ in 0..3 {
            far.run(&rig.lab, &Job::both(100_000))?;
        }
        rig.ensure(&[
            ("server_granted", 0),
            ("server_bypassed", 3),
            ("mp_capable_synack_rx", 3),
        ])?;
        Ok(quiet()
            .own("backend_marked", "no server is there")
            .own("backend_probes_tx", "they are asked whether they are back")
            .allow("TcpOutRsts"))
    })
}

fn download_goes_on_when_an_uplink_is_cut() -> Result<()> {
    let servers = [server("convert", &listen(Family::V4, CONVERT), "")];
    by((Family::V4, 50), (&servers, ""), "", |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        thread::scope(|scope| {
            let run = scope.spawn(|| far.run(&rig.lab, &Job::down(20_000_000)));
            rig.joined(1)?;
            thread::sleep(Duration::from_millis(500));
            rig.lab.cut(1, Cut::Silent)?;
            run.join().expect("a client does not panic")
        })?;
        Ok(quiet().disturbed("an uplink is cut"))
    })
}

fn exceptions_pass() -> Result<()> {
    let servers = [server("convert", &listen(Family::V4, CONVERT), "")];
    let except = format!("except = [{{ prefix = \"10.77.0.0/24\", ports = [{PORT}] }}]");
    by((Family::V4, 100), (&servers, &except), "", |rig, far| {
        let content = far.serve(ServeOptions::tcp(PORT))?;
        far.run(&rig.lab, &Job::both(1_000_000))?;
        let other = far.serve(ServeOptions::tcp(PORT + 1))?;
        let client = Client::tcp(Beyond::socket(Family::V4, PORT + 1));
        client
            .run_in(rig.lab.server(1), &Job::both(1_000_000))?
            .ok()?;
        ensure!((content.accepted(), other.accepted()) == (1, 1), "who came");
        rig.ensure(&[("connections_opened", 1), ("server_granted", 1)])?;
        Ok(quiet().own("plain_syn", "the configuration excepts the server"))
    })
}
