//! One attack, from its lab to its outcome.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use super::aim::{Attacker, Position, Sent, Target};
use super::forge::Dice;
use super::kinds::{Attack, Blind, Flood, Kind, Service};
use super::victim::{Long, ShortStream, Shorts};
use crate::conduct::GROUPS;
use crate::daemon::{self, FlexCp};
use crate::kernel_log::KernelLog;
use crate::starvation::Starvation;
use crate::topology::{Family, Lab};
use crate::transfer::{Client, Job, Mode, ServeOptions, Server};

/// How an attack is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long at least; it goes on until the long transfers are over.
    pub duration: Duration,
    /// FlexCP's bound on handshakes that are not complete; its default when `None`.
    pub half_open: Option<usize>,
    /// Packets a second instead of the attack's own.
    pub rate: Option<u32>,
    /// Chooses addresses and numbers of the attacker's, and the payload.
    pub seed: u64,
}

/// Packets and bytes, from the IP header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One of the things that an attack must not achieve.
#[derive(Clone, Debug, Serialize)]
pub struct Criterion {
    /// What is asked for.
    pub what: &'static str,
    /// Whether it is so.
    pub passed: bool,
    /// What was found.
    pub found: String,
}

/// What came of an attack.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Its name.
    pub attack: String,
    /// What the attacker sent.
    pub sent: Volume,
    /// Packets a second that the attacker sent.
    pub rate: f64,
    /// What FlexCP's host sent to the spoofed addresses.
    pub to_spoofed: Volume,
    /// Bytes of it that were the server's own answers, sent on.
    pub answered_by_server: u64,
    /// SYNs that the server got while the attack ran.
    pub syns_to_server: u64,
    /// Hostile clients that FlexCP let in, and those of them that it ended.
    pub hostile_clients: (u64, u64),
    /// Time that the long MPTCP transfer took, in milliseconds.
    pub mptcp_ms: u64,
    /// Its longest time without a byte.
    pub mptcp_gap_ms: u64,
    /// Time that the long plain transfer took.
    pub plain_ms: u64,
    /// The longest time that a thread waited for a processor while the attack ran, in milliseconds.
    pub starved_ms: u64,
    /// The short connections.
    pub shorts: Shorts,
    /// FlexCP's resident memory in KiB: before, in the middle, at the end.
    pub rss_kib: [u64; 3],
    /// Share of one core that FlexCP used while the attack ran.
    pub cpu: f64,
    /// Entries in FlexCP's table at the end of the attack.
    pub connections: u64,
    /// FlexCP's counters and drop reasons that moved while the attack ran, by how much.
    pub moved: BTreeMap<String, u64>,
    /// What was asked for, and found.
    pub criteria: Vec<Criterion>,
}

impl Outcome {
    /// Whether every criterion is met.
    pub fn passed(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.passed)
    }

    /// What was not met, in words.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.criteria.iter().filter(|criterion| !criterion.passed);
        failed
            .map(|criterion| format!("{}: {}", criterion.what, criterion.found))
            .collect()
    }

    /// A counter's move.
    pub fn counter(&self, name: &str) -> u64 {
        self.moved.get(name).copied().unwrap_or(0)
    }

    fn judge(&mut self, what: &'static str, passed: bool, found: impl Into<String>) {
        self.criteria.push(Criterion {
            what,
            passed,
            found: found.into(),
        });
    }
}

/// Runs an attack in a lab of its own.
///
/// An error is something that kept the attack from being run; what FlexCP did wrong is in the outcome.
pub fn run(attack: Attack, options: &Options) -> Result<Outcome> {
    let attack = Attack {
        rate: options.rate.unwrap_or(attack.rate),
        ..attack
    };
    let lab = Lab::builder()
        .rate_mbit(1, RATE_MBIT)
        .rate_mbit(2, RATE_MBIT)
        // Convert stands in SYNs.
        .client_sysctl("net.ipv4.tcp_fastopen", "5")
        .build()?;
    // The relay's sockets take it from there.
    lab.proxy().sysctl(&[("net.ipv4.tcp_fastopen", "3")])?;
    let log = KernelLog::mark()?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let mut flexcp = FlexCp::start(&lab, &config(&lab, options))?;
    let mut outcome = Outcome {
        attack: attack.name.to_owned(),
        ..Outcome::default()
    };
    let result = Stage {
        lab: &lab,
        flexcp: &mut flexcp,
        attack,
        options,
    }
    .play(&mut outcome);
    result.with_context(|| format!("{}\n{}", attack.name, flexcp.log()))?;
    let alarms = log.complaints()?;
    outcome.judge("kernel log silent", alarms.is_empty(), alarms.join("; "));
    let stopped = flexcp.stop();
    let found = stopped
        .as_ref()
        .map_or_else(|e| format!("{e:#}"), |()| String::new());
    outcome.judge("FlexCP lives, and ends when asked", stopped.is_ok(), found);
    Ok(outcome)
}

fn config(lab: &Lab, options: &Options) -> String {
    let own = |port| [SocketAddr::new(lab.proxy_addr(1, Family::V4), port).to_string()];
    let backends = [lab.server_socket(1, Family::V4, PORT).to_string()];
    let limits = options.half_open.map_or_else(String::new, |half_open| {
        format!("[limits]\nhalf_open = {half_open}\n\n")
    });
    // Half-open handshakes stay as long as they do by default: the bound has to hold, not the clock.
    let timeouts = "[timeouts]\nlinger = \"500ms\"\n\n";
    let explicit = |mode: &str, port| {
        let service = daemon::explicit(mode, &own(port), &["10.9.0.0/16"]);
        service.replace("\"any\"", &format!("{mode:?}"))
    };
    let splits = if daemon::offload_is_off() {
        String::new()
    } else {
        let service =
            explicit("convert", SPLIT_PORT).replace("\"convert\"\nmode", "\"split\"\nmode");
        service + "carrier = \"split\"\n"
    };
    let services = daemon::transparent(lab, &[])
        + &daemon::reverse("rev", &own(REVERSE_PORT), &backends, &[])
        + &explicit("convert", CONVERT_PORT)
        + &splits
        + &explicit("socks5", SOCKS_PORT);
    daemon::config(lab, &format!("{limits}{timeouts}{services}"))
}

struct Stage<'a> {
    lab: &'a Lab,
    flexcp: &'a mut FlexCp,
    attack: Attack,
    options: &'a Options,
}

impl Stage<'_> {
    fn play(&mut self, outcome: &mut Outcome) -> Result<()> {
        let starvation = Starvation::measure()?;
        let position = Position::take(self.lab)?;
        let service = self.service();
        let (mptcp, plain) = self.start_long();
        let target = self.wait_for_target()?;
        let before = self.counters()?;
        outcome.rss_kib[0] = rss_kib(self.flexcp.pid())?;
        let cpu = cpu_ticks(self.flexcp.pid())?;
        let syns = position.syns_to_server();
        let short = [Client::mptcp(service), Client::tcp(service)].map(|c| self.by_name(c));
        let shorts = ShortStream::start(
            self.lab.client(),
            short.map(|client| client.patience(SHORT_PATIENCE)).to_vec(),
        );
        let began = Instant::now();
        let attacker = Attacker {
            attack: self.attack,
            position: &position,
            target: &target,
            client: self.lab.client(),
            service,
            dice: Dice::new(self.options.seed),
        };
        let stop = AtomicBool::new(false);
        let mut subflows = vec![];
        let sent = thread::scope(|scope| {
            let attacker = scope.spawn(|| attacker.run(|| stop.load(Ordering::Relaxed)));
            let looks = self.look_on(outcome, &target, || {
                (mptcp.is_over(), plain.is_over() || attacker.is_finished())
            });
            stop.store(true, Ordering::Relaxed);
            let sent = attacker.join();
            subflows = looks?;
            sent.unwrap_or_else(|_| bail!("the attacker panicked"))
        })?;
        let took = began.elapsed();
        outcome.rss_kib[2] = rss_kib(self.flexcp.pid())?;
        let ticks = cpu_ticks(self.flexcp.pid())?.saturating_sub(cpu);
        outcome.cpu = ticks as f64 / TICKS_A_SECOND / took.as_secs_f64();
        outcome.shorts = shorts.finish()?;
        let after = self.counters()?;
        outcome.connections = after.get(CONNECTIONS).copied().unwrap_or(0);
        outcome.moved = after
            .iter()
            .map(|(name, value)| {
                (
                    name.clone(),
                    value - before.get(name).unwrap_or(&0).min(value),
                )
            })
            .filter(|(name, value)| *value != 0 && name != CONNECTIONS)
            .collect();
        note_sent(outcome, &sent, &position, self.attack.service);
        outcome.syns_to_server = position.syns_to_server() - syns;
        let (mptcp, plain) = (mptcp.report()?, plain.report()?);
        outcome.mptcp_ms = mptcp.total_us / 1000;
        outcome.mptcp_gap_ms = mptcp.longest_gap_us / 1000;
        outcome.plain_ms = plain.total_us / 1000;
        let failed = |report: &crate::transfer::Report| report.ok().err().map(|e| format!("{e:#}"));
        for (what, report) in [
            ("long MPTCP transfer, every byte right", &mptcp),
            ("long plain transfer, every byte right", &plain),
        ] {
            let failed = failed(report);
            outcome.judge(what, failed.is_none(), failed.unwrap_or_default());
        }
        outcome.starved_ms = u64::try_from(starvation.longest().as_millis()).unwrap_or(u64::MAX);
        self.judge(outcome, &subflows);
        judge_pace(outcome, self.options.duration);
        Ok(())
    }

    /// Looks on while the attack goes on; how many subflows the long connection had at each look. `over`:
    /// whether the long MPTCP transfer is, and everything else.
    fn look_on(
        &self,
        outcome: &mut Outcome,
        target: &Target,
        over: impl Fn() -> (bool, bool),
    ) -> Result<Vec<usize>> {
        let began = Instant::now();
        let limit = self.options.duration * 4 + Duration::from_secs(30);
        // What is aimed at has to be there.
        let blind = matches!(self.attack.kind, Kind::Blind(..));
        let mut subflows = vec![];
        while began.elapsed() < limit {
            thread::sleep(LOOK);
            if outcome.rss_kib[1] == 0 && began.elapsed() * 2 > self.options.duration {
                outcome.rss_kib[1] = rss_kib(self.flexcp.pid())?;
                if self.attack.kind == Kind::Flood(Flood::JoinToken) {
                    self.join_again()?;
                }
            }
            let now = subflows_of(self.flexcp, target.token)?;
            let (mptcp, rest) = over();
            if let Some(count) = now.filter(|_| !mptcp) {
                subflows.push(count);
            }
            let long_enough = blind || began.elapsed() > self.options.duration;
            if mptcp && long_enough && (blind || rest) {
                break;
            }
        }
        Ok(subflows)
    }

    /// What is attacked.
    fn service(&self) -> SocketAddr {
        let port = match self.attack.service {
            Service::Transparent => return self.lab.server_socket(1, Family::V4, PORT),
            Service::Reverse => REVERSE_PORT,
            Service::Convert => CONVERT_PORT,
            Service::Split => SPLIT_PORT,
            Service::Socks5 => SOCKS_PORT,
        };
        SocketAddr::new(self.lab.proxy_addr(1, Family::V4), port)
    }

    /// A client that names the server, where clients do.
    fn by_name(&self, client: Client) -> Client {
        let server = self.lab.server_socket(1, Family::V4, PORT);
        match self.attack.service {
            Service::Convert | Service::Split => client.convert(server),
            Service::Socks5 => client.socks5(&server.ip().to_string(), PORT),
            Service::Transparent | Service::Reverse => client,
        }
    }

    fn start_long(&self) -> (Long, Long) {
        let to = self.lab.server_socket(1, Family::V4, PORT);
        let seconds = self.options.duration.as_secs().max(1);
        // Rounds, so that bytes go both ways, and are checked, until the very end.
        let long = |client: Client, bytes: u64| {
            let job = Job {
                rounds: u32::try_from(seconds * bytes / ROUND).unwrap_or(u32::MAX),
                ..Job::new(Mode::PingPong, ROUND / 16, ROUND).seed(self.options.seed)
            };
            Long::start(self.lab.client(), client, job)
        };
        (
            long(Client::mptcp(to), MPTCP_BYTES_A_SECOND),
            long(Client::tcp(to), PLAIN_BYTES_A_SECOND),
        )
    }

    /// Waits until the long connection has both its subflows.
    fn wait_for_target(&self) -> Result<Target> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            if let Some(target) = Target::busiest(self.flexcp)?
                && target.subflows.len() >= 2
            {
                // Both have carried something by then, so that their numbers have been seen.
                thread::sleep(LOOK);
                return Ok(target);
            }
            ensure!(
                Instant::now() < deadline,
                "the long connection has no second subflow"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has the long connection give up its second subflow and join again, under fire.
    fn join_again(&self) -> Result<()> {
        let client = self.lab.client();
        client.ip("mptcp endpoint flush")?;
        thread::sleep(LOOK);
        let own = self.lab.client_addr(2, Family::V4);
        client.ip(&format!("mptcp endpoint add {own} dev a2 subflow"))?;
        Ok(())
    }

    /// All counters and drop reasons, by name.
    fn counters(&self) -> Result<BTreeMap<String, u64>> {
        let stats = self.flexcp.show_stats()?;
        let mut all = BTreeMap::new();
        for group in GROUPS {
            let group = stats.group(group)?.into_iter();
            all.extend(group.map(|(name, value)| (name.to_owned(), value)));
        }
        all.insert(CONNECTIONS.to_owned(), stats.number(CONNECTIONS)?);
        Ok(all)
    }

    fn judge(&mut self, outcome: &mut Outcome, subflows: &[usize]) {
        let alive = self.flexcp.alive();
        outcome.judge(
            "FlexCP runs",
            alive.is_ok(),
            alive
                .err()
                .map_or_else(String::new, |error| format!("{error:#}")),
        );
        if self.attack.kind == Kind::Flood(Flood::JoinToken) {
            let last = subflows.last().copied().unwrap_or(0);
            let found = format!("{last} subflows");
            outcome.judge("a subflow that was given up joins again", last >= 2, found);
        } else {
            // The last look may have seen a connection that was being closed.
            let looks = &subflows[..subflows.len().saturating_sub(1)];
            let fewest = looks.iter().min().copied().unwrap_or(0);
            outcome.judge("both subflows last", fewest >= 2, fewest.to_string());
        }
        let shorts = &outcome.shorts;
        let share = shorts.succeeded as f64 / shorts.tried.max(1) as f64;
        let enough = share >= 0.999 && shorts.tried > 0;
        let found = format!(
            "{} of {} {}",
            shorts.succeeded,
            shorts.tried,
            shorts.first_failure.as_deref().unwrap_or_default()
        );
        outcome.judge("99.9 % of short connections succeed", enough, found);
        let [before, middle, end] = outcome.rss_kib;
        let growth = end.saturating_sub(middle);
        outcome.judge(
            "memory flat in the second half",
            growth <= (middle / 50).max(RSS_SLACK_KIB),
            format!("{before} -> {middle} -> {end} KiB"),
        );
        let own = outcome
            .to_spoofed
            .bytes
            .saturating_sub(outcome.answered_by_server);
        let ratio = own as f64 / outcome.sent.bytes.max(1) as f64;
        // A SYN without data that asks for MPTCP is answered with a key.
        let keys = match self.attack.service {
            Service::Socks5 => KEY * outcome.sent.packets,
            _ => 0,
        };
        outcome.judge(
            "FlexCP adds no more than it was sent",
            own <= outcome.sent.bytes + keys,
            format!("{ratio:.2}"),
        );
        if self.attack.service.is_explicit() {
            judge_calls(outcome, self.attack.kind);
        }
        self.judge_kind(outcome);
    }

    /// What only some attacks could bring about.
    fn judge_kind(&self, outcome: &mut Outcome) {
        let fallbacks = outcome.counter("fallback_established");
        outcome.judge(
            "no connection falls back",
            fallbacks == 0,
            fallbacks.to_string(),
        );
        if let Kind::Blind(..) = self.attack.kind {
            // Honest connections cost FlexCP some packets of its own, forged ones at most some a second.
            let made = outcome.counter("packets_made");
            let honest = 500 + 4 * u64::try_from(outcome.shorts.tried).unwrap_or(u64::MAX);
            let few = made <= honest + outcome.sent.packets / 20;
            let found = format!("{made} packets of FlexCP's own");
            outcome.judge("few answers to forged packets", few, found);
        }
        match self.attack.kind {
            Kind::Blind(_, Blind::Icmp) => {
                let lowered = outcome.counter("path_mtu_lowered");
                outcome.judge("no MTU is believed", lowered == 0, lowered.to_string());
            }
            Kind::Flood(Flood::Syn | Flood::Capable | Flood::CapableOfClient)
                if !self.attack.service.is_explicit() =>
            {
                let dropped = outcome.counter("limit_reached");
                outcome.judge("no SYN is dropped", dropped == 0, dropped.to_string());
            }
            Kind::Flood(Flood::JoinToken) => {
                let joined = outcome.counter("mp_join_syn_rx");
                let refused = outcome.counter("mp_join_refused");
                let capped = refused > joined;
                outcome.judge(
                    "joins capped",
                    capped,
                    format!("{joined} answered, {refused} refused"),
                );
            }
            Kind::MapBomb => {
                let (bombs, resets) = outcome.hostile_clients;
                let found = format!("{resets} of {bombs} reset");
                // The last one may not have come to its end.
                let capped = resets > 0 && resets + 1 >= bombs;
                outcome.judge("mappings capped", capped, found);
            }
            Kind::SlowLoris => {
                let (opened, ended) = outcome.hostile_clients;
                let found = format!("{ended} of {opened}");
                let all = opened > 0 && ended == opened;
                outcome.judge("whoever never comes to the end is left", all, found);
            }
            _ => {}
        }
    }
}

/// A server is called for those whom it is to serve, once for each SYN at most.
fn judge_calls(outcome: &mut Outcome, kind: Kind) {
    let asked = match kind {
        Kind::Flood(Flood::Connect) => outcome.sent.packets,
        _ => 0,
    };
    // SYNs of honest clients, some of them again.
    let honest = 2 * u64::try_from(outcome.shorts.tried).unwrap_or(u64::MAX) + 100;
    let syns = outcome.syns_to_server;
    let found = format!("{syns} for {asked} hostile and {honest} honest ones at most");
    outcome.judge(
        "no more SYNs to the server than came",
        syns <= asked + honest,
        found,
    );
}

/// Honest transfers go on: together they take at most [`SLOWDOWN`] times as long as one of the two links alone would
/// need for their bytes, and never stand still for long.
fn judge_pace(outcome: &mut Outcome, duration: Duration) {
    let seconds = duration.as_secs().max(1);
    let bytes = seconds * (MPTCP_BYTES_A_SECOND + PLAIN_BYTES_A_SECOND);
    let link_ms = bytes * 8 / (u64::from(RATE_MBIT) * 1000);
    let starved = 2 * outcome.starved_ms;
    let bound = link_ms * SLOWDOWN + BEGINNING_MS + starved;
    let took = outcome.mptcp_ms.max(outcome.plain_ms);
    let found = format!("{took} ms, {bound} may be");
    outcome.judge("honest transfers keep their pace", took <= bound, found);
    let bound = GAP_MS + starved;
    let gap = outcome.mptcp_gap_ms;
    let found = format!("{gap} ms without a byte, {bound} may be");
    outcome.judge("the MPTCP transfer never stands still", gap <= bound, found);
}

fn note_sent(outcome: &mut Outcome, sent: &Sent, position: &Position, service: Service) {
    outcome.sent = Volume {
        packets: sent.packets,
        bytes: sent.bytes,
    };
    outcome.rate = sent.packets as f64 / sent.took.as_secs_f64().max(1e-3);
    outcome.hostile_clients = sent.bombs;
    let (packets, bytes) = position.to_spoofed();
    outcome.to_spoofed = Volume { packets, bytes };
    outcome.answered_by_server = position.answered_by_server(service);
}

/// Established subflows of the connection with this token, while it is translated in both directions.
fn subflows_of(flexcp: &FlexCp, token: u32) -> Result<Option<usize>> {
    let view = flexcp.show_connections()?;
    let connections = view["connections"].as_array().into_iter().flatten();
    let mut ours = connections.filter(|c| c["token"] == token && c["state"] == "translating");
    let established = |subflow: &&Value| subflow["established"] == true;
    Ok(ours.next().map(|connection| {
        let subflows = connection["subflows"].as_array().into_iter().flatten();
        subflows.filter(established).count()
    }))
}

pub(super) fn rss_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.context("no VmRSS")?.parse()?)
}

/// Time on a processor, user and system, in clock ticks.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no fields")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = fields.get(11..13).context("too few fields")?;
    Ok(ticks
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum())
}

/// The server's port.
const PORT: u16 = 5000;
/// FlexCP's own.
const REVERSE_PORT: u16 = 8080;
const CONVERT_PORT: u16 = 1080;
const SOCKS_PORT: u16 = 1081;
const SPLIT_PORT: u16 = 1082;
/// Bytes of a key in `MP_CAPABLE`.
const KEY: u64 = 8;
/// A flood of 10,000 packets a second shares two processors with everything else: measured 1.29 at most.
const SLOWDOWN: u64 = 2;
/// Time for the beginning of a transfer, in milliseconds.
const BEGINNING_MS: u64 = 1000;
/// A retransmission timeout and its first two back-offs, in milliseconds: what honest packets that a flood pushes out
/// of a queue cost.
const GAP_MS: u64 = 1500;
/// Rate of each access link.
const RATE_MBIT: u32 = 100;
/// Two links full for most of the time.
const MPTCP_BYTES_A_SECOND: u64 = 14_000_000;
const PLAIN_BYTES_A_SECOND: u64 = 3_000_000;
/// Bytes down in one round of a long transfer.
const ROUND: u64 = 1_000_000;
/// A short connection that takes longer has failed.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at what happens.
const LOOK: Duration = Duration::from_millis(100);
/// Memory that may move for any reason.
const RSS_SLACK_KIB: u64 = 2048;
/// `USER_HZ`
const TICKS_A_SECOND: f64 = 100.0;
const CONNECTIONS: &str = "connections";

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(mptcp_ms: u64, plain_ms: u64, mptcp_gap_ms: u64) -> usize {
        let mut outcome = Outcome {
            mptcp_ms,
            plain_ms,
            mptcp_gap_ms,
            ..Outcome::default()
        };
        judge_pace(&mut outcome, Duration::from_secs(5));
        outcome.failures().len()
    }

    #[test]
    fn honest_traffic_that_is_slowed_down_is_a_failure() {
        assert_eq!(failures(7700, 5000, 300), 0);
        assert_eq!(failures(20_000, 5000, 300), 1);
        assert_eq!(failures(7700, 20_000, 300), 1);
    }

    #[test]
    fn honest_transfer_that_stands_still_is_a_failure() {
        assert_eq!(failures(7700, 5000, 2000), 1);
    }
}
