//! The translator and its carrier: joins trains of packets as GRO does, cuts what is longer than a
//! segment, completes checksums, and shows everything to the checker.

use std::net::IpAddr;

use flexcp_invariants::{Bounds, Checker, Observation, Options, Payload as Seen, Point};
use flexcp_testkit::complete_checksum;
use flexcp_translator::{
    Config, Cursor, FastPath, Frame, HEADROOM, Instant, Payload, ServiceId, Translator, Verdict,
    supersedes,
};
use flexcp_wire::{ChecksumState, Gso, GsoKind, Offload, Sum};

use crate::explicit::Names;
use crate::heard::Heard;
use crate::net::Outbox;
use crate::payload::Judge;
use crate::shelf::Shelf;
use crate::swarm::{FIRST_PORT, Plan};
use crate::trace::Trace;
use crate::twin::Twin;

/// Longest packet.
pub(crate) const MAX_PACKET: usize = 65_535;

/// Packets that one call can make FlexCP send at most, by far: more is a loop without an end.
pub(crate) const ENDLESS: usize = 100_000;

/// A packet that may still grow.
#[derive(Clone, Copy, Debug)]
struct Train {
    point: Point,
    len: usize,
    header: usize,
    ip_len: usize,
    /// Payload of each segment.
    size: usize,
    /// A short segment ends it.
    closed: bool,
}

/// The kernel's fast path under the translator, one packet at a time.
pub trait Kernel: std::fmt::Debug {
    /// What the translator installs connections to.
    fn fast_path(&mut self) -> Box<dyn FastPath>;
    /// Takes an IP packet at a time in microseconds. `offload`: what is still to be done about it.
    fn translate(&mut self, now: u64, packet: &[u8], offload: Offload) -> Taken;
}

/// What the kernel did with a packet.
#[derive(Debug)]
pub enum Taken {
    /// It goes on as the first of these; the others are ACKs beside it, for other subflows. With each, what is still
    /// to be done about it.
    Translated(Vec<(Vec<u8>, Offload)>),
    /// It is the translator's.
    No,
    /// It is dropped.
    Dropped,
}

/// The translator with its carrier.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The thing under test.
    pub(crate) translator: Translator,
    /// Its judge.
    pub(crate) checker: Checker,
    /// Who listens to what it tells.
    pub(crate) heard: Heard,
    /// Packets that the proxy sends, segments already.
    pub(crate) outbox: Outbox,
    frame: Vec<u8>,
    train: Option<Train>,
    joins: bool,
    /// How checksums come in.
    state: ChecksumState,
    /// Packets that went in and out, after GRO and before GSO.
    pub(crate) packets: u64,
    /// Bits of it can be seen.
    pub(crate) trace: Trace,
    kernel: Option<Box<dyn Kernel>>,
    /// Beside a kernel: what the translator does without.
    twin: Option<Box<Twin>>,
    /// Packets that the kernel has translated.
    pub(crate) offloaded: u64,
    /// Those of them that were trains.
    pub(crate) offloaded_trains: u64,
    /// Which packets in `outbox` may be left out for a later one.
    new_acks: Vec<bool>,
    /// ACKs that were.
    pub(crate) left_out: u64,
    /// Names that are being resolved, and what comes of each.
    names: Names,
    /// Whether every packet is shown to the checker, which does not know of headers: ends judge those runs alone.
    judged: bool,
}

impl Proxy {
    /// The proxy of a run, with the translator's seed.
    #[must_use]
    pub(crate) fn new(plan: &Plan, seed: [u8; 32], trace: Trace) -> Self {
        let (config, state) = (plan.config(0), plan.checksums);
        let stages = plan.stages.iter().flat_map(|stage| &stage.rules);
        let redundant = stages.into_iter().any(|rule| rule.mode.copies());
        let options = Options {
            asks: plan.is_mirrored(),
            ..judged(&config, redundant)
        };
        let mut checker = Checker::new(options, Some(Box::new(Judge)));
        for (listen, preamble) in plan.preambles() {
            checker.expect_preambles(listen, preamble);
        }
        plan.tell_of_errands(&mut checker);
        let mut translator = Translator::new(config, seed);
        translator.keep_events(true);
        Self {
            checker,
            heard: Heard::new(plan),
            translator,
            outbox: Outbox::new(state == ChecksumState::Complete),
            frame: vec![0; HEADROOM + MAX_PACKET],
            train: None,
            joins: plan.joins_trains,
            state,
            packets: 0,
            trace,
            kernel: None,
            twin: None,
            offloaded: 0,
            offloaded_trains: 0,
            new_acks: Vec::new(),
            left_out: 0,
            names: Names::of(plan),
            judged: plan.connections.iter().all(|connection| !connection.told),
        }
    }

    /// Puts the kernel's fast path under the translator, and a twin without one beside it.
    pub(crate) fn put_on(&mut self, mut kernel: Box<dyn Kernel>, config: Config, seed: [u8; 32]) {
        // A mode is asked of what the kernel carries when that comes up.
        self.heard.allow_delays();
        self.twin = Some(Box::new(Twin::new(config, seed)));
        self.translator.set_fast_path(kernel.fast_path());
        self.kernel = Some(kernel);
    }

    /// From now on this configuration holds; it is the run's `stage`th.
    pub(crate) fn configure(&mut self, now: u64, config: Config, stage: usize) {
        self.trace.note(now, || format!("rules of stage {stage}"));
        if let Some(twin) = &mut self.twin {
            twin.configure(config.clone(), stage);
        }
        self.translator.configure(config, stage as u64);
        self.heard.enter_next_stage();
    }

    /// Uplinks have lost their addresses, or got them back: this configuration holds from now on, and connections follow it.
    pub(crate) fn follow_uplinks(
        &mut self,
        now: u64,
        (config, stage): (Config, usize),
        uplinks: [(IpAddr, bool); 2],
    ) {
        self.checker.observe_timeout();
        self.trace.note(now, || format!("lost or not: {uplinks:?}"));
        let lost = uplinks.into_iter().filter(|(_, lost)| *lost);
        let lost: Vec<IpAddr> = lost.map(|(addr, _)| addr).collect();
        self.checker.observe_uplinks(now, &lost);
        let twin = config.clone();
        self.translator.configure(config, stage as u64);
        let mut from = Some(Cursor::default());
        while let Some(at) = from {
            from = self.translator.follow_uplinks(Instant(now), at, 64);
        }
        self.transmit(now, None);
        if let Some(other) = &mut self.twin {
            other.follow_uplinks(now, (twin, stage), &self.translator);
        }
    }

    /// What the twin would have done otherwise.
    pub(crate) fn difference(&self) -> Option<&str> {
        self.twin.as_ref()?.difference.as_deref()
    }

    /// Whether the twin has gone its own way: it filled a hole that is none, or a mode was asked at another time.
    pub(crate) fn parted(&self) -> bool {
        self.twin.as_ref().is_some_and(|twin| twin.parted)
    }

    /// From now on connections are installed in a fast path, which keeps them until they are evicted.
    pub(crate) fn install(&mut self) {
        self.translator.set_fast_path(Box::new(Shelf::default()));
    }

    /// A packet arrives; it may wait for more of its train until [`flush`](Self::flush).
    pub(crate) fn receive(&mut self, now: u64, point: Point, packet: &[u8]) {
        if self.extend(point, packet) {
            return;
        }
        self.flush(now);
        if packet.len() > MAX_PACKET {
            return;
        }
        self.frame[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
        let ip_len = ip_header_len(packet);
        let tcp_len = packet
            .get(ip_len + 12)
            .map_or(0, |byte| usize::from(byte >> 4) * 4);
        let header = ip_len + tcp_len;
        let size = packet.len().saturating_sub(header);
        self.train = Some(Train {
            point,
            len: packet.len(),
            header,
            ip_len,
            size,
            closed: size == 0,
        });
        if !self.joins || self.state == ChecksumState::Complete || size == 0 {
            self.flush(now);
        }
    }

    /// Adds a packet to the train, when it continues it.
    fn extend(&mut self, point: Point, packet: &[u8]) -> bool {
        let Some(train) = &mut self.train else {
            return false;
        };
        let head = &self.frame[HEADROOM..HEADROOM + train.header];
        if train.closed || point != train.point || packet.len() <= train.header {
            return false;
        }
        let size = packet.len() - train.header;
        if size > train.size || train.len + size > MAX_PACKET || !same_flow(head, packet, train) {
            return false;
        }
        let (start, ip_len) = (HEADROOM + train.len, train.ip_len);
        self.frame[start..start + size].copy_from_slice(&packet[train.header..]);
        train.len += size;
        // PSH and FIN of the last one count.
        let flags = HEADROOM + ip_len + 13;
        self.frame[flags] |= packet[ip_len + 13] & 0x09;
        train.closed = size < train.size || packet[ip_len + 13] & 0x09 != 0;
        true
    }

    /// What has arrived is handled.
    pub(crate) fn flush(&mut self, now: u64) {
        let Some(train) = self.train.take() else {
            return;
        };
        let is_train = train.len > train.header + train.size;
        let is_v6 = self.frame[HEADROOM] >> 4 == 6;
        let mut offload = Offload {
            checksum: self.state,
            gso: None,
        };
        if is_train {
            let kind = if is_v6 {
                GsoKind::TcpV6
            } else {
                GsoKind::TcpV4
            };
            offload.gso = Some(Gso {
                kind,
                size: train.size as u16,
                ecn: false,
            });
            let packet = &mut self.frame[HEADROOM..HEADROOM + train.len];
            set_length(packet, train.ip_len);
            set_partial_checksum(packet, train.ip_len);
        }
        self.handle(now, train.point, train.len, offload);
    }

    fn handle(&mut self, now: u64, point: Point, len: usize, offload: Offload) {
        self.packets += 1;
        let mut buffer = std::mem::take(&mut self.frame);
        let packet = &buffer[HEADROOM..HEADROOM + len];
        self.trace.packet(now, point, packet, &offload);
        match Observation::whole(now, point, packet, offload).filter(|_| self.judged) {
            Some(seen) => self.checker.observe(&seen),
            None => self.checker.observe_timeout(),
        }
        let packet = &mut buffer[HEADROOM..HEADROOM + len];
        let by_kernel = self.offload(now, packet, offload);
        let copy = self.twin.is_some().then(|| packet.to_vec());
        if !by_kernel {
            let service = server_of(packet).filter(|_| point == Point::FromServer);
            let verdict = self.translate(now, &mut buffer, len, offload);
            if let Some(service) = service.filter(|_| verdict == Verdict::Forward) {
                self.heard.judge_place(now, service);
            }
        }
        self.frame = buffer;
        if let (Some(twin), Some(packet)) = (&mut self.twin, copy) {
            twin.packet(now, &packet, offload, by_kernel, &self.translator);
        }
    }

    fn translate(&mut self, now: u64, buffer: &mut [u8], len: usize, offload: Offload) -> Verdict {
        let mut frame = Frame::new(buffer, HEADROOM..HEADROOM + len, offload);
        let verdict = self
            .translator
            .handle_packet(Instant(now), &mut frame)
            .verdict;
        self.heard
            .listen(now, &mut self.translator, &mut self.checker, &self.trace);
        match verdict {
            Verdict::Forward => {
                let packet = frame.packet();
                let header = header_len(packet);
                let (header, payload) = packet.split_at(header);
                let offload = frame.offload;
                self.emit(now, header, Seen::Bytes(payload), payload.len(), offload);
                self.new_acks.resize(self.outbox.packets.len(), false);
                if let Some(last) = self.new_acks.last_mut() {
                    *last = frame.is_new_ack();
                }
            }
            Verdict::Consume => {}
            Verdict::Drop(reason) => self.trace.note(now, || format!("drop {}", reason.name())),
        }
        self.transmit(now, Some(&frame));
        self.translator.idle(Instant(now));
        verdict
    }

    /// Whether the kernel has taken the packet.
    fn offload(&mut self, now: u64, packet: &mut [u8], mut offload: Offload) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        let ip_len = ip_header_len(packet);
        if self.state != ChecksumState::Complete {
            set_partial_checksum(packet, ip_len);
        }
        let taken = if offload.gso.is_some() {
            // As GRO leaves what it has put together.
            offload.checksum = ChecksumState::Partial;
            kernel.translate(now, packet, offload)
        } else if offload.checksum == ChecksumState::Verified {
            // Whoever has verified a checksum has seen it whole.
            let mut whole = packet.to_vec();
            complete_checksum(&mut whole);
            kernel.translate(now, &whole, offload)
        } else {
            kernel.translate(now, packet, offload)
        };
        let all = match taken {
            Taken::Translated(all) => all,
            Taken::No => return false,
            Taken::Dropped => return true,
        };
        self.offloaded += 1;
        self.offloaded_trains += u64::from(offload.gso.is_some());
        for (out, offload) in all {
            let (header, payload) = out.split_at(header_len(&out));
            self.emit(now, header, Seen::Bytes(payload), payload.len(), offload);
        }
        true
    }

    /// When [`timeout`](Self::timeout) is due.
    pub(crate) fn poll_timeout(&self) -> u64 {
        let twin = self.twin.as_ref().and_then(|twin| twin.poll_timeout());
        let due = self.translator.poll_timeout().map(|at| at.0);
        let due = due.unwrap_or(u64::MAX).min(self.names.due());
        due.min(twin.unwrap_or(u64::MAX))
    }

    /// The translator's timers.
    pub(crate) fn timeout(&mut self, now: u64) {
        self.trace.note(now, || "timeout".into());
        self.checker.observe_timeout();
        self.translator.handle_timeout(Instant(now));
        self.transmit(now, None);
        if let Some(twin) = &mut self.twin {
            twin.timeout(now, &self.translator);
        }
        self.resolve(now);
    }

    /// Names whose time has come are resolved.
    fn resolve(&mut self, now: u64) {
        while let Some((id, addrs)) = self.names.next(now) {
            self.trace.note(now, || format!("resolved to {addrs:?}"));
            self.checker.observe_timeout();
            self.translator.resolved(Instant(now), id, &addrs);
            self.transmit(now, None);
            if let Some(twin) = &mut self.twin {
                twin.resolved(now, id, &addrs, &self.translator);
            }
        }
    }

    fn transmit(&mut self, now: u64, frame: Option<&Frame<'_>>) {
        while let Some(lookup) = self.translator.poll_lookup() {
            self.names.ask(now, &lookup);
        }
        self.heard
            .listen(now, &mut self.translator, &mut self.checker, &self.trace);
        let mut sent = 0;
        while let Some(transmit) = self.translator.poll_transmit() {
            sent += 1;
            assert!(sent < ENDLESS, "FlexCP sends without an end");
            let (payload, len) = match (&transmit.payload, frame) {
                (Payload::Frame(range), Some(frame)) => {
                    let bytes = frame.buffer(range.clone());
                    (Seen::Bytes(bytes), bytes.len())
                }
                (Payload::Bytes(bytes), _) => (Seen::Bytes(bytes), bytes.len()),
                (Payload::Zeros(len), _) => (Seen::Zeros, *len),
                _ => (Seen::Bytes(&[]), 0),
            };
            self.emit(now, transmit.header(), payload, len, transmit.offload);
        }
    }

    /// Packets in `outbox` have been kept, and go out now: without the ACKs that a later one makes superfluous. Those
    /// are empty.
    pub(crate) fn leave_out(&mut self) {
        let packets = &mut self.outbox.packets;
        self.new_acks.resize(packets.len(), false);
        for later in 1..packets.len() {
            let (before, behind) = packets.split_at_mut(later);
            let of_flow = |earlier: &Vec<u8>| ends_of(earlier) == ends_of(&behind[0]);
            let Some(last) = before.iter().rposition(of_flow) else {
                continue;
            };
            if self.new_acks[last] && supersedes(&behind[0], &before[last]) {
                before[last].clear();
                self.left_out += 1;
            }
        }
        self.new_acks.clear();
    }

    /// One packet leaves, in segments.
    fn emit(&mut self, now: u64, header: &[u8], payload: Seen<'_>, len: usize, offload: Offload) {
        self.packets += 1;
        let point = if goes_to_server(header) {
            Point::ToServer
        } else {
            Point::ToClient
        };
        let seen = Observation {
            time: now,
            point,
            header,
            payload,
            offload,
        };
        self.trace.header(now, point, header, len, &offload);
        if self.judged {
            self.checker.observe(&seen);
        }
        if let Some(twin) = &mut self.twin {
            twin.sends(header, &payload, len, offload.gso);
        }
        let size = offload.gso.map_or(len, |gso| gso.size.into()).max(1);
        let mut at = 0;
        loop {
            let part = size.min(len - at);
            let mut packet = self.outbox.buffer();
            packet.extend_from_slice(header);
            match payload {
                Seen::Bytes(bytes) => packet.extend_from_slice(&bytes[at..at + part]),
                Seen::Zeros => packet.resize(header.len() + part, 0),
            }
            let last = at + part == len;
            let completes = self.outbox.checksums && offload.checksum != ChecksumState::Complete;
            finish(&mut packet, at, last && at == 0, last, completes);
            self.outbox.packets.push(packet);
            at += part;
            if at >= len {
                break;
            }
        }
    }
}

/// Every decision has to have a cause: no table of a run is ever full.
fn judged(config: &Config, redundant: bool) -> Options {
    let (limits, timeouts) = (config.limits, config.timeouts);
    let micros = |time: std::time::Duration| time.as_micros() as u64;
    Options {
        bounds: Some(Bounds {
            subflows: limits.subflows,
            joins: limits.half_open_joins,
            mappings: limits.mappings,
            crowded: false,
            short_of_memory: false,
            ending: false,
            redundant,
            half_open: micros(timeouts.half_open),
            rejoin: micros(timeouts.rejoin),
            idle: micros(timeouts.idle),
            add_addr: micros(timeouts.add_addr),
            silence: micros(timeouts.silence),
        }),
        told: true,
        ..Options::default()
    }
}

/// Makes a segment of its copy of the header.
fn finish(packet: &mut [u8], at: usize, whole: bool, last: bool, completes: bool) {
    let ip_len = ip_header_len(packet);
    if !whole {
        let seq_at = ip_len + 4;
        let mut seq = [0; 4];
        seq.copy_from_slice(&packet[seq_at..seq_at + 4]);
        let seq = u32::from_be_bytes(seq).wrapping_add(at as u32);
        packet[seq_at..seq_at + 4].copy_from_slice(&seq.to_be_bytes());
        if !last {
            packet[ip_len + 13] &= !0x09;
        }
        set_length(packet, ip_len);
        set_partial_checksum(packet, ip_len);
    }
    if completes {
        complete_checksum(packet);
    }
}

/// The service of the server that has sent this packet; `None`: there is no payload.
fn server_of(packet: &[u8]) -> Option<ServiceId> {
    let ip_len = ip_header_len(packet);
    let port = packet.get(ip_len..ip_len + 2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    let carries = packet.len() > header_len(packet);
    carries.then(|| ServiceId(port.wrapping_sub(FIRST_PORT)))
}

/// What the frame's packet starts with, up to the payload.
fn header_len(packet: &[u8]) -> usize {
    let ip_len = ip_header_len(packet);
    packet.get(ip_len + 12).map_or(packet.len(), |byte| {
        (ip_len + usize::from(byte >> 4) * 4).min(packet.len())
    })
}

/// Addresses and ports.
fn ends_of(packet: &[u8]) -> Option<(&[u8], &[u8])> {
    let addresses = if packet.first()? >> 4 == 4 {
        12..20
    } else {
        8..40
    };
    let ip_len = ip_header_len(packet);
    Some((packet.get(addresses)?, packet.get(ip_len..ip_len + 4)?))
}

fn ip_header_len(packet: &[u8]) -> usize {
    match packet.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 15) * 4,
        _ => 40,
    }
}

/// Servers have 200 where clients have the number of their link.
#[must_use]
pub(crate) fn goes_to_server(header: &[u8]) -> bool {
    destination_net(header) == 200
}

/// The byte of the destination address that names the link.
#[must_use]
pub(crate) fn destination_net(header: &[u8]) -> u8 {
    let at = if header[0] >> 4 == 4 { 17 } else { 27 };
    header.get(at).copied().unwrap_or(0)
}

/// Writes the packet's length into its IP header.
fn set_length(packet: &mut [u8], ip_len: usize) {
    let len = packet.len();
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..ip_len]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&((len - ip_len) as u16).to_be_bytes());
    }
}

fn set_partial_checksum(packet: &mut [u8], ip_len: usize) {
    let sum = pseudo_sum(packet, packet.len() - ip_len).fold();
    packet[ip_len + 16..ip_len + 18].copy_from_slice(&sum.to_be_bytes());
}

fn pseudo_sum(packet: &[u8], tcp_len: usize) -> Sum {
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
    Sum::of(&packet[addresses])
        .add_u16(6)
        .add_u32(tcp_len as u32)
}

/// Whether GRO would join: the same ends, ACK, window, flags and options, and the next number.
fn same_flow(head: &[u8], packet: &[u8], train: &Train) -> bool {
    let ip_len = train.ip_len;
    let addresses = if head[0] >> 4 == 4 { 12..20 } else { 8..40 };
    if packet[0] != head[0] || packet[addresses.clone()] != head[addresses] {
        return false;
    }
    let (a, b) = (&head[ip_len..], &packet[ip_len..train.header]);
    let seq = |tcp: &[u8]| u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let sent = (train.len - train.header) as u32;
    // FIN and PSH may stand in the last one only; SYN, RST, URG and the like end a train.
    let quiet = |tcp: &[u8]| tcp[13] & !0x19 == 0;
    seq(b) == seq(a).wrapping_add(sent)
        && a[..4] == b[..4]
        && a[8..13] == b[8..13]
        && a[14..16] == b[14..16]
        && a[20..] == b[20..]
        && quiet(a)
        && quiet(b)
        && a[13] & 0x09 == 0
}
