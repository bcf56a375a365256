//! The accounts of what connections carry: they follow the rules, and what the fast path carries is paid in.

use core::time::Duration;

use super::Translator;
use crate::Instant;
use crate::access::Accesses;
use crate::config::{Config, Settings};
use crate::steering::{Ledger, Rules};

/// How often the fast path is asked what it has carried.
const PERIOD: Duration = Duration::from_millis(100);

/// The ledger, and what it has heard of the fast path.
#[derive(Default, Debug)]
pub(crate) struct Accounts {
    pub(crate) ledger: Ledger,
    /// When the fast path was asked last.
    asked: Instant,
}

impl Settings {
    /// What `config` says beside its services, in place of `before`.
    pub(super) fn new(config: Config, before: &Rules, ledger: &mut Ledger) -> Self {
        let accesses = Accesses::new(config.accesses);
        let rules = Rules::new(config.rules, accesses.count(), before);
        ledger.open(rules.accounts(), rules.new_accounts(before));
        Self {
            accesses,
            rules,
            limits: config.limits,
            timeouts: config.timeouts,
        }
    }
}

impl Translator {
    /// Pays in what the fast path has carried, if it is time to.
    pub(super) fn tend_accounts(&mut self, now: Instant) {
        let Some(installer) = &mut self.installer else {
            return;
        };
        if self.accounts.ledger.is_empty() || now < self.accounts.asked + PERIOD {
            return;
        }
        self.accounts.asked = now;
        let ledger = &mut self.accounts.ledger;
        installer.carried(&mut |number, bytes| ledger.carry_installed(now, number, bytes));
    }

    /// When that is.
    pub(super) fn accounts_due(&self) -> Option<Instant> {
        let carries = self.installer.as_ref().is_some_and(|it| it.held() > 0);
        let counts = carries && !self.accounts.ledger.is_empty();
        counts.then(|| self.accounts.asked + PERIOD)
    }
}
