//! A lab with FlexCP in the middle, and what every case checks at its end.

use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, Report, ServeOptions, Server};
use flexcp_lab::{
    Background, Conduct, Cut, End, Expect, Family, FlexCp, Lab, Namespace, Oracle, Starvation,
    WINDOW_OVERRUN, daemon, text,
};

/// Client, FlexCP and a TCP server, all running.
pub(crate) struct Rig {
    pub(crate) lab: Lab,
    pub(crate) server: Server,
    pub(crate) flexcp: FlexCp,
    pub(crate) oracle: Oracle,
    pub(crate) starvation: Starvation,
}

/// Port of the server, whatever the mode.
pub(crate) const PORT: u16 = 5000;

/// Runs a case behind a transparent FlexCP that announces nothing.
pub(crate) fn transparent(lab: Lab, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let service = daemon::transparent(&lab, &[]);
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

/// Runs a case behind FlexCP with these services.
///
/// The case says what the counters should show. Then FlexCP must forget all
/// connections, the counters of both kernels and its own are checked
/// ([`Oracle::check_with`]), and it must end on SIGTERM and leave the proxy's
/// namespace as it found it.
pub(crate) fn with(
    lab: Lab,
    services: &str,
    serve: ServeOptions,
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let config = config(&lab, services);
    with_config(lab, &config, serve, case)
}

/// The same with a configuration of its own.
pub(crate) fn with_config(
    lab: Lab,
    config: &str,
    serve: ServeOptions,
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let before = kernel_state(lab.proxy())?;
    let server = Server::start(lab.server(1), serve)?;
    let flexcp = FlexCp::start(&lab, config)?;
    let oracle = Oracle::start(&lab)?;
    let rig = Rig {
        lab,
        server,
        flexcp,
        oracle,
        starvation: Starvation::measure()?,
    };
    let outcome = case(&rig).and_then(|expect| {
        rig.drained()?;
        let conduct = Conduct::read(&rig.flexcp)?;
        let expect = expect.allow_at(End::Servers, WINDOW_OVERRUN);
        let expect = conduct.explain(expect)?;
        rig.oracle.check_with(&rig.lab, &expect, &conduct)
    });
    outcome.map_err(|error| error.context(rig.story()))?;
    let Rig { lab, flexcp, .. } = rig;
    flexcp.stop()?;
    ensure_same(&before, &kernel_state(lab.proxy())?)
}

/// The shortest retransmission timeout of Linux (`TCP_RTO_MIN`), with a round trip of the lab.
const RTO: Duration = Duration::from_millis(220);

/// Retransmission timeouts until Linux takes a path for stale: two, one and then twice as long, in the course of which a
/// filler may come over it; five checks after the last that came; one for where the checks begin between them.
const STALE: u32 = 9;

/// Each of several connections at once has done its job, and none stood still: one that does is not made up for by
/// the others.
pub(crate) fn lively(reports: &[Report]) -> Result<()> {
    for (number, report) in reports.iter().enumerate() {
        report
            .ok()
            .with_context(|| format!("connection {number}"))?;
        ensure!(
            report.longest_gap() < CROWDED,
            "connection {number} stood still for {:?}",
            report.longest_gap()
        );
    }
    Ok(())
}

/// What one connection of many may stand still: a retransmission timeout that has doubled four times, as those of a
/// crowd do that waits for two processors.
const CROWDED: Duration = Duration::from_secs(6);

/// Nobody has fallen back, and each connection named its server.
pub(crate) fn ensure_named(rig: &Rig, connections: u64) -> Result<()> {
    let named = rig.counter("preambles")?;
    ensure!(
        named == connections,
        "{named} of {connections} named their server"
    );
    for counter in ["fallback_handshake", "fallback_established"] {
        ensure!(rig.counter(counter)? == 0, "{counter}");
    }
    Ok(())
}

/// A download through a client's proxy goes on, byte by byte, when the path of its initial subflow is cut.
pub(crate) fn cut_in_mid_transfer(rig: &Rig, client: &Client) -> Result<Expect> {
    let report = thread::scope(|scope| {
        let run = scope.spawn(|| rig.run_client(client, &Job::down(20_000_000)));
        thread::sleep(Duration::from_millis(500));
        rig.lab.cut(1, Cut::Silent)?;
        run.join().expect("a client does not panic")
    })?;
    rig.no_stall(&report)?;
    ensure_named(rig, 1)?;
    Ok(short()
        .disturbed("a link is cut")
        .exactly(End::Client, "MPJoinSynAckRx", 1))
}

/// A hundred connections at once, each of which names its server.
pub(crate) fn crowd(rig: &Rig, client: &Client) -> Result<Expect> {
    let reports = client.run_many_in(rig.lab.client(), 100, &Job::both(100_000))?;
    lively(&reports)?;
    ensure_named(rig, 100)?;
    Ok(short())
}

/// Connections that end before their join is through, which costs resets.
pub(crate) fn short() -> Expect {
    const LATE: &str = "a connection ends before its join is through";
    let names = [
        "mp_rst_tx",
        "mp_join_refused",
        "mp_join_no_token",
        "no_subflow",
        "not_authenticated",
        "unexpected",
    ];
    let expect = Expect::clean().allow("MPRstTx").allow("MPRstRx");
    names
        .iter()
        .fold(expect, |expect, name| expect.own(name, LATE))
}

/// A configuration that forgets closed connections soon, but not before a client has repeated its FIN:
/// what comes for a connection that is not known goes to the server.
pub(crate) fn config(lab: &Lab, services: &str) -> String {
    daemon::config(lab, &forgetful("1s", services))
}

/// The same for several workers, and how packets come to them. Where many connections at once overflow their links,
/// clients back off: one repeats its FIN after 1.6 s, another after 3.2 s.
pub(crate) fn config_of_workers(
    lab: &Lab,
    workers: u16,
    placement: &str,
    services: &str,
) -> String {
    let device = format!("workers = {workers}\nplacement = {placement:?}\npin = true");
    daemon::config_of_device(lab, &device, &forgetful("4s", services))
}

fn forgetful(linger: &str, services: &str) -> String {
    format!("[timeouts]\nlinger = {linger:?}\nhalf_open = \"3s\"\n\n{services}")
}

impl Rig {
    /// Waits until a second subflow has joined: a path that is cut before that leaves none.
    pub(crate) fn wait_for_a_join(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.counter("mp_join_ack_rx")? == 0 {
            ensure!(Instant::now() < deadline, "no subflow has joined");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The longest time so far that a thread waited for a processor.
    pub(crate) fn starved(&self) -> Duration {
        self.starvation.longest()
    }

    /// An error if a transfer stood still for longer than a switch of paths explains: the checks after which the kernel
    /// of a client that uploads gives up a dead path, a retransmission timeout apart (downloads are over after a quarter
    /// of a second). What threads wait for a processor is part of the round trips that the timeout is made of.
    pub(crate) fn no_stall(&self, report: &Report) -> Result<()> {
        let gap = report.longest_gap();
        let bound = STALE * (RTO + self.starved());
        ensure!(gap < bound, "stalled for {gap:?}, {bound:?} may be");
        Ok(())
    }

    /// An MPTCP client of the server.
    pub(crate) fn client(&self, family: Family) -> Client {
        Client::mptcp(self.lab.server_socket(1, family, PORT))
    }

    /// Does a job, which must succeed, with the MPTCP client.
    pub(crate) fn run(&self, family: Family, job: &Job) -> Result<Report> {
        self.run_client(&self.client(family), job)
    }

    /// Does a job, which must succeed.
    pub(crate) fn run_client(&self, client: &Client, job: &Job) -> Result<Report> {
        let report = self.attempt(client, job)?;
        report.ok().with_context(|| format!("{job:?}"))?;
        Ok(report)
    }

    /// Does a job, whatever becomes of it.
    pub(crate) fn attempt(&self, client: &Client, job: &Job) -> Result<Report> {
        client.run_in(self.lab.client(), job)
    }

    /// Does a job while `meanwhile` runs.
    pub(crate) fn run_while(
        &self,
        family: Family,
        job: &Job,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<Report> {
        thread::scope(|scope| {
            let run = scope.spawn(|| self.run(family, job));
            let done = meanwhile();
            let report = run.join().expect("a client does not panic")?;
            done.map(|()| report)
        })
    }

    /// One of FlexCP's counters.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        Ok(self.flexcp.show_stats()?.counter(name)?)
    }

    /// The states of FlexCP's connections.
    pub(crate) fn states(&self) -> Result<Vec<String>> {
        let view = self.flexcp.show_connections()?;
        let connections = view["connections"].as_array().into_iter().flatten();
        Ok(connections
            .filter_map(|c| c["state"].as_str())
            .map(str::to_owned)
            .collect())
    }

    /// Waits until FlexCP has no connection left.
    fn drained(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.states()?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "FlexCP still has connections: {left:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What FlexCP and the kernels at both ends have to say, for whoever reads a failure.
    fn story(&self) -> String {
        let said = |what: Result<String>| what.unwrap_or_else(|error| format!("{error:#}"));
        let stats = said(self.flexcp.show("stats"));
        let moved = stats
            .lines()
            .filter(|line| !line.ends_with(" 0"))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>();
        let kernel = self.oracle.client(&self.lab);
        let kernel = kernel.map_or_else(
            |error| format!("{error:#}"),
            |kernel| {
                let words = kernel.iter().map(|(name, value)| format!("{name} {value}"));
                words.collect::<Vec<_>>().join(", ")
            },
        );
        let sockets =
            |namespace: &Namespace| said(text(namespace.command("ss").args(["-H", "-timnO"])));
        format!(
            "{}{}\nclient: {}\nclient's kernel: {kernel}\nserver: {}\nserved: {:?}\nlog:\n{}\n",
            said(self.flexcp.show("connections")),
            moved.join(", "),
            sockets(self.lab.client()),
            sockets(self.lab.server(1)),
            self.server.reports(),
            self.flexcp.log()
        )
    }
}

/// Waits until it is so.
pub(crate) fn until(what: &str, so: impl Fn() -> Result<bool>) -> Result<()> {
    until_after(Duration::from_secs(5), what, so)
}

/// The same where it may take so long.
pub(crate) fn until_after(most: Duration, what: &str, so: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + most;
    while !so()? {
        ensure!(Instant::now() < deadline, "not so after {most:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// All that a proxy may change in its namespace, one thing a line.
pub(crate) fn kernel_state(namespace: &Namespace) -> Result<Vec<String>> {
    let mut state = vec![];
    let mut add = |command: &mut Command| -> Result<()> {
        state.extend(
            text(command)?
                .lines()
                // The kernel gives links their local addresses, and a router those of its subnets, when it is ready to; and itself
                // a key once a socket wants data of SYNs.
                .filter(|line| {
                    !["fe80::", "tcp_fastopen_key"]
                        .iter()
                        .any(|own| line.contains(own))
                })
                .filter(|line| !line.starts_with("anycast "))
                .map(|line| line.trim_end().to_owned()),
        );
        Ok(())
    };
    for family in ["-4", "-6"] {
        add(namespace.command("ip").args([family, "rule"]))?;
        add(namespace
            .command("ip")
            .args([family, "route", "show", "table", "all"]))?;
        add(namespace.command("ip").args([family, "-o", "addr"]))?;
    }
    add(namespace.command("nft").args(["list", "ruleset"]))?;
    add(namespace.command("tc").args(["qdisc", "show"]))?;
    add(namespace
        .command("sysctl")
        .args(["-a", "-r", r"^net\.ipv[46]\.(conf|ip_|tcp_)"]))?;
    // "2: a1@if3: <...>": names only, the rest moves by itself.
    let links = text(namespace.command("ip").args(["-o", "link"]))?;
    let names = links.lines().filter_map(|line| line.split(": ").nth(1));
    // Whether a link has its carrier is not FlexCP's doing.
    state
        .iter_mut()
        .for_each(|line| *line = line.replace(" linkdown", ""));
    state.extend(names.map(|name| format!("link {name}")));
    Ok(state)
}

/// An error that names what is new and what is gone.
pub(crate) fn ensure_same(before: &[String], after: &[String]) -> Result<()> {
    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    let gone: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    ensure!(
        new.is_empty() && gone.is_empty(),
        "FlexCP left the kernel's tables changed: new {new:?}, gone {gone:?}"
    );
    Ok(())
}

/// A server of names beside FlexCP that knows these; FlexCP's host asks it.
pub(crate) fn serve_names(lab: &Lab, records: &[(&str, IpAddr)]) -> Result<Background> {
    let mut command = lab.proxy().command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--pid-file",
    ]);
    command.args(["--user=root", "--no-resolv", "--no-hosts", "--log-queries"]);
    command.args(["--log-facility=-", "--listen-address=127.0.0.1"]);
    command.args(["--bind-interfaces", "--local=/test/"]);
    for (name, addr) in records {
        command.arg(format!("--host-record={name},{addr}"));
    }
    let dnsmasq = Background::spawn(command, lab.dir(), "dnsmasq")?;
    until("dnsmasq listens", || {
        Ok(dnsmasq.stderr().contains("started, version"))
    })?;
    std::fs::write(lab.dir().join(daemon::RESOLVER), "nameserver 127.0.0.1\n")?;
    Ok(dnsmasq)
}
