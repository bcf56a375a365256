//! What single connections are asked to do.

use std::cell::Cell;

use flexcp_translator::{Cursor, Filter, Order, Ordered, Refused, StableId, Tally};

use super::{Outcome, Scenario};

impl Scenario {
    /// What names a connection.
    pub(crate) fn id_of(&self, connection: usize) -> StableId {
        self.view_of(connection).expect("a connection").id
    }

    /// Has the first connection do something.
    pub(crate) fn order(&mut self, order: &Order) -> (Result<Ordered, Refused>, Outcome) {
        let id = self.id_of(0);
        self.order_by(id, order)
    }

    /// Has the connection with this id do something: all translators say the same of it.
    pub(crate) fn order_by(
        &mut self,
        id: StableId,
        order: &Order,
    ) -> (Result<Ordered, Refused>, Outcome) {
        self.foretell(order);
        let said: Cell<Option<Result<Ordered, Refused>>> = Cell::new(None);
        let outcome = self.tell(&|translator, now| {
            let new = translator.carry_out(now, id, order);
            assert_eq!(said.replace(Some(new)).unwrap_or(new), new, "a twin");
        });
        (said.get().expect("an answer"), outcome)
    }

    /// The checker sees no order, and would want to know why a connection ends.
    fn foretell(&mut self, order: &Order) {
        if let Order::Close = order {
            self.checker.observe_end();
        }
    }

    /// Has all that a filter finds do something.
    pub(crate) fn order_all(&mut self, filter: &Filter, order: &Order) -> (Tally, Outcome) {
        self.foretell(order);
        let said: Cell<Option<Tally>> = Cell::new(None);
        let outcome = self.tell(&|translator, now| {
            let mut tally = Tally::default();
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                next = translator.carry_out_some(now, from, filter, order, &mut tally);
            }
            assert_eq!(said.replace(Some(tally)).unwrap_or(tally), tally, "a twin");
        });
        (said.get().expect("an answer"), outcome)
    }
}
