//! `flexcp show accesses`.

use super::{align, bytes, rtt};
use crate::control::view::{Access, Accesses};

/// A table with a line for each.
#[must_use]
pub fn accesses(accesses: &Accesses) -> String {
    if accesses.accesses.is_empty() {
        return "no accesses, and no subflows\n".into();
    }
    let header = HEADER.map(String::from).to_vec();
    let rows = [header]
        .into_iter()
        .chain(accesses.accesses.iter().map(row));
    let lines = align(&rows.collect::<Vec<_>>());
    lines.into_iter().map(|line| line + "\n").collect()
}

fn row(access: &Access) -> Vec<String> {
    let time = |micros: Option<u64>| micros.map_or_else(|| "-".into(), rtt);
    vec![
        access.name.clone().unwrap_or_else(|| "-".into()),
        access.subflows.to_string(),
        access.active.to_string(),
        access.backup.to_string(),
        bytes(access.bytes_up),
        bytes(access.bytes_down),
        share(access.retransmitted_down, access.bytes_down),
        share(access.stripped, access.opened),
        time(access.rtt_us),
        time(access.rtt_least_us),
        format!("{}/s", bytes(access.delivery_rate)),
        bytes(access.in_flight),
    ]
}

fn share(part: u64, whole: u64) -> String {
    let share = part.saturating_mul(10_000);
    share.checked_div(whole).map_or_else(
        || "-".into(),
        |share| format!("{}.{:02}%", share / 100, share % 100),
    )
}

const HEADER: [&str; 12] = [
    "ACCESS", "SUBFLOWS", "ACTIVE", "BACKUP", "UP", "DOWN", "RETRANS", "STRIPPED", "RTT", "MIN",
    "RATE", "FLIGHT",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERSION;

    #[test]
    fn accesses_are_aligned() {
        let lte = Access {
            name: Some("lte".into()),
            subflows: 1200,
            active: 800,
            backup: 3,
            opened: 50_000,
            stripped: 150,
            plain: 7,
            bytes_up: 78_000,
            bytes_down: 104_857_600,
            retransmitted_down: 1_258_291,
            rtt_us: Some(45_678),
            rtt_least_us: Some(30_001),
            delivery_rate: 12_500_000,
            in_flight: 65_160,
        };
        let told = Accesses {
            version: VERSION,
            accesses: vec![lte, Access::default()],
        };
        assert_eq!(
            accesses(&told),
            "\
ACCESS  SUBFLOWS  ACTIVE  BACKUP  UP      DOWN     RETRANS  STRIPPED  RTT     MIN     RATE      FLIGHT
lte     1200      800     3       78.0kB  104.8MB  1.19%    0.30%     45.6ms  30.0ms  12.5MB/s  65.1kB
-       0         0       0       0B      0B       -        -         -       -       0B/s      0B
"
        );
    }

    #[test]
    fn nothing_to_tell() {
        let none = Accesses {
            version: VERSION,
            accesses: vec![],
        };
        assert_eq!(accesses(&none), "no accesses, and no subflows\n");
    }
}
