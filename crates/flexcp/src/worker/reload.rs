//! Another configuration for a worker that goes on.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};

use flexcp_placement::Rules;
use flexcp_translator::{Config, Cursor, Mode, Service, ServiceId, Ways};

use super::{BATCH, Gone, Marks, Request, Worker, WorkerHandle, now};

/// What a worker is told when the configuration changes.
#[derive(Debug)]
pub struct Configure {
    /// What its translator does.
    pub config: Config,
    /// The configuration's number: larger than those before.
    pub epoch: u64,
    /// Services of which no connection is offloaded.
    pub kept: Vec<ServiceId>,
    /// Servers on this host itself.
    pub own: Vec<IpAddr>,
    /// Where it notes from here on which back ends it has marked.
    pub marks: Arc<Marks>,
    /// Connections that are there are judged by its rules at once, not when their time has come.
    pub moves: bool,
    /// Who knows by which way packets leave, where the configuration's accesses number ways otherwise than before.
    pub ways: Option<Box<dyn Ways>>,
}

/// Connections whose ends are told that those are over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// Those that nothing covers since a generation up to this one.
    Stranded(u64),
    /// Those of a service.
    Service(ServiceId),
}

/// Where it is among connections whose ways are asked for.
#[derive(Default, Debug)]
pub(super) struct Finding {
    at: Cursor,
    /// They are to be asked for again.
    again: bool,
}

/// Connections that are asked about between two batches of packets: each takes the kernel some microseconds.
const WAYS: usize = 16;

impl Worker {
    /// Where it notes which back ends it has marked.
    #[must_use]
    pub fn marks(&self) -> Arc<Marks> {
        Arc::clone(&self.path.marks)
    }

    pub(super) fn set_rules(&mut self, rules: Rules, done: &SyncSender<()>) {
        if let Some(handover) = &mut self.handover {
            handover.set_rules(rules);
        }
        let _ = done.try_send(());
    }

    pub(super) fn configure(&mut self, new: Configure, done: &SyncSender<()>) {
        let is_box = |service: &Service| matches!(service.mode, Mode::Box { .. });
        if new.config.services.iter().any(is_box) {
            self.following = Some(Cursor::default());
        }
        let translator = &mut self.path.translator;
        translator.configure(new.config, new.epoch);
        translator.keep_services(now(), &new.kept);
        translator.leave_out(&new.own);
        self.path.marks = new.marks;
        self.path.note_marks();
        if new.moves {
            self.judging = Some(Cursor::default());
        }
        if let Some(ways) = new.ways {
            self.path.translator.set_ways(ways);
            self.find_ways_anew();
        }
        let _ = done.try_send(());
    }

    /// Judges some connections by the present rules, when that is asked for; others in the next round, so that packets have
    /// their turn.
    pub(super) fn judge_some(&mut self) {
        let Some(from) = self.judging else {
            return;
        };
        self.judging = self.path.translator.judge_anew(now(), from, BATCH);
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }

    /// Routes may have changed, or what ways there are.
    pub(super) fn find_ways_anew(&mut self) {
        if !self.path.translator.has_ways() {
            return;
        }
        match &mut self.finding {
            // What has been asked already is asked again, once the rest has been: routes that change all the time keep nobody
            // from being asked.
            Some(finding) => finding.again = true,
            None => self.finding = Some(Finding::default()),
        }
    }

    /// Asks by which ways packets leave for some connections, when that is asked for; for others in the next round, so that
    /// packets have their turn.
    pub(super) fn find_some_ways(&mut self) {
        let Some(finding) = self.finding.take() else {
            return;
        };
        let translator = &mut self.path.translator;
        let next = translator.find_ways(now(), finding.at, WAYS);
        self.finding = match next {
            Some(at) => Some(Finding { at, ..finding }),
            None => finding.again.then(Finding::default),
        };
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }

    /// Has some connections follow their uplinks, when those have changed; others in the next round, so that packets have their
    /// turn.
    pub(super) fn follow_some_uplinks(&mut self) {
        let Some(from) = self.following else {
            return;
        };
        self.following = self.path.translator.follow_uplinks(now(), from, BATCH);
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }

    pub(super) fn prefer_servers(&mut self, service: ServiceId, order: &[SocketAddr]) {
        self.path.translator.prefer_servers(service, order);
    }

    pub(super) fn forget_stranded(&mut self, upto: u64, done: &SyncSender<()>) {
        self.path.translator.forget_stranded(upto);
        // Flows have gone.
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        let _ = done.try_send(());
    }

    /// Tells the ends of some connections that nothing covers any more, or whose service is drained, when that is asked for; of the others in the next
    /// round, so that packets have their turn.
    pub(super) fn tell_stranded(&mut self) {
        let Some((whose, done)) = self.stranded.pop_front() else {
            return;
        };
        let translator = &mut self.path.translator;
        let more = match whose {
            Whose::Stranded(upto) => translator.end_stranded(now(), upto, BATCH),
            Whose::Service(id) => translator.end_service(now(), id, BATCH),
        };
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
        if more {
            self.stranded.push_front((whose, done));
        } else {
            let _ = done.try_send(());
        }
    }
}

impl WorkerHandle {
    /// From here on the worker sorts packets by these rules.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn set_rules(&self, rules: Rules) -> Result<(), Gone> {
        self.ask(|done| Request::Rules(Box::new(rules), done))
    }

    /// From here on the worker does what `new` says.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn configure(&self, new: Configure) -> Result<(), Gone> {
        self.ask(|done| Request::Configure(Box::new(new), done))
    }

    /// Has the worker tell the ends of connections that nothing covers since generation `upto`, and says when it has: then,
    /// or when the worker is gone, there is something to receive.
    #[must_use]
    pub fn end_stranded(&self, upto: u64) -> Receiver<()> {
        let (done, is_done) = mpsc::sync_channel(1);
        // When the worker is gone already, the other end of the channel goes with the request.
        let _ = self
            .requests
            .send(Request::EndSome(Whose::Stranded(upto), done));
        self.waker.wake();
        is_done
    }

    /// The same of all connections of a service.
    #[must_use]
    pub fn end_service(&self, id: ServiceId) -> Receiver<()> {
        let (done, is_done) = mpsc::sync_channel(1);
        let _ = self
            .requests
            .send(Request::EndSome(Whose::Service(id), done));
        self.waker.wake();
        is_done
    }

    /// Routes may have changed: the worker asks by which ways packets leave, where that counts.
    pub fn note_routes(&self) {
        // When it is gone already, it has no connections.
        let _ = self.requests.send(Request::Routes);
        self.waker.wake();
    }

    /// The host has these addresses from here on.
    pub(crate) fn note_host_addresses(&self, addrs: &[IpAddr]) {
        let _ = self.requests.send(Request::HostAddresses(addrs.to_vec()));
        self.waker.wake();
    }

    /// A box's aggregation servers are asked in this order from here on; none: in that of the configuration.
    pub(crate) fn prefer_servers(&self, service: ServiceId, order: &[SocketAddr]) {
        // When it is gone already, it asks none.
        let _ = self
            .requests
            .send(Request::PreferServers(service, order.to_vec()));
        self.waker.wake();
    }

    /// Has the worker forget those connections.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn forget_stranded(&self, upto: u64) -> Result<(), Gone> {
        self.ask(|done| Request::ForgetStranded(upto, done))
    }
}
