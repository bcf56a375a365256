//! Whether bytes are the right ones: by a rule that gives them, or by what came in before.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::Direction;

/// Knows what the bytes of a stream have to be.
pub trait Oracle {
    /// Whether `bytes` stand at `offset` of the data of the connection that `client` opened; the first
    /// byte has offset 0.
    fn matches(&self, client: SocketAddr, direction: Direction, offset: u64, bytes: &[u8]) -> bool;
}

/// Bytes of one direction that have come in and may still be repeated.
#[derive(Default, Debug)]
pub(crate) struct Remembered {
    /// By position; they do not overlap.
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Remembered {
    /// Remembers what is new of `bytes`.
    pub(crate) fn note(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let mut from = at;
        while from < end {
            if let Some((start, chunk)) = self.chunks.range(..=from).next_back() {
                let chunk_end = start + chunk.len() as u64;
                if chunk_end > from {
                    from = chunk_end;
                    continue;
                }
            }
            let to = self
                .chunks
                .range(from..)
                .next()
                .map_or(end, |(start, _)| end.min(*start));
            let part = &bytes[index(from - at)..index(to - at)];
            self.chunks.insert(from, part.to_vec());
            from = to;
        }
    }

    /// Whether nothing that is known contradicts `bytes`.
    pub(crate) fn matches(&self, at: u64, bytes: &[u8]) -> bool {
        let end = at + bytes.len() as u64;
        let first = self
            .chunks
            .range(..=at)
            .next_back()
            .map_or(at, |(start, _)| *start);
        self.chunks.range(first..end).all(|(start, chunk)| {
            let from = at.max(*start);
            let to = end.min(start + chunk.len() as u64);
            from >= to
                || bytes[index(from - at)..index(to - at)]
                    == chunk[index(from - start)..index(to - start)]
        })
    }

    /// Forgets what lies below `limit`.
    pub(crate) fn release(&mut self, limit: u64) {
        while let Some(entry) = self.chunks.first_entry() {
            if entry.key() + entry.get().len() as u64 > limit {
                break;
            }
            entry.remove();
        }
    }
}

fn index(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}
