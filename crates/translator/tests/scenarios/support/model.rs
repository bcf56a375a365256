//! A model of the fast path: takes what runs its steady course, by the rules of a flow entry alone.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers on the wire are the low halves of positions"
)]

use std::net::{IpAddr, SocketAddr};

use flexcp_translator::{ENTRY_RUNS, ENTRY_UPS, EntrySubflow, FlowEntry, Hole, MappingRun, UpRun};
use flexcp_wire::{
    ChecksumState, DataNumber, Dsn, Dss, DssMapping, IpHeader, MptcpOption, Offload, SackBlocks,
    Sum, TcpFlags, TcpHeader, TcpOption, TcpOptions, Timestamps,
};

/// What an answer may take beyond two round trips, in microseconds.
const JITTER: u64 = 5_000;
/// Longest payload of one mapping.
const MAX_MAPPING: usize = 0xffff - 20 - 60;

/// Headers of a translated packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Headers {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    window: u16,
    flow_label: u32,
    timestamps: Option<Timestamps>,
    pub(crate) dss: Option<Dss>,
    sack: SackBlocks,
}

/// A packet, read.
struct Packet {
    headers: Headers,
    payload: usize,
    /// Nothing stands in it that the fast path does not know.
    plain: bool,
}

/// Whether `a` is later than `b` on a clock of timestamps.
const fn later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn read(bytes: &[u8], offload: Offload) -> Option<Packet> {
    let ip = IpHeader::parse(bytes).ok()?;
    let segment = bytes.get(ip.header_len..ip.total_len)?;
    let (tcp, options) = TcpHeader::parse(segment).ok()?;
    let right = offload.checksum != ChecksumState::Complete
        || ip
            .pseudo_header_sum(segment.len())
            .add(Sum::of(segment))
            .fold()
            == 0xffff;
    let ack = [TcpFlags::ACK, TcpFlags::ACK | TcpFlags::PSH];
    let mut plain = right
        && ip.protocol == 6
        && ip.header_len == if ip.is_v6() { 40 } else { 20 }
        && ip.traffic_class & 3 == 0
        && tcp.urgent == 0
        && ack.contains(&tcp.flags);
    let (mut timestamps, mut dss, mut sack) = (None, None, SackBlocks::default());
    for option in TcpOptions::new(options) {
        match option {
            Ok(TcpOption::Timestamps(found)) if timestamps.is_none() => timestamps = Some(found),
            Ok(TcpOption::Mptcp(MptcpOption::Dss(found))) if dss.is_none() => dss = Some(found),
            Ok(TcpOption::Sack(found)) if sack.is_empty() => sack = found,
            _ => plain = false,
        }
    }
    Some(Packet {
        headers: Headers {
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
            seq: tcp.seq,
            ack: tcp.ack,
            flags: tcp.flags,
            window: tcp.window,
            flow_label: ip.flow_label,
            timestamps,
            dss,
            sack,
        },
        payload: segment.len() - tcp.header_len,
        plain,
    })
}

/// The headers of a packet that FlexCP sends.
pub(crate) fn headers(bytes: &[u8], offload: Offload) -> Option<Headers> {
    read(bytes, offload).map(|packet| packet.headers)
}

/// Translates a packet of this connection's, if it is one for the fast path.
pub(crate) fn take(
    entry: &mut FlowEntry,
    now: u64,
    bytes: &[u8],
    offload: Offload,
) -> Option<Headers> {
    let packet = read(bytes, offload).filter(|packet| packet.plain)?;
    let ends = (packet.headers.from, packet.headers.to);
    let mut edited = *entry;
    let headers = if ends == server_ends(entry) {
        edited.down(now, &packet)
    } else {
        let of = |s: &EntrySubflow| s.installed == 1 && ends == client_ends(entry, s);
        let index = entry.subflows.iter().position(of)?;
        edited.up(now, index, &packet)
    }?;
    *entry = edited;
    Some(headers)
}

fn addr(entry: &FlowEntry, bytes: [u8; 16]) -> IpAddr {
    if entry.family == 4 {
        let [a, b, c, d, ..] = bytes;
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(bytes)
    }
}

/// Ends of the server's packets.
fn server_ends(entry: &FlowEntry) -> (SocketAddr, SocketAddr) {
    let server = (addr(entry, entry.server_addr), entry.server_port);
    let source = (addr(entry, entry.source_addr), entry.source_port);
    (server.into(), source.into())
}

/// Ends of the client's packets on a subflow.
fn client_ends(entry: &FlowEntry, subflow: &EntrySubflow) -> (SocketAddr, SocketAddr) {
    let remote = (addr(entry, subflow.remote_addr), subflow.remote_port);
    let local = (addr(entry, subflow.local_addr), subflow.local_port);
    (remote.into(), local.into())
}

/// Where the server's data belongs.
struct Place {
    /// Bytes from what comes next, modulo 2^32.
    from_next: u32,
    /// The hole that it fills.
    hole: Option<usize>,
}

/// The rules.
trait Rules {
    fn down(&mut self, now: u64, packet: &Packet) -> Option<Headers>;
    fn up(&mut self, now: u64, index: usize, packet: &Packet) -> Option<Headers>;
    fn place(&self, seq: u32, len: usize) -> Option<Place>;
    fn is_late(&self, now: u64, index: usize, silence_counts: bool) -> bool;
    /// Data behind all other, and a hole for what it has overtaken.
    fn go_on(&mut self, now: u64, index: usize, gap: u32, len: u32) -> Option<()>;
    /// `None`: it has something else to say than what the server has yet to hear of.
    fn sack_up(&self, index: usize, headers: &Headers, data_ack: Dsn) -> Option<SackBlocks>;
    fn take_server_header(&mut self, ack: Dsn, headers: &Headers) -> Option<()>;
    fn declare(&mut self, ssn: u32, len: usize) -> Option<()>;
    fn drop_acked(&mut self);
    /// What the active subflow has ACKed, as data.
    fn una(&self) -> Dsn;
    fn brought(&self, index: usize) -> Vec<(Dsn, u32)>;
    fn keep(&mut self, index: usize, runs: &[(Dsn, u32)]);
    fn moved(&self, ack: Dsn, sack: &SackBlocks) -> Option<Vec<(usize, u32)>>;
    fn believe(&mut self, waited: Dsn, timestamps: Timestamps);
    fn let_go(&mut self, index: usize, count: u32);
    fn down_to(&self, index: usize, headers: &Headers, seq: u32, dss: Dss) -> Headers;
}

impl Rules for FlowEntry {
    fn down(&mut self, now: u64, packet: &Packet) -> Option<Headers> {
        let headers = &packet.headers;
        let timestamps = headers.timestamps.filter(|_| headers.dss.is_none())?;
        let place = self.place(headers.seq, packet.payload)?;
        let distance = headers.ack.wrapping_sub(self.seq_up).cast_signed();
        let ack = Dsn(self.up_next.wrapping_add_signed(distance.into()));
        let (acked, next) = (Dsn(self.up_acked), Dsn(self.up_next));
        if ack.before(acked) || ack.after(next) {
            return None;
        }
        let moved = self.moved(ack, &headers.sack)?;
        let active = self.active as usize;
        let alone = packet.payload == 0;
        let index = match moved.as_slice() {
            [] if !alone && ack == acked && headers.sack.is_empty() => active,
            &[(index, _)] if alone || index == active && headers.sack.is_empty() => index,
            _ => return None,
        };
        self.take_server_header(ack, headers)?;
        if later(timestamps.val, self.ts_heard) {
            self.ts_heard = timestamps.val;
        }
        let dss = Dss {
            data_ack: Some(DataNumber::Long(ack.0)),
            mapping: None,
            data_fin: false,
        };
        if ack.after(acked) {
            self.believe(acked, timestamps);
        }
        self.up_acked = ack.0;
        self.last_packet = now;
        self.label_down = headers.flow_label;
        self.packets_down += 1;
        for (index, count) in moved {
            self.let_go(index, count);
        }
        if packet.payload == 0 {
            return Some(self.down_to(index, headers, self.subflows[index].snd_next, dss));
        }
        let len = u32::try_from(packet.payload).ok()?;
        if packet.payload > MAX_MAPPING || self.is_late(now, index, place.hole.is_some()) {
            return None;
        }
        let ssn = self.subflows[index].snd_next.wrapping_add(place.from_next);
        let behind = place.from_next.cast_signed().into();
        let mapping = DssMapping {
            dsn: DataNumber::Long(self.down_next.wrapping_add_signed(behind)),
            ssn: ssn.wrapping_sub(self.subflows[index].isn_local),
            len: len as u16,
            checksum: None,
        };
        self.subflows[index].bytes_down += u64::from(len);
        if let Some(hole) = place.hole {
            let subflow = &mut self.subflows[index];
            subflow.outstanding_since = subflow.outstanding_since.max(now);
            let hole = &mut self.holes[hole];
            *hole = Hole {
                seq: hole.seq.wrapping_add(len),
                len: hole.len - len,
            };
        } else {
            self.go_on(now, index, place.from_next, len)?;
        }
        self.declare(ssn, packet.payload)?;
        let dss = Dss {
            mapping: Some(mapping),
            ..dss
        };
        Some(self.down_to(index, headers, ssn, dss))
    }

    fn place(&self, seq: u32, len: usize) -> Option<Place> {
        let from_next = seq.wrapping_sub(self.seq_down);
        let mut place = Place {
            from_next,
            hole: None,
        };
        if from_next == 0 {
            return Some(place);
        }
        let missing = || self.holes.iter().filter(|hole| hole.len > 0);
        if from_next.cast_signed() > 0 {
            let fits = len > 0 && missing().count() < self.holes.len();
            return fits.then_some(place);
        }
        let fits = |hole: &Hole| hole.seq == seq && (1..=hole.len as usize).contains(&len);
        place.hole = Some(self.holes.iter().position(fits)?);
        let dsn = Dsn(self.down_next).sub(from_next.wrapping_neg().into());
        let claimed = dsn.before(self.una()) || dsn.before(Dsn(self.down_acked));
        (!claimed).then_some(place)
    }

    fn is_late(&self, now: u64, index: usize, silence_counts: bool) -> bool {
        let subflow = &self.subflows[index];
        let outstanding = subflow.snd_next.wrapping_sub(subflow.snd_una);
        let waits = now.saturating_sub(subflow.outstanding_since);
        let round_trips = u64::from(subflow.srtt) * 2;
        let silence = self.silence.max(round_trips);
        let owes = outstanding >= subflow.mss * 2 && subflow.srtt != 0;
        let overdue = owes && waits >= (round_trips + JITTER).min(silence);
        overdue || silence_counts && outstanding > 0 && waits >= silence
    }

    fn go_on(&mut self, now: u64, index: usize, gap: u32, len: u32) -> Option<()> {
        let both = gap + len;
        let subflow = &mut self.subflows[index];
        let end = subflow.snd_next.wrapping_add(both);
        let room = subflow.snd_edge.wrapping_sub(end).cast_signed();
        let window = Dsn(self.down_edge).offset_from(Dsn(self.down_next).add(both.into()));
        if room < 0 || window < 0 {
            return None;
        }
        if subflow.snd_next == subflow.snd_una {
            subflow.outstanding_since = now;
        }
        subflow.snd_next = end;
        if subflow.is_timed == 0 {
            (subflow.timed, subflow.timed_at, subflow.is_timed) = (end, now, 1);
        }
        if gap > 0 {
            let seq = self.seq_down;
            *self.holes.iter_mut().find(|hole| hole.len == 0)? = Hole { seq, len: gap };
        }
        self.down_next = self.down_next.wrapping_add(both.into());
        self.seq_down = self.seq_down.wrapping_add(both);
        Some(())
    }

    fn sack_up(&self, index: usize, headers: &Headers, data_ack: Dsn) -> Option<SackBlocks> {
        let subflow = &self.subflows[index];
        let mut sack = SackBlocks::default();
        if let Some(&(left, right)) = headers.sack.as_slice().first() {
            let seq = |ssn: u32| {
                self.seq_down
                    .wrapping_sub(subflow.snd_next.wrapping_sub(ssn))
            };
            let dsn = Dsn(self.down_next).sub(subflow.snd_next.wrapping_sub(left).into());
            let above = !later(headers.ack, left) && dsn.after(data_ack);
            let sent = later(right, left) && !later(right, subflow.snd_next);
            let one = headers.sack.as_slice().len() == 1 && index == self.active as usize;
            if !(above && sent && one && self.server_sack == 1) {
                return None;
            }
            sack.push(seq(left), seq(right));
        }
        Some(sack)
    }

    fn take_server_header(&mut self, ack: Dsn, headers: &Headers) -> Option<()> {
        let window = |unscaled: u32| u64::from(unscaled << self.server_scale);
        let edge = Dsn(self.up_acked).add(window(self.server_window));
        let offered = window(headers.window.into());
        let new = ack.add(offered);
        let used_up = !edge.after(Dsn(self.up_next).add(u64::from(self.server_mss) * 2));
        self.server_edge = Dsn(self.server_edge).max(new).0;
        if ack.after(Dsn(self.up_acked)) || !new.before(edge) {
            if used_up && new.after(edge) {
                return None;
            }
            self.server_window = headers.window.into();
            self.server_window_max = self.server_window_max.max(offered as u32);
        }
        Some(())
    }

    fn declare(&mut self, ssn: u32, len: usize) -> Option<()> {
        let len = u16::try_from(len).ok()?;
        let at = |n: u32| (self.first_run + n) as usize % ENTRY_RUNS;
        if let Some(last) = self.runs_used.checked_sub(1) {
            let last = &mut self.runs[at(last)];
            let end = last
                .ssn
                .wrapping_add(u32::from(last.len) * u32::from(last.count));
            if last.len == len && last.count < u16::MAX && end == ssn {
                last.count += 1;
                return Some(());
            }
        }
        if self.runs_used as usize == ENTRY_RUNS {
            return None;
        }
        self.runs[at(self.runs_used)] = MappingRun { ssn, len, count: 1 };
        self.runs_used += 1;
        Some(())
    }

    fn drop_acked(&mut self) {
        let both = self.una().min(Dsn(self.down_acked));
        let snd_next = self.subflows[self.active as usize].snd_next;
        while self.runs_used > 0 {
            let front = &self.runs[self.first_run as usize];
            let bytes = u32::from(front.len) * u32::from(front.count);
            let rest = snd_next.wrapping_sub(front.ssn.wrapping_add(bytes));
            if Dsn(self.down_next).sub(rest.into()).after(both) {
                return;
            }
            self.first_run = (self.first_run + 1) % ENTRY_RUNS as u32;
            self.runs_used -= 1;
        }
    }

    fn una(&self) -> Dsn {
        let active = &self.subflows[self.active as usize];
        Dsn(self.down_next).sub(active.snd_next.wrapping_sub(active.snd_una).into())
    }

    /// What a subflow has brought, and the server has not ACKed.
    fn brought(&self, index: usize) -> Vec<(Dsn, u32)> {
        let installed = &self.subflows[index];
        let place = |n: u16| usize::from(installed.first_up + n) % ENTRY_UPS;
        let runs = (0..installed.ups_used).map(|n| self.ups[index][place(n)]);
        runs.map(|run| (Dsn(self.up_next).expand(run.dsn), run.len))
            .collect()
    }

    fn keep(&mut self, index: usize, runs: &[(Dsn, u32)]) {
        for (place, &(dsn, len)) in self.ups[index].iter_mut().zip(runs) {
            let dsn = dsn.0 as u32;
            *place = UpRun { dsn, len };
        }
        self.subflows[index].first_up = 0;
        self.subflows[index].ups_used = runs.len() as u16;
    }

    /// By how much the ACK of which subflow moves; `None`: it takes a SACK to say what has arrived.
    fn moved(&self, ack: Dsn, sack: &SackBlocks) -> Option<Vec<(usize, u32)>> {
        let place = |seq: u32| {
            let distance = seq.wrapping_sub(self.seq_up).cast_signed();
            Dsn(self.up_next.wrapping_add_signed(distance.into()))
        };
        let blocks = sack.as_slice().iter();
        let blocks: Vec<_> = blocks
            .map(|&(left, right)| (place(left), place(right)))
            .filter(|(left, right)| left.before(*right) && !right.after(Dsn(self.up_next)))
            .collect();
        let holds = |(left, right): &(Dsn, Dsn), at: Dsn| !left.after(at) && at.before(*right);
        let has = |at: Dsn| {
            let above = |block: &&(Dsn, Dsn)| block.0.after(ack);
            at.before(ack) || blocks.iter().filter(above).any(|block| holds(block, at))
        };
        let mut moved = Vec::new();
        for index in 0..self.subflows.len() {
            let mut runs = self.brought(index);
            if let Some((_, len)) = runs.last_mut() {
                *len -= self.subflows[index].announced;
            }
            // Byte by byte.
            let bytes = runs
                .iter()
                .flat_map(|&(dsn, len)| (0..len).map(move |n| dsn.add(n.into())));
            let rest: Vec<Dsn> = bytes.clone().skip_while(|&at| has(at)).collect();
            if rest
                .iter()
                .any(|&at| blocks.iter().any(|block| holds(block, at)))
            {
                return None;
            }
            let count = (bytes.count() - rest.len()) as u32;
            if count > 0 {
                moved.push((index, count));
            }
        }
        Some(moved)
    }

    /// The server echoes what came with the data that it waited for.
    fn believe(&mut self, waited: Dsn, timestamps: Timestamps) {
        for index in 0..self.subflows.len() {
            let brought = self.brought(index).first().map(|&(dsn, _)| dsn);
            let subflow = &mut self.subflows[index];
            let echo = timestamps.ecr.wrapping_sub(subflow.clock_offset);
            if brought == Some(waited) && later(subflow.clock_recent, echo) {
                subflow.clock_recent = echo;
            }
        }
    }

    fn let_go(&mut self, index: usize, mut count: u32) {
        let mut runs = self.brought(index);
        let installed = &mut self.subflows[index];
        installed.rcv_ack = installed.rcv_ack.wrapping_add(count);
        for (dsn, len) in &mut runs {
            let part = count.min(*len);
            if part == 0 {
                break;
            }
            let goes_on = installed.recent_len > 0
                && Dsn(installed.recent_dsn).add(installed.recent_len.into()) == *dsn;
            if !goes_on {
                (installed.recent_dsn, installed.recent_len) = (dsn.0, 0);
            }
            installed.recent_len += part;
            count -= part;
            (*dsn, *len) = (dsn.add(part.into()), *len - part);
        }
        runs.retain(|(_, len)| *len > 0);
        self.keep(index, &runs);
    }

    fn down_to(&self, index: usize, headers: &Headers, seq: u32, dss: Dss) -> Headers {
        let subflow = &self.subflows[index];
        let (to, from) = client_ends(self, subflow);
        let timestamps = headers.timestamps.map(|timestamps| {
            let echo = timestamps.ecr.wrapping_sub(subflow.clock_offset);
            let known = subflow.clock_heard;
            let echo = if later(echo, known) { known } else { echo };
            let recent = subflow.clock_recent;
            Timestamps {
                val: self.ts_heard,
                ecr: if later(recent, echo) { recent } else { echo },
            }
        });
        Headers {
            from,
            to,
            seq,
            ack: subflow.rcv_ack,
            flags: headers.flags,
            window: self.server_window as u16,
            flow_label: self.label_down,
            timestamps,
            dss: Some(dss),
            sack: SackBlocks::default(),
        }
    }

    fn up(&mut self, now: u64, index: usize, packet: &Packet) -> Option<Headers> {
        let headers = &packet.headers;
        let timestamps = headers.timestamps?;
        let dss = headers.dss.filter(|dss| !dss.data_fin)?;
        let data_ack = match dss.data_ack? {
            DataNumber::Long(ack) => Dsn(ack),
            DataNumber::Short(ack) => Dsn(self.down_acked).expand(ack),
        };
        let subflow = &self.subflows[index];
        let ahead = headers.ack.wrapping_sub(subflow.snd_una);
        let unsent = ahead > subflow.snd_next.wrapping_sub(subflow.snd_una);
        let (acked, next) = (Dsn(self.down_acked), Dsn(self.down_next));
        if headers.seq != subflow.rcv_high
            || unsent
            || data_ack.before(acked)
            || data_ack.after(next)
        {
            return None;
        }
        let window = u32::from(headers.window) << subflow.window_scale;
        let edge = data_ack.add(window.into());
        let sack = self.sack_up(index, headers, data_ack)?;
        let news = !sack.is_empty() || data_ack != acked || edge.after(Dsn(self.down_edge));
        let len = packet.payload as u32;
        if len == 0 && (!news || dss.mapping.is_some()) {
            return None;
        }
        let subflow = &mut self.subflows[index];
        if ahead > 0 {
            subflow.snd_una = headers.ack;
            subflow.outstanding_since = now;
            if subflow.is_timed == 1 && headers.ack.wrapping_sub(subflow.timed).cast_signed() >= 0 {
                subflow.is_timed = 0;
                let micros = (now.saturating_sub(subflow.timed_at) as u32).max(1);
                subflow.srtt = match subflow.srtt {
                    0 => micros,
                    srtt => srtt - srtt / 8 + micros / 8,
                };
                (subflow.timed, subflow.timed_at) = (0, 0);
            }
        }
        subflow.last_heard = now;
        if len == 0 {
            subflow.outstanding_since = now;
        }
        if later(timestamps.val, subflow.clock_heard) {
            subflow.clock_heard = timestamps.val;
        }
        let at_head = headers.seq.wrapping_sub(subflow.rcv_ack).cast_signed() <= 0;
        if len > 0 && at_head && later(timestamps.val, subflow.clock_recent) {
            subflow.clock_recent = timestamps.val;
        }
        let window_edge = headers.ack.wrapping_add(window);
        if later(window_edge, subflow.snd_edge) {
            subflow.snd_edge = window_edge;
        }
        let val = timestamps.val.wrapping_add(subflow.clock_offset);
        let isn = subflow.isn_remote;
        subflow.rcv_high = subflow.rcv_high.wrapping_add(len);
        subflow.bytes_up += u64::from(len);
        // A hole is the translator's.
        if data_ack.after(self.una()) {
            return None;
        }
        if later(val, self.ts_sent) {
            (self.ts_sent, self.ts_sent_at) = (val, now);
        }
        if later(timestamps.ecr, self.ts_echo) && !later(timestamps.ecr, self.ts_heard) {
            self.ts_echo = timestamps.ecr;
        }
        if index == 0 {
            self.label_up = headers.flow_label;
        }
        self.heard = index as u32;
        self.last_packet = now;
        self.packets_up += 1;
        self.down_acked = data_ack.0;
        self.client_window = self.client_window.max(window);
        self.down_edge = Dsn(self.down_edge).max(edge).0;
        self.drop_acked();
        let mut seq = self.seq_up;
        if len > 0 {
            let mapping = dss.mapping?;
            let dsn = match mapping.dsn {
                DataNumber::Long(dsn) => Dsn(dsn),
                DataNumber::Short(dsn) => Dsn(self.up_next).expand(dsn),
            };
            let start = isn.wrapping_add(mapping.ssn);
            let into = headers.seq.wrapping_sub(start);
            let dsn = dsn.add(into.into());
            let end = dsn.add(len.into());
            let next = Dsn(self.up_next);
            let in_order = dsn == next || self.ordered == 0 && !dsn.before(Dsn(self.up_acked));
            let inside = into.saturating_add(len) <= mapping.len.into();
            let mut runs = self.brought(index);
            // The stretch without what is only announced, then with all that this mapping announces.
            let announced = self.subflows[index].announced;
            if let Some((_, bytes)) = runs.last_mut() {
                *bytes -= announced;
            }
            let rest = u32::from(mapping.len).wrapping_sub(into);
            let goes_on = runs
                .last()
                .is_none_or(|&(start, bytes)| start.add(bytes.into()) == dsn);
            let long_ago = runs.len() > 1 && runs.last().is_some_and(|run| run.1 < into);
            let known = into == 0 || goes_on && !long_ago;
            let as_announced = announced == 0 || goes_on && announced == rest;
            if !in_order || !inside || !known || !as_announced || mapping.checksum.is_some() {
                return None;
            }
            match runs.last_mut() {
                Some((_, bytes)) if goes_on => *bytes += rest,
                _ => runs.push((dsn, rest)),
            }
            if runs.len() > ENTRY_UPS || end.after(Dsn(self.server_edge)) {
                return None;
            }
            self.subflows[index].announced = rest - len;
            seq = seq.wrapping_sub(next.since(dsn) as u32);
            if end.after(next) {
                self.seq_up = self.seq_up.wrapping_add(end.since(next) as u32);
                self.up_next = end.0;
            }
            self.keep(index, &runs);
        }
        let (to, from) = server_ends(self);
        let left = (Dsn(self.down_edge).since(data_ack)) >> self.initial_scale;
        Some(Headers {
            from,
            to,
            seq,
            ack: self.seq_down.wrapping_sub(next.since(data_ack) as u32),
            flags: headers.flags,
            window: u16::try_from(left).unwrap_or(u16::MAX),
            flow_label: self.label_up,
            timestamps: Some(Timestamps {
                val: self.ts_sent,
                ecr: self.ts_echo,
            }),
            dss: None,
            sack,
        })
    }
}
