//! The offload's rules, case by case, tried on its programs compiled for this machine: needs no root. The cases are those of
//! `netns`, which tries them in the kernel; here a frame in memory stands for the kernel's (`flexcp-native`).

#[path = "netns/offload_bare.rs"]
mod offload_bare;
#[path = "netns/offload_gso.rs"]
mod offload_gso;
#[path = "netns/offload_holes.rs"]
mod offload_holes;
#[path = "netns/offload_order.rs"]
mod offload_order;
#[path = "netns/offload_packets.rs"]
mod offload_packets;
#[path = "netns/offload_rules.rs"]
mod offload_rules;
#[path = "netns/offload_rules_up.rs"]
mod offload_rules_up;
#[path = "netns/offload_ups.rs"]
mod offload_ups;
#[path = "rules/programs.rs"]
mod programs;
#[path = "rules/tap.rs"]
mod tap;

use libtest_mimic::{Arguments, Trial};

/// Packets of several segments are cut by the kernel alone.
const OF_THE_KERNEL: [&str; 6] = [
    // Packets that leave have an Ethernet header here.
    "offload_bare_device_from_ethernet",
    "offload_bare_device_to_another",
    "offload_bare_devices_cut_segments",
    "offload_gso_of_the_longest_packets",
    "offload_gso_leaves_in_segments",
    "offload_order_stays_in_segments",
];

fn main() {
    let tests: Vec<(&str, fn())> = [
        offload_rules::TESTS,
        offload_gso::TESTS,
        offload_order::TESTS,
        offload_holes::TESTS,
        offload_ups::TESTS,
        offload_bare::TESTS,
    ]
    .concat();
    let named = |name: &&str| tests.iter().any(|(test, _)| test == name);
    assert!(OF_THE_KERNEL.iter().all(named), "a case that is left out");
    let ours = tests
        .iter()
        .filter(|(name, _)| !OF_THE_KERNEL.contains(name));
    let trials = ours.map(|&(name, test)| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
