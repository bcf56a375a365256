//! The end with MPTCP where it is an aggregation server: what a box tells it before the stream, and what it answers.

use flexcp_translator::Protocol;

use super::Client;
use super::preamble::{Gates, matches_behind};
use crate::errand::{ErrandPlan, Talk};
use crate::payload::Payload;

/// One errand.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) plan: ErrandPlan,
    told: Vec<u8>,
    says: Vec<u8>,
    gates: Gates,
    /// Bytes of what it is told that the SYN has carried for good.
    pub(super) in_syn: u64,
    /// Its stream begins here at the earliest.
    from: u64,
    /// It has said all that it says.
    answered: bool,
}

impl Errand {
    pub(super) fn new(plan: ErrandPlan, talk: Talk, from: u64) -> Self {
        let Talk { told, says, gates } = talk;
        Self {
            plan,
            told,
            says,
            gates: Gates::new(gates),
            in_syn: 0,
            from,
            answered: false,
        }
    }

    /// What is still to be told behind the handshake.
    fn rest(&self) -> &[u8] {
        let known = usize::try_from(self.in_syn).unwrap_or(usize::MAX);
        self.told.get(known..).unwrap_or(&[])
    }

    /// Bytes of its stream, the answer before it.
    pub(super) fn bytes_out(&self, out: &Payload, at: u64, len: usize) -> Vec<u8> {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = self.says.get(start..).unwrap_or(&[]);
        let mut bytes = rest[..rest.len().min(len)].to_vec();
        let behind = at.max(self.says.len() as u64) - self.says.len() as u64;
        bytes.extend_from_slice(out.bytes(behind, len - bytes.len()));
        bytes
    }

    /// Whether these bytes are what it is to be told, and the client's stream behind that.
    pub(super) fn matches_in(&self, into: &Payload, at: u64, bytes: &[u8]) -> bool {
        let rest = self.rest();
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let known = rest.get(start..).unwrap_or(&[]);
        let told = known.iter().zip(bytes).all(|(known, byte)| known == byte);
        let streams = bytes.len() > known.len();
        // Nothing of the stream comes before it has connected on.
        let connected = self.plan.grants() && (self.answered || self.has_promised());
        told && (connected || !streams) && matches_behind(into, rest.len() as u64, at, bytes)
    }

    /// Its SYN/ACK has said that it has connected on.
    const fn has_promised(&self) -> bool {
        self.plan.early && self.in_syn > 0
    }

    pub(super) fn due(&self) -> Option<u64> {
        self.gates.due().map(|due| due.max(self.starts()))
    }

    /// When the next gate opens at the earliest.
    fn starts(&self) -> u64 {
        let of_stream = self.gates.limit() == Some(self.says.len() as u64);
        if of_stream && !self.says.is_empty() {
            self.from
        } else {
            0
        }
    }

    /// The answer that goes with the SYN/ACK.
    pub(super) fn with_syn_ack(&self) -> Option<&[u8]> {
        let whole = self.in_syn > 0 && self.plan.with_syn_ack && !self.says.is_empty();
        whole.then_some(&self.says)
    }
}

impl Client {
    pub(super) fn errand(&self) -> Option<&Errand> {
        self.answers.as_ref()?.errand.as_deref()
    }

    pub(super) fn errand_mut(&mut self) -> Option<&mut Errand> {
        self.answers.as_mut()?.errand.as_deref_mut()
    }

    /// The same as an aggregation server, whose stream is that of another end.
    pub(crate) fn connecting_on(
        mut self,
        plan: &ErrandPlan,
        talk: Talk,
        streams: (Payload, Payload),
    ) -> Self {
        (self.out, self.into) = streams;
        let errand = Errand::new(plan.clone(), talk, self.app.writes_from);
        self.app.writes_from = 0;
        if plan.grants() {
            self.app.writes += errand.says.len() as u64;
            self.app.reads += errand.told.len() as u64;
        } else {
            self.app.writes = errand.says.len() as u64;
            self.app.reads = errand.told.len() as u64;
            // It ends behind its answer, and not before.
            self.app.closes_last = true;
            self.app.aborts_at = None;
        }
        if let Some(answers) = &mut self.answers {
            answers.errand = Some(Box::new(errand));
        }
        self
    }

    /// A SYN carries what it is told, if it takes that.
    pub(super) fn take_errand_of_syn(&mut self, bytes: &[u8]) {
        let Some(errand) = self.errand_mut() else {
            if !bytes.is_empty() {
                self.failure = Some("data in the SYN to a server".into());
            }
            return;
        };
        if bytes.is_empty() {
            return;
        }
        if errand.told != bytes {
            self.failure = Some("it is told something else with the SYN".into());
            return;
        }
        let len = if errand.plan.takes_syn {
            bytes.len() as u64
        } else {
            0
        };
        let before = std::mem::replace(&mut errand.in_syn, len);
        self.app.reads = self.app.reads + before - len;
    }

    /// Goes on with its answer, and the stream behind that.
    pub(super) fn look_at_errand(&mut self, now: u64) {
        let (writes, come) = (self.app.writes, self.data_end());
        let Some(errand) = self.errand_mut() else {
            return;
        };
        let heard = come + errand.in_syn;
        if now >= errand.starts() {
            errand.gates.pass(now, heard, false);
        }
        let limit = errand.gates.limit();
        let answered = limit.is_none_or(|at| at >= errand.says.len() as u64);
        errand.answered |= answered && heard >= errand.told.len() as u64;
        let ends = errand.answered && !errand.plan.grants();
        self.wants_close |= ends && limit.is_none();
        let limit = limit.unwrap_or(u64::MAX);
        self.open_to = self.open_to.max(writes.min(limit)).min(writes);
    }

    /// What its SYN/ACK has carried has come.
    pub(super) fn skip_answer(&mut self) {
        let len = self.errand().map_or(0, |errand| errand.says.len() as u64);
        let sender = &mut self.subflows[0].sender;
        (sender.una, sender.nxt, sender.end) = (len, len, len);
        (self.una, self.nxt, self.open_to) = (len, len, len);
        if let Some(errand) = self.errand_mut() {
            errand.answered = true;
        }
    }

    /// How it has been asked, if it has connected on.
    pub(crate) fn connected_by(&self) -> Option<Protocol> {
        let granted = |errand: &&Errand| errand.plan.grants() && errand.answered;
        Some(self.errand().filter(granted)?.plan.protocol)
    }
}
