//! Which packets, and which TCP options, a fault is for.

use flexcp_wire::{Subtype, TcpFlags, kind};

use crate::packet::{RawOption, Segment, raw_options};

/// A kind of packet. All but [`Any`](Self::Any) are TCP segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Every packet, TCP or not.
    Any,
    /// SYN without ACK.
    Syn,
    /// SYN with ACK.
    SynAck,
    /// With payload.
    Data,
    /// Neither payload nor SYN, FIN or RST.
    Ack,
    /// FIN.
    Fin,
    /// RST.
    Rst,
    /// With this option.
    With(OptionKind),
}

impl Class {
    /// Whether `packet` is of this class; `segment` is what was found in it.
    #[must_use]
    pub(crate) fn matches(self, packet: &[u8], segment: Option<&Segment>) -> bool {
        let Some(segment) = segment else {
            return self == Self::Any;
        };
        let flags = segment.tcp.flags;
        let control = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        match self {
            Self::Any => true,
            Self::Syn => flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK),
            Self::SynAck => flags.contains(TcpFlags::SYN | TcpFlags::ACK),
            Self::Data => !segment.payload().is_empty(),
            Self::Ack => segment.payload().is_empty() && !flags.intersects(control),
            Self::Fin => flags.contains(TcpFlags::FIN),
            Self::Rst => flags.contains(TcpFlags::RST),
            Self::With(option) => {
                raw_options(packet, segment).any(|found| option.matches(packet, &found))
            }
        }
    }
}

/// A kind of TCP option.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OptionKind {
    /// Options with this kind byte.
    Kind(u8),
    /// MPTCP options with this subtype (lower four bits count).
    Mptcp(u8),
}

impl OptionKind {
    /// MPTCP options of every subtype.
    pub const MPTCP: Self = Self::Kind(kind::MPTCP);

    pub(crate) fn matches(self, packet: &[u8], option: &RawOption) -> bool {
        let bytes = &packet[option.range()];
        match self {
            Self::Kind(kind) => bytes[0] == kind,
            Self::Mptcp(subtype) => {
                bytes[0] == kind::MPTCP && bytes.get(2).is_some_and(|byte| byte >> 4 == subtype)
            }
        }
    }

    /// Its name in fault lists, when it has one.
    pub(crate) fn name(self) -> Option<&'static str> {
        let named = OPTION_NAMES.iter().find(|(_, option)| *option == self);
        named.map(|(name, _)| *name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let named = OPTION_NAMES.iter().find(|(known, _)| *known == name);
        named.map(|(_, option)| *option)
    }
}

impl From<Subtype> for OptionKind {
    fn from(subtype: Subtype) -> Self {
        Self::Mptcp(subtype as u8)
    }
}

pub(crate) const OPTION_NAMES: &[(&str, OptionKind)] = &[
    ("mptcp", OptionKind::MPTCP),
    ("mp-capable", OptionKind::Mptcp(0x0)),
    ("mp-join", OptionKind::Mptcp(0x1)),
    ("dss", OptionKind::Mptcp(0x2)),
    ("add-addr", OptionKind::Mptcp(0x3)),
    ("remove-addr", OptionKind::Mptcp(0x4)),
    ("mp-prio", OptionKind::Mptcp(0x5)),
    ("mp-fail", OptionKind::Mptcp(0x6)),
    ("mp-fastclose", OptionKind::Mptcp(0x7)),
    ("mp-tcprst", OptionKind::Mptcp(0x8)),
    ("mss", OptionKind::Kind(kind::MSS)),
    ("window-scale", OptionKind::Kind(kind::WINDOW_SCALE)),
    ("sack-permitted", OptionKind::Kind(kind::SACK_PERMITTED)),
    ("sack", OptionKind::Kind(kind::SACK)),
    ("timestamps", OptionKind::Kind(kind::TIMESTAMPS)),
    ("fast-open", OptionKind::Kind(kind::FAST_OPEN)),
];

pub(crate) const CLASS_NAMES: &[(&str, Class)] = &[
    ("any", Class::Any),
    ("syn", Class::Syn),
    ("syn-ack", Class::SynAck),
    ("data", Class::Data),
    ("ack", Class::Ack),
    ("fin", Class::Fin),
    ("rst", Class::Rst),
];
