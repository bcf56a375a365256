//! ACKs that a later packet makes superfluous.
//!
//! An ACK is cumulative: where it still waits to be sent when a later packet of its flow says all that it says, nobody
//! misses it. That is so for the TCP ACK and for the data ACK, not for an ACK that is an answer, or that its receiver
//! counts: a duplicate (RFC 5681 section 2), one with SACK blocks, ECN's echo. Nor does the duplicate say what the
//! first one does: without that it would count as the first.

use flexcp_wire::{
    DataNumber, Dss, IpHeader, MptcpOption, TcpFlags, TcpHeader, TcpOption, TcpOptions, TcpSeq,
    Timestamps, protocol,
};

/// Bits of the traffic class that say that the packet met congestion (RFC 3168).
const CE: u8 = 3;

/// Whether `later` says all that `earlier` says, both IP packets as they are to be sent, one behind the other, and
/// `earlier` a [new ACK](crate::Frame::is_new_ack).
#[must_use]
pub fn supersedes(later: &[u8], earlier: &[u8]) -> bool {
    let (Some(later), Some(earlier)) = (Said::by(later), Said::by(earlier)) else {
        return false;
    };
    earlier.is_ack_alone() && earlier.is_said_by(&later)
}

/// What a packet says beside its payload.
struct Said<'a> {
    ip: IpHeader,
    tcp: TcpHeader,
    options: &'a [u8],
    /// Behind the headers.
    payload: usize,
}

/// Those of a packet's options that an ACK alone may have.
#[derive(Default)]
struct AckOptions {
    timestamps: Option<Timestamps>,
    data_ack: Option<DataNumber>,
    /// There are others.
    others: bool,
}

impl<'a> Said<'a> {
    fn by(packet: &'a [u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        if ip.protocol != protocol::TCP {
            return None;
        }
        let segment = packet.get(ip.header_len..ip.total_len)?;
        let (tcp, options) = TcpHeader::parse(segment).ok()?;
        Some(Self {
            payload: segment.len() - tcp.header_len,
            ip,
            tcp,
            options,
        })
    }

    fn is_ack_alone(&self) -> bool {
        self.payload == 0 && self.tcp.flags == TcpFlags::ACK && self.ip.traffic_class & CE != CE
    }

    /// It may count as a duplicate of `earlier`: it has no data and no FIN.
    fn may_duplicate(&self, earlier: &Self) -> bool {
        self.tcp.ack == earlier.tcp.ack
            && self.payload == 0
            && !self.tcp.flags.contains(TcpFlags::FIN)
    }

    fn is_said_by(&self, later: &Self) -> bool {
        let ends = |said: &Self| {
            (
                said.ip.src,
                said.tcp.src_port,
                said.ip.dst,
                said.tcp.dst_port,
            )
        };
        let newer = |this: u32, than: u32| !TcpSeq(this).before(TcpSeq(than));
        ends(self) == ends(later)
            && later.tcp.flags.contains(TcpFlags::ACK)
            && !later.tcp.flags.intersects(TcpFlags::SYN | TcpFlags::RST)
            && newer(later.tcp.ack, self.tcp.ack)
            && newer(later.tcp.seq, self.tcp.seq)
            && !later.may_duplicate(self)
            && self.options().are_in(&later.options())
    }

    fn options(&self) -> AckOptions {
        let mut known = AckOptions::default();
        for option in TcpOptions::new(self.options) {
            match option {
                Ok(TcpOption::Timestamps(timestamps)) => known.timestamps = Some(timestamps),
                Ok(TcpOption::Mptcp(MptcpOption::Dss(dss))) => known.take(&dss),
                _ => known.others = true,
            }
        }
        known
    }
}

impl AckOptions {
    fn take(&mut self, dss: &Dss) {
        self.data_ack = dss.data_ack;
        self.others |= dss.mapping.is_some();
    }

    fn are_in(&self, later: &Self) -> bool {
        let acked = match (self.data_ack, later.data_ack) {
            (None, _) => true,
            (Some(this), Some(later)) => !low(later).before(low(this)),
            (Some(_), None) => false,
        };
        let stamped = self.timestamps.is_none() || later.timestamps.is_some();
        !self.others && acked && stamped
    }
}

/// Data ACKs of one flow, sent together, lie near each other.
const fn low(number: DataNumber) -> TcpSeq {
    match number {
        DataNumber::Short(low) => TcpSeq(low),
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        DataNumber::Long(number) => TcpSeq(number as u32),
    }
}
