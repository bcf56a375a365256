//! The two ends: a TCP server with SACK, and an MPTCP client that delivers each subflow in order.
//! Both number their bytes from 1.

use super::Random;
use super::line::Packet;

const RTO: u64 = 200;
const MAX_RTO: u64 = 3000;
/// Bytes in flight, at most.
const FLIGHT: u32 = 20_000;

/// Which bytes are there, as disjoint ranges in order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn add(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        self.0.retain(|&(a, b)| {
            let apart = b < start || a > end;
            if !apart {
                start = start.min(a);
                end = end.max(b);
            }
            apart
        });
        let at = self.0.partition_point(|&(a, _)| a < start);
        self.0.insert(at, (start, end));
    }

    fn holds(&self, start: u32, end: u32) -> bool {
        start >= end || self.0.iter().any(|&(a, b)| a <= start && end <= b)
    }

    /// Behind the stretch that `at` lies in.
    fn next_missing(&self, at: u32) -> u32 {
        self.0
            .iter()
            .find(|&&(a, b)| a <= at && at < b)
            .map_or(at, |&(_, b)| b)
    }

    /// Where the next stretch behind `at` starts.
    fn next_start(&self, at: u32) -> Option<u32> {
        self.0.iter().map(|&(a, _)| a).find(|&a| a > at)
    }
}

/// A TCP server.
#[derive(Debug)]
pub(crate) struct Server {
    total: u32,
    expected: u32,
    una: u32,
    nxt: u32,
    /// Highest number that has ever been sent, the FIN's included.
    edge: u32,
    sacked: Ranges,
    duplicates: u32,
    deadline: u64,
    rto: u64,
    /// Sending again from here on until everything that was out is acknowledged.
    recovery: Option<(u32, u32)>,
    got: Ranges,
    rcv: u32,
    fin: Option<u32>,
    recent: Option<(u32, u32)>,
}

impl Server {
    pub(crate) fn new(total: u32, expected: u32) -> Self {
        Self {
            total,
            expected,
            una: 1,
            nxt: 1,
            edge: 100_000,
            sacked: Ranges::default(),
            duplicates: 0,
            deadline: RTO,
            rto: RTO,
            recovery: None,
            got: Ranges::default(),
            rcv: 1,
            fin: None,
            recent: None,
        }
    }

    /// Its FIN is acknowledged and the client's has come.
    pub(crate) const fn is_done(&self) -> bool {
        self.una == self.total + 2 && self.rcv == self.expected + 2
    }

    pub(crate) fn tick(&mut self, now: u64, random: &mut Random) -> Vec<String> {
        let mut lines = Vec::new();
        if self.una < self.nxt && now >= self.deadline {
            self.rto = (self.rto * 2).min(MAX_RTO);
            self.deadline = now + self.rto;
            // The head cannot have been SACKed, unless the client has dropped it again.
            if self.sacked.holds(self.una, self.una + 1) {
                self.sacked = Ranges::default();
            }
            self.recovery = Some((self.una, self.nxt));
        }
        if let Some((at, until)) = self.recovery {
            let at = self.sacked.next_missing(at.max(self.una));
            if at < until {
                let stop = self.sacked.next_start(at).unwrap_or(until).min(until);
                let end = (at + Self::length(random)).min(stop);
                lines.push(self.segment(at, end));
                self.recovery = Some((end, until));
            } else if self.una >= until {
                self.recovery = None;
            }
        }
        while self.nxt < self.total + 2 && self.nxt - self.una < FLIGHT && self.nxt < self.edge {
            let end = (self.nxt + Self::length(random))
                .min(self.edge)
                .min(self.total + 2);
            if self.una == self.nxt {
                self.deadline = now + self.rto;
            }
            lines.push(self.segment(self.nxt, end));
            self.nxt = end;
            if lines.len() >= 3 {
                break;
            }
        }
        lines
    }

    pub(crate) fn take(&mut self, now: u64, packet: &Packet) -> Vec<String> {
        assert!(
            packet.ack <= self.nxt,
            "ACK of what was never sent: {packet:?}"
        );
        let edge = packet.ack + (packet.window << 8);
        self.edge = self.edge.max(edge);
        for &(a, b) in &packet.sack {
            assert!(b <= self.nxt, "SACK of what was never sent: {packet:?}");
            self.sacked.add(a.max(self.una), b);
        }
        if packet.ack > self.una {
            self.una = packet.ack;
            self.rto = RTO;
            self.deadline = now + RTO;
            self.duplicates = 0;
        } else if packet.ack == self.una && packet.seq == packet.end && self.una < self.nxt {
            self.duplicates += 1;
            if self.duplicates == 3 && self.recovery.is_none() {
                self.recovery = Some((self.una, (self.una + 1400).min(self.nxt)));
            }
        }
        let fin = u32::from(packet.fin);
        if packet.seq == packet.end && fin == 0 {
            return if packet.seq < self.rcv {
                vec![self.ack()]
            } else {
                Vec::new()
            };
        }
        if packet.fin {
            self.fin = Some(packet.end);
        }
        self.got.add(packet.seq, packet.end + fin);
        self.recent = Some((packet.seq, packet.end + fin));
        self.rcv = self.got.next_missing(self.rcv);
        vec![self.ack()]
    }

    fn ack(&self) -> String {
        let block = |(a, b): (u32, u32)| format!(" {a}:{b}");
        let mut blocks: Vec<(u32, u32)> = self
            .got
            .0
            .iter()
            .copied()
            .filter(|&(a, _)| a > self.rcv)
            .collect();
        // The one that came last goes first (RFC 2018).
        if let Some((a, b)) = self.recent {
            blocks.sort_by_key(|&(x, y)| !(x <= a && b <= y));
        }
        let sack: String = blocks.into_iter().take(3).map(block).collect();
        let options = if sack.is_empty() {
            String::new()
        } else {
            format!(" <sack{sack}>")
        };
        format!(". {0}:{0}(0) ack {1}{options}", self.nxt, self.rcv)
    }

    /// The FIN is the byte behind the data.
    fn segment(&self, start: u32, end: u32) -> String {
        let fin = end == self.total + 2;
        let data_end = end - u32::from(fin);
        let flags = if fin { "FP." } else { "." };
        let gso = if data_end - start > 1432 {
            " gso 1400"
        } else {
            ""
        };
        format!(
            "{flags} {start}:{data_end}({}) ack {}{gso}",
            data_end - start,
            self.rcv
        )
    }

    fn length(random: &mut Random) -> u32 {
        let len = match random.below(10) {
            0 => 1 + random.below(100),
            1 | 2 => 1 + random.below(6000),
            _ => 1400,
        };
        u32::try_from(len).expect("short")
    }
}

/// Data that the client has sent on a subflow under one mapping.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    ssn: u32,
    len: u32,
    dsn: u32,
}

/// A subflow at the client.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    alive: bool,
    rcv: u32,
    /// Segments not yet delivered: (SSN, SSN behind, DSN, filler).
    waiting: Vec<(u32, u32, u32, bool)>,
    una: u32,
    nxt: u32,
    chunks: Vec<Chunk>,
    deadline: u64,
    rto: u64,
}

impl Flow {
    const fn new() -> Self {
        Self {
            alive: true,
            rcv: 1,
            waiting: Vec::new(),
            una: 1,
            nxt: 1,
            chunks: Vec::new(),
            deadline: RTO,
            rto: RTO,
        }
    }
}

/// An MPTCP client.
#[derive(Debug)]
pub(crate) struct Client {
    total: u32,
    expected: u32,
    pub(crate) flows: Vec<Flow>,
    got: Ranges,
    data_ack: u32,
    fin_down: Option<u32>,
    /// Upload: the next byte to map, what the server has acknowledged, and since when that stands still.
    nxt: u32,
    una: u32,
    progress: u64,
    fin_sent: u64,
}

impl Client {
    pub(crate) fn new(flows: usize, expected: u32, total: u32) -> Self {
        Self {
            total,
            expected,
            flows: vec![Flow::new(); flows],
            got: Ranges::default(),
            data_ack: 1,
            fin_down: None,
            nxt: 1,
            una: 1,
            progress: 0,
            fin_sent: 0,
        }
    }

    /// Everything and the DATA_FIN have come, and its own DATA_FIN is acknowledged.
    pub(crate) const fn is_done(&self) -> bool {
        self.data_ack == self.expected + 2 && self.una == self.total + 2
    }

    /// Fewer than `wanted` subflows are left, and there is room for another.
    pub(crate) fn lacks_subflows(&self, wanted: usize) -> bool {
        let alive = self.flows.iter().filter(|flow| flow.alive).count();
        alive < wanted && self.flows.len() < 8
    }

    pub(crate) fn oldest_alive(&self) -> usize {
        self.flows.iter().position(|flow| flow.alive).unwrap_or(0)
    }

    /// A new subflow has joined.
    pub(crate) fn join(&mut self) -> usize {
        self.flows.push(Flow::new());
        self.flows.len() - 1
    }

    pub(crate) fn reset(&mut self, id: usize) -> Option<String> {
        let flow = &mut self.flows[id];
        if !flow.alive {
            return None;
        }
        flow.alive = false;
        self.nxt = self.una.min(self.total + 1);
        Some(format!("R {0}:{0}(0) win 0", flow.nxt))
    }

    pub(crate) fn prio(&self, id: usize, backup: bool) -> Option<String> {
        let flow = &self.flows[id];
        let b = if backup { " b" } else { "" };
        flow.alive.then(|| {
            format!(
                "{} <dss ack {},prio{b}>",
                Self::head(".", flow, flow.nxt, flow.nxt),
                self.data_ack
            )
        })
    }

    pub(crate) fn tick(&mut self, now: u64, random: &mut Random) -> Vec<(usize, String)> {
        let mut lines = Vec::new();
        let alive: Vec<usize> = (0..self.flows.len())
            .filter(|&id| self.flows[id].alive)
            .collect();
        if alive.is_empty() {
            return lines;
        }
        let pick = usize::try_from(random.below(alive.len() as u64)).expect("small");
        let id = alive[pick];
        // Data that nobody has acknowledged for long goes out on any subflow again.
        if self.una < self.nxt && now - self.progress > 1000 {
            self.progress = now;
            self.nxt = self.una;
        }
        let flow = &self.flows[id];
        if self.nxt <= self.total && flow.nxt - flow.una < 6000 && self.nxt - self.una < FLIGHT {
            let len = 1 + u32::try_from(random.below(4000)).expect("short");
            let len = len.min(self.total + 1 - self.nxt);
            let chunk = Chunk {
                ssn: flow.nxt,
                len,
                dsn: self.nxt,
            };
            if flow.una == flow.nxt {
                self.flows[id].deadline = now + RTO;
            }
            self.flows[id].chunks.push(chunk);
            self.flows[id].nxt += len;
            self.nxt += len;
            self.send_chunk(id, chunk, &mut lines);
        }
        if self.nxt == self.total + 1 && self.una == self.total + 1 && now >= self.fin_sent + RTO {
            self.fin_sent = now;
            let flow = &self.flows[id];
            let head = Self::head(".", flow, flow.nxt, flow.nxt);
            lines.push((
                id,
                format!("{head} <dss ack {} fin {}>", self.data_ack, self.total + 1),
            ));
        }
        for id in alive {
            let flow = &mut self.flows[id];
            if flow.una < flow.nxt && now >= flow.deadline {
                flow.rto = (flow.rto * 2).min(MAX_RTO);
                flow.deadline = now + flow.rto;
                let una = flow.una;
                let first = flow
                    .chunks
                    .iter()
                    .find(|chunk| chunk.ssn + chunk.len > una)
                    .copied();
                if let Some(chunk) = first {
                    self.send_chunk(id, chunk, &mut lines);
                }
            }
        }
        lines
    }

    /// What is not acknowledged of a chunk, each packet with the mapping of the whole.
    fn send_chunk(&self, id: usize, chunk: Chunk, lines: &mut Vec<(usize, String)>) {
        let flow = &self.flows[id];
        let (mut at, end) = (chunk.ssn.max(flow.una), chunk.ssn + chunk.len);
        while at < end {
            let stop = (at + 1400).min(end);
            let head = Self::head("P.", flow, at, stop);
            let (dsn, dsn_end) = (chunk.dsn, chunk.dsn + chunk.len);
            let dss = format!(
                "dss ack {} map {dsn}:{dsn_end}@{}",
                self.data_ack, chunk.ssn
            );
            lines.push((id, format!("{head} <{dss}>")));
            at = stop;
        }
    }

    pub(crate) fn take(
        &mut self,
        packet: &Packet,
        random: &mut Random,
        pruned: u64,
    ) -> Result<Vec<String>, String> {
        let id = packet.flow.expect("a flow");
        let Some(flow) = self.flows.get_mut(id).filter(|flow| flow.alive) else {
            return Ok(Vec::new());
        };
        if packet.rst {
            flow.alive = false;
            self.nxt = self.una.min(self.total + 1);
            return Ok(Vec::new());
        }
        if packet.ack > flow.nxt {
            return Err(format!("ACK of what was never sent: {packet:?}"));
        }
        if packet.ack > flow.una {
            flow.una = packet.ack;
            flow.rto = RTO;
            flow.deadline += RTO;
            let una = flow.una;
            flow.chunks.retain(|chunk| chunk.ssn + chunk.len > una);
        }
        if let Some(ack) = packet.data_ack {
            if ack > self.total + 2 {
                return Err(format!("data ACK of what was never sent: {packet:?}"));
            }
            if ack > self.una {
                self.una = ack;
                self.nxt = self.nxt.max(ack.min(self.total + 1));
            }
        }
        self.fin_down = packet.data_fin.or(self.fin_down);
        let is_data = packet.end > packet.seq;
        if is_data {
            let Some((dsn, _, ssn)) = packet.map else {
                return Err(format!("data without a mapping: {packet:?}"));
            };
            let dsn = dsn + (packet.seq - ssn);
            self.flows[id]
                .waiting
                .push((packet.seq, packet.end, dsn, packet.zeros));
            self.deliver(id, random, pruned)?;
        }
        self.data_ack = self.got.next_missing(self.data_ack);
        if self.fin_down == Some(self.data_ack) {
            self.got.add(self.data_ack, self.data_ack + 1);
            self.data_ack += 1;
        }
        let probe = packet.seq < self.flows[id].rcv;
        Ok(if is_data || packet.data_fin.is_some() || probe {
            vec![self.ack(id)]
        } else {
            Vec::new()
        })
    }

    /// Data goes up in the order of the subflow's numbers, and some of it is dropped after that.
    fn deliver(&mut self, id: usize, random: &mut Random, pruned: u64) -> Result<(), String> {
        loop {
            let flow = &mut self.flows[id];
            let rcv = flow.rcv;
            flow.waiting.retain(|&(_, end, ..)| end > rcv);
            let next = flow
                .waiting
                .iter()
                .find(|&&(start, ..)| start <= rcv)
                .copied();
            let Some((start, end, dsn, filler)) = next else {
                return Ok(());
            };
            flow.rcv = end;
            let dsn = dsn + (rcv - start);
            let dsn_end = dsn + (end - rcv);
            if filler {
                if !self.got.holds(dsn, dsn_end) {
                    return Err(format!(
                        "filler for data that the client does not have: {dsn}:{dsn_end}"
                    ));
                }
            } else if !random.chance(pruned) {
                self.got.add(dsn, dsn_end);
            }
        }
    }

    fn ack(&self, id: usize) -> String {
        let flow = &self.flows[id];
        let mut waiting = Ranges::default();
        flow.waiting
            .iter()
            .for_each(|&(a, b, ..)| waiting.add(a, b));
        let blocks: String = waiting
            .0
            .iter()
            .take(2)
            .map(|(a, b)| format!(" {a}:{b}"))
            .collect();
        let sack = if blocks.is_empty() {
            String::new()
        } else {
            format!("sack{blocks},")
        };
        format!(
            "{} <{sack}dss ack {}>",
            Self::head(".", flow, flow.nxt, flow.nxt),
            self.data_ack
        )
    }

    fn head(flags: &str, flow: &Flow, start: u32, end: u32) -> String {
        format!(
            "{flags} {start}:{end}({}) ack {} win 512",
            end - start,
            flow.rcv
        )
    }
}
