//! Model ends for target `legs`: a client and a server that keep to the protocol as far as the input
//! lets them, and know what they have sent and got.

use flexcp_wire::{DataNumber, SackBlocks};

use crate::far::Preamble;
use crate::output::Output;
use crate::world::{FLOWS, SYN_WINDOW};

/// Sent mappings that a flow remembers for sending again.
const REMEMBERED: usize = 16;

/// Sorted ranges that do not touch.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut from, mut to) = (from, to);
        self.0.retain(|&(left, right)| {
            let touches = left <= to && from <= right;
            if touches {
                (from, to) = (from.min(left), to.max(right));
            }
            !touches
        });
        let at = self.0.partition_point(|&(left, _)| left < from);
        self.0.insert(at, (from, to));
    }

    /// Behind what is there without a gap from `start` on.
    pub(crate) fn end_from(&self, start: u64) -> u64 {
        let holds = |&&(left, right): &&(u64, u64)| left <= start && start < right;
        self.0.iter().find(holds).map_or(start, |&(_, right)| right)
    }

    /// The first ranges behind `ack`, as SACK blocks counted from `base`.
    pub(crate) fn sack(&self, ack: u64, base: u32) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        let number = |at: u64| base.wrapping_add(u32::try_from(at & 0xffff_ffff).unwrap_or(0));
        for &(left, right) in self.0.iter().filter(|(left, _)| *left > ack).take(3) {
            blocks.push(number(left), number(right));
        }
        blocks
    }
}

/// A mapping: (SSN, DSN, length), relative.
pub(crate) type Mapping = (u32, u64, u32);

/// A client's flow. Numbers are relative: a SYN has number 0.
#[derive(Clone, Default, Debug)]
pub(crate) struct ClientFlow {
    pub(crate) joined: bool,
    pub(crate) next: u32,
    /// It has ended with a FIN, at `next`.
    pub(crate) fin: bool,
    pub(crate) sent: Vec<Mapping>,
    pub(crate) got: Ranges,
    /// What came under a mapping and waits for what is missing before it on the flow.
    pending: Vec<Mapping>,
    /// The latest ACK that came.
    pub(crate) acked: u32,
}

/// The client.
#[derive(Clone, Default, Debug)]
pub(crate) struct Client {
    pub(crate) flows: [ClientFlow; FLOWS],
    /// Behind the data it has sent, DATA_FIN not counted.
    pub(crate) next: u64,
    pub(crate) fin: bool,
    got: Ranges,
    /// Number of the server's DATA_FIN.
    pub(crate) fin_got: Option<u64>,
    /// The latest data ACK it has sent.
    pub(crate) acked: u64,
    /// Right edge of the windows that it has offered.
    pub(crate) edge: u64,
    /// The same of those that it was offered.
    pub(crate) peer_edge: u64,
}

/// The server.
#[derive(Clone, Default, Debug)]
pub(crate) struct Server {
    pub(crate) next: u64,
    pub(crate) fin: bool,
    pub(crate) got: Ranges,
    pub(crate) fin_got: Option<u64>,
    /// The latest ACK it has sent and got.
    pub(crate) acked: u64,
    pub(crate) peer_acked: u64,
    /// Right edge of the windows that it was offered.
    pub(crate) peer_edge: u64,
}

impl Client {
    pub(crate) fn new() -> Self {
        let mut client = Self {
            next: 1,
            acked: 1,
            peer_edge: 1 + u64::from(SYN_WINDOW),
            ..Self::default()
        };
        (0..FLOWS).for_each(|k| client.reopen(k));
        client.flows[0].joined = true;
        client
    }

    /// An aggregation server that was told and has said so much before the streams.
    pub(crate) fn behind(&mut self, Preamble { told, said }: Preamble) {
        let (told, said) = (u64::from(told), u64::from(said));
        self.next += said;
        self.acked += told;
        self.got.add(1, 1 + told);
        self.peer_edge += said;
        let flow = &mut self.flows[0];
        flow.next = u32::try_from(self.next).unwrap_or(1);
        flow.acked = flow.next;
        flow.got.add(1, 1 + told);
    }

    /// A flow of which nothing is known yet.
    pub(crate) fn reopen(&mut self, k: usize) {
        self.flows[k] = ClientFlow {
            next: 1,
            acked: 1,
            ..ClientFlow::default()
        };
    }

    /// Whether its window lets it send on a flow. It may overrun that with the last packet, as Linux does.
    pub(crate) fn may_send(&self, k: usize, at: u64) -> bool {
        let flow = &self.flows[k];
        let outstanding = flow.next.saturating_sub(flow.acked);
        !flow.fin && at <= self.peer_edge && outstanding <= u32::from(SYN_WINDOW)
    }

    /// What it ACKs of the data.
    pub(crate) fn data_ack(&self) -> u64 {
        let end = self.got.end_from(1);
        end + u64::from(self.fin_got == Some(end))
    }

    /// What it ACKs on a flow.
    pub(crate) fn ack(&self, k: usize) -> u32 {
        u32::try_from(self.flows[k].got.end_from(1)).unwrap_or(u32::MAX)
    }

    pub(crate) fn remember(&mut self, k: usize, mapping: Mapping) {
        let sent = &mut self.flows[k].sent;
        sent.push(mapping);
        if sent.len() > REMEMBERED {
            sent.remove(0);
        }
    }

    /// Takes data that came at this place of a flow.
    pub(crate) fn take(&mut self, k: usize, (ssn, dsn, len): Mapping) {
        let flow = &mut self.flows[k];
        flow.got.add(ssn.into(), u64::from(ssn) + u64::from(len));
        flow.pending.push((ssn, dsn, len));
        let ready = flow.got.end_from(1);
        let got = &mut self.got;
        flow.pending.retain(|&(ssn, dsn, len)| {
            let waits = u64::from(ssn) >= ready;
            if !waits {
                got.add(dsn, dsn + u64::from(len));
            }
            waits
        });
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            acked: 1,
            peer_acked: 1,
            peer_edge: 1 + u64::from(SYN_WINDOW),
            ..Self::default()
        }
    }

    /// Connected by an aggregation server that was told and has said so much before.
    pub(crate) fn behind(&mut self, Preamble { told, said }: Preamble) {
        let (told, said) = (u64::from(told), u64::from(said));
        (self.next, self.peer_acked) = (1 + told, 1 + told);
        self.peer_edge += told;
        self.acked += said;
        self.got.add(1, 1 + said);
    }

    /// How much of `len` new bytes its client has room for.
    pub(crate) fn room(&self, len: u32) -> u32 {
        let room = self.peer_edge.saturating_sub(self.next);
        len.min(u32::try_from(room).unwrap_or(u32::MAX))
    }

    pub(crate) fn ack(&self) -> u64 {
        let end = self.got.end_from(1);
        end + u64::from(self.fin_got == Some(end))
    }
}

/// A packet's mapping in numbers relative to `idsn`, DATA_FIN not counted, and whether it has one.
/// FlexCP writes 64-bit numbers only (RFC 8684 section 3.3.1).
pub(crate) fn mapping_of(output: &Output, idsn: u64) -> Option<(Mapping, bool)> {
    let dss = output.options.dss?;
    let mapping = dss.mapping?;
    let DataNumber::Long(dsn) = mapping.dsn else {
        return None; // never FlexCP's own
    };
    let len = u32::from(mapping.len).saturating_sub(u32::from(dss.data_fin));
    Some(((mapping.ssn, dsn.wrapping_sub(idsn), len), dss.data_fin))
}

/// `len` bytes of a stream from `at` on.
pub(crate) fn stream(up: bool, at: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len)).map(|i| byte(up, at + i)).collect()
}

/// The byte at `at`: never 0, which is what filler is made of.
fn byte(up: bool, at: u64) -> u8 {
    let mixed = (at + 1 + u64::from(up) * 77).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    u8::try_from(mixed).unwrap_or(0) | 1
}
