//! End-to-end tests: real kernels at both ends, real sockets, every byte checked.
//!
//! Run as root: `cargo test -p flexcp-lab --test e2e [-- FILTER]`. The group
//! `lab::` needs no FlexCP: a kernel MPTCP server behind a plain router shows
//! that the lab itself tells the truth. The others run the `flexcp` program that
//! `FLEXCP_BIN` names, or the one beside the test.

#![forbid(unsafe_code)]

mod attacks;
mod close;
mod direct;
mod fallback;
mod links;
mod offload;
mod operation;
mod paths;
mod programs;
mod reverse;
mod rig;
mod transfers;
mod wire;
mod workers;

use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use std::{panic, thread};

use anyhow::anyhow;
use flexcp_lab::{Complaints, require_root};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case has a lab of its own, but two cores carry only so much at once.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(2).min(2));
    let cases = offload::cases().into_iter();
    let offload: Vec<_> = cases
        .map(|case| case.with_ignored_flag(offload::is_off()))
        .collect();
    let groups = [
        direct::cases(),
        transfers::cases(),
        paths::cases(),
        close::cases(),
        fallback::cases(),
        reverse::cases(),
        programs::cases(),
        operation::cases(),
        links::cases(),
        offload,
        attacks::cases(),
        wire::cases(),
        workers::cases(),
    ];
    let conclusion = libtest_mimic::run(&arguments, groups.into_iter().flatten().collect());
    for line in FAILED.lock().iter().flat_map(|lines| lines.iter()) {
        eprintln!("{line}");
    }
    conclusion.exit_code()
}

/// What failed, and of the reason its first lines: said once more at the very end, where it is looked for.
static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_failure(name: &str, reason: &str) {
    let first: Vec<_> = reason.lines().take(12).collect();
    if let Ok(mut failed) = FAILED.lock() {
        failed.push(format!("{name}: {}", first.join("\n  ")));
    }
}

/// A test whose function is a case.
///
/// It fails, with the reason, when we are not root, and when it takes too long;
/// a case that hangs is left behind on its thread. When nothing but counters are
/// wrong it has a second attempt, and says so: on a busy machine the kernels at both
/// ends now and then move one on their own (packets that overtake each other between
/// cores, a neighbour that does not answer in time). What FlexCP does wrong, it does
/// again. Bytes, resets, stalls and whatever is left behind have one attempt.
pub(crate) fn trial(group: &str, name: &str, case: fn() -> anyhow::Result<()>) -> Trial {
    let (group, name) = (group.to_owned(), name.to_owned());
    Trial::test(format!("{group}::{name}"), move || {
        require_root().map_err(|error| format!("{error:#}"))?;
        match attempt(case) {
            Err(error) if error.is::<Complaints>() => {
                eprintln!(
                    "second attempt, as only counters were wrong: {}",
                    tell(&error)
                );
                attempt(case).map_err(|again| again.context(tell(&error)))
            }
            outcome => outcome,
        }
        .map_err(|error| {
            note_failure(&format!("{group}::{name}"), &tell(&error));
            Failed::from(tell(&error))
        })
    })
}

/// What went wrong first, then where.
fn tell(error: &anyhow::Error) -> String {
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    causes.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn attempt(case: fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (sender, outcome) = mpsc::channel();
    thread::spawn(move || {
        let outcome = panic::catch_unwind(case);
        let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("panicked"))));
    });
    let outcome = outcome.recv_timeout(LIMIT);
    outcome.unwrap_or_else(|_| Err(anyhow!("hangs ({LIMIT:?})")))
}

/// No case takes longer than this, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Lists functions as trials of a group.
macro_rules! cases {
    ($group:literal: $($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trial($group, stringify!($name), $name)),+]
        }
    };
}
pub(crate) use cases;
