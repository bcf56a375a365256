//! `carrier`: which connections may be split, and why others can't be.

use std::net::SocketAddr;

use flexcp_translator::Carrier;

use super::file::{Config, Mode, Service};
use super::plan;
use super::rule::Rule;
use super::span::Diagnostics;

/// Adds what stands in the way of services' carriers to `out`.
pub(super) fn check(config: &Config, out: &mut Diagnostics) {
    for service in &config.services {
        of_service(config, service, out);
    }
}

/// Where clients of services that may be split connect to.
pub(crate) fn relays(config: &Config) -> Vec<SocketAddr> {
    let services = config.services.iter();
    let relayed = services.filter(|service| service.carrier.is_some());
    let listen = relayed.flat_map(|service| service.mode.listen());
    listen.map(|listen| listen.value).collect()
}

fn of_service(config: &Config, service: &Service, out: &mut Diagnostics) {
    let Some(carrier) = &service.carrier else {
        return;
    };
    let why = if matches!(service.mode, Mode::Transparent { .. } | Mode::Box { .. }) {
        format!(
            "mode = \"{}\" can't: the relay listens at FlexCP's own addresses, which `listen` of the other modes says",
            service.mode.name()
        )
    } else if !config.offload.enabled.value {
        "`enabled` in [offload] is false, and its programs alone can bring packets of split connections to the kernel".into()
    } else if plan::mark(config) == 0 {
        "`mark` in [offload] is 0, and by it alone packets of split connections come to the kernel"
            .into()
    } else if !service.interfaces.is_empty() {
        "it names `interfaces`, and the kernel's socket would take clients from all".into()
    } else {
        return;
    };
    let said = format!(
        "connections of this service can't be split: {why}; remove `carrier`, or mend that"
    );
    out.error(carrier.at, said);
}

/// Adds what is wrong with what the rule says carries its connections to `out`.
pub(super) fn of_rule(config: &Config, rule: &Rule, out: &mut Diagnostics) {
    let Some(carrier) = &rule.carrier else {
        return;
    };
    if !rule.servers.is_empty() || !rule.ports.is_empty() {
        let said = "what carries a connection is decided at its SYN, before it has a server: a rule with `carrier` can't name \
                    `servers` or `ports`; name `services` or `clients`";
        out.error(carrier.at, said);
    }
    let has_none = |service: &&Service| service.carrier.is_none();
    let named = |service: &&Service| {
        let mut names = rule.services.iter();
        names.any(|name| name.value == service.name.value)
    };
    let mut services = config.services.iter();
    if let Some(without) = services.clone().filter(named).find(has_none) {
        let name = &without.name.value;
        let said = format!(
            "service `{name}` has no `carrier`, so that no relay listens for it; write carrier = \"splitless\" there"
        );
        out.error(carrier.at, said);
    } else if carrier.value != Carrier::Splitless && services.all(|service| has_none(&service)) {
        let said = "no service has a `carrier`, so that no relay listens; write carrier = \"splitless\" in one";
        out.error(carrier.at, said);
    }
}
