//! The entry: packets go to their connections, and each packet out has to be worth its packet in.

mod asking;
mod explicit;
mod forget;
mod input;
mod owed;
mod told;

use std::collections::HashMap;
use std::net::SocketAddr;

use flexcp_testkit::keys;
use flexcp_wire::{CapableKeys, ChecksumState, GsoKind, MpJoin, TcpFlags};

use self::asking::Asked;
use self::input::{Input, Opening};
use self::owed::Owed;
use crate::causes::Bounds;
use crate::conduct::Side;
use crate::connection::{Connection, Mode, Report};
use crate::content::Oracle;
use crate::front::Front;
use crate::kept::Copies;
use crate::packet::{Observation, Payload, Point, View};
use crate::preamble::Preamble;
use crate::{Rule, Violation};

/// Violations that are kept; more are only counted.
const MAX_VIOLATIONS: usize = 64;
/// Packets between two looks for connections to forget.
const SWEEP: u64 = 1 << 16;
/// Bytes that may be acknowledged while packets wait inside the proxy.
const LAG: u64 = 4 << 20;
/// Payload of the smallest segment that anybody cuts, whatever MSS is claimed; Linux goes no lower either.
const MIN_SEGMENT: u64 = 48;

/// What a checker can rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// All that follows an input until the next one was caused by it: packets are seen as the proxy
    /// handles them, not where a capture saw them.
    pub causal: bool,
    /// Checksum fields mean what the offload says. Captures on a host show sums that the carrier has
    /// still to complete.
    pub checksums: bool,
    /// A TSecr is exactly one of the values that the client has sent on that subflow; otherwise only
    /// not later than the latest, for the server may echo what came over another subflow.
    pub exact_echo: bool,
    /// The offload says how long segments are. Captures on a host show packets that the carrier has
    /// still to cut, and not where.
    pub segments: bool,
    /// The ends may break the protocol. What they do is held against them ([`Checker::breaches`]), and a
    /// rule that needs an honest end is asked only while it is one. Goes with `causal`: a repeated SYN
    /// opens another connection when the proxy has let go of the one before.
    pub hostile: bool,
    /// What the proxy allows itself. With it every RST, plain SYN, refused join, switch and announcement has to have a
    /// cause on the wire (I14 to I18), where packets are seen as the proxy handles them.
    pub bounds: Option<Bounds>,
    /// The proxy tells when new data goes down another subflow ([`Checker::observe_switch`]).
    pub told: bool,
    /// Ends with TCP open, and the proxy asks the others for MPTCP, as an aggregation box does.
    pub asks: bool,
}

impl Options {
    /// For captures on the proxy's host, taken where offloads have not been done yet.
    #[must_use]
    pub const fn capture() -> Self {
        Self {
            causal: false,
            checksums: false,
            exact_echo: false,
            segments: false,
            hostile: false,
            bounds: None,
            told: false,
            asks: false,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            causal: true,
            checksums: true,
            exact_echo: false,
            segments: true,
            hostile: false,
            bounds: None,
            told: false,
            asks: false,
        }
    }
}

/// Ends of a flow: the client's or, towards the server, what stands for it, and the other.
type Ends = (SocketAddr, SocketAddr);

/// Sees every packet and holds it against the rules.
pub struct Checker {
    options: Options,
    oracle: Option<Box<dyn Oracle>>,
    connections: Vec<Connection>,
    /// Client side: connection and subflow.
    flows: HashMap<Ends, (usize, usize)>,
    servers: HashMap<Ends, usize>,
    tokens: HashMap<u32, usize>,
    /// The last look-up on each side: packets come in trains.
    last: [Option<(Ends, usize, usize)>; 2],
    input: Input,
    found: Vec<(Rule, String)>,
    violations: Vec<Violation>,
    count: u64,
    packets: u64,
    hash: u64,
    copies: Copies,
    /// Where clients name their servers, and how.
    explicit: HashMap<SocketAddr, Preamble>,
    /// Where ends with TCP open.
    asked: Asked,
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker")
            .field("packets", &self.packets)
            .field("violations", &self.count)
            .finish_non_exhaustive()
    }
}

impl Checker {
    /// Bytes are judged by `oracle`; without one, by what came in.
    #[must_use]
    pub fn new(options: Options, oracle: Option<Box<dyn Oracle>>) -> Self {
        Self {
            options,
            oracle,
            connections: Vec::new(),
            flows: HashMap::new(),
            servers: HashMap::new(),
            tokens: HashMap::new(),
            last: [None; 2],
            input: Input::default(),
            found: Vec::new(),
            violations: Vec::new(),
            count: 0,
            packets: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            copies: Copies::default(),
            explicit: HashMap::new(),
            asked: Asked::default(),
        }
    }

    /// A packet that passes; call it before the proxy handles an input, and for each output in order.
    pub fn observe(&mut self, seen: &Observation<'_>) {
        self.packets += 1;
        if self.packets.is_multiple_of(SWEEP) {
            self.sweep(seen.time);
        }
        if seen.point.is_input() {
            self.settle();
        } else if self.is_routed(seen) {
            return;
        }
        let packet = match View::parse(seen) {
            Ok(packet) => packet,
            Err(_) if seen.point.is_input() => {
                self.input = Input {
                    foreign: true,
                    ..Input::default()
                };
                self.copy_header(seen);
                return;
            }
            Err(why) => {
                self.hold(seen, None, Rule::Size, why);
                return;
            }
        };
        let id = match seen.point {
            Point::FromClient => self.note_client(seen, &packet),
            Point::FromServer => self.note_server(seen, &packet),
            Point::ToClient => self.judge_client(seen, &packet),
            Point::ToServer => self.judge_server(seen, &packet),
        };
        if let Some(id) = id {
            self.connections[id].last_packet = seen.time;
        }
        if !self.found.is_empty() {
            let client = id.map(|id| self.connections[id].client);
            for (rule, text) in std::mem::take(&mut self.found) {
                self.hold(seen, client, rule, text);
            }
        }
    }

    /// The proxy's timers fire: what comes out next answers no packet.
    pub fn observe_timeout(&mut self) {
        self.settle();
        self.input = Input::default();
    }

    /// What has been found so far, at most 64 of it.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How much has been found so far.
    #[must_use]
    pub const fn violation_count(&self) -> u64 {
        self.count
    }

    /// What the ends have done that honest ends do not, the first breach of each side of a connection; the
    /// connection by its client's first address. Looked for only among hostile ends.
    pub fn breaches(&self) -> impl Iterator<Item = (SocketAddr, Side, &'static str)> {
        self.connections.iter().flat_map(|connection| {
            [Side::Client, Side::Server].into_iter().filter_map(|side| {
                Some((connection.client, side, connection.breaches[side as usize]?))
            })
        })
    }

    /// Packets seen.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// A hash over the headers of all that came out: equal for equal runs (I13).
    #[must_use]
    pub const fn output_hash(&self) -> u64 {
        self.hash
    }

    /// Mappings and ranges held for all connections: what memory grows with.
    #[must_use]
    pub fn held(&self) -> usize {
        self.connections.iter().map(Connection::held).sum()
    }

    fn hold(
        &mut self,
        seen: &Observation<'_>,
        client: Option<SocketAddr>,
        rule: Rule,
        text: String,
    ) {
        self.keep(Violation {
            time: seen.time,
            rule,
            point: seen.point,
            client,
            text,
        });
    }

    fn keep(&mut self, violation: Violation) {
        self.count += 1;
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }

    fn note_client(&mut self, seen: &Observation<'_>, packet: &View<'_>) -> Option<usize> {
        let ends = (packet.source(), packet.destination());
        let corrupt = self.begin_input(seen, packet, ends);
        if corrupt {
            // Whatever it says, its sender has not said it.
            return None;
        }
        if packet.opens() {
            self.syn(seen.time, ends, packet);
        }
        let (id, index) = self.find(Point::FromClient, ends)?;
        let connection = &mut self.connections[id];
        let (waits, knew) = (connection.awaits_answer(), connection.is_promised());
        let (proved, old) = {
            let subflow = &connection.subflows[index];
            (subflow.established, subflow.client_ack)
        };
        connection.note_stripped(packet);
        connection.note_client(index, packet, self.oracle.as_deref());
        connection.note_confirmed(seen.time);
        if connection.is_retracted() {
            self.asked.left.insert(ends.0);
        }
        connection.note_signs(seen.time, index, packet, old);
        let subflow = &connection.subflows[index];
        if index > 0 && packet.opens() && subflow.isn_proxy.is_none() {
            self.input.owed = Some(Owed::SynAck(id, index));
        } else if index > 0 && connection.owes_proof(index, packet, proved) {
            self.input.owed = Some(Owed::Ack(id, index));
        } else if connection.owes_reply(waits, knew) {
            self.input.owed = Some(Owed::Reply(id));
        }
        if !connection.trusts(Side::Client) {
            self.input.kept.keep_payload(packet.bytes());
        }
        self.input.subflows = connection.subflows.len() as u64;
        self.learn_token(id, packet);
        Some(id)
    }

    fn note_server(&mut self, seen: &Observation<'_>, packet: &View<'_>) -> Option<usize> {
        let ends = (packet.destination(), packet.source());
        if self.begin_input(seen, packet, ends) {
            return None;
        }
        if self.options.asks && packet.opens() {
            self.note_offer(seen.time, ends, packet);
        }
        let (id, _) = self.find(Point::FromServer, ends)?;
        let connection = &mut self.connections[id];
        connection.note_server(packet, self.oracle.as_deref());
        if let Some(bounds) = self.options.bounds {
            connection.note_server_signs(seen.time, packet, bounds.silence);
            let mut report = Report {
                found: &mut self.found,
                oracle: None,
                exact_echo: false,
                time: seen.time,
                bounds: Some(bounds).filter(|_| !self.options.hostile),
            };
            connection.judge_silence(&mut report);
        }
        if !connection.trusts(Side::Server) {
            self.input.kept.keep_payload(packet.bytes());
        }
        self.input.subflows = connection.subflows.len() as u64;
        Some(id)
    }

    fn judge_client(&mut self, seen: &Observation<'_>, packet: &View<'_>) -> Option<usize> {
        let ends = (packet.destination(), packet.source());
        if self.output(seen, packet, ends) {
            return None;
        }
        if packet.has(TcpFlags::SYN) {
            self.reopen_by_syn_ack(seen.time, ends, packet);
        }
        if self.options.asks && packet.opens() && self.syn_to_client(seen.time, ends, packet) {
            return None;
        }
        let Some((id, index)) = self.find(Point::ToClient, ends) else {
            self.judge_stranger(packet, ends);
            return None;
        };
        self.input.pay(packet, id, index);
        let connection = &mut self.connections[id];
        let limit = connection.subflows[index].mss;
        let mut report = Report {
            found: &mut self.found,
            oracle: self.oracle.as_deref(),
            exact_echo: self.options.exact_echo,
            time: seen.time,
            bounds: self.options.bounds,
        };
        if self.options.segments && connection.mode != Mode::Plain && !connection.may_relay() {
            check_length(packet, limit, &mut report);
        }
        if packet.has(TcpFlags::RST) {
            connection.judge_rst_down(index, self.input.foreign, &mut report);
        }
        if self.options.causal && self.input.begins_to_copy() {
            connection.judge_copies(&mut report);
        }
        connection.judge_client(index, packet, &mut report);
        if let (0, Some(CapableKeys::SynAck { sender })) =
            (index, packet.options.capable.map(|capable| capable.keys))
        {
            self.tokens.insert(keys::token(sender), id);
        }
        Some(id)
    }

    fn judge_server(&mut self, seen: &Observation<'_>, packet: &View<'_>) -> Option<usize> {
        let ends = (packet.source(), packet.destination());
        if self.output(seen, packet, ends) {
            return None;
        }
        if packet.opens() {
            self.reopen_by_syn(seen.time, packet);
            self.syn_to_server(ends, packet);
        }
        let Some((id, _)) = self.find(Point::ToServer, ends) else {
            self.judge_stranger(packet, ends);
            return None;
        };
        self.input.reply(packet, id);
        let connection = &mut self.connections[id];
        let mut report = Report {
            found: &mut self.found,
            oracle: self.oracle.as_deref(),
            exact_echo: self.options.exact_echo,
            time: seen.time,
            bounds: self.options.bounds,
        };
        if self.options.segments && connection.mode != Mode::Plain && !connection.may_relay() {
            check_length(packet, connection.server_mss, &mut report);
        }
        if packet.has(TcpFlags::RST) {
            connection.judge_rst_up(self.input.rst, &mut report);
        }
        connection.judge_server(packet, &mut report);
        Some(id)
    }

    /// Whether the packet's checksum is wrong.
    fn begin_input(&mut self, seen: &Observation<'_>, packet: &View<'_>, ends: Ends) -> bool {
        let corrupt = self.options.checksums && packet.checksum_is_right(seen) == Some(false);
        self.input = Input {
            payload: packet.payload_len,
            corrupt,
            time: seen.time,
            ends: Some(ends),
            rst: packet.has(TcpFlags::RST),
            reset: (packet.has(TcpFlags::RST) && packet.options.fast_close.is_none())
                .then_some((ends, seen.point)),
            ..Input::default()
        };
        self.copy_header(seen);
        corrupt
    }

    /// Rules for any packet out: checksums, and how much one packet may cause. `true`: a packet that came
    /// in with a wrong checksum goes on with a wrong one, for its receiver to drop.
    fn output(&mut self, seen: &Observation<'_>, packet: &View<'_>, ends: Ends) -> bool {
        self.hash_output(seen);
        let own = self.owes_of_its_own(seen.point, ends);
        let mut report = Report {
            found: &mut self.found,
            oracle: None,
            exact_echo: false,
            time: seen.time,
            bounds: None,
        };
        if packet.options.malformed {
            report.add(Rule::Size, "an MPTCP option that can't be read");
        }
        if self.options.segments {
            // A capture may hold only the first bytes.
            if self.options.causal {
                check_bytes(packet, &mut report);
            }
            check_segmentation(seen, packet, &mut report);
            let cut = seen.offload.gso.is_some() && self.options.hostile;
            let completes = seen.offload.checksum != ChecksumState::Complete;
            report.expect(!cut || completes, Rule::Size, || {
                "segmentation without the checksum".into()
            });
        }
        let mut stays_wrong = false;
        if self.options.checksums {
            let right = match seen.offload.checksum {
                // Nobody will look at it again before it is on the wire.
                ChecksumState::Verified if self.options.hostile => packet.sum_is_right(seen),
                _ => packet.checksum_is_right(seen),
            };
            if self.input.corrupt {
                stays_wrong = right == Some(false);
                let completed = seen.offload.checksum != ChecksumState::Complete;
                let mended = packet.payload_len > 0 && (completed || right == Some(true));
                report.expect(!mended, Rule::Checksum, || {
                    "a wrong checksum has been made right".into()
                });
            } else {
                report.expect(right != Some(false), Rule::Checksum, || {
                    "TCP checksum".into()
                });
            }
            report.expect(packet.ip_checksum_is_right(seen), Rule::Checksum, || {
                "IP header checksum".into()
            });
        }
        if !packet.bytes().is_empty() {
            let known = self.input.kept.has_bytes(packet.bytes());
            let copy = self.options.hostile && self.copies.repeats(seen.point, packet.bytes());
            report.expect(known || copy, Rule::SameBytes, || {
                "bytes that did not come in".into()
            });
        }
        if self.options.causal {
            self.input.own = self.input.own.max(own);
            self.input.count(packet, ends, seen.point, &mut report);
        }
        stays_wrong
    }

    fn hash_output(&mut self, seen: &Observation<'_>) {
        let mut hash = self.hash ^ seen.time;
        for chunk in seen.header.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        self.hash = hash;
    }

    fn find(&mut self, point: Point, ends: Ends) -> Option<(usize, usize)> {
        let client = matches!(point, Point::FromClient | Point::ToClient);
        let slot = usize::from(client);
        if let Some((known, id, index)) = self.last[slot]
            && known == ends
        {
            return Some((id, index));
        }
        let found = if client {
            self.flows.get(&ends).copied()
        } else {
            self.servers.get(&ends).map(|id| (*id, 0))
        };
        self.last[slot] = found.map(|(id, index)| (ends, id, index));
        found
    }

    /// A client's SYN: a new connection, a join, or one of them again.
    fn syn(&mut self, time: u64, ends: Ends, packet: &View<'_>) {
        if let Some((id, index)) = self.find(Point::FromClient, ends) {
            if self.options.hostile {
                let other = self.connections[id].subflows[index].isn_client != packet.tcp.seq;
                self.connections[id].course.replaced |= index == 0 && other;
                // What comes of it the proxy will show.
                self.input.syn = Some((ends, Opening::new(packet)));
                return;
            }
            let known = &self.connections[id].subflows[index];
            if known.isn_client == packet.tcp.seq {
                return;
            }
            self.connections[id].course.replaced |= index == 0;
            if index == 0 && !self.is_over(id) {
                // A stray of another connection.
                return;
            }
        }
        self.open(time, ends, Opening::new(packet));
    }

    /// A connection or a subflow begins.
    fn open(&mut self, time: u64, ends: Ends, mut opening: Opening) {
        self.last = [None; 2];
        if let Some(token) = opening.token {
            if let Some(&id) = self.tokens.get(&token) {
                let connection = &mut self.connections[id];
                if let Some((_, old)) = self.flows.get(&ends).filter(|known| known.0 == id) {
                    opening.subflow.replaces(&connection.subflows[*old]);
                }
                connection.note_join();
                connection.subflows.push(opening.subflow);
                let index = connection.subflows.len() - 1;
                self.flows.insert(ends, (id, index));
            }
            return;
        }
        let mut connection = Connection::new(time, opening.subflow);
        connection.hostile = self.options.hostile;
        connection.course.asks = opening.asks;
        connection.course.told = self.options.told.then_some(0);
        connection.front = self.explicit.get(&ends.1).copied().map(Front::new);
        if !opening.capable {
            connection.mode = Mode::Plain;
        }
        let id = self.add(connection);
        self.flows.insert(ends, (id, 0));
    }

    fn add(&mut self, mut connection: Connection) -> usize {
        if !self.options.causal {
            connection.lag = LAG;
        }
        self.connections.push(connection);
        self.connections.len() - 1
    }

    fn is_over(&self, id: usize) -> bool {
        let connection = &self.connections[id];
        let ended =
            |stream: &crate::connection::Stream| stream.fin.is_some_and(|fin| stream.acked > fin);
        connection.server_reset
            || connection.subflows[0].reset
            || !connection.server_answered
            || connection.mode != Mode::Translated
            || (ended(&connection.up) && ended(&connection.down))
    }

    /// The proxy takes a SYN on a known flow for a new connection: it sends it on, though that flow's was
    /// another one or has been answered.
    fn reopen_by_syn(&mut self, time: u64, packet: &View<'_>) {
        let Some((ends, opening)) = self.input.syn.take() else {
            return;
        };
        let known = self.find(Point::FromClient, ends);
        let renews = known.is_none_or(|(id, index)| {
            let connection = &self.connections[id];
            index != 0 || connection.up.isn != packet.tcp.seq || connection.mode != Mode::Handshake
        });
        if renews && opening.subflow.isn_client == packet.tcp.seq {
            self.open(time, ends, opening);
            let open = known.map(|(id, _)| id).into_iter();
            for id in open.chain(self.flows.get(&ends).map(|found| found.0)) {
                self.connections[id].course.unclear = known.is_some();
            }
        }
    }

    /// The same for a join: the proxy answers it with numbers that are not those of the subflow before.
    fn reopen_by_syn_ack(&mut self, time: u64, ends: Ends, packet: &View<'_>) {
        let Some((id, index)) = self.find(Point::ToClient, ends) else {
            return;
        };
        let known = &self.connections[id].subflows[index];
        // What stands first on its ends and was never answered is no subflow of a connection of the proxy's.
        let alike = |isn: u32| isn == packet.tcp.seq;
        let same = known.isn_proxy.map_or(index > 0, alike)
            && packet.tcp.ack == known.isn_client.wrapping_add(1);
        if same || !matches!(packet.options.join, Some(MpJoin::SynAck { .. })) {
            return;
        }
        if let Some((_, opening)) = self.input.syn.take_if(|(from, _)| *from == ends) {
            self.open(time, ends, opening);
        }
    }

    /// A packet that goes out as it came, on a flow that the proxy does not translate: somebody else's. Only
    /// hostile ends send such packets.
    fn is_routed(&mut self, seen: &Observation<'_>) -> bool {
        if !self.options.hostile || !self.input.kept.has_header(seen.header) {
            return false;
        }
        let Ok(packet) = View::parse(seen) else {
            return true;
        };
        let ends = match seen.point {
            Point::ToServer | Point::FromClient => (packet.source(), packet.destination()),
            Point::ToClient | Point::FromServer => (packet.destination(), packet.source()),
        };
        self.find(seen.point, ends)
            .is_none_or(|(id, _)| self.connections[id].mode != Mode::Translated)
    }

    fn copy_header(&mut self, seen: &Observation<'_>) {
        if self.options.hostile {
            self.input.kept.keep_header(seen.header);
        }
    }
}

/// I7: the lengths in the headers are those of the packet.
fn check_bytes(packet: &View<'_>, report: &mut Report<'_>) {
    if let Payload::Bytes(bytes) = packet.payload {
        let same = bytes.len() as u64 == packet.payload_len;
        report.expect(same, Rule::Size, || "IP total length".into());
    }
}

/// I7: what is left to the carrier is what it can do.
fn check_segmentation(seen: &Observation<'_>, packet: &View<'_>, report: &mut Report<'_>) {
    if let Some(gso) = seen.offload.gso {
        let v6 = gso.kind == GsoKind::TcpV6;
        let fits = v6 == packet.ip.is_v6() && packet.segment < packet.payload_len;
        report.expect(fits, Rule::Size, || {
            format!("segmentation that makes no sense: {:?}", seen.offload)
        });
    }
}

/// I7: what one segment carries fits what its receiver takes, options counted (RFC 6691).
fn check_length(packet: &View<'_>, mss: u64, report: &mut Report<'_>) {
    let segment = packet.segment;
    let len = segment + packet.options_len as u64;
    let none = segment == 0 || packet.tcp.flags.intersects(TcpFlags::SYN | TcpFlags::RST);
    let none = none || segment <= MIN_SEGMENT;
    report.expect(none || len <= mss, Rule::Size, || {
        format!("segment of {segment} and options beyond an MSS of {mss}")
    });
}
