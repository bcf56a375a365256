//! The TUN carrier and the kernel's tables against the kernel itself. Every test has network
//! namespaces of its own, which end with its threads; nothing of the host is touched.
//!
//! Needs root (`CAP_SYS_ADMIN` for the namespaces): without it every test fails, because what did not run has not
//! passed. A developer without root says `FLEXCP_WITHOUT_ROOT=1`, and they are reported as ignored; `make` never does.

#[path = "netns/attach.rs"]
mod attach;
#[path = "netns/batch.rs"]
mod batch;
#[path = "netns/carrier.rs"]
mod carrier;
#[path = "netns/change.rs"]
mod change;
#[path = "netns/conntrack.rs"]
mod conntrack;
#[path = "netns/failure.rs"]
mod failure;
#[path = "netns/host.rs"]
mod host;
#[path = "netns/ipsec.rs"]
mod ipsec;
#[path = "netns/netfilter.rs"]
mod netfilter;
#[path = "netns/offload.rs"]
mod offload;
#[path = "netns/offload_bare.rs"]
mod offload_bare;
#[path = "netns/offload_errors.rs"]
mod offload_errors;
#[path = "netns/offload_gso.rs"]
mod offload_gso;
#[path = "netns/offload_holes.rs"]
mod offload_holes;
#[path = "netns/offload_order.rs"]
mod offload_order;
#[path = "netns/offload_packets.rs"]
mod offload_packets;
#[path = "netns/offload_parts.rs"]
mod offload_parts;
#[path = "netns/offload_plain.rs"]
mod offload_plain;
#[path = "netns/offload_rules.rs"]
mod offload_rules;
#[path = "netns/offload_rules_up.rs"]
mod offload_rules_up;
#[path = "netns/offload_slots.rs"]
mod offload_slots;
#[path = "netns/offload_sockets.rs"]
mod offload_sockets;
#[path = "netns/offload_ups.rs"]
mod offload_ups;
#[path = "netns/offload_ways.rs"]
mod offload_ways;
#[path = "netns/placement.rs"]
mod placement;
#[path = "netns/programs.rs"]
mod programs;
#[path = "netns/relay.rs"]
mod relay;
#[path = "netns/routed.rs"]
mod routed;
#[path = "netns/ruleset.rs"]
mod ruleset;
#[path = "netns/tables.rs"]
mod tables;
#[path = "netns/tap.rs"]
mod tap;
#[path = "netns/uplinks.rs"]
mod uplinks;
#[path = "netns/watch.rs"]
mod watch;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::host::{CRASH, CRASH_OFFLOAD, Host};

fn main() {
    if let Some(journal) = std::env::var_os(CRASH) {
        tables::install_and_hang(journal.into());
    }
    if let Some(journal) = std::env::var_os(CRASH_OFFLOAD) {
        attach::attach_and_hang(journal.into());
    }
    if let Some(journal) = std::env::var_os(change::CHANGING) {
        change::change_and_change(journal.into());
    }
    let may = Host::try_new().is_ok();
    let ignored = !may && std::env::var_os("FLEXCP_WITHOUT_ROOT").is_some();
    if !may {
        eprintln!("{NEEDS_ROOT}; FLEXCP_WITHOUT_ROOT=1 leaves these tests out");
    }
    let tests: Vec<(&str, fn())> = [
        batch::TESTS,
        carrier::TESTS,
        tables::TESTS,
        change::TESTS,
        failure::TESTS,
        offload::TESTS,
        offload_errors::TESTS,
        offload_plain::TESTS,
        offload_sockets::TESTS,
        offload_rules::TESTS,
        offload_gso::TESTS,
        offload_bare::TESTS,
        offload_order::TESTS,
        offload_holes::TESTS,
        offload_slots::TESTS,
        offload_ups::TESTS,
        offload_ways::TESTS,
        attach::TESTS,
        offload_parts::TESTS,
        placement::TESTS,
        watch::TESTS,
        uplinks::TESTS,
        netfilter::TESTS,
        ruleset::TESTS,
        conntrack::TESTS,
        ipsec::TESTS,
        routed::TESTS,
    ]
    .concat();
    let trials = tests.into_iter().map(|(name, test)| {
        let run = move || {
            let host = Host::try_new();
            let host = host.map_err(|error| Failed::from(format!("{NEEDS_ROOT}: {error}")))?;
            host.try_run(test).map_err(Failed::from)
        };
        Trial::test(name, run).with_ignored_flag(ignored)
    });
    let mut arguments = Arguments::from_args();
    // One after another: a child process that another test starts holds, until it is its own
    // program, copies of all descriptors, so that a device closed here would live on for a moment.
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    host::remove_journals();
    conclusion.exit();
}

const NEEDS_ROOT: &str = "network namespaces need root (CAP_SYS_ADMIN, CAP_NET_ADMIN)";
