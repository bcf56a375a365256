//! The tables under a flood.

use core::net::{Ipv4Addr, SocketAddr};

use flexcp_testkit::Packet;
use flexcp_wire::{Offload, TcpOption};

use super::*;
use crate::config::{Mode, Service};
use crate::{Limits, Timeouts};

/// A SYN from port `port`.
fn syn(port: u16) -> Vec<u8> {
    let [from, to] = [([10, 1, 1, 2], port), ([10, 9, 1, 2], 80)].map(SocketAddr::from);
    let syn = Packet::new(from, to).flags(TcpFlags::SYN);
    syn.with_options([TcpOption::Mss(1460)]).bytes()
}

pub(crate) fn reverse(source_ports: core::ops::RangeInclusive<u16>) -> Translator {
    let addr = |text: &str| text.parse().expect("an address");
    let config = Config {
        services: alloc::vec![Service {
            id: crate::ServiceId(0),
            name: "shop".into(),
            announce: Vec::new(),
            intake: crate::Intake::default(),
            mode: Mode::Reverse {
                listen: alloc::vec![addr("10.9.1.2:80")],
                backends: alloc::vec![addr("10.8.1.2:80")],
                source: alloc::vec![Ipv4Addr::new(10, 8, 1, 1).into()],
                source_ports,
            },
        }],
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        ..Config::default()
    };
    Translator::new(config, [7; 32])
}

/// Handles a SYN from port `port` of the client.
pub(crate) fn open(translator: &mut Translator, now: Instant, port: u16) {
    let mut buf = [0; 172];
    buf[128..].copy_from_slice(&syn(port));
    let offload = Offload {
        checksum: ChecksumState::Verified,
        gso: None,
    };
    let mut frame = Frame::new(&mut buf, 128..172, offload);
    let _ = translator.handle_packet(now, &mut frame);
    while translator.poll_transmit().is_some() {}
}

/// 20,000 SYNs, ten in each millisecond.
fn open_many(translator: &mut Translator) {
    for n in 0..20_000_u64 {
        let port = u16::try_from(n % 60_000).unwrap_or(0) + 1;
        open(translator, Instant::from_millis(n / 10), port);
    }
    assert_eq!(translator.counters().connections_opened, 20_000);
}

#[test]
fn timer_queue_stays_in_proportion_while_connections_come_and_go() {
    // Each takes the place of the oldest: there are 16 ports.
    let mut translator = reverse(1000..=1015);
    open_many(&mut translator);
    let entries = translator.table.timer_entries();
    assert!(
        entries < 16 + 2 * OVERTAKEN,
        "{entries} entries for 16 connections"
    );
}

#[test]
fn tables_are_small_again_after_many_connections() {
    let mut translator = reverse(1000..=60_999);
    open_many(&mut translator);
    let full = translator.table.capacities();
    assert!(full.iter().all(|&room| room >= 20_000), "{full:?}");
    translator.handle_timeout(Instant::from_millis(3_600_000));
    while translator.poll_transmit().is_some() {}
    assert_eq!(translator.table.len(), 0);
    let empty = translator.table.capacities();
    assert!(empty.iter().all(|&room| room < 8_192), "{empty:?}");
}

/// As many entries as may mean nothing.
const OVERTAKEN: usize = 1024;
