//! Servers that want to be told of their clients before the stream, by a header of the PROXY protocol.

use std::net::SocketAddr;

use flexcp_testkit::Random;
use flexcp_wire::{Ends, PROXY_HEADER_MAX_LEN, ProxyHeader};

use crate::swarm::Plan;

/// The header that a server waits for. What comes before all of it is there it does not keep, as a server may.
#[derive(Debug)]
pub(crate) struct Told {
    header: Vec<u8>,
    got: usize,
}

impl Told {
    /// A server that wants none.
    pub(crate) const fn nothing() -> Self {
        Self {
            header: Vec::new(),
            got: 0,
        }
    }

    /// One that wants to hear of a client that has connected from there to here.
    pub(crate) fn of(from: SocketAddr, to: SocketAddr) -> Self {
        let mut header = [0; PROXY_HEADER_MAX_LEN];
        let ends = Ends { from, to };
        let len = ProxyHeader { ends }.emit(&mut header);
        Self {
            header: header[..len].to_vec(),
            got: 0,
        }
    }

    /// By how much the stream begins later than without it.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.header.len()).unwrap_or(0)
    }

    /// Bytes of it that are yet to come.
    pub(crate) fn missing(&self) -> u32 {
        u32::try_from(self.header.len() - self.got).unwrap_or(0)
    }

    /// Takes what a packet has of it; the packet's first byte stands at `from`, the stream's at 0. `false`: that is not it.
    pub(crate) fn take(&mut self, from: i64, payload: &[u8]) -> bool {
        let at = from + i64::from(self.len());
        let Ok(at) = usize::try_from(at) else {
            return payload.is_empty();
        };
        let end = (at + payload.len()).min(self.header.len());
        let Some(expected) = self.header.get(at..end) else {
            // Behind it.
            return true;
        };
        if at <= self.got {
            self.got = self.got.max(end);
        }
        payload[..end - at] == *expected
    }
}

/// Decides which servers want one. That is drawn apart, so that the rest is what it was before there were any.
pub(crate) fn draw(plan: &mut Plan) {
    let mut random = Random::for_purpose(plan.seed, 17);
    if !plan.reverse || !random.one_in(3) {
        return;
    }
    for connection in &mut plan.connections {
        connection.told = connection.explicit.is_none() && !random.one_in(4);
    }
}
