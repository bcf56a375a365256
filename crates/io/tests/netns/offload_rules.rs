//! The rules of the fast path's programs, one packet for each: what they take, and what goes to the translator,
//! counted under the right reason.

use std::net::IpAddr;

use flexcp_io::{KernelFastPath, Offload, Tried};
use flexcp_translator::{FastPath as _, LEASE_RUNS, Lease, Lent, MappingRun};
use flexcp_wire::TcpFlags;

use crate::host::ip;
use crate::offload::{Beside, DEVICE, network, slot_of};
use crate::offload_packets::{
    CLIENTS, NOW, Out, PORTS, Packet, SERVER, ack_down, ack_up, addr, alike, data_down, data_up,
    dss, lease, read, timestamps,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_rules_of_the_servers_packets", down),
    (
        "offload_rules_of_the_clients_packets",
        crate::offload_rules_up::up,
    ),
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
    pub(crate) fn run(
        &mut self,
        lease: &Lease,
        packet: &Packet,
    ) -> (Tried, Option<&'static str>, Lease) {
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
