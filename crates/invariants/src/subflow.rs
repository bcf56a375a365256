//! One subflow as it can be told from its packets.

use std::net::SocketAddr;

use flexcp_wire::{MpCapable, MpJoin, TcpFlags};

use crate::causes::Signs;
use crate::clock::Sent;
use crate::mapping::Mappings;
use crate::packet::View;
use crate::position::{ORIGIN, from_seq};
use crate::ranges::Ranges;

/// One subflow. Positions are its own: the first byte after the SYN stands at the origin.
#[derive(Debug)]
pub(crate) struct Subflow {
    /// The client's end.
    pub(crate) client: SocketAddr,
    pub(crate) isn_client: u32,
    /// What its SYN asked for.
    pub(crate) capable: Option<MpCapable>,
    /// The proxy's; known from its SYN/ACK on.
    pub(crate) isn_proxy: Option<u32>,
    /// Those of its answers to the same SYN before that, of joins that it has forgotten since.
    pub(crate) forgotten: Vec<u32>,
    /// The client has answered the proxy's SYN on it, and a join's answer proves its keys.
    pub(crate) replied: bool,
    /// The client has proved its keys on it.
    pub(crate) established: bool,
    /// The proxy has sent something beside its SYN/ACK: it takes the subflow for established.
    pub(crate) spoken: bool,
    /// How many joins of the connection the proxy had answered when it answered this one.
    pub(crate) turn: u64,
    /// Nonces of a join (RFC 8684 section 3.2): the client's and the proxy's.
    pub(crate) nonces: (Option<u32>, Option<u32>),
    /// The proxy has lost its address there since it has begun.
    pub(crate) lost: bool,
    /// The peer was heard on it for the first time when the proxy may have given it up.
    pub(crate) given_up: bool,
    /// RST seen in either direction.
    pub(crate) reset: bool,
    /// The proxy's, or one of the client's that ends a join: no third packet can complete the join any more.
    pub(crate) refused: bool,

    pub(crate) scales: bool,
    /// Shift of the windows that the client offers.
    pub(crate) window_scale: u8,
    /// Shift of the windows that the proxy offers.
    pub(crate) proxy_scale: u8,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    /// Payload and options that the client takes in one segment.
    pub(crate) mss: u64,

    /// What the client has declared, and what the proxy has.
    pub(crate) up: Mappings,
    pub(crate) down: Mappings,
    /// Behind what the client has sent.
    pub(crate) client_sent: u64,
    pub(crate) client_fin: Option<u64>,
    /// Behind what the proxy has sent.
    pub(crate) proxy_sent: u64,
    /// The numbers that it has used, FIN counted; noted among hostile ends.
    pub(crate) carried: Ranges,
    /// What the client has acknowledged.
    pub(crate) client_ack: u64,
    /// What the proxy has acknowledged.
    pub(crate) ack_out: u64,
    /// Right edge of the window that the proxy offered last, in data positions.
    pub(crate) edge_out: Option<u64>,
    /// TSvals of the client's, and the latest of the proxy's as the server's clock counts.
    pub(crate) client_clock: Sent,
    pub(crate) last_tsval_out: Option<u64>,
    pub(crate) signs: Signs,
}

/// MSS of a peer that does not say (RFC 9293 section 3.7.1).
pub(crate) const fn default_mss(is_v6: bool) -> u64 {
    if is_v6 { 1220 } else { 536 }
}

impl Subflow {
    /// From the client's SYN.
    pub(crate) fn new(syn: &View<'_>) -> Self {
        let options = &syn.options;
        let mut client_clock = Sent::default();
        if let Some(timestamps) = options.timestamps {
            client_clock.note(timestamps.val);
        }
        let mut subflow = Self {
            client: syn.source(),
            isn_client: syn.tcp.seq,
            capable: options.capable,
            isn_proxy: None,
            forgotten: Vec::new(),
            replied: false,
            established: false,
            spoken: false,
            turn: 0,
            nonces: (
                match options.join {
                    Some(MpJoin::Syn { nonce, .. }) => Some(nonce),
                    _ => None,
                },
                None,
            ),
            lost: false,
            given_up: false,
            reset: false,
            refused: false,
            scales: options.window_scale.is_some(),
            window_scale: options.scale().unwrap_or(0),
            proxy_scale: 0,
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
            mss: options
                .mss
                .map_or_else(|| default_mss(syn.ip.is_v6()), u64::from),
            up: Mappings::default(),
            down: Mappings::default(),
            client_sent: ORIGIN,
            client_fin: None,
            proxy_sent: ORIGIN,
            carried: Ranges::new(),
            client_ack: ORIGIN,
            ack_out: ORIGIN,
            edge_out: None,
            client_clock,
            last_tsval_out: None,
            signs: Signs::default(),
        };
        subflow.note_opening(syn);
        subflow
    }

    /// What the SYN/ACK settles.
    pub(crate) fn answered(&mut self, syn_ack: &View<'_>) {
        let options = &syn_ack.options;
        self.forgotten.extend(self.isn_proxy);
        self.isn_proxy = Some(syn_ack.tcp.seq);
        // A join that was refused and came again.
        (self.refused, self.reset) = (false, false);
        if let Some(MpJoin::SynAck { nonce, .. }) = options.join {
            self.nonces.1 = Some(nonce);
        }
        let scales = self.scales && options.window_scale.is_some();
        self.proxy_scale = options.scale().filter(|_| scales).unwrap_or(0);
        if !scales {
            self.window_scale = 0;
        }
        self.sack &= options.sack_permitted;
        self.timestamps &= options.timestamps.is_some();
    }

    /// The same client's SYN comes again, and the proxy has forgotten what it answered before.
    pub(crate) fn replaces(&mut self, before: &Self) {
        if self.isn_client == before.isn_client {
            self.forgotten.clone_from(&before.forgotten);
            self.forgotten.extend(before.isn_proxy);
        }
    }

    /// Whether a packet answers a SYN/ACK that the proxy has forgotten: its sender is honest, and the proxy can do
    /// nothing with it.
    pub(crate) fn answers_forgotten(&self, packet: &View<'_>) -> bool {
        let known = |isn: &u32| packet.tcp.ack == isn.wrapping_add(1);
        packet.has(TcpFlags::ACK) && self.forgotten.iter().any(known)
    }

    /// Whether a join has come about: its client has proved its keys, and the proxy has answered that.
    pub(crate) const fn has_joined(&self) -> bool {
        self.established && self.spoken
    }

    /// Position of a number of the client's.
    pub(crate) fn up_at(&self, seq: u32) -> u64 {
        from_seq(seq, self.isn_client, self.client_sent)
    }

    /// Position of a number of the proxy's.
    pub(crate) fn down_at(&self, seq: u32) -> u64 {
        from_seq(seq, self.isn_proxy.unwrap_or(0), self.proxy_sent)
    }
}
