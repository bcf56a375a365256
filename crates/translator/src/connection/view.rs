//! A connection as an operator sees it.

use super::{Connection, INITIAL, Phase, SubflowIndex, SubflowState};
use crate::offload::{EntrySubflow, FlowEntry};
use crate::time::Instant;
use crate::view::{ConnectionState, ConnectionView, SubflowView};

impl Connection {
    /// `entry`: how the fast path has it now.
    pub(crate) fn view(&self, now: Instant, entry: Option<&FlowEntry>) -> ConnectionView {
        let initial = self.subflow(INITIAL);
        let mptcp = !matches!(self.phase, Phase::Plain);
        ConnectionView {
            service: self.service,
            state: self.state(),
            client: initial.remote.addr(),
            server: initial.local.addr(),
            source: self.server.source.addr(),
            backend: self.server.backend.addr(),
            token: mptcp.then_some(self.local.token),
            age: now.since(self.opened),
            idle: now.since(entry.map_or(self.last_packet, |entry| Instant(entry.last_packet))),
            subflows: self
                .indices()
                .filter(|&index| self.subflow(index).lives())
                .map(|index| self.subflow_view(index, entry))
                .collect(),
        }
    }

    const fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::SynSent | Phase::SynReceived => ConnectionState::Handshake,
            Phase::Established if self.up_fin.is_some() || self.down_fin.is_some() => {
                ConnectionState::HalfClosed
            }
            Phase::Established => ConnectionState::Translating,
            Phase::Plain => ConnectionState::Plain,
            Phase::Fallback => ConnectionState::Fallback,
            Phase::Closed(_) => ConnectionState::Closed,
            Phase::Reset(_) => ConnectionState::Reset,
        }
    }

    fn subflow_view(&self, index: SubflowIndex, entry: Option<&FlowEntry>) -> SubflowView {
        let subflow = self.subflow(index);
        let installed = entry
            .and_then(|entry| entry.subflows.get(usize::from(index)))
            .filter(|installed| installed.installed != 0);
        SubflowView {
            client: subflow.remote.addr(),
            local: subflow.local.addr(),
            address_id: subflow.address_id,
            active: self.active == index,
            backup: subflow.backup,
            established: subflow.state == SubflowState::Established
                || matches!(self.phase, Phase::Plain),
            bytes_up: installed.map_or(subflow.bytes_up, |installed| installed.bytes_up),
            bytes_down: installed.map_or(subflow.bytes_down, |installed| installed.bytes_down),
            retransmitted_down: subflow.retransmitted_down,
            rtt: installed.map_or_else(|| subflow.rtt(), EntrySubflow::rtt),
        }
    }
}
