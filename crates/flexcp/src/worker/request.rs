//! What others ask of a worker, and how it answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;

use flexcp_placement::Rules;
use flexcp_translator::{
    AccessTotals, BackendView, ConnectionView, FastPath, Order, Ordered, Refused, ServiceId,
    StableId,
};
use flexcp_wire::Ends;

use super::listeners::Listener;
use super::order::OrderToAll;
use super::page::PageWanted;
use super::reload::{Configure, Whose};
use super::{Snapshot, Worker, now};

/// What can be asked of a worker.
#[derive(Debug)]
pub(crate) enum Request {
    /// What has been done so far.
    Stats(SyncSender<Snapshot>),
    /// A sign of life.
    Ping(SyncSender<()>),
    /// The back ends as they stand.
    Backends(SyncSender<Vec<BackendView>>),
    /// A page of the connections.
    Page(PageWanted),
    /// The connection with this id.
    Connection(StableId, SyncSender<Option<ConnectionView>>),
    /// To do something with it.
    Order(StableId, Order, SyncSender<Result<Ordered, Refused>>),
    /// To do it with some of those that a filter finds.
    OrderAll(OrderToAll),
    /// To tell what happens to connections from here on.
    Listen(Listener),
    /// To install what needs no decision.
    Offload(Box<dyn FastPath>),
    /// To offload no connection of these services.
    Keep(Vec<ServiceId>),
    /// To sort packets by other rules.
    Rules(Box<Rules>, SyncSender<()>),
    /// Another configuration.
    Configure(Box<Configure>, SyncSender<()>),
    /// To tell the ends of some connections that they are over.
    EndSome(Whose, SyncSender<()>),
    /// To forget those connections.
    ForgetStranded(u64, SyncSender<()>),
    /// Routes may have changed.
    Routes,
    /// The host has these addresses from here on.
    HostAddresses(Vec<IpAddr>),
    /// To ask a box's aggregation servers in this order.
    PreferServers(ServiceId, Vec<SocketAddr>),
    /// The name that this connection waits for has these addresses, or none.
    Resolved(StableId, Vec<IpAddr>),
    /// The server of the SYN between these ends has answered, or has not.
    Called(Ends, bool),
    /// What has come over each access so far.
    AccessTotals(SyncSender<Vec<AccessTotals>>),
    /// Packets may have passed by for a while.
    Astray,
    /// No connection is opened any more.
    Drain,
    /// How many connections depend on the worker.
    Dependent(SyncSender<usize>),
    /// To tell the ends of those that they are over; an answer when it is done.
    End(SyncSender<()>),
    /// Nothing more: end.
    Stop,
}

impl Worker {
    /// Answers what others have asked. Of answers that take as long as a batch of packets one alone: the other questions
    /// are left for after the next batch.
    pub(super) fn answer(&mut self) -> std::ops::ControlFlow<()> {
        self.unanswered = false;
        while !self.unanswered
            && let Ok(request) = self.requests.try_recv()
        {
            // Whoever asked may have given up since.
            match request {
                Request::Ping(answer) => {
                    let _ = answer.try_send(());
                }
                Request::Stats(answer) => {
                    self.unanswered = true;
                    let _ = answer.try_send(self.path.snapshot(self.handover.as_ref()));
                }
                Request::Backends(answer) => {
                    let _ = answer.try_send(self.path.translator.backends().collect());
                }
                Request::Page(wanted) => {
                    self.unanswered = true;
                    wanted.fill(now(), &self.path.translator);
                }
                Request::Connection(id, answer) => {
                    let _ = answer.try_send(self.path.translator.connection(now(), id));
                }
                Request::Order(id, order, answer) => self.carry_out(id, &order, &answer),
                Request::OrderAll(wanted) => self.carry_out_some(wanted),
                Request::Listen(listener) => {
                    self.listeners.add(listener, &mut self.path.translator);
                }
                Request::Offload(fast_path) => self.path.translator.set_fast_path(fast_path),
                Request::Keep(kept) => self.path.translator.keep_services(now(), &kept),
                Request::Rules(rules, done) => self.set_rules(*rules, &done),
                Request::Configure(new, done) => self.configure(*new, &done),
                Request::EndSome(whose, done) => self.stranded.push_back((whose, done)),
                Request::ForgetStranded(upto, done) => self.forget_stranded(upto, &done),
                Request::Routes => self.find_ways_anew(),
                Request::HostAddresses(addrs) => self.path.translator.set_host_addresses(addrs),
                Request::PreferServers(id, order) => self.prefer_servers(id, &order),
                Request::Resolved(id, addrs) => self.take_addresses(id, &addrs),
                Request::Called(ends, connected) => self.take_called(ends, connected),
                Request::AccessTotals(answer) => {
                    let _ = answer.try_send(self.path.translator.access_totals().collect());
                }
                Request::Astray => self.path.translator.note_astray(now()),
                Request::Drain => self.path.translator.drain(),
                Request::Dependent(answer) => self.count_dependent(&answer),
                Request::End(done) => self.ending = Some(done),
                Request::Stop => return std::ops::ControlFlow::Break(()),
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    fn count_dependent(&self, answer: &SyncSender<usize>) {
        let _ = answer.try_send(self.path.translator.dependent());
    }
}
