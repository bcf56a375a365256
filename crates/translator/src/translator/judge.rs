//! Connections that are there are judged by other rules at once, some at a time.

use super::listing::Cursor;
use super::{Translator, context};
use crate::table::ConnectionId;
use crate::time::Instant;

/// Places of the table that are looked at for one connection that is judged.
const LOOKS: usize = 64;

impl Translator {
    /// Has the modes of the present rules say where connections are to be, whatever their holds and fail-back delays: those
    /// that the fast path carries come back for that, and are installed again where nothing speaks against it. Other
    /// connections than those with a choice of paths are left alone.
    ///
    /// Looks at 64 places of the table for each of `count`, and judges so many connections at most. Where it goes on, or `None`
    /// at the end. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn judge_anew(&mut self, now: Instant, from: Cursor, count: usize) -> Option<Cursor> {
        self.walk(from, count, |this, id| this.judge_one(now, id))
    }

    /// Goes through the table from a place on, until `each` has had something to do for `count` connections, or 64 places for
    /// each of them were looked at. Where it goes on, or `None` at the end.
    pub(super) fn walk(
        &mut self,
        from: Cursor,
        count: usize,
        each: impl Fn(&mut Self, ConnectionId) -> bool,
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(count.saturating_mul(LOOKS));
        let end = end.min(self.table.places());
        let mut done = 0;
        let mut next = from.0;
        while next < end && done < count {
            let Ok(id) = u32::try_from(next) else {
                return None;
            };
            done += usize::from(each(self, id));
            next += 1;
        }
        (next < self.table.places()).then_some(Cursor(next))
    }

    /// `false`: it has no choice.
    pub(super) fn judge_one(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if !connection.has_choice() {
            return false;
        }
        let was_installed = connection.installation.is_installed();
        self.evict(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        connection.judge_anew(&mut context!(self, now));
        if was_installed {
            // It goes on as after any other look.
            connection.installation.look = now;
        }
        self.settle(now, id);
        self.install_again(now, id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translator::tests::{open, reverse};

    #[test]
    fn work_of_a_call_is_bounded() {
        let now = Instant::from_millis(5);
        let mut translator = reverse(1000..=60_999);
        (1..=1000).for_each(|port| open(&mut translator, now, port));
        let mut next = Some(Cursor::default());
        let mut calls = 0;
        while let Some(from) = next {
            next = translator.judge_anew(now, from, 2);
            let places = translator.table.places();
            let done = next.map_or(places, |next| next.0) - from.0;
            assert!(done <= 2 * LOOKS, "{done} places");
            calls += 1;
        }
        assert_eq!(calls, 1000_usize.div_ceil(2 * LOOKS));
    }
}
