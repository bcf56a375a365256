//! The rules of the fast path's programs, one packet for each: what they take, and what goes to the translator,
//! counted under the right reason.

use std::net::IpAddr;

use flexcp_io::{KernelFastPath, Offload, Tried};
use flexcp_translator::{FastPath as _, LEASE_RUNS, LEASE_UPS, Lease, Lent, MappingRun, UpRun};
use flexcp_wire::TcpFlags;

use crate::host::ip;
use crate::offload::{Beside, DEVICE, network, slot_of};
use crate::offload_packets::{
    CLIENTS, NOW, OUTSTANDING, Out, PORTS, Packet, SERVER, ack_down, ack_up, addr, alike,
    data_down, data_up, data_up_with, dss, lease, read, timestamps,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_rules_of_the_servers_packets", down),
    ("offload_rules_of_the_clients_packets", up),
    ("offload_rules_of_every_packet", either),
    ("offload_keeps_the_families_apart", families),
];

/// The programs and the table of cases.
pub(crate) struct Rules {
    pub(crate) offload: Offload,
    path: KernelFastPath,
    beside: Beside,
}

impl Rules {
    pub(crate) fn new() -> Self {
        Self::of(|| Offload::load(DEVICE, 4).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The network, and around it programs as `load` loads them.
    pub(crate) fn of(load: impl FnOnce() -> Offload) -> Self {
        network();
        ip("route add unreachable 198.51.100.66");
        ip("rule add tos 0x10 unreachable");
        ip("neigh add 192.0.2.3 lladdr 02:00:00:00:00:03 dev out");
        ip("route add 198.51.100.2 via 192.0.2.3");
        let mut offload = load();
        let path = offload.fast_path(4).unwrap();
        let beside = Beside::open();
        Self {
            offload,
            path,
            beside,
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.offload.reasons().unwrap().counts()
    }

    /// Lends, tries, takes back.
    fn run(&mut self, lease: &Lease, packet: &Packet) -> (Tried, Option<&'static str>, Lease) {
        let before = self.counts();
        let slot = slot_of(self.path.lend(None, lease, None));
        let tried = self.offload.try_packet(DEVICE, NOW, &packet.frame());
        let back = self.path.take_back(slot);
        self.path.release(slot);
        let moved: Vec<_> = self
            .counts()
            .into_iter()
            .zip(before)
            .filter(|(after, before)| after.1 != before.1)
            .map(|(after, _)| after.0)
            .collect();
        assert!(moved.len() <= 1, "{moved:?}");
        (tried.unwrap(), moved.first().copied(), back)
    }

    /// The packet goes to the translator, for this reason, and the lease stays as it was.
    #[track_caller]
    pub(crate) fn passes(&mut self, why: &str, lease: &Lease, packet: &Packet) {
        let (tried, moved, back) = self.run(lease, packet);
        assert_eq!((tried, moved), (Tried::Passed, Some(why)));
        assert!(self.beside.frames().is_empty());
        assert_eq!(back, *lease, "the lease of a packet that was not taken");
    }

    /// The packet is not looked at any closer.
    #[track_caller]
    pub(crate) fn ignores(&mut self, lease: &Lease, packet: &Packet) {
        let (tried, moved, back) = self.run(lease, packet);
        assert_eq!((tried, moved), (Tried::Passed, None));
        assert_eq!(back, *lease);
    }

    /// The packet is translated. What comes out, and the lease after it.
    #[track_caller]
    pub(crate) fn takes(&mut self, lease: &Lease, packet: &Packet) -> (Out, Lease) {
        let (tried, moved, back) = self.run(lease, packet);
        let Tried::Translated(frame) = tried else {
            panic!("{tried:?}: {moved:?}");
        };
        assert_eq!(moved, Some("translated"));
        assert!(self.beside.frames().is_empty());
        (read(&frame), back)
    }

    /// The packet is translated, and another leaves before it.
    #[track_caller]
    pub(crate) fn takes_with(&mut self, lease: &Lease, packet: &Packet) -> (Out, Out, Lease) {
        let (tried, moved, back) = self.run(lease, packet);
        let Tried::Translated(frame) = tried else {
            panic!("{tried:?}: {moved:?}");
        };
        assert_eq!(moved, Some("translated"));
        let beside = self.beside.frames();
        assert_eq!(beside.len(), 1);
        let (out, own) = (read(&frame), read(&beside[0]));
        for (out, frame) in [(&out, &frame), (&own, &beside[0])] {
            // The neighbour's address.
            let neighbour = if out.ip.dst == IpAddr::from(CLIENTS[1]) {
                3
            } else {
                2
            };
            assert_eq!(frame[..6], [2, 0, 0, 0, 0, neighbour]);
        }
        (out, own, back)
    }

    /// The packet, whose checksum the kernel has still to complete, is translated: the ACK that leaves with it.
    #[track_caller]
    pub(crate) fn ack_of_incomplete(&mut self, lease: &Lease, packet: &Packet) -> Out {
        let slot = slot_of(self.path.lend(None, lease, None));
        let tried = self.offload.try_packet(DEVICE, NOW, &incomplete(packet));
        self.path.take_back(slot);
        self.path.release(slot);
        assert_eq!(self.beside.frames().len(), 1);
        let Tried::Translated(frame) = tried.unwrap() else {
            panic!("not translated");
        };
        read(&frame)
    }
}

/// The frame, with only the pseudo header in its checksum.
fn incomplete(packet: &Packet) -> Vec<u8> {
    let mut frame = packet.frame();
    let at = 14 + packet.ip.header_len;
    let sum = packet.ip.pseudo_header_sum(frame.len() - at).fold();
    assert_ne!(frame[at + 16..at + 18], sum.to_be_bytes());
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn down() {
    let mut rules = Rules::new();
    downs_that_pass(&mut rules);
    down_beyond_a_window(&mut rules);
    down_late(&mut rules);
    downs_that_are_taken(&mut rules);
}

fn downs_that_pass(rules: &mut Rules) {
    let lease = lease();
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = data_down(&lease);
        edit(&mut packet);
        packet
    };
    rules.passes("repeated", &lease, &with(&|p| p.tcp.seq -= 1));
    let beyond = lease.seq_up.wrapping_add(1);
    rules.passes("ack", &lease, &with(&|p| p.tcp.ack = beyond));
    rules.passes("ack", &lease, &with(&|p| p.tcp.ack -= 1));
    let sack = |p: &mut Packet| p.options.extend([1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    rules.passes("options", &lease, &with(&sack));
    let mut narrow = lease;
    narrow.subflows[0].mss = 1_039;
    rules.passes("too_long", &narrow, &data_down(&lease));
    narrow.subflows[0].mss += 1;
    rules.takes(&narrow, &data_down(&lease));
    // More than the programs can sum up.
    rules.passes("checksum", &lease, &with(&|p| p.payload = 2_049));
    let mut silent = ack_down(&lease);
    silent.tcp.ack -= 1_000;
    rules.passes("no_news", &lease, &silent);
    // A used-up window opens: that is for every subflow to know.
    let used_up = Lease {
        server_window: 0,
        server_edge: lease.up_next,
        ..lease
    };
    rules.passes("window", &used_up, &data_down(&lease));
}

fn down_beyond_a_window(rules: &mut Rules) {
    let mut lease = lease();
    let packet = data_down(&lease);
    lease.down_edge = lease.down_next + 999;
    rules.passes("window", &lease, &packet);
    lease.down_edge += 1;
    rules.takes(&lease, &packet);
    let next = lease.subflows[0].snd_next;
    lease.subflows[0].snd_edge = next.wrapping_add(999);
    rules.passes("window", &lease, &packet);
    lease.subflows[0].snd_edge = next.wrapping_add(1_000);
    rules.takes(&lease, &packet);
    let full = MappingRun {
        ssn: next,
        len: 10,
        count: 1,
    };
    lease.runs = [full; LEASE_RUNS];
    lease.runs_used = 128;
    rules.passes("no_room", &lease, &packet);
    lease.runs_used = 127;
    rules.takes(&lease, &packet);
}

fn down_late(rules: &mut Rules) {
    let mut lease = lease();
    let packet = data_down(&lease);
    // Two round trips of 10 ms, and five.
    lease.subflows[0].outstanding_since = NOW - 25_000;
    rules.passes("overdue", &lease, &packet);
    lease.subflows[0].outstanding_since = NOW - 24_999;
    rules.takes(&lease, &packet);
    // Little is outstanding: the client may wait with its ACK.
    lease.subflows[0].outstanding_since = NOW - 25_000;
    lease.subflows[0].snd_una = lease.subflows[0].snd_next - 2_919;
    rules.takes(&lease, &packet);
    lease.subflows[0].snd_una -= 1;
    rules.passes("overdue", &lease, &packet);
    lease.subflows[0].srtt = 0;
    rules.takes(&lease, &packet);
    // What counts as silence ends the patience.
    lease.subflows[0].srtt = 100_000;
    lease.subflows[0].outstanding_since = NOW - 202_000;
    rules.takes(&lease, &packet);
    lease.silence = 1_000;
    rules.passes("overdue", &lease, &packet);
    // Another CPU's clock is ahead.
    lease.subflows[0].outstanding_since = NOW + 10;
    rules.takes(&lease, &packet);
}

fn downs_that_are_taken(rules: &mut Rules) {
    let lease = lease();
    let (out, back) = rules.takes(&lease, &data_down(&lease));
    assert_eq!(out.ip.dst, IpAddr::from(CLIENTS[0]));
    assert_eq!((out.ip.ttl, out.ip.identification), (63, 7));
    assert_eq!(out.tcp.seq, lease.subflows[0].snd_next);
    assert_eq!(out.tcp.ack, lease.subflows[0].rcv_ack);
    assert_eq!(out.tcp.window, 508);
    let ssn = lease.subflows[0].snd_next - 2_000;
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(
        lease.up_acked,
        true,
        Some((lease.down_next, ssn, 1_000)),
        true,
    ));
    assert_eq!(out.options, options);
    assert_eq!(back.down_next, lease.down_next + 1_000);
    assert_eq!(back.seq_down, lease.seq_down.wrapping_add(1_000));
    assert_eq!(back.subflows[0].bytes_down, 1_000);
    assert_eq!((back.packets_down, back.packets_up), (1, 0));
    let run = MappingRun {
        ssn: lease.subflows[0].snd_next,
        len: 1_000,
        count: 1,
    };
    assert_eq!((back.runs[0], back.runs_used), (run, 1));
    assert_eq!(back.subflows[0].outstanding_since, NOW - 1_000);
    // The first byte that is outstanding has just gone down.
    let mut idle = lease;
    idle.subflows[0].snd_una = idle.subflows[0].snd_next;
    let (_, back) = rules.takes(&idle, &data_down(&lease));
    assert_eq!(back.subflows[0].outstanding_since, NOW);
    assert_eq!(
        (back.subflows[0].is_timed, back.subflows[0].timed_at),
        (1, NOW)
    );
    assert_eq!(back.subflows[0].timed, back.subflows[0].snd_next);

    let (out, back) = rules.takes(&lease, &ack_down(&lease));
    assert_eq!(out.tcp.ack, lease.subflows[0].rcv_ack.wrapping_add(1_000));
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(lease.up_acked + 1_000, true, None, false));
    assert_eq!(out.options, options);
    assert_eq!(back.up_acked, lease.up_acked + 1_000);
    assert_eq!(back.ts_heard, 9_001);
    // A window that shrinks with an ACK counts, and so does the largest ever.
    let mut small = ack_down(&lease);
    small.tcp.window = 10;
    let (_, back) = rules.takes(&lease, &small);
    assert_eq!((back.server_window, back.server_window_max), (10, 65_024));
    let mut large = ack_down(&lease);
    large.tcp.window = 1_000;
    let (_, back) = rules.takes(&lease, &large);
    assert_eq!(
        (back.server_window, back.server_window_max),
        (1_000, 128_000)
    );
    assert_eq!(back.server_edge, lease.up_acked + 1_000 + 128_000);
    // The client is not told an echo of what it has not said.
    let mut early = ack_down(&lease);
    early.options = timestamps(9_001, 7_001);
    let (out, _) = rules.takes(&lease, &early);
    assert_eq!(out.options[..12], timestamps(9_001, 6_900));
}

fn up() {
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

fn either() {
    let mut rules = Rules::new();
    let lease = lease();
    for good in [
        data_down(&lease),
        ack_down(&lease),
        data_up(&lease),
        ack_up(&lease),
    ] {
        rules.takes(&lease, &good);
        headers_that_pass(&mut rules, &lease, &good);
        headers_that_are_ignored(&mut rules, &lease, &good);
    }
    let mut lost = lease;
    lost.subflows[0].remote_addr = addr([198, 51, 100, 66]);
    rules.passes("route", &lost, &data_down(&lease));
    // The traffic class has its own rule.
    let mut classed = data_down(&lease);
    classed.ip.traffic_class = 0x10;
    rules.passes("route", &lease, &classed);
    // Its gate is closed, though its flows lead here.
    let slot = slot_of(rules.path.lend(None, &lease, None));
    rules.path.take_back(slot);
    let before = rules.counts();
    let frame = data_down(&lease).frame();
    let tried = rules.offload.try_packet(DEVICE, NOW, &frame).unwrap();
    assert_eq!(tried, Tried::Passed);
    let not_lent = |counts: &[(&str, u64)]| counts[1].1;
    assert_eq!(rules.counts()[1].0, "not_lent");
    assert_eq!(not_lent(&rules.counts()), not_lent(&before) + 1);
    assert_eq!(rules.path.take_back(slot), lease);
    what_goes_up_is_counted(&mut rules);
}

/// For the translator, which asks whether some of it still waits.
fn what_goes_up_is_counted(rules: &mut Rules) {
    let lease = lease();
    let slot = slot_of(rules.path.lend(None, &lease, None));
    let first = rules.path.passed_up(slot).unwrap();
    let up = |rules: &mut Rules, packet: &Packet| {
        let _ = rules
            .offload
            .try_packet(DEVICE, NOW, &packet.frame())
            .unwrap();
        rules.path.passed_up(slot).unwrap().wrapping_sub(first)
    };
    assert_eq!(up(rules, &data_down(&lease)), 0, "translated");
    assert_eq!(up(rules, &data_down(&lease)), 1, "repeated");
    let mut flagged = data_up(&lease);
    flagged.tcp.flags = flagged.tcp.flags.with(TcpFlags::FIN);
    assert_eq!(up(rules, &flagged), 2);
    rules.path.take_back(slot);
    assert_eq!(up(rules, &data_up(&lease)), 3, "not lent");
    let again = rules.path.lend(Some(slot), &lease, Some(first + 2));
    assert_eq!(again, Lent::NotNow, "one more has passed");
    assert_eq!(up(rules, &data_up(&lease)), 4, "still not lent");
    slot_of(rules.path.lend(Some(slot), &lease, Some(first + 4)));
    assert_eq!(up(rules, &data_up(&lease)), 4, "translated again");
    rules.path.take_back(slot);
    rules.path.release(slot);
}

fn headers_that_pass(rules: &mut Rules, lease: &Lease, good: &Packet) {
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = good.clone();
        edit(&mut packet);
        packet
    };
    let flags = [
        TcpFlags::FIN,
        TcpFlags::SYN,
        TcpFlags::RST,
        TcpFlags::URG,
        TcpFlags::ECE,
        TcpFlags::CWR,
        TcpFlags::AE,
    ];
    for flag in flags {
        let marked = with(&|p| p.tcp.flags = TcpFlags::ACK | flag);
        rules.passes("flags", lease, &marked);
    }
    rules.passes("flags", lease, &with(&|p| p.tcp.flags = TcpFlags::PSH));
    rules.passes("flags", lease, &with(&|p| p.tcp.urgent = 1));
    rules.takes(
        lease,
        &with(&|p| p.tcp.flags = TcpFlags::ACK | TcpFlags::PSH),
    );
    rules.passes("ip_header", lease, &with(&|p| p.ip.ttl = 1));
    rules.takes(lease, &with(&|p| p.ip.ttl = 2));
    for ecn in 1..4 {
        let marked = with(&|p| p.ip.traffic_class = ecn);
        rules.passes("ip_header", lease, &marked);
    }
    let (out, _) = rules.takes(lease, &with(&|p| p.ip.traffic_class = 0xb8));
    assert_eq!(out.ip.traffic_class, 0xb8);
    // One bit of the last byte, or of the header.
    let end = good.bytes().len() - 1;
    for at in [end, 20 + 14] {
        let damaged = with(&|p| p.damage = Some((at, 1)));
        rules.passes("checksum", lease, &damaged);
    }
    // The kernel has still to complete it.
    let slot = slot_of(rules.path.lend(None, lease, None));
    let tried = rules.offload.try_packet(DEVICE, NOW, &incomplete(good));
    let tried = tried.unwrap();
    assert!(matches!(tried, Tried::Translated(_)), "{tried:?}");
    rules.path.take_back(slot);
    rules.path.release(slot);
    for options in [
        vec![],
        vec![1, 1, 8, 9],
        vec![8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
    ] {
        let other = with(&|p| {
            p.options.drain(..12);
            p.options.splice(..0, options.iter().copied());
        });
        rules.passes("options", lease, &other);
    }
}

fn headers_that_are_ignored(rules: &mut Rules, lease: &Lease, good: &Packet) {
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = good.clone();
        edit(&mut packet);
        packet
    };
    rules.ignores(lease, &with(&|p| p.ip.protocol = 17));
    // More fragments; a later fragment; options of IP; behind the packet, padding of the link.
    rules.ignores(lease, &with(&|p| p.damage = Some((6, 0x20))));
    rules.ignores(lease, &with(&|p| p.damage = Some((7, 1))));
    rules.ignores(lease, &with(&|p| p.damage = Some((0, 3))));
    rules.ignores(lease, &with(&|p| p.padding = 1));
    // For another station, as on a bridge.
    rules.ignores(lease, &with(&|p| p.station = 2));
    rules.ignores(lease, &with(&|p| p.tcp.src_port += 1));
    rules.ignores(lease, &with(&|p| p.tcp.dst_port += 1));
}

/// The first bytes of an IPv6 address are an IPv4 one, the rest is zero.
fn families() {
    let mut rules = Rules::new();
    let lease = lease();
    for good in [
        data_down(&lease),
        ack_down(&lease),
        data_up(&lease),
        ack_up(&lease),
    ] {
        let mut packet = good.clone();
        let IpAddr::V4(src) = packet.ip.src else {
            panic!()
        };
        let IpAddr::V4(dst) = packet.ip.dst else {
            panic!()
        };
        (packet.ip.src, packet.ip.dst) = (alike(src.octets()), alike(dst.octets()));
        packet.ip.header_len = 40;
        packet.ip.flow_label = 0x12345;
        rules.passes("not_lent", &lease, &packet);
        let six = Lease { family: 6, ..lease };
        rules.passes("not_lent", &six, &good);
        let (out, back) = rules.takes(&six, &packet);
        assert_eq!((out.ip.ttl, out.ip.flow_label), (63, 0x12345));
        let labels = if good.tcp.src_port == 80 {
            (0, 0x12345)
        } else {
            (0x12345, 0)
        };
        assert_eq!((back.label_up, back.label_down), labels);
    }
    // Upwards all carry the label of the first subflow.
    let six = Lease {
        family: 6,
        label_up: 0x54321,
        ..lease
    };
    let mut second = ack_up(&lease);
    (second.ip.src, second.ip.dst) = (alike(CLIENTS[1]), alike(SERVER));
    (second.ip.header_len, second.ip.flow_label) = (40, 7);
    second.tcp.src_port = PORTS[1];
    second.tcp.ack = lease.subflows[1].snd_next;
    let (out, _) = rules.takes(&six, &second);
    assert_eq!(out.ip.flow_label, 0x54321);
}
