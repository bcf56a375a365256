//! The rules for the client's packets.

use std::net::IpAddr;

use flexcp_io::Tried;
use flexcp_translator::{LEASE_UPS, Lease, UpRun};

use crate::offload_packets::{
    CLIENTS, NOW, OUTSTANDING, PORTS, Packet, ack_down, ack_up, data_down, data_up, data_up_with,
    dss, lease, timestamps,
};
use crate::offload_rules::Rules;

pub(crate) fn up() {
    let mut rules = Rules::new();
    ups_that_pass(&mut rules);
    data_that_passes(&mut rules);
    options_that_pass(&mut rules);
    stale_acks(&mut rules);
    ups_that_are_taken(&mut rules);
    what_was_next(&mut rules);
    short_numbers(&mut rules);
}

fn ups_that_pass(rules: &mut Rules) {
    let lease = lease();
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = ack_up(&lease);
        edit(&mut packet);
        packet
    };
    rules.passes("sequence_up", &lease, &with(&|p| p.tcp.seq += 1));
    rules.passes("sequence_up", &lease, &with(&|p| p.tcp.seq -= 1));
    let next = lease.subflows[0].snd_next;
    rules.passes("ack", &lease, &with(&|p| p.tcp.ack = next + 1));
    rules.passes(
        "ack",
        &lease,
        &with(&|p| p.tcp.ack = next - OUTSTANDING - 1),
    );
    let acks = |data_ack: u64| {
        let mut packet = ack_up(&lease);
        packet.options.truncate(12);
        packet.options.extend(dss(data_ack, true, None, false));
        packet
    };
    rules.passes("ack", &lease, &acks(lease.down_next + 1));
    rules.passes("ack", &lease, &acks(lease.down_acked - (1 << 30) - 1));
    let beyond = Lease {
        server_edge: lease.up_next - 1,
        ..lease
    };
    rules.passes("window", &beyond, &ack_up(&lease));
}

fn data_that_passes(rules: &mut Rules) {
    let lease = lease();
    let ssn = lease.subflows[0].rcv_high - 1_000;
    let map = |dsn: u64, ssn: u32, len: u16| data_up_with(&lease, true, true, (dsn, ssn, len));
    rules.passes("mapping", &lease, &map(lease.up_next, ssn + 1, 500));
    rules.passes("mapping", &lease, &map(lease.up_next, ssn, 499));
    // Data of the past; and out of order where the only subflow's numbers are the data's.
    rules.passes("mapping", &lease, &map(lease.up_acked - 1, ssn, 500));
    let ordered = Lease {
        ordered: 1,
        ..lease
    };
    rules.passes("mapping", &ordered, &map(lease.up_next + 1, ssn, 500));
    rules.passes("mapping", &ordered, &map(lease.up_next - 1, ssn, 500));
    rules.takes(&ordered, &data_up(&lease));
    // The subflow's numbers are further from what is ACKed on it than any that is believed.
    let mut far = lease;
    far.subflows[0].rcv_ack = far.subflows[0].rcv_high.wrapping_sub((1 << 17) + 1);
    rules.passes("sequence_up", &far, &data_up(&lease));
    far.subflows[0].rcv_ack += 1;
    rules.takes(&far, &data_up(&lease));
    far.subflows[0].rcv_ack = far.subflows[0].rcv_high.wrapping_sub(200_001);
    far.server_window_max = 100_000;
    rules.passes("sequence_up", &far, &data_up(&lease));
    far.server_window_max += 1;
    rules.takes(&far, &data_up(&lease));
    let mut full = lease;
    full.ups[0] = [UpRun { dsn: 0, len: 10 }; LEASE_UPS];
    full.subflows[0].ups_used = 16;
    rules.passes("no_room", &full, &data_up(&lease));
    full.subflows[0].ups_used = 15;
    rules.takes(&full, &data_up(&lease));
    let full = Lease {
        server_edge: lease.up_next + 499,
        ..lease
    };
    rules.passes("window", &full, &data_up(&lease));
    // The options stay as padding, so they count against the server's MSS.
    let small = Lease {
        server_mss: 539,
        ..lease
    };
    rules.passes("too_long", &small, &data_up(&lease));
    let fits = Lease {
        server_mss: 540,
        ..lease
    };
    rules.takes(&fits, &data_up(&lease));
}

fn options_that_pass(rules: &mut Rules) {
    let lease = lease();
    // Data without a mapping; a mapping without data.
    let mut bare = ack_up(&lease);
    bare.payload = 500;
    rules.passes("options", &lease, &bare);
    let mut empty = data_up(&lease);
    empty.payload = 0;
    rules.passes("options", &lease, &empty);
    // In the DSS: kind, length, subtype, DATA_FIN, reserved, no data ACK, a long DSN without a mapping.
    let at = 20 + 20 + 12;
    for (byte, with) in [
        (0, 1),
        (1, 4),
        (2, 0x10),
        (3, 0x10),
        (3, 0x20),
        (3, 1),
        (3, 8),
    ] {
        for good in [ack_up(&lease), data_up(&lease)] {
            if good.payload > 0 && with == 8 {
                continue;
            }
            let mut bad = good;
            bad.twist = Some((at + byte, with));
            rules.passes("options", &lease, &bad);
        }
    }
    // A DSS with a checksum, and an end of options where padding should be.
    let mut checked = data_up(&lease);
    checked.options[13] = 28;
    rules.passes("options", &lease, &checked);
    let mut ended = data_up(&lease);
    ended.options[38] = 0;
    rules.passes("options", &lease, &ended);
    let mut more = ack_up(&lease);
    more.options.extend([1; 4]);
    rules.passes("options", &lease, &more);
}

fn stale_acks(rules: &mut Rules) {
    let lease = lease();
    let stale = |index: usize| {
        let mut packet = ack_up(&lease);
        packet.ip.src = IpAddr::from(CLIENTS[index]);
        packet.tcp.src_port = PORTS[index];
        packet.tcp.ack = lease.subflows[index].snd_una;
        packet.options.truncate(12);
        packet
            .options
            .extend(dss(lease.down_acked, true, None, false));
        packet.tcp.window = 100;
        packet
    };
    // On the active subflow a duplicate may be meant for the server.
    rules.passes("no_news", &lease, &stale(0));
    let (tried, moved, back) = rules.run(&lease, &stale(1));
    assert_eq!((tried, moved), (Tried::Dropped, Some("stale_ack")));
    assert_eq!(back.subflows[1].last_heard, NOW);
    assert_eq!((back.heard, back.last_packet), (1, NOW));
    // The server does not see its timestamp.
    assert_eq!((back.ts_sent, back.ts_echo), (7_000, 9_000));
    assert_eq!(back.packets_up, 0);
    // Its subflow's ACK is news even so, but none for the server.
    let mut acks = stale(0);
    acks.tcp.ack += 1_000;
    let (tried, moved, back) = rules.run(&lease, &acks);
    assert_eq!((tried, moved), (Tried::Dropped, Some("stale_ack")));
    assert_eq!(back.subflows[0].snd_una, lease.subflows[0].snd_una + 1_000);
}

fn ups_that_are_taken(rules: &mut Rules) {
    let mut lease = lease();
    lease.subflows[0].is_timed = 1;
    lease.subflows[0].timed = lease.subflows[0].snd_una.wrapping_add(1_000);
    lease.subflows[0].timed_at = NOW - 18_000;
    let (out, back) = rules.takes(&lease, &ack_up(&lease));
    assert_eq!(out.ip.src, IpAddr::from(CLIENTS[0]));
    assert_eq!(out.tcp.seq, lease.seq_up);
    assert_eq!(out.tcp.ack, lease.seq_down - (OUTSTANDING - 1_000));
    // Bytes to the edge of the window, in the scale that the server knows.
    let window = (lease.down_acked + 1_000 + (508 << 7)).max(lease.down_edge);
    let left = (window - lease.down_acked - 1_000) >> 5;
    assert_eq!(u64::from(out.tcp.window), left);
    assert_eq!(out.options, timestamps(7_050, 9_000));
    assert_eq!(back.down_acked, lease.down_acked + 1_000);
    assert_eq!(back.client_window, 508 << 7);
    assert_eq!(
        (back.ts_sent, back.ts_sent_at, back.ts_echo),
        (7_050, NOW, 9_000)
    );
    let subflow = &back.subflows[0];
    assert_eq!(subflow.clock_heard, 6_950);
    assert_eq!(
        subflow.snd_una,
        lease.subflows[0].snd_una.wrapping_add(1_000)
    );
    assert_eq!(subflow.snd_edge, subflow.snd_una.wrapping_add(508 << 7));
    assert_eq!((subflow.srtt, subflow.is_timed), (11_000, 0));
    assert_eq!(subflow.outstanding_since, NOW);
    assert_eq!((back.packets_down, back.packets_up), (0, 1));
    // A window that does not fit the field is as large as that can say.
    let wide = Lease {
        initial_scale: 0,
        down_edge: lease.down_next + 200_000,
        ..lease
    };
    let (out, _) = rules.takes(&wide, &ack_up(&lease));
    assert_eq!(out.tcp.window, 0xffff);
    // An echo of what the server has not said is not passed on.
    let mut early = ack_up(&lease);
    early.options[8..12].copy_from_slice(&9_001_u32.to_be_bytes());
    let (out, _) = rules.takes(&lease, &early);
    assert_eq!(out.options, timestamps(7_050, 8_990));
    // Another CPU's clock is ahead: the shortest RTT there is.
    lease.subflows[0].timed_at = NOW + 5;
    let (_, back) = rules.takes(&lease, &ack_up(&lease));
    assert_eq!(back.subflows[0].srtt, 10_000 - 1_250);
}

/// TS.Recent of a subflow (RFC 7323 section 4.3): data from where its ACK stands.
fn what_was_next(rules: &mut Rules) {
    let lease = lease();
    let recent = |lease: &Lease| lease.subflows[0].clock_recent;
    // Behind what is outstanding.
    let (_, back) = rules.takes(&lease, &data_up(&lease));
    assert_eq!(recent(&back), 6_800);
    let mut acked = lease;
    acked.up_acked = acked.up_next;
    acked.subflows[0].rcv_ack = acked.subflows[0].rcv_high;
    let (_, back) = rules.takes(&acked, &data_up(&acked));
    assert_eq!(recent(&back), 6_950);
    let (_, back) = rules.takes(&acked, &ack_up(&acked));
    assert_eq!(recent(&back), 6_800);
    acked.subflows[0].clock_recent = 6_960;
    let (_, back) = rules.takes(&acked, &data_up(&acked));
    assert_eq!(recent(&back), 6_960);
    let mut later = lease;
    later.subflows[0].clock_recent = 6_899;
    let (out, _) = rules.takes(&later, &data_down(&later));
    assert_eq!(out.options[..12], timestamps(9_001, 6_899));
    // The server has got what it waited for, and says which copy.
    let (out, back) = rules.takes(&later, &ack_down(&later));
    assert_eq!(out.options[..12], timestamps(9_001, 6_895));
    assert_eq!(recent(&back), 6_895);
    later.subflows[0].clock_recent = 6_890;
    let (_, back) = rules.takes(&later, &ack_down(&later));
    assert_eq!(recent(&back), 6_890, "no later one");
    later.subflows[0].clock_recent = 6_899;
    later.ups[0][0].dsn = later.ups[0][0].dsn.wrapping_add(1);
    let (_, back) = rules.takes(&later, &ack_down(&later));
    assert_eq!(recent(&back), 6_899, "another subflow has brought that");
}

fn short_numbers(rules: &mut Rules) {
    let mut lease = lease();
    // Across the end of the 32-bit numbers, too.
    for ahead in [0, 0x100_u64] {
        lease.down_next += ahead;
        lease.down_acked = lease.down_next - u64::from(OUTSTANDING);
        lease.up_next += ahead;
        lease.up_acked = lease.up_next - u64::from(OUTSTANDING);
        lease.down_edge = lease.down_next + 60_000;
        lease.server_edge = lease.up_next + 60_000;
        let ssn = lease.subflows[0].rcv_high - 1_000;
        for (long, long_map) in [(true, true), (true, false), (false, true), (false, false)] {
            let packet = data_up_with(&lease, long, long_map, (lease.up_next, ssn, 500));
            let (out, back) = rules.takes(&lease, &packet);
            assert_eq!(out.tcp.seq, lease.seq_up);
            assert_eq!(out.options[..12], timestamps(7_050, 9_000));
            assert!(out.options[12..].iter().all(|&byte| byte == 1), "padding");
            assert_eq!(back.up_next, lease.up_next + 500);
            assert_eq!(back.seq_up, lease.seq_up.wrapping_add(500));
            assert_eq!(back.down_acked, lease.down_acked + 1_000);
            let high = lease.subflows[0].rcv_high.wrapping_add(500);
            assert_eq!(back.subflows[0].rcv_high, high);
            assert_eq!(back.subflows[0].bytes_up, 500);
            // Data is no answer to what went down, unless it ACKs.
            assert_eq!(back.subflows[0].outstanding_since, NOW);
        }
        let mut short = ack_up(&lease);
        short.options.truncate(12);
        let edge = lease.down_next;
        short.options.extend(dss(edge, false, None, false));
        let (_, back) = rules.takes(&lease, &short);
        assert_eq!(back.down_acked, lease.down_next);
    }
    let mut quiet = data_up(&lease);
    quiet.tcp.ack = lease.subflows[0].snd_una;
    let (_, back) = rules.takes(&lease, &quiet);
    assert_eq!(back.subflows[0].outstanding_since, NOW - 1_000);
}
