//! `flexcp events`.

use std::net::SocketAddr;

use crate::control::view::{Event, Noted, Switch, Which, WhichSubflow};

/// A line for an event; `None` for one that says nothing to people. One that this program does not know is printed as it
/// came.
#[must_use]
pub fn event(line: &str) -> Option<String> {
    let Ok(event) = serde_json::from_str(line) else {
        return Some(line.into());
    };
    Some(match event {
        Event::Listening { .. } => return None,
        Event::Opened {
            noted,
            connection,
            mode,
            carrier,
            source,
            backend,
        } => {
            let how = (&*mode, &*carrier);
            let what = opened(&connection, how, (source, backend));
            of_connection(&noted, &connection, &what)
        }
        Event::Joined {
            noted,
            connection,
            subflow,
        } => of_connection(&noted, &connection, &format!("joined by {}", on(&subflow))),
        Event::Switched {
            noted,
            connection,
            switch,
        } => of_connection(&noted, &connection, &moved(&switch)),
        Event::SubflowClosed {
            noted,
            connection,
            subflow,
            cause,
        } => {
            let what = format!("less {}: {cause}", on(&subflow));
            of_connection(&noted, &connection, &what)
        }
        Event::Closed {
            noted,
            connection,
            cause,
        } => of_connection(&noted, &connection, &format!("closed: {cause}")),
        Event::Lost { count } => format!("here {count} events are missing"),
        event => of_backend(&event)?,
    })
}

/// What a box does that goes by another server.
fn leaves(from: Option<&str>) -> String {
    from.map_or_else(
        || "begins with".into(),
        |name| format!("goes from {name} to"),
    )
}

fn of_backend(event: &Event) -> Option<String> {
    match event {
        Event::ServerSwitched {
            noted,
            from,
            reason,
            ..
        } => {
            let leaves = leaves(from.as_ref().map(|from| &*from.name));
            let (time, service) = (time(noted), &noted.service);
            Some(format!("{time} {service} {leaves} {reason}"))
        }
        Event::BackendMarked {
            noted,
            backend,
            reason,
        } => Some(of_worker(noted, &format!("marks {backend}: {reason}"))),
        Event::BackendMaintenance { noted, backend, on } => {
            let begins = if *on { "begins" } else { "ends" };
            let what = format!("{begins} maintenance of {backend}");
            Some(of_worker(noted, &what))
        }
        Event::BackendBack { noted, backend } => {
            Some(of_worker(noted, &format!("hears of {backend} again")))
        }
        _ => None,
    }
}

fn opened(
    connection: &Which,
    (mode, carrier): (&str, &str),
    (source, backend): (SocketAddr, SocketAddr),
) -> String {
    let far = if (source, backend) == (connection.client, connection.server) {
        String::new()
    } else {
        format!(", as {source} > {backend}")
    };
    let token = connection.token.map(|token| format!(", token {token:08x}"));
    let token = token.unwrap_or_else(|| match carrier {
        // Whether it is MPTCP is the kernel's affair.
        "split" => ", split".into(),
        _ => ", without MPTCP".into(),
    });
    format!("opened, {mode}{far}{token}")
}

fn moved(switch: &Switch) -> String {
    let rule = switch.rule.as_ref().map(|rule| format!(" (rule {rule})"));
    format!(
        "goes from {} to {}: {}{}",
        on(&switch.from),
        on(&switch.to),
        switch.cause,
        rule.unwrap_or_default()
    )
}

fn of_connection(noted: &Noted, connection: &Which, what: &str) -> String {
    let Which { client, server, .. } = connection;
    format!(
        "{} {} {client} > {server} {what}",
        time(noted),
        noted.service
    )
}

fn of_worker(noted: &Noted, what: &str) -> String {
    let who = noted.worker.map(|worker| format!("worker {worker}"));
    let who = who.unwrap_or_else(|| "relay".into());
    format!("{} {} {who} {what}", time(noted), noted.service)
}

fn on(subflow: &WhichSubflow) -> String {
    let WhichSubflow {
        subflow,
        access,
        client,
        local,
        address_id,
    } = subflow;
    let access = access.as_ref().map(|access| format!(", {access}"));
    let access = access.unwrap_or_default();
    format!("{client} > {local} (#{subflow}, id {address_id}{access})")
}

/// "2026-11-26T18:09:03.123456Z".
fn time(noted: &Noted) -> String {
    let (seconds, micros) = (noted.time_us / 1_000_000, noted.time_us % 1_000_000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that a leap day is the last of its year; 719,468 days lie between March of year 0 and
    // 1970, and 146,097 in 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (
        era * 400 + year + u64::from(month <= 2),
        month,
        day_of_month,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_for_people() {
        const AT: &str = r#""time_us":1795716543123456,"worker":1,"service":"web""#;
        const ENDS: &str =
            r#""id":"00000007000000ab","client":"10.0.1.2:40312","server":"10.9.0.2:80""#;
        const LTE: &str = r#"{"subflow":2,"access":"lte","client":"10.0.2.2:51000","local":"10.9.0.2:80","address_id":1}"#;
        const FRA: &str = r#"{"name":"fra","address":"203.0.113.5:7124"}"#;
        const AMS: &str = r#"{"name":"ams","address":"203.0.113.6:7124"}"#;
        const NONE: &str = r#"{"subflow":0,"access":null,"client":"10.0.1.2:40312","local":"10.9.0.2:80","address_id":0}"#;
        for (line, said) in [
            (
                format!(
                    r#"{{"event":"opened",{AT},{ENDS},"token":7,"mode":"transparent","source":"10.0.1.2:40312","backend":"10.9.0.2:80"}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 opened, transparent, token 00000007",
            ),
            (
                format!(
                    r#"{{"event":"opened",{AT},{ENDS},"token":null,"mode":"reverse","source":"10.8.0.1:61000","backend":"10.8.0.2:80"}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 opened, reverse, as 10.8.0.1:61000 > 10.8.0.2:80, without MPTCP",
            ),
            (
                format!(
                    r#"{{"event":"opened",{},{ENDS},"token":null,"mode":"reverse","carrier":"split","source":"10.8.0.1:61000","backend":"10.8.0.2:80"}}"#,
                    AT.replace(":1,", ":null,")
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 opened, reverse, as 10.8.0.1:61000 > 10.8.0.2:80, split",
            ),
            (
                format!(r#"{{"event":"joined",{AT},{ENDS},"token":7,"subflow":{LTE}}}"#),
                "10.0.1.2:40312 > 10.9.0.2:80 joined by 10.0.2.2:51000 > 10.9.0.2:80 (#2, id 1, lte)",
            ),
            (
                format!(
                    r#"{{"event":"subflow_closed",{AT},{ENDS},"token":7,"subflow":{LTE},"cause":"stuck"}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 less 10.0.2.2:51000 > 10.9.0.2:80 (#2, id 1, lte): stuck",
            ),
            (
                format!(
                    r#"{{"event":"switched",{AT},{ENDS},"token":7,"from":{NONE},"to":{LTE},"cause":"delay","rule":"video"}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 goes from 10.0.1.2:40312 > 10.9.0.2:80 (#0, id 0) to \
                 10.0.2.2:51000 > 10.9.0.2:80 (#2, id 1, lte): delay (rule video)",
            ),
            (
                format!(
                    r#"{{"event":"switched",{AT},{ENDS},"token":7,"from":{LTE},"to":{NONE},"cause":"asked","rule":null}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 goes from 10.0.2.2:51000 > 10.9.0.2:80 (#2, id 1, lte) to \
                 10.0.1.2:40312 > 10.9.0.2:80 (#0, id 0): asked",
            ),
            (
                format!(
                    r#"{{"event":"closed",{AT},{ENDS},"token":7,"cause":"finished","new":"field"}}"#
                ),
                "10.0.1.2:40312 > 10.9.0.2:80 closed: finished",
            ),
            (
                format!(
                    r#"{{"event":"backend_marked",{AT},"backend":"10.8.0.2:80","reason":"silent"}}"#
                ),
                "worker 1 marks 10.8.0.2:80: silent",
            ),
            (
                format!(
                    r#"{{"event":"backend_maintenance",{AT},"backend":"10.8.0.2:80","on":true}}"#
                ),
                "worker 1 begins maintenance of 10.8.0.2:80",
            ),
            (
                format!(
                    r#"{{"event":"backend_maintenance",{AT},"backend":"10.8.0.2:80","on":false}}"#
                ),
                "worker 1 ends maintenance of 10.8.0.2:80",
            ),
            (
                format!(r#"{{"event":"backend_back",{AT},"backend":"10.8.0.2:80"}}"#),
                "worker 1 hears of 10.8.0.2:80 again",
            ),
            (
                format!(
                    r#"{{"event":"backend_back",{},"backend":"10.8.0.2:80"}}"#,
                    AT.replace(":1,", ":null,")
                ),
                "relay hears of 10.8.0.2:80 again",
            ),
            (
                format!(
                    r#"{{"event":"server_switched",{},"from":{AMS},"to":{FRA},"reason":"fra: 47.3 Mbit/s over dsl0"}}"#,
                    AT.replace(":1,", ":null,")
                ),
                "goes from ams to fra: 47.3 Mbit/s over dsl0",
            ),
            (
                format!(
                    r#"{{"event":"server_switched",{},"from":null,"to":{FRA},"reason":"fra: the first"}}"#,
                    AT.replace(":1,", ":null,")
                ),
                "begins with fra: the first",
            ),
        ] {
            let expected = format!("2026-11-26T18:09:03.123456Z web {said}");
            assert_eq!(event(&line), Some(expected));
        }
        let lost = event(r#"{"event":"lost","count":12}"#);
        assert_eq!(lost.as_deref(), Some("here 12 events are missing"));
        assert_eq!(event(r#"{"version":1,"event":"listening"}"#), None);
        let unknown = r#"{"event":"path_switched","from":0}"#;
        assert_eq!(event(unknown).as_deref(), Some(unknown));
    }

    #[test]
    fn dates_of_the_gregorian_calendar() {
        let days = [0, 58, 59, 11_016, 11_017, 20_783, 47_540, 47_541];
        assert_eq!(
            days.map(date),
            [
                (1970, 1, 1),
                (1970, 2, 28),
                (1970, 3, 1),
                (2000, 2, 29),
                (2000, 3, 1),
                (2026, 11, 26),
                (2100, 2, 28),
                (2100, 3, 1),
            ]
        );
    }
}
