//! The rules of the fast path's programs, one packet for each: what they take, and what goes to the translator,
//! counted under the right reason.

use std::net::IpAddr;

use flexcp_io::Tried;
use flexcp_translator::{ENTRY_RUNS, FastPath, FlowEntry, Installed, MappingRun};
use flexcp_wire::TcpFlags;

use crate::offload_packets::{
    CLIENTS, NOW, Out, PORTS, Packet, SERVER, ack_down, ack_up, addr, alike, data_down, data_up,
    dss, entry, read, slot_of, timestamps,
};
use crate::programs::Programs;

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
    pub(crate) programs: Programs,
}

impl Rules {
    pub(crate) fn new() -> Self {
        Self::of(Programs::new())
    }

    pub(crate) fn of(programs: Programs) -> Self {
        Self { programs }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.programs.counts()
    }

    fn path(&mut self) -> &mut dyn FastPath {
        self.programs.path()
    }

    /// Installs, tries, evicts.
    pub(crate) fn run(
        &mut self,
        entry: &FlowEntry,
        packet: &Packet,
    ) -> (Tried, Option<&'static str>, FlowEntry) {
        let before = self.counts();
        let slot = slot_of(self.path().install(None, entry, None));
        let tried = self.programs.try_frame(NOW, &packet.frame());
        let back = self.path().evict(slot);
        self.path().release(slot);
        let moved: Vec<_> = self
            .counts()
            .into_iter()
            .zip(before)
            .filter(|(after, before)| after.1 != before.1)
            .map(|(after, _)| after.0)
            .collect();
        assert!(moved.len() <= 1, "{moved:?}");
        (tried, moved.first().copied(), back)
    }

    /// The packet goes to the translator, for this reason, and the flow entry stays as it was.
    #[track_caller]
    pub(crate) fn passes(&mut self, why: &str, entry: &FlowEntry, packet: &Packet) {
        let (tried, moved, back) = self.run(entry, packet);
        assert_eq!((tried, moved), (Tried::Passed, Some(why)));
        assert!(self.programs.beside().is_empty());
        assert_eq!(back, *entry, "the entry of a packet that was not taken");
    }

    /// The packet is not looked at any closer.
    #[track_caller]
    pub(crate) fn ignores(&mut self, entry: &FlowEntry, packet: &Packet) {
        let (tried, moved, back) = self.run(entry, packet);
        assert_eq!((tried, moved), (Tried::Passed, None));
        assert_eq!(back, *entry);
    }

    /// The packet is translated. What comes out, and the flow entry after it.
    #[track_caller]
    pub(crate) fn takes(&mut self, entry: &FlowEntry, packet: &Packet) -> (Out, FlowEntry) {
        let (tried, moved, back) = self.run(entry, packet);
        let Tried::Translated(frame) = tried else {
            panic!("{tried:?}: {moved:?}");
        };
        assert_eq!(moved, Some("translated"));
        assert!(self.programs.beside().is_empty());
        (read(&frame), back)
    }

    /// The packet is translated, and another leaves before it.
    #[track_caller]
    pub(crate) fn takes_with(
        &mut self,
        entry: &FlowEntry,
        packet: &Packet,
    ) -> (Out, Out, FlowEntry) {
        let (tried, moved, back) = self.run(entry, packet);
        let Tried::Translated(frame) = tried else {
            panic!("{tried:?}: {moved:?}");
        };
        assert_eq!(moved, Some("translated"));
        let beside = self.programs.beside();
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
    pub(crate) fn ack_of_incomplete(&mut self, entry: &FlowEntry, packet: &Packet) -> Out {
        let slot = slot_of(self.path().install(None, entry, None));
        let tried = self.programs.try_frame(NOW, &incomplete(packet));
        self.path().evict(slot);
        self.path().release(slot);
        assert_eq!(self.programs.beside().len(), 1);
        let Tried::Translated(frame) = tried else {
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
    clocks_and_scales_apart(&mut rules);
}

fn downs_that_pass(rules: &mut Rules) {
    let entry = entry();
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = data_down(&entry);
        edit(&mut packet);
        packet
    };
    rules.passes("repeated", &entry, &with(&|p| p.tcp.seq -= 1));
    let beyond = entry.seq_up.wrapping_add(1);
    rules.passes("ack", &entry, &with(&|p| p.tcp.ack = beyond));
    rules.passes("ack", &entry, &with(&|p| p.tcp.ack -= 1));
    let sack = |p: &mut Packet| p.options.extend([1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    rules.passes("options", &entry, &with(&sack));
    let mut narrow = entry;
    narrow.subflows[0].mss = 1_039;
    rules.passes("too_long", &narrow, &data_down(&entry));
    narrow.subflows[0].mss += 1;
    rules.takes(&narrow, &data_down(&entry));
    // More than the programs can sum up.
    rules.passes("checksum", &entry, &with(&|p| p.payload = 2_049));
    let mut silent = ack_down(&entry);
    silent.tcp.ack -= 1_000;
    rules.passes("no_news", &entry, &silent);
    // A used-up window opens: that is for every subflow to know.
    let used_up = FlowEntry {
        server_window: 0,
        server_edge: entry.up_next,
        ..entry
    };
    rules.passes("window", &used_up, &data_down(&entry));
}

fn down_beyond_a_window(rules: &mut Rules) {
    let mut entry = entry();
    let packet = data_down(&entry);
    entry.down_edge = entry.down_next + 999;
    rules.passes("window", &entry, &packet);
    entry.down_edge += 1;
    rules.takes(&entry, &packet);
    let next = entry.subflows[0].snd_next;
    entry.subflows[0].snd_edge = next.wrapping_add(999);
    rules.passes("window", &entry, &packet);
    entry.subflows[0].snd_edge = next.wrapping_add(1_000);
    rules.takes(&entry, &packet);
    let full = MappingRun {
        ssn: next,
        len: 10,
        count: 1,
    };
    entry.runs = [full; ENTRY_RUNS];
    entry.runs_used = 128;
    rules.passes("no_room", &entry, &packet);
    entry.runs_used = 127;
    rules.takes(&entry, &packet);
}

fn down_late(rules: &mut Rules) {
    let mut entry = entry();
    let packet = data_down(&entry);
    // Two round trips of 10 ms, and five.
    entry.subflows[0].outstanding_since = NOW - 25_000;
    rules.passes("overdue", &entry, &packet);
    entry.subflows[0].outstanding_since = NOW - 24_999;
    rules.takes(&entry, &packet);
    // Answers came late before.
    entry.subflows[0].late = 7;
    entry.subflows[0].outstanding_since = NOW - 27_000;
    rules.passes("overdue", &entry, &packet);
    entry.subflows[0].outstanding_since = NOW - 26_999;
    rules.takes(&entry, &packet);
    entry.subflows[0].late = 0;
    // Little is outstanding: the client may wait with its ACK.
    entry.subflows[0].outstanding_since = NOW - 25_000;
    entry.subflows[0].snd_una = entry.subflows[0].snd_next - 2_919;
    rules.takes(&entry, &packet);
    entry.subflows[0].snd_una -= 1;
    rules.passes("overdue", &entry, &packet);
    entry.subflows[0].rtt.smoothed = 0;
    rules.takes(&entry, &packet);
    // What counts as silence ends the patience.
    entry.subflows[0].rtt.smoothed = 100_000;
    entry.subflows[0].outstanding_since = NOW - 202_000;
    rules.takes(&entry, &packet);
    entry.silence = 1_000;
    rules.passes("overdue", &entry, &packet);
    // Another CPU's clock is ahead.
    entry.subflows[0].outstanding_since = NOW + 10;
    rules.takes(&entry, &packet);
}

/// A server that took over from somebody whose clock and whose scale the client goes by.
fn clocks_and_scales_apart(rules: &mut Rules) {
    const SHIFT: u32 = 0xc000_0000;
    let mut apart = entry();
    (apart.ts_shift, apart.sent_scale) = (SHIFT, 9);
    let mut packet = data_down(&apart);
    packet.tcp.window = 600;
    let timestamp = |packet: &Packet| u32::from_be_bytes(packet.options[4..8].try_into().unwrap());
    let told = timestamp(&packet);
    packet.options[4..8].copy_from_slice(&told.wrapping_sub(SHIFT).to_be_bytes());
    let (out, back) = rules.takes(&apart, &packet);
    assert_eq!(out.options[4..8], told.to_be_bytes());
    assert_eq!((out.tcp.window, back.server_window), (2_400, 2_400));
    assert_eq!(back.ts_heard, told);
    assert_eq!(back.server_edge, back.up_acked + (2_400 << 7));
    // More than the client can be told in its scale, and less than one step of it.
    packet.tcp.window = 0xffff;
    let (out, _) = rules.takes(&apart, &packet);
    assert_eq!(out.tcp.window, 0xffff);
    apart.sent_scale = 0;
    (packet.tcp.window, apart.server_window) = (60_000, 400);
    let (out, _) = rules.takes(&apart, &packet);
    assert_eq!(out.tcp.window, 60_000 >> 7);
    let (straight, _) = rules.takes(&entry(), &ack_up(&entry()));
    let (out, back) = rules.takes(&apart, &ack_up(&entry()));
    let echo = |out: &Out| u32::from_be_bytes(out.options[8..12].try_into().unwrap());
    assert_eq!(echo(&straight), back.ts_echo);
    assert_eq!(echo(&out), back.ts_echo.wrapping_sub(SHIFT));
}

fn downs_that_are_taken(rules: &mut Rules) {
    let entry = entry();
    let (out, back) = rules.takes(&entry, &data_down(&entry));
    assert_eq!(out.ip.dst, IpAddr::from(CLIENTS[0]));
    assert_eq!((out.ip.ttl, out.ip.identification), (63, 7));
    assert_eq!(out.tcp.seq, entry.subflows[0].snd_next);
    assert_eq!(out.tcp.ack, entry.subflows[0].rcv_ack);
    assert_eq!(out.tcp.window, 508);
    let ssn = entry.subflows[0].snd_next - 2_000;
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(
        entry.up_acked,
        true,
        Some((entry.down_next, ssn, 1_000)),
        true,
    ));
    assert_eq!(out.options, options);
    assert_eq!(back.down_next, entry.down_next + 1_000);
    assert_eq!(back.seq_down, entry.seq_down.wrapping_add(1_000));
    assert_eq!(back.subflows[0].bytes_down, 1_000);
    assert_eq!((back.packets_down, back.packets_up), (1, 0));
    let run = MappingRun {
        ssn: entry.subflows[0].snd_next,
        len: 1_000,
        count: 1,
    };
    assert_eq!((back.runs[0], back.runs_used), (run, 1));
    assert_eq!(back.subflows[0].outstanding_since, NOW - 1_000);
    // Above the mode's patience, for data alone.
    let mut patient = entry;
    patient.patience = 10_000;
    rules.takes(&patient, &data_down(&entry));
    patient.patience = 9_999;
    rules.passes("slow", &patient, &data_down(&entry));
    rules.takes(&patient, &ack_down(&entry));
    // One late answer, by more than an eighth, is told once.
    patient.patience = 10_000;
    for (last, sampled, told) in [(11_249, 1, false), (11_260, 1, true), (11_260, 0, false)] {
        patient.subflows[0].rtt.last = last;
        patient.subflows[0].sampled = sampled;
        if told {
            rules.passes("slow", &patient, &data_down(&entry));
        } else {
            rules.takes(&patient, &data_down(&entry));
        }
    }
    // The first byte that is outstanding has just gone down.
    let mut idle = entry;
    idle.subflows[0].snd_una = idle.subflows[0].snd_next;
    let (_, back) = rules.takes(&idle, &data_down(&entry));
    assert_eq!(back.subflows[0].outstanding_since, NOW);
    assert_eq!(
        (back.subflows[0].timed_as, back.subflows[0].timed_at),
        (1, NOW)
    );
    assert_eq!(back.subflows[0].timed, back.subflows[0].snd_next);

    let (out, back) = rules.takes(&entry, &ack_down(&entry));
    assert_eq!(out.tcp.ack, entry.subflows[0].rcv_ack.wrapping_add(1_000));
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(entry.up_acked + 1_000, true, None, false));
    assert_eq!(out.options, options);
    assert_eq!(back.up_acked, entry.up_acked + 1_000);
    assert_eq!(back.ts_heard, 9_001);
    // A window that shrinks with an ACK counts, and so does the largest ever.
    let mut small = ack_down(&entry);
    small.tcp.window = 10;
    let (_, back) = rules.takes(&entry, &small);
    assert_eq!((back.server_window, back.server_window_max), (10, 65_024));
    let mut large = ack_down(&entry);
    large.tcp.window = 1_000;
    let (_, back) = rules.takes(&entry, &large);
    assert_eq!(
        (back.server_window, back.server_window_max),
        (1_000, 128_000)
    );
    assert_eq!(back.server_edge, entry.up_acked + 1_000 + 128_000);
    // The client is not told an echo of what it has not said.
    let mut early = ack_down(&entry);
    early.options = timestamps(9_001, 7_001);
    let (out, _) = rules.takes(&entry, &early);
    assert_eq!(out.options[..12], timestamps(9_001, 6_900));
}

fn either() {
    let mut rules = Rules::new();
    let entry = entry();
    for good in [
        data_down(&entry),
        ack_down(&entry),
        data_up(&entry),
        ack_up(&entry),
    ] {
        rules.takes(&entry, &good);
        headers_that_pass(&mut rules, &entry, &good);
        headers_that_are_ignored(&mut rules, &entry, &good);
    }
    let mut lost = entry;
    lost.subflows[0].remote_addr = addr([198, 51, 100, 66]);
    rules.passes("route", &lost, &data_down(&entry));
    // The traffic class has its own rule.
    let mut classed = data_down(&entry);
    classed.ip.traffic_class = 0x10;
    rules.passes("route", &entry, &classed);
    // Its gate is closed, though its flows lead here.
    let slot = slot_of(rules.path().install(None, &entry, None));
    rules.path().evict(slot);
    let before = rules.counts();
    let frame = data_down(&entry).frame();
    let tried = rules.programs.try_frame(NOW, &frame);
    assert_eq!(tried, Tried::Passed);
    let not_installed = |counts: &[(&str, u64)]| counts[1].1;
    assert_eq!(rules.counts()[1].0, "not_installed");
    assert_eq!(not_installed(&rules.counts()), not_installed(&before) + 1);
    assert_eq!(rules.path().evict(slot), entry);
    what_goes_up_is_counted(&mut rules);
}

/// For the translator, which asks whether some of it still waits.
fn what_goes_up_is_counted(rules: &mut Rules) {
    let entry = entry();
    let slot = slot_of(rules.path().install(None, &entry, None));
    let first = rules.path().punted(slot).unwrap();
    let up = |rules: &mut Rules, packet: &Packet| {
        let _ = rules.programs.try_frame(NOW, &packet.frame());
        rules.path().punted(slot).unwrap().wrapping_sub(first)
    };
    assert_eq!(up(rules, &data_down(&entry)), 0, "translated");
    assert_eq!(up(rules, &data_down(&entry)), 1, "repeated");
    let mut flagged = data_up(&entry);
    flagged.tcp.flags = flagged.tcp.flags.with(TcpFlags::FIN);
    assert_eq!(up(rules, &flagged), 2);
    rules.path().evict(slot);
    assert_eq!(up(rules, &data_up(&entry)), 3, "not installed");
    let again = rules.path().install(Some(slot), &entry, Some(first + 2));
    assert_eq!(again, Installed::NotNow, "one more has passed");
    assert_eq!(up(rules, &data_up(&entry)), 4, "still not installed");
    slot_of(rules.path().install(Some(slot), &entry, Some(first + 4)));
    assert_eq!(up(rules, &data_up(&entry)), 4, "translated again");
    rules.path().evict(slot);
    rules.path().release(slot);
}

fn headers_that_pass(rules: &mut Rules, entry: &FlowEntry, good: &Packet) {
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
        rules.passes("flags", entry, &marked);
    }
    rules.passes("flags", entry, &with(&|p| p.tcp.flags = TcpFlags::PSH));
    rules.passes("flags", entry, &with(&|p| p.tcp.urgent = 1));
    rules.takes(
        entry,
        &with(&|p| p.tcp.flags = TcpFlags::ACK | TcpFlags::PSH),
    );
    rules.passes("ip_header", entry, &with(&|p| p.ip.ttl = 1));
    rules.takes(entry, &with(&|p| p.ip.ttl = 2));
    for ecn in 1..4 {
        let marked = with(&|p| p.ip.traffic_class = ecn);
        rules.passes("ip_header", entry, &marked);
    }
    let (out, _) = rules.takes(entry, &with(&|p| p.ip.traffic_class = 0xb8));
    assert_eq!(out.ip.traffic_class, 0xb8);
    // One bit of the last byte, or of the header.
    let end = good.bytes().len() - 1;
    for at in [end, 20 + 14] {
        let damaged = with(&|p| p.damage = Some((at, 1)));
        rules.passes("checksum", entry, &damaged);
    }
    // The kernel has still to complete it.
    let slot = slot_of(rules.path().install(None, entry, None));
    let tried = rules.programs.try_frame(NOW, &incomplete(good));
    assert!(matches!(tried, Tried::Translated(_)), "{tried:?}");
    rules.path().evict(slot);
    rules.path().release(slot);
    for options in [
        vec![],
        vec![1, 1, 8, 9],
        vec![8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
    ] {
        let other = with(&|p| {
            p.options.drain(..12);
            p.options.splice(..0, options.iter().copied());
        });
        rules.passes("options", entry, &other);
    }
}

fn headers_that_are_ignored(rules: &mut Rules, entry: &FlowEntry, good: &Packet) {
    let with = |edit: &dyn Fn(&mut Packet)| {
        let mut packet = good.clone();
        edit(&mut packet);
        packet
    };
    rules.ignores(entry, &with(&|p| p.ip.protocol = 17));
    // More fragments; a later fragment; options of IP; behind the packet, padding of the link.
    rules.ignores(entry, &with(&|p| p.damage = Some((6, 0x20))));
    rules.ignores(entry, &with(&|p| p.damage = Some((7, 1))));
    rules.ignores(entry, &with(&|p| p.damage = Some((0, 3))));
    rules.ignores(entry, &with(&|p| p.padding = 1));
    // For another station, as on a bridge.
    rules.ignores(entry, &with(&|p| p.station = 2));
    rules.ignores(entry, &with(&|p| p.tcp.src_port += 1));
    rules.ignores(entry, &with(&|p| p.tcp.dst_port += 1));
}

/// The first bytes of an IPv6 address are an IPv4 one, the rest is zero.
fn families() {
    let mut rules = Rules::new();
    let entry = entry();
    for good in [
        data_down(&entry),
        ack_down(&entry),
        data_up(&entry),
        ack_up(&entry),
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
        rules.passes("not_installed", &entry, &packet);
        let six = FlowEntry { family: 6, ..entry };
        rules.passes("not_installed", &six, &good);
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
    let six = FlowEntry {
        family: 6,
        label_up: 0x54321,
        ..entry
    };
    let mut second = ack_up(&entry);
    (second.ip.src, second.ip.dst) = (alike(CLIENTS[1]), alike(SERVER));
    (second.ip.header_len, second.ip.flow_label) = (40, 7);
    second.tcp.src_port = PORTS[1];
    second.tcp.ack = entry.subflows[1].snd_next;
    let (out, _) = rules.takes(&six, &second);
    assert_eq!(out.ip.flow_label, 0x54321);
}
