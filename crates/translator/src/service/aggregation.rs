//! Aggregation servers of a box: which is asked next, and how.

use core::net::{IpAddr, SocketAddr};

use super::{Services, source_towards};
use crate::auth::SecretStream;
use crate::config::{AggregationServers, Approach, Mode};
use crate::endpoint::Backend;
use crate::handle::ServiceId;

/// The places of a box's aggregation servers that are asked before the others, the first first.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Preferred {
    places: [u8; AggregationServers::MAX],
    count: u8,
}

impl Preferred {
    fn places(&self) -> &[u8] {
        &self.places[..usize::from(self.count)]
    }

    fn has(&self, place: usize) -> bool {
        self.places().iter().any(|&at| usize::from(at) == place)
    }

    /// Adds a place behind the others, unless it is among them.
    fn add(&mut self, place: usize) {
        let Ok(at) = u8::try_from(place) else {
            return;
        };
        if !self.has(place)
            && let Some(free) = self.places.get_mut(usize::from(self.count))
        {
            *free = at;
            self.count += 1;
        }
    }

    /// All places of so many servers: these, then the rest.
    fn order(&self, servers: usize) -> impl Iterator<Item = usize> {
        let first = self.places().iter().map(|&at| usize::from(at));
        let rest = (0..servers).filter(|place| !self.has(*place));
        first.filter(move |at| *at < servers).chain(rest)
    }
}

impl Services {
    /// From here on a box asks these aggregation servers before the others, in this order; those that it does not have are passed over.
    pub(crate) fn prefer_servers(&mut self, service: ServiceId, order: &[SocketAddr]) {
        let slot = self.slots.get_mut(usize::from(service.0));
        let Some(slot) = slot.and_then(Option::as_mut) else {
            return;
        };
        let Mode::Box { servers, .. } = &slot.mode else {
            return;
        };
        let mut preferred = Preferred::default();
        for server in order {
            if let Some(place) = servers.addrs().iter().position(|addr| addr == server) {
                preferred.add(place);
            }
        }
        slot.preferred = preferred;
    }

    /// The aggregation server to ask next, by its place, and an end on the first uplink of its family that `is_free` towards it. Not
    /// one at a place in `tried` (a bit for each), and none that is marked. Those that are preferred come first.
    pub(crate) fn next_server(
        &self,
        service: ServiceId,
        tried: u16,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<(usize, Backend)> {
        let slot = self.slot(service)?;
        let Mode::Box { servers, .. } = &slot.mode else {
            return None;
        };
        let addrs = servers.addrs();
        let fits = |at: &usize| {
            let health = slot.health.get(*at);
            tried & (1 << at) == 0 && health.is_some_and(|health| !health.is_marked())
        };
        let mut order = slot.preferred.order(addrs.len()).filter(fits);
        order.find_map(|at| {
            let free = |to: &Backend| is_free(to) && !slot.health[at].has_sent_from(to.source);
            let backend = source_towards(self.share, &slot.mode, addrs[at], secrets, free)?;
            Some((at, backend))
        })
    }

    /// Whether a box leaves connections with this server alone.
    pub(crate) fn excepts(&self, service: ServiceId, server: SocketAddr) -> bool {
        let mode = self.slot(service).map(|slot| &slot.mode);
        matches!(mode, Some(Mode::Box { except, .. }) if except.iter().any(|set| set.contains(server)))
    }

    /// Whether connections of a box may join an address that a server announces.
    pub(crate) fn may_join(&self, service: ServiceId, addr: IpAddr) -> bool {
        let mode = self.slot(service).map(|slot| &slot.mode);
        matches!(mode, Some(Mode::Box { join, .. }) if join.iter().any(|prefix| prefix.contains(addr)))
    }

    /// A converter has answered otherwise than its SYN/ACK said: until the next configuration that is not believed any more.
    pub(crate) fn distrust(&mut self, (service, addr): (ServiceId, SocketAddr)) {
        let slot = self.slots.get_mut(usize::from(service.0));
        if let Some(Mode::Box { servers, .. }) =
            slot.and_then(Option::as_mut).map(|it| &mut it.mode)
        {
            servers.distrust(addr);
        }
    }

    /// How the aggregation server at this place is asked to connect on.
    pub(crate) fn approach(&self, service: ServiceId, place: usize) -> Option<&Approach> {
        match &self.slot(service)?.mode {
            Mode::Box { servers, .. } => servers.approach(place),
            _ => None,
        }
    }
}
