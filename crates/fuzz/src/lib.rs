//! Fuzz targets: one function per target that takes any bytes. The same functions run on the stable
//! toolchain (the `fuzz` program and the tests of this crate: the corpus, then a fixed number of mutated
//! inputs) and under libFuzzer (`fuzz/` beside the workspace).
#![forbid(unsafe_code)]

pub mod corpus;
mod ends;
mod far;
pub mod hostile;
pub mod icmp;
mod input;
pub mod lane;
pub mod legs;
pub mod mutate;
mod opening;
pub mod options;
mod output;
pub mod parse;
pub mod preamble;
pub mod stream;
pub mod text;
mod world;

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its corpus and of its libFuzzer binary.
    pub name: &'static str,
    /// Runs one input. Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Longest input worth trying, in bytes.
    pub max_len: usize,
    /// Words that its inputs are made of.
    pub words: &'static [&'static str],
    /// Mutated inputs in `make test`.
    pub runs_in_tests: u64,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "parse",
        run: parse::target,
        max_len: 300,
        words: &[],
        runs_in_tests: 60_000,
    },
    Target {
        name: "options",
        run: options::target,
        max_len: 200,
        words: &[],
        runs_in_tests: 200_000,
    },
    Target {
        name: "preamble",
        run: preamble::target,
        max_len: 300,
        words: &[],
        runs_in_tests: 60_000,
    },
    Target {
        name: "stream",
        run: stream::target,
        max_len: 600,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "legs",
        run: legs::target,
        max_len: 600,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "box_stream",
        run: stream::target_of_box,
        max_len: 600,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "box_legs",
        run: legs::target_of_box,
        max_len: 600,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "hostile",
        run: hostile::target,
        max_len: 600,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "icmp",
        run: icmp::target,
        max_len: 400,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "lane",
        run: lane::target,
        max_len: 200,
        words: &[],
        runs_in_tests: 10_000,
    },
    Target {
        name: "config",
        run: text::config,
        max_len: 600,
        words: text::CONFIG_WORDS,
        runs_in_tests: 5_000,
    },
    Target {
        name: "control",
        run: text::control,
        max_len: 100,
        words: text::CONTROL_WORDS,
        runs_in_tests: 100_000,
    },
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
