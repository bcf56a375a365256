//! Data of the client's on several subflows, in any order, and what the server says about it: which packets the
//! programs take, and how far the subflows' ACKs move.

use std::net::IpAddr;

use flexcp_translator::{ENTRY_UPS, FlowEntry, UpRun};
use flexcp_wire::TcpFlags;

use crate::offload_packets::{
    CLIENTS, OUTSTANDING, Out, PORTS, Packet, SERVER, ack_down, addr, alike, data_down,
    data_up_with, dss, entry, timestamps,
};
use crate::offload_rules::Rules;

pub(crate) const TESTS: &[(&str, fn())] = &[("offload_rules_of_data_on_several_subflows", several)];

fn several() {
    let mut rules = Rules::new();
    acks_for_others(&mut rules);
    sacks_that_pass(&mut rules);
    sacks_that_are_taken(&mut rules);
    acks_for_both(&mut rules);
    data_and_an_ack(&mut rules);
    data_in_any_order(&mut rules);
    mappings_of_several(&mut rules);
}

/// No subflow is owed the ACK, or more are than get one.
fn acks_for_others(rules: &mut Rules) {
    let entry = entry();
    let mut acks = data_down(&entry);
    acks.tcp.ack += 1_000;
    let mut nobody = entry;
    nobody.subflows[0].ups_used = 0;
    rules.passes("ack", &nobody, &acks);
    rules.passes("ack", &nobody, &ack_down(&entry));
    // There is an ACK beside the server's packet for one subflow, not for two.
    let mut three = brought_by(&[(0, 0, 500), (1, 500, 4_000), (2, 600, 400)]);
    rules.passes("several", &three, &ack_down(&entry));
    rules.passes("several", &three, &acks);
    let others = brought_by(&[(1, 0, 4_000), (2, 600, 400)]);
    rules.passes("several", &others, &acks);
    three.subflows[2].ups_used = 0;
    let _ = rules.takes_with(&three, &ack_down(&entry));
    let mut lost = brought_by(&[(0, 0, 500), (1, 500, 4_500)]);
    lost.subflows[1].remote_addr = addr([198, 51, 100, 66]);
    rules.passes("route", &lost, &ack_down(&entry));
    rules.passes("route", &lost, &acks);
}

/// Data, and behind it the ACK of FlexCP's own for a subflow that it does not go down on.
fn data_and_an_ack(rules: &mut Rules) {
    for active_too in [0, 400] {
        let entry = brought_by(&[(0, 0, active_too), (1, active_too, 4_000)]);
        let mut packet = data_down(&entry);
        packet.tcp.ack += 1_000;
        packet.tcp.flags = TcpFlags::ACK | TcpFlags::PSH;
        packet.ip.traffic_class = 0xb8;
        let (own, out, back) = rules.takes_with(&entry, &packet);
        data_and_its_ack(&entry, &out, &own, active_too);
        assert_eq!((out.ip.ttl, out.ip.traffic_class), (63, 0xb8));
        assert_eq!((own.ip.identification, own.ip.dont_fragment), (0, true));
        assert_eq!((back.packets_down, back.packets_made), (1, 1));
        assert_eq!(back.down_next, entry.down_next + 1_000);
        assert_eq!(back.up_acked, entry.up_acked + 1_000);
        assert_eq!(
            (back.subflows[0].bytes_down, back.subflows[1].bytes_down),
            (1_000, 0)
        );
        assert_eq!(back.ups[1][14].len, 3_000 + active_too);
        let six = FlowEntry { family: 6, ..entry };
        (packet.ip.src, packet.ip.dst) = (alike(SERVER), alike(CLIENTS[0]));
        (packet.ip.header_len, packet.ip.flow_label) = (40, 0x12345);
        let (own, out, _) = rules.takes_with(&six, &packet);
        data_and_its_ack(&entry, &out, &own, active_too);
        assert_eq!((out.ip.ttl, out.ip.traffic_class), (63, 0xb8));
        assert_eq!((out.ip.flow_label, own.ip.flow_label), (0x12345, 0x12345));
        // The kernel has still to complete the checksum of what came, not that of the ACK.
        let own = rules.ack_of_incomplete(&six, &packet);
        assert_eq!(own.tcp.dst_port, PORTS[1]);
    }
}

fn data_and_its_ack(entry: &FlowEntry, out: &Out, own: &Out, active_too: u32) {
    let [first, second] = [&entry.subflows[0], &entry.subflows[1]];
    assert_eq!((out.tcp.dst_port, own.tcp.dst_port), (PORTS[0], PORTS[1]));
    assert_eq!(out.tcp.flags, TcpFlags::ACK | TcpFlags::PSH);
    assert_eq!(out.tcp.seq, first.snd_next);
    assert_eq!(out.tcp.ack, first.rcv_ack.wrapping_add(active_too));
    let ssn = first.snd_next - 2_000;
    let map = Some((entry.down_next, ssn, 1_000));
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(entry.up_acked + 1_000, true, map, true));
    assert_eq!(out.options, options);
    assert_eq!(own.tcp.flags, TcpFlags::ACK);
    assert_eq!((own.ip.ttl, own.ip.traffic_class), (64, 0));
    assert_eq!(own.payload, 0);
    assert_eq!(own.tcp.seq, second.snd_next);
    assert_eq!(own.tcp.ack, second.rcv_ack.wrapping_add(1_000 - active_too));
    assert_eq!((own.tcp.src_port, own.tcp.window), (80, 508));
    let mut options = timestamps(9_001, 6_900);
    options.extend(dss(entry.up_acked + 1_000, true, None, false));
    assert_eq!(own.options, options);
}

/// The ACK of FlexCP's own for another subflow.
fn acks_for_both(rules: &mut Rules) {
    let entry = brought_by(&[(0, 0, 500), (1, 500, 4_500)]);
    let mut both = ack_down(&entry);
    both.tcp.flags = TcpFlags::ACK | TcpFlags::PSH;
    both.ip.traffic_class = 0xb8;
    let (out, own, back) = rules.takes_with(&entry, &both);
    let [first, second] = [&entry.subflows[0], &entry.subflows[1]];
    assert_eq!(out.ip.dst, IpAddr::from(CLIENTS[0]));
    assert_eq!((out.ip.ttl, out.ip.traffic_class), (63, 0xb8));
    assert_eq!(out.tcp.flags, both.tcp.flags);
    assert_eq!((out.tcp.seq, out.tcp.ack), (first.snd_next, first.rcv_high));
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(entry.up_acked + 1_000, true, None, false));
    assert_eq!(out.options, options);
    assert_eq!(own.ip.dst, IpAddr::from(CLIENTS[1]));
    assert_eq!((own.ip.ttl, own.ip.traffic_class), (64, 0));
    assert_eq!((own.ip.identification, own.ip.dont_fragment), (0, true));
    assert_eq!(own.tcp.flags, TcpFlags::ACK);
    assert_eq!(
        (own.tcp.seq, own.tcp.ack),
        (second.snd_next, second.rcv_ack + 500)
    );
    assert_eq!((own.tcp.src_port, own.tcp.dst_port), (80, PORTS[1]));
    assert_eq!(own.tcp.window, 508);
    let mut options = timestamps(9_001, 6_900);
    options.extend(dss(entry.up_acked + 1_000, true, None, false));
    assert_eq!(own.options, options);
    assert_eq!((back.packets_down, back.packets_made), (1, 1));
    assert_eq!((back.subflows[0].ups_used, back.ups[1][14].len), (0, 4_000));
    // With SACK blocks it gets shorter, and still its checksum is right; with padding of IPv6 as well.
    let sacked = ack_with(500, &[(600, 700), (1_000, 1_200), (2_000, 3_000)]);
    let shuffled = brought_by(&[(0, 0, 600), (1, 600, 100), (1, 1_000, 200)]);
    let (_, own, _) = rules.takes_with(&shuffled, &sacked);
    assert_eq!(own.tcp.ack, second.rcv_high);
    let mut six = both;
    (six.ip.src, six.ip.dst) = (alike(SERVER), alike(CLIENTS[0]));
    (six.ip.header_len, six.ip.flow_label) = (40, 0x12345);
    let (out, own, _) = rules.takes_with(&FlowEntry { family: 6, ..entry }, &six);
    assert_eq!(
        (out.ip.ttl, out.ip.flow_label, out.ip.traffic_class),
        (63, 0x12345, 0xb8)
    );
    assert_eq!(
        (own.ip.ttl, own.ip.flow_label, own.ip.traffic_class),
        (64, 0x12345, 0)
    );
    assert_eq!(own.ip.dst, alike(CLIENTS[1]));
}

/// Mappings of several packets.
fn mappings_of_several(rules: &mut Rules) {
    let entry = brought_by(&[(0, 0, 5_000)]);
    let ssn = entry.subflows[0].rcv_high - 1_000;
    let map = |entry: &FlowEntry, back: u32, len: u16| {
        let dsn = entry.up_next - u64::from(back);
        data_up_with(entry, true, true, (dsn, ssn - back, len))
    };
    // The rest of it is announced.
    let (out, ahead) = rules.takes(&entry, &map(&entry, 0, 1_300));
    assert_eq!(out.tcp.seq, entry.seq_up);
    assert_eq!(
        (ahead.ups[0][14].len, ahead.subflows[0].announced),
        (6_300, 800)
    );
    assert_eq!(ahead.up_next, entry.up_next + 500);
    // Its next packet: the packets here are all at the same place, so the flow entry is moved there.
    let second = |edit: &dyn Fn(&mut FlowEntry), back: u32, len: u16| {
        let mut entry = ahead;
        edit(&mut entry);
        let mut packet = data_up_with(
            &entry,
            true,
            true,
            (entry.up_next - u64::from(back), ssn + 500 - back, len),
        );
        packet.tcp.seq = entry.subflows[0].rcv_high;
        (entry, packet)
    };
    let as_it_is = |_: &mut FlowEntry| ();
    let (next, packet) = second(&as_it_is, 500, 1_300);
    let (out, back) = rules.takes(&next, &packet);
    assert_eq!(out.tcp.seq, next.seq_up);
    assert_eq!(
        (back.ups[0][14].len, back.subflows[0].announced),
        (6_300, 300)
    );
    // It ends elsewhere, or says that other data stands there.
    for (back, len) in [(500, 1_299), (500, 1_301), (0, 799), (0, 801)] {
        let (next, packet) = second(&as_it_is, back, len);
        rules.passes("mapping", &next, &packet);
    }
    let (next, packet) = second(&|entry| entry.ups[0][14].dsn += 1, 500, 1_300);
    rules.passes("mapping", &next, &packet);
    // What is only announced is neither ACKed on the subflow nor SACKed.
    let mut filled = ahead;
    filled.up_next += 800;
    filled.seq_up = filled.seq_up.wrapping_add(800);
    let mut all = ack_down(&entry);
    all.tcp.ack = filled.seq_up;
    let (out, back) = rules.takes(&filled, &all);
    assert_eq!(out.tcp.ack, ahead.subflows[0].rcv_high);
    assert_eq!((back.subflows[0].ups_used, back.ups[0][14].len), (1, 800));
    let mut two = brought_by(&[(0, 0, 1_000), (0, 2_000, 1_000)]);
    two.subflows[0].announced = 300;
    let (out, _) = rules.takes(&two, &ack_with(1_000, &[]));
    assert_eq!(out.tcp.ack, two.subflows[0].rcv_ack + 1_000);
    let mut behind = ack_with(0, &[(5_500, 5_600)]);
    rules.passes("no_news", &filled, &behind);
    behind = ack_with(0, &[(5_400, 5_600)]);
    rules.passes("hole", &filled, &behind);
    let beyond = data_up_with(&entry, true, true, (entry.up_next + 2_000, ssn, 600));
    let (_, back) = rules.takes(&entry, &beyond);
    assert_eq!(
        (back.ups[0][15].len, back.subflows[0].announced),
        (600, 100)
    );
    // The packet ends behind its mapping, or starts before it, or behind it.
    rules.passes("mapping", &entry, &map(&entry, 100, 599));
    rules.takes(&entry, &map(&entry, 100, 600));
    let early = data_up_with(&entry, true, true, (entry.up_next + 1, ssn + 1, 600));
    rules.passes("mapping", &entry, &early);
    // It goes back behind the run that it would go on, or further than is known.
    let apart = brought_by(&[(0, 0, 4_900), (0, 4_950, 50)]);
    rules.passes("mapping", &apart, &map(&apart, 100, 600));
    rules.takes(&apart, &map(&apart, 50, 550));
    let rest = brought_by(&[(0, 4_950, 50)]);
    rules.takes(&rest, &map(&rest, 100, 600));
    let other = brought_by(&[(0, 0, 4_000)]);
    rules.passes("mapping", &other, &map(&other, 100, 600));
    let none = brought_by(&[]);
    rules.takes(&none, &map(&none, 100, 600));
}

/// The flow entry with `(subflow, from, bytes)` of what is outstanding, in this order, instead of all on the first.
pub(crate) fn brought_by(parts: &[(usize, u32, u32)]) -> FlowEntry {
    let mut entry = entry();
    for (subflow, ups) in entry.subflows.iter_mut().zip(&mut entry.ups) {
        // Round the ring's end.
        subflow.first_up = 14;
        subflow.ups_used = 0;
        subflow.rcv_ack = subflow.rcv_high;
        *ups = [UpRun::default(); ENTRY_UPS];
    }
    let acked = entry.up_acked.to_le_bytes();
    let acked = u32::from_le_bytes([acked[0], acked[1], acked[2], acked[3]]);
    for &(index, from, len) in parts {
        let subflow = &mut entry.subflows[index];
        let at = usize::from(14 + subflow.ups_used) % ENTRY_UPS;
        entry.ups[index][at] = UpRun {
            dsn: acked.wrapping_add(from),
            len,
        };
        subflow.ups_used += 1;
        subflow.rcv_ack = subflow.rcv_ack.wrapping_sub(len);
    }
    entry
}

/// An ACK of `acked` bytes of what is outstanding, with SACK blocks `(from, to)`.
fn ack_with(acked: u32, blocks: &[(u32, u32)]) -> Packet {
    let entry = entry();
    let mut packet = ack_down(&entry);
    let first = entry.seq_up.wrapping_sub(OUTSTANDING);
    packet.tcp.ack = first.wrapping_add(acked);
    if !blocks.is_empty() {
        let len = 2 + 8 * blocks.len();
        packet.options.extend([1, 1, 5, len.to_le_bytes()[0]]);
    }
    for &(left, right) in blocks {
        for edge in [left, right] {
            packet
                .options
                .extend(first.wrapping_add(edge).to_be_bytes());
        }
    }
    packet
}

fn sacks_that_pass(rules: &mut Rules) {
    // Kind, length, padding; a block too many to stand beside timestamps, or half of one.
    let entry = brought_by(&[(0, 1_000, 1_000)]);
    let good = ack_with(0, &[(1_000, 2_000)]);
    rules.takes(&entry, &good);
    for (byte, with) in [(12, 4), (13, 9), (14, 1), (15, 4)] {
        let mut bad = good.clone();
        bad.options[byte] ^= with;
        rules.passes("options", &entry, &bad);
    }
    let mut more = good.clone();
    more.options.extend([1; 4]);
    rules.passes("options", &entry, &more);
    // What stands behind a hole of its subflow takes a SACK.
    let hole = brought_by(&[(0, 0, 1_000), (0, 2_000, 1_000), (1, 1_000, 1_000)]);
    rules.passes("hole", &hole, &ack_with(0, &[(2_000, 2_001)]));
    rules.passes("hole", &hole, &ack_with(500, &[(2_999, 4_000)]));
    rules.takes(&hole, &ack_with(1_000, &[(3_000, 4_000)]));
    rules.passes("hole", &hole, &ack_with(0, &[(999, 1_000)]));
    // A block that starts where the ACK stands makes no sense, and is left to the translator.
    let all = brought_by(&[(0, 0, 1_000)]);
    rules.passes("hole", &all, &ack_with(500, &[(500, 900)]));
    // Nothing that any subflow would be told.
    rules.passes("no_news", &entry, &ack_with(0, &[(3_000, 4_000)]));
    rules.passes("no_news", &entry, &ack_with(0, &[(2_000, 1_000)]));
    rules.passes("no_news", &entry, &ack_with(0, &[(1_000, 5_001)]));
}

/// Each subflow's ACK moves over what of its data has reached the server.
fn sacks_that_are_taken(rules: &mut Rules) {
    let entry = brought_by(&[
        (0, 0, 1_000),
        (1, 1_000, 1_000),
        (1, 3_000, 500),
        (0, 3_500, 1_500),
    ]);
    let (out, back) = rules.takes(&entry, &ack_with(0, &[(1_000, 1_700)]));
    assert_eq!(out.ip.dst, IpAddr::from(CLIENTS[1]));
    assert_eq!(out.tcp.ack, entry.subflows[1].rcv_ack + 700);
    assert_eq!(out.tcp.seq, entry.subflows[1].snd_next);
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(entry.up_acked, true, None, false));
    assert_eq!(out.options, options);
    assert_eq!(back.up_acked, entry.up_acked);
    let subflow = &back.subflows[1];
    assert_eq!((subflow.first_up, subflow.ups_used), (14, 2));
    assert_eq!(
        (subflow.recent_dsn, subflow.recent_len),
        (entry.up_acked + 1_000, 700)
    );
    assert_eq!(back.ups[1][14].len, 300);
    // Over both of its stretches, which were let go one after the other.
    let (out, back) = rules.takes(
        &entry,
        &ack_with(0, &[(3_000, 3_200), (1_000, 1_500), (1_500, 2_000)]),
    );
    assert_eq!(out.tcp.ack, entry.subflows[1].rcv_ack + 1_200);
    let subflow = &back.subflows[1];
    assert_eq!((subflow.first_up, subflow.ups_used), (15, 1));
    assert_eq!(
        (subflow.recent_dsn, subflow.recent_len),
        (entry.up_acked + 3_000, 200)
    );
    let (_, back) = rules.takes(&entry, &ack_with(0, &[(3_000, 3_500), (1_000, 2_000)]));
    assert_eq!(
        (back.subflows[1].first_up, back.subflows[1].ups_used),
        (0, 0)
    );
    // A piece that goes on where the last one ended.
    let mut known = entry;
    known.subflows[1].recent_dsn = entry.up_acked + 900;
    known.subflows[1].recent_len = 100;
    let (_, back) = rules.takes(&known, &ack_with(0, &[(1_000, 1_700)]));
    let subflow = &back.subflows[1];
    assert_eq!(
        (subflow.recent_dsn, subflow.recent_len),
        (entry.up_acked + 900, 800)
    );
    known.subflows[1].recent_len = (1 << 30) - 600;
    known.subflows[1].recent_dsn = entry.up_acked + 1_000 - u64::from(known.subflows[1].recent_len);
    let (_, back) = rules.takes(&known, &ack_with(0, &[(1_000, 1_700)]));
    assert_eq!(back.subflows[1].recent_len, 700, "no longer than a run");
    // Blocks that lead to one another, and one of the past, which says nothing.
    let chain = ack_with(500, &[(1_000, 1_400), (400, 450), (1_400, 2_000)]);
    let (_, own, _) = rules.takes_with(&entry, &chain);
    assert_eq!(own.tcp.ack, entry.subflows[1].rcv_ack + 1_000);
    let one = brought_by(&[(1, 1_000, 3_000)]);
    let chain = ack_with(0, &[(3_000, 4_000), (2_000, 3_000), (1_000, 2_000)]);
    rules.passes("hole", &one, &chain);
    let chain = ack_with(0, &[(1_000, 2_000), (2_000, 3_000), (3_000, 4_000)]);
    let (out, back) = rules.takes(&one, &chain);
    assert_eq!(out.tcp.ack, one.subflows[1].rcv_high);
    assert_eq!(back.subflows[1].ups_used, 0);
    // The block of a duplicate, which the ACK covers.
    let (_, back) = rules.takes(&entry, &ack_with(500, &[(100, 200)]));
    assert_eq!(back.subflows[0].rcv_ack, entry.subflows[0].rcv_ack + 500);
    // Data goes down with the ACK of its own subflow.
    let mut both = data_down(&entry);
    both.tcp.ack = both.tcp.ack.wrapping_add(600);
    let (out, back) = rules.takes(&entry, &both);
    assert_eq!(out.tcp.ack, entry.subflows[0].rcv_ack + 600);
    assert_eq!(back.ups[0][14].len, 400);
}

/// Data that comes in any order.
fn data_in_any_order(rules: &mut Rules) {
    let entry = brought_by(&[(0, 0, 5_000)]);
    let ssn = entry.subflows[0].rcv_high - 1_000;
    let map = |dsn: u64| data_up_with(&entry, true, true, (dsn, ssn, 500));
    // Its number beyond the end of the 32-bit ones, as a short one too.
    let short = data_up_with(&entry, true, false, (entry.up_next + 2_000, ssn, 500));
    let (out, _) = rules.takes(&entry, &short);
    assert_eq!(out.tcp.seq, entry.seq_up.wrapping_add(2_000));
    let (out, back) = rules.takes(&entry, &map(entry.up_next + 2_000));
    assert_eq!(out.tcp.seq, entry.seq_up.wrapping_add(2_000));
    assert_eq!(back.up_next, entry.up_next + 2_500);
    assert_eq!(back.seq_up, entry.seq_up.wrapping_add(2_500));
    let run = |at: u64, len| UpRun {
        dsn: u32::try_from(at % (1 << 32)).unwrap(),
        len,
    };
    assert_eq!(back.ups[0][15], run(entry.up_next + 2_000, 500));
    assert_eq!(back.subflows[0].ups_used, 2);
    // What stands before it comes later.
    let mut gap = back;
    gap.subflows[0].rcv_high = entry.subflows[0].rcv_high;
    let (out, later) = rules.takes(&gap, &map(entry.up_next + 100));
    assert_eq!(out.tcp.seq, entry.seq_up.wrapping_add(100));
    assert_eq!((later.up_next, later.seq_up), (gap.up_next, gap.seq_up));
    assert_eq!(later.ups[0][0], run(entry.up_next + 100, 500));
    // What goes on joins.
    let (_, joined) = rules.takes(&gap, &map(entry.up_next + 2_500));
    assert_eq!(joined.ups[0][15], run(entry.up_next + 2_000, 1_000));
    assert_eq!(joined.subflows[0].ups_used, 2);
    let mut long = gap;
    long.ups[0][15].len = (1 << 30) - 499;
    long.ups[0][15].dsn = run(entry.up_next + 2_500, 0)
        .dsn
        .wrapping_sub(long.ups[0][15].len);
    let (_, apart) = rules.takes(&long, &map(entry.up_next + 2_500));
    assert_eq!(apart.subflows[0].ups_used, 3, "no longer than a run");
    let mut edge = entry;
    edge.server_edge = entry.up_next + 2_499;
    rules.passes("window", &edge, &map(entry.up_next + 2_000));
    edge.server_edge += 1;
    rules.takes(&edge, &map(entry.up_next + 2_000));
}
