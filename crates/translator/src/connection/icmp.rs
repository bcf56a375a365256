//! ICMP errors about what FlexCP sent for a connection: whom they are for, in whose numbers.
//!
//! They are believed when they quote a sequence number that is in flight on their leg (RFC 5927 section
//! 4.1): nobody off the path knows it.

use flexcp_wire::{IcmpError, IcmpKind, Ssn, TcpSeq};

use super::handshake::DSS_LEN;
use super::{Connection, Context, INITIAL, Phase, SubflowIndex};
use crate::counters::DropReason;

/// No path has a smaller MTU than this: a claim of less would turn one packet into many. IPv4: what Linux
/// takes (`net.ipv4.route.min_pmtu`); IPv6: RFC 8200 section 5.
const MIN_MTU_V4: u32 = 552;
const MIN_MTU_V6: u32 = 1280;

/// What becomes of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcmpVerdict {
    /// It goes on to the source of the segment it then quotes.
    Forward(IcmpError),
    /// FlexCP has drawn its conclusions.
    Consume,
    /// The server can't be reached by a SYN.
    Refused,
    /// It is not believed.
    Drop(DropReason),
}

impl Connection {
    /// About a segment that went down on a subflow. A smaller MTU counts at once: what is too long is
    /// segmented from here on. The server hears of it too, with room left for a DSS.
    pub(crate) fn handle_icmp_down(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        error: &IcmpError,
    ) -> IcmpVerdict {
        let seq = match self.phase {
            Phase::Established | Phase::Closed(_) => {
                let ssn = Ssn(error.seq);
                let subflow = self.subflow_mut(index);
                if ssn.before(subflow.snd_una) || ssn.after(subflow.snd_next) {
                    return IcmpVerdict::Drop(DropReason::OutOfWindow);
                }
                if let IcmpKind::TooBig(mtu) = error.kind {
                    subflow.mss = subflow.mss.min(segment_room(mtu, error));
                    ctx.counters.path_mtu_lowered += 1;
                }
                let Some((dsn, _)) = subflow.down.by_ssn(ssn) else {
                    return IcmpVerdict::Consume;
                };
                self.down_seq(dsn)
            }
            Phase::Plain | Phase::Fallback | Phase::SynReceived => {
                let seq = TcpSeq(error.seq);
                let dsn = self.down_dsn(seq);
                let first = self.down_acked.sub(u64::from(!self.proved));
                if dsn.before(first) || dsn.after(self.down_next) {
                    return IcmpVerdict::Drop(DropReason::OutOfWindow);
                }
                seq
            }
            Phase::SynSent | Phase::Reset(_) => return IcmpVerdict::Consume,
        };
        let translated = matches!(self.phase, Phase::Established | Phase::Closed(_));
        let kind = match error.kind {
            IcmpKind::TooBig(mtu) if translated => {
                IcmpKind::TooBig(mtu.saturating_sub(u32::from(DSS_LEN)))
            }
            kind => kind,
        };
        let mut translated = *error;
        translated.kind = kind;
        (translated.src, translated.dst) = (self.server.backend.addr(), self.server.source.addr());
        translated.seq = seq.0;
        to_source(translated, error)
    }

    /// About a segment that went to the server.
    pub(crate) fn handle_icmp_up(
        &mut self,
        ctx: &mut Context<'_>,
        error: &IcmpError,
    ) -> IcmpVerdict {
        let seq = TcpSeq(error.seq);
        if matches!(self.phase, Phase::SynSent | Phase::Plain) && !self.server.answered {
            return match error.kind {
                _ if seq != self.isn_client => IcmpVerdict::Drop(DropReason::OutOfWindow),
                IcmpKind::Unreachable => IcmpVerdict::Refused,
                IcmpKind::TooBig(_) | IcmpKind::TimeExceeded => IcmpVerdict::Consume,
            };
        }
        let dsn = self.up_dsn(seq);
        if dsn.before(self.up_acked) || dsn.after(self.up_next) {
            return IcmpVerdict::Drop(DropReason::OutOfWindow);
        }
        match (self.phase, error.kind) {
            (Phase::Established | Phase::Closed(_), IcmpKind::TooBig(mtu)) => {
                self.server.mss = self.server.mss.min(segment_room(mtu, error));
                ctx.counters.path_mtu_lowered += 1;
                IcmpVerdict::Consume
            }
            (Phase::Plain | Phase::Fallback, _) => {
                let subflow = self.subflow(INITIAL);
                let mut translated = *error;
                (translated.src, translated.dst) = (subflow.remote.addr(), subflow.local.addr());
                to_source(translated, error)
            }
            // An established connection outlives an unreachable path (RFC 1122 section 4.2.3.9).
            _ => IcmpVerdict::Consume,
        }
    }
}

/// Sends the error on, unless it would have to change its family.
fn to_source(translated: IcmpError, came: &IcmpError) -> IcmpVerdict {
    if translated.src.is_ipv4() == came.src.is_ipv4() {
        IcmpVerdict::Forward(translated)
    } else {
        IcmpVerdict::Consume
    }
}

/// What a packet of `mtu` bytes holds behind the IP header and the fixed part of the TCP header: payload
/// and options.
fn segment_room(mtu: u32, error: &IcmpError) -> u16 {
    let (least, headers) = if error.src.is_ipv4() {
        (MIN_MTU_V4, 40)
    } else {
        (MIN_MTU_V6, 60)
    };
    u16::try_from(mtu.max(least) - headers).unwrap_or(u16::MAX)
}
