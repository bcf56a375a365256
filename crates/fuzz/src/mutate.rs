//! Inputs without coverage: a seeded generator that mutates and crosses what is in the corpus.

use flexcp_testkit::Random;

/// Makes inputs out of a corpus.
#[derive(Clone, Debug)]
pub struct Mutator<'a> {
    random: Random,
    corpus: &'a [Vec<u8>],
    words: &'a [&'a str],
    max_len: usize,
}

impl<'a> Mutator<'a> {
    /// Inputs of at most `max_len` bytes; `words` are put in now and then.
    #[must_use]
    pub const fn new(
        seed: u64,
        corpus: &'a [Vec<u8>],
        words: &'a [&'a str],
        max_len: usize,
    ) -> Self {
        Self {
            random: Random::new(seed),
            corpus,
            words,
            max_len,
        }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        if self.corpus.is_empty() || random.index(8) == 0 {
            let len = random.index(self.max_len + 1);
            return (0..len).map(|_| byte(random)).collect();
        }
        let mut input = self.corpus[random.index(self.corpus.len())].clone();
        for _ in 0..=random.index(6) {
            self.change(&mut input);
        }
        input.truncate(self.max_len);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        let at = random.index(input.len() + 1);
        let count = random.index(16).min(input.len() - at);
        match random.index(9) {
            0 | 1 => {
                if let Some(old) = input.get_mut(at) {
                    *old = byte(random);
                }
            }
            2 => {
                if let Some(old) = input.get_mut(at) {
                    *old ^= 1 << random.index(8);
                }
            }
            3 => drop(input.drain(at..at + count)),
            4 => {
                let part = input[at..at + count].to_vec();
                input.splice(at..at, part);
            }
            5 => {
                let bytes: Vec<u8> = (0..=count).map(|_| byte(random)).collect();
                input.splice(at..at, bytes);
            }
            6 => input.truncate(at),
            7 if !self.words.is_empty() => {
                let word = self.words[random.index(self.words.len())];
                input.splice(at..at, word.bytes());
            }
            _ => {
                let other = &self.corpus[random.index(self.corpus.len())];
                let from = random.index(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

fn byte(random: &mut Random) -> u8 {
    random.next().to_be_bytes()[0]
}
