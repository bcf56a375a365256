//! The ends of connections are told that those are over, several times: nothing repeats a RST that is lost.

use std::sync::mpsc::{Receiver, TryRecvError};

use crate::stop::{TELLING, TOLD_AT};

/// How far that is. Times are microseconds.
#[derive(Debug)]
pub(super) struct Telling {
    began: u64,
    due: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The ends are to be told for the n-th time.
    Tell(usize),
    /// They are being told.
    Telling(usize, Vec<Receiver<()>>),
    /// They have been told as often as they are, and had time to object.
    Over,
}

impl Telling {
    pub(super) const fn new(now: u64) -> Self {
        Self {
            began: now,
            due: now,
            step: Step::Tell(0),
        }
    }

    pub(super) const fn due(&self) -> u64 {
        self.due
    }

    /// Does what is due; `ask` has the workers tell the ends, once. `true`: all is done.
    pub(super) fn go_on(&mut self, now: u64, ask: impl FnOnce() -> Vec<Receiver<()>>) -> bool {
        if self.due > now {
            return false;
        }
        match &mut self.step {
            Step::Tell(n) => {
                self.step = Step::Telling(*n, ask());
                self.due = now + LOOK;
            }
            Step::Telling(n, asked) => {
                asked.retain(|told| told.try_recv() == Err(TryRecvError::Empty));
                let n = *n;
                if asked.is_empty() || now > self.began + PATIENCE {
                    self.told(n);
                } else {
                    self.due = now + LOOK;
                }
            }
            Step::Over => return true,
        }
        false
    }

    /// Behind the `n`-th time that the ends were told.
    fn told(&mut self, n: usize) {
        let at = TOLD_AT.get(n + 1);
        self.step = at.map_or(Step::Over, |_| Step::Tell(n + 1));
        let at = at.unwrap_or(&TELLING).as_micros();
        self.due = self.began + u64::try_from(at).unwrap_or(u64::MAX);
    }
}

/// Between two looks at whether the workers have told all.
const LOOK: u64 = 5_000;
/// How long they may take: another time they tell the rest.
const PATIENCE: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn ends_are_told_three_times_and_have_time_to_object() {
        let mut telling = Telling::new(1_000_000);
        let mut told = vec![];
        let mut now = 0;
        loop {
            now = telling.due().max(now);
            let over = telling.go_on(now, || {
                told.push(now);
                let (done, is_done) = mpsc::sync_channel(1);
                done.send(()).unwrap();
                vec![is_done]
            });
            if over {
                break;
            }
        }
        assert_eq!(told, [1_000_000, 1_150_000, 1_450_000]);
        assert_eq!(now, 1_600_000);
    }

    #[test]
    fn workers_that_are_at_it_are_waited_for() {
        let mut telling = Telling::new(0);
        let (done, is_done) = mpsc::sync_channel(1);
        assert!(!telling.go_on(0, || vec![is_done]));
        let never = || -> Vec<Receiver<()>> { unreachable!("they are being asked") };
        for now in [5_000, 10_000, 2_000_000] {
            assert!(!telling.go_on(now, never));
        }
        assert_eq!(telling.due(), 2_005_000);
        done.send(()).unwrap();
        assert!(!telling.go_on(2_005_000, never));
        assert_eq!(telling.due(), 150_000, "the second time is due");
    }
}
