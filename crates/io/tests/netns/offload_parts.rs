//! A kernel that refuses a part of the offload's program gets the rest; one that refuses all says which rule it was.

use flexcp_io::{Offload, OffloadError};
use flexcp_translator::FlowEntry;

use crate::offload::DEVICE;
use crate::offload_packets::{CLIENTS, Packet, SERVER, ack_up, alike, data_down, data_up, entry};
use crate::offload_rules::Rules;
use crate::offload_ups::brought_by;
use crate::programs::Programs;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_without_gso", || {
        without(GSO, "GSO packets from the server", gso)
    }),
    ("offload_without_acks_beside", || {
        without(
            BESIDE,
            "packets that call for an ACK on another subflow",
            beside,
        );
    }),
    ("offload_without_sums", || {
        without(SUMS, "packets whose checksum nobody has verified", sums);
    }),
    ("offload_without_ipv6", || without(V6, "IPv6", v6)),
    ("offload_without_several_parts", several),
    ("offload_with_all_parts_leaves_out_none", all),
    ("offload_refused_altogether_names_the_rule", refused),
];

/// Bits of `parts` in bpf/maps.h.
const GSO: u32 = 1;
const BESIDE: u32 = 2;
const SUMS: u32 = 4;
const V6: u32 = 8;
const CORE: u32 = 16;

fn load(refused: u32) -> Offload {
    Offload::load_but(DEVICE, 4, refused).unwrap_or_else(|error| panic!("{error}"))
}

fn without(part: u32, packets: &str, judge: fn(&mut Rules)) {
    let mut rules = Rules::of(Programs::of(|| load(part)));
    let words = rules.programs.offload.left_out().unwrap().to_string();
    let (what, rule) = words.split_once(": verifier: ").unwrap();
    assert_eq!(what, format!("without {packets}"));
    names_the_rule(rule);
    judge(&mut rules);
}

/// One line: `R1 invalid mem access 'scalar' (at instruction 12)`.
#[track_caller]
fn names_the_rule(rule: &str) {
    let (rule, number) = rule.split_once(" (at instruction ").unwrap();
    assert!(rule.contains("invalid mem access 'scalar'"), "{rule}");
    let number: u32 = number.trim_end_matches(')').parse().unwrap();
    assert!(number > 0 && !rule.contains('\n'), "{rule}");
}

/// Data with an ACK for the subflow that it does not go down on.
fn data_and_an_ack() -> (FlowEntry, Packet) {
    let entry = brought_by(&[(0, 0, 0), (1, 0, 4_000)]);
    let mut packet = data_down(&entry);
    packet.tcp.ack += 1_000;
    (entry, packet)
}

/// The same connection and packet over IPv6.
fn over_ipv6() -> (FlowEntry, Packet) {
    let six = FlowEntry {
        family: 6,
        ..entry()
    };
    let mut packet = data_down(&six);
    (packet.ip.src, packet.ip.dst) = (alike(SERVER), alike(CLIENTS[0]));
    packet.ip.header_len = 40;
    (six, packet)
}

fn takes_single_segments(rules: &mut Rules) {
    let entry = entry();
    for packet in [data_down(&entry), data_up(&entry), ack_up(&entry)] {
        let _ = rules.takes(&entry, &packet);
    }
}

fn gso(rules: &mut Rules) {
    takes_single_segments(rules);
    // An ACK beside data is cut as headers of a GSO packet are.
    let (entry, packet) = data_and_an_ack();
    rules.passes("left_out", &entry, &packet);
}

fn beside(rules: &mut Rules) {
    takes_single_segments(rules);
    let (entry, packet) = data_and_an_ack();
    rules.passes("left_out", &entry, &packet);
    let mut acks = packet;
    acks.payload = 0;
    let entry = brought_by(&[(0, 0, 500), (1, 500, 4_000)]);
    rules.passes("left_out", &entry, &acks);
}

fn sums(rules: &mut Rules) {
    let entry = entry();
    rules.passes("checksum", &entry, &data_down(&entry));
    rules.passes("checksum", &entry, &ack_up(&entry));
}

fn v6(rules: &mut Rules) {
    takes_single_segments(rules);
    let (entry, packet) = over_ipv6();
    rules.ignores(&entry, &packet);
}

fn all() {
    let mut rules = Rules::of(Programs::of(|| load(0)));
    assert!(rules.programs.offload.left_out().is_none());
    takes_single_segments(&mut rules);
    let (entry, packet) = over_ipv6();
    let _ = rules.takes(&entry, &packet);
    let (entry, packet) = data_and_an_ack();
    let _ = rules.takes_with(&entry, &packet);
}

fn several() {
    let mut rules = Rules::of(Programs::of(|| load(SUMS | BESIDE)));
    let words = rules.programs.offload.left_out().unwrap().to_string();
    let packets = "without packets whose checksum nobody has verified, packets that call for an ACK on another subflow: ";
    assert!(words.starts_with(packets), "{words}");
    sums(&mut rules);
}

fn refused() {
    let error = Offload::load_but(DEVICE, 4, CORE).unwrap_err();
    let words = error.to_string();
    let (_, rest) = words
        .split_once("the kernel refuses the offload's program: verifier: ")
        .unwrap();
    let (rule, advice) = rest.split_once("; ").unwrap();
    names_the_rule(rule);
    assert_eq!(advice, "the whole text: flexcp check --live --verifier-log");
    let OffloadError::Refused(refusal) = error else {
        panic!("{error:?}");
    };
    assert!(refusal.log().contains("\nprocessed "), "{}", refusal.log());
    // The stripped object has its lines still.
    let line = "\n; return *(volatile int *)0;";
    assert!(refusal.log().contains(line), "{}", refusal.log());
}
