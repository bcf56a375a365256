//! The box's side: which path is probed when, what is learned, and which server is used.

mod rounds;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use crate::choice::{Chooser, Policy, Switch};
use crate::config::{Config, ConfigError};
use crate::estimate::Transfer;
use crate::ledger::Ledger;
use crate::leg::Leg;
use crate::overhead;
use crate::path::{Handshake, Path};
use crate::probe::Malformed;
use crate::random::Random;
use crate::rate::Rate;
use crate::reason::Reason;
use crate::table::{Probing, Reach, ServerRow, Table};
use crate::time::{Time, stamp};

/// A datagram that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// To which server.
    pub server: usize,
    /// Over which uplink.
    pub uplink: usize,
    /// To this address.
    pub to: SocketAddr,
    /// Bytes of the buffer.
    pub length: usize,
}

/// Something that the host is to do: a TCP handshake with a server over an uplink, where no responder answers. What came of it
/// is told by [`Locator::handshake`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errand {
    /// With which server.
    pub server: usize,
    /// Over which uplink.
    pub uplink: usize,
}

/// Something that an operator wants to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Another server is used for new connections.
    Switched(Switch),
    /// A server can be reached, or cannot.
    Reach {
        /// Which.
        server: usize,
        /// Whether it can.
        is_reachable: bool,
    },
    /// A server's responder answers probes, or does not.
    Probing {
        /// Which.
        server: usize,
        /// Whether it does.
        answers: bool,
    },
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// There is no such server or uplink, or the server has no key.
    Nobody,
    /// Its form, key or tag is wrong.
    Malformed(Malformed),
    /// It answers nothing that is out: it is late, or was seen before.
    Unasked,
}

/// What a locator has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that were taken.
    pub received: u64,
    /// Datagrams that were not.
    pub ignored: u64,
    /// Bytes that probes have cost, both ways, with headers: what was sent, and the most that it may have brought back.
    pub bytes: u64,
    /// Rounds that ended.
    pub rounds: u64,
    /// Rounds that had no answer.
    pub silent_rounds: u64,
    /// Rounds, trains and datagrams that were left out for the budget's sake.
    pub starved: u64,
    /// Another server was used.
    pub switches: u64,
}

/// Chooses among servers by measurement.
///
/// - What the host has to tell: [`set_path`](Self::set_path) when uplinks come and go, [`activity`](Self::activity) while there
///   are connections, [`transferred`](Self::transferred) and [`delay`](Self::delay) what they show, and
///   [`handshake`](Self::handshake) how handshakes went.
/// - Each datagram goes to [`handle_datagram`](Self::handle_datagram), and [`handle_timeout`](Self::handle_timeout) is called at
///   the time that [`poll_timeout`](Self::poll_timeout) says.
/// - After any of these, [`poll_transmit`](Self::poll_transmit), [`poll_errand`](Self::poll_errand) and
///   [`poll_event`](Self::poll_event) are called until they have nothing more.
/// - [`order`](Self::order) is what connections go by; [`table`](Self::table) and [`reason`](Self::reason) are for people.
#[derive(Debug)]
pub struct Locator {
    config: Config,
    random: Random,
    /// The paths of the first server, one for each uplink, then those of the second.
    paths: Vec<Path>,
    servers: Vec<Known>,
    /// What deep buckets let through for long, by uplink, and when that was seen.
    ceilings: Vec<Option<(Rate, Time)>>,
    ledger: Ledger,
    chooser: Chooser,
    /// Probes go on until then.
    active: Option<Time>,
    /// Paths have come or gone since the last choice.
    is_changed: bool,
    events: VecDeque<Event>,
    counters: Counters,
}

/// What is known of a server as a whole.
#[derive(Clone, Debug)]
struct Known {
    ledger: Ledger,
    leg: Option<(Leg, Time)>,
    reach: Reach,
    probing: Probing,
}

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of a handshake and its end, both ways.
const HANDSHAKE_BYTES: u64 = 400;
/// A deep bucket is remembered for so long.
const CEILING_HOLDS: Duration = Duration::from_secs(3600);
/// Most events that wait to be heard; the oldest ones are dropped.
const EVENTS: usize = 64;

impl Locator {
    /// Begins. `seed` is a number that no other run has had.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration cannot be done.
    pub fn new(config: Config, policy: Box<dyn Policy>, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let known = Known {
            ledger: Ledger::new(config.server_bytes_per_hour),
            leg: None,
            reach: Reach::Unknown,
            probing: Probing::Unknown,
        };
        let mut locator = Self {
            random: Random::new(seed),
            paths: (0..config.servers.len() * config.uplinks.len())
                .map(|_| Path::new())
                .collect(),
            servers: alloc::vec![known; config.servers.len()],
            ceilings: alloc::vec![None; config.uplinks.len()],
            ledger: Ledger::new(config.bytes_per_hour),
            chooser: Chooser::new(policy, config.margin, config.hold),
            active: None,
            is_changed: false,
            events: VecDeque::new(),
            counters: Counters::default(),
            config,
        };
        locator.choose(Time::ZERO);
        // That nothing can be reached yet is no news.
        locator.events.clear();
        Ok(locator)
    }

    /// Whether a server can be asked over an uplink: that is there, and has an address of the server's family. No path can be
    /// before this is said. What follows for the choice is looked at by the next [`handle_timeout`](Self::handle_timeout), which is
    /// due at once: so several paths can be told one after the other.
    pub fn set_path(&mut self, server: usize, uplink: usize, is_usable: bool, now: Time) {
        let Some(path) = self.path_mut(server, uplink) else {
            return;
        };
        if path.is_usable == is_usable {
            return;
        }
        path.is_usable = is_usable;
        path.is_alive = None;
        path.round = None;
        path.handshake = Handshake::None;
        path.owes_handshake = false;
        path.session = crate::path::Number::default();
        path.next = now;
        self.is_changed = true;
    }

    /// There are connections, or one begins. Without this for the time of [`Config::idle`] probes pause.
    pub fn activity(&mut self, now: Time) {
        if !self.is_active(now) {
            let interval = self.config.interval;
            for path in &mut self.paths {
                let is_old = path.begun.is_none_or(|begun| now.since(begun) >= interval);
                if is_old {
                    path.next = now;
                }
            }
        }
        self.active = Some(now + self.config.idle);
    }

    /// Whether probes go on at this time.
    #[must_use]
    pub fn is_active(&self, now: Time) -> bool {
        self.active.is_some_and(|until| now < until)
    }

    /// What a real transfer towards the box has shown.
    pub fn transferred(&mut self, server: usize, uplink: usize, transfer: &Transfer, now: Time) {
        let Some(path) = self.path_mut(server, uplink) else {
            return;
        };
        let Some(rate) = path.down.transferred(transfer, now) else {
            return;
        };
        path.is_alive = Some(true);
        path.owes_handshake = false;
        let flat = path.down.flat();
        // Trains over this path have met a bucket deeper than they are long. It stands at the uplink most probably, and lets
        // trains of other servers pass too.
        if transfer.by_path && flat.is_some_and(|flat| rate < flat.thousandths(800)) {
            self.ceilings[uplink] = Some((rate, now));
        }
        self.choose(now);
    }

    /// What the opening of a real connection has shown of the round trip.
    pub fn delay(&mut self, server: usize, uplink: usize, delay: Duration, now: Time) {
        let Some(path) = self.path_mut(server, uplink) else {
            return;
        };
        path.delay.heard(delay, now);
        path.is_alive = Some(true);
        path.owes_handshake = false;
        self.choose(now);
    }

    /// How a TCP handshake with a server went: one that an [`Errand`] asked for, or one of a real connection. `None` says that
    /// it had no answer.
    pub fn handshake(&mut self, server: usize, uplink: usize, delay: Option<Duration>, now: Time) {
        let Some(path) = self.path_mut(server, uplink) else {
            return;
        };
        path.is_known |= path.handshake != Handshake::None;
        path.handshake = Handshake::None;
        path.is_alive = Some(delay.is_some());
        path.owes_handshake = delay.is_none();
        if let Some(delay) = delay {
            path.delay.heard(delay, now);
        }
        self.choose(now);
    }

    /// Takes a datagram of a server's, which has come over an uplink at the time `at` by the kernel's stamp, on the clock of
    /// `now`.
    ///
    /// # Errors
    /// [`Ignored`] when nothing came of it; it is counted.
    pub fn handle_datagram(
        &mut self,
        (server, uplink): (usize, usize),
        datagram: &[u8],
        at: Time,
        now: Time,
    ) -> Result<(), Ignored> {
        let outcome = self.hear((server, uplink), datagram, stamp(at, now), now);
        match outcome {
            Ok(()) => self.counters.received += 1,
            Err(_) => self.counters.ignored += 1,
        }
        self.finish(server, uplink, now);
        outcome
    }

    /// Writes the next datagram that is to be sent. `out` has room for [`probe::LONGEST`](crate::probe::LONGEST) bytes.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        for server in 0..self.servers.len() {
            for uplink in 0..self.config.uplinks.len() {
                while let Some((length, back)) = self.send(server, uplink, now, out) {
                    let to = self.config.servers[server].probe;
                    let bytes = (length + overhead(&to) + back) as u64;
                    // Others may have spent meanwhile what there was when the round began: then it is as if lost.
                    if !self.affords(server, bytes, now) {
                        self.counters.starved += 1;
                        continue;
                    }
                    self.spend(server, bytes, now);
                    self.counters.sent += 1;
                    return Some(Transmit {
                        server,
                        uplink,
                        to,
                        length,
                    });
                }
            }
        }
        None
    }

    /// The next thing that the host is to do.
    pub fn poll_errand(&mut self, now: Time) -> Option<Errand> {
        let path = self
            .paths
            .iter()
            .position(|path| path.handshake == Handshake::Wanted)?;
        let (server, uplink) = self.place(path);
        self.paths[path].handshake = Handshake::Since(now);
        self.spend(server, HANDSHAKE_BYTES, now);
        Some(Errand { server, uplink })
    }

    /// The next thing that an operator wants to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; `None` when nothing is to come by itself.
    #[must_use]
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        if self.is_changed {
            return Some(now);
        }
        let is_active = self.is_active(now);
        let busy = self.busy();
        let due = |at: usize| match (&self.paths[at].round, self.paths[at].handshake) {
            (Some(round), _) => Some(round.due()),
            (_, Handshake::Since(since)) => Some(since + HANDSHAKE),
            (_, Handshake::Wanted) => None,
            // One that waits for another begins when that is over.
            _ if !is_active || !self.paths[at].is_usable || busy.has(self.place(at)) => None,
            _ => Some(self.paths[at].next),
        };
        let first = (0..self.paths.len()).filter_map(due).min();
        let chooser = self.chooser.poll_timeout();
        first.into_iter().chain(chooser).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        for at in 0..self.paths.len() {
            let (server, uplink) = self.place(at);
            if self.paths[at].round.is_none() && self.paths[at].handshake == Handshake::None {
                continue;
            }
            if let Some((round, mut around)) = self.around(server, uplink, now) {
                round.handle_timeout(&mut around);
            }
            self.finish(server, uplink, now);
            let handshake = self.paths[at].handshake;
            if matches!(handshake, Handshake::Since(since) if now.since(since) >= HANDSHAKE) {
                self.handshake(server, uplink, None, now);
            }
        }
        if self.is_active(now) {
            self.begin_rounds(now);
        }
        let is_due = self.chooser.poll_timeout().is_some_and(|due| due <= now);
        if is_due || core::mem::take(&mut self.is_changed) {
            self.choose(now);
        }
    }

    /// All servers in the order in which a connection is to try them.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        self.chooser.order()
    }

    /// Why the first of them is the first.
    #[must_use]
    pub const fn reason(&self) -> Option<&Reason> {
        self.chooser.reason()
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.chooser.policy()
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of probes in the last hour, rounded up to a minute.
    pub fn bytes_of_hour(&mut self, now: Time) -> u64 {
        self.ledger.spent(now)
    }

    /// The time between two rounds of a path: as configured, or longer for the budget's sake.
    #[must_use]
    pub fn interval(&self) -> Duration {
        let uplinks = self.config.uplinks.len();
        let costs: Vec<u64> = (0..self.paths.len()).map(|path| self.cost(path)).collect();
        let servers = costs.chunks(uplinks).zip(&self.servers);
        let own = servers.map(|(costs, known)| known.ledger.pace(costs.iter().sum()));
        let paced = self.ledger.pace(costs.iter().sum());
        own.max()
            .unwrap_or_default()
            .max(paced)
            .max(self.config.interval)
    }

    /// What is known of all servers.
    #[must_use]
    pub fn table(&self, now: Time) -> Table {
        let uplinks = self.config.uplinks.len();
        let rows = self.paths.chunks(uplinks).zip(&self.servers);
        let servers = rows.zip(&self.config.servers);
        Table {
            uplinks: self
                .config
                .uplinks
                .iter()
                .map(|it| it.name.clone())
                .collect(),
            servers: servers
                .map(|((paths, known), server)| ServerRow {
                    name: server.name.clone(),
                    paths: paths
                        .iter()
                        .enumerate()
                        .map(|(uplink, path)| {
                            let line = self.config.uplinks[uplink].line;
                            path.row(self.config.interval, self.ceiling(uplink, now), line, now)
                        })
                        .collect(),
                    leg: known.leg.map(|(leg, _)| leg),
                    leg_at: known.leg.map(|(_, at)| at),
                    reach: known.reach,
                    probing: known.probing,
                })
                .collect(),
            is_complete: self.paths.iter().any(|path| path.is_usable)
                && self
                    .paths
                    .iter()
                    .all(|path| path.is_known || !path.is_usable),
        }
    }
}

impl Locator {
    fn place(&self, path: usize) -> (usize, usize) {
        let uplinks = self.config.uplinks.len();
        (path / uplinks, path % uplinks)
    }

    fn path_mut(&mut self, server: usize, uplink: usize) -> Option<&mut Path> {
        let uplinks = self.config.uplinks.len();
        if uplink >= uplinks || server >= self.servers.len() {
            return None;
        }
        self.paths.get_mut(server * uplinks + uplink)
    }

    fn ceiling(&self, uplink: usize, now: Time) -> Option<Rate> {
        let (rate, at) = (*self.ceilings.get(uplink)?)?;
        (now.since(at) <= CEILING_HOLDS).then_some(rate)
    }

    fn affords(&mut self, server: usize, bytes: u64, now: Time) -> bool {
        self.ledger.affords(bytes, now) && self.servers[server].ledger.affords(bytes, now)
    }

    fn spend(&mut self, server: usize, bytes: u64, now: Time) {
        self.ledger.spend(bytes, now);
        self.servers[server].ledger.spend(bytes, now);
        self.counters.bytes += bytes;
    }

    /// Looks at all that is known, and says what has changed.
    fn choose(&mut self, now: Time) {
        for server in 0..self.servers.len() {
            let (reach, probing) = self.judged(server);
            let known = &mut self.servers[server];
            let (before, did) = (known.reach, known.probing);
            known.reach = reach;
            known.probing = probing;
            if reach != before && reach != Reach::Unknown {
                let is_reachable = reach == Reach::Yes;
                self.tell(Event::Reach {
                    server,
                    is_reachable,
                });
            }
            if probing != did && matches!(probing, Probing::Answers | Probing::Silent) {
                let answers = probing == Probing::Answers;
                self.tell(Event::Probing { server, answers });
            }
        }
        let table = self.table(now);
        if let Some(switch) = self.chooser.update(&table, now) {
            self.counters.switches += u64::from(switch.from.is_some());
            self.tell(Event::Switched(switch));
        }
    }

    fn judged(&self, server: usize) -> (Reach, Probing) {
        let uplinks = self.config.uplinks.len();
        let paths = &self.paths[server * uplinks..][..uplinks];
        let usable = || paths.iter().filter(|path| path.is_usable);
        let reach = if usable().any(|path| path.is_alive == Some(true)) {
            Reach::Yes
        } else if usable().all(|path| path.is_alive == Some(false)) {
            Reach::No
        } else {
            Reach::Unknown
        };
        let probing = if self.config.servers[server].key.is_none() {
            Probing::Keyless
        } else if usable().any(|path| path.responds == Some(true)) {
            Probing::Answers
        } else if usable().any(|path| path.responds == Some(false)) {
            Probing::Silent
        } else {
            Probing::Unknown
        };
        (reach, probing)
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("no such server, or one without a key"),
            Self::Malformed(what) => what.fmt(f),
            Self::Unasked => f.write_str("an answer to nothing that is out"),
        }
    }
}

impl core::error::Error for Ignored {}
