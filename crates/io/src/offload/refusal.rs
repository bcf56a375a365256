//! Why the kernel refuses a program: of the verifier's words, which fill pages, the rule that was broken.

use std::io;

use aya::programs::ProgramError;

/// A program that the kernel refused.
#[derive(Debug)]
pub struct Refusal {
    /// The system call's error.
    error: io::Error,
    /// The verifier's words; empty when it did not come to that.
    log: String,
}

impl Refusal {
    /// The refusal in `error`, if it is one.
    pub(crate) fn of(error: ProgramError) -> Result<Self, ProgramError> {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => Ok(Self {
                error: io_error,
                log: verifier_log.to_string(),
            }),
            other => Err(other),
        }
    }

    /// All that the verifier says.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Whether the verifier has looked at the program, and not only at who asks.
    pub(crate) fn is_by_verifier(&self) -> bool {
        rule(&self.log).is_some()
    }
}

/// In one line: the verifier's rule and the instruction, or the system call's error.
impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match rule(&self.log) {
            Some(rule) => write!(f, "verifier: {rule}"),
            None => write!(f, "{}", self.error),
        }
    }
}

impl std::error::Error for Refusal {}

/// The verifier's last words before its statistics, and at which instruction it was.
fn rule(log: &str) -> Option<String> {
    let mut words = log.lines().rev().map(str::trim).filter(|line| {
        let is_statistics = STATISTICS.iter().any(|start| line.starts_with(start));
        !line.is_empty() && !is_statistics
    });
    let rule = words.next()?;
    Some(match words.find_map(instruction) {
        Some(number) => format!("{rule} (at instruction {number})"),
        None => rule.to_owned(),
    })
}

/// The number of the instruction that a line is about: `314: (85) call bpf_skb_load_bytes#26`.
fn instruction(line: &str) -> Option<u32> {
    let (number, rest) = line.split_once(": (")?;
    let is_code = |byte: &u8| byte.is_ascii_hexdigit();
    let number = number.parse().ok()?;
    rest.as_bytes()
        .get(..2)?
        .iter()
        .all(is_code)
        .then_some(number)
}

/// How lines start that tell what the verifier has done, not what it minds.
const STATISTICS: [&str; 4] = ["processed ", "verification time ", "stack depth ", "-- END"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_linux_6_1_gives_its_rule() {
        let log = "func#0 @0\n0: R1=ctx(off=0,imm=0) R10=fp0\n\
                   313: (b7) r5 = 0                       ; R5_w=0\n\
                   314: (85) call bpf_skb_load_bytes#26\n\
                   R3 min value is outside of the allowed memory range\n\
                   processed 315 insns (limit 1000000) max_states_per_insn 0 total_states 16 peak_states 16 mark_read 8\n";
        assert_eq!(
            rule(log).unwrap(),
            "R3 min value is outside of the allowed memory range (at instruction 314)"
        );
    }

    #[test]
    fn log_of_linux_6_12_gives_its_rule() {
        let log = "314: (85) call bpf_skb_load_bytes#26\nR4 invalid zero-sized read: u64=[0,40]\n\
                   verification time 412 usec\nstack depth 8+40\nprocessed 315 insns (limit 1000000)\n";
        assert_eq!(
            rule(log).unwrap(),
            "R4 invalid zero-sized read: u64=[0,40] (at instruction 314)"
        );
    }

    #[test]
    fn log_of_a_program_that_is_too_long() {
        let log = "BPF program is too large. Processed 1000001 insn\nprocessed 1000001 insns (limit 1000000)\n";
        assert_eq!(
            rule(log).unwrap(),
            "BPF program is too large. Processed 1000001 insn"
        );
    }

    #[test]
    fn no_log_leaves_the_error() {
        assert_eq!(rule(""), None);
        assert_eq!(rule("processed 0 insns (limit 1000000)\n"), None);
        let refusal = Refusal {
            error: io::Error::from_raw_os_error(libc::EPERM),
            log: String::new(),
        };
        assert!(!refusal.is_by_verifier());
        assert_eq!(refusal.to_string(), "Operation not permitted (os error 1)");
    }
}
