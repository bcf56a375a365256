//! What may not be translated past netfilter: connections that NAT translates. Each is looked up before it is installed for the
//! first time, and each further subflow before it is installed with the rest; whether a connection is translated is settled
//! with its first packet.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flexcp_wire::Ends;

use super::{FlowKey, NO_CONNTRACK};
use crate::kernel::Conntrack;

/// Asks conntrack, where it is in use.
#[derive(Debug)]
pub(super) struct Guard {
    /// The zone of the clients' legs, or [`NO_CONNTRACK`].
    zone: Arc<AtomicU32>,
    conntrack: Option<Conntrack>,
}

impl Guard {
    pub(super) const fn new(zone: Arc<AtomicU32>) -> Self {
        Self {
            zone,
            conntrack: None,
        }
    }

    /// Whether NAT translates a flow of this family, whose packets are those of the servers if `down`. What can't be found
    /// out counts as translated.
    pub(super) fn forbids(&mut self, flow: &FlowKey, down: bool, family: u32) -> bool {
        let zone = self.zone.load(Ordering::Relaxed);
        if zone == NO_CONNTRACK {
            return false;
        }
        if self.conntrack.is_none() {
            self.conntrack = Conntrack::open().ok();
        }
        let Some(conntrack) = &mut self.conntrack else {
            return true;
        };
        let ends = flow.ends(family);
        // The clients' leg of services on the path is in its own zone, that of others in the first.
        let own = u16::try_from(zone).ok().filter(|_| !down);
        let free = |zone| conntrack.touches(ends, zone).is_ok_and(|touches| !touches);
        !own.into_iter().chain([0]).any(free)
    }
}

impl FlowKey {
    fn ends(&self, family: u32) -> Ends {
        let addr = |octets: [u8; 16]| match family {
            6 => IpAddr::from(octets),
            _ => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        };
        Ends {
            from: SocketAddr::new(addr(self.from), u16::from_be_bytes(self.from_port)),
            to: SocketAddr::new(addr(self.to), u16::from_be_bytes(self.to_port)),
        }
    }
}
