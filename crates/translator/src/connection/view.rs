//! A connection as an operator sees it.

use core::net::{Ipv4Addr, SocketAddr};

use super::delivery::Delivery;
use super::rtt::Rtt;
use super::{Connection, Phase, Subflow, SubflowState};
use crate::access::Accesses;
use crate::config::Settings;
use crate::handle::{StableId, SubflowIndex};
use crate::offload::{EntrySubflow, FlowEntry};
use crate::time::Instant;
use crate::view::{ConnectionState, ConnectionView, PathQuality, SubflowView};

impl Connection {
    /// `entry`: how the fast path has it now.
    pub(crate) fn view(
        &self,
        now: Instant,
        config: &Settings,
        entry: Option<&FlowEntry>,
    ) -> ConnectionView {
        let [client, server, source, backend] = self.opener_ends();
        ConnectionView {
            id: self.id(),
            service: self.service,
            rule: self.rule_name(config).map(Into::into),
            state: self.state(),
            client,
            server,
            source: self.known(source),
            backend: self.known(backend),
            token: self.token(),
            age: now.since(self.opened),
            idle: now.since(entry.map_or(self.last_packet, |entry| Instant(entry.last_packet))),
            subflows: self
                .indices()
                .filter(|&index| self.subflow(index).lives())
                .map(|index| self.subflow_view(index, &config.accesses, entry))
                .collect(),
        }
    }

    /// An end towards the server; none while that is not known.
    fn known(&self, end: SocketAddr) -> SocketAddr {
        let hosted = self.hosted.as_deref();
        if hosted.is_some_and(|hosted| hosted.seam().is_none()) {
            return SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        }
        end
    }

    /// What names it outside.
    pub(crate) const fn id(&self) -> StableId {
        StableId::new(self.mptcp.key.token, self.opened)
    }

    /// FlexCP's token, unless MPTCP was not negotiated.
    pub(crate) fn token(&self) -> Option<u32> {
        (!self.phase.is_plain()).then_some(self.mptcp.key.token)
    }

    /// What FlexCP does with its packets, as an operator is told.
    pub(crate) const fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::SynSent | Phase::SynReceived => ConnectionState::Handshake,
            Phase::Established { .. }
                if self.to_tcp.fin.is_some() || self.to_mptcp.fin.is_some() =>
            {
                ConnectionState::HalfClosed
            }
            Phase::Established { .. } => ConnectionState::Translating,
            Phase::Plain(_) => ConnectionState::Plain,
            Phase::Fallback(_) => ConnectionState::Fallback,
            Phase::Closed(_) => ConnectionState::Closed,
            Phase::Reset(_) => ConnectionState::Reset,
        }
    }

    fn subflow_view(
        &self,
        index: SubflowIndex,
        accesses: &Accesses,
        entry: Option<&FlowEntry>,
    ) -> SubflowView {
        let subflow = self.subflow(index);
        let installed = entry
            .and_then(|entry| entry.subflows.get(usize::from(index)))
            .filter(|installed| installed.installed != 0);
        SubflowView {
            subflow: index,
            client: subflow.remote.addr(),
            local: subflow.local.addr(),
            address_id: subflow.join.address_id,
            access: subflow.access(accesses),
            active: self.mptcp.active == index,
            backup: subflow.path.backup,
            established: subflow.state == SubflowState::Established
                || matches!(self.phase, Phase::Plain(_)),
            bytes_up: installed.map_or(subflow.traffic.bytes_up, |installed| installed.bytes_up),
            bytes_down: installed
                .map_or(subflow.traffic.bytes_down, |installed| installed.bytes_down),
            retransmitted_down: subflow.traffic.retransmitted_down,
            quality: subflow.quality(installed),
        }
    }
}

impl Subflow {
    /// `installed`: how the fast path has it now.
    fn quality(&self, installed: Option<&EntrySubflow>) -> PathQuality {
        let mut rtt = self.path.rtt;
        let mut delivery = self.path.delivery;
        let mut in_flight = self.send.next.since(self.send.una);
        if let Some(installed) = installed {
            rtt = Rtt::import(&installed.rtt);
            delivery = Delivery::import(&installed.delivery);
            in_flight = installed.snd_next.wrapping_sub(installed.snd_una);
        }
        PathQuality {
            rtt: rtt.known(),
            rtt_variation: rtt.variation(),
            rtt_least: rtt.least(),
            delivery_rate: delivery.rate(),
            in_flight,
            window: delivery.window(),
        }
    }
}
