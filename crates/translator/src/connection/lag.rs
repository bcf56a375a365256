//! A data ACK that stays behind the subflow's.
//!
//! A client may ACK data on the subflow before its connection takes it, and say nothing more when it has: Linux does so
//! while the application is in a system call. The server hears of data ACKs alone, so its window stays used up until
//! its tail loss probe, or its retransmission timer, has the client answer. FlexCP asks before that, by a keepalive
//! on the subflow (RFC 9293 section 3.8.4), once for each data ACK, and not more often than clients answer.

use core::time::Duration;

use flexcp_wire::TcpFlags;

use super::{Connection, Context, SubflowIndex};
use crate::time::Instant;

/// A data ACK may stay behind for so long. The client's connection has the data in some microseconds, and the server's
/// probe comes two round trips and 8 ms after its last packet, or later.
const PATIENCE: Duration = Duration::from_millis(1);

/// Clients answer so many milliseconds apart: Linux takes more for a loop of ACKs (`tcp_invalid_ratelimit`, 500).
const PAUSE_MILLIS: u32 = 600;

/// What FlexCP asked last. 32 bits of each are enough to tell it from the next.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Question {
    /// The data ACK, relative to the first.
    about: u32,
    /// Milliseconds; 0: never.
    at: u32,
}

impl Connection {
    /// The subflow that has ACKed all that it carries, data of which the client has not ACKed included.
    pub(super) fn lagging(&self) -> Option<SubflowIndex> {
        // As a rule, and soon told.
        if self.down_acked == self.down_next {
            return None;
        }
        self.indices().find(|&index| {
            let subflow = self.subflow(index);
            subflow.snd_una == subflow.snd_next && subflow.down.by_dsn(self.down_acked).is_some()
        })
    }

    /// When the client has to be asked, if nothing is heard until then.
    pub(super) fn lag_due(&self) -> Option<Instant> {
        let index = self.lagging()?;
        let due = self.subflow(index).last_heard + PATIENCE;
        let Question { about, at } = self.asked_last;
        let asked = about == self.relative_data_ack();
        let lately = at > 0 && millis(due).wrapping_sub(at) < PAUSE_MILLIS;
        (!asked && !lately).then_some(due)
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "enough of it to tell one from the next"
    )]
    const fn relative_data_ack(&self) -> u32 {
        self.down_acked.since(self.local.idsn) as u32
    }

    /// Asks the client if it is time.
    pub(super) fn ask_for_data_ack(&mut self, ctx: &mut Context<'_>) {
        if self.lag_due().is_none_or(|due| ctx.now < due) {
            return;
        }
        let Some(index) = self.lagging() else {
            return;
        };
        self.asked_last = Question {
            about: self.relative_data_ack(),
            at: millis(ctx.now),
        };
        let mut outgoing = self.own_down(index, TcpFlags::ACK);
        outgoing.seq = self.subflow(index).snd_una.sub(1).0;
        self.push_dss(&mut outgoing, None, false);
        ctx.counters.data_ack_probe_tx += 1;
        ctx.send(outgoing.own());
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "49 days and no question between two"
)]
const fn millis(at: Instant) -> u32 {
    (at.0 / 1000) as u32
}
