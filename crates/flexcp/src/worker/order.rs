//! What single connections are asked to do, and all that a filter finds: of those a page at a time, as listings are told.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use flexcp_translator::{ConnectionView, Cursor, Filter, Order, Ordered, Refused, StableId, Tally};

use super::{Gone, Request, Worker, WorkerHandle, now};

/// Some of a worker's connections are to do something.
#[derive(Debug)]
pub(crate) struct OrderToAll {
    from: Cursor,
    filter: Arc<Filter>,
    order: Order,
    /// What came of it, and where it goes on.
    answer: SyncSender<(Tally, Option<Cursor>)>,
}

impl Worker {
    /// Answers when the packets that it takes are on their way.
    pub(super) fn carry_out(
        &mut self,
        id: StableId,
        order: &Order,
        answer: &SyncSender<Result<Ordered, Refused>>,
    ) {
        let outcome = self.path.translator.carry_out(now(), id, order);
        self.send_ordered();
        let _ = answer.try_send(outcome);
    }

    /// The same of those that a filter finds. As it takes as long as a batch of packets, other questions wait for the next.
    pub(super) fn carry_out_some(&mut self, wanted: OrderToAll) {
        let OrderToAll {
            from,
            filter,
            order,
            answer,
        } = wanted;
        self.unanswered = true;
        let mut tally = Tally::default();
        let translator = &mut self.path.translator;
        let next = translator.carry_out_some(now(), from, &filter, &order, &mut tally);
        self.send_ordered();
        let _ = answer.try_send((tally, next));
    }

    fn send_ordered(&mut self) {
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }
}

impl OrderToAll {
    /// As if the worker had one connection, and it was carried out.
    #[cfg(test)]
    pub(crate) fn play(self) -> (Arc<Filter>, Order) {
        let mut tally = Tally::default();
        tally.count(Ok(Ordered::Done));
        tally.count(Ok(Ordered::Already));
        tally.count(Err(Refused::Hole));
        let _ = self.answer.try_send((tally, None));
        (self.filter, self.order)
    }
}

impl WorkerHandle {
    /// The connection with this id, as it is now.
    ///
    /// # Errors
    /// When the worker has ended or does not answer.
    pub fn connection(&self, id: StableId) -> Result<Option<ConnectionView>, Gone> {
        self.ask(|answer| Request::Connection(id, answer))
    }

    /// Has the connection with this id do something.
    ///
    /// # Errors
    /// When the worker has ended or does not answer; inside, why the connection does not do it.
    pub fn order(&self, id: StableId, order: Order) -> Result<Result<Ordered, Refused>, Gone> {
        self.ask(|answer| Request::Order(id, order, answer))
    }

    /// Has all connections that `filter` fits do something, some at a time, so that packets have their turn.
    ///
    /// # Errors
    /// When the worker has ended or does not answer: some may have done it then.
    pub fn order_all(&self, filter: &Arc<Filter>, order: &Order) -> Result<Tally, Gone> {
        let mut sum = Tally::default();
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let (tally, then) = self.ask(|answer| {
                Request::OrderAll(OrderToAll {
                    from,
                    filter: Arc::clone(filter),
                    order: order.clone(),
                    answer,
                })
            })?;
            sum.add(&tally);
            next = then;
        }
        Ok(sum)
    }
}
