//! What `flexcp show` prints for people: aligned tables, in the manner of ss(8).

mod accesses;
mod connections;
mod events;
mod orders;
mod rules;
mod servers;
mod services;
mod status;

use std::fmt::Write;

pub use self::accesses::accesses;
pub use self::connections::ConnectionTable;
pub use self::events::event;
pub use self::orders::{done, done_by_all};
pub use self::rules::{rule, rules};
pub use self::servers::servers;
pub use self::services::{backends, services};
pub use self::status::status;
use crate::control::view::{Numbers, Stats};

/// The counters, and those causes of decisions and reasons for drops that have occurred.
#[must_use]
pub fn stats(view: &Stats) -> String {
    let mut text = format!("connections  {}\n", view.connections);
    let memory = view.gauges.get("memory_bytes").unwrap_or(0);
    let (memory, budget) = (bytes(memory), bytes(view.memory_budget));
    let _ = writeln!(text, "memory       {memory} of {budget}");
    section(&mut text, "counters", &view.counters.0);
    for (decision, causes) in &view.causes {
        let occurred = nonzero(causes);
        if !occurred.is_empty() {
            section(&mut text, &format!("{decision} by cause"), &occurred);
        }
    }
    for (title, numbers) in [
        ("drops", &view.drops),
        ("carrier", &view.carrier),
        ("offload", &view.offload),
        ("split", &view.split),
        ("unaccounted", &view.unaccounted),
        ("held now", &view.gauges),
    ] {
        let occurred: Vec<_> = nonzero(numbers);
        if !occurred.is_empty() {
            section(&mut text, title, &occurred);
        }
    }
    if !view.offload_notes.is_empty() {
        text.push('\n');
    }
    for note in &view.offload_notes {
        let _ = writeln!(text, "offload: {note}");
    }
    if nonzero(&view.drops).is_empty() {
        text.push_str("\nno drops\n");
    }
    text
}

fn nonzero(numbers: &Numbers) -> Vec<(String, u64)> {
    numbers
        .0
        .iter()
        .filter(|(_, number)| *number != 0)
        .cloned()
        .collect()
}

fn section(text: &mut String, title: &str, numbers: &[(String, u64)]) {
    let names = numbers
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or(0);
    let digits = numbers
        .iter()
        .map(|(_, number)| number.to_string().len())
        .max()
        .unwrap_or(0);
    let _ = writeln!(text, "\n{title}");
    for (name, number) in numbers {
        let _ = writeln!(text, "  {name:names$}  {number:>digits$}");
    }
}

/// Columns of a table: each as wide as its widest cell, two blanks between them.
#[derive(Default, Debug)]
struct Columns {
    /// In characters. They only grow: what comes later stands below what has been printed.
    widths: Vec<usize>,
}

impl Columns {
    /// The lines of the next rows.
    fn align(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        for row in rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (cell, width) in row.iter().zip(&mut self.widths) {
                *width = cell.chars().count().max(*width);
            }
        }
        rows.iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &[String]) -> String {
        let cells = row.iter().zip(&self.widths);
        let cells = cells.map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// The lines of a table that is complete.
fn align(rows: &[Vec<String>]) -> Vec<String> {
    Columns::default().align(rows)
}

/// "0B", "999B", "1.2kB", "10.0MB": decimal units, as link speeds have.
fn bytes(count: u64) -> String {
    let mut divisor = 1;
    let mut unit = "B";
    for larger in ["kB", "MB", "GB", "TB", "PB"] {
        if count / divisor < 1000 {
            break;
        }
        divisor *= 1000;
        unit = larger;
    }
    if divisor == 1 {
        return format!("{count}B");
    }
    format!(
        "{}.{}{unit}",
        count / divisor,
        count % divisor / (divisor / 10)
    )
}

/// "40ms", "12s", "3m20s", "2h5m", "3d4h".
fn age(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let two = |large: u64, large_unit, small: u64, small_unit| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        0 => format!("{}ms", micros / 1000),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

/// "12.1ms": milliseconds, as ss(8) has them.
fn rtt(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros}us"),
        _ => format!("{}.{}ms", micros / 1000, micros % 1000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERSION;

    fn numbers(list: &[(&str, u64)]) -> Numbers {
        Numbers(
            list.iter()
                .map(|(name, number)| ((*name).into(), *number))
                .collect(),
        )
    }

    #[test]
    fn stats_hide_reasons_that_did_not_occur() {
        let view = Stats {
            version: VERSION,
            counters: numbers(&[("packets_in", 1234), ("mp_capable_syn_rx", 0)]),
            drops: numbers(&[("malformed", 0), ("stale_ack", 12)]),
            causes: [
                (
                    "plain_syn".into(),
                    numbers(&[("no_option", 2), ("version", 0)]),
                ),
                ("rst".into(), numbers(&[("stuck", 0)])),
            ]
            .into(),
            carrier: numbers(&[("malformed_rx", 0), ("send_failed", 0)]),
            offload: numbers(&[]),
            split: numbers(&[]),
            unaccounted: numbers(&[("sent", 0)]),
            gauges: numbers(&[("flows", 0), ("memory_bytes", 3204)]),
            memory_budget: 512_000_000,
            offload_notes: vec![
                "by clsact, on eth0, eth1".into(),
                "without IPv6: verifier: R1 invalid mem access 'scalar' (at instruction 9)".into(),
            ],
            connections: 3,
        };
        assert_eq!(
            stats(&view),
            "\
connections  3
memory       3.2kB of 512.0MB

counters
  packets_in         1234
  mp_capable_syn_rx     0

plain_syn by cause
  no_option  2

drops
  stale_ack  12

held now
  memory_bytes  3204

offload: by clsact, on eth0, eth1
offload: without IPv6: verifier: R1 invalid mem access 'scalar' (at instruction 9)
"
        );
    }

    #[test]
    fn stats_without_drops_say_so() {
        let view = Stats {
            version: VERSION,
            counters: numbers(&[("packets_in", 1)]),
            drops: numbers(&[("malformed", 0)]),
            causes: [].into(),
            carrier: numbers(&[("send_failed", 2)]),
            offload: numbers(&[]),
            split: numbers(&[]),
            unaccounted: numbers(&[("sent", 0)]),
            gauges: numbers(&[("flows", 0)]),
            memory_budget: 1_000_000,
            offload_notes: vec![],
            connections: 0,
        };
        assert_eq!(
            stats(&view),
            "connections  0\nmemory       0B of 1.0MB\n\ncounters\n  packets_in  1\n\ncarrier\n  send_failed  2\n\nno drops\n"
        );
    }

    #[test]
    fn units() {
        let said = [0, 999, 1000, 1_234_567, u64::MAX].map(bytes);
        assert_eq!(said, ["0B", "999B", "1.0kB", "1.2MB", "18446.7PB"]);
        let said = [0, 59_999_999, 60_000_000, 7_500_000_000, 266_400_000_000].map(age);
        assert_eq!(said, ["0ms", "59s", "1m", "2h5m", "3d2h"]);
        assert_eq!([999, 1000, 123_456].map(rtt), ["999us", "1.0ms", "123.4ms"]);
    }
}
