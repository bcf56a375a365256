//! What clients of the API have told about services: other weights of back ends than the file's, back ends in maintenance, and
//! services that are drained. It holds over reloads and restarts, until it is taken back or the configuration has the service
//! or the back end no more.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_translator::{Mode, Part};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::config::backend::Backend;
use crate::config::file;

/// All that was told.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Orders {
    /// Of each back end that something was told about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) backends: Vec<BackendOrder>,
    /// The names of services that are drained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drained: Vec<String>,
}

/// What was told about a back end.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackendOrder {
    service: String,
    address: SocketAddr,
    /// In place of the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u16>,
    #[serde(default)]
    maintenance: bool,
}

/// Something to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// About a back end.
    Backend {
        service: String,
        address: SocketAddr,
        change: Change,
    },
    /// The service takes no new connections, and those that it has are told the end after this time; `None`: that of a stop.
    Drain {
        service: String,
        within: Option<Duration>,
    },
    /// It takes new connections again, and those that it has go on.
    Undrain { service: String },
}

/// What changes of a back end; the rest stays.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Change {
    /// Another weight; none: the file's.
    pub(crate) weight: Option<Option<u16>>,
    pub(crate) maintenance: Option<bool>,
}

/// Nobody can be told so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unknown {
    /// There is no such service.
    #[error("there is no service `{0}`; `/v1/services` says which there are")]
    Service(String),
    /// It has no such back end.
    #[error("service `{0}` has no back end {1}; `/v1/services` says which it has")]
    Backend(String, SocketAddr),
}

impl Order {
    /// The name of the service that it is about.
    pub(crate) fn service(&self) -> &str {
        let (Self::Backend { service, .. }
        | Self::Drain { service, .. }
        | Self::Undrain { service }) = self;
        service
    }
}

impl Orders {
    /// With another one, about what `config` has.
    ///
    /// # Errors
    /// When it has no such service or back end.
    pub(crate) fn with(&self, config: &Config, order: &Order) -> Result<Self, Unknown> {
        let name = order.service();
        let mut services = config.services.iter();
        let Some(service) = services.find(|service| service.name.value == name) else {
            return Err(Unknown::Service(name.into()));
        };
        let mut new = self.clone();
        match order {
            Order::Backend {
                address, change, ..
            } => {
                if backends(service).all(|backend| backend.addr != *address) {
                    return Err(Unknown::Backend(name.into(), *address));
                }
                new.change(name, *address, *change);
            }
            Order::Drain { .. } if self.drains(name) => {}
            Order::Drain { .. } => new.drained.push(name.into()),
            Order::Undrain { .. } => new.drained.retain(|drained| drained != name),
        }
        Ok(new)
    }

    fn change(&mut self, service: &str, address: SocketAddr, change: Change) {
        let known = self
            .backends
            .iter()
            .position(|order| order.is(service, address));
        let mut order = known.map_or_else(
            || BackendOrder {
                service: service.into(),
                address,
                weight: None,
                maintenance: false,
            },
            |at| self.backends.remove(at),
        );
        order.weight = change.weight.unwrap_or(order.weight);
        order.maintenance = change.maintenance.unwrap_or(order.maintenance);
        if order.weight.is_some() || order.maintenance {
            self.backends.push(order);
        }
    }

    /// Those about what `config` has.
    pub(crate) fn about(&self, config: &Config) -> Self {
        let named = |name: &str| {
            let mut services = config.services.iter();
            services.find(|service| service.name.value == name)
        };
        let has = |order: &&BackendOrder| {
            let service = named(&order.service);
            service.is_some_and(|it| backends(it).any(|backend| backend.addr == order.address))
        };
        let fits = |order: &BackendOrder| BackendOrder {
            weight: order.weight.map(|weight| weight.min(Backend::MOST_WEIGHT)),
            ..order.clone()
        };
        let drained = self.drained.iter();
        Self {
            backends: self.backends.iter().filter(has).map(fits).collect(),
            drained: drained
                .filter(|name| named(name).is_some())
                .cloned()
                .collect(),
        }
    }

    /// Whether the service takes no new connections.
    pub(crate) fn drains(&self, service: &str) -> bool {
        self.drained.iter().any(|drained| drained == service)
    }

    /// What a back end takes, and whether it has its weight from here.
    pub(crate) fn part(&self, service: &str, backend: Backend) -> (Part, bool) {
        let order = self.backends.iter();
        let order = { order }.find(|order| order.is(service, backend.addr));
        let told = order.and_then(|order| order.weight);
        let part = Part {
            weight: told.unwrap_or(backend.weight),
            maintenance: order.is_some_and(|order| order.maintenance),
        };
        (part, told.is_some())
    }

    /// Has the translators' services do what was told.
    pub(crate) fn tell(&self, services: &mut [flexcp_translator::Service]) {
        for service in services {
            service.intake.closed = self.drains(&service.name);
            let Mode::Reverse { backends, .. } = &service.mode else {
                continue;
            };
            let parts = backends.iter().zip(&mut service.intake.parts);
            for (&addr, part) in parts {
                let weight = part.weight;
                (*part, _) = self.part(&service.name, Backend { addr, weight });
            }
        }
    }
}

impl BackendOrder {
    fn is(&self, service: &str, address: SocketAddr) -> bool {
        self.service == service && self.address == address
    }
}

/// Those that a service has; none on the path.
fn backends(service: &file::Service) -> impl Iterator<Item = Backend> {
    let backends = service.mode.backends().iter();
    backends.map(|backend| backend.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const FILE: &str = "[[service]]\nname = 'shop'\nmode = 'reverse'\nlisten = ['203.0.113.5:443']\n\
        backends = ['10.0.0.11:443', { address = '10.0.0.12:443', weight = 4 }]\n\
        [[service]]\nname = 'web'\nmode = 'transparent'\ndestinations = ['10.9.0.0/16']\n";

    fn config(text: &str) -> Config {
        let (config, found) = parse("f", text);
        assert!(!found.has_errors(), "{found}");
        config.unwrap()
    }

    fn addr(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 443).into()
    }

    fn order(last: u8, weight: Option<Option<u16>>, maintenance: Option<bool>) -> Order {
        Order::Backend {
            service: "shop".into(),
            address: addr(last),
            change: Change {
                weight,
                maintenance,
            },
        }
    }

    /// Weight, maintenance and whether the weight was told, of both back ends.
    fn parts(orders: &Orders) -> [(u16, bool, bool); 2] {
        [(11, 1), (12, 4)].map(|(last, weight)| {
            let addr = addr(last);
            let (part, told) = orders.part("shop", Backend { addr, weight });
            (part.weight, part.maintenance, told)
        })
    }

    #[test]
    fn what_is_told_holds_until_it_is_taken_back() {
        let config = config(FILE);
        let mut orders = Orders::default();
        assert_eq!(parts(&orders), [(1, false, false), (4, false, false)]);
        for (told, expected) in [
            (order(12, Some(Some(9)), None), (9, false, true)),
            (order(12, None, Some(true)), (9, true, true)),
            (order(12, Some(None), None), (4, true, false)),
            (order(12, Some(Some(4)), Some(false)), (4, false, true)),
            (order(12, Some(None), None), (4, false, false)),
        ] {
            orders = orders.with(&config, &told).unwrap();
            assert_eq!(parts(&orders), [(1, false, false), expected], "{told:?}");
        }
        assert_eq!(orders, Orders::default(), "nothing is left of it");
    }

    #[test]
    fn nobody_is_told_what_is_not_there() {
        let config = config(FILE);
        let orders = Orders::default();
        let wrong = |order: &Order| orders.with(&config, order).unwrap_err().to_string();
        let said = wrong(&order(13, None, Some(true)));
        assert!(
            said.starts_with("service `shop` has no back end 10.0.0.13:443; "),
            "{said}"
        );
        let service = "mail".to_owned();
        let said = wrong(&Order::Undrain { service });
        assert!(said.starts_with("there is no service `mail`; "), "{said}");
    }

    #[test]
    fn drained_services_are_named_once() {
        let config = config(FILE);
        let service = || "web".to_owned();
        let drain = Order::Drain {
            service: service(),
            within: None,
        };
        let once = Orders::default().with(&config, &drain).unwrap();
        assert!(once.drains("web") && !once.drains("shop"));
        assert_eq!(once.with(&config, &drain).unwrap(), once);
        let undrain = Order::Undrain { service: service() };
        assert_eq!(once.with(&config, &undrain).unwrap(), Orders::default());
    }

    #[test]
    fn what_the_configuration_has_no_more_is_forgotten() {
        let config = config(FILE);
        let mut orders = Orders::default();
        let drain = Order::Drain {
            service: "web".into(),
            within: None,
        };
        for told in [
            order(11, Some(Some(0)), None),
            order(12, None, Some(true)),
            drain,
        ] {
            orders = orders.with(&config, &told).unwrap();
        }
        assert_eq!(orders.about(&config), orders);
        let without = FILE.replace("'10.0.0.11:443', ", "");
        let without = without.replace("'web'", "'mail'");
        let left = orders.about(&self::config(&without));
        assert_eq!(parts(&left), [(1, false, false), (4, true, false)]);
        assert!(!left.drains("web"));
    }

    #[test]
    fn translators_are_told() {
        let config = config(FILE);
        let orders = Orders::default()
            .with(&config, &order(12, Some(Some(0)), Some(true)))
            .unwrap();
        let ids = crate::config::plan::first_ids(&config);
        let sources = [vec![], vec![]];
        let mut told = crate::config::plan::translator(&config, &sources, &ids, 0).services;
        orders.tell(&mut told);
        let expected = Part {
            weight: 0,
            maintenance: true,
        };
        assert_eq!(told[0].intake.parts, [Part::of(1), expected]);
    }
}
