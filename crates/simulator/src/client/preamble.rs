//! What a client says before its stream, and hears before the server's.

use std::borrow::Cow;

use flexcp_translator::Protocol;

use super::{Client, Phase};
use crate::explicit::{Fate, Gate, PATIENCE, Speech};
use crate::payload::Payload;

/// So many bytes from the first on are kept until all before them have come: more than any answer to a wish that is granted.
const HEAD: usize = 80;

/// What has come of a wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// There is more to come.
    Waits,
    /// The server's stream starts behind so many bytes.
    Granted(u64),
    /// The answer has so many bytes, and ends with this code.
    Refused(u64, u8),
}

/// Points that an end does not go beyond before something has happened.
#[derive(Debug)]
pub(super) struct Gates {
    all: Vec<Gate>,
    /// The next one, and when it opens.
    next: usize,
    opens: Option<u64>,
}

impl Gates {
    pub(super) const fn new(all: Vec<Gate>) -> Self {
        Self {
            all,
            next: 0,
            opens: None,
        }
    }

    /// Goes through those that are open: so many bytes have come, or it is `granted` what it waits for.
    pub(super) fn pass(&mut self, now: u64, come: u64, granted: bool) {
        while let Some(gate) = self.all.get(self.next) {
            let heard = come >= gate.heard || (gate.heard == u64::MAX && granted);
            if !heard {
                break;
            }
            let opens = *self.opens.get_or_insert(now + gate.pause);
            if opens > now {
                break;
            }
            self.opens = None;
            self.next += 1;
        }
    }

    /// Up to where there is none; `None`: none is left.
    pub(super) fn limit(&self) -> Option<u64> {
        self.all.get(self.next).map(|gate| gate.at)
    }

    /// When the next one opens.
    pub(super) const fn due(&self) -> Option<u64> {
        self.opens
    }
}

/// One client's preamble.
#[derive(Debug)]
pub(super) struct Front {
    speech: Speech,
    /// Bytes of the stream that the SYN has carried for good.
    skipped: u64,
    gates: Gates,
    head: [Option<u8>; HEAD],
    /// Parts that came before it was known where the server's stream starts.
    later: Vec<(u64, Vec<u8>)>,
    outcome: Outcome,
    /// What the server is to send, and the client's stream behind the preamble.
    reads: u64,
    began: u64,
}

impl Front {
    pub(super) fn new(speech: Speech, reads: u64) -> Self {
        Self {
            gates: Gates::new(speech.gates.clone()),
            speech,
            skipped: 0,
            head: [None; HEAD],
            later: vec![],
            outcome: Outcome::Waits,
            reads,
            began: 0,
        }
    }

    pub(super) const fn says(&self) -> u64 {
        self.speech.says.len() as u64
    }

    /// Reads the answer as far as it has come.
    fn read(&self, come: u64) -> Outcome {
        let come = usize::try_from(come).unwrap_or(HEAD).min(HEAD);
        let head: Vec<u8> = self.head[..come]
            .iter()
            .map(|byte| byte.unwrap_or(0))
            .collect();
        match self.speech.protocol {
            Protocol::Convert => read_convert(&head),
            Protocol::Socks5 => read_socks(&head, self.speech.says_user),
        }
    }

    /// What is wrong with an answer that has come as a whole.
    fn fault(&self, outcome: Outcome) -> Option<String> {
        let Outcome::Granted(len) = outcome else {
            return None;
        };
        if self.speech.fate != Fate::Granted {
            return Some(format!("client: connected, not {:?}", self.speech.fate));
        }
        if self.speech.protocol == Protocol::Convert {
            return None;
        }
        let start = if self.speech.says_user { 8 } else { 6 };
        let address: Vec<u8> = self.head[start..(len as usize).min(HEAD) - 2]
            .iter()
            .flatten()
            .copied()
            .collect();
        let right = match self.speech.source {
            std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
            std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        (address != right).then(|| format!("client: told of {address:?}, not {right:?}"))
    }
}

/// RFC 8803 section 6: one message, with an error or without.
fn read_convert(head: &[u8]) -> Outcome {
    let &[_, words, _, _, ..] = head else {
        return Outcome::Waits;
    };
    let len = usize::from(words) * 4;
    if words >= 2 && head.len() >= 7 && head[4] == 30 {
        // An error may be longer than what is kept.
        return Outcome::Refused(len as u64, head[6]);
    }
    if head.len() < len {
        return Outcome::Waits;
    }
    Outcome::Granted(len as u64)
}

/// RFC 1928, RFC 1929.
fn read_socks(head: &[u8], says_user: bool) -> Outcome {
    let mut at = 2;
    match head {
        [_, 0xff, ..] => return Outcome::Refused(2, 0xff),
        [_, _, _, judged, ..] if says_user && *judged != 0 => return Outcome::Refused(4, *judged),
        _ => {}
    }
    if says_user {
        at += 2;
    }
    let Some(&[_, code, _, kind]) = head.get(at..at + 4) else {
        return Outcome::Waits;
    };
    let len = at + if kind == 1 { 10 } else { 22 };
    if head.len() < len {
        return Outcome::Waits;
    }
    if code == 0 {
        Outcome::Granted(len as u64)
    } else {
        Outcome::Refused(len as u64, code)
    }
}

impl Client {
    /// What has come of the client's wish; `None`: it has none.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.front.as_ref().map(|front| front.outcome)
    }

    /// Bytes of its stream, from a position on.
    pub(super) fn bytes_out(&self, at: u64, len: usize) -> Cow<'static, [u8]> {
        if let Some(errand) = self.errand() {
            return Cow::Owned(errand.bytes_out(&self.out, at, len));
        }
        let Some(front) = &self.front else {
            return Cow::Borrowed(self.out.bytes(at, len));
        };
        let (at, says) = (at + front.skipped, front.says());
        if at >= says {
            return Cow::Borrowed(self.out.bytes(at - says, len));
        }
        let start = usize::try_from(at).unwrap_or(0);
        let end = (start + len).min(front.speech.says.len());
        let mut bytes = front.speech.says[start..end].to_vec();
        let rest = len - bytes.len();
        bytes.extend_from_slice(self.out.bytes(0, rest));
        Cow::Owned(bytes)
    }

    /// What its SYN carries.
    pub(super) fn bytes_of_syn(&self) -> Cow<'static, [u8]> {
        let Some(front) = &self.front else {
            return Cow::Borrowed(&[]);
        };
        let mss = u64::from(self.stack.mss.unwrap_or(536));
        let len = front.speech.in_syn.min(self.app.writes).min(mss - 40);
        self.bytes_out(0, usize::try_from(len).unwrap_or(0))
    }

    /// The SYN's data has been ACKed.
    pub(super) fn skip(&mut self, len: u64) {
        if let Some(front) = &mut self.front {
            front.skipped = len;
            self.app.writes -= len;
        }
    }

    /// Up to where it may write now.
    pub(super) fn look_at_gates(&mut self, now: u64) {
        if self.errand().is_some() {
            return self.look_at_errand(now);
        }
        let (writes, come) = (self.app.writes, self.data_end());
        let Some(front) = &mut self.front else {
            self.open_to = writes;
            return;
        };
        let granted = matches!(front.outcome, Outcome::Granted(_));
        front.gates.pass(now, come, granted);
        let limit = front.gates.limit();
        let limit = limit.map_or(u64::MAX, |at| at.saturating_sub(front.skipped));
        self.open_to = self.open_to.max(writes.min(limit)).min(writes);
    }

    /// When the next gate opens.
    pub(super) fn next_gate(&self) -> Option<u64> {
        let errand = self.errand().and_then(|errand| errand.due());
        errand.or_else(|| self.front.as_ref()?.gates.due())
    }

    /// Takes bytes that come down, whether in order or not. `false`: they are others than they should be.
    pub(super) fn matches_in(&mut self, at: u64, bytes: &[u8]) -> bool {
        if let Some(errand) = self.errand() {
            return errand.matches_in(&self.into, at, bytes);
        }
        let Some(front) = &mut self.front else {
            return self.into.matches(at, bytes);
        };
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        for (n, &byte) in bytes.iter().enumerate() {
            let Some(place) = front.head.get_mut(start.saturating_add(n)) else {
                break;
            };
            if place.is_some_and(|known| known != byte) {
                return false;
            }
            *place = Some(byte);
        }
        match front.outcome {
            Outcome::Granted(len) => matches_behind(&self.into, len, at, bytes),
            _ => {
                if start + bytes.len() > HEAD {
                    front.later.push((at, bytes.to_vec()));
                }
                true
            }
        }
    }

    /// More of what comes down is there in order.
    pub(super) fn read_answer(&mut self) {
        let come = self.data_end();
        let Some(front) = &mut self.front else {
            return;
        };
        if front.outcome != Outcome::Waits {
            return;
        }
        let outcome = front.read(come);
        if outcome == Outcome::Waits {
            return;
        }
        front.outcome = outcome;
        if let Some(why) = front.fault(outcome) {
            self.failure = Some(why);
            return;
        }
        match outcome {
            Outcome::Granted(len) => {
                self.app.reads = len + front.reads;
                let later = std::mem::take(&mut front.later);
                let head: Vec<u8> = front.head.iter().map_while(|byte| *byte).collect();
                let parts = later.into_iter().chain([(0, head)]);
                let into = self.into;
                for (at, bytes) in parts {
                    if !matches_behind(&into, len, at, &bytes) {
                        self.failure = Some(format!(
                            "client: other bytes at {at}, behind an answer of {len}"
                        ));
                    }
                }
            }
            Outcome::Refused(len, _) => {
                self.app.reads = len;
                self.give_up_writing();
            }
            Outcome::Waits => {}
        }
    }

    /// Nobody wants what it has not sent yet.
    fn give_up_writing(&mut self) {
        (self.app.writes_from, self.app.closes_last) = (0, false);
        if self.phase == Phase::Plain {
            let sender = &mut self.subflows[0].sender;
            sender.end = sender.end.min(sender.nxt);
            self.app.writes = sender.end;
        } else {
            self.app.writes = self.nxt;
        }
        self.open_to = self.app.writes;
    }

    /// The client has sent its first SYN.
    pub(super) const fn note_start(&mut self, now: u64) {
        if let Some(front) = &mut self.front {
            front.began = now;
        }
    }

    /// Whether it has been reset before it was connected.
    pub(crate) fn is_reset_early(&self) -> bool {
        self.phase == Phase::Reset && !matches!(self.outcome(), None | Some(Outcome::Granted(_)))
    }

    /// Whether it has been reset for having said too little for too long.
    pub(crate) fn is_given_up(&self, now: u64) -> bool {
        let late = |front: &Front| front.outcome == Outcome::Waits && now >= front.began + PATIENCE;
        self.phase == Phase::Reset && self.front.as_ref().is_some_and(late)
    }
}

/// Whether what stands behind an answer of `len` bytes is the server's.
pub(super) fn matches_behind(into: &Payload, len: u64, at: u64, bytes: &[u8]) -> bool {
    let skip = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
    let rest = bytes.get(skip..).unwrap_or(&[]);
    rest.is_empty() || into.matches(at.max(len) - len, rest)
}
