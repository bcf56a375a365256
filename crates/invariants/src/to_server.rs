//! What the proxy sends to a server.

use flexcp_wire::TcpFlags;

use crate::Rule;
use crate::clock::earlier;
use crate::conduct::Side;
use crate::connection::{Connection, Mode, Report};
use crate::packet::{Payload, View};
use crate::position::{ORIGIN, from_seq, low};
use crate::ranges::Ranges;

/// For so long the proxy repeats an answer, in units of a clock that counts milliseconds.
const REPEATED: u64 = 100_000;

impl Connection {
    /// A packet of the proxy's to the server.
    pub(crate) fn judge_server(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        if packet.has(TcpFlags::SYN) {
            if self.trusts(Side::Client) && !self.may_relay() {
                self.syn_out(packet, report);
            }
            if self.asking.is_some() {
                self.judge_reply(packet, report);
                self.note_reply();
            }
            if let Some(timestamps) = packet.options.timestamps {
                self.tsvals_out.note(timestamps.val);
            }
            return;
        }
        if packet.has(TcpFlags::RST) {
            self.over |= self.mode == Mode::Translated;
            if let Some(asking) = &mut self.asking {
                asking.told = true;
            }
        }
        if packet.has(TcpFlags::RST) || self.over {
            return;
        }
        if self.hostile {
            let fin = u64::from(packet.has(TcpFlags::FIN));
            let start = self.up.at_seq(packet.tcp.seq);
            self.up
                .carried
                .insert(start, start + packet.payload_len + fin);
            if let (true, Some(timestamps)) = (self.may_relay(), packet.options.timestamps) {
                self.tsvals_out.note(timestamps.val);
            }
        }
        if self.may_relay() {
            return;
        }
        if packet.options.mptcp {
            report.add(
                Rule::Translation,
                "an MPTCP packet goes to the server as it is",
            );
            return;
        }
        self.judge_before_answer(report);
        self.clock_to_server(packet, report);
        if !self.is_placed() {
            self.judge_early(packet, report);
            return;
        }
        if !self.server_answered {
            return;
        }
        let start = self.up.at_seq(packet.tcp.seq);
        self.data_to_server(start, packet, report);
        self.ack_to_server(packet, report);
        if self.mode == Mode::Translated && !self.may_relay_plain() {
            self.sack_to_server(packet, report);
        }
        self.window_to_server(packet, report);
        self.release();
    }

    fn syn_out(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let number = self.up.isn.wrapping_add(low(self.up.lead));
        let same = self.front.is_some() || packet.tcp.seq == number;
        report.expect(same, Rule::Translation, || {
            "SYN with another number than the client's".into()
        });
        self.judge_call(packet, report);
        if let Some(kind) = packet.options.unknown
            && self.mode != Mode::Plain
        {
            report.add(Rule::Size, format!("option {kind} that nobody knows"));
        }
        self.clock_to_server(packet, report);
    }

    fn clock_to_server(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        // A client's answer that is late itself keeps its own time.
        let answer = packet.has(TcpFlags::SYN) && self.asking.is_some();
        let plain = self.mode == Mode::Plain || self.may_relay_plain() || answer;
        let Some(timestamps) = packet.options.timestamps else {
            report.expect(!self.server_timestamps || plain, Rule::Timestamps, || {
                "without the timestamps that were agreed on".into()
            });
            return;
        };
        if let Some(last) = self.last_tsval_out
            && !plain
        {
            report.expect(!earlier(timestamps.val, last), Rule::Timestamps, || {
                format!("TSval {} after {last}", timestamps.val)
            });
        }
        self.last_tsval_out = Some(timestamps.val);
        self.tsvals_out.note(timestamps.val);
        if packet.has(TcpFlags::ACK) {
            let spans = || self.server_clock.spans(timestamps.ecr);
            // What the proxy has repeated has its own clock, which goes on from the server's.
            let own = || self.is_hosted() && self.server_clock.is_within(timestamps.ecr, REPEATED);
            // An aggregation server in a capture may be a FlexCP, which is not held to exact echoes over several subflows.
            let passed_on = || self.lag > 0 && self.has_errand() && spans();
            report.expect(
                self.server_clock.has(timestamps.ecr)
                    || own()
                    || passed_on()
                    || !self.trusts(Side::Server)
                    || (!self.trusts(Side::Client) && spans()),
                Rule::Timestamps,
                || format!("TSecr {} that the server has not sent", timestamps.ecr),
            );
        }
    }

    fn data_to_server(&mut self, start: u64, packet: &View<'_>, report: &mut Report<'_>) {
        let end = start + packet.payload_len;
        if packet.payload_len > 0 {
            report.expect(
                !matches!(packet.payload, Payload::Zeros),
                Rule::SameBytes,
                || "filler to the server".into(),
            );
            let nothing_before = self.front.is_none() && self.up.lead == 0;
            let of_stream = nothing_before || start >= ORIGIN + self.up.lead;
            report.expect(of_stream, Rule::Preamble, || {
                "a part of what stands before the stream goes to the server".into()
            });
            report.expect(end <= self.up.sent, Rule::Translation, || {
                format!(
                    "data {} that the client has not sent",
                    start.wrapping_sub(ORIGIN)
                )
            });
            let (from, bytes) = self.awaited(start, packet.bytes());
            let right = !self.trusts(Side::Client)
                || self.up.matches(report.oracle, self.client, from, bytes)
                    && self.said_these(from, bytes);
            let probes = || {
                let byte = packet.bytes().first().map(|&byte| (start, byte));
                packet.payload_len == 1 && byte.is_some() && byte == self.up.probe
            };
            report.expect(right || probes(), Rule::SameBytes, || {
                format!("other bytes at {}", start.wrapping_sub(ORIGIN))
            });
        }
        let fin = packet.has(TcpFlags::FIN);
        if fin && self.trusts(Side::Client) {
            report.expect(self.up.fin == Some(end), Rule::Translation, || {
                "FIN where the client's DATA_FIN is not".into()
            });
        }
    }

    /// What of these bytes the server may still take. In captures, the client may be a FlexCP itself, which closes a hole on a subflow
    /// with other bytes where the server has ACKed what stood there: they are dropped.
    fn awaited<'a>(&self, start: u64, bytes: &'a [u8]) -> (u64, &'a [u8]) {
        if self.lag == 0 || self.up.acked <= start {
            return (start, bytes);
        }
        let known = usize::try_from(self.up.acked - start).unwrap_or(usize::MAX);
        (self.up.acked, bytes.get(known..).unwrap_or_default())
    }

    /// I4: the client's data ACK and nothing more.
    fn ack_to_server(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let ack = from_seq(packet.tcp.ack, self.down.isn, self.down.ack_out);
        // The server knows nothing of an answer before its first byte.
        let limit = self.down.acked.max(ORIGIN + self.down.lead);
        report.expect(ack <= limit, Rule::AckToServer, || {
            format!("ACK {} beyond the client's", ack - limit)
        });
        report.expect(
            ack >= self.down.ack_out || self.mode == Mode::Plain || self.may_relay_plain(),
            Rule::AckToServer,
            || format!("ACK goes back by {}", self.down.ack_out - ack),
        );
        self.down.ack_out = self.down.ack_out.max(ack.min(limit));
    }

    /// I11 towards the server: a D-SACK comes first or not at all (RFC 2883); the other blocks lie behind
    /// the ACK, for what starts there has no hole before it.
    fn sack_to_server(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let blocks = packet.options.sack;
        report.expect(blocks.is_empty() || self.server_sack, Rule::Sack, || {
            "SACK that was not agreed on".into()
        });
        let ack = from_seq(packet.tcp.ack, self.down.isn, self.down.ack_out);
        let trusted = self.trusts(Side::Client);
        let mut seen = Ranges::new();
        let mut first = (0, 0);
        for (n, &(left, right)) in blocks.as_slice().iter().enumerate() {
            let (left, right) = (self.down.at_seq(left), self.down.at_seq(right));
            let duplicate = n == 0 && left < ack && right <= ack;
            let inside = left > ack && right <= self.down.sent;
            report.expect(left < right && (duplicate || inside), Rule::Sack, || {
                format!(
                    "block {}..{} outside {}..{}",
                    left.wrapping_sub(ORIGIN),
                    right.wrapping_sub(ORIGIN),
                    ack.wrapping_sub(ORIGIN),
                    self.down.sent.wrapping_sub(ORIGIN)
                )
            });
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
            report.expect(
                duplicate || !trusted || self.down.receiver_has(left, right),
                Rule::Sack,
                || {
                    format!(
                        "block {}..{} over what the client lacks",
                        left.wrapping_sub(ORIGIN),
                        right.wrapping_sub(ORIGIN)
                    )
                },
            );
        }
    }

    /// I6 towards the server. Scaling rounds down, so the edge may lie one unit further left.
    fn window_to_server(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let scale = if self.server_scales {
            self.subflows[0].window_scale
        } else {
            0
        };
        let ack = from_seq(packet.tcp.ack, self.down.isn, self.down.ack_out);
        let edge = ack + (u64::from(packet.tcp.window) << scale);
        let limit = self.down.edge;
        report.expect(edge <= limit, Rule::Window, || {
            format!("right edge {} beyond what the client offered", edge - limit)
        });
        if let Some(last) = self.edge_out
            && self.mode == Mode::Translated
            && !self.may_relay_plain()
        {
            let own = self.subflows[0].window_scale;
            let scale = if self.is_hosted() { own } else { scale };
            let rounding = (1 << scale) - 1;
            report.expect(edge + rounding >= last, Rule::Window, || {
                format!("right edge moves left by {}", last - edge)
            });
        }
        self.edge_out = Some(self.edge_out.map_or(edge, |last| last.max(edge)));
    }
}
