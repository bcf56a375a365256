//! Aggregation servers of a box: which is asked next, and how.

use core::net::{IpAddr, SocketAddr};

use super::{Services, source_towards};
use crate::auth::SecretStream;
use crate::config::{Approach, Mode};
use crate::endpoint::Backend;
use crate::handle::ServiceId;

impl Services {
    /// The aggregation server to ask next, by its place, and an end on the first uplink of its family that `is_free` towards it. Not
    /// one at a place in `tried` (a bit for each), and none that is marked.
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
        (0..addrs.len()).filter(fits).find_map(|at| {
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

    /// How the aggregation server at this place is asked to connect on.
    pub(crate) fn approach(&self, service: ServiceId, place: usize) -> Option<&Approach> {
        match &self.slot(service)?.mode {
            Mode::Box { servers, .. } => servers.approach(place),
            _ => None,
        }
    }
}
