//! The end of the translator itself: new clients are turned away, those that are there have some time, and then both
//! ends of what is left are told.

use super::{Translator, context};
use crate::Instant;
use crate::cause::Rst;
use crate::connection::{Connection, Context, Phase};

/// How far the translator is with its own end.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Drain {
    /// No connection is opened any more.
    pub(crate) begun: bool,
    /// Place in the table of the next connection that is told.
    next: usize,
    /// The same of stranded ones.
    pub(crate) next_stranded: usize,
}

impl Translator {
    /// From here on no connection is opened. On the path new ones pass as plain TCP, which needs no translator; where
    /// clients address FlexCP itself they are refused. Connections that are there go on, and take joins.
    pub const fn drain(&mut self) {
        self.drain.begun = true;
    }

    /// Connections whose ends lose each other when the translator ends: not those that are over, nor what passes on the
    /// path unchanged. Costs one pass over the table.
    #[must_use]
    pub fn dependent(&self) -> usize {
        let depend = |connection: &&Connection| connection.depends();
        self.table.iter().filter(depend).count()
    }

    /// Tells both ends of each such connection among the next `count` places of the table that it is over:
    /// `MP_FASTCLOSE` with the client's key (RFC 8684 section 3.5), as a client goes on waiting after a RST alone, and a
    /// RST to the server. `false`: that was the last place; the next call begins anew, and repeats what it has told.
    /// As after each handled packet, drain [`poll_transmit`](Self::poll_transmit). What an end sends that has not
    /// believed it is answered with the number that it will believe.
    pub fn end_some(&mut self, now: Instant, count: usize) -> bool {
        let first = self.drain.next;
        let end = first.saturating_add(count).min(self.table.places());
        for id in first..end {
            let Ok(id) = u32::try_from(id) else {
                break;
            };
            self.evict(now, id);
            let Some(connection) = self.table.get_mut(id) else {
                continue;
            };
            let mut ctx = context!(self, now);
            connection.end(&mut ctx);
            self.settle(now, id);
        }
        let more = end < self.table.places();
        self.drain.next = if more { end } else { 0 };
        more
    }
}

impl Connection {
    /// Whether its ends lose each other without the translator.
    pub(crate) fn depends(&self) -> bool {
        match self.phase {
            Phase::Established { .. } => true,
            Phase::Closed(_) | Phase::Reset(_) => false,
            // On the path nothing of it is changed, or it has not begun: a client that hears nothing of MPTCP from there
            // on falls back (RFC 8684 section 3.7). One that has not heard of the fallback waits for data ACKs.
            _ => !self.keeps_ends() || self.phase.relayed().wants_data_acks,
        }
    }

    /// Tells both ends that it is over, and again those of MPTCP, as nothing repeats a RST that is lost.
    pub(crate) fn end(&mut self, ctx: &mut Context<'_>) {
        match self.phase {
            Phase::Established { .. } => self.reset_both(ctx, Rst::Ending),
            Phase::Reset(_) if self.mptcp.peer_key.is_some() => self.reset_both(ctx, Rst::Repeated),
            _ if self.depends() => self.reset_plain(ctx, Rst::Ending),
            _ => return,
        }
        self.note_reset(ctx, Rst::Ending);
    }
}
