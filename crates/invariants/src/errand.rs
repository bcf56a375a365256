//! Errands: connections that the proxy has an aggregation server connect on. Before the stream that is told whom the end with TCP
//! has addressed, which hears nothing of that, nor of the answer, for which its own waits (I19).
//!
//! Positions count from the first byte that the aggregation server is told behind the handshake, and from the first that it answers:
//! the streams begin as far behind the origin as that is long. What the SYN has carried for good stands before the origin.

use std::net::SocketAddr;

use flexcp_wire::TcpFlags;

use crate::Rule;
use crate::asking::Offer;
use crate::connection::{Connection, Mode, Report};
use crate::packet::View;
use crate::position::ORIGIN;
use crate::preamble::{Answer, Head, Preamble, Read, names};

/// The most that is told before a stream: a message of Convert.
const MOST: u32 = 1020;
/// Who has not answered the proxy's SYN is left after so long, in microseconds, and no sooner.
const PATIENCE: u64 = 250_000;
/// Bytes of a converter's answer that has nothing to say but that it has connected on.
const PROMISED: u64 = 4;

/// Whether the numbers leave room for an errand: from the SYN of the proxy's to that of the end with TCP.
pub(crate) fn leaves_room(offer: u32, seq: u32) -> bool {
    (1..=MOST).contains(&offer.wrapping_sub(seq))
}

/// One errand.
#[derive(Debug)]
pub(crate) struct Errand {
    preamble: Preamble,
    /// Whom the end with TCP has addressed.
    wanted: SocketAddr,
    /// Bytes that are told, as the numbers have it, and how many of them a SYN of the proxy's has carried.
    len: u32,
    in_syn: u32,
    says: Head,
    hears: Head,
    /// The answer has come in its order so far.
    straight: bool,
    came: Option<Answer>,
    /// The SYN/ACK has said that it will be that it has connected on.
    promised: bool,
    /// Before that came, something without MPTCP has.
    stripped: bool,
    /// The end with TCP has been answered.
    replied: bool,
}

impl Errand {
    fn judge_said(&self, report: &mut Report<'_>) {
        let whole = self.says.bytes.len() as u64 >= self.len.into();
        let fits = match self.preamble.read(&self.says.bytes) {
            Read::More => !whole,
            Read::Whole((named, len)) => {
                len as u64 == u64::from(self.len) && names(named, self.wanted)
            }
            Read::Wrong => false,
        };
        report.expect(fits, Rule::Preamble, || {
            format!(
                "an aggregation server is told {:02x?}, not of {} in {} bytes",
                self.says.bytes, self.wanted, self.len
            )
        });
    }
}

impl Connection {
    fn errand(&self) -> Option<&Errand> {
        self.asking.as_ref()?.errand.as_deref()
    }

    fn errand_mut(&mut self) -> Option<&mut Errand> {
        self.asking.as_mut()?.errand.as_deref_mut()
    }

    /// The proxy asks an aggregation server that is spoken to so with this SYN, for an end with TCP that has addressed `wanted`.
    pub(crate) fn begin_errand(
        &mut self,
        time: u64,
        (preamble, wanted): (Preamble, SocketAddr),
        syn: &View<'_>,
    ) {
        let len = self.down.isn.wrapping_sub(syn.tcp.seq);
        self.down.isn = syn.tcp.seq;
        self.down.lead = len.into();
        self.down.sent = ORIGIN + self.down.lead;
        self.down.ack_out = ORIGIN + self.down.lead;
        self.note_answered(time, 0);
        if let Some(asking) = &mut self.asking {
            asking.errand = Some(Box::new(Errand {
                preamble,
                wanted,
                len,
                in_syn: 0,
                says: Head::default(),
                hears: Head::default(),
                straight: true,
                came: None,
                promised: false,
                stripped: false,
                replied: false,
            }));
        }
    }

    /// Whether it goes by an aggregation server.
    pub(crate) fn has_errand(&self) -> bool {
        self.errand().is_some()
    }

    /// Whether an aggregation server has yet to say what comes of it.
    pub(crate) fn has_open_errand(&self) -> bool {
        let open = |errand: &Errand| !errand.promised && errand.came != Some(Answer::Connected);
        self.errand().is_some_and(open)
    }

    /// Whether the SYN/ACK of an aggregation server has said what its answer will be.
    pub(crate) fn is_promised(&self) -> bool {
        self.errand().is_some_and(|errand| errand.promised)
    }

    /// Whether the answer that was promised has not come, or not yet.
    fn has_open_promise(&self) -> bool {
        let open = |errand: &Errand| errand.promised && errand.came.is_none();
        self.errand().is_some_and(open)
    }

    /// Whether the wire shows that nothing comes of what was promised.
    pub(crate) fn is_retracted(&self) -> bool {
        let said = |errand: &Errand| errand.came.is_some_and(|came| came != Answer::Connected);
        let says = self.is_promised() && self.errand().is_some_and(said);
        let says = says || self.errand().is_some_and(|errand| errand.stripped);
        let subflow = &self.subflows[0];
        let ends = subflow.reset || subflow.client_fin.is_some() || self.up.fin.is_some();
        let odd = self.may_fall_back || !self.is_identity();
        says || (self.has_open_promise() && (ends || odd))
    }

    /// A packet of the aggregation server's is about to be heard.
    pub(crate) fn note_stripped(&mut self, packet: &View<'_>) {
        let waits = self.has_open_promise() && !packet.has(TcpFlags::SYN);
        if let Some(errand) = self.errand_mut() {
            errand.stripped |= waits && !packet.options.mptcp;
        }
    }

    /// What the end with TCP has of the client's data: it counts from behind an answer that may be yet to come.
    pub(crate) fn heard_behind_promise(&self, ack: u64) -> u64 {
        match self.errand() {
            Some(errand) if self.has_open_promise() => {
                ack.min(ORIGIN + errand.hears.bytes.len() as u64)
            }
            _ => ack,
        }
    }

    /// Whether the aggregation server says that the server is not there.
    pub(crate) fn is_refused_by_answer(&self) -> bool {
        self.errand()
            .is_some_and(|errand| errand.came == Some(Answer::Refused))
    }

    /// The number that the end with TCP has in the proxy's SYN: less than its own by what is told.
    pub(crate) fn offered_number(&self, offer: &Offer) -> u32 {
        let len = self.errand().map_or(0, |errand| errand.len);
        offer.isn.wrapping_sub(len)
    }

    /// I19: the SYN that asks an aggregation server tells it, with Convert, whom the end with TCP has addressed, and leaves room for
    /// that in its number. Any other SYN carries nothing.
    pub(crate) fn judge_errand_syn(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let (len, bytes) = (packet.payload_len, packet.bytes());
        let asks = packet.options.capable.is_some();
        let Some(errand) = self.errand_mut() else {
            report.expect(len == 0, Rule::Preamble, || {
                format!("{len} bytes in the SYN to a server")
            });
            return;
        };
        let (own, room) = (u64::from(errand.len), (1..=MOST).contains(&errand.len));
        report.expect(room, Rule::Preamble, || {
            format!("the SYN to an aggregation server leaves room for {own} bytes")
        });
        let carries = errand.preamble != Preamble::Socks5 && asks;
        let due = if carries { own } else { 0 };
        report.expect(len == due, Rule::Preamble, || {
            format!("{len} bytes in the SYN to an aggregation server, not {due}")
        });
        if carries && room {
            errand.in_syn = errand.len;
            let same = errand.says.put(0, bytes);
            report.expect(same, Rule::SameBytes, || "other bytes in the SYN".into());
            errand.judge_said(report);
        }
    }

    /// Bytes that a SYN/ACK may ACK beside the SYN.
    pub(crate) fn said_in_syn(&self) -> u32 {
        self.errand().map_or(0, |errand| errand.in_syn)
    }

    /// The client's SYN/ACK: what the SYN has carried has no number behind it, if the client has `taken` that.
    pub(crate) fn note_errand_answered(&mut self, taken: bool, packet: &View<'_>) {
        let Some(len) = self.errand().map(|errand| errand.len) else {
            return;
        };
        if taken {
            let isn = self.down.isn.wrapping_add(len);
            self.down.isn = isn;
            self.down.lead = 0;
            self.down.sent = ORIGIN;
            self.down.ack_out = ORIGIN;
            self.subflows[0].isn_proxy = Some(isn);
        }
        // From here on the proxy speaks, whatever the end with TCP knows.
        if self.mode == Mode::Handshake {
            self.mode = Mode::Translated;
        }
        self.subflows[0].established = true;
        let (bytes, end) = (packet.bytes(), ORIGIN + packet.payload_len);
        let subflow = &mut self.subflows[0];
        subflow.client_sent = subflow.client_sent.max(end);
        self.up.sent = self.up.sent.max(end);
        self.hear_errand(ORIGIN, bytes);
        let promises = taken && packet.payload_len == 0 && self.client_key.is_some();
        if let Some(errand) = self.errand_mut()
            && promises
            && errand.preamble == Preamble::Early
        {
            errand.promised = true;
            self.up.lead = PROMISED;
        }
    }

    /// What the aggregation server says.
    pub(crate) fn hear_errand(&mut self, at: u64, bytes: &[u8]) {
        let window = self.up.widest;
        let Some(errand) = self.errand_mut().filter(|errand| errand.came.is_none()) else {
            return;
        };
        let at = at.saturating_sub(ORIGIN);
        errand.straight &= at <= errand.hears.bytes.len() as u64;
        errand.hears.put(at, bytes);
        let (came, heard) = match errand.preamble.read_answer(&errand.hears.bytes) {
            Read::More => (None, errand.hears.bytes.len()),
            Read::Whole((answer, len)) => (Some(answer), len),
            Read::Wrong => (Some(Answer::Declined), errand.hears.bytes.len()),
        };
        let heard = heard as u64;
        let breaks = errand.promised && came == Some(Answer::Connected) && heard != PROMISED;
        errand.came = if breaks { Some(Answer::Declined) } else { came };
        self.up.acknowledge(ORIGIN + heard);
        self.up.edge = self.up.edge.max(ORIGIN + heard + window);
        if came == Some(Answer::Connected) {
            self.up.lead = heard;
            self.up.ack_out = self.up.ack_out.max(ORIGIN);
        }
    }

    /// Whether an answer has just come as a whole, in its order, or was promised, so that the end with TCP has to hear of it;
    /// `before`: it was open; `knew`: it was promised already.
    pub(crate) fn owes_reply(&self, before: bool, knew: bool) -> bool {
        let owes = |errand: &Errand| {
            let told = match errand.came {
                None => errand.promised && !knew,
                Some(Answer::Connected) => !errand.promised,
                Some(Answer::Refused) => true,
                Some(Answer::Declined) => errand.promised,
            };
            errand.straight && told
        };
        // What stands elsewhere than it has to, the proxy has not believed.
        let left = self.asking.as_ref().is_some_and(|asking| asking.left);
        let lives = self.is_identity() && !left && !self.subflows[0].lost;
        before && lives && self.errand().is_some_and(owes)
    }

    /// I19: the end with TCP has not been told what the aggregation server has said.
    pub(crate) fn judge_no_reply(&self, report: &mut Report<'_>) {
        let gone = report
            .bounds
            .is_none_or(|it| self.may_be_gone(report.time, it.half_open, it.idle));
        report.expect(gone, Rule::Preamble, || {
            "the answer of an aggregation server is kept from the end with TCP".into()
        });
    }

    /// Whether nothing has come of the answer yet.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.errand().is_some_and(|errand| errand.came.is_none())
    }

    /// I19: what goes to an aggregation server before the stream tells it whom the end with TCP has addressed, and nothing follows
    /// before it has connected on. Returns how many of the bytes are of that.
    pub(crate) fn judge_told_bytes(
        &mut self,
        to: u64,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) -> u64 {
        let open = self.has_open_errand();
        let end = ORIGIN + self.down.lead;
        let Some(errand) = self.errand_mut() else {
            return 0;
        };
        let len = packet.payload_len;
        let own = end.saturating_sub(to).min(len);
        report.expect(own == len || !open, Rule::Preamble, || {
            format!(
                "{} bytes of the stream before the aggregation server has connected on",
                len - own
            )
        });
        if own == 0 {
            return 0;
        }
        let bytes = packet.bytes();
        let part = &bytes[..bytes.len().min(usize::try_from(own).unwrap_or(0))];
        let same = errand.says.put(to.saturating_sub(ORIGIN), part);
        report.expect(same, Rule::SameBytes, || "it is told something else".into());
        errand.judge_said(report);
        own
    }

    /// The end with TCP is answered.
    pub(crate) fn note_reply(&mut self) {
        if let Some(errand) = self.errand_mut() {
            errand.replied = true;
        }
    }

    /// Whether data behind the answer may be dropped, as that is waited for.
    pub(crate) fn may_drop_behind_answer(&self) -> bool {
        self.is_unanswered() || self.has_open_promise()
    }

    /// Whether an aggregation server is asked, and the end with TCP has no answer yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.errand().is_some_and(|errand| !errand.replied)
    }

    /// I19: the end with TCP hears nothing before the aggregation server has connected on.
    pub(crate) fn judge_before_answer(&self, report: &mut Report<'_>) {
        report.expect(!self.has_open_errand(), Rule::Preamble, || {
            "the end with TCP hears of a server that nobody has connected with".into()
        });
    }

    /// Whether nothing comes of the connection with this peer, and the wire shows why: an aggregation server will not connect on, ends
    /// its connection, says nothing, or speaks otherwise than it has to. `foreign`: a packet of other than TCP has come.
    pub(crate) fn may_be_left(&self, now: u64, foreign: bool) -> bool {
        let Some(errand) = self.errand() else {
            return false;
        };
        let subflow = &self.subflows[0];
        let waited = now.saturating_sub(subflow.asked_at()) + self.slack();
        let silent = !subflow.replied && waited >= PATIENCE;
        let ends = subflow.reset || subflow.client_fin.is_some() || self.up.fin.is_some();
        let ends = ends || self.course.fast_close;
        let declines = matches!(errand.came, Some(Answer::Declined | Answer::Refused));
        let odd = self.may_fall_back || !self.is_identity();
        declines || ends || silent || foreign || odd
    }

    /// Whether the connection with this peer is none any more, or need not be.
    pub(crate) fn is_left(&self, now: u64, foreign: bool) -> bool {
        let left = self.asking.as_ref().is_some_and(|asking| asking.left);
        left || (self.has_open_errand() && self.may_be_left(now, foreign))
    }

    /// I19: another peer is asked in place of this one.
    pub(crate) fn judge_leaving(&self, now: u64, foreign: bool, report: &mut Report<'_>) {
        // What is mapped anew behind itself the proxy hears in the order of the subflow, and nothing behind what is missing.
        let straight = self.errand().is_some_and(|errand| errand.straight);
        let heard = self.is_identity() && straight && self.is_refused_by_answer();
        report.expect(!heard, Rule::Preamble, || {
            "another peer is asked for a server that has refused".into()
        });
        let cause = self.may_be_left(now, foreign);
        report.expect(cause, Rule::Preamble, || {
            "an aggregation server is left without cause".into()
        });
    }
}
