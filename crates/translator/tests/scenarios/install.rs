//! When a connection is installed in the fast path, and when it is evicted.

use std::time::Duration;

use flexcp_translator::ServiceId;

use crate::support::{Leg, Scenario, Setup, Shelf, millis};

pub(crate) const SERVER: Leg = Leg::Server {
    connection: 0,
    backend: 0,
};

/// Timestamps, and a fast path with room for so many connections.
pub(crate) fn given(setup: Setup, room: usize) -> (Scenario, Shelf) {
    let shelf = Shelf::new(room);
    let mut t = setup.ts().established();
    t.fast_path(&shelf);
    (t, shelf)
}

/// The n-th hundred bytes of the server's, from 0 on.
pub(crate) fn data(n: u32) -> String {
    let at = n * 100 + 1;
    format!(". {at}:{}(100) ack 1 win 64 <ts 5000 1000>", at + 100)
}

/// The client ACKs them.
pub(crate) fn ack(n: u32) -> String {
    let ack = n * 100 + 101;
    format!(". 1:1(0) ack {ack} win 512 <ts 1000 5000,dss ack {ack}>")
}

/// Two packets of the server's in a row, and one before there is a fast path.
pub(crate) fn installed(setup: Setup) -> (Scenario, Shelf) {
    let shelf = Shelf::new(8);
    let mut t = setup.ts().established();
    let _ = t.server(&data(0));
    t.fast_path(&shelf);
    for n in 1..3 {
        assert_eq!(shelf.entries(), []);
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
    (t, shelf)
}

#[test]
fn second_packet_in_a_row_installs() {
    let (_, shelf) = installed(Setup::new());
    let [entry] = shelf.entries()[..] else {
        panic!("one connection");
    };
    assert_eq!((entry.family, entry.server_port, entry.active), (4, 80, 0));
    assert_eq!(entry.server_addr[..4], [10, 9, 0, 2]);
    assert_eq!(entry.source_addr[..4], [10, 1, 0, 2]);
    let subflow = entry.subflows[0];
    assert_eq!(subflow.remote_addr[..4], [10, 1, 0, 2]);
    assert_eq!((subflow.installed, subflow.remote_port), (1, 40_000));
    assert_eq!(subflow.snd_next.wrapping_sub(subflow.isn_local), 301);
    assert_eq!(
        entry.subflows[1..],
        [flexcp_translator::EntrySubflow::default(); 3]
    );
}

#[test]
fn second_packet_in_a_row_installs_over_ipv6() {
    let (_, shelf) = installed(Setup::new().v6());
    let [entry] = shelf.entries()[..] else {
        panic!("one connection");
    };
    assert_eq!(entry.family, 6);
    assert_eq!(entry.server_addr[..4], [0xfd, 0, 0, 9]);
    assert_eq!(entry.subflows[0].local_addr, entry.server_addr);
}

#[test]
fn twentieth_packet_in_a_row_installs_for_the_first_time() {
    let shelf = Shelf::new(8);
    let mut t = Setup::new().ts().established();
    t.translator.set_fast_path(Box::new(shelf.clone()));
    for n in 0..20 {
        assert_eq!(shelf.entries(), [], "after {n}");
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
    // It keeps its slot, so that two are enough the next time.
    for n in 0..2 {
        let _ = t.client(0, &ack(n));
    }
    assert_eq!(t.moved(), "offload_installed+1 offload_evicted+1");
}

#[test]
fn small_window_is_not_installed() {
    // What uses it up is pushed, and a fast path would not do that.
    for (scale, installed) in [(3, 0), (4, 1)] {
        let shelf = Shelf::new(8);
        let mut setup = Setup::new().ts();
        setup.client_scale = Some(scale);
        let mut t = setup.established();
        t.translator.set_fast_path(Box::new(shelf.clone()));
        for n in 0..20 {
            let _ = t.server(&data(n));
        }
        assert_eq!(shelf.entries().len(), installed, "512 << {scale}");
        let moved = if installed == 1 {
            "offload_installed+1"
        } else {
            ""
        };
        assert_eq!(t.moved(), moved);
    }
}

#[test]
fn connection_whose_client_was_told_of_data_behind_a_hole_is_not_installed() {
    let (mut t, shelf) = given(Setup::new(), 8);
    for n in [1, 101] {
        let end = n + 100;
        let _ = t.client(
            0,
            &format!(". {n}:{end}(100) ack 1 win 512 <ts 1000 5000,dss ack 1 map {n}:{end}@{n}>"),
        );
    }
    t.server(". 1:1(0) ack 1 win 64 <ts 5000 1000,sack 101:201>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <ts 5000 1000,dss ack 1,sack 101:201>"]);
    for n in 0..3 {
        let _ = t.server(&data(n));
        assert_eq!(shelf.entries(), [], "{n}");
    }
    let _ = t.server(". 301:301(0) ack 201 win 64 <ts 5000 1000>");
    let _ = t.server(". 301:401(100) ack 201 win 64 <ts 5000 1000>");
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
}

#[test]
fn packet_that_is_dropped_starts_the_count_anew() {
    let (mut t, shelf) = given(Setup::new(), 8);
    let _ = t.server(&data(0));
    t.server(". 1:1(0) ack 999999 <ts 5000 1000>")
        .gives(&["drop ack_of_unsent"]);
    let _ = t.server(&data(1));
    assert_eq!(shelf.entries(), []);
    let _ = t.server(&data(2));
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1 ack_of_unsent+1");
}

#[test]
fn packet_that_calls_for_another_starts_the_count_anew() {
    let (mut t, shelf) = given(Setup::new(), 8);
    let _ = t.server(&data(0));
    // Repeated and new data in one packet: two mappings.
    let both = t.server(". 1:201(200) ack 1 win 64 <ts 5000 1000>");
    assert_eq!(both.lines().len(), 2);
    assert_eq!(shelf.entries(), []);
    let _ = t.server(&data(2));
    assert_eq!(shelf.entries(), []);
    let _ = t.moved();
}

#[test]
fn installed_any_packet_evicts_it() {
    let packets: [(Leg, &str); 3] = [
        (SERVER, ". 301:401(100) ack 1 win 64 <ts 5000 1000>"),
        (
            Leg::Client(0),
            ". 1:1(0) ack 1 win 512 <ts 1000 5000,dss ack 1>",
        ),
        (Leg::Client(0), "S 77:77(0) win 65535 <mss 1460>"),
    ];
    for (leg, line) in packets {
        let (mut t, shelf) = installed(Setup::new());
        let _ = t.edited(leg, line, |_| {});
        assert_eq!(shelf.entries(), [], "{line}");
        assert!(t.moved().starts_with("offload_evicted+1"), "{line}");
    }
}

#[test]
fn installed_packet_with_a_wrong_checksum_does_not_evict_it() {
    let (mut t, shelf) = installed(Setup::new());
    t.server(". 301:401(100) ack 1 win 64 <ts 5000 1000> bad")
        .gives(&["drop checksum"]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn installed_join_evicts_it() {
    let (mut t, shelf) = installed(Setup::new());
    let setup = Setup::new().ts();
    let outcome = t.client(1, &setup.join_syn(1));
    assert!(outcome.lines()[0].starts_with("client1 S."));
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 offload_evicted+1");
}

#[test]
fn installed_icmp_error_about_it_evicts_it() {
    let (mut t, shelf) = installed(Setup::new());
    let _ = t.icmp(Leg::Client(0), "too-big 1400 about 1");
    assert_eq!(shelf.entries(), []);
    assert_eq!(
        t.moved(),
        "icmp_translated+1 path_mtu_lowered+1 offload_evicted+1"
    );
}

#[test]
fn installed_and_quiet_is_evicted_for_good_after_a_while() {
    let (mut t, shelf) = installed(Setup::new());
    assert_eq!(t.next_timeout(), Some(2000));
    t.at(1999);
    t.timeout().gives(&[]);
    assert_eq!(shelf.entries().len(), 1);
    t.at(2000);
    t.timeout().gives(&[]);
    assert_eq!(shelf.entries(), []);
    assert_eq!(shelf.taken(), 0, "its slot is for others");
    assert_eq!(t.moved(), "offload_evicted+1");
}

#[test]
fn evicted_and_quiet_leaves_its_slot_to_others() {
    let (mut t, shelf) = installed(Setup::new());
    t.client(0, &ack(0))
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1000 5000>"]);
    assert_eq!((shelf.entries().len(), shelf.taken()), (0, 1));
    assert_eq!(t.next_timeout(), Some(2000));
    t.at(2000);
    t.timeout().gives(&[]);
    assert_eq!(shelf.taken(), 0);
    assert_eq!(t.moved(), "offload_evicted+1");
}

#[test]
fn installed_and_busy_is_looked_at_and_installed_on() {
    let (mut t, shelf) = installed(Setup::new());
    shelf.edit(|entry| entry.last_packet = 1_000_000);
    t.at(2000);
    t.timeout().gives(&[]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.next_timeout(), Some(4000));
    assert_eq!(t.moved(), "offload_installed+1 offload_evicted+1");
    t.uncompared();
}

#[test]
fn installed_timer_that_was_set_before_lets_it_be() {
    let setup = Setup::new().timeouts(|timeouts| timeouts.half_open = millis(4000));
    let (mut t, shelf) = installed(setup);
    // A join that never completes has a timer of its own at 8000 ms.
    let _ = t.client(1, &Setup::new().ts().join_syn(1));
    t.at(7000);
    t.timeout().gives(&[]);
    for n in 0..2 {
        let _ = t.client(0, &ack(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.next_timeout(), Some(8000));
    t.at(8000);
    t.timeout().gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    let _ = t.moved();
}

#[test]
fn timer_that_is_due_at_once_comes_before_installing() {
    let setup = Setup::new().ts().announce("10.7.0.1");
    let pause = Duration::from_micros(1_000_500);
    let mut t = setup
        .timeouts(|timeouts| timeouts.add_addr = pause)
        .established();
    let _ = t.server(&data(0));
    let shelf = Shelf::new(8);
    t.fast_path(&shelf);
    t.at(1000);
    for n in 1..5 {
        let _ = t.server(&data(n));
    }
    assert!(
        shelf.entries().is_empty(),
        "the address is announced again soon"
    );
    t.at(1001);
    assert_eq!(t.timeout().lines().len(), 1);
    let _ = t.client(0, &ack(4));
    for n in 5..8 {
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    let _ = t.moved();
}

#[test]
fn installed_is_idle_for_as_long_as_others() {
    let setup = Setup::new().timeouts(|timeouts| timeouts.idle = millis(1500));
    let (mut t, shelf) = installed(setup);
    assert_eq!(t.next_timeout(), Some(1500));
    t.at(1500);
    let outcome = t.timeout();
    assert_eq!(outcome.lines().len(), 2, "a reset each way");
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
}

#[test]
fn no_room_is_counted_and_not_asked_for_again_at_once() {
    let (mut t, shelf) = given(Setup::new(), 0);
    for n in 0..9 {
        let _ = t.server(&data(n));
    }
    assert_eq!(t.moved(), "offload_refused+1");
    t.at(1000);
    for n in 9..12 {
        let _ = t.server(&data(n));
    }
    assert_eq!(t.moved(), "offload_refused+1");
    assert_eq!(shelf.entries(), []);
}

#[test]
fn connection_that_leaves_frees_its_slot() {
    let setup = Setup::new().timeouts(|timeouts| timeouts.linger = millis(100));
    let (mut t, shelf) = installed(setup);
    assert_eq!(shelf.taken(), 1);
    let _ = t.server("R. 301:301(0) ack 1 win 0");
    assert_eq!(shelf.taken(), 1);
    t.at(100);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(shelf.taken(), 0);
    assert_eq!(
        t.moved(),
        "mp_fastclose_tx+1 connections_closed+1 offload_evicted+1"
    );
}

#[test]
fn evict_of_all_ends_with_the_next_packet() {
    let (mut t, shelf) = installed(Setup::new());
    t.translator.evict_all(flexcp_translator::Instant(0));
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.moved(), "offload_evicted+1");
    let _ = t.server(&data(3));
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
}

#[test]
fn looking_takes_nothing_back() {
    let (mut t, shelf) = installed(Setup::new());
    let before = *t.translator.counters();
    shelf.edit(|entry| {
        (entry.packets_down, entry.packets_up) = (7, 5);
        entry.packets_made = 3;
        entry.last_packet = 30_000;
        let subflow = &mut entry.subflows[0];
        (subflow.bytes_down, subflow.bytes_up) = (1_234, 567);
        subflow.rtt.smoothed = 89;
    });
    let totals = t.translator.totals();
    assert_eq!(totals.offload_packets_down, 7);
    assert_eq!(totals.offload_packets_up, 5);
    assert_eq!(totals.offload_packets_made, 3);
    assert_eq!(totals.packets_made, before.packets_made + 3);
    assert_eq!(totals.packets_in, before.packets_in + 12);
    assert_eq!(totals.packets_forwarded, before.packets_forwarded + 12);
    t.at(50);
    let view = t.view().unwrap();
    assert_eq!(view.idle, Duration::from_millis(20));
    let subflow = &view.subflows[0];
    assert_eq!((subflow.bytes_down, subflow.bytes_up), (1_234, 567));
    assert_eq!(subflow.quality.rtt, Some(Duration::from_micros(89)));
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(*t.translator.counters(), before);
    t.uncompared();
}

#[test]
fn packets_of_the_fast_path_are_counted() {
    let (mut t, shelf) = installed(Setup::new());
    let before = *t.translator.counters();
    shelf.edit(|entry| {
        (entry.packets_down, entry.packets_up) = (7, 5);
        entry.packets_made = 3;
    });
    t.translator.evict_all(flexcp_translator::Instant(0));
    assert_eq!(
        t.moved(),
        "offload_evicted+1 offload_packets_down+7 offload_packets_up+5 offload_packets_made+3"
    );
    let after = *t.translator.counters();
    assert_eq!(after.packets_made, before.packets_made + 3);
    assert_eq!(after.packets_in, before.packets_in + 12);
    assert_eq!(after.packets_forwarded, before.packets_forwarded + 12);
    t.uncompared();
}

#[test]
fn joined_subflow_without_timestamps_is_not_installed() {
    let (mut t, shelf) = installed(Setup::new());
    let setup = Setup::new();
    setup.join(&mut t, 1);
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 1>");
    let _ = t.server(&data(3));
    let [entry] = shelf.entries()[..] else {
        panic!("one connection");
    };
    let subflows = entry.subflows.map(|subflow| subflow.installed);
    assert_eq!(subflows, [1, 0, 0, 0]);
    let _ = t.moved();
}

#[test]
fn without_timestamps_nothing_is_installed() {
    let shelf = Shelf::new(8);
    let mut t = Scenario::established();
    t.fast_path(&shelf);
    for n in 0..6 {
        let at = n * 100 + 1;
        let _ = t.server(&format!(". {at}:{}(100) ack 1", at + 100));
    }
    assert_eq!(t.moved(), "");
}

/// One place; a connection that has it, and has used it for so many packets, and another that finds no room.
fn crowded(carried: u64) -> (Scenario, Shelf) {
    let setup = Setup::new().connections(2).ts();
    let shelf = Shelf::new(1);
    let mut t = setup.clone().established();
    let _ = t.client(10, &setup.syn());
    let _ = t.server_of(
        1,
        "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 1000,ws 7>",
    );
    let _ = t.client(10, ". 1:1(0) ack 1 win 512 <ts 1000 5000,capable>");
    t.fast_path(&shelf);
    for n in 0..6 {
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    t.at(100);
    for n in 0..6 {
        let _ = t.server_of(1, &data(n));
    }
    assert_eq!(t.translator.counters().offload_refused, 1);
    shelf.edit(|entry| {
        entry.last_packet = 1_900_000;
        entry.packets_down = carried;
    });
    t.at(2000);
    let _ = t.timeout();
    let _ = t.moved();
    t.uncompared();
    (t, shelf)
}

#[test]
fn where_there_is_no_room_one_of_few_packets_makes_some() {
    let (mut t, shelf) = crowded(63);
    assert_eq!(shelf.taken(), 0);
    for n in 6..8 {
        let _ = t.server_of(1, &data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
}

#[test]
fn where_there_is_no_room_a_busy_one_stays() {
    let (mut t, shelf) = crowded(64);
    assert_eq!(shelf.entries().len(), 1);
    for n in 6..8 {
        let _ = t.server_of(1, &data(n));
    }
    assert_eq!(t.moved(), "offload_refused+1");
}

#[test]
fn installed_connections_of_a_service_that_is_kept_are_evicted_for_good() {
    let (mut t, shelf) = installed(Setup::new());
    let now = flexcp_translator::Instant::default();
    t.translator.keep_services(now, &[ServiceId(0)]);
    assert_eq!((shelf.entries().len(), shelf.taken()), (0, 0));
    for n in 3..9 {
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.moved(), "offload_evicted+1");
    t.translator.keep_services(now, &[]);
    // What has been outstanding in several stretches is not installed.
    let _ = t.client(0, &ack(8));
    for n in 9..14 {
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    let _ = t.moved();
    t.uncompared();
}

#[test]
fn service_is_kept_from_a_fast_path_that_comes_later() {
    let shelf = Shelf::new(1);
    let mut t = Setup::new().ts().established();
    let now = flexcp_translator::Instant::default();
    t.translator.keep_services(now, &[ServiceId(0)]);
    t.fast_path(&shelf);
    for n in 0..6 {
        let _ = t.server(&data(n));
    }
    assert_eq!((shelf.entries().len(), shelf.taken()), (0, 0));
    t.translator.keep_services(now, &[]);
    // What has been outstanding in several stretches is not installed.
    let _ = t.client(0, &ack(6));
    for n in 6..12 {
        let _ = t.server(&data(n));
    }
    assert_eq!(shelf.entries().len(), 1);
    let _ = t.moved();
    t.uncompared();
}

#[test]
fn connection_that_the_host_has_rules_for_is_asked_for_once() {
    let shelf = Shelf::refusing();
    let mut t = Setup::new().ts().established();
    t.fast_path(&shelf);
    for at in [0, 5000] {
        t.at(at);
        for n in 0..6 {
            let _ = t.server(&data(n));
        }
    }
    assert_eq!(t.translator.counters().offload_kept, 1);
    assert_eq!(t.translator.counters().offload_refused, 0);
    let _ = t.moved();
}
