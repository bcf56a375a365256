//! The rules of the fast path's programs for data that overtakes other, for what comes late, and for the client's SACK,
//! one packet for each.

use flexcp_translator::{ENTRY_HOLES, ENTRY_RUNS, FlowEntry, Hole, MappingRun};

use crate::offload_packets::{
    CLIENTS, NOW, PORTS, Packet, ack_down, ack_up, data_down, data_up, dss, entry, timestamps,
};
use crate::offload_rules::Rules;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_rules_of_data_that_overtakes", overtakes),
    ("offload_rules_of_data_that_comes_late", late),
    ("offload_rules_of_the_clients_sack", sack),
];

/// Data that has overtaken 700 bytes.
fn ahead(entry: &FlowEntry) -> Packet {
    let mut packet = data_down(entry);
    packet.tcp.seq = entry.seq_down.wrapping_add(700);
    packet
}

fn overtakes() {
    let mut rules = Rules::new();
    places(&mut rules);
    windows_count_the_gap(&mut rules);
    gaps_that_pass(&mut rules);
    runs_of_mappings(&mut rules);
}

fn places(rules: &mut Rules) {
    let entry = entry();
    let known = entry.subflows[0];
    let (out, back) = rules.takes(&entry, &ahead(&entry));
    assert_eq!(out.tcp.seq, known.snd_next.wrapping_add(700));
    let ssn = known.snd_next - 2_000 + 700;
    let mut options = timestamps(9_001, 6_895);
    let mapping = (entry.down_next + 700, ssn, 1_000);
    options.extend(dss(entry.up_acked, true, Some(mapping), true));
    assert_eq!(out.options, options);
    assert_eq!(back.down_next, entry.down_next + 1_700);
    assert_eq!(back.seq_down, entry.seq_down.wrapping_add(1_700));
    let moved = back.subflows[0];
    assert_eq!(moved.snd_next, known.snd_next.wrapping_add(1_700));
    assert_eq!(moved.bytes_down, 1_000);
    assert_eq!((moved.timed_as, moved.timed), (1, moved.snd_next));
    let hole = Hole {
        seq: entry.seq_down,
        len: 700,
    };
    let holes: Vec<_> = back.holes.iter().filter(|hole| hole.len > 0).collect();
    assert_eq!(holes, [&hole]);
    let run = MappingRun {
        ssn: known.snd_next.wrapping_add(700),
        len: 1_000,
        count: 1,
    };
    assert_eq!((back.runs[0], back.runs_used), (run, 1));
    // Nothing else is outstanding.
    let mut idle = entry;
    idle.subflows[0].snd_una = known.snd_next;
    let (_, back) = rules.takes(&idle, &ahead(&entry));
    assert_eq!(back.subflows[0].outstanding_since, NOW);
}

fn windows_count_the_gap(rules: &mut Rules) {
    let mut entry = entry();
    let packet = ahead(&entry);
    entry.down_edge = entry.down_next + 1_699;
    rules.passes("window", &entry, &packet);
    entry.down_edge += 1;
    rules.takes(&entry, &packet);
    let next = entry.subflows[0].snd_next;
    entry.subflows[0].snd_edge = next.wrapping_add(1_699);
    rules.passes("window", &entry, &packet);
    entry.subflows[0].snd_edge = next.wrapping_add(1_700);
    rules.takes(&entry, &packet);
}

fn gaps_that_pass(rules: &mut Rules) {
    let mut entry = entry();
    let packet = ahead(&entry);
    // An ACK alone says nothing of what it has overtaken.
    let mut ack = ack_down(&entry);
    ack.tcp.seq = packet.tcp.seq;
    rules.passes("ahead", &entry, &ack);
    ack.tcp.seq = entry.seq_down - 1;
    rules.passes("repeated", &entry, &ack);
    // No window is as large as that.
    let mut far = packet.clone();
    far.tcp.seq = entry.seq_down.wrapping_add((64 << 20) + 1);
    rules.passes("ahead", &entry, &far);
    far.tcp.seq -= 1;
    rules.passes("window", &entry, &far);
    let hole = Hole {
        seq: entry.seq_down - 3_000,
        len: 10,
    };
    entry.holes = [hole; ENTRY_HOLES];
    rules.passes("ahead", &entry, &packet);
    for free in 0..ENTRY_HOLES {
        entry.holes = [hole; ENTRY_HOLES];
        entry.holes[free].len = 0;
        let (_, back) = rules.takes(&entry, &packet);
        let new = Hole {
            seq: entry.seq_down,
            len: 700,
        };
        assert_eq!(back.holes[free], new);
        assert_eq!(back.holes.iter().filter(|&&known| known == hole).count(), 3);
    }
    // What comes next is placed, whatever is missing.
    entry.holes = [hole; ENTRY_HOLES];
    let (_, back) = rules.takes(&entry, &data_down(&entry));
    assert_eq!(back.holes, entry.holes);
    assert_eq!(back.down_next, entry.down_next + 1_000);
    entry.subflows[0].outstanding_since = NOW - 25_000;
    entry.holes = [Hole::default(); ENTRY_HOLES];
    rules.passes("overdue", &entry, &packet);
}

/// A run of mappings is one stretch of limited length.
fn runs_of_mappings(rules: &mut Rules) {
    let mut entry = entry();
    let run = |entry: &FlowEntry, len: u16, count: u16| MappingRun {
        ssn: entry.subflows[0]
            .snd_next
            .wrapping_sub(u32::from(len) * u32::from(count)),
        len,
        count,
    };
    let mut large = data_down(&entry);
    large.payload = 1_400;
    let most = u16::try_from((64_u32 << 20) / 1_400).unwrap();
    for (count, used) in [(most - 1, 1), (most, 2)] {
        entry.runs[0] = run(&entry, 1_400, count);
        entry.runs_used = 1;
        let (_, back) = rules.takes(&entry, &large);
        assert_eq!(back.runs_used, used, "{count}");
    }
    // Equal ones behind a gap are another run.
    entry.runs[0] = run(&entry, 1_000, 3);
    let (_, back) = rules.takes(&entry, &data_down(&entry));
    assert_eq!((back.runs_used, back.runs[0].count), (1, 4));
    let (_, back) = rules.takes(&entry, &ahead(&entry));
    assert_eq!((back.runs_used, back.runs[0].count), (2, 3));
}

/// A flow entry where 1500 bytes are missing, 3000 before the next.
fn missing() -> FlowEntry {
    let mut entry = entry();
    entry.holes[2] = Hole {
        seq: entry.seq_down - 3_000,
        len: 1_500,
    };
    entry
}

/// Data for that.
fn fill(entry: &FlowEntry) -> Packet {
    let mut packet = data_down(entry);
    packet.tcp.seq = entry.holes[2].seq;
    packet
}

fn late() {
    let mut rules = Rules::new();
    fills(&mut rules);
    fills_that_pass(&mut rules);
    fills_after_silence(&mut rules);
}

fn fills(rules: &mut Rules) {
    let entry = missing();
    let known = entry.subflows[0];
    let (out, back) = rules.takes(&entry, &fill(&entry));
    assert_eq!(out.tcp.seq, known.snd_next - 3_000);
    let mut options = timestamps(9_001, 6_895);
    let mapping = (entry.down_next - 3_000, known.snd_next - 5_000, 1_000);
    options.extend(dss(entry.up_acked, true, Some(mapping), true));
    assert_eq!(out.options, options);
    let rest = Hole {
        seq: entry.holes[2].seq + 1_000,
        len: 500,
    };
    assert_eq!(back.holes[2], rest);
    let run = MappingRun {
        ssn: known.snd_next - 3_000,
        len: 1_000,
        count: 1,
    };
    assert_eq!((back.runs[0], back.runs_used), (run, 1));
    let moved = back.subflows[0];
    assert_eq!((moved.bytes_down, moved.timed_as), (1_000, 0));
    assert_eq!(moved.outstanding_since, NOW);
    assert_eq!(
        (back.down_next, back.seq_down, moved.snd_next),
        (entry.down_next, entry.seq_down, known.snd_next)
    );
    // Another CPU's clock is ahead.
    let mut later = entry;
    later.subflows[0].outstanding_since = NOW + 10;
    let (_, back) = rules.takes(&later, &fill(&entry));
    assert_eq!(back.subflows[0].outstanding_since, NOW + 10);
    let mut whole = fill(&entry);
    whole.payload = 1_400;
    let mut short = entry;
    short.holes[2].len = 1_400;
    let (_, back) = rules.takes(&short, &whole);
    assert_eq!(back.holes[2].len, 0);
    // What the windows leave is for what comes next.
    let mut closed = entry;
    closed.down_edge = closed.down_next;
    closed.subflows[0].snd_edge = known.snd_next;
    rules.takes(&closed, &fill(&entry));
}

fn fills_that_pass(rules: &mut Rules) {
    let entry = missing();
    let mut packet = fill(&entry);
    packet.tcp.seq += 1;
    rules.passes("repeated", &entry, &packet);
    packet.tcp.seq -= 2;
    rules.passes("repeated", &entry, &packet);
    let mut short = entry;
    short.holes[2].len = 999;
    rules.passes("repeated", &short, &fill(&entry));
    short.holes[2].len = 0;
    rules.passes("repeated", &short, &fill(&entry));
    let mut ack = ack_down(&entry);
    ack.tcp.seq = entry.holes[2].seq;
    rules.passes("repeated", &entry, &ack);
    // The client claims to have it, on the subflow or in the data.
    let mut claimed = entry;
    claimed.subflows[0].snd_una = entry.subflows[0].snd_next - 3_000;
    rules.takes(&claimed, &fill(&entry));
    claimed.subflows[0].snd_una += 1;
    rules.passes("repeated", &claimed, &fill(&entry));
    let mut claimed = entry;
    claimed.down_acked = entry.down_next - 3_000;
    rules.takes(&claimed, &fill(&entry));
    claimed.down_acked += 1;
    rules.passes("repeated", &claimed, &fill(&entry));
    let mut narrow = entry;
    narrow.subflows[0].mss = 1_039;
    rules.passes("too_long", &narrow, &fill(&entry));
    let mut full = entry;
    full.runs_used = 128;
    full.runs = [MappingRun {
        ssn: entry.subflows[0].snd_next,
        len: 10,
        count: 1,
    }; ENTRY_RUNS];
    rules.passes("no_room", &full, &fill(&entry));
}

fn fills_after_silence(rules: &mut Rules) {
    let mut entry = missing();
    let packet = fill(&entry);
    entry.subflows[0].outstanding_since = NOW - 25_000;
    rules.passes("overdue", &entry, &packet);
    // An answer is not overdue, but the path has been silent for long.
    entry.subflows[0].snd_una = entry.subflows[0].snd_next - 2_919;
    entry.holes[2].seq += 100;
    let packet = fill(&entry);
    rules.takes(&entry, &packet);
    entry.subflows[0].outstanding_since = NOW - 999_999;
    rules.takes(&entry, &packet);
    entry.subflows[0].outstanding_since = NOW - 1_000_000;
    rules.passes("overdue", &entry, &packet);
    // So far the data that comes next does not care.
    rules.takes(&entry, &data_down(&entry));
    entry.subflows[0].rtt.smoothed = 600_000;
    entry.subflows[0].outstanding_since = NOW - 1_199_999;
    rules.takes(&entry, &packet);
    entry.subflows[0].outstanding_since = NOW - 1_200_000;
    rules.passes("overdue", &entry, &packet);
}

/// The client's ACK, with blocks of the subflow's numbers.
fn sacks(entry: &FlowEntry, blocks: &[(u32, u32)]) -> Packet {
    let mut packet = ack_up(entry);
    let len = u8::try_from(2 + 8 * blocks.len()).unwrap();
    packet.options = timestamps(6_950, 9_000);
    packet.options.extend([1, 1, 5, len]);
    for (left, right) in blocks {
        packet.options.extend(left.to_be_bytes());
        packet.options.extend(right.to_be_bytes());
    }
    let short = blocks.len() > 1;
    packet
        .options
        .extend(dss(entry.down_acked, !short, None, false));
    packet.tcp.ack = entry.subflows[0].snd_una;
    packet.tcp.window = 100;
    packet
}

fn sack() {
    let mut rules = Rules::new();
    let mut entry = entry();
    entry.server_sack = 1;
    let next = entry.subflows[0].snd_next;
    let one = |left: u32, right: u32| sacks(&entry, &[(next - left, next - right)]);
    let (out, back) = rules.takes(&entry, &one(3_000, 2_000));
    let mut options = timestamps(7_050, 9_000);
    options.extend([1, 1, 5, 10]);
    options.extend((entry.seq_down - 3_000).to_be_bytes());
    options.extend((entry.seq_down - 2_000).to_be_bytes());
    assert_eq!((out.options, out.payload), (options, 0));
    assert_eq!(out.tcp.ack, entry.seq_down - 5_000);
    assert_eq!((back.ts_sent, back.ts_sent_at), (7_050, NOW));
    assert_eq!(back.packets_up, 1);
    rules.takes(&entry, &one(4_999, 0));
    // What is timed has come, is missing, or is still on its way behind a hole.
    for (from_next, then) in [(2_500, 3), (3_500, 0), (1_000, 4)] {
        let mut timed = entry;
        timed.subflows[0].timed_as = 1;
        timed.subflows[0].timed = next - from_next;
        timed.subflows[0].timed_at = NOW - 70_000;
        let (_, back) = rules.takes(&timed, &one(3_000, 2_000));
        let subflow = &back.subflows[0];
        assert_eq!(subflow.timed_as, then, "{from_next}");
        assert_eq!(subflow.rtt.last == 70_000, then == 3, "{from_next}");
        assert_eq!(subflow.sampled, u8::from(then == 3), "{from_next}");
    }
    // Right at the data ACK, before the ACK, behind what went down, and the wrong way round.
    rules.passes("options", &entry, &one(5_000, 4_000));
    let mut ahead = entry;
    ahead.down_acked -= 1_000;
    ahead.subflows[0].snd_una -= 1_000;
    let mut before = sacks(&ahead, &[(next - 5_500, next - 4_000)]);
    rules.takes(&ahead, &before);
    before.tcp.ack = next - 4_000;
    rules.passes("options", &ahead, &before);
    let beyond = sacks(&entry, &[(next - 3_000, next + 1)]);
    rules.passes("options", &entry, &beyond);
    rules.passes("options", &entry, &one(2_000, 2_000));
    rules.passes("options", &entry, &one(2_000, 3_000));
    // The data ACK of the packet itself counts.
    let mut acked = one(4_000, 2_000);
    acked.options.truncate(24);
    acked
        .options
        .extend(dss(entry.down_acked + 1_000, true, None, false));
    rules.passes("options", &entry, &acked);
    // And so does a later one.
    let mut known = entry;
    known.down_acked += 1_000;
    rules.passes("options", &known, &one(4_000, 2_000));
    let two = [(next - 3_000, next - 2_000), (next - 1_000, next)];
    rules.passes("options", &entry, &sacks(&entry, &two));
    sacks_that_pass(&mut rules, &entry);
}

fn sacks_that_pass(rules: &mut Rules, entry: &FlowEntry) {
    let next = entry.subflows[0].snd_next;
    let good = sacks(entry, &[(next - 3_000, next - 2_000)]);
    let deaf = FlowEntry {
        server_sack: 0,
        ..*entry
    };
    rules.passes("options", &deaf, &good);
    let mut joined = good.clone();
    joined.ip.src = CLIENTS[1].into();
    joined.tcp.src_port = PORTS[1];
    joined.tcp.seq = entry.subflows[1].rcv_high;
    let mut brings = *entry;
    brings.subflows[1].snd_una -= 5_000;
    rules.passes("options", &brings, &joined);
    for byte in [0, 1, 2, 3] {
        let mut bad = good.clone();
        bad.options[12 + byte] ^= 4;
        rules.passes("options", entry, &bad);
    }
    // There is no room for a mapping beside it, were it the shortest.
    let mut data = data_up(entry);
    data.options = good.options[..24].to_vec();
    data.options.extend([30, 10, 0x20, 5]);
    data.options.extend([0; 12]);
    rules.passes("options", entry, &data);
}
