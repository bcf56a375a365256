//! The accounts of what connections carry: they follow the rules, and what the fast path carries is paid in.

use core::time::Duration;

use super::Translator;
use crate::Instant;
use crate::access::Accesses;
use crate::arrivals::{AccessTotals, Arrivals};
use crate::config::{Config, Settings};
use crate::steering::{Ledger, Rules};

/// How often the fast path is asked what it has carried.
const PERIOD: Duration = Duration::from_millis(100);

/// The ledger, and what it has heard of the fast path.
#[derive(Default, Debug)]
pub(crate) struct Accounts {
    pub(crate) ledger: Ledger,
    /// What comes over accesses.
    pub(crate) arrivals: Arrivals,
    /// When the fast path was asked last.
    asked: Instant,
}

impl Settings {
    /// What `config` says beside its services, in place of `before`.
    pub(super) fn new(config: Config, before: &Rules, accounts: &mut Accounts) -> Self {
        let accesses = Accesses::new(config.accesses);
        accounts.arrivals.name(&accesses);
        let rules = Rules::new(config.rules, accesses.count(), before);
        accounts
            .ledger
            .open(rules.accounts(), rules.new_accounts(before));
        Self {
            accesses,
            rules,
            limits: config.limits,
            timeouts: config.timeouts,
        }
    }
}

impl Translator {
    /// What has come over each access so far, in the order of the configuration; last, over none of them. Bytes are those of
    /// subflows that are over: [`list`](Self::list) tells what the others have carried.
    pub fn access_totals(&self) -> impl Iterator<Item = AccessTotals> {
        self.accounts.arrivals.totals()
    }

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
