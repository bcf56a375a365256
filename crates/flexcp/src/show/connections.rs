//! `flexcp show connections`, as the connections come.

use std::fmt::Write as _;

use super::{Columns, age, bytes, rtt};
use crate::control::view::{Connection, Subflow};

/// A table with one line for each connection, and one below it for each of its subflows. It comes in blocks, so that it
/// takes no more memory than one of them: columns are as wide as they have to be so far.
#[derive(Default, Debug)]
pub struct ConnectionTable {
    waiting: Vec<Connection>,
    connections: Columns,
    subflows: Columns,
    /// It has begun.
    printed: bool,
}

impl ConnectionTable {
    /// Takes the next connection. The next block, once it is complete.
    #[must_use]
    pub fn add(&mut self, connection: Connection) -> Option<String> {
        self.waiting.push(connection);
        (self.waiting.len() == BLOCK).then(|| self.block())
    }

    /// What is left.
    #[must_use]
    pub fn end(mut self) -> String {
        if self.waiting.is_empty() && !self.printed {
            return "no connections\n".into();
        }
        self.block()
    }

    fn block(&mut self) -> String {
        let header = (!self.printed).then(|| HEADER.map(String::from).to_vec());
        let rows = header.into_iter().chain(self.waiting.iter().map(row));
        let mut lines = self
            .connections
            .align(&rows.collect::<Vec<_>>())
            .into_iter();
        let subflows = self.waiting.iter().flat_map(|of| &of.subflows).map(subflow);
        let below = self.subflows.align(&subflows.collect::<Vec<_>>());
        let mut below = below.into_iter();

        let mut text = String::new();
        if !self.printed {
            lines
                .by_ref()
                .take(1)
                .for_each(|line| text += &format!("{line}\n"));
        }
        self.printed = true;
        for (connection, line) in self.waiting.drain(..).zip(lines) {
            let _ = writeln!(text, "{line}");
            for line in below.by_ref().take(connection.subflows.len()) {
                let _ = writeln!(text, "  {line}");
            }
            if let Some(relayed) = &connection.relayed {
                let (up, down) = (bytes(relayed.bytes_up), bytes(relayed.bytes_down));
                let _ = writeln!(text, "  relayed  up {up}  down {down}");
            }
        }
        text
    }
}

fn row(connection: &Connection) -> Vec<String> {
    vec![
        connection.service.clone(),
        connection.mode.clone(),
        connection.carrier.clone(),
        connection.rule.clone().unwrap_or_else(|| "-".into()),
        connection.state.clone(),
        connection.client.to_string(),
        connection.server.to_string(),
        // The client has not named it yet, or may not have it.
        if connection.backend.port() == 0 {
            "-".into()
        } else {
            connection.backend.to_string()
        },
        age(connection.age_us),
        age(connection.idle_us),
        connection.id.clone(),
    ]
}

fn subflow(subflow: &Subflow) -> Vec<String> {
    let flags: Vec<_> = [
        (subflow.active, "active"),
        (subflow.backup, "backup"),
        (subflow.established, "established"),
    ]
    .into_iter()
    .filter_map(|(set, name)| set.then_some(name))
    .collect();
    vec![
        format!("#{} id {}", subflow.subflow, subflow.address_id),
        subflow.access.clone().unwrap_or_else(|| "-".into()),
        subflow.client.to_string(),
        subflow.local.to_string(),
        if flags.is_empty() {
            "-".into()
        } else {
            flags.join(",")
        },
        format!("up {}", bytes(subflow.bytes_up)),
        format!("down {}", bytes(subflow.bytes_down)),
        format!("retrans {}", bytes(subflow.retransmitted_down)),
        round_trips(subflow),
        format!(
            "rate {}/s flight {} of {}",
            bytes(subflow.delivery_rate.into()),
            bytes(subflow.in_flight.into()),
            bytes(subflow.window.into())
        ),
    ]
}

/// "rtt 12.3ms/1.0ms min 11.0ms": as ss(8) has them, smoothed and variation, then the least; "rtt 12.3ms" of a handshake.
fn round_trips(subflow: &Subflow) -> String {
    match (
        subflow.rtt_us,
        subflow.rtt_variation_us,
        subflow.rtt_least_us,
    ) {
        (Some(smoothed), Some(variation), Some(least)) => {
            format!(
                "rtt {}/{} min {}",
                rtt(smoothed),
                rtt(variation),
                rtt(least)
            )
        }
        (Some(handshake), ..) => format!("rtt {}", rtt(handshake)),
        _ => "rtt -".into(),
    }
}

const HEADER: [&str; 11] = [
    "SERVICE", "MODE", "CARRIER", "RULE", "STATE", "CLIENT", "SERVER", "BACKEND", "AGE", "IDLE",
    "ID",
];

/// Connections that are aligned with each other, whatever came before.
const BLOCK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// All blocks.
    fn printed(connections: Vec<Connection>) -> String {
        let mut table = ConnectionTable::default();
        let blocks: String = connections
            .into_iter()
            .filter_map(|connection| table.add(connection))
            .collect();
        blocks + &table.end()
    }

    fn path(address_id: u8, client: &str) -> Subflow {
        Subflow {
            subflow: address_id,
            client: client.parse().unwrap(),
            local: "10.9.0.2:80".parse().unwrap(),
            address_id,
            access: Some(if address_id == 0 { "dsl" } else { "lte" }.into()),
            active: address_id == 0,
            backup: address_id == 1,
            established: true,
            bytes_up: 78,
            bytes_down: 104_857_600,
            retransmitted_down: 2896,
            rtt_us: (address_id == 0).then_some(12_345),
            rtt_variation_us: (address_id == 0).then_some(999),
            rtt_least_us: (address_id == 0).then_some(11_000),
            delivery_rate: if address_id == 0 { 12_500_000 } else { 0 },
            in_flight: 2_896,
            window: 65_160,
        }
    }

    fn connection(service: &str, subflows: Vec<Subflow>) -> Connection {
        Connection {
            id: "00000007000000ab".into(),
            service: service.into(),
            mode: "transparent".into(),
            rule: Some("all".into()),
            state: "translating".into(),
            client: "10.0.1.2:40312".parse().unwrap(),
            server: "10.9.0.2:80".parse().unwrap(),
            source: "10.0.1.2:40312".parse().unwrap(),
            backend: "10.9.0.2:80".parse().unwrap(),
            token: Some(7),
            age_us: 200_000_000,
            idle_us: 40_000,
            subflows,
            carrier: "splitless".into(),
            relayed: None,
        }
    }

    #[test]
    fn connections_are_aligned_with_their_subflows_below() {
        let two = vec![path(0, "10.0.1.2:40312"), path(1, "[2001:db8::2]:51000")];
        let plain = Connection {
            state: "plain".into(),
            rule: None,
            ..connection("mail-relay", Vec::new())
        };
        let split = Connection {
            carrier: "split".into(),
            state: "relayed".into(),
            relayed: Some(crate::control::view::Relayed {
                bytes_up: 78,
                bytes_down: 104_857_600,
            }),
            ..plain.clone()
        };
        assert_eq!(
            printed(vec![connection("web", two), plain, split]),
            "\
SERVICE     MODE         CARRIER    RULE  STATE        CLIENT          SERVER       BACKEND      AGE    IDLE  ID
web         transparent  splitless  all   translating  10.0.1.2:40312  10.9.0.2:80  10.9.0.2:80  3m20s  40ms  00000007000000ab
  #0 id 0  dsl  10.0.1.2:40312       10.9.0.2:80  active,established  up 78B  down 104.8MB  retrans 2.8kB  rtt 12.3ms/999us min 11.0ms  rate 12.5MB/s flight 2.8kB of 65.1kB
  #1 id 1  lte  [2001:db8::2]:51000  10.9.0.2:80  backup,established  up 78B  down 104.8MB  retrans 2.8kB  rtt -                        rate 0B/s flight 2.8kB of 65.1kB
mail-relay  transparent  splitless  -     plain        10.0.1.2:40312  10.9.0.2:80  10.9.0.2:80  3m20s  40ms  00000007000000ab
mail-relay  transparent  split      -     relayed      10.0.1.2:40312  10.9.0.2:80  10.9.0.2:80  3m20s  40ms  00000007000000ab
  relayed  up 78B  down 104.8MB
"
        );
    }

    #[test]
    fn no_connections() {
        assert_eq!(printed(vec![]), "no connections\n");
    }

    #[test]
    fn later_blocks_stand_below_the_first() {
        let mut all = vec![connection("web", vec![path(0, "10.0.1.2:40312")]); BLOCK];
        // A wider one comes when narrower ones have been printed, and a narrow one again.
        all.push(connection("a-longer-name", vec![path(1, "10.0.1.2:7")]));
        all.push(connection("web", vec![]));
        let text = printed(all);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * BLOCK + 3);
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.starts_with("SERVICE"))
                .count(),
            1
        );
        let column = |line: &str| line.find("transparent");
        assert_eq!(column(lines[1]), Some(9), "as wide as SERVICE");
        assert_eq!(column(lines[2 * BLOCK + 1]), Some(15));
        assert_eq!(column(lines[2 * BLOCK + 3]), Some(15));
        // The subflow's columns are as wide as before.
        let local = |line: &str| line.find("10.9.0.2:80");
        assert_eq!(local(lines[2]), local(lines[2 * BLOCK + 2]));
    }
}
