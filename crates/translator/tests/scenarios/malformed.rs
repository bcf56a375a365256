//! Packets that are none, or that lie about themselves: dropped with the reason, never answered, and the
//! connection goes on.

use flexcp_wire::{ChecksumState, Gso, GsoKind, Offload};

use crate::support::{Leg, Outcome, Scenario, Setup};

const CLIENT: Leg = Leg::Client(0);
const DATA: &str = "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>";
const DATA_UP: &str = "server P. 1:101(100) ack 1 win 512";

/// The packet whose bytes were changed is dropped for `reason`, and the true one still passes.
fn is_dropped(t: &mut Scenario, reason: &str, edit: impl FnOnce(&mut Vec<u8>)) {
    t.edited(CLIENT, DATA, edit)
        .gives(&[&format!("drop {reason}")]);
    assert_eq!(t.moved(), format!("{reason}+1"));
    t.client(0, DATA).gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

fn raw(t: &mut Scenario, bytes: &[u8]) -> Outcome {
    t.raw(format!("{bytes:02x?}"), bytes, Offload::default())
}

#[test]
fn nothing_at_all() {
    let mut t = Scenario::established();
    raw(&mut t, &[]).gives(&["drop malformed"]);
    assert_eq!(t.moved(), "malformed+1");
}

#[test]
fn packet_cut_short_anywhere() {
    for setup in [Setup::new(), Setup::new().v6()] {
        let mut t = setup.established();
        let (bytes, offload) = t.bytes(CLIENT, DATA);
        for len in 0..bytes.len() {
            t.raw(format!("{len} bytes"), &bytes[..len], offload)
                .gives(&["drop malformed"]);
        }
        assert_eq!(t.moved(), format!("malformed+{}", bytes.len()));
        t.client(0, DATA).gives(&[DATA_UP]);
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn packet_with_padding_behind_it_passes_without() {
    let mut t = Scenario::established();
    t.edited(CLIENT, DATA, |bytes| bytes.extend([0xee; 6]))
        .gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ip_version_5() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[0] = 0x55
    });
}

#[test]
fn ip_header_length_below_20() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[0] = 0x44
    });
}

#[test]
fn ip_header_length_beyond_the_packet() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[0] = 0x4f;
        bytes.truncate(50);
        bytes[2..4].copy_from_slice(&50_u16.to_be_bytes());
    });
}

#[test]
fn ip_total_length_beyond_the_packet() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[2] = 0xff
    });
}

#[test]
fn ip_total_length_within_the_headers() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[2..4].copy_from_slice(&30_u16.to_be_bytes());
    });
}

#[test]
fn ipv4_options_are_skipped() {
    let mut t = Scenario::established();
    let outcome = t.edited(CLIENT, DATA, |bytes| {
        bytes[0] = 0x46;
        let total = u16::from_be_bytes([bytes[2], bytes[3]]) + 4;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes.splice(20..20, [1, 1, 1, 0]);
    });
    outcome.gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ipv4_first_fragment() {
    is_dropped(&mut Scenario::established(), "fragment", |bytes| {
        bytes[6] |= 0x20
    });
}

#[test]
fn ipv4_later_fragment() {
    is_dropped(&mut Scenario::established(), "fragment", |bytes| {
        bytes[7] = 1
    });
}

#[test]
fn ipv6_fragment() {
    is_dropped(&mut Scenario::established_v6(), "fragment", |bytes| {
        bytes[6] = 44;
        bytes.splice(40..40, [6, 0, 0, 1, 0, 0, 0, 1]);
        let len = u16::from_be_bytes([bytes[4], bytes[5]]) + 8;
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
    });
}

#[test]
fn ipv6_extension_headers_are_skipped() {
    let mut t = Scenario::established_v6();
    let outcome = t.edited(CLIENT, DATA, |bytes| {
        bytes[6] = 60;
        bytes.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
        let len = u16::from_be_bytes([bytes[4], bytes[5]]) + 8;
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
    });
    outcome.gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ipv6_routing_header_that_is_not_used_up() {
    is_dropped(&mut Scenario::established_v6(), "malformed", |bytes| {
        bytes[6] = 43;
        bytes.splice(40..40, [6, 0, 4, 1, 0, 0, 0, 0]);
        let len = u16::from_be_bytes([bytes[4], bytes[5]]) + 8;
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
    });
}

#[test]
fn udp() {
    is_dropped(&mut Scenario::established(), "not_tcp", |bytes| {
        bytes[9] = 17
    });
}

#[test]
fn udp_over_ipv6() {
    is_dropped(&mut Scenario::established_v6(), "not_tcp", |bytes| {
        bytes[6] = 17
    });
}

#[test]
fn tcp_header_length_below_20() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[32] = 0x40
    });
}

#[test]
fn tcp_header_length_beyond_the_packet() {
    is_dropped(&mut Scenario::established(), "malformed", |bytes| {
        bytes[32] = 0xf0;
        bytes.truncate(60);
        bytes[2..4].copy_from_slice(&60_u16.to_be_bytes());
    });
}

#[test]
fn option_of_length_0() {
    is_dropped(&mut Scenario::established(), "malformed_options", |bytes| {
        bytes[41] = 0
    });
}

#[test]
fn option_of_length_1() {
    is_dropped(&mut Scenario::established(), "malformed_options", |bytes| {
        bytes[41] = 1
    });
}

#[test]
fn option_beyond_the_header() {
    is_dropped(&mut Scenario::established(), "malformed_options", |bytes| {
        bytes[41] = 200
    });
}

#[test]
fn option_kind_at_the_last_byte() {
    is_dropped(&mut Scenario::established(), "malformed_options", |bytes| {
        // 28 bytes of options: 27 NOPs and a kind without a length.
        bytes[40..67].fill(1);
        bytes[67] = 8;
    });
}

#[test]
fn timestamps_of_a_wrong_length() {
    is_dropped(&mut Scenario::established(), "malformed_options", |bytes| {
        bytes[40..68].fill(1);
        bytes[40..42].copy_from_slice(&[8, 9]);
    });
}

#[test]
fn mss_of_a_wrong_length_in_a_syn() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <raw 0203050100000000,capable>")
        .gives(&["drop malformed_options"]);
    assert_eq!(t.moved(), "malformed_options+1");
    assert_eq!(t.state(), "gone");
}

#[test]
fn every_option_kind_in_a_syn_is_survived() {
    for kind in 2..=255_u8 {
        let mut t = Setup::new().start();
        let outcome = t.client(
            0,
            &format!("S 0:0(0) win 65535 <mss 1460,raw {kind:02x}0400aa,capable>"),
        );
        assert_eq!(outcome.lines().len(), 1, "{kind}");
        let line = &outcome.lines()[0];
        assert!(
            line.starts_with("server S 0:0(0)") || line.starts_with("drop"),
            "{kind}: {line}"
        );
        assert!(
            !line.contains("capable") && !line.contains("opt-"),
            "{kind}: {line}"
        );
        let _ = t.moved();
    }
}

#[test]
fn every_mptcp_option_of_every_length_on_an_ack_is_survived() {
    for subtype in 0..16_u8 {
        for len in 2..=36_usize {
            let mut t = Scenario::two_subflows();
            let body = "00".repeat(len.saturating_sub(3));
            let first = if len > 2 {
                format!("{subtype:x}0")
            } else {
                String::new()
            };
            let line = format!(". 1:1(0) ack 1 <raw 1e{len:02x}{first}{body}>");
            let outcome = t.client(1, &line);
            assert!(outcome.lines().len() <= 3, "{line}: {:?}", outcome.lines());
            assert!(
                !outcome.lines().iter().any(|line| line.starts_with('!')),
                "{line}"
            );
            let _ = t.moved();
        }
    }
}

#[test]
fn all_flags_at_once() {
    let mut t = Scenario::established();
    for flags in ["FSRP.UEWe", "SR", "SF.", "FR", "-"] {
        let outcome = t.client(0, &format!("{flags} 7:7(0) ack 1"));
        assert!(
            outcome.lines()[0].starts_with("drop"),
            "{flags}: {:?}",
            outcome.lines()
        );
        assert_eq!(t.state(), "translating");
    }
    let _ = t.moved();
}

#[test]
fn start_syn_with_rst_opens_nothing() {
    // RFC 9293 section 3.10.7.2: a RST is ignored where there is no connection.
    let mut t = Setup::new().start();
    let _ = t.client(0, "SR 0:0(0) win 65535 <mss 1460,capable>");
    assert_eq!(t.state(), "gone");
    let _ = t.moved();
}

#[test]
fn start_syn_with_fin_opens_nothing() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "SF 0:0(0) win 65535 <mss 1460,capable>");
    assert_eq!(t.state(), "gone");
    let _ = t.moved();
}

#[test]
fn checksum_that_is_wrong_changes_nothing() {
    let mut t = Scenario::established();
    t.client(0, &format!("{DATA} bad"))
        .gives(&["drop checksum"]);
    t.server("P. 1:101(100) ack 1 bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.moved(), "checksum+2");
    t.client(0, DATA).gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_syn_with_a_wrong_checksum_opens_nothing() {
    let mut t = Setup::new().start();
    // What it says of windows would stay.
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 2,capable> bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.state(), "gone");
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 connections_opened+1 checksum+1"
    );
}

#[test]
fn start_plain_syn_with_a_wrong_checksum_passes_as_it_is() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8> bad")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8> bad"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn established_join_with_a_wrong_checksum_is_not_answered() {
    let mut t = Scenario::established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join> bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.subflows(), ["0 active"]);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn reset_connection_is_not_replaced_by_a_syn_with_a_wrong_checksum() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    let _ = t.moved();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8> bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn headroom_that_does_not_suffice() {
    let mut t = Scenario::established();
    t.headroom(8);
    t.server("P. 1:101(100) ack 1").gives(&["drop no_headroom"]);
    assert_eq!(t.moved(), "no_headroom+1");
}

#[test]
fn headroom_of_the_default_suffices_between_families() {
    let mut t = Setup::new().v6().ts().backends(1).established();
    t.server("P. 1:101(100) ack 1 win 64 <ts 5001 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5001 1000,dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn segmentation_without_need_is_survived() {
    let mut t = Scenario::established();
    let (bytes, _) = t.bytes(
        CLIENT,
        "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1> partial",
    );
    let gso = Gso {
        kind: GsoKind::TcpV4,
        size: 1400,
        ecn: false,
    };
    let offload = Offload {
        checksum: ChecksumState::Partial,
        gso: Some(gso),
    };
    t.raw("small packet with segmentation".into(), &bytes, offload)
        .gives(&[DATA_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn source_that_is_the_destination() {
    let mut t = Setup::new().start();
    let outcome = t.edited(CLIENT, "S 0:0(0) win 65535 <mss 1460,capable>", |bytes| {
        bytes.copy_within(16..20, 12);
        bytes.copy_within(22..24, 20);
    });
    assert!(outcome.lines().len() <= 2, "{:?}", outcome.lines());
    let _ = t.moved();
}

#[test]
fn packet_from_its_own_destination() {
    let mut t = Scenario::established();
    let (mut bytes, offload) = t.bytes(CLIENT, "S 0:0(0) win 65535 <mss 1460,capable>");
    bytes.copy_within(16..20, 12);
    bytes.copy_within(22..24, 20);
    t.raw("LAND".into(), &bytes, offload)
        .gives(&["drop spoofed"]);
    assert_eq!(t.moved(), "spoofed+1");
}
