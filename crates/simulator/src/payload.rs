//! What is transferred: bytes that follow from connection, direction and offset, so that any part can be
//! made and checked on its own.

use flexcp_testkit::Random;

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use flexcp_invariants::{Direction, Oracle};

use crate::errand::stream_of;

/// The bytes repeat after so many: a prime, so that no window or segment size divides it.
const PERIOD: usize = 1_000_003;
/// Longest part that is asked for at once.
const LONGEST: usize = 1 << 17;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::for_purpose(1, 1);
    let mut table: Vec<u8> = (0..PERIOD).map(|_| (random.next() >> 56) as u8).collect();
    table.extend_from_within(..LONGEST);
    table
});

/// The bytes of one connection and direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    base: u64,
}

impl Payload {
    /// The connection is known by its client's first address.
    #[must_use]
    pub(crate) fn of(client: SocketAddr, direction: Direction) -> Self {
        let ip = match client.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => (ip.to_bits() & u128::from(u64::MAX)) as u64,
        };
        let seed = ip ^ (u64::from(client.port()) << 40) ^ ((direction as u64) << 60);
        Self {
            base: Random::for_purpose(seed, 2).below(PERIOD as u64),
        }
    }

    /// `len` bytes from `offset` on.
    #[must_use]
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> &'static [u8] {
        let start = ((self.base + offset) % PERIOD as u64) as usize;
        &TABLE[start..start + len]
    }

    /// Whether these bytes belong there.
    #[must_use]
    pub(crate) fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        bytes == self.bytes(offset, bytes.len())
    }
}

/// Judges for the checker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge;

impl Oracle for Judge {
    fn matches(&self, client: SocketAddr, direction: Direction, offset: u64, bytes: &[u8]) -> bool {
        Payload::of(stream_of(client), direction).matches(offset, bytes)
    }
}
