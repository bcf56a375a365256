//! The rules for the client's packets.

use std::net::IpAddr;

use flexcp_io::Tried;
use flexcp_translator::{ENTRY_UPS, FlowEntry, UpRun};

use crate::offload_packets::{
    CLIENTS, NOW, OUTSTANDING, PORTS, Packet, ack_down, ack_up, data_down, data_up, data_up_with,
    dss, entry, timestamps,
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
    let entry = entry();
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = ack_up(&entry);
        edit(&mut packet);
        packet
    };
    rules.passes("sequence_up", &entry, &with(&|p| p.tcp.seq += 1));
    rules.passes("sequence_up", &entry, &with(&|p| p.tcp.seq -= 1));
    let next = entry.subflows[0].snd_next;
    rules.passes("ack", &entry, &with(&|p| p.tcp.ack = next + 1));
    rules.passes(
        "ack",
        &entry,
        &with(&|p| p.tcp.ack = next - OUTSTANDING - 1),
    );
    let acks = |data_ack: u64| {
        let mut packet = ack_up(&entry);
        packet.options.truncate(12);
        packet.options.extend(dss(data_ack, true, None, false));
        packet
    };
    rules.passes("ack", &entry, &acks(entry.down_next + 1));
    rules.passes("ack", &entry, &acks(entry.down_acked - (1 << 30) - 1));
    let beyond = FlowEntry {
        server_edge: entry.up_next - 1,
        ..entry
    };
    rules.passes("window", &beyond, &ack_up(&entry));
}

fn data_that_passes(rules: &mut Rules) {
    let entry = entry();
    let ssn = entry.subflows[0].rcv_high - 1_000;
    let map = |dsn: u64, ssn: u32, len: u16| data_up_with(&entry, true, true, (dsn, ssn, len));
    rules.passes("mapping", &entry, &map(entry.up_next, ssn + 1, 500));
    rules.passes("mapping", &entry, &map(entry.up_next, ssn, 499));
    // Data of the past; and out of order where the only subflow's numbers are the data's.
    rules.passes("mapping", &entry, &map(entry.up_acked - 1, ssn, 500));
    let ordered = FlowEntry {
        ordered: 1,
        ..entry
    };
    rules.passes("mapping", &ordered, &map(entry.up_next + 1, ssn, 500));
    rules.passes("mapping", &ordered, &map(entry.up_next - 1, ssn, 500));
    rules.takes(&ordered, &data_up(&entry));
    // The subflow's numbers are further from what is ACKed on it than any that is believed.
    let mut far = entry;
    far.subflows[0].rcv_ack = far.subflows[0].rcv_high.wrapping_sub((1 << 17) + 1);
    rules.passes("sequence_up", &far, &data_up(&entry));
    far.subflows[0].rcv_ack += 1;
    rules.takes(&far, &data_up(&entry));
    far.subflows[0].rcv_ack = far.subflows[0].rcv_high.wrapping_sub(200_001);
    far.server_window_max = 100_000;
    rules.passes("sequence_up", &far, &data_up(&entry));
    far.server_window_max += 1;
    rules.takes(&far, &data_up(&entry));
    let mut full = entry;
    full.ups[0] = [UpRun { dsn: 0, len: 10 }; ENTRY_UPS];
    full.subflows[0].ups_used = 16;
    rules.passes("no_room", &full, &data_up(&entry));
    full.subflows[0].ups_used = 15;
    rules.takes(&full, &data_up(&entry));
    let full = FlowEntry {
        server_edge: entry.up_next + 499,
        ..entry
    };
    rules.passes("window", &full, &data_up(&entry));
    // The options stay as padding, so they count against the server's MSS.
    let small = FlowEntry {
        server_mss: 539,
        ..entry
    };
    rules.passes("too_long", &small, &data_up(&entry));
    let fits = FlowEntry {
        server_mss: 540,
        ..entry
    };
    rules.takes(&fits, &data_up(&entry));
}

fn options_that_pass(rules: &mut Rules) {
    let entry = entry();
    // Data without a mapping; a mapping without data.
    let mut bare = ack_up(&entry);
    bare.payload = 500;
    rules.passes("options", &entry, &bare);
    let mut empty = data_up(&entry);
    empty.payload = 0;
    rules.passes("options", &entry, &empty);
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
        for good in [ack_up(&entry), data_up(&entry)] {
            if good.payload > 0 && with == 8 {
                continue;
            }
            let mut bad = good;
            bad.twist = Some((at + byte, with));
            rules.passes("options", &entry, &bad);
        }
    }
    // A DSS with a checksum, and an end of options where padding should be.
    let mut checked = data_up(&entry);
    checked.options[13] = 28;
    rules.passes("options", &entry, &checked);
    let mut ended = data_up(&entry);
    ended.options[38] = 0;
    rules.passes("options", &entry, &ended);
    let mut more = ack_up(&entry);
    more.options.extend([1; 4]);
    rules.passes("options", &entry, &more);
}

fn stale_acks(rules: &mut Rules) {
    let entry = entry();
    let stale = |index: usize| {
        let mut packet = ack_up(&entry);
        packet.ip.src = IpAddr::from(CLIENTS[index]);
        packet.tcp.src_port = PORTS[index];
        packet.tcp.ack = entry.subflows[index].snd_una;
        packet.options.truncate(12);
        packet
            .options
            .extend(dss(entry.down_acked, true, None, false));
        packet.tcp.window = 100;
        packet
    };
    // On the active subflow a duplicate may be meant for the server.
    rules.passes("no_news", &entry, &stale(0));
    let (tried, moved, back) = rules.run(&entry, &stale(1));
    assert_eq!((tried, moved), (Tried::Dropped, Some("stale_ack")));
    assert_eq!(back.subflows[1].last_heard, NOW);
    assert_eq!((back.heard, back.last_packet), (1, NOW));
    // The server does not see its timestamp.
    assert_eq!((back.ts_sent, back.ts_echo), (7_000, 9_000));
    assert_eq!(back.packets_up, 0);
    // Its subflow's ACK is news even so, but none for the server.
    let mut acks = stale(0);
    acks.tcp.ack += 1_000;
    let (tried, moved, back) = rules.run(&entry, &acks);
    assert_eq!((tried, moved), (Tried::Dropped, Some("stale_ack")));
    assert_eq!(back.subflows[0].snd_una, entry.subflows[0].snd_una + 1_000);
}

fn ups_that_are_taken(rules: &mut Rules) {
    let mut entry = entry();
    entry.subflows[0].timed_as = 1;
    entry.subflows[0].timed = entry.subflows[0].snd_una.wrapping_add(1_000);
    entry.subflows[0].timed_at = NOW - 18_000;
    let (out, back) = rules.takes(&entry, &ack_up(&entry));
    assert_eq!(out.ip.src, IpAddr::from(CLIENTS[0]));
    assert_eq!(out.tcp.seq, entry.seq_up);
    assert_eq!(out.tcp.ack, entry.seq_down - (OUTSTANDING - 1_000));
    // Bytes to the edge of the window, in the scale that the server knows.
    let window = (entry.down_acked + 1_000 + (508 << 7)).max(entry.down_edge);
    let left = (window - entry.down_acked - 1_000) >> 5;
    assert_eq!(u64::from(out.tcp.window), left);
    assert_eq!(out.options, timestamps(7_050, 9_000));
    assert_eq!(back.down_acked, entry.down_acked + 1_000);
    assert_eq!(back.client_window, 508 << 7);
    assert_eq!(
        (back.ts_sent, back.ts_sent_at, back.ts_echo),
        (7_050, NOW, 9_000)
    );
    let subflow = &back.subflows[0];
    assert_eq!(subflow.clock_heard, 6_950);
    assert_eq!(
        subflow.snd_una,
        entry.subflows[0].snd_una.wrapping_add(1_000)
    );
    assert_eq!(subflow.snd_edge, subflow.snd_una.wrapping_add(508 << 7));
    assert_eq!(
        (subflow.rtt.smoothed, subflow.timed_as, subflow.timed_at),
        (11_000, 3, NOW)
    );
    assert_eq!(subflow.outstanding_since, NOW);
    assert_eq!((back.packets_down, back.packets_up), (0, 1));
    // A window that does not fit the field is as large as that can say.
    let wide = FlowEntry {
        initial_scale: 0,
        down_edge: entry.down_next + 200_000,
        ..entry
    };
    let (out, _) = rules.takes(&wide, &ack_up(&entry));
    assert_eq!(out.tcp.window, 0xffff);
    // An echo of what the server has not said is not passed on.
    let mut early = ack_up(&entry);
    early.options[8..12].copy_from_slice(&9_001_u32.to_be_bytes());
    let (out, _) = rules.takes(&entry, &early);
    assert_eq!(out.options, timestamps(7_050, 8_990));
    // Of what the server has repeated an echo from another subflow says nothing.
    let repeated = FlowEntry {
        ts_again: 8_995,
        ..entry
    };
    let mut elsewhere = ack_up(&entry);
    elsewhere.ip.src = IpAddr::from(CLIENTS[1]);
    elsewhere.tcp.src_port = PORTS[1];
    elsewhere.tcp.ack = entry.subflows[1].snd_una;
    elsewhere.options[8..12].copy_from_slice(&8_900_u32.to_be_bytes());
    let (_, back) = rules.takes(&repeated, &elsewhere);
    assert_eq!((back.ts_echo, back.ts_again), (8_995, 8_995));
    let mut here = ack_up(&entry);
    here.options[8..12].copy_from_slice(&8_900_u32.to_be_bytes());
    let (_, back) = rules.takes(&repeated, &here);
    assert_eq!((back.ts_echo, back.ts_again), (8_990, 8_990));
    // Nor does one from where what was repeated has been lost.
    let mut lost = here;
    lost.tcp.ack = entry.subflows[0].snd_una;
    let (_, back) = rules.takes(&repeated, &lost);
    assert_eq!((back.ts_echo, back.ts_again), (8_995, 8_995));
    // The least RTT, until five minutes are over.
    for (age, least) in [(285, 9_000), (286, 18_000)] {
        let rtt = &mut entry.subflows[0].rtt;
        (rtt.least, rtt.least_at) = (9_000, u32::try_from(NOW >> 20).unwrap().wrapping_sub(age));
        let (_, back) = rules.takes(&entry, &ack_up(&entry));
        assert_eq!(back.subflows[0].rtt.least, least);
    }
    // Both of the last two samples.
    for (last, recent) in [(0, 18_000), (9_000, 9_000), (30_000, 18_000)] {
        entry.subflows[0].rtt.last = last;
        let (_, back) = rules.takes(&entry, &ack_up(&entry));
        let rtt = back.subflows[0].rtt;
        assert_eq!((rtt.last, rtt.recent), (18_000, recent));
    }
    // Another CPU's clock is ahead: no sample.
    entry.subflows[0].timed_at = NOW + 5;
    let (_, back) = rules.takes(&entry, &ack_up(&entry));
    assert_eq!(back.subflows[0].rtt, entry.subflows[0].rtt);
}

/// TS.Recent of a subflow (RFC 7323 section 4.3): data from where its ACK stands.
fn what_was_next(rules: &mut Rules) {
    let entry = entry();
    let recent = |entry: &FlowEntry| entry.subflows[0].clock_recent;
    // Behind what is outstanding.
    let (_, back) = rules.takes(&entry, &data_up(&entry));
    assert_eq!(recent(&back), 6_800);
    let mut acked = entry;
    acked.up_acked = acked.up_next;
    acked.subflows[0].rcv_ack = acked.subflows[0].rcv_high;
    let (_, back) = rules.takes(&acked, &data_up(&acked));
    assert_eq!(recent(&back), 6_950);
    let (_, back) = rules.takes(&acked, &ack_up(&acked));
    assert_eq!(recent(&back), 6_800);
    acked.subflows[0].clock_recent = 6_960;
    let (_, back) = rules.takes(&acked, &data_up(&acked));
    assert_eq!(recent(&back), 6_960);
    let mut later = entry;
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
    let mut entry = entry();
    // Across the end of the 32-bit numbers, too.
    for ahead in [0, 0x100_u64] {
        entry.down_next += ahead;
        entry.down_acked = entry.down_next - u64::from(OUTSTANDING);
        entry.up_next += ahead;
        entry.up_acked = entry.up_next - u64::from(OUTSTANDING);
        entry.down_edge = entry.down_next + 60_000;
        entry.server_edge = entry.up_next + 60_000;
        let ssn = entry.subflows[0].rcv_high - 1_000;
        for (long, long_map) in [(true, true), (true, false), (false, true), (false, false)] {
            let packet = data_up_with(&entry, long, long_map, (entry.up_next, ssn, 500));
            let (out, back) = rules.takes(&entry, &packet);
            assert_eq!(out.tcp.seq, entry.seq_up);
            assert_eq!(out.options[..12], timestamps(7_050, 9_000));
            assert!(out.options[12..].iter().all(|&byte| byte == 1), "padding");
            assert_eq!(back.up_next, entry.up_next + 500);
            assert_eq!(back.seq_up, entry.seq_up.wrapping_add(500));
            assert_eq!(back.down_acked, entry.down_acked + 1_000);
            let high = entry.subflows[0].rcv_high.wrapping_add(500);
            assert_eq!(back.subflows[0].rcv_high, high);
            assert_eq!(back.subflows[0].bytes_up, 500);
            // Data is no answer to what went down, unless it ACKs.
            assert_eq!(back.subflows[0].outstanding_since, NOW);
        }
        let mut short = ack_up(&entry);
        short.options.truncate(12);
        let edge = entry.down_next;
        short.options.extend(dss(edge, false, None, false));
        let (_, back) = rules.takes(&entry, &short);
        assert_eq!(back.down_acked, entry.down_next);
    }
    let mut quiet = data_up(&entry);
    quiet.tcp.ack = entry.subflows[0].snd_una;
    let (_, back) = rules.takes(&entry, &quiet);
    assert_eq!(back.subflows[0].outstanding_since, NOW - 1_000);
}
