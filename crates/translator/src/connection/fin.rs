//! The end of the server's data: its FIN is a DATA_FIN to the client (RFC 8684 section 3.3.3), in a packet without data, and nothing of a
//! subflow's numbers.

use core::time::Duration;

use flexcp_wire::{DataNumber, Dsn, DssMapping, TcpFlags};

use super::to_mptcp::ServerPacket;
use super::{Connection, Context};
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::handle::{SubflowIndex, SubflowSet};

/// The server repeats its FIN for so long before the subflow ends with it: by then it is not the data ACK
/// that got lost.
const FIN_IN_VAIN: Duration = Duration::from_secs(1);

impl Connection {
    /// DATA_FIN behind data that came with the server's FIN, in a packet of FlexCP's own. In the mapping of data that
    /// another subflow has brought already, a Linux client notes it, does not act on it, and passes over all that come
    /// later: the connection would never end.
    pub(super) fn send_data_fin(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, fin: Dsn) {
        self.to_mptcp.next = self.to_mptcp.next.max(fin.add(1));
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        self.push_dss(&mut outgoing, Some(data_fin_mapping(fin)), true);
        ctx.send(outgoing.own());
    }

    /// The server's FIN without data that the client still needs: a DATA_FIN of its own (RFC 8684 section 3.3.3).
    pub(super) fn forward_fin(
        &mut self,
        ctx: &mut Context<'_>,
        packet: &ServerPacket<'_>,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let &ServerPacket {
            segment, end: fin, ..
        } = packet;
        let Some(index) = self.usable_active(ctx) else {
            return Verdict::Drop(DropReason::NoSubflow);
        };
        if self.numbers.identity && self.subflow(index).path.bare_acks > 0 {
            // The client's last words were plain TCP, so it hears of the end in plain TCP.
            return self.fall_back_for_server(ctx, segment, frame);
        }
        let again = self.to_mptcp.next.after(fin);
        self.to_mptcp.next = self.to_mptcp.next.max(fin.add(1));
        let mapping = data_fin_mapping(fin);
        let mut outgoing = self.headers_to_mptcp(index, segment);
        let first = *self.to_mptcp.fin_sent.get_or_insert(ctx.now);
        let repeated = again && ctx.now.since(first) >= FIN_IN_VAIN;
        if repeated && self.numbers.identity && self.to_mptcp.acked == fin {
            // Should options be stripped on the way down, the client has fallen back without FlexCP's
            // knowing, and a FIN of the subflow is all that it understands. It has all data, so nothing
            // else will need a number on the subflow.
            let subflow = self.subflow_mut(index);
            let fin_local = *subflow.send.fin.get_or_insert(subflow.send.next);
            subflow.send.next = subflow.send.next.max(fin_local.add(1));
            outgoing.seq = fin_local.0;
            outgoing.flags = outgoing.flags.with(TcpFlags::FIN);
        }
        self.push_dss(&mut outgoing, Some(mapping), true);
        self.send_acks(ctx, &packet.blocks, packet.moved & !(1 << index));
        if again {
            self.repeat_data_fin(ctx, index, fin);
        }
        let nothing = segment.payload.end..segment.payload.end;
        match outgoing.forward(frame, segment, nothing, u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// The server repeats its FIN. No number of a subflow's is outstanding for it, so that nothing says of a path that it is lost
    /// there: it goes over all others, too.
    fn repeat_data_fin(&mut self, ctx: &mut Context<'_>, sent_on: SubflowIndex, fin: Dsn) {
        let carries = |&other: &SubflowIndex| other != sent_on && self.subflow(other).carries();
        let others = self.indices().filter(carries);
        let others = others.fold(0, |set: SubflowSet, other| set | 1 << other);
        for other in self.indices().filter(|other| others & (1 << other) != 0) {
            self.send_data_fin(ctx, other, fin);
        }
    }
}

/// What a DATA_FIN without data says (RFC 8684 section 3.3.3).
const fn data_fin_mapping(fin: Dsn) -> DssMapping {
    DssMapping {
        dsn: DataNumber::Long(fin.0),
        ssn: 0,
        len: 1,
        checksum: None,
    }
}
