//! The configuration in force, and those before it whose connections are still drained.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use flexcp_io::{ClientLeg, OwnEnds, Plan};
use flexcp_placement::Rules;
use flexcp_translator::{Intake, Mode, ServiceId, Uplink};

use crate::config::rule::Rule;
use crate::config::{Config, plan};
use crate::control::{Named, Names};
use crate::orders::Orders;
use crate::split;
use crate::uplinks::{Uplinks, ways};

/// Addresses that the uplinks of a box have had are known up to so many, with those that they have: packets to others are the
/// kernel's.
const KNOWN_ADDRESSES: usize = 8;

/// A configuration with what follows from it for as long as it is in force.
#[derive(Debug)]
pub struct Generation {
    /// 1 for the first, and one more for each that took effect.
    pub number: u64,
    /// What the file says.
    pub config: Config,
    /// The addresses towards each service's back ends.
    pub sources: Vec<Vec<IpAddr>>,
    /// The uplinks of boxes.
    uplinks: Uplinks,
    /// Of each service, in the order of the file. A service has its id from its name.
    pub ids: Vec<ServiceId>,
    /// What clients of the API have told about services.
    pub(crate) orders: Arc<Orders>,
}

/// What connections may go by.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    current: Arc<Generation>,
    /// Those before, the oldest first.
    drained: VecDeque<Drained>,
    /// The number of the present configuration as the translators have it: one for each that they were told.
    epoch: u64,
}

/// One whose connections go on for a while.
#[derive(Clone, Debug)]
struct Drained {
    generation: Arc<Generation>,
    /// Its number as the translators had it.
    epoch: u64,
    /// When its connections are told the end, in microseconds.
    until: u64,
    /// Whether the kernel brings its packets.
    diverts: bool,
}

/// Why a configuration can't follow the one in force.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error, Debug)]
pub enum NotNow {
    /// Too many before it are still drained.
    #[error(
        "{DRAINED} earlier configurations are still drained (`drain` in [timeouts]); try again in a few seconds"
    )]
    Drained,
    /// There are no ids left.
    #[error("there are more than 65,536 services, with those that are still drained")]
    Ids,
}

impl Generation {
    /// The first.
    #[must_use]
    pub fn first(config: Config, sources: Vec<Vec<IpAddr>>) -> Self {
        Self {
            number: 1,
            ids: plan::first_ids(&config),
            config,
            sources,
            uplinks: Uplinks::new(),
            orders: Arc::default(),
        }
    }

    /// What the translator of a worker is told.
    #[must_use]
    pub fn translator(&self, worker: u16) -> flexcp_translator::Config {
        let mut told = plan::translator(&self.config, &self.sources, &self.ids, worker);
        for (service, now) in told.services.iter_mut().zip(&self.uplinks) {
            if let Mode::Box { uplinks, .. } = &mut service.mode {
                uplinks.clone_from(now);
            }
        }
        self.orders.tell(&mut told.services);
        let relayed = told.services.iter_mut().map(|service| &mut service.intake);
        let relayed = relayed.filter(|intake| intake.carrier.is_some());
        // The host is asked once there is one.
        let mut takes = None;
        for intake in relayed {
            intake.relay_takes_syn_data = *takes.get_or_insert_with(split::takes_syn_data);
        }
        told
    }

    /// The same with uplinks as they are now. What came to addresses that they had before is still FlexCP's.
    pub(crate) fn with_uplinks(mut self, uplinks: Uplinks) -> Self {
        for (sources, now) in self.sources.iter_mut().zip(&uplinks) {
            let mut all: Vec<_> = now.iter().flat_map(Uplink::addrs).collect();
            let most = all.len().max(sources.len()).max(KNOWN_ADDRESSES);
            let before = sources.iter().filter(|addr| !all.contains(addr));
            let before: Vec<_> = before.copied().collect();
            all.extend(before);
            // Those that there are now stay all, and so do those of another service than a box.
            all.truncate(most);
            *sources = all;
        }
        self.uplinks = uplinks;
        self
    }

    /// The uplinks of boxes.
    pub(crate) fn uplinks(&self) -> &Uplinks {
        &self.uplinks
    }

    /// The same with these orders in place of its own.
    pub(crate) fn ordered(self, orders: Arc<Orders>) -> Self {
        Self { orders, ..self }
    }

    /// The one that follows with these orders, if nothing else differs.
    pub(crate) fn with_orders(&self, orders: Arc<Orders>) -> Self {
        Self {
            orders,
            ..self.with_rules(self.config.rules.clone())
        }
    }

    /// The one that follows with these rules, if nothing else differs.
    pub(crate) fn with_rules(&self, rules: Vec<Rule>) -> Self {
        Self {
            number: self.number + 1,
            config: Config {
                rules,
                ..self.config.clone()
            },
            sources: self.sources.clone(),
            uplinks: self.uplinks.clone(),
            ids: self.ids.clone(),
            orders: Arc::clone(&self.orders),
        }
    }

    pub(crate) fn id_of(&self, name: &str) -> Option<ServiceId> {
        let services = self.config.services.iter().zip(&self.ids);
        let mut of_name = services.filter(|(service, _)| service.name.value == name);
        of_name.next().map(|(_, id)| *id)
    }

    /// Whether `next` leaves out something that connections of this one may go by.
    fn loses_to(&self, next: &Self) -> bool {
        // How a service takes new connections leaves none of those that are there without it.
        let of = |generation: &Self| {
            let mut services = generation.translator(0).services;
            let intakes = services.iter_mut().map(|service| &mut service.intake);
            intakes.for_each(|intake| *intake = Intake::default());
            services
        };
        let (old, new) = (of(self), of(next));
        !old.iter().all(|service| new.contains(service))
    }
}

impl InForce {
    pub(crate) fn new(first: Arc<Generation>) -> Self {
        Self {
            current: first,
            drained: VecDeque::new(),
            epoch: 0,
        }
    }

    pub(crate) fn current(&self) -> &Arc<Generation> {
        &self.current
    }

    /// The present configuration's number for the translators.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The generation that would follow. A service that is known by its name, drained or not, has its id; others get the
    /// smallest that nobody has.
    pub(crate) fn next(
        &self,
        config: Config,
        sources: Vec<Vec<IpAddr>>,
    ) -> Result<Generation, NotNow> {
        if self.drained.len() >= DRAINED {
            return Err(NotNow::Drained);
        }
        let known = |name: &str| self.all().find_map(|generation| generation.id_of(name));
        let mut taken: Vec<_> = self.all().flat_map(|known| &known.ids).copied().collect();
        let mut free = 0;
        let mut ids = Vec::new();
        for service in &config.services {
            let id = known(&service.name.value).or_else(|| {
                let id = (free..=u16::MAX).find(|id| !taken.contains(&ServiceId(*id)))?;
                free = id;
                Some(ServiceId(id))
            });
            let id = id.ok_or(NotNow::Ids)?;
            taken.push(id);
            ids.push(id);
        }
        Ok(Generation {
            number: self.current.number + 1,
            orders: Arc::new(self.current.orders.about(&config)),
            config,
            sources,
            uplinks: Uplinks::new(),
            ids,
        })
    }

    /// With `next` in force from `now` on, a moment in microseconds. Those before have as much time as it gives from then on
    /// at most.
    pub(crate) fn followed_by(&self, next: Arc<Generation>, now: u64) -> Self {
        let drain = next.config.timeouts.drain.value.as_micros();
        let until = now.saturating_add(u64::try_from(drain).unwrap_or(u64::MAX));
        let mut new = self.clone();
        if self.current.loses_to(&next) {
            new.drained.push_back(Drained {
                generation: Arc::clone(&self.current),
                epoch: self.epoch,
                until,
                diverts: true,
            });
        }
        for drained in &mut new.drained {
            drained.until = drained.until.min(until);
        }
        new.current = next;
        new.epoch += 1;
        new
    }

    /// With the uplinks as they are now. That leaves no connection without its service.
    pub(crate) fn with_uplinks(&self, uplinks: Uplinks) -> Self {
        let current = &self.current;
        let same = Generation {
            number: current.number,
            ..current.with_orders(Arc::clone(&current.orders))
        };
        Self {
            current: Arc::new(same.with_uplinks(uplinks)),
            drained: self.drained.clone(),
            epoch: self.epoch + 1,
        }
    }

    /// As it was `before` that, but for what the translators have heard meanwhile.
    pub(crate) fn taken_back(self, mut before: Self, now: u64) -> Self {
        let until = before
            .drained
            .back()
            .map_or(now, |last| last.until.max(now));
        before.epoch = self.epoch + 1;
        before.drained.push_back(Drained {
            generation: self.current,
            epoch: self.epoch,
            until,
            diverts: false,
        });
        before
    }

    /// The present generation, then the others, the latest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Generation> {
        let drained = self
            .drained
            .iter()
            .rev()
            .map(|drained| &*drained.generation);
        std::iter::once(&*self.current).chain(drained)
    }

    /// When the time of some of them is over, in microseconds.
    pub(crate) fn due(&self) -> Option<u64> {
        self.drained.iter().map(|drained| drained.until).min()
    }

    /// The latest of those whose time is over, by its number for the translators.
    pub(crate) fn over(&self, now: u64) -> Option<u64> {
        let over = self.drained.iter().filter(|drained| drained.until <= now);
        over.map(|drained| drained.epoch).max()
    }

    /// Services of those up to `epoch` that no later one has.
    pub(crate) fn gone(&self, epoch: u64) -> Vec<ServiceId> {
        let is_over = |drained: &&Drained| drained.epoch <= epoch;
        let (over, later): (Vec<_>, Vec<_>) = self.drained.iter().partition(is_over);
        let later = later.iter().map(|drained| &drained.generation);
        let later = later.chain([&self.current]);
        let kept: Vec<_> = later.flat_map(|generation| &generation.ids).collect();
        let ids = over.iter().flat_map(|drained| &drained.generation.ids);
        ids.filter(|id| !kept.contains(id)).copied().collect()
    }

    /// Nothing goes by those up to `epoch` any more.
    pub(crate) fn forget(&mut self, epoch: u64) {
        self.drained.retain(|drained| drained.epoch > epoch);
    }

    /// The packets of those up to `epoch` are brought no more.
    pub(crate) fn divert_no_more(&mut self, epoch: u64) {
        let until = self.drained.iter_mut();
        until
            .filter(|drained| drained.epoch <= epoch)
            .for_each(|drained| drained.diverts = false);
    }

    /// What the kernel of a host with the addresses `own` has to bring.
    pub(crate) fn plan(&self, own: &[IpAddr]) -> Plan {
        let of =
            |generation: &Generation| plan::kernel(&generation.config, &generation.sources, own);
        let mut all = of(&self.current);
        for drained in self.drained.iter().filter(|drained| drained.diverts) {
            all.join(&of(&drained.generation));
        }
        all
    }

    /// The uplinks that FlexCP routes, each once: those of the present configuration first.
    pub(crate) fn routed_uplinks(&self) -> Vec<String> {
        let drained = self.drained.iter().filter(|drained| drained.diverts);
        let drained = drained.map(|drained| &*drained.generation);
        let mut all: Vec<String> = Vec::new();
        for generation in std::iter::once(&*self.current).chain(drained) {
            let names = ways::routed(&generation.config).into_iter();
            let new: Vec<_> = names.filter(|name| !all.contains(name)).collect();
            all.extend(new);
        }
        all
    }

    /// The clients' legs of services on the path.
    pub(crate) fn legs(&self) -> Vec<ClientLeg> {
        let mut legs = Vec::new();
        for leg in self
            .all()
            .flat_map(|generation| plan::client_legs(&generation.config))
        {
            if !legs.contains(&leg) {
                legs.push(leg);
            }
        }
        legs
    }

    /// What names the owner of a packet; `first` says by which keys.
    pub(crate) fn rules(&self, first: &Rules) -> Rules {
        let of = |generation: &Generation| {
            generation
                .translator(0)
                .placement(first.hash_keys)
                .back_ends
        };
        Rules {
            back_ends: self.all().flat_map(of).collect(),
            ..first.clone()
        }
    }

    /// The back ends on this host itself, which has the addresses `own`.
    pub(crate) fn own_backends(&self, own: &[IpAddr]) -> Vec<IpAddr> {
        let of = |generation: &Generation| plan::own_backends(&generation.config, own);
        self.all().flat_map(of).collect()
    }

    /// The IPv6 ends that packets leave from with an address of this host.
    pub(crate) fn own_ends(&self) -> Vec<OwnEnds> {
        let of = |generation: &Generation| plan::own_ends(&generation.config, &generation.sources);
        self.all().flat_map(of).collect()
    }

    /// What services and accesses are called.
    pub(crate) fn names(&self) -> Names {
        let accesses = &self.current.config.accesses;
        Names {
            services: self.named(),
            accesses: accesses
                .iter()
                .map(|access| access.name.value.clone())
                .collect(),
        }
    }

    /// What the services are called, those that are drained too.
    pub(crate) fn named(&self) -> Vec<Named> {
        let mut named: Vec<Named> = Vec::new();
        for generation in self.all() {
            for (service, &id) in generation.config.services.iter().zip(&generation.ids) {
                if named.iter().all(|known| known.id != id) {
                    named.push(Named {
                        id,
                        name: service.name.value.clone(),
                        mode: service.mode.name(),
                    });
                }
            }
        }
        named
    }

    /// How many earlier configurations connections may go by.
    pub(crate) fn draining(&self) -> u64 {
        u64::try_from(self.drained.len()).unwrap_or(u64::MAX)
    }

    /// The names of services that are gone and whose connections are drained.
    pub(crate) fn drained(&self) -> Vec<String> {
        let present = &self.current.ids;
        let gone = self.named().into_iter();
        gone.filter(|named| !present.contains(&named.id))
            .map(|named| named.name)
            .collect()
    }
}

/// Configurations that may be drained at a time.
const DRAINED: usize = 64;

#[cfg(test)]
mod tests;
