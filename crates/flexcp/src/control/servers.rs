//! The aggregation servers of boxes as they stand.

use std::time::Duration;

use flexcp_location::{Basis, Estimate, PathRow, Probing, Reach, ServerRow, Time};
use flexcp_translator::{BackendView, Protocol};

use super::VERSION;
use super::server::Asked;
use super::services::views;
use super::view::{
    BoxServers, Numbers, RateBasis, ResponderStatus, ServerOverUplink, ServerProbing, ServerRate,
    ServerStatus, Servers,
};
use crate::config::aggregation::AggregationServer;
use crate::config::file::{Mode, Service};
use crate::config::span::Located;
use crate::location::{BoxFacts, ResponderFacts};

/// All of them.
pub(super) fn servers(asked: &Asked) -> Result<Servers, String> {
    let generation = asked.watch.generation().map_err(|gone| gone.to_string())?;
    let facts = asked.location.facts(&generation.config);
    let facts = facts.map_err(|gone| gone.to_string())?;
    let views = views(asked)?;
    let services = generation.config.services.iter().zip(&generation.ids);
    let boxes = services.filter_map(|(service, id)| {
        let of_it: Vec<_> = views.iter().filter(|view| view.service == *id).collect();
        let facts = facts.boxes.iter().find(|facts| facts.service == *id);
        one_box(service, facts, &of_it)
    });
    Ok(Servers {
        version: VERSION,
        generation: generation.number,
        boxes: boxes.collect(),
        responder: facts.responder.as_ref().map(responder),
    })
}

fn one_box(
    service: &Service,
    facts: Option<&BoxFacts>,
    views: &[&BackendView],
) -> Option<BoxServers> {
    let Mode::Box {
        servers, choice, ..
    } = &service.mode
    else {
        return None;
    };
    let facts = facts.filter(|facts| facts.table.servers.len() == servers.len());
    let order = facts.map_or_else(|| (0..servers.len()).collect(), |facts| facts.order.clone());
    let each = (1..).zip(order).filter_map(|(place, at)| {
        let told = status(servers.get(at)?, views);
        let measured = facts.and_then(|facts| Some((facts.table.servers.get(at)?, facts)));
        let told = ServerStatus { place, ..told };
        Some(match measured {
            Some((row, facts)) => with(told, row, facts),
            None => told,
        })
    });
    Some(BoxServers {
        service: service.name.value.clone(),
        choose: choice.choose.value.name().into(),
        reason: facts.and_then(|facts| facts.reason.clone()),
        probe_bytes: facts.map_or(0, |facts| facts.bytes[0]),
        probe_bytes_limit: facts.map_or(0, |facts| facts.bytes[1]),
        probe_rounds: facts.map_or(0, |facts| facts.counters.rounds),
        switches: facts.map_or(0, |facts| facts.counters.switches),
        servers: each.collect(),
    })
}

/// What is known of a server without measuring.
fn status(server: &Located<AggregationServer>, views: &[&BackendView]) -> ServerStatus {
    let server = &server.value;
    let of_it = || views.iter().filter(|view| view.addr == server.addr);
    ServerStatus {
        name: server.name(),
        address: server.addr,
        mode: match server.approach.protocol {
            Protocol::Convert => "convert",
            Protocol::Socks5 => "socks5",
        }
        .into(),
        place: 0,
        marked: of_it().any(|view| view.mark.is_some()),
        connections: of_it().map(|view| view.connections).sum(),
        granted: of_it().map(|view| view.errands.granted).sum(),
        declined: of_it().map(|view| view.errands.declined).sum(),
        probing: ServerProbing::Off,
        reachable: None,
        throughput: None,
        own_rate: None,
        own_rtt_us: None,
        uplinks: Vec::new(),
    }
}

/// The same with what was measured.
fn with(told: ServerStatus, row: &ServerRow, facts: &BoxFacts) -> ServerStatus {
    let uplinks = facts.table.uplinks.iter().zip(&row.paths);
    ServerStatus {
        probing: match row.probing {
            Probing::Answers => ServerProbing::Answers,
            Probing::Silent => ServerProbing::Silent,
            Probing::Keyless => ServerProbing::Keyless,
            Probing::Unknown => ServerProbing::Unknown,
        },
        reachable: match row.reach {
            Reach::Yes => Some(true),
            Reach::No => Some(false),
            Reach::Unknown => None,
        },
        throughput: row.throughput().map(|rate| rate.0),
        own_rate: row.own_rate().map(|rate| rate.0),
        own_rtt_us: row.leg.and_then(|leg| leg.delay).map(micros),
        uplinks: uplinks
            .map(|(name, path)| over(name, path, facts.at))
            .collect(),
        ..told
    }
}

fn over(uplink: &str, path: &PathRow, now: Time) -> ServerOverUplink {
    ServerOverUplink {
        uplink: uplink.into(),
        usable: path.is_usable,
        answers: path.is_alive,
        rtt_us: path.delay.map(micros),
        down: path.down.as_ref().map(|of| rate(of, now)),
        up: path.up.as_ref().map(|of| rate(of, now)),
    }
}

fn rate(of: &Estimate, now: Time) -> ServerRate {
    ServerRate {
        rate: of.rate.0,
        basis: match of.basis {
            Basis::Trains => RateBasis::Train,
            Basis::AtMost => RateBasis::AtMost,
            Basis::Transfers => RateBasis::Transfers,
            Basis::AtLeast => RateBasis::AtLeast,
        },
        ago_us: micros(now.since(of.at)),
    }
}

fn responder(facts: &ResponderFacts) -> ResponderStatus {
    let all = &facts.counters;
    ResponderStatus {
        sessions: u64::try_from(facts.sessions).unwrap_or(u64::MAX),
        received: all.received,
        sent: all.sent,
        bytes_in: all.bytes_in,
        bytes_out: all.bytes_out,
        refused: all.refusals().iter().map(|(_, count)| count).sum(),
        refusals: Numbers(
            all.refusals()
                .map(|(name, count)| (name.into(), count))
                .into(),
        ),
        legs_refused: all.legs_refused,
    }
}

fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).unwrap_or(u64::MAX)
}
