//! End-to-end tests: real kernels at both ends, real sockets, every byte checked.
//!
//! Run as root: `cargo test -p flexcp-lab --test e2e [-- FILTER]`. The group
//! `lab::` needs no FlexCP: a kernel MPTCP server behind a plain router shows
//! that the lab itself tells the truth.

#![forbid(unsafe_code)]

mod direct;

use std::process::ExitCode;

use flexcp_lab::require_root;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case has a lab of its own, but two cores carry only so much at once.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(2).min(2));
    libtest_mimic::run(&arguments, direct::cases()).exit_code()
}

/// A test whose function is a case; fails, with the reason, when we are not root.
pub(crate) fn trial(group: &str, name: &str, case: fn() -> anyhow::Result<()>) -> Trial {
    Trial::test(format!("{group}::{name}"), move || {
        require_root()
            .and_then(|()| case())
            .map_err(|error| Failed::from(format!("{error:#}")))
    })
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
