//! What names the owner of a packet without a memory: the same for all workers, and for a program that distributes
//! packets to them (`bpf/placement.bpf.c`).

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use alloc::vec::Vec;

use flexcp_wire::Ends;
use siphasher::sip::SipHasher13;

/// The rules.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How many workers there are, at least 1.
    pub workers: u16,
    /// Keys of the hash of two ends. They must be unpredictable: who knows them can aim at one worker.
    pub hash_keys: (u64, u64),
    /// Whose packets go by the port that the proxy chose.
    pub back_ends: Vec<BackEnds>,
}

/// Servers of a service: packets from `addrs` to `sources` and `ports` go to the worker that the port names, modulo the
/// number of workers.
#[derive(Clone, Debug)]
pub struct BackEnds {
    /// The servers; `None`: any, as clients name them.
    pub addrs: Option<Vec<SocketAddr>>,
    /// The proxy's addresses towards them.
    pub sources: Vec<IpAddr>,
    /// The proxy's ports towards them.
    pub ports: RangeInclusive<u16>,
}

/// The ends of a flow, whichever is the sender, as `struct pair` of the program: the lower address and the higher
/// one, their ports. IPv4 addresses stand as mapped ones; all in network order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair([u8; PAIR_LEN]);

const PAIR_LEN: usize = 36;

impl Rules {
    /// The worker that a packet's ends name.
    #[must_use]
    pub fn of_ends(&self, ends: Ends) -> u16 {
        let of_back_end = self.of_back_end(ends);
        of_back_end.unwrap_or_else(|| self.of_hash(self.hash(Pair::of(ends))))
    }

    /// The worker that a token names: equal parts of the token space.
    #[must_use]
    pub fn of_token(&self, token: u32) -> u16 {
        of_token(token, self.workers)
    }

    /// The worker that a back end's packet names by the port that it goes to.
    pub(crate) fn of_back_end(&self, ends: Ends) -> Option<u16> {
        let comes_from = |b: &&BackEnds| {
            b.ports.contains(&ends.to.port())
                && b.addrs
                    .as_ref()
                    .is_none_or(|addrs| addrs.contains(&ends.from))
                && b.sources.contains(&ends.to.ip())
        };
        self.back_ends
            .iter()
            .find(comes_from)
            .map(|_| ends.to.port() % self.workers.max(1))
    }

    /// The worker that a hash names.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the high half is as good as the whole"
    )]
    pub(crate) fn of_hash(&self, hash: u64) -> u16 {
        self.of_token((hash >> 32) as u32)
    }

    /// SipHash-1-3 of the pair's bytes.
    pub(crate) fn hash(&self, pair: Pair) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.hash_keys.0, self.hash_keys.1);
        hasher.write(&pair.0);
        hasher.finish()
    }
}

impl Pair {
    /// Of a packet with these ends.
    #[must_use]
    pub fn of(ends: Ends) -> Self {
        let (low, high) = (ends.from.min(ends.to), ends.from.max(ends.to));
        let mut bytes = [0; PAIR_LEN];
        bytes[..16].copy_from_slice(&octets(low.ip()));
        bytes[16..32].copy_from_slice(&octets(high.ip()));
        bytes[32..34].copy_from_slice(&low.port().to_be_bytes());
        bytes[34..].copy_from_slice(&high.port().to_be_bytes());
        Self(bytes)
    }

    /// As the program has it.
    #[must_use]
    pub const fn bytes(self) -> [u8; 36] {
        self.0
    }
}

/// An address as an IPv6 one.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// The worker that a token names.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the quotient is below a 16-bit number"
)]
pub(crate) fn of_token(token: u32, workers: u16) -> u16 {
    ((u64::from(token) * u64::from(workers)) >> 32) as u16
}
