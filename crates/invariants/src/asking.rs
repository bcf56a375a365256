//! Connections that the proxy opens towards the MPTCP side, as an aggregation box does: the end with TCP sends the SYN, and the
//! one with MPTCP, which the other modules call the client, answers. Who says what in the handshakes is exchanged; behind them
//! every rule is as ever.

use std::net::SocketAddr;

use flexcp_testkit::keys;
use flexcp_wire::{CapableFlags, CapableKeys, MpCapable, MpJoin, TcpFlags};

use crate::Rule;
use crate::causes::{MIN_MSS, is_honoured};
use crate::connection::{Connection, Mode, Report};
use crate::errand::Errand;
use crate::mapping::Mapping;
use crate::packet::View;
use crate::position::{ORIGIN, low};
use crate::subflow::{Subflow, default_mss};

/// SYNs that ask for MPTCP; those behind them go without, as something on the way may let none through that does (RFC 8684
/// section 3.1).
const ASKING_SYNS: u32 = 2;
/// Room that a DSS of the proxy's takes beside what the end with TCP sends.
const DSS: u64 = 28;
/// Over one uplink no join follows another sooner, in microseconds.
const JOIN_PAUSE: u64 = 1_000_000;
/// So long behind the SYN of a join that nobody is heard on, it may be given up, in microseconds.
const JOIN_IN_VAIN: u64 = 31_000_000;
/// In a capture, a packet may leave so long after another has come in that the proxy had not read when it made the first, and so much
/// less than the proxy waits may lie between two, in microseconds.
const IN_HAND: u64 = 20_000;
/// In a capture nobody tells of uplinks that are lost: a subflow that says nothing for so long may have been on one, in microseconds.
const LOST: u64 = 1_000_000;

/// What the SYN of the end with TCP offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offer {
    pub(crate) isn: u32,
    pub(crate) window: u16,
    scale: Option<u8>,
    sack: bool,
    pub(crate) tsval: Option<u32>,
    mss: u64,
    /// Nothing of it can be asked of the other end, or is to be: it passes as it is.
    pub(crate) passes: bool,
}

impl Offer {
    pub(crate) fn new(syn: &View<'_>) -> Self {
        let options = &syn.options;
        let small = options.mss.is_some_and(|mss| mss < MIN_MSS);
        Self {
            isn: syn.tcp.seq,
            window: syn.tcp.window,
            scale: options.scale(),
            sack: options.sack_permitted,
            tsval: options.timestamps.map(|timestamps| timestamps.val),
            mss: options
                .mss
                .map_or_else(|| default_mss(syn.ip.is_v6()), u64::from),
            passes: options.mptcp || syn.payload_len > 0 || small,
        }
    }

    /// A SYN with data tells a window that is right scaled too, as Linux reads it, and has room for an answer of 64 bytes.
    fn window_of_syn(&self, has_data: bool) -> u16 {
        let scaled = self.window >> self.scale.unwrap_or(0);
        if has_data {
            scaled.max(64).min(self.window)
        } else {
            self.window
        }
    }
}

/// What a connection has beside that the proxy opens.
#[derive(Debug)]
pub(crate) struct Asking {
    offer: Offer,
    /// SYNs of the proxy's, answered or not.
    syns: u32,
    /// The client has shown by a data ACK that it has the keys.
    confirmed: bool,
    /// When it had, in microseconds.
    confirmed_at: Option<u64>,
    /// It takes joins at its address (flag C).
    joinable: bool,
    /// It is an aggregation server, which is to connect on.
    pub(crate) errand: Option<Box<Errand>>,
    /// Peers that were asked before it for the same connection of the end with TCP.
    pub(crate) tried: Vec<SocketAddr>,
    /// Another peer has been asked in its place.
    pub(crate) left: bool,
    /// The end with TCP has been reset.
    pub(crate) told: bool,
    /// What it was told first of the peer's MSS.
    mss_told: Option<u64>,
}

impl Asking {
    const fn new(offer: Offer, tried: Vec<SocketAddr>) -> Self {
        Self {
            offer,
            syns: 0,
            confirmed: false,
            confirmed_at: None,
            joinable: true,
            errand: None,
            tried,
            left: false,
            told: false,
            mss_told: None,
        }
    }

    /// What the end with TCP has offered.
    pub(crate) const fn offer(&self) -> Offer {
        self.offer
    }
}

/// The key of a SYN/ACK that the proxy can go on with.
fn key_of(capable: Option<MpCapable>) -> Option<u64> {
    let capable = capable?;
    let CapableKeys::SynAck { sender } = capable.keys else {
        return None;
    };
    // Apart from what it answers, it is held to what a SYN is.
    let asks = MpCapable {
        keys: CapableKeys::Syn,
        ..capable
    };
    is_honoured(asks).then_some(sender)
}

impl Subflow {
    /// From the proxy's SYN.
    pub(crate) fn asked(syn: &View<'_>) -> Self {
        let nonce = match syn.options.join {
            Some(MpJoin::Syn { nonce, .. }) => Some(nonce),
            _ => None,
        };
        let mut subflow = Self::new(syn);
        subflow.client = syn.destination();
        subflow.isn_client = 0;
        subflow.isn_proxy = Some(syn.tcp.seq);
        subflow.nonces = (None, nonce);
        subflow.proxy_scale = subflow.window_scale;
        subflow.window_scale = 0;
        subflow.capable = None;
        subflow.mss = u64::MAX;
        subflow.client_clock = crate::clock::Sent::default();
        subflow
    }

    /// What the client's SYN/ACK settles.
    fn agreed(&mut self, syn_ack: &View<'_>) {
        let options = &syn_ack.options;
        self.isn_client = syn_ack.tcp.seq;
        let scales = self.scales && options.window_scale.is_some();
        self.window_scale = options.scale().filter(|_| scales).unwrap_or(0);
        if !scales {
            self.proxy_scale = 0;
        }
        self.scales = scales;
        self.sack &= options.sack_permitted;
        self.timestamps &= options.timestamps.is_some();
        self.mss = options
            .mss
            .map_or_else(|| default_mss(syn_ack.ip.is_v6()), u64::from);
    }
}

impl Connection {
    /// Whether a SYN of the proxy's offers what the end with TCP does, whatever its number.
    pub(crate) fn offers_the_same(&self, syn: &View<'_>) -> bool {
        let Some(asking) = &self.asking else {
            return false;
        };
        let (own, offered) = (Offer::new(syn), asking.offer);
        let alike = Offer {
            isn: own.isn,
            window: own.window,
            tsval: own.tsval,
            passes: own.passes,
            ..offered
        };
        let known = own.tsval.is_none_or(|val| self.server_clock.has(val));
        own == alike && own.tsval.is_some() == offered.tsval.is_some() && known
    }

    /// What the offer of the end with TCP settles.
    pub(crate) fn note_offer(&mut self, offer: Offer, tried: Vec<SocketAddr>) {
        self.down.isn = offer.isn;
        self.up.widest = offer.window.into();
        self.up.edge = ORIGIN + self.up.widest;
        if let Some(tsval) = offer.tsval {
            self.server_clock.note(tsval);
        }
        self.asking = Some(Asking::new(offer, tried));
    }

    /// A SYN of the proxy's for subflow `index`.
    pub(crate) fn judge_asking(
        &mut self,
        index: usize,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) {
        let same = self.subflows[index].isn_proxy == Some(packet.tcp.seq);
        report.expect(same, Rule::StableMapping, || {
            "a SYN with another number than before".into()
        });
        if let Some(timestamps) = packet.options.timestamps {
            let known = self.server_clock.has(timestamps.val);
            report.expect(known, Rule::Timestamps, || {
                format!("TSval {} that the server has not sent", timestamps.val)
            });
        }
        if index > 0 {
            self.judge_join_syn(index, packet, report);
            return;
        }
        self.judge_errand_syn(packet, report);
        let answered = self.server_answered;
        let plain = self.mode == Mode::Plain;
        let number = self
            .asking
            .as_ref()
            .map(|it| self.offered_number(&it.offer));
        let Some(asking) = &mut self.asking else {
            return;
        };
        asking.syns += 1;
        let capable = packet.options.capable;
        let asks = capable.is_some_and(is_honoured);
        let wants = asking.syns <= ASKING_SYNS || answered;
        // The answer may have come to the capture when the third SYN was on its way out.
        let crosses = answered && self.lag > 0;
        report.expect(plain || asks == wants || crosses, Rule::Plain, || {
            format!("SYN {}: MP_CAPABLE {capable:?}", asking.syns)
        });
        let offers = Offer {
            passes: false,
            tsval: asking.offer.tsval,
            ..Offer::new(packet)
        };
        let asked = Offer {
            isn: number.unwrap_or(asking.offer.isn),
            window: asking.offer.window_of_syn(packet.payload_len > 0),
            ..asking.offer
        };
        let same =
            offers == asked && asking.offer.tsval.is_some() == packet.options.timestamps.is_some();
        report.expect(same, Rule::Translation, || {
            format!("{offers:?} is asked for, not {:?}", asking.offer)
        });
    }

    fn judge_join_syn(&self, index: usize, packet: &View<'_>, report: &mut Report<'_>) {
        let Some(MpJoin::Syn { nonce, .. }) = packet.options.join else {
            report.add(Rule::Join, "the SYN of a join without MP_JOIN");
            return;
        };
        let same = self.subflows[index].nonces.1 == Some(nonce);
        report.expect(same, Rule::Join, || "a join with another nonce".into());
        let asking = self.asking.as_ref();
        let may = asking.is_some_and(|asking| asking.confirmed && asking.joinable);
        report.expect(may && self.mode == Mode::Translated, Rule::Join, || {
            format!("a join that the client can't take: {asking:?}")
        });
    }

    /// A SYN/ACK of the client's on subflow `index`.
    pub(crate) fn note_answer_to_asking(&mut self, index: usize, packet: &View<'_>) {
        let subflow = &self.subflows[index];
        let isn = subflow.isn_proxy.map(|isn| isn.wrapping_add(1));
        let (acks, carried) = (packet.has(TcpFlags::ACK), self.said_in_syn());
        let behind = isn.map(|isn| isn.wrapping_add(carried));
        let taken = index == 0 && carried > 0 && Some(packet.tcp.ack) == behind;
        let acks = acks && (Some(packet.tcp.ack) == isn || taken);
        if !acks || subflow.replied || subflow.reset || subflow.refused {
            return;
        }
        if index > 0 {
            self.note_join_answer(index, packet);
            return;
        }
        self.subflows[0].replied = true;
        self.subflows[0].agreed(packet);
        self.up.isn = packet.tcp.seq;
        self.down.edge = ORIGIN + u64::from(packet.tcp.window);
        self.down.widest = packet.tcp.window.into();
        self.server_answered = true;
        let key = key_of(packet.options.capable);
        let flags = packet.options.capable.map_or(0, |capable| capable.flags.0);
        let Some(asking) = &mut self.asking else {
            return;
        };
        let (offer, options) = (asking.offer, &packet.options);
        asking.joinable = flags & CapableFlags::NO_JOIN_INITIAL.0 == 0;
        self.server_scales = offer.scale.is_some() && options.window_scale.is_some();
        self.server_scale = offer.scale.filter(|_| self.server_scales).unwrap_or(0);
        self.server_sack = offer.sack && options.sack_permitted;
        self.server_timestamps = offer.tsval.is_some() && options.timestamps.is_some();
        self.server_mss = offer.mss;
        self.client_key = key;
        match key {
            Some(key) => self.up.idsn = keys::idsn(key),
            None => self.mode = Mode::Plain,
        }
        self.note_errand_answered(taken, packet);
    }

    /// The proxy opened it, the peer takes no joins, and no subflow is left: nothing brings the connection back.
    pub(crate) fn is_cut_off(&self) -> bool {
        let asking = self.asking.as_ref();
        asking.is_some_and(|asking| !asking.joinable)
            && !self.subflows.iter().any(Subflow::may_live)
    }

    fn note_join_answer(&mut self, index: usize, packet: &View<'_>) {
        let known = self.client_key.zip(self.proxy_key);
        let own = self.subflows[index].nonces.1;
        let proves = match (packet.options.join, known, own) {
            (Some(MpJoin::SynAck { hmac, nonce, .. }), Some(both), Some(own)) => {
                self.subflows[index].nonces.0 = Some(nonce);
                hmac == keys::join_syn_ack(both, (nonce, own))
            }
            _ => false,
        };
        let subflow = &mut self.subflows[index];
        if proves {
            subflow.replied = true;
            subflow.agreed(packet);
        } else {
            subflow.note_unproved();
        }
    }

    /// Whether a packet of the client's on subflow `index` counts: it has answered there, and the proxy may take it for joined.
    pub(crate) fn hears_client(&mut self, index: usize, packet: &View<'_>) -> bool {
        let Some(asking) = &mut self.asking else {
            return true;
        };
        let subflow = &mut self.subflows[index];
        if index > 0 && !subflow.established {
            let isn = subflow.isn_proxy.map(|isn| isn.wrapping_add(1));
            let acks = packet.has(TcpFlags::ACK) && Some(packet.tcp.ack) == isn;
            subflow.established =
                acks && subflow.replied && !subflow.is_reset() && !subflow.refused;
            let age = self.last_packet.saturating_sub(subflow.asked_at());
            subflow.given_up = age >= JOIN_IN_VAIN;
        }
        let hears = subflow.replied && (index == 0 || subflow.established);
        let translated = self.mode == Mode::Translated;
        asking.confirmed |= hears && translated && packet.options.data_ack().is_some();
        hears
    }

    /// The time of the packet in hand, where it has shown that the client has the keys.
    pub(crate) fn note_confirmed(&mut self, time: u64) {
        if let Some(asking) = self.asking.as_mut().filter(|asking| asking.confirmed) {
            asking.confirmed_at.get_or_insert(time);
        }
    }

    /// How far the times of a capture may be from those at which the proxy acts, in microseconds.
    pub(crate) const fn slack(&self) -> u64 {
        if self.lag > 0 { IN_HAND } else { 0 }
    }

    /// Whether the proxy has to answer a packet of the client's on a join: the proof of one of the client's, or the answer to one of
    /// its own, which it has to prove then.
    pub(crate) fn owes_proof(&self, index: usize, packet: &View<'_>, proved: bool) -> bool {
        let subflow = &self.subflows[index];
        if self.asking.is_none() {
            return subflow.established && !proved;
        }
        packet.has(TcpFlags::SYN) && subflow.replied && !subflow.spoken && !subflow.reset
    }

    /// Whether the client has fallen back, and the proxy perhaps has: nothing has shown that yet.
    pub(crate) const fn may_relay_plain(&self) -> bool {
        self.asking.is_some() && self.may_fall_back && self.is_identity()
    }

    /// The end with TCP says that it has the SYN/ACK: from here on packets are translated.
    pub(crate) fn note_opener(&mut self, packet: &View<'_>) {
        if self.asking.is_none() || self.mode != Mode::Handshake || self.client_key.is_none() {
            return;
        }
        let ahead = packet.tcp.seq.wrapping_sub(self.down.isn).wrapping_sub(1);
        let acks = packet.tcp.ack == self.up.isn.wrapping_add(1);
        if acks && ahead <= u32::from(u16::MAX) {
            self.mode = Mode::Translated;
            self.subflows[0].established = true;
        }
    }

    /// The SYN/ACK to the end with TCP: the client's, with room for a DSS, and nothing of MPTCP.
    pub(crate) fn judge_reply(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let options = &packet.options;
        let next = self
            .down
            .isn
            .wrapping_add(low(self.down.lead))
            .wrapping_add(1);
        let acks = packet.has(TcpFlags::ACK) && packet.tcp.ack == next;
        self.judge_before_answer(report);
        report.expect(acks && self.server_answered, Rule::AckToServer, || {
            "SYN/ACK that acknowledges something else".into()
        });
        report.expect(!options.mptcp, Rule::Translation, || {
            "MPTCP in the SYN/ACK to the server".into()
        });
        let room = if self.mode == Mode::Plain { 0 } else { DSS };
        let default = default_mss(packet.ip.is_v6());
        let mss = options.mss.map_or(default, u64::from);
        let most = self.subflows[0].mss;
        // One that comes again, behind a fallback, says what the first one said.
        let before = self.asking.as_ref().and_then(|asking| asking.mss_told);
        let right = before.map_or(mss + room == most, |before| mss == before);
        report.expect(right, Rule::Size, || {
            format!("an MSS of {mss}, where the client's is {most}")
        });
        if let Some(asking) = &mut self.asking {
            asking.mss_told.get_or_insert(mss);
        }
        let scale = self.subflows[0].window_scale;
        let same = options.sack_permitted == self.server_sack
            && options.timestamps.is_some() == self.server_timestamps
            && options.scale().unwrap_or(0) == scale;
        report.expect(same, Rule::Translation, || {
            format!("SYN/ACK with other options than the client's: {options:?}")
        });
    }

    /// The keys, and proofs of joins, that the proxy sends on subflow `index`. Whether the packet carries such.
    pub(crate) fn judge_keys(
        &mut self,
        index: usize,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) -> bool {
        let Some(asking) = &self.asking else {
            return false;
        };
        let confirmed = asking.confirmed;
        let known = asking
            .confirmed_at
            .map_or(0, |at| report.time.saturating_sub(at));
        let unread = self.lag > 0 && known <= self.slack();
        if let Some(join) = packet.options.join {
            self.judge_proof_out(index, join, report);
            return true;
        }
        let (len, start) = (packet.payload_len, self.down.at_seq(packet.tcp.seq));
        match packet.options.capable.map(|capable| capable.keys) {
            None => {
                let dss = packet.options.dss;
                let fin = dss.is_some_and(|dss| dss.data_fin) || packet.has(TcpFlags::FIN);
                let first = index == 0 && start == ORIGIN && !fin && !confirmed;
                // Whatever comes before them the client takes for TCP.
                let owed = (first || self.proxy_key.is_none()) && !self.may_fall_back;
                report.expect(!owed, Rule::StableMapping, || {
                    format!(
                        "a packet at {} without the keys",
                        start.wrapping_sub(ORIGIN)
                    )
                });
                false
            }
            Some(
                CapableKeys::Ack { sender, receiver }
                | CapableKeys::AckData {
                    sender, receiver, ..
                },
            ) => {
                let declared = self.mapping_of_keys(packet);
                let within =
                    declared.is_some_and(|first| start >= first.at && start + len <= first.end());
                let placed = index == 0 && (start == ORIGIN || within);
                report.expect(
                    placed && (!confirmed || unread),
                    Rule::StableMapping,
                    || format!("the keys on subflow {index}, confirmed: {confirmed}"),
                );
                let right = Some(receiver) == self.client_key
                    && self.proxy_key.is_none_or(|key| key == sender);
                report.expect(right, Rule::StableMapping, || {
                    format!("other keys: {sender:016x}, {receiver:016x}")
                });
                self.proxy_key = Some(sender);
                self.down.idsn = keys::idsn(sender);
                let whole = declared.is_none_or(|mapping| len <= mapping.len);
                report.expect(
                    whole && (len == 0 || declared.is_some()),
                    Rule::Size,
                    || format!("{len} bytes with the keys, under {declared:?}"),
                );
                true
            }
            Some(keys) => {
                report.add(Rule::StableMapping, format!("MP_CAPABLE with {keys:?}"));
                true
            }
        }
    }

    fn judge_proof_out(&self, index: usize, join: MpJoin, report: &mut Report<'_>) {
        let both = self.proxy_key.zip(self.client_key);
        let subflow = &self.subflows[index];
        let (client, proxy) = subflow.nonces;
        let expected = both.zip(proxy.zip(client));
        let expected = expected.map(|(keys, nonces)| keys::join_ack(keys, nonces));
        let right = matches!(join, MpJoin::Ack { hmac } if Some(hmac) == expected);
        report.expect(right && subflow.replied && index > 0, Rule::Join, || {
            format!("a proof that is none on subflow {index}: {join:?}")
        });
    }

    /// I18: an address is withdrawn that the proxy has lost. Of a capture that is all that tells that it is.
    pub(crate) fn judge_withdrawal(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let Some(remove) = packet.options.remove_addr.filter(|_| self.asking.is_some()) else {
            return;
        };
        if self.lag > 0 {
            let withdrawn = |subflow: &&mut Subflow| remove.ids().contains(&subflow.address_id());
            let all = self.subflows.iter_mut().filter(withdrawn);
            all.for_each(|subflow| subflow.lost = true);
        }
        let lost = |id: u8| {
            let mut subflows = self.subflows.iter();
            subflows.any(|subflow| subflow.lost && subflow.address_id() == id)
        };
        let known = remove.ids().iter().all(|id| lost(*id));
        report.expect(known, Rule::Announcement, || {
            format!("addresses {:?} are withdrawn, and not lost", remove.ids())
        });
    }

    /// The mapping that stands in the place of a DSS beside the keys.
    pub(crate) fn mapping_of_keys(&self, packet: &View<'_>) -> Option<Mapping> {
        let keys = packet.options.capable.map(|capable| capable.keys);
        let Some(CapableKeys::AckData { data_len, .. }) = keys.filter(|_| self.asking.is_some())
        else {
            return None;
        };
        Some(Mapping {
            at: ORIGIN,
            to: ORIGIN,
            len: data_len.into(),
        })
    }

    /// Whether the proxy may ask for another join from the same address as one that it asked for at `before`, which is subflow
    /// `index`; `anew`: its uplinks have changed since.
    pub(crate) fn judge_join_again(
        &self,
        index: usize,
        (before, anew): (u64, bool),
        report: &mut Report<'_>,
    ) {
        let subflow = &self.subflows[index];
        let silent = self.lag > 0 && report.time.saturating_sub(subflow.heard_at()) >= LOST;
        let gone = subflow.reset || subflow.lost || silent;
        let ended = subflow.client_fin.is_some() || subflow.has_sent_fin();
        let lives = subflow.has_joined() && !gone && !ended;
        report.expect(!lives, Rule::Join, || {
            format!("a join from where subflow {index} lives")
        });
        let pause = report.time - before;
        let anew = anew || self.lag > 0 && subflow.lost;
        let long = pause + self.slack() >= JOIN_PAUSE;
        report.expect(long || anew, Rule::Join, || {
            format!("a join {pause} us after subflow {index} was asked for")
        });
    }
}
