//! The faults there are, as plain data.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use crate::class::{Class, OptionKind};

/// A list of faults, met in order; its text form is separated by commas.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Faults(pub Vec<Fault>);

/// One fault on one direction of a link.
///
/// Times of schedules count from the moment when the list was put in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Each packet is lost with this probability: `loss=1%`.
    Loss(Ppm),
    /// Losses come in bursts: `burst=1%:25%`.
    Burst(GilbertElliott),
    /// Some packets of a class are lost, counted from the first: `drop=1:syn-ack`.
    Drop(DropNth),
    /// Every packet takes that long: `delay=20ms`.
    Delay(Duration),
    /// Every packet takes a random time more: `jitter=5ms`, `jitter=5ms:reorder`.
    Jitter(Jitter),
    /// Some packets take longer and are overtaken: `reorder=10%:5ms`, `reorder=every5:5ms`.
    Reorder(Reorder),
    /// Each packet comes twice with this probability: `duplicate=1%`.
    Duplicate(Ppm),
    /// A bit that is 0 becomes 1: `corrupt=0.1%`, `corrupt=0.1%:header`, `corrupt=0.1%:payload:fixed`.
    Corrupt(Corrupt),
    /// A bottleneck with a queue: `rate=50mbit:100kb`.
    Rate(Rate),
    /// Everything is lost between two moments: `blackhole=2s..5s`, `blackhole=2s..`.
    Blackhole {
        /// From then on.
        from: Duration,
        /// Until then; `None`: for good.
        until: Option<Duration>,
    },
    /// Everything is lost at the end of each period: `flap=2s:500ms` (up 1.5 s, down 0.5 s).
    Flap {
        /// Length of a period; not zero.
        period: Duration,
        /// How long it is down in each.
        down: Duration,
    },
    /// TCP options are overwritten by NOPs: `strip=mptcp@syn-ack`, `strip=dss@data#100`.
    Strip(Strip),
    /// SYNs and SYN+ACKs that have a window scale get this one: `wscale=3`.
    WindowScale(u8),
    /// SYNs and SYN+ACKs get at most this maximum segment size: `mss=1200`.
    MssClamp(u16),
    /// That much is added to TSval, and taken from TSecr on the way back: `shift-ts=1000`.
    TimestampShift(u32),
    /// A second copy of an option is put behind the others, where it fits: `double=mptcp@syn`.
    DoubleOption {
        /// The option.
        option: OptionKind,
        /// In which packets.
        class: Class,
    },
    /// Segments with more payload than this are cut there, options copied to both: `resegment=500`,
    /// `resegment=500:10%`.
    Resegment {
        /// Bytes of payload in the first half; not 0.
        offset: u16,
        /// Which share of the segments.
        chance: Ppm,
    },
    /// Adjacent segments with the same options are joined: `coalesce=1ms:1500`.
    Coalesce(Coalesce),
    /// Source addresses and ports are rewritten: `nat`, `nat=192.0.2.1+every30s+at2s`.
    Nat(Nat),
    /// Sequence numbers are shifted by an amount drawn per connection, as firewalls do: `isn`.
    ///
    /// For connections whose SYN passes; the acknowledgments on the way back are put right.
    IsnRandomiser,
    /// Packets of ECN-capable transports get CE with this probability (RFC 3168): `ce=10%`.
    CeMark(Ppm),
}

/// A probability in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Certainty.
    pub const ALWAYS: Self = Self(1_000_000);

    /// From whole percents.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }
}

/// The Gilbert-Elliott model: a good and a bad state, each with its own loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GilbertElliott {
    /// Probability, per packet, to go from good to bad.
    pub enter: Ppm,
    /// Probability, per packet, to go from bad to good: 1 / mean length of a burst.
    pub leave: Ppm,
    /// Loss in the bad state (usually all).
    pub bad: Ppm,
    /// Loss in the good state (usually none).
    pub good: Ppm,
}

/// Packets number `first` to `last` (from 1, both included) of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropNth {
    /// Number of the first one to be lost.
    pub first: u32,
    /// Number of the last one.
    pub last: u32,
    /// Which packets are counted.
    pub class: Class,
}

/// Random additional delay, uniform from 0 to `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter {
    /// The largest.
    pub max: Duration,
    /// Packets may overtake each other.
    pub reorder: bool,
}

/// Packets that are held back and overtaken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reorder {
    /// Which ones.
    pub which: Which,
    /// For how long.
    pub extra: Duration,
}

/// A choice among packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Each with this probability.
    Chance(Ppm),
    /// Every n-th; not 0.
    Every(u32),
}

/// One flipped bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// Probability, per packet.
    pub chance: Ppm,
    /// Where the bit is; packets that have no such place are left alone.
    pub place: Place,
    /// The TCP checksum is made right again, so that the receiver can't tell.
    pub fixed: bool,
}

/// A part of a TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// TCP payload.
    Payload,
    /// TCP header with options, without the checksum field.
    Header,
}

/// A bottleneck: packets leave one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// IP bits per second; not 0.
    pub bits_per_second: u64,
    /// IP bytes that may wait, the packet on the wire included; one packet always may.
    pub queue_bytes: u64,
}

/// TCP options to be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strip {
    /// Which options.
    pub option: OptionKind,
    /// From which packets.
    pub class: Class,
    /// From the n-th packet of the class on, from 1.
    pub from: u32,
}

/// GRO-like joining of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coalesce {
    /// How long a segment waits for the next one.
    pub wait: Duration,
    /// Most IP bytes of a joined packet.
    pub max_len: u16,
}

/// Network address translation of sources; the way back is undone on the other path of the pair.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Nat {
    /// Public IPv4 address; `None`: it stays, the port alone changes.
    pub v4: Option<Ipv4Addr>,
    /// Public IPv6 address; `None`: it stays, the port alone changes.
    pub v6: Option<Ipv6Addr>,
    /// All mappings are forgotten that often.
    pub every: Option<Duration>,
    /// All mappings are forgotten then; in order.
    pub at: Vec<Duration>,
}
