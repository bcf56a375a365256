//! What is known of a service's back ends: who is marked, probed and checked, and how many connections each has.

use core::mem;
use core::net::SocketAddr;
use core::time::Duration;

use flexcp_wire::TcpSeq;

use super::{Services, Slot, backends, place, source_towards};
use crate::auth::SecretStream;
use crate::config::{Check, Mode};
use crate::endpoint::Backend;
use crate::handle::ServiceId;
use crate::health::{AnswerTo, BackendState, BackendView, Health, MarkReason, Sent};
use crate::time::Instant;

/// What is to be done about a check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckStep {
    /// The SYN of one leaves.
    Send { to: Backend, isn: TcpSeq },
    /// One has not been answered. `is_new`: its back end is marked from now on.
    Failed {
        of: (ServiceId, SocketAddr),
        is_new: bool,
    },
}

impl Services {
    /// A connection goes to this back end of the service.
    pub(crate) fn note_opened(&mut self, service: ServiceId, addr: SocketAddr) {
        if let Some(connections) = self.load_mut(service, addr) {
            *connections += 1;
        }
    }

    /// A connection of this back end's is gone, or goes to another.
    pub(crate) fn note_closed(&mut self, service: ServiceId, addr: SocketAddr) {
        if let Some(connections) = self.load_mut(service, addr) {
            *connections = connections.saturating_sub(1);
        }
    }

    /// How many connections a back end of the service has, or one that it had.
    fn load_mut(&mut self, service: ServiceId, addr: SocketAddr) -> Option<&mut u64> {
        let slot = self.slots.get_mut(usize::from(service.0))?.as_mut()?;
        match place(&slot.mode, addr) {
            Some(at) => Some(&mut slot.health.get_mut(at)?.connections),
            None => {
                let mut left = slot.left.iter_mut();
                let left = left.find(|(known, _)| *known == addr);
                left.map(|(_, connections)| connections)
            }
        }
    }

    /// The back ends of the present services as they stand.
    pub(crate) fn views(&self) -> impl Iterator<Item = BackendView> {
        let slots = self
            .order
            .iter()
            .filter_map(|&id| Some((id, self.slot(id)?)));
        slots.flat_map(|(service, slot)| {
            let each = slot.health.iter().zip(backends(&slot.mode));
            each.map(move |(health, &addr)| BackendView {
                service,
                addr,
                connections: health.connections,
                mark: health.mark(),
                last_mark: health.last_mark(),
                errands: health.errands,
            })
        })
    }

    /// How long this back end may take to answer a SYN; `None`: it is none of the service's.
    pub(crate) fn patience(&self, service: ServiceId, addr: SocketAddr) -> Option<Duration> {
        self.health(service, addr).map(Health::patience)
    }

    /// Whether connections pass this back end by.
    pub(crate) fn is_marked(&self, service: ServiceId, addr: SocketAddr) -> bool {
        self.health(service, addr).is_some_and(Health::is_marked)
    }

    /// What is known of a back end; `None`: it is none of the service's.
    fn health(&self, service: ServiceId, addr: SocketAddr) -> Option<&Health> {
        let slot = self.slot(service)?;
        slot.health.get(place(&slot.mode, addr)?)
    }

    /// The aggregation server has connected on, or has declined.
    pub(crate) fn note_errand(&mut self, (service, addr): (ServiceId, SocketAddr), granted: bool) {
        let slot = self.slots.get_mut(usize::from(service.0));
        let Some(slot) = slot.and_then(Option::as_mut) else {
            return;
        };
        let health = place(&slot.mode, addr).and_then(|at| slot.health.get_mut(at));
        if let Some(Health { errands, .. }) = health {
            errands.granted += u64::from(granted);
            errands.declined += u64::from(!granted);
        }
    }

    /// The back end has refused a SYN. `true`: it is marked from now on.
    pub(crate) fn note_refusal(
        &mut self,
        now: Instant,
        (service, addr): (ServiceId, SocketAddr),
        reason: MarkReason,
    ) -> bool {
        self.learn(now, (service, addr), |health| {
            health.note_refusal(now, reason)
        })
    }

    /// The back end has not answered a SYN of `asked`. `true`: it is marked from now on.
    pub(crate) fn note_silence(
        &mut self,
        now: Instant,
        (service, addr): (ServiceId, SocketAddr),
        (asked, sent): (Instant, Sent),
    ) -> bool {
        self.learn(now, (service, addr), |health| {
            health.note_silence(now, asked, sent)
        })
    }

    /// The back end has answered a SYN, after `rtt` if that is known. `true`: it was marked.
    pub(crate) fn note_answer(
        &mut self,
        now: Instant,
        (service, addr): (ServiceId, SocketAddr),
        rtt: Option<Duration>,
    ) -> bool {
        self.learn(now, (service, addr), |health| health.note_answer(now, rtt))
    }

    /// What is known of a back end changes. When the last of a service's is marked, all of them are probed soon.
    fn learn(
        &mut self,
        now: Instant,
        (service, addr): (ServiceId, SocketAddr),
        change: impl FnOnce(&mut Health) -> bool,
    ) -> bool {
        let slot = self.slots.get_mut(usize::from(service.0));
        let Some(slot) = slot.and_then(Option::as_mut) else {
            return false;
        };
        let Some(at) = place(&slot.mode, addr) else {
            return false;
        };
        let health = &mut slot.health;
        let before = health[at].is_marked();
        let told = change(&mut health[at]);
        self.untold |= health[at].untold;
        match (before, health[at].is_marked()) {
            (false, true) => {
                self.marked += 1;
                if health.iter().all(Health::is_marked) {
                    health.iter_mut().for_each(|health| health.hasten(now));
                }
            }
            (true, false) => self.marked -= 1,
            _ => return told,
        }
        self.find_due();
        told
    }

    /// Finds out when probes and checks are due.
    pub(super) fn find_due(&mut self) {
        let probed = self.slots.iter().flatten();
        let probed = probed.filter(|slot| passes_by_marked(&slot.mode));
        let dues = probed.flat_map(|slot| slot.health.iter().filter_map(Health::probe_due));
        self.probe_due = dues.min();
        let checked = self.slots.iter().flatten();
        let checked = checked.filter(|slot| slot.check.is_some());
        let dues = checked.flat_map(|slot| slot.health.iter().map(|health| health.checked.due()));
        self.check_due = dues.min();
    }

    /// When the next probe is due; `None`: there is nobody to probe.
    pub(crate) const fn probe_due(&self) -> Option<Instant> {
        self.probe_due
    }

    /// A back end to probe now, from where, and the number of the SYN.
    pub(crate) fn next_probe(
        &mut self,
        now: Instant,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<(Backend, TcpSeq)> {
        let share = self.share;
        while self.probe_due.is_some_and(|due| due <= now) {
            let slots = self.slots.iter_mut().flatten();
            let mut all = slots.filter(|slot| passes_by_marked(&slot.mode)).flat_map(
                |Slot { mode, health, .. }| {
                    let each = health.iter_mut().zip(backends(mode));
                    each.map(|(health, addr)| (health, &*mode, *addr))
                },
            );
            let due = |health: &Health| health.probe_due().is_some_and(|due| due <= now);
            let (health, mode, addr) = all.find(|(health, ..)| due(health))?;
            let isn = TcpSeq(secrets.next_u32());
            let free = |to: &Backend| is_free(to) && !health.has_sent_from(to.source);
            let found = source_towards(share, mode, addr, secrets, free);
            let probe = found.map(|found| Sent {
                source: found.source,
                ack: isn.add(1),
                at: Some(now),
            });
            health.note_probe(now, probe);
            self.find_due();
            if let Some(found) = found {
                return Some((found, isn));
            }
        }
        None
    }

    /// When the next check is due, or the time for the answer to one is over; `None`: there is nobody to check.
    pub(crate) const fn check_due(&self) -> Option<Instant> {
        self.check_due
    }

    /// What is due of the checks, one step at a time.
    pub(crate) fn next_check(
        &mut self,
        now: Instant,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<CheckStep> {
        while self.check_due.is_some_and(|due| due <= now) {
            let (service, at, check) = self.check_that_is_due(now)?;
            let share = self.share;
            let slot = self.slots.get_mut(usize::from(service.0))?.as_mut()?;
            let addr = *backends(&slot.mode).get(at)?;
            let order = (count(at), count(slot.health.len()));
            let health = slot.health.get_mut(at)?;
            if health.checked.is_overdue(now) {
                let of = (service, addr);
                let is_new = self.note_check_failed(now, of, MarkReason::Silent);
                return Some(CheckStep::Failed { of, is_new });
            }
            if !health.checked.begin(now, check, order) {
                let isn = TcpSeq(secrets.next_u32());
                let free = |to: &Backend| is_free(to) && !health.has_sent_from(to.source);
                let found = source_towards(share, &slot.mode, addr, secrets, free);
                let sent = found.map(|found| Sent {
                    source: found.source,
                    ack: isn.add(1),
                    at: Some(now),
                });
                health.checked.note_sent(now, sent, check);
                if let Some(to) = found {
                    self.find_due();
                    return Some(CheckStep::Send { to, isn });
                }
            }
            self.find_due();
        }
        None
    }

    /// A back end that is to be checked now, by its service and its place there.
    fn check_that_is_due(&self, now: Instant) -> Option<(ServiceId, usize, Check)> {
        let slots = (0..).map(ServiceId).zip(&self.slots);
        let mut due = slots.filter_map(|(id, slot)| {
            let slot = slot.as_ref()?;
            let mut health = slot.health.iter();
            let at = health.position(|health| health.checked.due() <= now)?;
            Some((id, at, slot.check?))
        });
        due.next()
    }

    /// The check of a back end that was the last has failed. `true`: it is marked from now on.
    pub(crate) fn note_check_failed(
        &mut self,
        now: Instant,
        of: (ServiceId, SocketAddr),
        reason: MarkReason,
    ) -> bool {
        let check = self.slot(of.0).and_then(|slot| slot.check);
        let new = check.is_some_and(|check| {
            self.learn(now, of, |health| {
                health.note_check_failed(now, reason, check)
            })
        });
        self.find_due();
        new
    }

    /// The same of one that was answered, after `rtt`. `true`: it was marked.
    pub(crate) fn note_check_passed(
        &mut self,
        now: Instant,
        of: (ServiceId, SocketAddr),
        rtt: Option<Duration>,
    ) -> bool {
        let check = self.slot(of.0).and_then(|slot| slot.check);
        let back = check.is_some_and(|check| {
            self.learn(now, of, |health| health.note_check_passed(now, rtt, check))
        });
        self.find_due();
        back
    }

    /// Whether the last check of a back end waits for its answer.
    pub(crate) fn awaits_check(
        &self,
        now: Instant,
        (service, addr): (ServiceId, SocketAddr),
    ) -> bool {
        let health = self.health(service, addr);
        health.is_some_and(|health| health.checked.waits(now))
    }

    /// The SYN without a connection that a packet from `addr` to `source` with this ACK answers: which service's, and
    /// what it was sent for.
    pub(crate) fn find_sent(
        &self,
        (addr, source): (SocketAddr, SocketAddr),
        ack: TcpSeq,
    ) -> Option<(ServiceId, AnswerTo, Sent)> {
        if self.marked == 0 && self.check_due.is_none() {
            return None;
        }
        let places = (0..).zip(&self.slots).filter_map(|(id, slot)| {
            let slot = slot.as_ref()?;
            let health = &slot.health[place(&slot.mode, addr)?];
            let (to, sent) = health.find_sent(source, ack)?;
            Some((ServiceId(id), to, sent))
        });
        places.into_iter().next()
    }

    /// A back end whose mark has changed since this was asked last.
    pub(crate) fn next_untold(&mut self) -> Option<BackendState> {
        if !self.untold {
            return None;
        }
        for (id, slot) in (0..).zip(&mut self.slots) {
            let health = slot.iter_mut().flat_map(|slot| &mut slot.health);
            for (backend, health) in health.enumerate() {
                if mem::take(&mut health.untold) {
                    return Some(BackendState {
                        service: ServiceId(id),
                        backend,
                        mark: health.mark(),
                    });
                }
            }
        }
        self.untold = false;
        None
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Whether a back end that is marked is passed by: not one that there is nobody beside. A box has the server itself.
fn passes_by_marked(mode: &Mode) -> bool {
    backends(mode).len() > 1 || matches!(mode, Mode::Box { .. })
}
