//! What is tried: the unit is started by the guest's systemd, carries transfers between a client and a server in namespaces
//! with the guest as their router, is killed, restarted and stopped.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::super::word::{Outcome, Wait, Word};
use super::service::{log, log_with, main_process, moment, property, stats, systemctl};
use crate::carried::{Carried, Transfer};
use crate::endings;
use crate::process::{output, text};
use crate::topology::{Families, Family, Lab};
use crate::transfer::{ServeOptions, Server};

/// The items, in their order; each needs those before it.
pub(super) const ITEMS: [&str; 8] = [
    "start",
    // The one whose share of packets in the kernel must be known.
    super::super::item::CARRIED,
    "transfer, up, IPv6",
    "watchdog",
    "kill -9",
    "kill -9, and a configuration that is wrong",
    "restart with an idle connection",
    "stop",
];

/// What the example configuration has in place of its servers.
pub(super) const DESTINATIONS: &str = r#"destinations = ["10.9.0.0/16", "fd09::/16"]"#;

/// What an item has found.
#[derive(Default)]
struct Found {
    carried: Option<Carried>,
    waits: Vec<Wait>,
}

/// Runs the items on the machine that runs here, and tells of each. Ends with the first that fails.
///
/// # Errors
///
/// Nothing could be run or told at all; what fails in an item is in its word.
pub(super) fn run_all(mut tell: impl FnMut(Word) -> Result<()>) -> Result<()> {
    let release = text(Command::new("uname").arg("-r"))?.trim().to_owned();
    tell(Word::Kernel { release })?;
    let trial = Trial::new()?;
    for item in ITEMS {
        let named = item.to_owned();
        tell(Word::Begin {
            item: named.clone(),
        })?;
        let began = Instant::now();
        let found = trial.run(item);
        let failed = found.as_ref().err();
        let detail = failed.map(|error| format!("{error:#}\n{}", log().unwrap_or_default()));
        let found = found.unwrap_or_default();
        let outcome = Outcome {
            item: named,
            passed: detail.is_none(),
            not_had: None,
            seconds: began.elapsed().as_secs_f64(),
            carried: found.carried,
            waits: found.waits,
            detail: detail.unwrap_or_default(),
        };
        let passed = outcome.passed;
        tell(Word::Ended(outcome))?;
        if !passed {
            break;
        }
    }
    tell(Word::End)
}

/// The machine as a router between a client with two paths and a server.
struct Trial {
    lab: Lab,
    _server: Server,
    /// What FlexCP changes on it, before the first start; of that the rules.
    before: String,
    rules: String,
}

impl Trial {
    fn new() -> Result<Self> {
        let lab = Lab::builder()
            .families(Families::Both)
            .rate_mbit(1, RATE_MBIT)
            .rate_mbit(2, RATE_MBIT)
            .wire(false)
            .proxy_here()
            .build()?;
        // It is FlexCP that makes a router of the machine.
        lab.proxy().sysctl(&[
            ("net.ipv4.ip_forward", "0"),
            ("net.ipv6.conf.all.forwarding", "0"),
        ])?;
        let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
        let before = left()?;
        Ok(Self {
            lab,
            _server: server,
            before,
            rules: rules()?,
        })
    }

    fn run(&self, item: &str) -> Result<Found> {
        match item {
            "start" => start(),
            "transfer, up, IPv6" => self.transfer(true),
            "watchdog" => watchdog(),
            "kill -9" => self.killed(),
            "kill -9, and a configuration that is wrong" => self.killed_for_longer(),
            "restart with an idle connection" => self.restarted(),
            "stop" => self.stopped(),
            _ => self.transfer(false),
        }
    }

    fn transfer(&self, up: bool) -> Result<Found> {
        let transfer = Transfer {
            v6: up,
            up,
            vlan: false,
            bytes: BYTES,
            rate_mbit: RATE_MBIT,
        };
        let carried = Some(transfer.through(&self.lab, PORT, stats)?);
        Ok(Found {
            carried,
            waits: vec![],
        })
    }

    /// The rules stay and lead to the device that systemd keeps, and the next run takes both over.
    fn killed(&self) -> Result<Found> {
        let (way, process) = (way_in()?, main_process()?);
        let idle = self.idle_client()?;
        let began = Instant::now();
        output(Command::new("kill").args(["-9", &process.to_string()]))?;
        wait_until("the next run is ready", AGAIN, || {
            let there = way_in()?;
            ensure!(there == way, "before:\n{way}\nmeanwhile:\n{there}");
            Ok(property("ActiveState")? == "active" && main_process()? != process)
        })?;
        let again = wait("ready again after", began.elapsed(), AGAIN);
        let heard = heard(idle)?.saturating_duration_since(began);
        let log = log_with("INFO ready")?;
        for said in [KEPT, "taken over as it was"] {
            ensure!(log.contains(said), "no `{said}` in the log");
        }
        ensure!(property("NRestarts")? == "1", "not restarted once");
        let clean = self::log()?;
        ensure!(!clean.contains("Control process exited"), "a step failed");
        let carried = self.transfer(false)?.carried;
        Ok(Found {
            carried,
            waits: vec![
                again,
                wait("an idle client hears of it after", heard, AGAIN),
            ],
        })
    }

    /// Packets pass by while it can't start; once it can, systemd does it.
    fn killed_for_longer(&self) -> Result<Found> {
        let right = fs::read_to_string(CONFIGURATION)?;
        let wrong = right.replace(DESTINATIONS, r#"destinations = ["nowhere"]"#);
        fs::write(CONFIGURATION, wrong)?;
        let began = Instant::now();
        let process = main_process()?.to_string();
        output(Command::new("kill").args(["-9", &process]))?;
        wait_until("the rules are gone", AGAIN, || Ok(rules()? == self.rules))?;
        let gone = wait("packets pass by after", began.elapsed(), AGAIN);
        fs::write(CONFIGURATION, right)?;
        let began = Instant::now();
        wait_until("the next run is ready", AGAIN, || {
            Ok(property("ActiveState")? == "active")
        })?;
        let again = wait("ready again after", began.elapsed(), AGAIN);
        let log = log_with("INFO ready")?;
        ensure!(log.contains(KEPT), "no `{KEPT}` in the log");
        let carried = self.transfer(false)?.carried;
        Ok(Found {
            carried,
            waits: vec![gone, again],
        })
    }

    fn restarted(&self) -> Result<Found> {
        let process = main_process()?;
        let idle = self.idle_client()?;
        let began = Instant::now();
        systemctl("restart")?;
        let heard = heard(idle)?.saturating_duration_since(began);
        ensure!(main_process()? != process, "it is the same process");
        let stopped = moment("InactiveEnter")?.saturating_sub(moment("ActiveExit")?);
        let log = log_with("INFO ready")?;
        ensure!(
            log.contains("INFO device flexcp0 made"),
            "the device is an old one"
        );
        Ok(Found {
            carried: None,
            waits: vec![
                wait("stopped after", stopped, STOPPED),
                wait("an idle client hears of it after", heard, STOPPED),
            ],
        })
    }

    fn stopped(&self) -> Result<Found> {
        let began = Instant::now();
        systemctl("stop")?;
        let stopped = wait("stopped after", began.elapsed(), STOPPED);
        for (name, good) in [
            ("ActiveState", "inactive"),
            ("Result", "success"),
            ("ExecMainStatus", "0"),
        ] {
            let value = property(name)?;
            ensure!(value == good, "{name} is {value}, not {good}");
        }
        let after = left()?;
        ensure!(
            after == self.before,
            "before:\n{}\nafter:\n{after}",
            self.before
        );
        Ok(Found {
            carried: None,
            waits: vec![stopped],
        })
    }

    /// A client that is connected through FlexCP, and waits: gives when it heard of the connection's end.
    fn idle_client(&self) -> Result<JoinHandle<Result<Option<Instant>>>> {
        let to: SocketAddr = self.lab.server_socket(1, Family::V4, PORT);
        let namespace = self.lab.client().clone();
        let client = thread::spawn(move || namespace.run(|| endings::wait(to, PATIENCE)));
        wait_until("FlexCP has the client's connection", PATIENCE, || {
            Ok(stats()?.number("connections")? == 1)
        })?;
        Ok(client)
    }
}

/// The unit's user, capabilities and bounds, and the offload.
fn start() -> Result<Found> {
    output(&mut Command::new("systemd-sysusers"))?;
    let user = user("flexcp")?;
    let began = Instant::now();
    systemctl("start")?;
    let ready = wait("ready after", began.elapsed(), START);
    ensure!(property("ActiveState")? == "active", "it is not active");
    ensure!(property("User")? == "flexcp", "it has another user");
    let log = log_with("INFO ready")?;
    ensure!(
        log.contains("INFO offload: up to 4096 connections"),
        "no offload"
    );
    ensure!(!log.contains(" WARN "), "it warns");
    let process = main_process()?;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        confined(&status, user).with_context(|| status.clone())?;
    }
    Ok(Found {
        carried: None,
        waits: vec![ready],
    })
}

/// Whether a thread, by its /proc/PID/status, has the unit's user, what is left of its capabilities once the programs are
/// loaded, and no way to more.
fn confined(status: &str, user: u32) -> Result<()> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>())
    };
    let user = user.to_string();
    let capabilities = |set: u64| vec![format!("{set:016x}")];
    let expected = [
        ("Uid:", vec![user.clone(); 4]),
        ("CapBnd:", capabilities(NET_ADMIN | PERFMON | BPF)),
        ("CapPrm:", capabilities(NET_ADMIN)),
        ("CapEff:", capabilities(NET_ADMIN)),
        ("CapInh:", capabilities(NET_ADMIN)),
        ("CapAmb:", capabilities(NET_ADMIN)),
        ("NoNewPrivs:", vec!["1".into()]),
        // Filtered.
        ("Seccomp:", vec!["2".into()]),
    ];
    for (name, value) in expected {
        let is = field(name).unwrap_or_default();
        ensure!(is == value, "{name} {is:?}, not {value:?}");
    }
    Ok(())
}

/// It reports to systemd, and was not started anew so far.
fn watchdog() -> Result<Found> {
    let every = property("WatchdogUSec")?;
    ensure!(every == "30s", "it is to report within {every}");
    let last = moment("Watchdog")?;
    let began = Instant::now();
    wait_until("a report", REPORTED, || Ok(moment("Watchdog")? > last))?;
    let report = wait("the next report after", began.elapsed(), REPORTED);
    ensure!(property("NRestarts")? == "0", "it was started anew");
    Ok(Found {
        carried: None,
        waits: vec![report],
    })
}

/// What FlexCP changes, and what it keeps.
fn left() -> Result<String> {
    let mut left = rules()?;
    for arguments in [
        "-4 route show table all proto 117",
        "-6 route show table all proto 117",
        "-br link",
    ] {
        left += &ip(arguments)?;
    }
    let qdiscs = text(Command::new("tc").args(["qdisc", "show"]))?;
    left.extend(qdiscs.lines().filter(|line| line.contains("clsact")));
    for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        left += &fs::read_to_string(format!("/proc/sys/net/{name}"))?;
    }
    let kept = fs::read_dir("/run/flexcp").into_iter().flatten().flatten();
    left.extend(kept.map(|entry| format!("{}\n", entry.path().display())));
    Ok(left)
}

fn rules() -> Result<String> {
    Ok(ip("-4 rule")? + &ip("-6 rule")?)
}

/// How packets get to FlexCP: the rules, and the index of its device, which another of that name would not have.
fn way_in() -> Result<String> {
    let file = "/sys/class/net/flexcp0/ifindex";
    let index = fs::read_to_string(file).context("there is no flexcp0")?;
    Ok(rules()? + &index)
}

fn ip(arguments: &str) -> Result<String> {
    text(Command::new("ip").args(arguments.split(' ')))
}

/// A user's number.
fn user(name: &str) -> Result<u32> {
    let users = fs::read_to_string("/etc/passwd")?;
    let mut fields = users.lines().map(|line| line.split(':'));
    let mut user = fields
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))
        .with_context(|| format!("no user {name}"))?;
    Ok(user.nth(1).context("no number")?.parse()?)
}

fn heard(client: JoinHandle<Result<Option<Instant>>>) -> Result<Instant> {
    let client = client.join().map_err(|_| anyhow!("a client panicked"))??;
    client.context("the idle client has heard nothing")
}

fn wait(what: &str, took: Duration, most: Duration) -> Wait {
    Wait {
        what: what.to_owned(),
        seconds: took.as_secs_f64(),
        most: most.as_secs_f64(),
    }
}

/// Asks until it is so.
///
/// # Errors
///
/// It is not so within `limit`, or can't be asked.
pub(super) fn wait_until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

const CONFIGURATION: &str = "/etc/flexcp/flexcp.toml";

/// What a run says that has its device from the one before.
const KEPT: &str = "an earlier run's, kept by the service manager";

/// Within the ports of the example configuration.
const PORT: u16 = 8000;

/// Of each transfer, and the rate of each path.
const BYTES: u64 = 150_000_000;
const RATE_MBIT: u32 = 200;

const NET_ADMIN: u64 = 1 << 12;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// Half of what systemd waits for (`TimeoutStartSec`).
const START: Duration = Duration::from_secs(45);

/// From a kill to the next run: the same, as it begins after `RestartSec`.
const AGAIN: Duration = Duration::from_secs(45);

/// Half of what systemd waits for (`WatchdogSec`); FlexCP reports twice in that.
const REPORTED: Duration = Duration::from_secs(15);

/// The drain (5 s), and as much for the rest, of which systemd takes most under emulation (the unit's last step).
const STOPPED: Duration = Duration::from_secs(10);

/// Of clients.
const PATIENCE: Duration = Duration::from_secs(60);
