//! A connection that was accepted.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{
    ConnectionView, Order, Ordered, Pinned, Refused, Rule, StableId, SteeringMode, SubflowView,
    Target,
};

use crate::worker::{Gone, WorkerHandle};

/// A handle on a connection that is proxied. The connection goes on without it: dropping it changes nothing.
///
/// Each call asks the worker that has the connection, and waits for its answer, which comes between two batches of packets.
#[derive(Clone)]
pub struct Proxied {
    id: StableId,
    /// Client, server, source and back end.
    ends: [SocketAddr; 4],
    service: Arc<str>,
    worker: WorkerHandle,
}

/// A connection does not do what it is asked, or nobody can tell.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error, Debug)]
pub enum ProxiedError {
    /// Its worker has ended or does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Why not; [`Refused::Unknown`]: it is over, and forgotten.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Proxied {
    pub(super) const fn new(
        id: StableId,
        ends: [SocketAddr; 4],
        service: Arc<str>,
        worker: WorkerHandle,
    ) -> Self {
        Self {
            id,
            ends,
            service,
            worker,
        }
    }

    pub(super) const fn listed(
        view: &ConnectionView,
        service: Arc<str>,
        worker: WorkerHandle,
    ) -> Self {
        let ends = [view.client, view.server, view.source, view.backend];
        Self::new(view.id, ends, service, worker)
    }

    /// What names it, in the API and in `flexcp show`, too.
    #[must_use]
    pub const fn id(&self) -> StableId {
        self.id
    }

    /// The client, as on the initial subflow.
    #[must_use]
    pub const fn client(&self) -> SocketAddr {
        self.ends[0]
    }

    /// What the client connected to.
    #[must_use]
    pub const fn server(&self) -> SocketAddr {
        self.ends[1]
    }

    /// The address that the server sees as its client.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        self.ends[2]
    }

    /// The TCP server itself.
    #[must_use]
    pub const fn backend(&self) -> SocketAddr {
        self.ends[3]
    }

    /// The name of its service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The connection as it stands, with what is counted and measured of each subflow.
    ///
    /// # Errors
    /// When it is over and forgotten, or its worker does not answer.
    pub fn statistics(&self) -> Result<ConnectionView, ProxiedError> {
        let view = self.worker.connection(self.id)?;
        view.ok_or(ProxiedError::Refused(Refused::Unknown))
    }

    /// Its subflows as they stand.
    ///
    /// # Errors
    /// As of [`statistics`](Self::statistics).
    pub fn subflows(&self) -> Result<Vec<SubflowView>, ProxiedError> {
        Ok(self.statistics()?.subflows)
    }

    /// New data towards the client goes down that path from here on; `false`: it did already. The hold time of its rule begins
    /// anew, after which the rule's mode may move it again.
    ///
    /// # Errors
    /// When something speaks against the path, the connection is not translated from MPTCP, or is over.
    pub fn move_to(&self, target: Target) -> Result<bool, ProxiedError> {
        self.order(Order::Move(target))
    }

    /// It is steered by `mode` from here on, in place of the rules, and moved once in `hold` at most. Paths that the client
    /// wants as backup are taken when no other is left.
    ///
    /// # Errors
    /// When the mode [shares](SteeringMode::shares), which takes a rule; else as of [`move_to`](Self::move_to).
    pub fn set_mode(
        &self,
        mode: Arc<dyn SteeringMode>,
        hold: Duration,
    ) -> Result<(), ProxiedError> {
        self.steer(mode, hold, hold)
    }

    /// It keeps to a path, or to the paths of an access, as long as one of them works; if it has to leave, it comes back a
    /// second after that at the earliest.
    ///
    /// # Errors
    /// As of [`move_to`](Self::move_to), but for what speaks against the path.
    pub fn pin(&self, target: Target) -> Result<(), ProxiedError> {
        self.steer(Arc::new(Pinned(target)), Duration::ZERO, COMES_BACK)
    }

    /// It is steered by the rules again.
    ///
    /// # Errors
    /// As of [`move_to`](Self::move_to).
    pub fn follow_rules(&self) -> Result<(), ProxiedError> {
        self.order(Order::Steer(None)).map(drop)
    }

    /// A subflow, by its number, is for when others fail, or no more: FlexCP keeps to that, and tells the client (`MP_PRIO`, RFC
    /// 8684 section 3.3.8). `false`: it was so already.
    ///
    /// # Errors
    /// When it has no such subflow, or that carries no data; else as of [`move_to`](Self::move_to).
    pub fn set_backup(&self, subflow: u8, backup: bool) -> Result<bool, ProxiedError> {
        self.order(Order::SetBackup { subflow, backup })
    }

    /// Both ends are told that it is over; `false`: it was over already.
    ///
    /// # Errors
    /// When the kernel forwards it by itself, it is forgotten, or its worker does not answer.
    pub fn close(&self) -> Result<bool, ProxiedError> {
        self.order(Order::Close)
    }

    fn steer(
        &self,
        mode: Arc<dyn SteeringMode>,
        hold: Duration,
        fail_back: Duration,
    ) -> Result<(), ProxiedError> {
        let rule = Rule {
            name: OWN.into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode,
            hold,
            fail_back,
            heeds_backup: true,
            carrier: None,
        };
        self.order(Order::Steer(Some(Arc::new(rule)))).map(drop)
    }

    fn order(&self, order: Order) -> Result<bool, ProxiedError> {
        let outcome = self.worker.order(self.id, order)??;
        Ok(outcome == Ordered::Done)
    }
}

impl fmt::Debug for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxied")
            .field("id", &format_args!("{}", self.id))
            .field("client", &self.client())
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}

/// What events call the rule of a single connection.
const OWN: &str = "(its own)";

/// How soon a pinned connection may come back.
const COMES_BACK: Duration = Duration::from_secs(1);
