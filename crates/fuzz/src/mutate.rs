//! Inputs without coverage: a seeded generator that mutates and crosses what is in the corpus.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

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
        if self.corpus.is_empty() || random.below(8) == 0 {
            let len = random.below(self.max_len + 1);
            return (0..len).map(|_| random.byte()).collect();
        }
        let mut input = self.corpus[random.below(self.corpus.len())].clone();
        for _ in 0..=random.below(6) {
            self.change(&mut input);
        }
        input.truncate(self.max_len);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        let at = random.below(input.len() + 1);
        let count = random.below(16).min(input.len() - at);
        match random.below(9) {
            0 | 1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.byte();
                }
            }
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            3 => drop(input.drain(at..at + count)),
            4 => {
                let part = input[at..at + count].to_vec();
                input.splice(at..at, part);
            }
            5 => {
                let bytes: Vec<u8> = (0..=count).map(|_| random.byte()).collect();
                input.splice(at..at, bytes);
            }
            6 => input.truncate(at),
            7 if !self.words.is_empty() => {
                let word = self.words[random.below(self.words.len())];
                input.splice(at..at, word.bytes());
            }
            _ => {
                let other = &self.corpus[random.below(self.corpus.len())];
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}
