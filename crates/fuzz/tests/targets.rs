//! Every target over its corpus, what it once failed on, and a fixed number of mutated inputs:
//! always the same ones, and fresh ones.

use flexcp_fuzz::mutate::Mutator;
use flexcp_fuzz::{corpus, find};
use flexcp_simulator::seeds;

/// Of the inputs that are always the same.
const SEED: u64 = 0x5eed;
/// For so many of them there is a fresh one.
const FRESH: u64 = 4;

/// Says which input was running when a test panics.
struct Running<'a>(&'a str, &'a [u8]);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("input {}: {hex}", self.0);
        }
    }
}

fn run(name: &str) {
    let target = find(name).expect("a target");
    let known = corpus::load(target).expect("the corpus");
    assert!(known.len() >= 5, "no corpus for {name}");
    for (file, input) in &known {
        let _running = Running(file, input);
        (target.run)(input);
    }
    let known: Vec<Vec<u8>> = known.into_iter().map(|(_, input)| input).collect();
    for seed in seeds(SEED..SEED + 1, 1) {
        let runs = target.runs_in_tests / if seed == SEED { 1 } else { FRESH };
        let mut mutator = Mutator::new(seed, &known, target.words, target.max_len);
        for number in 0..runs {
            let input = mutator.next_input();
            let file = format!(
                "{name} number {number} (FLEXCP_SEED={seed} cargo test -p flexcp-fuzz --test targets {name})"
            );
            let _running = Running(&file, &input);
            (target.run)(&input);
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let tested = [$(stringify!($name)),*];
            let known: Vec<_> = flexcp_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(known, tested);
        }
    };
}

targets!(parse options preamble stream legs box_stream box_legs hostile icmp lane config control);
