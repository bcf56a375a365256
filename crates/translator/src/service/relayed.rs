//! What the relay of split connections takes of a service's.

use core::net::SocketAddr;

use super::{Services, covers};
use crate::carrier::Carrier;
use crate::handle::ServiceId;

impl Services {
    /// What carries new connections of the service unless a rule says otherwise; `None`: nothing but the translator.
    pub(crate) fn carrier(&self, service: ServiceId) -> Option<Carrier> {
        self.slot(service)?.carrier
    }

    /// Whether the relay's sockets take data of the service's SYNs.
    pub(crate) fn relay_takes_syn_data(&self, service: ServiceId) -> bool {
        let slot = self.slot(service);
        slot.is_some_and(|slot| slot.relay_takes_syn_data)
    }

    /// Whether a relay listens at `local`, as an address of a service or one that it announces.
    pub(crate) fn is_relayed(&self, local: SocketAddr) -> bool {
        let mut present = self.order.iter().filter_map(|&id| self.slot(id));
        present.any(|slot| {
            let at = || covers(&slot.mode, local) || slot.announce.iter().any(|it| it.is(local));
            slot.carrier.is_some() && at()
        })
    }
}
