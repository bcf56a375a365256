//! The life of a connection.
//!
//! ```text
//!                 SYN                SYN/ACK                 third ACK with keys
//!  (nothing) ───────────▶ SynSent ───────────▶ SynReceived ──────────────────────▶ Established ──▶ Closed
//!      │                     │                     │                                │       │
//!      │ SYN without         │ SYN again           │ without keys                   │       │ RST, MP_FASTCLOSE,
//!      │ MPTCP (reverse)     │ without MPTCP       ▼                     no DSS     │       ▼ idle, abandoned
//!      └─────────▶ Plain ◀───┘                  Fallback ◀──────────────────────────┘     Reset
//! ```
//!
//! `Plain` and `Fallback` become `Reset` when the translator ends. All leave the table in time; half-open ones soon.

use crate::time::Instant;

/// Life of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The SYN went to the TCP leg.
    SynSent,
    /// Its SYN/ACK went to the MPTCP leg, with FlexCP's key.
    SynReceived,
    /// The MPTCP peer has proved its keys: packets are translated.
    Established {
        /// Since when there is no subflow left.
        orphaned: Option<Instant>,
    },
    /// Plain TCP from the start; only addresses are translated.
    Plain(Relayed),
    /// MPTCP that has fallen back; as `Plain`.
    Fallback(Relayed),
    /// Both directions are closed and acknowledged; stragglers are answered until then.
    Closed(Instant),
    /// Reset; stragglers are answered with a reset until then.
    Reset(Instant),
}

/// What is known of a connection that is relayed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Relayed {
    /// Its client has ACKed what only the server's answer could tell it.
    pub(crate) proved: bool,
    /// The kernel forwards it by itself.
    pub(crate) passed_by: bool,
    /// The kernel would not: FlexCP forwards it to its end.
    pub(crate) kept: bool,
    /// Fallen back with data on their way, which the next packet would overtake if the kernel forwarded it by itself.
    pub(crate) midway: bool,
    /// An end has reset it; what still comes says that the other has not believed it.
    pub(crate) reset: bool,
    /// Fallen back because options do not come through on the way to FlexCP: the peer still wants data ACKs.
    pub(crate) wants_data_acks: bool,
}

impl Phase {
    /// Packets are translated, and nothing has ended.
    pub(crate) const fn is_established(self) -> bool {
        matches!(self, Self::Established { .. })
    }

    /// Both ends have closed it, or it is reset.
    pub(crate) const fn is_over(self) -> bool {
        matches!(self, Self::Closed(_) | Self::Reset(_))
    }

    /// Plain TCP from the start.
    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Both ends have closed, and what still comes of theirs is answered for some time more.
    pub(crate) fn lingers(self, now: Instant) -> bool {
        matches!(self, Self::Closed(until) if until > now)
    }

    /// Nothing but addresses is translated.
    pub(crate) const fn is_relayed(self) -> bool {
        matches!(self, Self::Plain(_) | Self::Fallback(_))
    }

    /// What is known while it is relayed; nothing yet in any other phase.
    pub(crate) fn relayed(self) -> Relayed {
        match self {
            Self::Plain(relayed) | Self::Fallback(relayed) => relayed,
            _ => Relayed::default(),
        }
    }

    /// The same, to be changed; `None` in any other phase.
    pub(crate) const fn relayed_mut(&mut self) -> Option<&mut Relayed> {
        match self {
            Self::Plain(relayed) | Self::Fallback(relayed) => Some(relayed),
            _ => None,
        }
    }

    /// None of its packets is on its way any more.
    pub(crate) const fn note_quiet(&mut self) {
        if let Some(relayed) = self.relayed_mut() {
            relayed.midway = false;
        }
    }

    /// Since when an established connection has had no subflow.
    pub(crate) const fn orphaned(self) -> Option<Instant> {
        match self {
            Self::Established { orphaned } => orphaned,
            _ => None,
        }
    }

    /// There is no subflow left, unless that is known.
    pub(crate) const fn note_orphaned(&mut self, now: Instant) {
        if let Self::Established { orphaned } = self
            && orphaned.is_none()
        {
            *orphaned = Some(now);
        }
    }

    /// There is a subflow again.
    pub(crate) const fn note_subflow(&mut self) {
        if let Self::Established { orphaned } = self {
            *orphaned = None;
        }
    }
}
