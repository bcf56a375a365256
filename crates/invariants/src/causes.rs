//! Whether the wire shows a cause for what the proxy decides: RSTs, plain SYNs, refused joins, switches (I14 to I18).
//!
//! What stands here are necessary conditions: the proxy may have waited for more. None of them is met by a healthy
//! client, subflow and path.

mod refusals;

use std::collections::VecDeque;

use flexcp_wire::{CapableFlags, CapableKeys, MpCapable, MpJoin, TcpFlags};

use crate::Rule;
use crate::connection::{Connection, Mode, Report, Stream};
use crate::packet::{Payload, View};
use crate::subflow::Subflow;

/// What the checker is told of the proxy's limits, and of its times in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Subflows of a connection.
    pub subflows: usize,
    /// Joins of a connection that are not complete.
    pub joins: usize,
    /// Runs of mappings of a subflow.
    pub mappings: usize,
    /// Connections, handshakes or ports may be used up: a SYN may pass as plain TCP or be refused, a handshake be let
    /// go.
    pub crowded: bool,
    /// The budget of memory may be used up: the same, a join may be refused, and a subflow be reset that holds mappings.
    pub short_of_memory: bool,
    /// The proxy is about to end: it takes no connection any more, and may reset those that there are.
    pub ending: bool,
    /// A steering rule may be of the redundant mode: new data goes down several paths.
    pub redundant: bool,
    /// A handshake that does not complete; a join has a quarter of it.
    pub half_open: u64,
    /// A connection without subflows.
    pub rejoin: u64,
    /// A connection without packets.
    pub idle: u64,
    /// Before `ADD_ADDR` is repeated for the first time.
    pub add_addr: u64,
    /// A subflow that owes an answer, when its round-trip time is not known.
    pub silence: u64,
}

impl Bounds {
    /// Whether there may be no room for a connection.
    pub(crate) const fn turns_away(&self) -> bool {
        self.crowded || self.short_of_memory
    }
}

/// A subflow that was heard so long after the last sign of life of another outlives that: more than the round trips that
/// the proxy waits for an answer.
const ANSWERED: u64 = 1_000_000;
/// Payload of a segment beside what options take: the smallest MSS of a client that is honoured.
pub(crate) const MIN_MSS: u16 = 88 + 28;
/// For so long the server has to repeat what no subflow delivers before one of them is given up: two seconds
/// (docs/numbers.md, "Placing the server's data").
const STUCK: u64 = 2_000_000;
/// An ACK so far behind the latest is older than any window of a client here.
const OLDEST: u64 = 1 << 17;
/// So many fillers stay without an ACK before a subflow is given up.
const FILLERS: u32 = 6;
/// So many packets in a row come without an MPTCP option before something on the path is believed to strip them.
const BARE: u32 = 3;
/// What an answer may take beyond two round trips, in microseconds.
pub const JITTER: u64 = 5_000;

/// Whether a SYN asks for MPTCP that can be translated (RFC 8684 section 3.1): version 1, HMAC-SHA-256, no checksums,
/// nothing that nobody knows yet, no data, and room in a segment.
pub(crate) fn asks_for_mptcp(syn: &View<'_>) -> bool {
    let options = &syn.options;
    let roomy = options.mss.is_none_or(|mss| mss >= MIN_MSS);
    options.capable.is_some_and(is_honoured) && roomy && syn.payload_len == 0
}

/// Whether the option alone asks for that.
pub(crate) fn is_honoured(capable: MpCapable) -> bool {
    let flags = capable.flags.0;
    let odd = CapableFlags::EXTENSIBILITY.0 | CapableFlags::CHECKSUM.0;
    let known = flags & CapableFlags::HMAC_SHA256.0 != 0 && flags & odd == 0;
    capable.version == 1 && capable.keys == CapableKeys::Syn && known
}

/// What one subflow has shown.
#[derive(Default, Debug)]
pub(crate) struct Signs {
    /// The client wants it as backup.
    backup: bool,
    /// The client's address id.
    address_id: u8,
    /// When the proxy answered its SYN last, or asked for it first.
    answered: u64,
    /// The client's third packet proves nothing.
    unproved: bool,
    /// Packets of the client's in a row without an MPTCP option.
    bare: u32,
    /// What the client has done for which a subflow is reset.
    offence: bool,
    /// Fillers since the client's ACK moved on.
    fillers: u32,
    /// The proxy has not believed the client's last reset, and speaks on.
    outlives: bool,
    /// The proxy's FIN has gone down.
    pub(crate) fin_out: bool,
    /// Data on its way: its end, and when it went down.
    under_way: VecDeque<(u64, u64)>,
    /// The shortest round trip.
    rtt: Option<u64>,
    /// The longest.
    slowest: u64,
    /// When the client was asked for an answer without data last, and has not given one since.
    asked: Option<u64>,
    /// Since when nothing shows that what is outstanding arrives.
    since: u64,
    /// It has been silent for too long when the server sent something, and has ACKed nothing since.
    late: bool,
    /// When the client was heard on it last.
    heard: u64,
    /// Right edge of the client's window, as the subflow was told: in its own positions.
    edge: u64,
}

impl Signs {
    fn note_round_trip(&mut self, took: u64) {
        self.rtt = Some(self.rtt.map_or(took, |least| least.min(took)));
        self.slowest = self.slowest.max(took);
    }
}

/// Microseconds after which what is due is late.
const LATE: u64 = 1_000_000;

/// An address that the proxy has announced.
#[derive(Debug)]
struct Announced {
    id: u8,
    copies: u32,
    /// When the next copy is due.
    due: u64,
    /// The first moment at which that is late.
    late: u64,
    echoed: bool,
    /// With an ACK so old that the proxy need not believe the packet (RFC 5961 section 5.2).
    unsure: bool,
}

/// What a connection has shown.
#[derive(Default, Debug)]
pub(crate) struct Course {
    /// The SYN asks for MPTCP that can be translated, and the client has not repeated it otherwise.
    pub(crate) asks: bool,
    /// The client has sent `MP_FASTCLOSE` with the right key.
    pub(crate) fast_close: bool,
    /// A SYN has come on a known flow, from a client that may be hostile: whether the proxy goes on with the connection
    /// that was there or opens another cannot be told from outside.
    pub(crate) unclear: bool,
    /// The client opens another connection from the same place.
    pub(crate) replaced: bool,
    /// Since when the server repeats what the client waits for.
    stuck: Option<u64>,
    /// When the client was heard last on a subflow that was open.
    heard: u64,
    /// The subflow of the last new data that went down, and behind that.
    carrier: usize,
    carried: u64,
    /// The carrier has given a reason to leave it since.
    may_switch: bool,
    /// Where new data goes, as the proxy tells. A packet that has no room there goes elsewhere, for itself alone.
    pub(crate) told: Option<usize>,
    /// Where it went before, if another switch was told with the same packet: a part of that may have gone there.
    told_before: Option<usize>,
    /// Payload of the server's last packet: without room for all of it a path gets none.
    came: u64,
    /// It was told to go there, and nothing has shown a reason yet.
    unproved: bool,
    /// Subflows that data went to while another was silent, and that the client has not been heard on since: one bit each.
    trial: u64,
    /// The same: new data may go there again once it has been heard.
    tried: u64,
    /// When more of the server's payload went down than had come for it.
    copied: Option<u64>,
    announced: Vec<Announced>,
}

impl Course {
    /// Whether the path that new data is told to go down is on trial: until its client is heard, it goes down others.
    fn tries_told(&self) -> bool {
        let tried = self.trial | self.tried;
        self.told.is_some_and(|told| tried & (1 << told) != 0)
    }
}

impl Subflow {
    /// Whether it is established and no end has said that it will close.
    fn is_open(&self) -> bool {
        let resets = self.reset || self.refused || self.lost;
        self.established && !resets && self.client_fin.is_none()
    }

    /// Whether there is a cause to carry new data elsewhere.
    fn may_be_left(&self) -> bool {
        !self.is_open() || self.signs.late || self.signs.backup
    }

    /// Whether it takes a place among the subflows that a connection may have.
    pub(crate) fn may_live(&self) -> bool {
        !self.is_reset() && !self.refused && self.isn_proxy.is_some()
    }

    /// Whether it was reset, and the proxy has to believe that.
    pub(crate) const fn is_reset(&self) -> bool {
        self.reset && !self.signs.outlives
    }

    /// Whether a packet of the client's ACKs so little that the proxy need not believe it (RFC 5961 section 5.2).
    pub(crate) fn is_of_long_ago(&self, packet: &View<'_>) -> bool {
        self.down_at(packet.tcp.ack) + OLDEST < self.client_ack
    }

    /// The client resets it, and the proxy may not believe a number that is not the next (RFC 5961 section 3.2): then the subflow
    /// goes on as it did, whether the proxy speaks on it or not.
    pub(crate) fn note_reset(&mut self, seq: u32) {
        let exact = self.up_at(seq) == self.ack_out;
        self.signs.outlives = !exact && (self.signs.outlives || !self.reset);
        self.reset = true;
    }

    /// The client's answer to a join of the proxy's proves nothing.
    pub(crate) const fn note_unproved(&mut self) {
        self.signs.unproved = true;
    }

    /// The id of the address that it has come from, or was asked from.
    pub(crate) const fn address_id(&self) -> u8 {
        self.signs.address_id
    }

    /// When the proxy asked for it, where that does.
    pub(crate) const fn asked_at(&self) -> u64 {
        self.signs.answered
    }

    /// When the client was heard on it last.
    pub(crate) const fn heard_at(&self) -> u64 {
        self.signs.heard
    }

    /// Whether the proxy has closed its side.
    pub(crate) const fn has_sent_fin(&self) -> bool {
        self.signs.fin_out
    }

    /// The proxy speaks on it.
    pub(crate) const fn note_spoken(&mut self) {
        self.spoken = true;
        self.signs.outlives = self.reset;
    }

    /// The client's SYN.
    pub(crate) fn note_opening(&mut self, syn: &View<'_>) {
        if let Some(MpJoin::Syn {
            backup, address_id, ..
        }) = syn.options.join
        {
            (self.signs.backup, self.signs.address_id) = (backup, address_id);
        }
    }

    /// Data goes down.
    fn note_sent(&mut self, now: u64, end: u64) {
        if self.client_ack >= self.proxy_sent {
            self.signs.since = now;
        }
        self.signs.under_way.push_back((end, now));
    }

    /// The client's ACK has moved on from `old`, or it has sent an ACK alone.
    fn note_answer(&mut self, now: u64, old: u64, bare: bool) {
        let ack = self.client_ack;
        let signs = &mut self.signs;
        if ack > old || bare {
            signs.since = now;
        }
        // Its answer may stand in a packet with data. One that was under way is taken for that, too.
        if let Some(asked) = signs.asked.take() {
            signs.note_round_trip(now - asked);
        }
        if ack > old {
            signs.fillers = 0;
            signs.late = false;
        }
        signs.late &= ack < self.proxy_sent;
        while let Some(&(end, sent)) = signs.under_way.front()
            && end <= ack
        {
            // Of all that this ACKs the last gives the shortest round trip, whichever the proxy has timed.
            signs.note_round_trip(now - sent);
            signs.under_way.pop_front();
        }
    }

    /// A SACK block says that what is under way there has come, whichever of it the proxy has timed.
    fn note_block(&mut self, now: u64, left: u64, right: u64) {
        let signs = &mut self.signs;
        let within = |end: u64| left < end && end <= right;
        let come = signs.under_way.iter().filter(|&&(end, _)| within(end));
        let latest = come.map(|&(_, sent)| sent).max();
        if let Some(sent) = latest {
            signs.note_round_trip(now - sent);
        }
    }

    /// The latest time up to which the proxy may wait for an answer before it takes the path for silent: two of its round
    /// trips, which are none longer than the longest that was seen.
    fn answer_due(&self) -> u64 {
        self.signs.since + ANSWERED.max(2 * self.signs.slowest + JITTER)
    }

    /// Whether its client owes an answer that is overdue. From the shortest round trip, as the proxy's estimate is
    /// never below that; and never later than `silence`, as the proxy may not have timed anything.
    fn is_overdue(&self, now: u64, silence: u64) -> bool {
        let rtt = self.signs.rtt;
        let limit = rtt.map_or(silence, |rtt| (2 * rtt + JITTER).min(silence));
        self.client_ack < self.proxy_sent && now - self.signs.since >= limit
    }
}

/// Whether a stream has come to its end, and the other side knows it.
fn has_ended(stream: &Stream) -> bool {
    stream.fin.is_some_and(|fin| stream.acked > fin)
}

impl Connection {
    /// A client's packet on subflow `index`, when note has been taken of the rest; `old` is what it had ACKed before.
    pub(crate) fn note_signs(&mut self, now: u64, index: usize, packet: &View<'_>, old: u64) {
        let options = &packet.options;
        if packet.has(TcpFlags::SYN) {
            self.course.asks &= index != 0 || asks_for_mptcp(packet);
            return;
        }
        let right = |key: u64| self.proxy_key == Some(key);
        self.course.fast_close |= options.fast_close.is_some_and(right);
        if packet.has(TcpFlags::RST) || self.mode != Mode::Translated {
            return;
        }
        let identity = self.is_identity();
        let subflow = &mut self.subflows[index];
        if subflow.is_open() {
            self.course.heard = now;
            subflow.signs.heard = now;
            self.course.trial &= !(1 << index);
        }
        subflow.signs.bare = if options.mptcp {
            0
        } else {
            subflow.signs.bare + 1
        };
        let proof = matches!(options.join, Some(MpJoin::Ack { .. }));
        if !proof {
            // What a join's third packet says of the window the proxy may not have noted.
            let window = u64::from(packet.tcp.window) << subflow.window_scale;
            let edge = subflow.down_at(packet.tcp.ack) + window;
            subflow.signs.edge = subflow.signs.edge.max(edge);
        }
        for &(left, right) in options.sack.iter() {
            subflow.note_block(now, subflow.down_at(left), subflow.down_at(right));
        }
        subflow.note_answer(now, old, packet.payload_len == 0);
        if let Some(backup) = options.prio {
            subflow.signs.backup = backup;
        }
        let owes_proof = !subflow.established && self.asking.is_none();
        subflow.signs.unproved |= owes_proof && !proof;
        let dss = options
            .dss
            .and_then(|dss| Some((dss.mapping?, dss.data_fin)));
        let checksum = dss.is_some_and(|(mapping, _)| mapping.checksum.is_some());
        let infinite = dss.is_some_and(|(mapping, data_fin)| mapping.len == 0 && !data_fin);
        let leaves = infinite || options.fail;
        let start = subflow.up_at(packet.tcp.seq);
        let unmapped = packet.payload_len > 0
            && !options.mptcp
            && !identity
            && subflow.up.find(start).is_none()
            && start + packet.payload_len > subflow.ack_out;
        subflow.signs.offence |= checksum || leaves || unmapped;
        if let Some(remove) = &options.remove_addr {
            for subflow in &mut self.subflows {
                subflow.signs.offence |= remove.ids().contains(&subflow.signs.address_id);
            }
        }
        if let Some(echo) = options.add_addr.filter(|add_addr| add_addr.echo) {
            let subflow = &self.subflows[index];
            let old = subflow.is_of_long_ago(packet) || !subflow.is_open();
            let mut announced = self.course.announced.iter_mut();
            if let Some(known) = announced.find(|known| known.id == echo.id) {
                known.unsure = old && (known.unsure || !known.echoed);
                known.echoed = true;
            }
        }
    }

    /// A server's packet, when note has been taken of the rest.
    pub(crate) fn note_server_signs(&mut self, now: u64, packet: &View<'_>, silence: u64) {
        self.course.told_before = None;
        self.course.came = packet.payload_len;
        if packet.payload_len == 0 && !packet.has(TcpFlags::FIN) {
            return;
        }
        let start = self.down.at_seq(packet.tcp.seq);
        let acked = self.down.acked;
        let repeats = start <= acked && start + packet.payload_len > acked;
        if repeats && acked < self.course.carried {
            self.course.stuck.get_or_insert(now);
        }
        self.note_overdue(now, silence);
        let mut carriers = [Some(self.course.carrier), self.course.told].into_iter();
        let left = carriers.any(|it| it.is_some_and(|index| self.subflows[index].may_be_left()));
        self.course.may_switch |= left;
    }

    /// The proxy may be about to say an answer of its own again, which is to its client what a packet of the server's is: it goes by
    /// what subflows owe when it says that.
    pub(crate) fn note_own_answer(&mut self, now: u64, silence: u64) {
        if self.has_answer_under_way() {
            self.note_overdue(now, silence);
        }
    }

    fn note_overdue(&mut self, now: u64, silence: u64) {
        for subflow in &mut self.subflows {
            subflow.signs.late |= subflow.is_overdue(now, silence);
        }
    }

    /// The proxy tells where new data goes from here on; `as_ruled`: that needs no reason on the wire.
    pub(crate) fn note_switch(&mut self, index: usize, as_ruled: bool) {
        let before = self.course.told.replace(index);
        self.course.told_before = before;
        // It has told so for the packet that came last.
        let came = self.course.came;
        let left = before.is_some_and(|before| {
            self.subflows[before].may_be_left() || self.is_full(before, came)
        });
        self.course.may_switch |= left;
        self.course.unproved = !as_ruled;
    }

    /// A packet without data goes down: one with the byte before those that the client waits for has it answer, which gives the
    /// proxy a round trip.
    pub(crate) fn note_question(&mut self, now: u64, index: usize, packet: &View<'_>) {
        let subflow = &mut self.subflows[index];
        let plain = !packet.has(TcpFlags::SYN) && !packet.has(TcpFlags::FIN);
        let asks = subflow.down_at(packet.tcp.seq) < subflow.client_ack;
        if plain && asks && packet.payload_len == 0 {
            subflow.signs.asked = Some(now);
        }
    }

    /// I17, and what goes down on a subflow: `to` is the data position of the payload.
    pub(crate) fn judge_carrier(
        &mut self,
        index: usize,
        to: u64,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) {
        let now = report.time;
        let end = to + packet.payload_len;
        let heard = self.subflows[index].signs.heard;
        let silent = |(other, subflow): (usize, &Subflow)| {
            other != index && subflow.signs.late && heard < subflow.answer_due()
        };
        let leaves = self.subflows.iter().enumerate().any(silent);
        let subflow = &mut self.subflows[index];
        let bit = 1 << index;
        let at = subflow.down_at(packet.tcp.seq);
        // Nothing else is outstanding there: it may have gone before.
        let again = at <= subflow.client_ack && at + packet.payload_len >= subflow.proxy_sent;
        let tries = leaves && (again || subflow.client_ack >= subflow.proxy_sent);
        subflow.note_sent(now, at + packet.payload_len);
        if matches!(packet.payload, Payload::Zeros) {
            subflow.signs.fillers += 1;
        }
        if tries {
            self.course.trial |= bit;
            self.course.tried |= bit;
        }
        if report.bounds.is_some_and(|bounds| bounds.redundant) {
            // What is copied has no order among paths.
            self.course.carried = self.course.carried.max(end);
        } else if !self.is_placed() {
            // Where a client hears of its server is told nobody.
            (self.course.carrier, self.course.carried) = (index, end);
            self.course.told = self.course.told.map(|_| index);
        } else if end > self.course.carried {
            self.judge_told(index, packet.payload_len, report);
            self.judge_new(index, end, packet.payload_len, report);
        }
    }

    /// Whether a subflow has no room for so many bytes.
    fn is_full(&self, index: usize, len: u64) -> bool {
        let subflow = &self.subflows[index];
        subflow.proxy_sent + len > subflow.signs.edge
    }

    /// I17: new data goes down where the proxy has told that it does, unless there is no room, or that path is on trial.
    fn judge_told(&self, index: usize, len: u64, report: &mut Report<'_>) {
        let Some(told) = self.course.told else {
            return;
        };
        let on_trial = self.course.tries_told();
        let went = self.course.told_before == Some(index);
        let goes =
            told == index || went || on_trial || self.is_full(told, len.max(self.course.came));
        report.expect(goes || !self.is_judged(report), Rule::Switch, || {
            format!("new data goes down subflow {index}, and nothing is told of that")
        });
    }

    /// I17: new data, up to `end`, goes down where the data before it went, or there is a reason on the wire.
    fn judge_new(&mut self, index: usize, end: u64, len: u64, report: &mut Report<'_>) {
        let (now, bit) = (report.time, 1 << index);
        let from = self.course.carrier;
        if from != index {
            let before = &self.subflows[from];
            let all = len.max(self.course.came);
            let told_full = self.course.told.is_some_and(|told| self.is_full(told, all));
            let no_room = self.is_full(from, len) || told_full;
            let left = self.course.may_switch || no_room;
            if !left && self.course.trial & (1 << from) != 0 {
                // One packet is enough to try a path.
                self.course.carried = end;
                return;
            }
            // The proxy goes back to where it tried, or gives that up.
            let tried = |&(n, _): &(usize, &Subflow)| self.course.tried & (1 << n) != 0;
            let gives_up = |(_, subflow): (usize, &Subflow)| subflow.may_be_left();
            let settled = self.course.told == Some(index) && !self.course.unproved;
            let returns = settled
                || self.course.tries_told()
                || self.course.told_before == Some(index)
                || self.course.tried & bit != 0
                || self.subflows.iter().enumerate().filter(tried).any(gives_up);
            report.expect(left || returns || !self.is_judged(report), Rule::Switch, || {
                let owes = before.proxy_sent - before.client_ack;
                let mute = now - before.signs.since;
                format!(
                    "new data moves from subflow {from}, which owes {owes} bytes for {mute} us at a round trip of {:?} us, to {index} without cause",
                    before.signs.rtt
                )
            });
        }
        let proved = self.course.may_switch || self.course.told == Some(index);
        self.course.unproved &= !proved;
        self.course.tried &= self.course.trial | !bit;
        self.course.carrier = index;
        self.course.carried = end;
        self.course.may_switch = false;
    }

    /// The client's data ACK has moved on.
    pub(crate) const fn note_progress(&mut self) {
        self.course.stuck = None;
    }

    /// Whether decisions have to have causes here: both ends have kept to the protocol.
    fn is_judged(&self, report: &Report<'_>) -> bool {
        report.bounds.is_some() && self.trusts_both() && !self.course.unclear
    }

    /// Whether the proxy may have let go of the connection.
    pub(crate) fn may_be_gone(&self, now: u64, half_open: u64, idle: u64) -> bool {
        let waits = self.mode == Mode::Handshake || !self.server_answered || self.has_open_errand();
        let silent = now.saturating_sub(self.last_packet);
        let limit = if waits { half_open } else { idle };
        // A SYN/ACK that may not go to a client is no sign of life.
        let signs = &self.subflows[0].signs;
        let shown = signs.answered.max(signs.heard);
        let left = self.front.is_some() && waits && shown > 0;
        self.over
            || (left && now.saturating_sub(shown) >= half_open)
            || self.server_reset
            || self.course.fast_close
            || (has_ended(&self.up) && has_ended(&self.down))
            || (self.mode != Mode::Translated && self.subflows[0].reset)
            || silent >= limit
    }

    /// The proxy has answered the SYN of subflow `index`.
    pub(crate) fn note_answered(&mut self, now: u64, index: usize) {
        self.subflows[index].signs.answered = now;
    }

    /// I18: an `ADD_ADDR` of the proxy's: one at a time, at most six copies, each after twice the pause before it, and
    /// none after the echo.
    pub(crate) fn judge_announcement(&mut self, id: u8, report: &mut Report<'_>) {
        let Some(bounds) = report.bounds.filter(|_| self.is_judged(report)) else {
            return;
        };
        let now = report.time;
        let open = |other: &Announced| other.id != id && !other.echoed && other.copies < 6;
        let alone = !self.course.announced.iter().any(open);
        report.expect(alone, Rule::Announcement, || {
            format!("address {id} is announced before the one before it has been echoed")
        });
        let announced = &mut self.course.announced;
        let Some(known) = announced.iter_mut().find(|known| known.id == id) else {
            announced.push(Announced {
                id,
                copies: 1,
                due: now + bounds.add_addr,
                late: now + bounds.add_addr + LATE,
                echoed: false,
                unsure: false,
            });
            return;
        };
        let owed = !known.echoed || known.unsure;
        let again = owed && known.copies < 6 && now >= known.due;
        report.expect(again, Rule::Announcement, || {
            format!("address {id} is announced again without need")
        });
        known.due = now + (bounds.add_addr << known.copies.min(16));
        known.late = known.due + LATE;
        known.copies += 1;
    }

    /// I9: the server's data goes over more than one path once in the time that counts as silence, and no more often, unless
    /// a rule may want it so.
    pub(crate) fn judge_copies(&mut self, report: &mut Report<'_>) {
        if report.bounds.is_some_and(|bounds| bounds.redundant) {
            return;
        }
        let now = report.time;
        let last = self.course.copied.replace(now);
        let pause = report.bounds.map_or(0, |bounds| bounds.silence);
        let soon = last.is_some_and(|last| now - last < pause);
        report.expect(!soon, Rule::Amplification, || {
            format!(
                "data is copied {} us after the last copy",
                now - last.unwrap_or(now)
            )
        });
    }

    /// I18: what is not echoed is announced again. Asked a second late, while a subflow is open that could carry it, and has been
    /// for as long as the first pause; of a connection that ends nobody wants to know.
    pub(crate) fn judge_silence(&mut self, report: &mut Report<'_>) {
        if self.course.announced.is_empty() || !self.is_judged(report) {
            return;
        }
        let now = report.time;
        if !self.subflows.iter().any(Subflow::is_open) {
            let pause = report.bounds.map_or(0, |bounds| bounds.add_addr);
            let announced = self.course.announced.iter_mut();
            announced.for_each(|known| known.late = known.late.max(now + pause + LATE));
            return;
        }
        let lives = self.mode == Mode::Translated
            && !self.may_be_gone(now, u64::MAX, u64::MAX)
            && self.up.fin.is_none()
            && self.down.fin.is_none();
        let late = |known: &Announced| !known.echoed && known.copies < 6 && now > known.late;
        if let Some(known) = self.course.announced.iter_mut().find(|known| late(known)) {
            let id = known.id;
            // Once is enough.
            known.echoed = true;
            report.expect(!lives, Rule::Announcement, || {
                format!("address {id} is not announced again")
            });
        }
    }
}
