//! What of a hostile end's packets is kept: of the last one until the next comes in, of others a hash.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::packet::Point;

/// Longest headers, of IP and TCP with options.
const MAX_HEADER: usize = 128;

/// Headers and payload of a packet.
#[derive(Debug)]
pub(crate) struct Kept {
    header: [u8; MAX_HEADER],
    /// 0: not kept.
    header_len: usize,
    payload: Option<Vec<u8>>,
    /// Behind what has been found in the payload last.
    next: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            header: [0; MAX_HEADER],
            header_len: 0,
            payload: None,
            next: 0,
        }
    }
}

impl Kept {
    pub(crate) fn keep_header(&mut self, header: &[u8]) {
        if let Some(place) = self.header.get_mut(..header.len()) {
            place.copy_from_slice(header);
            self.header_len = header.len();
        }
    }

    pub(crate) fn keep_payload(&mut self, payload: &[u8]) {
        self.payload = Some(payload.to_vec());
    }

    /// Whether these are the headers that came in.
    pub(crate) fn has_header(&self, header: &[u8]) -> bool {
        self.header_len > 0 && self.header[..self.header_len] == *header
    }

    /// Whether these bytes came in, one behind the other; `true` when the payload was not kept.
    pub(crate) fn has_bytes(&mut self, bytes: &[u8]) -> bool {
        let Some(payload) = &self.payload else {
            return true;
        };
        // Most of the time the parts go out in order.
        let follows = payload
            .get(self.next..)
            .is_some_and(|rest| rest.starts_with(bytes));
        let at = if follows {
            Some(self.next)
        } else {
            payload.windows(bytes.len()).position(|part| part == bytes)
        };
        self.next = at.map_or(self.next, |at| at + bytes.len());
        at.is_some()
    }
}

/// Payloads that have gone to clients of hostile servers: the proxy may repeat one from a copy.
#[derive(Default, Debug)]
pub(crate) struct Copies(HashSet<u64>);

impl Copies {
    /// Notes a payload; whether the same has gone to a client before.
    pub(crate) fn repeats(&mut self, point: Point, bytes: &[u8]) -> bool {
        if point != Point::ToClient {
            return false;
        }
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        !self.0.insert(hasher.finish())
    }
}
