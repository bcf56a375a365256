//! Services that the API has drained: they take no new connections, those that they have may end within a time, and both ends
//! of the rest are told then, as at a stop. The kernel brings their packets all the while.

use std::time::Duration;

use flexcp_translator::ServiceId;
use tracing::info;

use super::telling::Telling;
use crate::orders::Orders;
use crate::split::Relay;
use crate::worker::WorkerHandle;

/// A service whose connections have some time. Times are microseconds.
#[derive(Debug)]
pub(super) struct Closing {
    service: ServiceId,
    name: String,
    /// When the ends of what is left are told.
    until: u64,
    /// They are being told.
    telling: Option<Telling>,
}

impl Closing {
    pub(super) fn new((service, name): (ServiceId, &str), now: u64, within: Duration) -> Self {
        info!(
            "service {name} is drained: it takes no connection, and those that it has have {within:?} to end"
        );
        let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        Self {
            service,
            name: name.into(),
            until: now.saturating_add(within),
            telling: None,
        }
    }

    /// The service's name, and when its time is over.
    pub(super) fn facts(&self) -> (String, u64) {
        (self.name.clone(), self.until)
    }

    /// Whether it is about this service.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether the service is still drained.
    pub(super) fn stands(&self, orders: &Orders) -> bool {
        orders.drains(&self.name)
    }

    pub(super) fn due(&self) -> u64 {
        self.telling.as_ref().map_or(self.until, Telling::due)
    }

    /// Does what is due. `false`: that was the last of it.
    pub(super) fn tend(&mut self, now: u64, (workers, relay): (&[WorkerHandle], &Relay)) -> bool {
        if self.until > now {
            return true;
        }
        let telling = self.telling.get_or_insert_with(|| Telling::new(now));
        let service = self.service;
        let over = telling.go_on(now, || {
            relay.end_services(vec![service]);
            let asked = workers.iter().map(|worker| worker.end_service(service));
            asked.collect()
        });
        if over {
            info!(
                "service {} is drained: none of its connections is left",
                self.name
            );
        }
        !over
    }
}
