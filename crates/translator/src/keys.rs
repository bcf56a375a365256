//! FlexCP's own keys. A key whose token names this worker takes as many SHA-256 as there are workers, so some are made
//! ahead, while no packet waits.

use alloc::collections::VecDeque;

use flexcp_placement::Share;

use crate::auth::{Key, SecretStream};
use crate::translator::Translator;

/// So many are ready at most.
const READY: usize = 256;

/// Keys whose tokens name one worker, in the order in which its seed gives them: made ahead or not, a connection gets
/// the same.
#[derive(Debug)]
pub(crate) struct Keys {
    secrets: SecretStream,
    share: Share,
    ready: VecDeque<Key>,
}

impl Keys {
    pub(crate) fn new(secrets: SecretStream, share: Share) -> Self {
        Self {
            secrets,
            share,
            ready: VecDeque::with_capacity(READY),
        }
    }

    /// The next one, whether or not its token is free.
    fn next(&mut self) -> Key {
        self.ready.pop_front().unwrap_or_else(|| self.make())
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

impl Translator {
    /// Makes keys for connections to come, `most` of them; to be called when nothing else is to be done.
    pub fn make_keys(&mut self, most: usize) {
        let missing = READY - self.keys.ready.len();
        for _ in 0..most.min(missing) {
            let key = self.keys.make();
            self.keys.ready.push_back(key);
        }
    }

    /// A key whose token is free and names this worker.
    pub(crate) fn fresh_key(&mut self) -> Key {
        loop {
            let key = self.keys.next();
            if self.table.find_token(key.token).is_none() {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn translator() -> Translator {
        let share = Share {
            worker: 1,
            workers: 3,
        };
        let config = Config {
            share,
            ..Config::default()
        };
        Translator::new(config, [5; 32])
    }

    #[test]
    fn connections_get_the_same_keys_made_ahead_or_not() {
        let (mut ahead, mut late) = (translator(), translator());
        for n in 0..600 {
            if n % 7 == 0 {
                ahead.make_keys(n % 40);
            }
            assert!(ahead.fresh_key() == late.fresh_key(), "key {n}");
        }
    }

    #[test]
    fn no_more_keys_are_ready_than_there_is_room_for() {
        let mut translator = translator();
        translator.make_keys(10);
        assert_eq!(translator.keys.ready.len(), 10);
        translator.make_keys(usize::MAX);
        translator.make_keys(usize::MAX);
        assert_eq!(translator.keys.ready.len(), READY);
        let next = *translator.keys.ready.front().expect("a key");
        assert!(translator.fresh_key() == next);
    }
}
