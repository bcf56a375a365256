//! One line for each service, for `check` and the log.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::file::{Config, Mode, ProxyProtocol, Service};
use super::location::Choice;
use super::rule::Rule;
use super::span::Located;
use super::value::{ShowAnnounce, ShowPorts, ShowPrefix};

/// "web: transparent, to 10.9.0.0/16 port 80,443 from eth0; announces 192.0.2.1", for each service.
#[must_use]
pub fn summary(config: &Config) -> Vec<String> {
    config.services.iter().map(line).collect()
}

/// "rule video: active-standby, lte,dsl; to 10.9.0.0/16 port 443", for each rule, in their order.
#[must_use]
pub fn summary_of_rules(config: &Config) -> Vec<String> {
    config.rules.iter().map(rule).collect()
}

fn rule(rule: &Rule) -> String {
    let mut line = format!("rule {}: {}", rule.name.value, rule.mode.value.name());
    if !rule.accesses.is_empty() {
        line += &format!(", {}", join(&rule.accesses, |name| name));
    }
    if let Some(weights) = &rule.weights {
        let weights = weights.value.0.iter();
        let weights: Vec<_> = weights
            .map(|(name, weight)| format!("{name} {weight}"))
            .collect();
        line += &format!(", {}", weights.join(", "));
    }
    let parts = [
        ("service", join(&rule.services, |name| name)),
        ("to", join(&rule.servers, |to| ShowPrefix(*to))),
        ("port", join(&rule.ports, ShowPorts)),
        ("from", join(&rule.clients, |from| ShowPrefix(*from))),
    ];
    let told = parts.iter().filter(|(_, names)| !names.is_empty());
    let told: Vec<_> = told
        .map(|(what, names)| format!("{what} {names}"))
        .collect();
    let traffic = if told.is_empty() {
        "all".into()
    } else {
        told.join(" ")
    };
    format!("{line}; {traffic}")
}

fn line(service: &Service) -> String {
    let mut line = format!("{}: {}, ", service.name.value, service.mode.name());
    match &service.mode {
        Mode::Transparent {
            destinations,
            ports,
            ..
        }
        | Mode::Box {
            destinations,
            ports,
            ..
        } => {
            line += &format!("to {}", join(destinations, |to| ShowPrefix(*to)));
            line += &match ports.as_slice() {
                [] => ", all ports".into(),
                ports => format!(" port {}", join(ports, ShowPorts)),
            };
        }
        Mode::Reverse { .. } => line += &to_backends(&service.mode),
        Mode::Explicit {
            listen,
            allow,
            ports,
            source,
            source_ports,
            users,
            ..
        } => {
            let to = join(allow, |to| ShowPrefix(*to));
            line += &format!("{}{} to {to}", join(listen, |to| to), by(users.len()));
            if !ports.is_empty() {
                line += &format!(" port {}", join(ports, ShowPorts));
            }
            line += &from(source, source_ports);
        }
    }
    line += &of_box(&service.mode);
    if !service.interfaces.is_empty() {
        line += &format!(", clients on {}", join(&service.interfaces, |name| name));
    }
    if !service.announce.is_empty() {
        line += &format!(
            "; announces {}",
            join(&service.announce, |announce| ShowAnnounce(*announce))
        );
    }
    line
}

/// Over what and by whom a box leads its connections, if it is one.
fn of_box(mode: &Mode) -> String {
    let Mode::Box {
        uplinks,
        servers,
        except,
        choice,
        ..
    } = mode
    else {
        return String::new();
    };
    let mut line = String::new();
    if !except.is_empty() {
        let sets = join(except, |set| ShowPrefix(set.servers));
        line += &format!(" except {sets}");
    }
    line += &format!(", over {}", join(uplinks, |name| name));
    if !servers.is_empty() {
        line += &format!(" by {}", join(servers, |server| server));
        line += &chosen(choice);
    }
    line
}

/// By what the servers of a box are chosen, if that is measured.
fn chosen(choice: &Choice) -> String {
    match choice.measures() {
        true => format!(", chosen by {}", choice.choose.value.name()),
        false => String::new(),
    }
}

/// From where to which back ends, if it has some.
fn to_backends(mode: &Mode) -> String {
    let Mode::Reverse {
        listen,
        backends,
        source,
        source_ports,
        proxy_protocol,
        ..
    } = mode
    else {
        return String::new();
    };
    let told = match proxy_protocol.value {
        ProxyProtocol::Off => "",
        ProxyProtocol::V2 => " with PROXY headers",
    };
    let (listen, backends) = (join(listen, |to| to), join(backends, |to| to));
    let from = from(source, source_ports);
    format!("{listen} to {backends}{told}{from}")
}

/// Who may come in, if somebody is asked who he is.
fn by(users: usize) -> String {
    match users {
        0 => String::new(),
        1 => " by 1 user".into(),
        more => format!(" by {more} users"),
    }
}

/// Where servers see connections come from.
fn from(source: &[Located<IpAddr>], ports: &Located<RangeInclusive<u16>>) -> String {
    let addresses = match source {
        [] => String::new(),
        source => format!(" from {}", join(source, |from| from)),
    };
    format!("{addresses} ports {}", ShowPorts(&ports.value))
}

fn join<'a, T, S: Display>(list: &'a [Located<T>], show: impl Fn(&'a T) -> S) -> String {
    list.iter()
        .map(|item| show(&item.value).to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
