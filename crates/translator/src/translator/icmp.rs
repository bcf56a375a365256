//! ICMP errors: to the connection that they are about, and on to the end that can do something about
//! them. Everything else that is ICMP passes: it was diverted only because rules can't tell it apart.

use flexcp_preamble::Refusal;
use flexcp_wire::{Ends, IcmpError, IpHeader, MAX_HEADERS_LEN, OptionWriter, TcpFlags, protocol};

use super::{Translator, context, lost};
use crate::cause::Rst;
use crate::connection::{IcmpVerdict, bytes_of};
use crate::counters::DropReason;
use crate::handle::INITIAL;
use crate::health::MarkReason;
use crate::segment::Outgoing;
use crate::table::{ConnectionId, Leg};
use crate::{Frame, Instant, Verdict};

impl Translator {
    /// A packet that is not TCP, or a fragment of one.
    pub(crate) fn handle_other(
        &mut self,
        now: Instant,
        frame: &mut Frame<'_>,
        reason: DropReason,
    ) -> Verdict {
        let packet = frame.packet();
        match IpHeader::parse(packet) {
            Ok(ip) if matches!(ip.protocol, protocol::ICMP | protocol::ICMPV6) => {
                self.handle_icmp(now, &ip, frame)
            }
            Err(_) if is_icmp_fragment(packet) => Verdict::Forward,
            _ => Verdict::Drop(reason),
        }
    }

    fn handle_icmp(&mut self, now: Instant, ip: &IpHeader, frame: &mut Frame<'_>) -> Verdict {
        let message = ip.header_len..ip.total_len;
        let packet = frame.packet_mut();
        let Some(error) = packet
            .get(message.clone())
            .and_then(|message| IcmpError::parse(ip, message))
        else {
            return Verdict::Forward;
        };
        // The packet that it is about went the other way.
        let Some(flow) = self.table.find(Ends {
            from: error.dst,
            to: error.src,
        }) else {
            return Verdict::Forward;
        };
        if !IcmpError::checksum_is_right(ip, &packet[message.clone()]) {
            return Verdict::Drop(DropReason::Checksum);
        }
        self.evict(now, flow.id);
        let Some(connection) = self.table.get_mut(flow.id) else {
            return lost();
        };
        let mut ctx = context!(self, now);
        let verdict = match flow.leg {
            Leg::Subflow(index) => connection.handle_icmp_to_mptcp(&mut ctx, index, &error),
            Leg::Server => connection.handle_icmp_to_tcp(&mut ctx, &error),
            Leg::Called => return self.handle_icmp_to_called(now, flow.id, &error),
        };
        match verdict {
            IcmpVerdict::Forward(translated) => {
                let ip = redirect(packet, ip, &translated);
                if !translated.rewrite(&ip, &mut packet[message]) {
                    return Verdict::Drop(DropReason::Malformed);
                }
                self.counters.icmp_translated += 1;
                Verdict::Forward
            }
            IcmpVerdict::Consume => Verdict::Consume,
            IcmpVerdict::Refused => self.handle_unreachable(now, flow.id, &error),
            IcmpVerdict::Drop(reason) => Verdict::Drop(reason),
        }
    }

    /// The server can't be reached: another back end is tried if there is one, else the client hears of
    /// it at once.
    fn handle_unreachable(&mut self, now: Instant, id: ConnectionId, error: &IcmpError) -> Verdict {
        if self.leave_refusing(now, id, MarkReason::Unreachable)
            || self.host_refused(now, id, unreachable(error))
        {
            return Verdict::Consume;
        }
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        if connection.asks() {
            connection.refuse_opener(&mut context!(self, now), Rst::Unreachable);
            self.remove(id);
            return Verdict::Consume;
        }
        let subflow = connection.subflow(INITIAL);
        let mut outgoing = Outgoing {
            ends: subflow.ends(),
            seq: 0,
            ack: subflow.agreed.isn_remote.add(1).0,
            flags: TcpFlags::ACK,
            window: 0,
            urgent: 0,
            keep_ecn: false,
            flow_label: 0,
            options: OptionWriter::default(),
        };
        if connection.may_answer(bytes_of(&mut outgoing, &(0..0))) {
            context!(self, now).reset(outgoing, Rst::Unreachable);
        }
        self.remove(id);
        Verdict::Consume
    }
}

/// What a client is told whose server is not there.
pub(super) const fn unreachable(error: &IcmpError) -> Refusal {
    Refusal::Unreachable {
        code: error.code,
        is_v6: error.src.is_ipv6(),
    }
}

/// Sends the packet to the source of the segment that it is going to quote; its new header.
fn redirect(packet: &mut [u8], ip: &IpHeader, error: &IcmpError) -> IpHeader {
    let ip = IpHeader {
        dst: error.src.ip(),
        ..*ip
    };
    // Options and extension headers stay as they are; addresses stand in the fixed part before them.
    let mut header = [0; MAX_HEADERS_LEN];
    let len = ip.emit(ip.total_len - ip.header_len, &mut header);
    if ip.is_v6() {
        packet[24..40].copy_from_slice(&header[24..40]);
    } else {
        packet[16..20].copy_from_slice(&header[16..20]);
        packet[10..12].fill(0);
        let sum = flexcp_wire::Sum::of(&packet[..ip.header_len]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    debug_assert!(len <= ip.header_len);
    ip
}

/// A ping too long for one packet: not ours, whatever it holds. Rules see the protocol of IPv4 fragments only.
fn is_icmp_fragment(packet: &[u8]) -> bool {
    matches!(packet, &[version_ihl, _, _, _, _, _, _, _, _, protocol::ICMP, ..] if version_ihl >> 4 == 4)
}
