//! Addresses and ports of FlexCP's own: towards servers, and on the uplinks of a box. The port names this worker.

use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use flexcp_placement::Share;

use super::Services;
use crate::auth::SecretStream;
use crate::config::Mode;
use crate::endpoint::Backend;
use crate::handle::ServiceId;
use crate::uplink::Uplink;

/// Ports tried before a source address counts as full.
const PORT_TRIES: usize = 64;

impl Services {
    /// A source address and port of a service that is free towards this server.
    pub(crate) fn source_towards(
        &self,
        service: ServiceId,
        server: SocketAddr,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<Backend> {
        let mode = &self.slot(service)?.mode;
        source_towards(self.share, mode, server, secrets, is_free)
    }

    /// The uplinks of a box, in their order; none of another service.
    pub(crate) fn uplinks(&self, service: ServiceId) -> &[Uplink] {
        match self.slot(service).map(|slot| &slot.mode) {
            Some(Mode::Box { uplinks, .. }) => uplinks,
            _ => &[],
        }
    }

    /// A port of an address on one of them that is free towards this server.
    pub(crate) fn uplink_towards(
        &self,
        (service, uplink): (ServiceId, IpAddr),
        server: SocketAddr,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<Backend> {
        let (_, ports) = sources(&self.slot(service)?.mode)?;
        let only = core::iter::once(uplink);
        free_port(self.share, (only, ports), server, secrets, is_free)
    }
}

/// A source address and port that are free towards the back end.
pub(super) fn source_towards(
    share: Share,
    mode: &Mode,
    addr: SocketAddr,
    secrets: &mut SecretStream,
    is_free: impl Fn(&Backend) -> bool,
) -> Option<Backend> {
    free_port(share, sources(mode)?, addr, secrets, is_free)
}

/// The addresses and ports that a service has of its own.
fn sources(mode: &Mode) -> Option<(impl Iterator<Item = IpAddr>, &RangeInclusive<u16>)> {
    let (own, uplinks, ports): (&[IpAddr], &[Uplink], _) = match mode {
        Mode::Reverse {
            source,
            source_ports,
            ..
        }
        | Mode::Explicit {
            source,
            source_ports,
            ..
        } => (source, &[], source_ports),
        Mode::Box {
            uplinks,
            source_ports,
            ..
        } => (&[], uplinks, source_ports),
        Mode::Transparent { .. } => return None,
    };
    let all = own.iter().copied();
    Some((all.chain(uplinks.iter().flat_map(Uplink::addrs)), ports))
}

fn free_port(
    share: Share,
    (sources, ports): (impl Iterator<Item = IpAddr>, &RangeInclusive<u16>),
    addr: SocketAddr,
    secrets: &mut SecretStream,
    is_free: impl Fn(&Backend) -> bool,
) -> Option<Backend> {
    for ip in sources.filter(|ip| ip.is_ipv4() == addr.is_ipv4()) {
        for _ in 0..PORT_TRIES {
            // Not to be guessed (RFC 6056).
            let port = share.port(ports, secrets.next_u32())?;
            let source = SocketAddr::new(ip, port);
            let backend = Backend { source, addr };
            if is_free(&backend) {
                return Some(backend);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::Choice;
    use super::*;
    use crate::config::{Intake, Service};

    #[test]
    fn second_source_address_is_used_when_the_ports_of_the_first_are_taken() {
        let [first, second] = ["10.8.0.1", "10.8.0.2"].map(|ip| ip.parse().expect("an address"));
        let service = Service {
            id: ServiceId(0),
            name: "two".into(),
            mode: Mode::Reverse {
                listen: alloc::vec![],
                backends: alloc::vec!["10.9.0.1:80".parse().expect("an end")],
                source: alloc::vec![first, second],
                source_ports: 50_000..=50_001,
            },
            announce: alloc::vec![],
            intake: Intake::default(),
        };
        let mut services = Services::new(alloc::vec![service], Share::default());
        let mut secrets = SecretStream::new([7; 32]);
        let mut next = |taken: &[IpAddr]| {
            let is_free = |backend: &Backend| !taken.contains(&backend.source.ip());
            let which = (None, Choice::Any);
            let found = services.next_backend(ServiceId(0), which, &mut secrets, is_free);
            found.map(|backend| backend.source.ip())
        };
        assert_eq!(next(&[]), Some(first));
        assert_eq!(next(&[first]), Some(second));
        assert_eq!(next(&[first, second]), None);
    }
}
