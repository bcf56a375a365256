//! Rules: which connections are steered how.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use core::ops::{Range, RangeInclusive};
use core::time::Duration;

use super::index::Index;
use super::{Account, SteeringMode};
use crate::access::AccessId;
use crate::carrier::Carrier;
use crate::handle::ServiceId;
use crate::prefix::Prefix;

/// How the connections that fit in all that it says are steered (a multi-access rule, 3GPP TS 29.244).
#[derive(Clone, Debug)]
pub struct Rule {
    /// For logs and `show`.
    pub name: Arc<str>,
    /// Services that connections are of; any when empty.
    pub services: Vec<ServiceId>,
    /// Where servers lie; anywhere when empty.
    pub servers: Vec<Prefix>,
    /// Ports of servers; any when empty.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Where clients lie, by the address that they came from first; anywhere when empty.
    pub clients: Vec<Prefix>,
    /// Which of its paths a connection takes.
    pub mode: Arc<dyn SteeringMode>,
    /// A connection is moved by its mode at the earliest so long after it was moved last.
    pub hold: Duration,
    /// The same where the mode moves it back to what the operator prefers, if that is longer.
    pub fail_back: Duration,
    /// A path that the client wants as backup (RFC 8684 section 3.3.8) is taken when no other is left. `false`: what the
    /// client wants does not count.
    pub heeds_backup: bool,
    /// What carries connections of its services and clients, if a relay listens for their service: that is decided at the SYN, before
    /// there is a server. `None`: what the service says.
    pub carrier: Option<Carrier>,
}

/// Rules that there may be.
pub const MAX_RULES: usize = 16_384;

/// What rules know of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    pub(crate) service: ServiceId,
    pub(crate) server: SocketAddr,
    /// Where the client came from first.
    pub(crate) client: IpAddr,
}

impl Rule {
    fn fits(&self, of: &Descriptor) -> bool {
        let within = |all: &[Prefix], addr: IpAddr| {
            all.is_empty() || all.iter().any(|prefix| prefix.contains(addr))
        };
        let port = of.server.port();
        let port_fits = self.ports.is_empty() || self.ports.iter().any(|p| p.contains(&port));
        let service_fits = self.services.is_empty() || self.services.contains(&of.service);
        service_fits
            && port_fits
            && within(&self.servers, of.server.ip())
            && within(&self.clients, of.client)
    }

    /// The same of a connection whose server is not chosen yet.
    fn fits_before_server(&self, service: ServiceId, client: IpAddr) -> bool {
        let from = self.clients.iter().any(|prefix| prefix.contains(client));
        let of = self.services.contains(&service);
        let anywhere = self.servers.is_empty() && self.ports.is_empty();
        anywhere && (self.clients.is_empty() || from) && (self.services.is_empty() || of)
    }
}

/// A rule's place in the order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleId(NonZeroU16);

impl RuleId {
    fn new(place: usize) -> Option<Self> {
        let number = u16::try_from(place + 1).ok()?;
        NonZeroU16::new(number).map(Self)
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A rule, and where its accounts begin in the [ledger](super::Ledger): one for each access, and one for paths of none.
#[derive(Debug)]
struct Kept {
    rule: Rule,
    accounts: Option<usize>,
}

/// All of them, in order of precedence.
#[derive(Default, Debug)]
pub(crate) struct Rules {
    kept: Vec<Kept>,
    /// Where the first that fits a connection is found.
    index: Index,
    /// The places of those that say what carries connections.
    carriers: Vec<usize>,
    /// Accesses that there are.
    accesses: usize,
    /// Differs from that of the rules before; 0: there have been none.
    generation: u16,
}

impl Rules {
    /// The first [`MAX_RULES`] of `rules`, which take the place of `before`. A rule that goes by the name of one before keeps its
    /// accounts.
    pub(crate) fn new(mut rules: Vec<Rule>, accesses: usize, before: &Self) -> Self {
        rules.truncate(MAX_RULES);
        let wide = accesses + 1;
        let known: BTreeMap<_, _> = if before.accesses == accesses {
            let shared = before.kept.iter();
            shared
                .filter_map(|kept| Some((&*kept.rule.name, kept.accounts?)))
                .collect()
        } else {
            BTreeMap::new()
        };
        let own = |rule: &Rule| {
            let shares = rule.mode.shares();
            known.get(&*rule.name).copied().filter(|_| shares)
        };
        let taken: BTreeSet<usize> = rules.iter().filter_map(own).collect();
        let mut free = (0..).map(|n| n * wide).filter(|at| !taken.contains(at));
        let keep = |rule: Rule| {
            let new = || rule.mode.shares().then(|| free.next()).flatten();
            let accounts = own(&rule).or_else(new);
            Kept { rule, accounts }
        };
        let carriers = rules.iter().enumerate();
        let carriers = carriers.filter(|(_, rule)| rule.carrier.is_some());
        Self {
            carriers: carriers.map(|(place, _)| place).collect(),
            index: Index::new(&rules),
            kept: rules.into_iter().map(keep).collect(),
            accesses,
            // From 1 on, so that whoever has seen none finds that there are some.
            generation: before.generation.checked_add(1).unwrap_or(1),
        }
    }

    /// Tells the rules apart from those before.
    pub(crate) const fn generation(&self) -> u16 {
        self.generation
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.kept.len()
    }

    /// Accounts that the ledger has to have.
    pub(crate) fn accounts(&self) -> usize {
        let ends = self.ranges().map(|range| range.end);
        ends.max().unwrap_or(0)
    }

    /// Those of them that the same rule of `before` has not had.
    pub(crate) fn new_accounts(&self, before: &Self) -> impl Iterator<Item = Range<usize>> {
        let same = self.accesses == before.accesses;
        let names = |rules: &Self| -> BTreeSet<(usize, Arc<str>)> {
            let shared = rules.kept.iter();
            shared
                .filter_map(|kept| Some((kept.accounts?, kept.rule.name.clone())))
                .collect()
        };
        let known = names(before);
        let wide = self.accesses + 1;
        let new = names(self).into_iter();
        new.filter(move |named| !same || !known.contains(named))
            .map(move |(start, _)| start..start + wide)
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = self.kept.iter().filter_map(|kept| kept.accounts);
        starts.map(|start| start..start + self.accesses + 1)
    }

    /// The first that fits. `None`: the path that works stays the active one.
    pub(crate) fn find(&self, connection: &Descriptor) -> Option<RuleId> {
        let fits = |place: usize| {
            let kept = self.kept.get(place);
            kept.is_some_and(|kept| kept.rule.fits(connection))
        };
        RuleId::new(self.index.find(connection, fits)?)
    }

    /// What carries a connection whose server is not chosen yet: as the first rule says that is for its service and client, and says
    /// anything about it. Those with servers or ports are for none such.
    pub(crate) fn carrier(&self, service: ServiceId, client: IpAddr) -> Option<Carrier> {
        let mut rules = self.carriers.iter().filter_map(|&at| self.kept.get(at));
        let fits = |kept: &&Kept| kept.rule.fits_before_server(service, client);
        rules.find(fits)?.rule.carrier
    }

    /// The same by a look at each, for comparison.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn find_one_by_one(&self, connection: &Descriptor) -> Option<RuleId> {
        let mut rules = self.kept.iter().map(|kept| &kept.rule);
        RuleId::new(rules.position(|rule| rule.fits(connection))?)
    }

    pub(crate) fn get(&self, id: RuleId) -> Option<&Rule> {
        let kept = self.kept.get(id.place())?;
        Some(&kept.rule)
    }

    /// Where it is counted what the rule's connections carry over an access. `None`: it is not.
    pub(crate) fn account(&self, id: RuleId, access: Option<AccessId>) -> Option<Account> {
        let first = self.kept.get(id.place())?.accounts?;
        let place = access.map_or(0, |access| usize::from(access.0) + 1);
        Account::new(first + place.min(self.accesses))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::steering::{RoundRobin, SmallestDelay};

    fn rule(name: &str) -> Rule {
        Rule {
            name: name.into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode: Arc::new(SmallestDelay),
            hold: Duration::ZERO,
            fail_back: Duration::ZERO,
            heeds_backup: true,
            carrier: None,
        }
    }

    fn made(rules: Vec<Rule>) -> Rules {
        Rules::new(rules, 0, &Rules::default())
    }

    fn prefix(addr: &str, len: u8) -> Prefix {
        Prefix {
            addr: addr.parse().unwrap(),
            len,
        }
    }

    #[test]
    fn first_rule_that_fits_in_all_is_the_connections() {
        let rules = made(vec![
            Rule {
                services: vec![ServiceId(3)],
                ports: vec![443..=443, 8000..=8999],
                ..rule("ports")
            },
            Rule {
                servers: vec![prefix("192.0.2.0", 24), prefix("2001:db8::", 32)],
                clients: vec![prefix("10.1.0.0", 16)],
                ..rule("ends")
            },
            Rule {
                services: vec![ServiceId(3)],
                ..rule("service")
            },
        ]);
        let of = |service: u16, server: &str, client: &str| {
            let descriptor = Descriptor {
                service: ServiceId(service),
                server: server.parse().unwrap(),
                client: client.parse().unwrap(),
            };
            rules
                .find(&descriptor)
                .map(|id| &*rules.get(id).unwrap().name)
        };
        assert_eq!(of(3, "192.0.2.1:8999", "10.1.0.1"), Some("ports"));
        assert_eq!(of(4, "192.0.2.1:8999", "10.1.0.1"), Some("ends"));
        assert_eq!(of(3, "192.0.2.1:9000", "10.1.0.1"), Some("ends"));
        assert_eq!(of(3, "192.0.3.1:9000", "10.1.0.1"), Some("service"));
        assert_eq!(of(3, "192.0.2.1:9000", "10.2.0.1"), Some("service"));
        assert_eq!(of(4, "[2001:db8::1]:80", "10.1.0.1"), Some("ends"));
        assert_eq!(of(4, "[2001:db9::1]:80", "10.1.0.1"), None);
    }

    fn sharing(name: &str) -> Rule {
        Rule {
            mode: Arc::new(RoundRobin),
            ..rule(name)
        }
    }

    /// Where the rules' accounts of no access are.
    fn firsts(rules: &Rules) -> Vec<Option<Account>> {
        let ids = (0..rules.kept.len()).filter_map(RuleId::new);
        ids.map(|id| rules.account(id, None)).collect()
    }

    #[test]
    fn rules_that_share_have_an_account_for_each_access() {
        let none = Rules::default();
        let rules = Rules::new(vec![sharing("a"), rule("b"), sharing("c")], 2, &none);
        let at = Account::new;
        assert_eq!(firsts(&rules), [at(0), None, at(3)]);
        let of = |access| rules.account(RuleId::new(2).unwrap(), Some(AccessId(access)));
        assert_eq!([of(0), of(1), of(2)], [at(4), at(5), at(5)]);
        assert_eq!(rules.accounts(), 6);
        assert_eq!(rules.new_accounts(&none).collect::<Vec<_>>(), [0..3, 3..6]);
        assert_eq!(rules.account(RuleId::new(9).unwrap(), None), None);
        assert_eq!((none.accounts(), none.generation()), (0, 0));
    }

    #[test]
    fn rules_of_the_same_name_keep_their_accounts() {
        let first = Rules::new(vec![sharing("a"), sharing("b")], 1, &Rules::default());
        let then = vec![sharing("new"), sharing("b"), sharing("late"), rule("a")];
        let later = Rules::new(then, 1, &first);
        let at = Account::new;
        assert_eq!(firsts(&later), [at(0), at(2), at(4), None]);
        // Accounts of a rule that is gone are another's, with nothing in them.
        let anew: Vec<_> = later.new_accounts(&first).collect();
        assert_eq!(anew, [0..2, 4..6]);
        assert_eq!((first.generation(), later.generation()), (1, 2));
        let wider = Rules::new(vec![sharing("b")], 2, &later);
        let anew = wider.new_accounts(&later).next();
        assert_eq!(anew, Some(0..3));
    }
}
