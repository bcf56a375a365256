//! Connections that an earlier run has left behind: their ends wait for a translator that knows them, and nobody does.
//! Both are told, at the number that they believe.
//!
//! A RST counts at the exact number only (RFC 5961 section 3.2). An end that sends something says it with its ACK; one
//! that is silent is probed. What has no place in its window it answers with an ACK (RFC 9293 section 3.10.7.4), and a
//! SYN likewise (RFC 5961 section 4). A firewall that follows connections drops the one or the other, so they take turns.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use flexcp_wire::{Ends, OptionWriter, TcpFlags};

use super::Translator;
use crate::cause::Rst;
use crate::record::SubflowRecord;
use crate::rst::{fast_close, refuse};
use crate::segment::{Outgoing, Segment};
use crate::{Instant, Verdict};

/// When all ends that have not fallen silent for good are probed, from the start on.
const ROUNDS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1500),
];
/// Connections whose ends are probed at a time, and the pause behind them: their answers come all at once.
const AT_A_TIME: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// What still comes after this time belongs to nobody.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// All that is left of an earlier run.
#[derive(Debug)]
pub(crate) struct Orphans {
    connections: Vec<Orphan>,
    /// Packets of those, in the order of their ends.
    flows: Vec<(Ends, Leg)>,
    since: Instant,
    /// The round of probes, and the next connection in it.
    round: usize,
    next: usize,
    due: Instant,
    /// Of so many translators that know of them, the one with this number probes.
    share: (usize, usize),
}

/// One connection.
#[derive(Debug)]
struct Orphan {
    source: SocketAddr,
    backend: SocketAddr,
    key: Option<u64>,
    subflows: Vec<Side>,
    /// The server has reset it.
    server_gone: bool,
    /// The client has been heard, and still speaks MPTCP.
    heard: bool,
    /// The client has fallen back: the ends understand each other.
    fell_back: bool,
}

/// The client's end of a subflow.
#[derive(Debug)]
struct Side {
    client: SocketAddr,
    local: SocketAddr,
    /// The client has reset it.
    gone: bool,
}

/// Which packets of a connection a flow holds.
#[derive(Clone, Copy, Debug)]
struct Leg {
    connection: usize,
    /// Of this subflow; `None`: of the server.
    subflow: Option<usize>,
}

impl Orphan {
    /// On the path with one subflow, whose numbers are those of TCP: a client that hears the server's own packets may
    /// fall back, and the connection goes on (RFC 8684 section 3.7).
    fn may_fall_back(&self) -> bool {
        matches!(&self.subflows[..], [only] if (only.client, only.local) == (self.source, self.backend))
    }

    /// Whether what the server says may reach the client as it is.
    fn may_pass(&self) -> bool {
        self.fell_back || (self.may_fall_back() && !self.heard)
    }
}

impl Orphans {
    fn new(now: Instant, mut records: Vec<SubflowRecord>, share: (usize, usize)) -> Self {
        records.sort_unstable();
        records.dedup();
        let same =
            |a: &SubflowRecord, b: &SubflowRecord| (a.source, a.backend) == (b.source, b.backend);
        let connections: Vec<_> = records.chunk_by(same).map(Orphan::new).collect();
        let mut flows = Vec::with_capacity(records.len() + connections.len());
        for (connection, orphan) in connections.iter().enumerate() {
            let server = Ends {
                from: orphan.backend,
                to: orphan.source,
            };
            let subflow = None;
            flows.push((
                server,
                Leg {
                    connection,
                    subflow,
                },
            ));
            for (index, side) in orphan.subflows.iter().enumerate() {
                let client = Ends {
                    from: side.client,
                    to: side.local,
                };
                let subflow = Some(index);
                flows.push((
                    client,
                    Leg {
                        connection,
                        subflow,
                    },
                ));
            }
        }
        flows.sort_unstable_by_key(|&(ends, _)| ends);
        Self {
            connections,
            flows,
            since: now,
            round: 0,
            next: 0,
            due: now,
            share,
        }
    }

    /// When it wants to be looked after.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    fn find(&self, ends: Ends) -> Option<Leg> {
        let place = self.flows.binary_search_by_key(&ends, |&(ends, _)| ends);
        place.ok().map(|place| self.flows[place].1)
    }

    /// The ends to probe now, each with what the packet is to be; and when to go on.
    fn probes(&mut self) -> Vec<Ends> {
        let first = self.next;
        let last = self.connections.len().min(first + AT_A_TIME);
        let mut ends = Vec::new();
        let (worker, workers) = self.share;
        let ours = (first..last).filter(|index| index % workers.max(1) == worker);
        for orphan in ours.map(|index| &self.connections[index]) {
            if orphan.fell_back {
                continue;
            }
            if !orphan.server_gone && !orphan.may_pass() {
                ends.push(Ends {
                    from: orphan.source,
                    to: orphan.backend,
                });
            }
            let waiting = orphan.subflows.iter().filter(|side| !side.gone);
            ends.extend(waiting.map(|side| Ends {
                from: side.local,
                to: side.client,
            }));
        }
        self.next = last;
        self.due = self.due + PAUSE;
        if last == self.connections.len() {
            self.next = 0;
            self.round += 1;
            let next = ROUNDS.get(self.round).unwrap_or(&FORGOTTEN);
            self.due = self.due.max(self.since + *next);
        }
        ends
    }
}

impl Orphan {
    fn new(records: &[SubflowRecord]) -> Self {
        let side = |record: &SubflowRecord| Side {
            client: record.client,
            local: record.local,
            gone: false,
        };
        Self {
            source: records[0].source,
            backend: records[0].backend,
            key: records.iter().find_map(|record| record.key),
            subflows: records.iter().map(side).collect(),
            server_gone: false,
            heard: false,
            fell_back: false,
        }
    }
}

impl Translator {
    /// Takes over what an earlier run has left behind: both ends of each connection are told that it is over. `share`:
    /// the number of this translator, and how many get the same records. Call it before the first packet.
    pub fn adopt(&mut self, now: Instant, records: Vec<SubflowRecord>, share: (usize, usize)) {
        if records.is_empty() {
            return;
        }
        let orphans = Orphans::new(now, records, share);
        let count = orphans.connections.len();
        self.counters.orphans += u64::try_from(count).unwrap_or(u64::MAX);
        self.records.orphans = Some(orphans);
    }

    /// Whether an earlier run has left behind who sends this.
    pub(crate) fn is_orphaned(&self, ends: Ends) -> bool {
        self.records
            .orphans
            .as_ref()
            .is_some_and(|orphans| orphans.find(ends).is_some())
    }

    /// A packet that no connection knows, and that is no SYN. `None`: nor did an earlier run.
    pub(crate) fn handle_orphan(&mut self, ends: Ends, segment: &Segment) -> Option<Verdict> {
        let orphans = self.records.orphans.as_mut()?;
        let leg = orphans.find(ends)?;
        let orphan = &mut orphans.connections[leg.connection];
        let speaks = segment.has(TcpFlags::ACK) && !segment.has(TcpFlags::RST);
        if let Some(index) = leg.subflow {
            if speaks && !segment.options.mptcp && orphan.may_fall_back() {
                orphan.fell_back = true;
            }
            if orphan.fell_back {
                return Some(Verdict::Forward);
            }
            orphan.heard |= speaks;
            orphan.subflows[index].gone |= segment.has(TcpFlags::RST);
        } else if orphan.may_pass() {
            return Some(Verdict::Forward);
        } else {
            orphan.server_gone |= segment.has(TcpFlags::RST);
        }
        if speaks {
            let (counters, outbox) = (&mut self.counters, &mut self.outbox);
            match orphan.key.filter(|_| leg.subflow.is_some()) {
                Some(key) => fast_close(counters, outbox, segment, Rst::Orphaned, key),
                None => refuse(counters, outbox, segment, Rst::Orphaned, 0),
            }
        }
        Some(Verdict::Consume)
    }

    /// Probes the ends that are silent, and forgets them in the end.
    pub(crate) fn tend_orphans(&mut self, now: Instant) {
        let Some(orphans) = self
            .records
            .orphans
            .as_mut()
            .filter(|orphans| orphans.due <= now)
        else {
            return;
        };
        if orphans.round == ROUNDS.len() {
            self.records.orphans = None;
            return;
        }
        let flags = if orphans.round.is_multiple_of(2) {
            TcpFlags::ACK
        } else {
            TcpFlags::SYN
        };
        orphans.due = now;
        for ends in orphans.probes() {
            let numbers = self.keys.numbers.next_u64();
            self.counters.orphan_probes_tx += 1;
            self.counters.packets_made += 1;
            self.outbox.push_back(probe(ends, flags, numbers).own());
        }
    }
}

/// A packet with any numbers, which lie in no window but by chance.
#[allow(clippy::cast_possible_truncation, reason = "32 bits each")]
fn probe(ends: Ends, flags: TcpFlags, numbers: u64) -> Outgoing {
    let ack = if flags.contains(TcpFlags::ACK) {
        (numbers >> 32) as u32
    } else {
        0
    };
    Outgoing {
        ends,
        seq: numbers as u32,
        ack,
        flags,
        window: 0,
        urgent: 0,
        keep_ecn: false,
        flow_label: 0,
        options: OptionWriter::default(),
    }
}
