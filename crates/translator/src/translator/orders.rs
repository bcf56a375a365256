//! Orders to single connections, and to all that a filter finds ([`order`](crate::order)).
//!
//! A connection that is offloaded is evicted first, and comes back to the fast path with its next packets.

use super::listing::{Cursor, EFFORT, EMPTY, Filter, LEFT_OUT, TOLD};
use super::{Translator, context};
use crate::Instant;
use crate::handle::StableId;
use crate::order::{Order, Ordered, Refused, Tally};
use crate::table::ConnectionId;
use crate::view::ConnectionView;

impl Translator {
    /// The connection that has this id, as it is now. It stays installed if it is.
    #[must_use]
    pub fn connection(&self, now: Instant, id: StableId) -> Option<ConnectionView> {
        let connection = self.table.get(self.find_id(id)?)?;
        let entry = self.peek(connection);
        Some(connection.view(now, &self.config, entry.as_ref()))
    }

    /// Has a connection do something. The same order again changes nothing more. As after each handled packet, drain
    /// [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Errors
    /// Why it does not; then nothing has changed.
    pub fn carry_out(
        &mut self,
        now: Instant,
        id: StableId,
        order: &Order,
    ) -> Result<Ordered, Refused> {
        let place = self.find_id(id).ok_or(Refused::Unknown)?;
        self.carry_out_at(now, place, order)
    }

    /// Has each of the next connections that `filter` fits do something, and counts in `tally` what came of it. Where it goes
    /// on, or `None` at the end. The work of a call is bounded as that of [`list`](Self::list) is; drain
    /// [`poll_transmit`](Self::poll_transmit) after each.
    #[must_use]
    pub fn carry_out_some(
        &mut self,
        now: Instant,
        from: Cursor,
        filter: &Filter,
        order: &Order,
        tally: &mut Tally,
    ) -> Option<Cursor> {
        let mut effort = EFFORT;
        for place in from.0..self.table.places() {
            if effort == 0 {
                return Some(Cursor(place));
            }
            let spent = match (self.table.at(place), ConnectionId::try_from(place)) {
                (Some(connection), Ok(id)) if filter.fits(connection, &self.config) => {
                    tally.count(self.carry_out_at(now, id, order));
                    TOLD
                }
                (Some(_), _) => LEFT_OUT,
                (None, _) => EMPTY,
            };
            effort = effort.saturating_sub(spent);
        }
        None
    }

    fn carry_out_at(
        &mut self,
        now: Instant,
        id: ConnectionId,
        order: &Order,
    ) -> Result<Ordered, Refused> {
        self.evict(now, id);
        let connection = self.table.get_mut(id).ok_or(Refused::Unknown)?;
        let mut ctx = context!(self, now);
        let outcome = connection.carry_out(&mut ctx, order);
        self.settle(now, id);
        outcome
    }

    pub(super) fn find_id(&self, id: StableId) -> Option<ConnectionId> {
        let place = self.table.find_token(id.token())?;
        let connection = self.table.get(place)?;
        (connection.id() == id).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translator::tests::{open, reverse};

    #[test]
    fn order_to_all_goes_page_by_page() {
        let now = Instant::from_millis(5);
        let mut translator = reverse(1000..=60_999);
        (1..=1000).for_each(|port| open(&mut translator, now, port));
        while translator.poll_transmit().is_some() {}
        let mut tally = Tally::default();
        let mut next = Some(Cursor::default());
        let mut before = 0;
        while let Some(from) = next {
            let all = Filter::default();
            next = translator.carry_out_some(now, from, &all, &Order::Close, &mut tally);
            let page = usize::try_from(tally.done - before).expect("a few");
            assert!(page <= Translator::PAGE, "{page}");
            before = tally.done;
        }
        assert_eq!(
            (tally.done, tally.already, tally.refused().count()),
            (1000, 0, 0)
        );
    }
}
