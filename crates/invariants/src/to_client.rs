//! What the proxy sends to a client.

use flexcp_wire::{CapableKeys, DataNumber, MpJoin, TcpFlags};

use crate::Rule;
use crate::conduct::Side;
use crate::connection::{Connection, Mode, Report};
use crate::mapping::Mapping;
use crate::packet::{Payload, View};
use crate::position::{ORIGIN, from_seq};
use crate::ranges::Ranges;

/// In a capture, a data ACK may be as much later than a further one on another path, in microseconds: it was on its way from a worker
/// when the kernel's programs took the connection and sent the next.
const OVERTAKEN: u64 = 2000;

impl Connection {
    /// A packet of the proxy's on subflow `index`.
    pub(crate) fn judge_client(
        &mut self,
        index: usize,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) {
        if packet.has(TcpFlags::RST) {
            self.subflows[index].reset = true;
            self.subflows[index].refused = true;
            self.over |= packet.options.fast_close.is_some();
        }
        if packet.has(TcpFlags::RST) || self.over {
            return;
        }
        if packet.opens() && self.asking.is_some() {
            self.judge_asking(index, packet, report);
            return;
        }
        if packet.has(TcpFlags::SYN) {
            if index == 0 {
                self.judge_answer(packet, report);
            }
            self.note_answered(report.time, index);
            if self.trusts(Side::Server) || index != 0 {
                self.syn_ack_out(index, packet, report);
            }
            if self.hostile && index == 0 && packet.options.capable.is_none() {
                // The client hears of no MPTCP.
                self.mode = Mode::Plain;
            }
            return;
        }
        if self.may_relay() {
            self.relayed_to_client(index, packet);
            return;
        }
        self.subflows[index].note_spoken();
        self.clock_to_client(index, packet, report);
        if self.mode != Mode::Translated {
            self.relayed_to_client(index, packet);
        }
        if self.mode == Mode::Handshake {
            return;
        }
        let translated = self.mode == Mode::Translated;
        let keys = translated && self.judge_keys(index, packet, report);
        if self.mode == Mode::Translated && !keys {
            self.notice_fallback_down(packet, report);
        }
        if self.mode == Mode::Translated {
            self.note_question(report.time, index, packet);
            self.data_to_client(index, packet, report);
            self.data_ack_out(index, packet, report);
            self.ack_to_client(index, packet, report);
            let announces = packet.options.add_addr.filter(|add_addr| !add_addr.echo);
            self.judge_withdrawal(packet, report);
            if let Some(announced) = announces {
                self.judge_announcement(announced.id, report);
            }
            self.sack_to_client(index, packet, report);
            self.window_to_client(index, packet, report);
        } else {
            if translated {
                // The first packet after the fallback.
                self.relayed_to_client(index, packet);
            }
            self.plain_to_client(packet, report);
        }
        self.release();
    }

    /// Notes how far the server has come on a flow whose numbers are its own.
    fn relayed_to_client(&mut self, index: usize, packet: &View<'_>) {
        let subflow = &mut self.subflows[index];
        let fin = u64::from(packet.has(TcpFlags::FIN));
        let start = subflow.down_at(packet.tcp.seq);
        let end = start + packet.payload_len + fin;
        subflow.proxy_sent = subflow.proxy_sent.max(end);
        if self.hostile {
            subflow.carried.insert(start, end);
            self.down.carried.insert(start, end);
        }
    }

    fn syn_ack_out(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        if !packet.has(TcpFlags::ACK) {
            report.add(Rule::Translation, "a SYN to the client");
            return;
        }
        let subflow = &self.subflows[index];
        let known = subflow.isn_proxy.filter(|isn| {
            // A join that is not complete may have made room for another, or been reset. Its SYN starts anew then.
            let gone = subflow.refused || self.joins > subflow.turn;
            let forgotten = index > 0 && !subflow.spoken && gone;
            *isn == packet.tcp.seq || !forgotten
        });
        if known.is_none() {
            self.joins += u64::from(index > 0);
            self.subflows[index].turn = self.joins;
            self.subflows[index].answered(packet);
            if index == 0 {
                self.window_of_syn_ack(packet);
            }
        }
        report.expect(
            known.is_none_or(|isn| isn == packet.tcp.seq),
            Rule::Translation,
            || format!("SYN/ACK with another number: {}", packet.tcp.seq),
        );
        let subflow = &self.subflows[index];
        let acks = if index == 0 {
            self.take_syn_data(packet, known.is_none())
        } else {
            packet.tcp.ack == subflow.isn_client.wrapping_add(1)
        };
        report.expect(acks, Rule::AckToClient, || {
            "SYN/ACK that acknowledges something else".into()
        });
        // What is relayed is the server's own.
        if let Some(kind) = packet.options.unknown
            && (index > 0 || !self.may_relay())
        {
            report.add(Rule::Size, format!("option {kind} that nobody offered"));
        }
        if let Some(CapableKeys::SynAck { sender }) =
            packet.options.capable.map(|capable| capable.keys)
        {
            report.expect(
                self.proxy_key.is_none_or(|key| key == sender),
                Rule::StableMapping,
                || "SYN/ACK with another key".into(),
            );
            self.proxy_key = Some(sender);
        }
        if let (true, Some(MpJoin::SynAck { .. })) = (index == 0, packet.options.join) {
            report.add(Rule::StableMapping, "MP_JOIN on the initial subflow");
        }
        self.clock_to_client(index, packet, report);
        if index == 0 && packet.payload_len > 0 && self.front.is_some() {
            // The answer to a client without MPTCP.
            let subflow = &mut self.subflows[0];
            subflow.proxy_sent = subflow.proxy_sent.max(ORIGIN + packet.payload_len);
            self.judge_answer_bytes(ORIGIN, packet, report);
        }
    }

    fn window_of_syn_ack(&mut self, packet: &View<'_>) {
        let edge = ORIGIN + self.bytes_in_syn(0) + u64::from(packet.tcp.window);
        self.up.edge = self.up.edge.max(edge);
    }

    fn clock_to_client(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        let subflow = &self.subflows[index];
        let Some(timestamps) = packet.options.timestamps else {
            let excused = packet.options.add_addr.is_some() || packet.has(TcpFlags::SYN);
            let plain = self.mode == Mode::Plain;
            let complete = !subflow.timestamps || !self.trusts(Side::Server);
            report.expect(complete || excused || plain, Rule::Timestamps, || {
                "without the timestamps that were agreed on".into()
            });
            return;
        };
        if let Some(val) = self.hosted_clock(timestamps.val) {
            self.judge_hosted_clock(index, val, report);
            return self.judge_echo(index, timestamps.ecr, report);
        }
        report.expect(
            self.server_clock.has(timestamps.val) || !self.trusts(Side::Server),
            Rule::Timestamps,
            || format!("TSval {} that the server has not sent", timestamps.val),
        );
        // A clock that leaps may come round: what is later than what, its own course says.
        let val = self.server_clock.unwrap(timestamps.val);
        let subflow = &mut self.subflows[index];
        if let Some(last) = subflow.last_tsval_out
            && val < last
        {
            // A late packet of the server's keeps its own time, as it does on the way to any client.
            report.expect(
                self.server_clock.is_latest(timestamps.val),
                Rule::Timestamps,
                || format!("TSval {} goes back by {}", timestamps.val, last - val),
            );
        } else {
            subflow.last_tsval_out = Some(val);
        }
        self.judge_echo(index, timestamps.ecr, report);
    }

    /// I10: the client is echoed what it has sent.
    fn judge_echo(&self, index: usize, echo: u32, report: &mut Report<'_>) {
        let exact = report.exact_echo || self.subflows.len() == 1;
        let exact = exact && self.trusts_both();
        let known = self.trusts(Side::Client);
        // Of a server without a clock it is the proxy's, which may have read a packet that is damaged.
        let own = self.is_hosted() && !self.server_timestamps && self.mode == Mode::Plain;
        let subflow = &self.subflows[index];
        report.expect(
            subflow.client_clock.has(echo)
                || own
                || !known
                || (!exact && subflow.client_clock.spans(echo)),
            Rule::Timestamps,
            || format!("TSecr {} that the client has not sent", echo),
        );
    }

    /// Packets without a DSS are TCP: allowed once the client has given a reason, and then for good.
    fn notice_fallback_down(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        if packet.options.data_ack().is_some()
            || packet.options.add_addr.is_some()
            || packet.options.fail
        {
            return;
        }
        if self.may_fall_back && (self.is_identity() || !self.trusts(Side::Client)) {
            self.mode = Mode::Plain;
        } else {
            report.add(Rule::StableMapping, "without a data ACK");
        }
    }

    fn data_ack_out(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        // Who has fallen back reads none.
        let number = packet.options.data_ack();
        let Some(number) = number.filter(|_| !self.may_relay_plain()) else {
            return;
        };
        let ack = self.up.at_dsn(number, self.up.ack_out);
        report.expect(ack <= self.up.acked, Rule::AckToClient, || {
            format!(
                "data ACK {} beyond the server's",
                ack.wrapping_sub(self.up.acked)
            )
        });
        let (at, by) = self.acked_last;
        let overtaken = self.lag > 0
            && packet.payload_len == 0
            && by != index
            && report.time.saturating_sub(at) <= OVERTAKEN;
        report.expect(
            ack >= self.up.ack_out || overtaken,
            Rule::AckToClient,
            || format!("data ACK goes back by {}", self.up.ack_out - ack),
        );
        if ack > self.up.ack_out {
            self.acked_last = (report.time, index);
        }
        self.up.ack_out = self.up.ack_out.max(ack.min(self.up.acked));
    }

    fn data_to_client(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        let start = self.subflows[index].down_at(packet.tcp.seq);
        let end = start + packet.payload_len;
        let dss = packet.options.dss;
        let mut declared = None;
        if let Some(mapping) = dss.and_then(|dss| dss.mapping) {
            let data_fin = dss.is_some_and(|dss| dss.data_fin);
            let len = u64::from(mapping.len).saturating_sub(data_fin.into());
            let to = self.down.at_dsn(mapping.dsn, self.down.sent);
            if data_fin && self.trusts(Side::Server) {
                self.note_own_end(to + len);
                report.expect(self.down.fin == Some(to + len), Rule::Translation, || {
                    "DATA_FIN where the server's FIN is not".into()
                });
            }
            if self.hostile && data_fin {
                self.down.carried.insert(to + len, to + len + 1);
            }
            if matches!(mapping.dsn, DataNumber::Short(_)) {
                report.add(Rule::StableMapping, "a data number of 32 bits");
            }
            if len > 0 {
                let at = from_seq(mapping.ssn, 0, self.subflows[index].proxy_sent);
                let mapping = Mapping { at, to, len };
                declared = Some(mapping);
                self.declared_down(index, mapping, report);
                if self.hostile {
                    // Whatever the client has given reason for, the proxy has not fallen back.
                    self.may_fall_back = false;
                }
            }
        }
        if let Some(mapping) = self.mapping_of_keys(packet) {
            declared = Some(mapping);
            self.declared_down(index, mapping, report);
        }
        let subflow = &mut self.subflows[index];
        if packet.payload_len > 0 {
            let known = subflow.down.find(start).or(declared);
            let mapping = known.filter(|m| m.at <= start && m.end() >= end);
            if let Some(mapping) = mapping {
                let to = mapping.data(start);
                self.judge_carrier(index, to, packet, report);
                self.content_to_client(to, packet, report);
            } else {
                report.add(Rule::StableMapping, "payload outside its mapping");
            }
        }
        let subflow = &mut self.subflows[index];
        let fin = u64::from(packet.has(TcpFlags::FIN));
        subflow.proxy_sent = subflow.proxy_sent.max(end + fin);
        subflow.signs.fin_out |= fin > 0;
        if self.hostile {
            subflow.carried.insert(start, end + fin);
        }
    }

    /// I2: the same bounds each time; the numbers of the initial subflow may differ later.
    fn declared_down(&mut self, index: usize, mapping: Mapping, report: &mut Report<'_>) {
        if index != 0 || mapping.at != mapping.to {
            self.identity = false;
        }
        let lag = self.lag;
        let subflow = &mut self.subflows[index];
        let is_over = |end: u64, acked: u64| end + lag <= acked;
        if is_over(mapping.end(), subflow.client_ack)
            && is_over(mapping.to + mapping.len, self.down.acked)
        {
            // Released: nobody can say what it was.
            return;
        }
        if let Err(known) = subflow.down.declare_exactly(mapping) {
            report.add(
                Rule::StableMapping,
                format!(
                    "mapping {}+{} to {} contradicts {}+{} to {}",
                    mapping.at.wrapping_sub(ORIGIN),
                    mapping.len,
                    mapping.to.wrapping_sub(ORIGIN),
                    known.at.wrapping_sub(ORIGIN),
                    known.len,
                    known.to.wrapping_sub(ORIGIN),
                ),
            );
        }
    }

    /// I1: the server's bytes; or zeros, where the client has acknowledged the data already and would drop
    /// whatever comes.
    fn content_to_client(&mut self, to: u64, packet: &View<'_>, report: &mut Report<'_>) {
        let end = to + packet.payload_len;
        if self.hostile {
            self.down.carried.insert(to, end);
        }
        let own =
            self.judge_answer_bytes(to, packet, report) + self.judge_told_bytes(to, packet, report);
        if own == packet.payload_len {
            return;
        }
        let superfluous = end <= self.down.acked;
        if matches!(packet.payload, Payload::Zeros) {
            report.expect(superfluous, Rule::SameBytes, || {
                "filler under data that the client has not acknowledged".into()
            });
            return;
        }
        let right = !self.trusts(Side::Server)
            || self
                .down
                .matches(report.oracle, self.client, to + own, behind(packet, own));
        let filler = superfluous && packet.is_zeros();
        report.expect(right || filler, Rule::SameBytes, || {
            format!("other bytes at {}", to.wrapping_sub(ORIGIN))
        });
        report.expect(end <= self.down.sent, Rule::Translation, || {
            "data that the server has not sent".into()
        });
    }

    /// I5: only what the server has, and only what the client has sent here.
    fn ack_to_client(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        let trusted = self.trusts(Side::Client);
        let alone = index == 0 && self.is_identity();
        let relays = self.may_relay_plain();
        let subflow = &mut self.subflows[index];
        let ack = from_seq(packet.tcp.ack, subflow.isn_client, subflow.ack_out);
        report.expect(
            ack >= subflow.ack_out || !trusted || relays,
            Rule::AckToClient,
            || format!("ACK goes back by {}", subflow.ack_out - ack),
        );
        let fin = subflow.client_fin.filter(|fin| *fin + 1 == ack).is_some();
        let data_end = ack - u64::from(fin);
        let limit = subflow.client_sent + u64::from(!trusted);
        report.expect(data_end <= limit, Rule::AckToClient, || {
            format!(
                "ACK {} beyond what the client sent here",
                data_end - subflow.client_sent
            )
        });
        // Of mappings that contradict each other nobody can say which counts.
        let mut at = if trusted { subflow.ack_out } else { data_end };
        while at < data_end {
            let (to, end) = match subflow.up.find(at) {
                Some(mapping) => (mapping.data(at), mapping.end().min(data_end)),
                None if alone => (at, data_end),
                None => {
                    report.add(Rule::AckToClient, "ACK of what has no mapping");
                    break;
                }
            };
            if !self.up.is_accounted_for(to, to + (end - at)) {
                report.add(
                    Rule::AckToClient,
                    format!(
                        "ACK of {}..{} that the server has not acknowledged",
                        to.wrapping_sub(ORIGIN),
                        (to + (end - at)).wrapping_sub(ORIGIN)
                    ),
                );
                break;
            }
            at = end;
        }
        subflow.ack_out = subflow.ack_out.max(ack);
    }

    /// I11 towards the client.
    fn sack_to_client(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        if self.may_relay_plain() {
            return;
        }
        let trusted = self.trusts(Side::Client);
        let subflow = &self.subflows[index];
        let blocks = packet.options.sack;
        report.expect(blocks.is_empty() || subflow.sack, Rule::Sack, || {
            "SACK that was not agreed on".into()
        });
        let mut seen = Ranges::new();
        let mut first = (0, 0);
        for (n, &(left, right)) in blocks.as_slice().iter().enumerate() {
            let (left, right) = (subflow.up_at(left), subflow.up_at(right));
            let placed = left > subflow.ack_out && left < right && right <= subflow.client_sent;
            report.expect(placed, Rule::Sack, || {
                format!(
                    "block {}..{} outside {}..{}",
                    left.wrapping_sub(ORIGIN),
                    right.wrapping_sub(ORIGIN),
                    subflow.ack_out.wrapping_sub(ORIGIN),
                    subflow.client_sent.wrapping_sub(ORIGIN)
                )
            });
            if !placed {
                continue;
            }
            // A D-SACK may lie in the block behind it (RFC 2883 section 4.1).
            let holds_first = n == 1 && seen.range_at(left.max(first.0)) == Some(first);
            let holds_first = holds_first && left <= first.0 && first.1 <= right;
            report.expect(
                holds_first || !seen.intersects(left, right),
                Rule::Sack,
                || "blocks that overlap".into(),
            );
            first = if n == 0 { (left, right) } else { first };
            seen.insert(left, right);
            let mut at = left;
            while at < right {
                let Some(mapping) = subflow.up.find(at) else {
                    report.expect(!trusted, Rule::Sack, || {
                        "block over what has no mapping".into()
                    });
                    break;
                };
                let end = mapping.end().min(right);
                report.expect(
                    !trusted || self.up.receiver_has(mapping.data(at), mapping.data(end)),
                    Rule::Sack,
                    || "block over what the server lacks".into(),
                );
                at = end;
            }
        }
    }

    /// I6 towards the client: counted from the data ACK (RFC 8684 section 3.3.4).
    fn window_to_client(&mut self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        let number = packet.options.data_ack();
        let Some(number) = number.filter(|_| !self.may_relay_plain()) else {
            return;
        };
        let ack = self.up.at_dsn(number, self.up.ack_out);
        let (trusted, placed) = (self.trusts(Side::Server), self.is_placed());
        let scale = if self.is_hosted() {
            self.server_scale.max(self.subflows[index].proxy_scale)
        } else {
            self.server_scale
        };
        let subflow = &mut self.subflows[index];
        let edge = ack + (u64::from(packet.tcp.window) << subflow.proxy_scale);
        if !placed {
            // The window is the proxy's own.
            self.up.edge = self.up.edge.max(edge);
            self.up.last_edge = self.up.last_edge.max(edge);
        }
        // No data comes behind DATA_FIN, so one unit is for the subflow's FIN alone.
        let ended = self.up.fin.is_some_and(|fin| ack > fin);
        let room = if ended {
            ack + (1 << subflow.proxy_scale)
        } else {
            0
        };
        report.expect(edge <= self.up.edge.max(room), Rule::Window, || {
            format!(
                "right edge {} beyond what the server offered",
                edge - self.up.edge
            )
        });
        if let Some(last) = subflow.edge_out.filter(|_| trusted) {
            // Scaling rounds down.
            let rounding = (1 << scale) - 1;
            report.expect(edge + rounding >= last, Rule::Window, || {
                format!("right edge moves left by {}", last - edge)
            });
        }
        subflow.edge_out = Some(subflow.edge_out.map_or(edge, |last| last.max(edge)));
    }

    /// Plain TCP: the bytes, and nothing acknowledged that the server has not.
    fn plain_to_client(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        if self.front.is_none() && (self.server.is_none() || !self.server_answered) {
            return;
        }
        let start = self.at_seq_of_client(packet.tcp.seq);
        if packet.payload_len > 0 {
            self.content_to_client(start, packet, report);
        }
        let ack = from_seq(packet.tcp.ack, self.up.isn, self.up.acked);
        report.expect(ack <= self.up.acked, Rule::AckToClient, || {
            "ACK beyond the server's".into()
        });
        self.up.ack_out = self.up.ack_out.max(ack.min(self.up.acked));
    }
}

/// The payload that there is behind so many bytes.
fn behind<'a>(packet: &View<'a>, own: u64) -> &'a [u8] {
    let own = usize::try_from(own).unwrap_or(usize::MAX);
    packet.bytes().get(own..).unwrap_or(&[])
}
