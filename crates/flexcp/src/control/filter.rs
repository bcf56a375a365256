//! Which connections a client wants, as it writes it.

use std::net::SocketAddr;

use flexcp_translator::{AccessId, ConnectionState, Filter, Place, Prefix, ServiceId};

use super::fault::Fault;
use super::server::{Named, Names};
use super::wanted::Wanted;
use crate::config::{self, Config};

impl Wanted {
    /// What a worker is asked for, or what is wrong.
    pub(super) fn filter(&self, names: &Names) -> Result<Filter, Fault> {
        let states = self.state.iter().map(|name| state(name));
        let states = states.collect::<Result<_, _>>();
        Ok(Filter {
            states: states.map_err(|wrong| Fault::parameter("state", &wrong))?,
            service: one("service", self.service.as_deref(), |name| {
                service(&names.services, name)
            })?,
            client: one("client", self.client.as_deref(), place)?,
            server: one("server", self.server.as_deref(), place)?,
            access: one("access", self.access.as_deref(), |name| {
                access(&names.accesses, name)
            })?,
            rule: self.rule.clone(),
        })
    }
}

/// A rule that a client names has to be one of the configuration in force.
pub(super) fn known_rule(name: &str, config: &Config) -> Result<(), Fault> {
    if config.rules.iter().any(|rule| rule.name.value == name) {
        return Ok(());
    }
    let wrong = format!("there is no rule `{name}`; GET /v1/rules says which there are");
    Err(Fault::parameter("rule", &wrong))
}

/// What a parameter means, if it is there.
fn one<T>(
    name: &str,
    value: Option<&str>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Fault> {
    let read = value.map(read).transpose();
    read.map_err(|wrong| Fault::parameter(name, &wrong))
}

fn state(name: &str) -> Result<ConnectionState, String> {
    let mut all = ConnectionState::ALL.into_iter();
    all.find(|state| state.name() == name).ok_or_else(|| {
        let names = ConnectionState::ALL.map(ConnectionState::name).join(", ");
        format!("`{name}` is no state of a connection; those are {names}")
    })
}

fn service(services: &[Named], name: &str) -> Result<ServiceId, String> {
    let named = services.iter().find(|service| service.name == name);
    named.map(|service| service.id).ok_or_else(|| {
        let names: Vec<_> = services.iter().map(|named| named.name.as_str()).collect();
        format!(
            "there is no service `{name}`; there are {}",
            names.join(", ")
        )
    })
}

pub(super) fn access(accesses: &[String], name: &str) -> Result<AccessId, String> {
    let mut numbered = (0..).map(AccessId).zip(accesses);
    let named = numbered.find(|(_, access)| *access == name);
    named.map(|(id, _)| id).ok_or_else(|| match accesses {
        [] => "there are no accesses; write [[access]] sections".into(),
        names => format!(
            "there is no access `{name}`; there are {}",
            names.join(", ")
        ),
    })
}

/// Addresses, a port, or both.
fn place(text: &str) -> Result<Place, String> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        let len = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = Prefix {
            addr: addr.ip(),
            len,
        };
        return Ok(Place {
            prefix: Some(prefix),
            port: Some(addr.port()),
        });
    }
    // A port stands alone, or behind the length of a prefix.
    let colon = match text.find('/') {
        Some(slash) => text[slash..].find(':').map(|at| slash + at),
        None => Some(0).filter(|_| text.starts_with(':') && !text.starts_with("::")),
    };
    let (addresses, port) = match colon {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let port = port.map(|port| {
        let number = port.parse().ok().filter(|port| *port != 0);
        number.ok_or_else(|| format!("`{port}` is not a port; ports are 1 to 65535"))
    });
    let prefix = (!addresses.is_empty()).then(|| config::prefix(addresses));
    if prefix.is_none() && port.is_none() {
        return Err(
            "an empty address; write one like \"192.0.2.1\", a prefix, or a port like \":443\""
                .into(),
        );
    }
    Ok(Place {
        prefix: prefix.transpose()?,
        port: port.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match place(text) {
            Ok(Place { prefix, port }) => {
                let prefix = prefix.map(|prefix| format!("{}/{}", prefix.addr, prefix.len));
                let port = port.map(|port: u16| port.to_string());
                format!(
                    "{} {}",
                    prefix.as_deref().unwrap_or("-"),
                    port.as_deref().unwrap_or("-")
                )
            }
            Err(error) => error,
        }
    }

    #[test]
    fn places_are_addresses_prefixes_and_ports() {
        for (text, meaning) in [
            ("10.1.2.3", "10.1.2.3/32 -"),
            ("10.0.0.0/8", "10.0.0.0/8 -"),
            ("10.1.2.3:443", "10.1.2.3/32 443"),
            ("10.0.0.0/8:443", "10.0.0.0/8 443"),
            (":443", "- 443"),
            ("2001:db8::1", "2001:db8::1/128 -"),
            ("::1", "::1/128 -"),
            ("2001:db8::/32", "2001:db8::/32 -"),
            ("[2001:db8::1]:443", "2001:db8::1/128 443"),
            ("2001:db8::/32:443", "2001:db8::/32 443"),
            (
                "",
                "an empty address; write one like \"192.0.2.1\", a prefix, or a port like \":443\"",
            ),
            (":0", "`0` is not a port; ports are 1 to 65535"),
            (":http", "`http` is not a port; ports are 1 to 65535"),
            (
                "10.1.2.3/8",
                "`10.1.2.3/8` has bits set behind the prefix; the network is 10.0.0.0/8",
            ),
            (
                "here",
                "`here` is not an address prefix; write it like \"192.0.2.0/24\" or \"2001:db8::/32\"",
            ),
        ] {
            assert_eq!(read(text), meaning, "{text}");
        }
    }

    #[test]
    fn names_that_nobody_has_are_told_with_those_there_are() {
        let services = [(7, "web"), (1, "mail")].map(|(id, name)| Named {
            id: ServiceId(id),
            name: name.into(),
            mode: "transparent",
        });
        let names = Names {
            services: services.to_vec(),
            accesses: vec!["dsl".into(), "lte".into()],
        };
        let wanted = Wanted {
            state: vec!["plain".into(), "half-closed".into()],
            service: Some("mail".into()),
            ..Wanted::default()
        };
        let filter = wanted.filter(&names).unwrap();
        let states = [ConnectionState::Plain, ConnectionState::HalfClosed];
        assert_eq!(
            (filter.states, filter.service),
            (states.to_vec(), Some(ServiceId(1)))
        );
        assert_eq!(Wanted::default().filter(&names), Ok(Filter::default()));
        let wanted = Wanted {
            service: Some("ftp".into()),
            ..Wanted::default()
        };
        assert_eq!(
            wanted.filter(&names).unwrap_err().to_string(),
            "there is no service `ftp`; there are web, mail"
        );
        let of = |access: &str| Wanted {
            access: Some(access.into()),
            ..Wanted::default()
        };
        assert_eq!(of("lte").filter(&names).unwrap().access, Some(AccessId(1)));
        assert_eq!(
            of("5g").filter(&names).unwrap_err().to_string(),
            "there is no access `5g`; there are dsl, lte"
        );
        assert_eq!(
            of("5g").filter(&Names::default()).unwrap_err().to_string(),
            "there are no accesses; write [[access]] sections"
        );
        let wanted = Wanted {
            state: vec!["open".into()],
            ..Wanted::default()
        };
        assert_eq!(
            wanted.filter(&names).unwrap_err().to_string(),
            "`open` is no state of a connection; those are handshake, translating, half-closed, closed, plain, fallback, \
             reset"
        );
    }
}
