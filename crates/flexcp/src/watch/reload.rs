//! Another configuration takes effect, without a moment in which a packet of a service that stays finds less than before.
//!
//! First the workers and the placement program learn whose packets are whose, then each worker what it does, then the kernel
//! which packets to bring: a packet that comes finds who knows what to do with it. What went stays with the kernel until
//! its connections have had their time ([`drained`](super::drained)).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use flexcp_io::{KernelError, PlacedBackEnds, Plan, UplinkWay, Watch, monotonic_micros};
use flexcp_placement::Rules;
use tracing::{info, warn};

use super::backends::Backends;
use super::closing::Closing;
use super::drained::Ending;
use super::{Expected, Steered, Unwatched, Watcher};
use crate::config::live::own_addresses;
use crate::config::told::Wrong;
use crate::config::{Config, access, plan};
use crate::generation::{Generation, InForce, NotNow};
use crate::location::Locating;
use crate::orders::{Order, Unknown};
use crate::proxy::ways as named_ways;
use crate::rulebook::{Change, Rulebook};
use crate::split::{Relay, SplitError};
use crate::uplinks;
use crate::uplinks::ways::{self, Ways};
use crate::worker::{Configure, Marks};

/// A configuration that fits the host, to be put into force.
#[derive(Debug)]
pub struct Wanted {
    /// What the file says.
    pub config: Config,
    /// The addresses towards each service's back ends.
    pub sources: Vec<Vec<IpAddr>>,
}

/// The configurations that connections go by.
#[derive(Debug)]
pub struct Reloads {
    pub(super) force: InForce,
    /// As the first configuration has them: the number of workers and the keys stay.
    rules: Rules,
    /// What the placement program knows; `None`: there is none.
    placement: Option<PlacedBackEnds>,
    /// The end of connections that nothing covers any more, when one is under way.
    pub(super) ending: Option<Ending>,
    /// Services that are drained while they are there.
    pub(super) closings: Vec<Closing>,
    /// What the API has set.
    pub(super) book: Rulebook,
    /// The interfaces that accesses name, as the workers know them.
    pub(super) ways: Vec<String>,
    /// The host's addresses when the configuration was put into force.
    own: Vec<IpAddr>,
    /// It carries split connections.
    pub(super) relay: Relay,
    /// How packets from uplinks' addresses should leave.
    pub(super) uplink_ways: Ways,
    /// It chooses among servers by measurement, and answers who does.
    pub(super) locating: Locating,
}

impl Reloads {
    /// With the first configuration in force, by whose `rules` workers sort packets.
    pub(crate) fn new(
        force: InForce,
        book: Rulebook,
        (rules, placement): (Rules, Option<PlacedBackEnds>),
        (relay, locating): (Relay, Locating),
    ) -> Self {
        Self {
            ways: access::interfaces(&force.current().config.accesses),
            force,
            rules,
            placement,
            ending: None,
            closings: Vec::new(),
            book,
            own: own_addresses(),
            relay,
            uplink_ways: Ways::default(),
            locating,
        }
    }

    /// Has the relay accept clients, if there is anything for it to do, and servers be chosen, of which workers note in `marks` what
    /// they have marked.
    pub(crate) fn run_beside(&mut self, marks: &[Arc<Marks>]) -> io::Result<()> {
        self.locating.follow(self.force.current(), marks);
        self.relay.run()
    }

    /// Whether connections may be split.
    pub(crate) fn splits(&self) -> bool {
        self.relay.is_needed()
    }

    /// What connections go by.
    pub(crate) fn force(&self) -> &InForce {
        &self.force
    }

    /// When there is something to do about connections that are drained, in microseconds.
    pub(super) fn due(&self) -> Option<u64> {
        let ending = self.ending.as_ref().map(Ending::due);
        let ending = ending.or_else(|| self.force.due());
        let closing = self.closings.iter().map(Closing::due).min();
        let ways = self.uplink_ways.due();
        ending.into_iter().chain(closing).chain(ways).min()
    }

    /// What the kernel should bring by `force`, on a host with the addresses `own`, and how packets from uplinks' addresses
    /// should leave. `known`: how they do.
    pub(super) fn plan(&mut self, force: &InForce, own: &[IpAddr], known: &[UplinkWay]) -> Plan {
        let config = &force.current().config;
        let (names, table) = (force.routed_uplinks(), plan::table(config));
        let now = monotonic_micros();
        Plan {
            uplinks: self.uplink_ways.find(&names, known, table, now),
            ..force.plan(own)
        }
    }
}

impl Watcher {
    /// Puts `wanted` into force.
    pub(super) fn change(&mut self, wanted: Wanted) -> Result<Arc<Generation>, ChangeError> {
        let Wanted {
            mut config,
            sources,
        } = wanted;
        let of_file = config.rules.clone();
        config.rules = self.reloads.book.in_force(&config)?;
        let uplinks = uplinks::find(&config);
        let next = self.reloads.force.next(config, sources)?;
        let next = Arc::new(next.with_uplinks(uplinks));
        let own = own_addresses();
        let now = monotonic_micros();
        let force = self.reloads.force.followed_by(Arc::clone(&next), now);
        let plan = self.reloads.plan(&force, &own, self.tables.uplinks());
        self.tables.check_change(&plan)?;
        self.reloads.relay.change(&next)?;
        if self.reloads.splits() {
            self.offload.leave_to_sockets();
        }
        self.reloads.own.clone_from(&own);
        let before = std::mem::replace(&mut self.reloads.force, force);
        let marks = self.configure();
        if let Err(error) = self.tables.change(&plan, &mut report) {
            let failed = std::mem::replace(&mut self.reloads.force, before.clone());
            self.reloads.force = failed.taken_back(before, now);
            let current = Arc::clone(self.reloads.force.current());
            if let Err(error) = self.reloads.relay.change(&current) {
                warn!("{error}");
            }
            let marks = self.configure();
            self.note_marks_in(marks);
            return Err(error.into());
        }
        self.reloads.book.note_file(of_file);
        self.reloads.book.note_orders(&next.orders);
        self.reloads.closings.retain(|it| it.stands(&next.orders));
        let plan = plan::kernel(&next.config, &next.sources, &own);
        self.expected
            .followed_by(Expected::new(&next.config, &next.sources, &plan));
        self.note_marks_in(marks);
        // What others see of it is true at once.
        if let Err(error) = self.look(monotonic_micros()) {
            warn!("{error}");
        }
        Ok(next)
    }

    /// Whether something has changed, or a default route that an address waits for should be there.
    pub(super) fn is_look_due(&self, now: u64) -> bool {
        let of_watch = self.watch.as_ref().and_then(Watch::due);
        let due = of_watch.into_iter().chain(self.reloads.uplink_ways.due());
        due.min().is_some_and(|due| due <= now)
    }

    /// Has what leaves from uplinks' addresses leave by them, as far as these or the host's default routes have changed.
    pub(super) fn follow_ways(&mut self) {
        let force = self.reloads.force.clone();
        let own = own_addresses();
        let plan = self.reloads.plan(&force, &own, self.tables.uplinks());
        if plan.uplinks == self.tables.uplinks() {
            return;
        }
        for line in ways::new(self.tables.uplinks(), &plan.uplinks) {
            info!("{line}");
        }
        if let Err(error) = self.tables.change(&plan, &mut report) {
            self.reloads.uplink_ways.note_failure(&error);
        }
    }

    /// Has connections of boxes leave uplinks that are lost.
    pub(super) fn leave_uplinks(&mut self) {
        let current = Arc::clone(self.reloads.force.current());
        let left = uplinks::left(current.uplinks(), &uplinks::find(&current.config));
        if left == *current.uplinks() {
            return;
        }
        for line in uplinks::changes(&current.config, current.uplinks(), &left) {
            info!("{line}");
        }
        self.reloads.force = self.reloads.force.with_uplinks(left);
        let marks = self.configure();
        self.backends = Backends::new(self.reloads.force.current(), marks);
    }

    /// Has connections of boxes go by what is new of their uplinks, once the kernel leads there.
    pub(super) fn follow_uplinks(&mut self) {
        let current = Arc::clone(self.reloads.force.current());
        let mut now = uplinks::find(&current.config);
        let ways = &self.reloads.uplink_ways;
        ways.hold_back(current.uplinks(), &mut now);
        if now == *current.uplinks() {
            return;
        }
        for line in uplinks::changes(&current.config, current.uplinks(), &now) {
            info!("{line}");
        }
        let force = self.reloads.force.with_uplinks(now);
        self.reloads.own = own_addresses();
        let plan = Plan {
            uplinks: self.tables.uplinks().to_vec(),
            ..force.plan(&self.reloads.own)
        };
        // Before the workers ask anybody from there: an answer that came to the kernel would be refused.
        if let Err(error) = self.tables.change(&plan, &mut report) {
            warn!("packets to the uplinks' new addresses do not come to FlexCP: {error}");
        }
        self.reloads.force = force;
        let marks = self.configure();
        self.note_marks_in(marks);
    }

    /// What is in force has become another, and the workers note there what they have marked.
    fn note_marks_in(&mut self, marks: Vec<Arc<Marks>>) {
        let current = self.reloads.force.current();
        self.reloads.locating.follow(current, &marks);
        self.backends = Backends::new(current, marks);
    }

    /// Puts other rules into force. The kernel, and whose packets are whose, stay as they are. What is wanted is worked out
    /// here, one after the other: of several clients at once none loses another's change.
    /// `moves`: connections that are there are judged by them at once.
    pub(super) fn steer(&mut self, change: Change, moves: bool) -> Result<Steered, ChangeError> {
        let Reloads { force, book, .. } = &mut self.reloads;
        let wanted = book.wanted(&force.current().config, change)?;
        let new = wanted.new;
        let next = Arc::new(force.current().with_rules(book.note(wanted)));
        *force = force.followed_by(Arc::clone(&next), monotonic_micros());
        let set = book.set().clone();
        let marks = self.tell_workers(moves);
        self.note_marks_in(marks);
        Ok(Steered {
            generation: next,
            set,
            new,
        })
    }

    /// Tells the workers something about a service. The kernel, and whose packets are whose, stay as they are.
    pub(super) fn order(&mut self, order: &Order) -> Result<Steered, Unknown> {
        let now = monotonic_micros();
        let Reloads {
            force,
            book,
            closings,
            ..
        } = &mut self.reloads;
        let current = force.current();
        let orders = Arc::new(current.orders.with(&current.config, order)?);
        book.note_orders(&orders);
        let next = Arc::new(current.with_orders(orders));
        let name = order.service();
        if let Order::Undrain { .. } | Order::Drain { .. } = order {
            closings.retain(|closing| !closing.is_of(name));
        }
        if let (Order::Drain { within, .. }, Some(id)) = (order, next.id_of(name)) {
            let within = within.unwrap_or(next.config.timeouts.drain.value);
            closings.push(Closing::new((id, name), now, within));
        }
        *force = force.followed_by(Arc::clone(&next), now);
        let set = book.set().clone();
        // Where it listens stays.
        let _ = self.reloads.relay.change(&next);
        let marks = self.tell_workers(false);
        self.note_marks_in(marks);
        Ok(Steered {
            generation: next,
            set,
            new: 0,
        })
    }

    /// Tells the workers and the placement program what is in force. Gives where the workers note their marks.
    fn configure(&mut self) -> Vec<Arc<Marks>> {
        self.sort_anew();
        self.beside.follow(&self.reloads.force);
        self.beside.look(&mut self.tables, &mut self.offload);
        self.offload.take_errors(&self.reloads.force.own_ends());
        self.tell_workers(false)
    }

    /// Tells the workers what they do, and whether connections are judged by the rules at once. Gives where they note their
    /// marks.
    fn tell_workers(&mut self, moves: bool) -> Vec<Arc<Marks>> {
        let force = &self.reloads.force;
        let config = &force.current().config;
        let named = access::interfaces(&config.accesses);
        let renamed = named != self.reloads.ways;
        let ways = || renamed.then(|| named_ways::open(config)).flatten();
        let workers = (0..).zip(&self.workers);
        let told = workers.map(|(number, worker)| {
            let config = force.current().translator(number);
            let marks = Arc::new(Marks::new(&config));
            let new = Configure {
                config,
                epoch: force.epoch(),
                kept: self.beside.kept(),
                own: force.own_backends(&self.reloads.own),
                marks: Arc::clone(&marks),
                moves,
                ways: ways(),
            };
            // When it has ended, so does FlexCP.
            let _ = worker.configure(new);
            marks
        });
        let marks = told.collect();
        self.reloads.ways = named;
        marks
    }

    /// Tells the workers and the placement program whose packets are whose.
    pub(super) fn sort_anew(&mut self) {
        if self.reloads.rules.workers < 2 {
            return;
        }
        let rules = self.reloads.force.rules(&self.reloads.rules);
        for worker in &self.workers {
            let _ = worker.set_rules(rules.clone());
        }
        if let Some(placement) = &mut self.reloads.placement
            && let Err(error) = placement.change(&rules)
        {
            warn!("placement: {error}; workers hand packets over");
        }
    }
}

/// What is changed in the kernel goes to the log.
pub(super) fn report(change: &str) {
    info!("kernel: {change}");
}

/// A configuration can't be put into force.
#[derive(thiserror::Error, Debug)]
pub enum ChangeError {
    /// The kernel's tables can't be changed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// It is too soon, or too much.
    #[error(transparent)]
    NotNow(#[from] NotNow),
    /// The rules are no good, or those that the API has set can't go with the configuration.
    #[error("the rules that the API sets: {0}; with DELETE /v1/rules the file's are in force")]
    Rules(#[from] Wrong),
    /// Connections of a service can't be split.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// FlexCP is ending.
    #[error(transparent)]
    Ending(#[from] Unwatched),
}
