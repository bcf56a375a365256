//! The aggregation servers of boxes, for people.

use super::{align, bytes, rtt};
use crate::control::view::{
    BoxServers, RateBasis, ResponderStatus, ServerOverUplink, ServerProbing, ServerRate,
    ServerStatus, Servers,
};

/// A table with a line for each server, and one for what is known over each uplink; then why the first is in use.
#[must_use]
pub fn servers(servers: &Servers) -> String {
    let mut text = String::new();
    let mut rows = vec![SERVERS.map(String::from).to_vec()];
    let mut paths = vec![PATHS.map(String::from).to_vec()];
    for of_box in &servers.boxes {
        let each = of_box.servers.iter();
        rows.extend(each.map(|server| row(&of_box.service, server)));
        for server in &of_box.servers {
            let each = server.uplinks.iter();
            paths.extend(each.map(|over| path(&of_box.service, &server.name, over)));
        }
    }
    for rows in [rows, paths].iter().filter(|rows| rows.len() > 1) {
        if !text.is_empty() {
            text.push('\n');
        }
        align(rows)
            .iter()
            .for_each(|line| text += &format!("{line}\n"));
    }
    if text.is_empty() {
        text += "no servers\n";
    }
    let measured = servers
        .boxes
        .iter()
        .filter(|of_box| of_box.reason.is_some());
    for of_box in measured {
        text += &explained(of_box);
    }
    if let Some(responder) = &servers.responder {
        text += &answered(responder);
    }
    text
}

/// What has come, and what became of it; of reasons those that there were.
fn answered(responder: &ResponderStatus) -> String {
    let of = responder.refusals.0.iter();
    let of = of.filter(|(_, count)| *count > 0);
    let of: Vec<_> = of.map(|(name, count)| format!("{count} {name}")).collect();
    let why = match of.is_empty() {
        true => String::new(),
        false => format!(" ({})", of.join(", ")),
    };
    format!(
        "\nresponder: {} sessions, {} datagrams with {} in, {} with {} out, {} refused{why}, {} legs refused\n",
        responder.sessions,
        responder.received,
        bytes(responder.bytes_in),
        responder.sent,
        bytes(responder.bytes_out),
        responder.refused,
        responder.legs_refused,
    )
}

fn explained(of_box: &BoxServers) -> String {
    let reason = of_box.reason.as_deref().unwrap_or_default();
    format!(
        "\n{} chooses by {}: {reason}\n{} of {} for probes in this hour, {} rounds, {} switches\n",
        of_box.service,
        of_box.choose,
        bytes(of_box.probe_bytes),
        bytes(of_box.probe_bytes_limit),
        of_box.probe_rounds,
        of_box.switches,
    )
}

fn row(service: &str, server: &ServerStatus) -> Vec<String> {
    let state = match (server.marked, server.reachable) {
        (true, _) => "marked",
        (false, Some(false)) => "down",
        (false, _) => "up",
    };
    let probes = match server.probing {
        ServerProbing::Answers => "answered",
        ServerProbing::Silent => "silent",
        ServerProbing::Keyless => "no key",
        ServerProbing::Unknown => "not yet",
        ServerProbing::Off => "off",
    };
    vec![
        service.into(),
        server.place.to_string(),
        server.name.clone(),
        server.address.to_string(),
        server.mode.clone(),
        state.into(),
        probes.into(),
        server.throughput.map_or_else(|| "-".into(), mbit),
        server.own_rate.map_or_else(|| "-".into(), mbit),
        server.own_rtt_us.map_or_else(|| "-".into(), rtt),
        server.connections.to_string(),
        server.granted.to_string(),
        server.declined.to_string(),
    ]
}

fn path(service: &str, server: &str, over: &ServerOverUplink) -> Vec<String> {
    let state = match (over.usable, over.answers) {
        (false, _) => "no address",
        (true, Some(false)) => "no answer",
        (true, Some(true)) => "up",
        (true, None) => "not tried",
    };
    let said = |rate: &Option<ServerRate>| rate.as_ref().map_or_else(|| "-".into(), rate_of);
    vec![
        service.into(),
        server.into(),
        over.uplink.clone(),
        state.into(),
        over.rtt_us.map_or_else(|| "-".into(), rtt),
        said(&over.down),
        said(&over.up),
    ]
}

fn rate_of(rate: &ServerRate) -> String {
    let basis = match rate.basis {
        RateBasis::Train => "train",
        RateBasis::AtMost => "at most",
        RateBasis::Transfers => "transfers",
        RateBasis::AtLeast => "at least",
    };
    format!("{} ({basis})", mbit(rate.rate))
}

/// "47.3Mbit".
fn mbit(rate: u64) -> String {
    let tenths = rate.saturating_add(50_000) / 100_000;
    format!("{}.{}Mbit", tenths / 10, tenths % 10)
}

const SERVERS: [&str; 13] = [
    "SERVICE",
    "PLACE",
    "SERVER",
    "ADDRESS",
    "MODE",
    "STATE",
    "PROBES",
    "CARRIES",
    "OWN RATE",
    "OWN RTT",
    "CONNECTIONS",
    "GRANTED",
    "DECLINED",
];
const PATHS: [&str; 7] = ["SERVICE", "SERVER", "UPLINK", "STATE", "RTT", "DOWN", "UP"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::view::Numbers;

    #[test]
    fn servers_and_their_paths_are_aligned_and_the_choice_is_explained() {
        assert_eq!(
            servers(&Servers::sample()),
            "\
SERVICE  PLACE  SERVER              ADDRESS             MODE     STATE   PROBES    CARRIES   OWN RATE   OWN RTT  CONNECTIONS  GRANTED  DECLINED
home     1      fra                 203.0.113.5:7124    convert  up      answered  47.3Mbit  100.0Mbit  4.1ms    3            1204     2
home     2      [2001:db8::1]:1080  [2001:db8::1]:1080  socks5   marked  no key    -         -          -        0            0        17

SERVICE  SERVER              UPLINK  STATE       RTT     DOWN                UP
home     fra                 dsl0    up          12.3ms  30.0Mbit (train)    -
home     fra                 lte0    up          12.3ms  17.3Mbit (at most)  -
home     [2001:db8::1]:1080  dsl0    no address  -       -                   -

home chooses by throughput: fra: 47.3 Mbit/s over dsl0+lte0
1.5MB of 67.1MB for probes in this hour, 4 rounds, 1 switches
"
        );
    }

    #[test]
    fn what_is_not_there_is_not_shown() {
        let mut none = Servers::sample();
        none.boxes.clear();
        assert_eq!(servers(&none), "no servers\n");
        none.responder = Some(ResponderStatus {
            sessions: 2,
            received: 9,
            sent: 7,
            bytes_in: 3000,
            bytes_out: 2000,
            refused: 3,
            refusals: Numbers(
                [("malformed", 2), ("replay", 1), ("unpaid", 0)]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
            ),
            legs_refused: 4,
        });
        assert_eq!(
            servers(&none),
            "no servers\n\nresponder: 2 sessions, 9 datagrams with 3.0kB in, 7 with 2.0kB out, \
             3 refused (2 malformed, 1 replay), 4 legs refused\n"
        );
    }
}
