//! The numbers of aggregation servers: of those that boxes use, and of what answers boxes' probes.

use std::fmt;

use prometheus_client::registry::Unit;

use super::{Numbers, Out, Sum, label, one};
use crate::control::view::{ResponderStatus, ServerStatus};

impl Numbers {
    /// Boxes' aggregation servers.
    pub(super) fn servers(&self, out: &mut Out<'_>) -> fmt::Result {
        let each = self.boxes.iter().flat_map(|of_box| {
            let of = |server: &ServerStatus| {
                let name = ("server", server.name.clone());
                vec![("service", of_box.service.clone()), name]
            };
            let servers = of_box.servers.iter();
            servers.map(move |server| (of(server), server))
        });
        let place = each.clone().map(|(of, server)| (of, server.place));
        let help =
            "Place of an aggregation server in the order in which connections ask them, from 1.";
        out.gauges("server_place", help, None, place)?;
        let marked = each.clone();
        let marked = marked.map(|(of, server)| (of, u64::from(server.marked)));
        let help = "Whether connections pass an aggregation server by.";
        out.gauges("server_marked", help, None, marked)?;
        let granted = each.clone().map(|(of, server)| (of, server.granted));
        let help = "Connections that an aggregation server has made as it was asked to.";
        out.counters("server_connections_granted", help, granted)?;
        let declined = each.clone().map(|(of, server)| (of, server.declined));
        let help = "Connections that an aggregation server would not, or could not, make.";
        out.counters("server_connections_declined", help, declined)?;
        let known = each.clone();
        let known = known.filter_map(|(of, server)| Some((of, server.throughput?)));
        let help = "What an aggregation server was measured to carry, in bits per second.";
        out.gauges("server_throughput", help, None, known)?;
        let paths = each.flat_map(|(of, server)| {
            let uplinks = server.uplinks.iter();
            uplinks.filter_map(move |over| {
                let uplink = [("uplink", over.uplink.clone())];
                Some(([of.clone(), uplink.into()].concat(), over.rtt_us?))
            })
        });
        let help = "Round trip to an aggregation server over an uplink.";
        out.seconds("server_rtt", help, paths)?;
        let boxes = self.boxes.iter();
        let bytes = boxes.map(|it| (label("service", &it.service), it.probe_bytes));
        let help = "What probes of aggregation servers have cost in the last hour, both ways.";
        let unit = Some(Unit::Bytes);
        out.gauges("server_probes_of_hour", help, unit, bytes)
    }

    /// What the responder has answered and refused.
    pub(super) fn answered(&self, out: &mut Out<'_>) -> fmt::Result {
        let Some(responder) = &self.responder else {
            return Ok(());
        };
        for (name, help, number) in ANSWERED {
            out.counters(name, help, one(number(responder)))?;
        }
        let refused = responder.refusals.0.iter();
        let refused = refused.map(|(reason, count)| (label("reason", reason), *count));
        let help = "Datagrams of probes that were refused, by reason.";
        out.counters("responder_refused", help, refused)?;
        let help = "Boxes' addresses that the responder knows.";
        out.gauges("responder_sessions", help, None, one(responder.sessions))
    }
}

/// What the responder counts, beside what it refuses.
const ANSWERED: [Sum<ResponderStatus>; 5] = [
    (
        "responder_received",
        "Datagrams that came to the responder.",
        |responder| responder.received,
    ),
    (
        "responder_sent",
        "Datagrams that the responder has sent.",
        |responder| responder.sent,
    ),
    (
        "responder_in_bytes",
        "Bytes of probes that the responder has taken, with headers.",
        |responder| responder.bytes_in,
    ),
    (
        "responder_out_bytes",
        "Bytes that the responder has sent, with headers.",
        |responder| responder.bytes_out,
    ),
    (
        "responder_legs_refused",
        "Questions for the leg to a content server that is not allowed.",
        |responder| responder.legs_refused,
    ),
];

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;
    use crate::control::view;

    #[test]
    fn responders_numbers_are_told_by_reason_and_only_where_there_is_one() {
        let text = |responder| {
            let numbers = Numbers {
                responder,
                ..Numbers::default()
            };
            numbers.text(Format::Prometheus)
        };
        let refusals = [("malformed", 2), ("unpaid", 0)];
        let told = text(Some(ResponderStatus {
            sessions: 1,
            received: 9,
            sent: 7,
            bytes_in: 3000,
            bytes_out: 2000,
            refused: 2,
            refusals: view::Numbers(
                refusals
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
            ),
            legs_refused: 4,
        }));
        for line in [
            "flexcp_responder_sessions 1",
            "flexcp_responder_received_total{} 9",
            "flexcp_responder_sent_total{} 7",
            "flexcp_responder_in_bytes_total{} 3000",
            "flexcp_responder_out_bytes_total{} 2000",
            "flexcp_responder_refused_total{reason=\"malformed\"} 2",
            "flexcp_responder_refused_total{reason=\"unpaid\"} 0",
            "flexcp_responder_legs_refused_total{} 4",
        ] {
            assert!(told.lines().any(|known| known == line), "{line} in {told}");
        }
        assert!(!text(None).contains("responder"));
    }

    #[test]
    fn servers_of_a_box_are_told_and_what_is_not_known_is_left_out() {
        let numbers = Numbers {
            boxes: view::Servers::sample().boxes,
            ..Numbers::default()
        };
        let told = numbers.text(Format::Prometheus);
        let fra = "service=\"home\",server=\"fra\"";
        let ams = "service=\"home\",server=\"[2001:db8::1]:1080\"";
        let lines = [
            format!("flexcp_server_place{{{fra}}} 1"),
            format!("flexcp_server_place{{{ams}}} 2"),
            format!("flexcp_server_marked{{{fra}}} 0"),
            format!("flexcp_server_marked{{{ams}}} 1"),
            format!("flexcp_server_connections_granted_total{{{fra}}} 1204"),
            format!("flexcp_server_connections_granted_total{{{ams}}} 0"),
            format!("flexcp_server_connections_declined_total{{{fra}}} 2"),
            format!("flexcp_server_connections_declined_total{{{ams}}} 17"),
            format!("flexcp_server_throughput{{{fra}}} 47300000"),
            format!("flexcp_server_rtt_seconds{{{fra},uplink=\"lte0\"}} 0.0123"),
            "flexcp_server_probes_of_hour_bytes{service=\"home\"} 1500000".to_owned(),
        ];
        for line in &lines {
            assert!(told.lines().any(|known| known == line), "{line} in {told}");
        }
        for unknown in ["throughput", "rtt_seconds"] {
            let line = format!("flexcp_server_{unknown}{{{ams}");
            assert!(!told.contains(&line), "{line} in {told}");
        }
    }
}
