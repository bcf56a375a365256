//! FlexCP's own keys. A key whose token names this worker takes as many SHA-256 as there are workers, so some are made
//! ahead, while no packet waits.

use alloc::collections::VecDeque;

use flexcp_placement::Share;

use crate::auth::{Key, SecretStream};

/// So many are ready at most.
const READY: usize = 256;

/// Keys whose tokens name one worker, in the order in which its seed gives them: made ahead or not, a connection gets
/// the same.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Nonces and sequence numbers.
    pub(crate) numbers: SecretStream,
    secrets: SecretStream,
    share: Share,
    ready: VecDeque<Key>,
}

impl Keys {
    /// Keys and numbers come from `seeds`, each from a stream of its own.
    pub(crate) fn new(mut seeds: SecretStream, share: Share) -> Self {
        Self {
            secrets: seeds.branch(),
            numbers: seeds,
            share,
            ready: VecDeque::with_capacity(READY),
        }
    }

    /// The next one, whether or not its token is free.
    pub(crate) fn next(&mut self) -> Key {
        self.ready.pop_front().unwrap_or_else(|| self.make())
    }

    /// Makes so many ahead, as far as there is room.
    pub(crate) fn make_ahead(&mut self, most: usize) {
        let missing = READY - self.ready.len();
        for _ in 0..most.min(missing) {
            let key = self.make();
            self.ready.push_back(key);
        }
    }

    fn make(&mut self) -> Key {
        loop {
            let key = Key::new(self.secrets.next_u64());
            if self.share.has_token(key.token) {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let share = Share {
            worker: 1,
            workers: 3,
        };
        Keys::new(SecretStream::new([5; 32]), share)
    }

    #[test]
    fn connections_get_the_same_keys_made_ahead_or_not() {
        let (mut ahead, mut late) = (keys(), keys());
        for n in 0..600 {
            if n % 7 == 0 {
                ahead.make_ahead(n % 40);
            }
            assert!(ahead.next() == late.next(), "key {n}");
        }
    }

    #[test]
    fn no_more_keys_are_ready_than_there_is_room_for() {
        let mut keys = keys();
        keys.make_ahead(10);
        assert_eq!(keys.ready.len(), 10);
        keys.make_ahead(usize::MAX);
        keys.make_ahead(usize::MAX);
        assert_eq!(keys.ready.len(), READY);
        let next = *keys.ready.front().expect("a key");
        assert!(keys.next() == next);
    }
}
