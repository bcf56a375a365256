//! The end of connections that nothing covers any more, once their time is over: both ends are told, as at a stop, then the
//! kernel brings their packets no more, and when none is on its way, they are forgotten.

use flexcp_io::monotonic_micros;
use tracing::{info, warn};

use super::Watcher;
use super::reload::report;
use super::telling::Telling;
use crate::config::live::own_addresses;

/// An end that is under way, of what was in force up to a number of the translators'.
#[derive(Debug)]
pub(super) struct Ending {
    upto: u64,
    due: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The ends are being told.
    Tell(Telling),
    /// The kernel is to bring their packets no more.
    Leave,
    /// What was on its way has come.
    Forget,
}

impl Ending {
    pub(super) fn due(&self) -> u64 {
        self.due
    }
}

impl Watcher {
    /// Does what is due about connections that are drained, at a moment in microseconds.
    pub(super) fn tend_drained(&mut self, now: u64) {
        let by = (&*self.workers, &self.reloads.relay);
        self.reloads
            .closings
            .retain_mut(|closing| closing.tend(now, by));
        if self.reloads.ending.is_none() {
            let over = self.reloads.force.over(now);
            self.reloads.ending = over.map(|upto| Ending {
                upto,
                due: now,
                step: Step::Tell(Telling::new(now)),
            });
        }
        let ending = self.reloads.ending.take();
        self.reloads.ending = ending.and_then(|ending| {
            if ending.due > now {
                return Some(ending);
            }
            self.go_on(ending, now)
        });
    }

    /// The next step of an end; `None`: that was the last.
    fn go_on(&mut self, mut ending: Ending, now: u64) -> Option<Ending> {
        match &mut ending.step {
            Step::Tell(telling) => {
                let upto = ending.upto;
                let over = telling.go_on(now, || {
                    let gone = self.reloads.force.gone(upto);
                    self.reloads.relay.end_services(gone);
                    let asked = self.workers.iter().map(|worker| worker.end_stranded(upto));
                    asked.collect()
                });
                ending.due = telling.due();
                if over {
                    ending.step = Step::Leave;
                }
            }
            Step::Leave => self.leave(&mut ending),
            Step::Forget => {
                self.forget(ending.upto);
                return None;
            }
        }
        Some(ending)
    }

    fn leave(&mut self, ending: &mut Ending) {
        self.reloads.force.divert_no_more(ending.upto);
        let (force, known) = (self.reloads.force.clone(), self.tables.uplinks());
        let plan = self.reloads.plan(&force, &own_addresses(), known);
        match self.tables.change(&plan, &mut report) {
            Ok(()) => {
                ending.step = Step::Forget;
                ending.due = monotonic_micros() + ON_ITS_WAY;
            }
            Err(error) => {
                warn!("{error}; rules of services that are gone stay, and are tried again");
                ending.due = monotonic_micros() + AGAIN;
            }
        }
    }

    fn forget(&mut self, upto: u64) {
        for worker in &self.workers {
            // When it has ended, so does FlexCP.
            let _ = worker.forget_stranded(upto);
        }
        let before = self.reloads.force.drained();
        self.reloads.force.forget(upto);
        let left = self.reloads.force.drained();
        for name in before.iter().filter(|name| !left.contains(name)) {
            info!("service {name} is gone");
        }
        self.sort_anew();
        self.beside.follow(&self.reloads.force);
    }
}

/// To the next try after one that failed.
const AGAIN: u64 = 1_000_000;
/// For packets that have come to the device already: one whose connection is not known any more would be refused.
const ON_ITS_WAY: u64 = 500_000;
