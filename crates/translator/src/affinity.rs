//! Affinity: several workers, each with a translator of its own that shares nothing, and every packet of a
//! connection at the same one.
//!
//! - The initial subflow and, in transparent mode, the server's side are the same pair of ends: their hash,
//!   which is the same in both directions, names the worker.
//! - In reverse mode FlexCP chooses the port towards the back end, and that names the worker.
//! - FlexCP chooses its key, and the token names the worker: a SYN with `MP_JOIN` goes by it (as the token
//!   space is divided in RomanRoads, section V.B).
//! - What follows on a joined subflow says neither. The worker that its hash names has seen that SYN, and
//!   remembers where it went.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use alloc::vec::Vec;

use flexcp_wire::{
    IcmpError, IpHeader, MpJoin, MptcpOption, TcpFlags, TcpHeader, TcpOption, TcpOptions, protocol,
};
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use crate::config::{Config, Mode};
use crate::segment::Ends;
use crate::translator::Translator;

/// Joined subflows that a worker remembers of the others', twice.
const REMEMBERED: usize = 1 << 16;

/// Which connections a translator has, when several work side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its number, from 0.
    pub worker: u16,
    /// How many there are.
    pub workers: u16,
}

impl Default for Share {
    /// All of them.
    fn default() -> Self {
        Self {
            worker: 0,
            workers: 1,
        }
    }
}

impl Share {
    /// Whether connections with this token belong here.
    pub(crate) fn has_token(self, token: u32) -> bool {
        of_token(token, self.workers) == self.worker
    }

    /// The port for the `n`-th of those in `ports` that name this worker, counted round; `None`: none does.
    pub(crate) fn port(self, ports: &RangeInclusive<u16>, n: u32) -> Option<u16> {
        let workers = self.workers.max(1);
        let ahead = (self.worker + workers - ports.start() % workers) % workers;
        let first = ports.start().checked_add(ahead)?;
        let span = ports.end().checked_sub(first)?;
        let step = n % (u32::from(span / workers) + 1);
        Some(first + u16::try_from(step).ok()? * workers)
    }
}

/// The worker that a token names: equal parts of the token space.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the quotient is below a 16-bit number"
)]
fn of_token(token: u32, workers: u16) -> u16 {
    ((u64::from(token) * u64::from(workers)) >> 32) as u16
}

/// Finds the worker that owns a packet: one for each worker, none is shared.
#[derive(Debug)]
pub struct Affinity {
    share: Share,
    /// Towards back ends: their addresses, FlexCP's, and the ports that name workers.
    back_ends: Vec<BackEnds>,
    hash_keys: (u64, u64),
    /// Joined subflows whose hash names this worker, and who has them: those of late, and those before.
    joined: [HashTable<Joined>; 2],
    /// So many are remembered in each.
    capacity: usize,
}

#[derive(Debug)]
struct BackEnds {
    addrs: Vec<SocketAddr>,
    sources: Vec<IpAddr>,
    ports: RangeInclusive<u16>,
}

/// A joined subflow and who has it.
#[derive(Clone, Copy, Debug)]
struct Joined {
    ends: Ends,
    hash: u64,
    worker: u16,
}

/// Where a packet has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// To the translator of this worker.
    This,
    /// To that worker, which is its owner.
    Worker(u16),
    /// To that worker, which knows its owner.
    Directory(u16),
}

impl Affinity {
    /// `share` says for which worker; `hash_keys` must be the same for all.
    #[must_use]
    pub fn new(config: &Config, share: Share, hash_keys: (u64, u64)) -> Self {
        let back_ends = config.services.iter().filter_map(|s| match &s.mode {
            Mode::Reverse {
                backends,
                source,
                source_ports,
                ..
            } => Some(BackEnds {
                addrs: backends.clone(),
                sources: source.clone(),
                ports: source_ports.clone(),
            }),
            Mode::Transparent { .. } => None,
        });
        Self {
            share,
            back_ends: back_ends.collect(),
            hash_keys,
            joined: [HashTable::new(), HashTable::new()],
            capacity: config.limits.connections.min(REMEMBERED),
        }
    }

    /// Whose `packet` is, from its IP header on. A packet that belongs to no connection belongs to whoever
    /// has it.
    pub fn owner(&mut self, packet: &[u8]) -> Owner {
        if self.share.workers <= 1 {
            return Owner::This;
        }
        let Ok(ip) = IpHeader::parse(packet) else {
            return Owner::This;
        };
        let Some(body) = packet.get(ip.header_len..ip.total_len) else {
            return Owner::This;
        };
        match ip.protocol {
            protocol::TCP => self.owner_of_segment(&ip, body),
            protocol::ICMP | protocol::ICMPV6 => {
                // It is about a packet that went the other way.
                let error = IcmpError::parse(&ip, body);
                error.map_or(Owner::This, |error| {
                    self.owner_of_flow(Ends {
                        from: error.dst,
                        to: error.src,
                    })
                })
            }
            _ => Owner::This,
        }
    }

    fn owner_of_segment(&mut self, ip: &IpHeader, segment: &[u8]) -> Owner {
        let Ok((tcp, options)) = TcpHeader::parse(segment) else {
            return Owner::This;
        };
        let ends = Ends {
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
        };
        let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
        if !opens {
            return self.owner_of_flow(ends);
        }
        let hash = self.hash(ends);
        let directory = of_hash(hash, self.share.workers);
        if directory != self.share.worker {
            return Owner::Directory(directory);
        }
        self.forget(ends, hash);
        match joined_token(options) {
            Some(token) => {
                let owner = of_token(token, self.share.workers);
                self.remember(Joined {
                    ends,
                    hash,
                    worker: owner,
                });
                self.named(owner)
            }
            None => Owner::This,
        }
    }

    fn owner_of_flow(&mut self, ends: Ends) -> Owner {
        if let Some(worker) = self.of_back_end(ends) {
            return self.named(worker);
        }
        let hash = self.hash(ends);
        let directory = of_hash(hash, self.share.workers);
        if directory != self.share.worker {
            return Owner::Directory(directory);
        }
        let owner = self.recall(ends, hash);
        owner.map_or(Owner::This, |worker| self.named(worker))
    }

    fn named(&self, worker: u16) -> Owner {
        if worker == self.share.worker {
            Owner::This
        } else {
            Owner::Worker(worker)
        }
    }

    /// The worker that a back end's packet names by the port that it goes to.
    fn of_back_end(&self, ends: Ends) -> Option<u16> {
        let comes_from = |b: &&BackEnds| {
            b.ports.contains(&ends.to.port())
                && b.addrs.contains(&ends.from)
                && b.sources.contains(&ends.to.ip())
        };
        self.back_ends
            .iter()
            .find(comes_from)
            .map(|_| ends.to.port() % self.share.workers)
    }

    /// Hash of a pair of ends, whichever is the sender.
    fn hash(&self, ends: Ends) -> u64 {
        let Ends { from, to } = ends;
        let mut hasher = SipHasher13::new_with_keys(self.hash_keys.0, self.hash_keys.1);
        for end in [from.min(to), from.max(to)] {
            match end.ip() {
                IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
            }
            hasher.write_u16(end.port());
        }
        hasher.finish()
    }

    fn remember(&mut self, joined: Joined) {
        if self.joined[0].len() >= self.capacity {
            // Those that nobody has asked for since the last time are forgotten.
            self.joined.swap(0, 1);
            self.joined[0].clear();
        }
        self.joined[0].insert_unique(joined.hash, joined, |joined| joined.hash);
    }

    fn recall(&mut self, ends: Ends, hash: u64) -> Option<u16> {
        let [recent, before] = &mut self.joined;
        if let Some(joined) = recent.find(hash, |joined| joined.ends == ends) {
            return Some(joined.worker);
        }
        let entry = before.find_entry(hash, |joined| joined.ends == ends);
        let joined = entry.ok()?.remove().0;
        self.remember(joined);
        Some(joined.worker)
    }

    fn forget(&mut self, ends: Ends, hash: u64) {
        for joined in &mut self.joined {
            if let Ok(entry) = joined.find_entry(hash, |joined| joined.ends == ends) {
                entry.remove();
            }
        }
    }
}

/// The worker that a hash names.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the high half is as good as the whole"
)]
fn of_hash(hash: u64, workers: u16) -> u16 {
    of_token((hash >> 32) as u32, workers)
}

impl Translator {
    /// Whether a packet, from its IP header on, belongs to a connection that is here. Not asked about a SYN:
    /// it may begin another one, with another owner.
    #[must_use]
    pub fn has_flow_of(&self, packet: &[u8]) -> bool {
        let Ok(ip) = IpHeader::parse(packet) else {
            return false;
        };
        let segment = packet.get(ip.header_len..ip.total_len);
        let Some(Ok((tcp, _))) = segment.map(TcpHeader::parse) else {
            return false;
        };
        let ends = Ends {
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
        };
        let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
        ip.protocol == protocol::TCP && !opens && self.table.find(ends).is_some()
    }
}

/// The token of a SYN with `MP_JOIN`.
fn joined_token(options: &[u8]) -> Option<u32> {
    TcpOptions::new(options)
        .map_while(Result::ok)
        .find_map(|option| match option {
            TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn { token, .. })) => Some(token),
            _ => None,
        })
}

#[cfg(test)]
mod tests;
