//! ICMP errors about what FlexCP sent for a connection: whom they are for, in whose numbers.
//!
//! They are believed when they quote a sequence number that is in flight on their leg (RFC 5927 section
//! 4.1): nobody off the path knows it.

use flexcp_wire::{IcmpError, IcmpKind, Ssn, TcpSeq};

use super::handshake::DSS_LEN;
use super::{Connection, Context, Phase};
use crate::counters::DropReason;
use crate::handle::{INITIAL, SubflowIndex};

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
    pub(crate) fn handle_icmp_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        error: &IcmpError,
    ) -> IcmpVerdict {
        let seq = match self.phase {
            Phase::Established { .. } | Phase::Closed(_) => {
                let ssn = Ssn(error.seq);
                let subflow = self.subflow_mut(index);
                if ssn.before(subflow.send.una) || ssn.after(subflow.send.next) {
                    return IcmpVerdict::Drop(DropReason::OutOfWindow);
                }
                if let IcmpKind::TooBig(mtu) = error.kind {
                    subflow.agreed.mss = subflow.agreed.mss.min(segment_room(mtu, error));
                    ctx.counters.path_mtu_lowered += 1;
                }
                let Some((dsn, _)) = subflow.send.lane.by_ssn(ssn) else {
                    return IcmpVerdict::Consume;
                };
                self.seq_to_mptcp(dsn)
            }
            Phase::Plain(_) | Phase::Fallback(_) | Phase::SynReceived => {
                let seq = TcpSeq(error.seq);
                let dsn = self.dsn_to_mptcp(seq);
                let first = self
                    .to_mptcp
                    .acked
                    .sub(u64::from(!self.phase.relayed().proved));
                if dsn.before(first) || dsn.after(self.to_mptcp.next) {
                    return IcmpVerdict::Drop(DropReason::OutOfWindow);
                }
                seq
            }
            Phase::SynSent if self.asks() && error.kind == IcmpKind::Unreachable => {
                match self.unreachable_peer(error) {
                    Ok(seq) => seq,
                    Err(verdict) => return verdict,
                }
            }
            Phase::SynSent | Phase::Reset(_) => return IcmpVerdict::Consume,
        };
        let translated = matches!(self.phase, Phase::Established { .. } | Phase::Closed(_));
        let kind = match error.kind {
            IcmpKind::TooBig(mtu) if translated => {
                IcmpKind::TooBig(mtu.saturating_sub(u32::from(DSS_LEN)))
            }
            kind => kind,
        };
        let mut translated = *error;
        translated.kind = kind;
        (translated.src, translated.dst) = (self.tcp.backend.addr(), self.tcp.source.addr());
        translated.seq = seq.0;
        to_source(translated, error)
    }

    /// About the SYN of FlexCP's own that asks a peer for MPTCP: the number of the TCP leg's, which hears of it; `Err`: that does not.
    fn unreachable_peer(&self, error: &IcmpError) -> Result<TcpSeq, IcmpVerdict> {
        if Ssn(error.seq) != self.subflow(INITIAL).agreed.isn_local {
            return Err(IcmpVerdict::Drop(DropReason::OutOfWindow));
        }
        // Another may be asked.
        let asks_on = self.has_errand();
        if asks_on {
            return Err(IcmpVerdict::Refused);
        }
        Ok(self.tcp.isn_remote)
    }

    /// About a segment that went to the server.
    pub(crate) fn handle_icmp_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        error: &IcmpError,
    ) -> IcmpVerdict {
        let seq = TcpSeq(error.seq);
        if matches!(self.phase, Phase::SynSent | Phase::Plain(_)) && !self.tcp.syn.answered {
            return match error.kind {
                _ if seq != self.tcp.isn_local => IcmpVerdict::Drop(DropReason::OutOfWindow),
                IcmpKind::Unreachable => IcmpVerdict::Refused,
                IcmpKind::TooBig(_) | IcmpKind::TimeExceeded => IcmpVerdict::Consume,
            };
        }
        let dsn = self.dsn_to_tcp(seq);
        if dsn.before(self.to_tcp.acked) || dsn.after(self.to_tcp.next) {
            return IcmpVerdict::Drop(DropReason::OutOfWindow);
        }
        match (self.phase, error.kind) {
            (Phase::Established { .. } | Phase::Closed(_), IcmpKind::TooBig(mtu)) => {
                self.tcp.mss = self.tcp.mss.min(segment_room(mtu, error));
                ctx.counters.path_mtu_lowered += 1;
                IcmpVerdict::Consume
            }
            _ if self.is_stranger() => IcmpVerdict::Consume,
            (Phase::Plain(_) | Phase::Fallback(_), _) => {
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
