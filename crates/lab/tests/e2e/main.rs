//! End-to-end tests: real kernels at both ends, real sockets, every byte checked.
//!
//! Run as root: `cargo test -p flexcp-lab --test e2e [-- FILTER]`. The group
//! `lab::` needs no FlexCP: a kernel MPTCP server behind a plain router shows
//! that the lab itself tells the truth. The others run the `flexcp` program that
//! `FLEXCP_BIN` names, or the one beside the test.

#![forbid(unsafe_code)]

mod access;
mod aggregation;
mod attacks;
mod attempts;
mod balance;
mod bare;
mod beside;
mod box_wire;
mod chains;
mod clients;
mod close;
mod convert;
mod devices;
mod direct;
mod early;
mod endings;
mod errands;
mod errors;
mod fallback;
mod features;
mod ipsec;
mod library;
mod links;
mod location;
mod nearest;
mod offload;
mod operation;
mod oracles;
mod orders;
mod paths;
mod preambles;
mod programs;
mod proxied;
mod reads;
mod reload;
mod reverse;
mod rig;
mod rules;
mod socks5;
mod split;
mod split_named;
mod steering;
mod transfers;
mod uplinks;
mod watch;
mod ways;
mod wire;
mod workers;

use std::process::ExitCode;

use anyhow::Result;
use flexcp_lab::KernelLog;
use libtest_mimic::Arguments;

pub(crate) use attempts::trial;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case has a lab of its own, and waits for most of the time; but two cores carry only so much at once.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(THREADS).min(THREADS));
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Cases at a time.
const THREADS: usize = 3;

fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Over all cases, their beginnings and ends included: what takes a lab down may alarm the kernel, too.
    let log = if arguments.list {
        None
    } else {
        Some(KernelLog::mark()?)
    };
    let groups = [
        direct::cases(),
        aggregation::cases(),
        transfers::cases(),
        uplinks::cases(),
        errands::cases(),
        chains::cases(),
        ways::cases(),
        bare::cases(),
        paths::cases(),
        close::cases(),
        fallback::cases(),
        reverse::cases(),
        convert::cases(),
        socks5::cases(),
        split::cases_that_apply(),
        split_named::cases_that_apply(),
        early::cases_that_apply(),
        clients::cases_that_apply(),
        access::cases(),
        balance::cases(),
        programs::cases(),
        proxied::cases(),
        reads::cases(),
        rules::cases(),
        orders::cases(),
        library::cases(),
        steering::cases(),
        operation::cases(),
        endings::cases(),
        errors::cases_that_apply(),
        reload::cases(),
        beside::cases_that_apply(),
        watch::cases(),
        links::cases(),
        location::cases(),
        nearest::cases(),
        offload::cases_that_apply(),
        attacks::cases(),
        wire::cases(),
        preambles::cases(),
        box_wire::cases(),
        workers::cases(),
        oracles::cases(),
    ];
    let (those_that_apply, not_had) =
        features::that_apply(arguments, &[devices::CASES, ipsec::CASES, bare::CASES]);
    let trials = groups.into_iter().flatten().chain(those_that_apply);
    let trials = attempts::without_those_done(trials.collect())?;
    let conclusion = libtest_mimic::run(arguments, trials);
    let Some(log) = log else {
        return Ok(conclusion.exit_code());
    };
    not_had.iter().for_each(|line| println!("{line}"));
    let alarms = log.complaints()?;
    let file = if flexcp_lab::daemon::offload_is_off() {
        "e2e-without-offload.json"
    } else {
        "e2e.json"
    };
    attempts::close(&alarms, file)?;
    if alarms.is_empty() {
        return Ok(conclusion.exit_code());
    }
    Ok(ExitCode::FAILURE)
}

/// Lists functions as trials of a group.
macro_rules! cases {
    ($group:literal: $($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trial($group, stringify!($name), $name)),+]
        }
    };
}
pub(crate) use cases;
