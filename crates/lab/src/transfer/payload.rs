//! The bytes that are sent: a function of seed and offset.

use std::fmt;

/// A stream of bytes that can be made and checked at any offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    seed: u64,
}

/// The first byte that was not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Its offset in the stream.
    pub offset: u64,
    /// What it should have been.
    pub expected: u8,
    /// What it was.
    pub found: u8,
}

impl Payload {
    /// The stream that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub fn fill(self, offset: u64, buffer: &mut [u8]) {
        let skip = usize::try_from(offset % 8).unwrap_or(0);
        let mut index = offset / 8;
        let (head, rest) = buffer.split_at_mut(((8 - skip) % 8).min(buffer.len()));
        if !head.is_empty() {
            let word = self.word(index);
            head.copy_from_slice(&word[skip..skip + head.len()]);
            index += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(index));
            index += 1;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(index)[..tail.len()]);
    }

    /// Compares `received` with the bytes from `offset` on; `scratch` is overwritten.
    pub fn check(
        self,
        offset: u64,
        received: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        scratch.resize(received.len(), 0);
        self.fill(offset, scratch);
        if received == scratch.as_slice() {
            return Ok(());
        }
        let pairs = (offset..).zip(received.iter().zip(scratch.iter()));
        let wrong = pairs
            .into_iter()
            .find(|(_, (found, expected))| found != expected);
        let (offset, (&found, &expected)) = wrong.unwrap_or((offset, (&0, &0)));
        Err(Mismatch {
            offset,
            expected,
            found,
        })
    }

    /// Splitmix64: eight bytes at a time, any of them without those before.
    fn word(self, index: u64) -> [u8; 8] {
        let mut z = self
            .seed
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            expected,
            found,
        } = self;
        write!(
            f,
            "byte {offset} is {found:#04x}, should be {expected:#04x}"
        )
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_at_any_offset_gives_the_same_stream() {
        let payload = Payload::new(7);
        let mut whole = vec![0; 100];
        payload.fill(0, &mut whole);
        for start in 0..20 {
            for len in 0..30 {
                let mut part = vec![0; len];
                payload.fill(start as u64, &mut part);
                assert_eq!(part, whole[start..start + len], "{start}+{len}");
            }
        }
    }

    #[test]
    fn check_names_the_first_wrong_byte() {
        let payload = Payload::new(1);
        let mut bytes = vec![0; 64];
        payload.fill(1000, &mut bytes);
        let mut scratch = vec![];
        assert_eq!(payload.check(1000, &bytes, &mut scratch), Ok(()));
        bytes[13] ^= 1;
        bytes[20] ^= 1;
        let mismatch = payload.check(1000, &bytes, &mut scratch).unwrap_err();
        assert_eq!(mismatch.offset, 1013);
    }
}
