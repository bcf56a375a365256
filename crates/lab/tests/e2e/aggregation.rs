//! The aggregation box: clients without MPTCP, FlexCP with several uplinks, a server of the kernel's MPTCP. The lab's ends have changed
//! places: its server is the client in the LAN, and its client the server with two links.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, Report, ServeOptions, Server};
use flexcp_lab::{
    Conduct, Cut, Expect, FAR_END, Families, Family, FlexCp, Lab, Oracle, SERVER_RESET,
    WINDOW_OVERRUN,
};

use crate::rig::{short, until};

crate::cases!("aggregation":
    bytes_both_ways_over_two_uplinks,
    bytes_both_ways_over_two_uplinks_ipv6,
    download_takes_both_uplinks,
    many_connections_at_once,
    server_without_mptcp,
    client_that_speaks_mptcp_passes,
    download_goes_on_when_an_uplink_is_cut,
    upload_goes_on_when_its_uplink_is_cut,
    refused_connection_is_refused,
    server_reset_arrives,
    client_hears_at_once_that_a_server_without_joins_is_lost,
    client_reset_arrives,
    half_closed_connection_goes_on,
);

pub(crate) const PORT: u16 = 5000;
/// FlexCP as a box, and what is around it.
pub(crate) struct Rig {
    pub(crate) lab: Lab,
    pub(crate) flexcp: FlexCp,
    pub(crate) oracle: Oracle,
}

/// A lab whose two links are uplinks, towards a server that both lead to.
pub(crate) fn lab(mbit: u32) -> Result<Lab> {
    lab_of(Family::V4, mbit)
}

pub(crate) fn lab_of(family: Family, mbit: u32) -> Result<Lab> {
    let families = match family {
        Family::V4 => Families::V4,
        Family::V6 => Families::V6,
    };
    let builder = Lab::builder().families(families);
    let lab = builder.rate_mbit(1, mbit).rate_mbit(2, mbit).build()?;
    lab.turn_around()?;
    Ok(lab)
}

/// FlexCP has left none of its rules and routes.
fn ensure_nothing_left(lab: &Lab) -> Result<()> {
    for what in ["rule", "route show table all"] {
        for family in ["-4", "-6"] {
            let listed = lab.proxy().ip(&format!("-details {family} {what}"))?;
            let mut ours = listed.lines().filter(|line| line.contains("proto 117"));
            let left = ours.next();
            ensure!(left.is_none(), "FlexCP has left {left:?}");
        }
    }
    Ok(())
}

pub(crate) const SERVICE: &str = "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
    destinations = [\"10.200.0.0/16\", \"fd20::/16\"]\nuplinks = [\"a1\", \"a2\"]\n";

pub(crate) fn server(family: Family) -> SocketAddr {
    let server = FAR_END[usize::from(family == Family::V6)];
    let server = server.parse().expect("an address");
    SocketAddr::new(server, PORT)
}

/// Runs a case; then FlexCP has to forget all connections, both kernels' counters and its own are checked, and it has to end.
pub(crate) fn boxed(lab: Lab, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    boxed_with(lab, SERVICE, case)
}

/// The same with another service.
pub(crate) fn boxed_with(
    lab: Lab,
    service: &str,
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let config = crate::rig::config(&lab, service);
    let flexcp = FlexCp::start(&lab, &config)?;
    let oracle = Oracle::start(&lab)?;
    let rig = Rig {
        lab,
        flexcp,
        oracle,
    };
    let outcome = case(&rig).and_then(|expect| {
        until("all are forgotten", || {
            Ok(rig.flexcp.show_connections()?["connections"]
                .as_array()
                .is_some_and(Vec::is_empty))
        })?;
        let conduct = Conduct::read(&rig.flexcp)?;
        let expect = conduct.explain(expect)?;
        rig.oracle.check_with(&rig.lab, &expect, &conduct)
    });
    outcome.with_context(|| rig.story())?;
    rig.flexcp.stop()?;
    ensure_nothing_left(&rig.lab)
}

impl Rig {
    pub(crate) fn serve(&self, options: ServeOptions) -> Result<Server> {
        Server::start(self.lab.client(), options)
    }

    pub(crate) fn attempt(&self, job: &Job) -> Result<Report> {
        let family = match self.lab.families().has(Family::V6) {
            true => Family::V6,
            false => Family::V4,
        };
        Client::tcp(server(family)).run_in(self.lab.server(1), job)
    }

    pub(crate) fn run(&self, job: &Job) -> Result<Report> {
        let report = self.attempt(job)?;
        report.ok().with_context(|| format!("{job:?}"))?;
        Ok(report)
    }

    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        Ok(self.flexcp.show_stats()?.counter(name)?)
    }

    pub(crate) fn ensure(&self, expected: &[(&str, u64)]) -> Result<()> {
        for (name, count) in expected {
            let counted = self.counter(name)?;
            ensure!(counted == *count, "{name} is {counted}, not {count}");
        }
        Ok(())
    }

    /// Waits until so many joins are there.
    pub(crate) fn joined(&self, count: u64) -> Result<()> {
        until("uplinks have joined", || {
            Ok(self.counter("mp_join_synack_rx")? >= count)
        })
    }

    /// Bytes that have come in on each uplink.
    pub(crate) fn received(&self) -> Result<[u64; 2]> {
        let table = self.lab.proxy().proc_net("dev")?;
        let of = |uplink: &str| {
            let mut lines = table.lines().map(str::trim_start);
            let line = lines.find_map(|line| line.strip_prefix(uplink))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let both = ["a1:", "a2:"].map(|uplink| of(uplink).context("no such device"));
        let [first, second] = both;
        Ok([first?, second?])
    }

    fn story(&self) -> String {
        let said = |what: Result<String>| what.unwrap_or_else(|error| format!("{error:#}"));
        let stats = said(self.flexcp.show("stats"));
        let moved: Vec<_> = stats.lines().filter(|line| !line.ends_with(" 0")).collect();
        let connections = said(self.flexcp.show("connections"));
        format!("{connections}{}\n{}", moved.join("\n"), self.flexcp.log())
    }
}

pub(crate) fn quiet() -> Expect {
    short()
        .allow_all(WINDOW_OVERRUN)
        .allow("RcvWndConflict")
        .own(
            "no_connection",
            "the server resets a join of its own, which was refused",
        )
}

fn bytes_both_ways_over_two_uplinks() -> Result<()> {
    both_ways(Family::V4)
}

fn bytes_both_ways_over_two_uplinks_ipv6() -> Result<()> {
    both_ways(Family::V6)
}

fn both_ways(family: Family) -> Result<()> {
    boxed(lab_of(family, 100)?, |rig| {
        let server = rig.serve(ServeOptions::mptcp(PORT))?;
        for job in [
            Job::down(20_000_000),
            Job::up(10_000_000),
            Job::both(5_000_000),
        ] {
            rig.run(&job)?;
        }
        rig.ensure(&[
            ("mp_capable_synack_rx", 3),
            ("mp_join_synack_rx", 3),
            ("fallback_handshake", 0),
            ("fallback_established", 0),
        ])?;
        ensure!(server.accepted() == 3, "{}", server.accepted());
        Ok(quiet())
    })
}

/// The server has two paths, and fills both.
fn download_takes_both_uplinks() -> Result<()> {
    boxed(lab(50)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        let before = rig.received()?;
        rig.run(&Job::down(20_000_000))?;
        let after = rig.received()?;
        let over = [0, 1].map(|uplink| after[uplink] - before[uplink]);
        let all: u64 = over.iter().sum();
        ensure!(all >= 20_000_000, "{over:?}");
        ensure!(over.iter().all(|bytes| *bytes >= all / 4), "{over:?}");
        Ok(quiet())
    })
}

fn many_connections_at_once() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        thread::scope(|scope| {
            let run = |_| scope.spawn(|| rig.run(&Job::both(200_000)));
            let runs: Vec<_> = (0..20).map(run).collect();
            for run in runs {
                run.join().expect("a client does not panic")?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        rig.ensure(&[("mp_capable_synack_rx", 20), ("fallback_established", 0)])?;
        Ok(quiet())
    })
}

fn server_without_mptcp() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::tcp(PORT))?;
        rig.run(&Job::both(1_000_000))?;
        rig.ensure(&[("mp_capable_synack_rx", 0), ("fallback_handshake", 1)])?;
        Ok(short().own("fallback_handshake", "the server has no MPTCP"))
    })
}

fn client_that_speaks_mptcp_passes() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        let client = Client::mptcp(server(Family::V4));
        let report = client.run_in(rig.lab.server(1), &Job::both(1_000_000))?;
        report.ok()?;
        let asked = rig.oracle.client(&rig.lab)?.get("MPCapableACKRX");
        ensure!(asked == 1, "{asked} connections with MPTCP");
        rig.ensure(&[("connections_opened", 0)])?;
        Ok(quiet().own("plain_syn", "the client speaks MPTCP by itself"))
    })
}

fn cut(job: &Job) -> Result<()> {
    boxed(lab(50)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        thread::scope(|scope| {
            let run = scope.spawn(|| rig.run(job));
            rig.joined(1)?;
            thread::sleep(Duration::from_millis(500));
            rig.lab.cut(1, Cut::Silent)?;
            run.join().expect("a client does not panic")
        })?;
        Ok(quiet().disturbed("an uplink is cut"))
    })
}

fn download_goes_on_when_an_uplink_is_cut() -> Result<()> {
    cut(&Job::down(20_000_000))
}

fn upload_goes_on_when_its_uplink_is_cut() -> Result<()> {
    cut(&Job::up(10_000_000))
}

fn refused_connection_is_refused() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let report = rig.attempt(&Job::both(1))?;
        ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
        Ok(short())
    })
}

fn server_reset_arrives() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        let reset = Job::new(Mode::ServerReset, 100_000, 100_000);
        let report = rig.attempt(&reset)?;
        ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
        Ok(quiet()
            .disturbed("the server resets")
            .own(SERVER_RESET, "the client in the LAN hears of it")
            .allow_all(&["MPFastcloseTx", "TcpEstabResets"]))
    })
}

/// The server's host takes no joins (flag C), and somebody on the way resets the only subflow: nothing brings the connection back.
fn client_hears_at_once_that_a_server_without_joins_is_lost() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let host = rig.lab.client();
        host.sysctl(&[("net/mptcp/allow_join_initial_addr_port", "0")])?;
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        let began = thread::scope(|scope| {
            let asking = Job::ping_pong(500, 1000).pause_ms(20);
            let client = scope.spawn(move || rig.attempt(&asking));
            thread::sleep(Duration::from_secs(1));
            let began = Instant::now();
            host.nft(&format!(
                "add table inet lost\n\
                 add chain inet lost input {{ type filter hook input priority 0; }}\n\
                 add rule inet lost input tcp dport {PORT} reject with tcp reset\n"
            ))?;
            let report = client.join().map_err(|_| anyhow!("it panics"))??;
            ensure!(report.failure_kind() == "ECONNRESET", "{report:?}");
            anyhow::Ok(began)
        })?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(10), "{took:?}");
        Ok(quiet()
            .disturbed("somebody resets the only subflow")
            .own("abandoned", "the client in the LAN hears of it")
            .own("after_reset", "the server's host still sends")
            .own(SERVER_RESET, "the client in the LAN is reset"))
    })
}

fn client_reset_arrives() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let server = rig.serve(ServeOptions::mptcp(PORT))?;
        let abort = Job::new(Mode::ClientAbort, 1_000_000, 1_000_000_000);
        rig.attempt(&abort)?;
        let served = server.wait_for(1, Duration::from_secs(5))?;
        ensure!(served[0].failure_kind() == "ECONNRESET", "{served:?}");
        Ok(quiet()
            .disturbed("the client resets")
            .own(SERVER_RESET, "the client in the LAN resets")
            .own("mp_fastclose_tx", "the client in the LAN resets")
            .allow_all(&["MPFastcloseRx", "TcpEstabResets"]))
    })
}

fn half_closed_connection_goes_on() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        rig.run(&Job::new(Mode::UpThenDown, 100_000, 2_000_000))?;
        Ok(quiet())
    })
}
