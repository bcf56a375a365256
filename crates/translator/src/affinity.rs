//! Affinity: several workers, each with a translator of its own that shares nothing, and every packet of a
//! connection at the same one.
//!
//! - The initial subflow and, in transparent mode, the server's side are the same pair of ends: their hash,
//!   which is the same in both directions, names the worker.
//! - In reverse mode FlexCP chooses the port towards the back end, and that names the worker.
//! - FlexCP chooses its key, and the token names the worker: a SYN with `MP_JOIN` goes by it (as the token
//!   space is divided in RomanRoads, section V.B).
//! - What follows on a joined subflow says neither. Where a program in the kernel chooses the queues, the worker
//!   that takes the join notes that in the program's map. Otherwise, or when the map is full, the worker that its
//!   hash names has seen that SYN, and remembers where it went.

mod exceptions;
mod rules;

use core::ops::RangeInclusive;

use flexcp_wire::{
    IcmpError, IpHeader, MpJoin, MptcpOption, TcpFlags, TcpHeader, TcpOption, TcpOptions, protocol,
};
use hashbrown::HashTable;

pub use self::exceptions::{Exceptions, FlowMap};
use self::rules::of_token;
pub use self::rules::{BackEnds, Pair, Rules};
use crate::config::Config;
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

/// Finds the worker that owns a packet: one for each worker, none is shared.
#[derive(Debug)]
pub struct Affinity {
    share: Share,
    rules: Rules,
    /// Joined subflows whose hash names this worker, and who has them: those of late, and those before.
    joined: [HashTable<Joined>; 2],
    /// So many are remembered in each.
    capacity: usize,
    /// What this worker has in a steering program's map, where there is one.
    exceptions: Option<Exceptions>,
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
    /// For the worker that `config` says; `hash_keys` must be the same for all.
    #[must_use]
    pub fn new(config: &Config, hash_keys: (u64, u64)) -> Self {
        Self {
            share: config.share,
            rules: Rules::new(config, hash_keys),
            joined: [HashTable::new(), HashTable::new()],
            capacity: config.limits.connections.min(REMEMBERED),
            exceptions: None,
        }
    }

    /// A program chooses the queues by the same rules and a map, where this worker claims its joined subflows.
    pub fn steer(&mut self, exceptions: Exceptions) {
        self.exceptions = Some(exceptions);
    }

    /// From here on these rules name the owner of a packet; `workers` and `hash_keys` are as before. What they say of back
    /// ends, each worker has to know before any connects to them.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// To be called when the translator has handled something, before its answer is sent: the map learns of the
    /// flows that came and went.
    pub fn update(&mut self, translator: &mut Translator) {
        if let Some(exceptions) = &mut self.exceptions {
            exceptions.update(&self.rules, self.share.worker, translator);
        }
    }

    /// Flows that this worker has claimed in the map; 0 without one.
    #[must_use]
    pub fn claimed(&self) -> usize {
        self.exceptions.as_ref().map_or(0, Exceptions::claimed)
    }

    /// Flows that found no room in the map; `None`: there is no map.
    #[must_use]
    pub fn refused(&self) -> Option<u64> {
        self.exceptions.as_ref().map(Exceptions::refused)
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
        let token = joined_token(options);
        if token.is_none()
            && let Some(worker) = self.rules.of_back_end(ends)
        {
            return self.named(worker);
        }
        let owner = token.map(|token| self.rules.of_token(token));
        if owner == Some(self.share.worker) && self.claims() {
            return Owner::This;
        }
        let hash = self.rules.hash(Pair::of(ends));
        let directory = self.rules.of_hash(hash);
        if directory != self.share.worker {
            return Owner::Directory(directory);
        }
        self.forget(ends, hash);
        let Some(worker) = owner else {
            return Owner::This;
        };
        self.remember(Joined { ends, hash, worker });
        self.named(worker)
    }

    /// Whether a join that is taken here will be in the program's map: the directory need not know then.
    fn claims(&self) -> bool {
        self.exceptions.as_ref().is_some_and(Exceptions::has_room)
    }

    fn owner_of_flow(&mut self, ends: Ends) -> Owner {
        if let Some(worker) = self.rules.of_back_end(ends) {
            return self.named(worker);
        }
        let hash = self.rules.hash(Pair::of(ends));
        let directory = self.rules.of_hash(hash);
        if directory != self.share.worker {
            return Owner::Directory(directory);
        }
        let owner = self.evict(ends, hash);
        owner.map_or(Owner::This, |worker| self.named(worker))
    }

    fn named(&self, worker: u16) -> Owner {
        if worker == self.share.worker {
            Owner::This
        } else {
            Owner::Worker(worker)
        }
    }

    fn remember(&mut self, joined: Joined) {
        if self.joined[0].len() >= self.capacity {
            // Those that nobody has asked for since the last time are forgotten.
            self.joined.swap(0, 1);
            self.joined[0].clear();
        }
        self.joined[0].insert_unique(joined.hash, joined, |joined| joined.hash);
    }

    fn evict(&mut self, ends: Ends, hash: u64) -> Option<u16> {
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

impl Translator {
    /// Whether a packet, from its IP header on, or the one that an ICMP error quotes, belongs to a connection that
    /// is here. A SYN may begin another one, with another owner: it belongs here only if a steering program has
    /// brought it (see [`watch_flows`](Self::watch_flows)), and without `MP_JOIN`.
    #[must_use]
    pub fn has_flow_of(&self, packet: &[u8]) -> bool {
        let Ok(ip) = IpHeader::parse(packet) else {
            return false;
        };
        let Some(body) = packet.get(ip.header_len..ip.total_len) else {
            return false;
        };
        let ends = match ip.protocol {
            protocol::TCP => self.ends_of_segment(&ip, body),
            protocol::ICMP | protocol::ICMPV6 => IcmpError::parse(&ip, body).map(|error| Ends {
                from: error.dst,
                to: error.src,
            }),
            _ => None,
        };
        ends.is_some_and(|ends| self.table.find(ends).is_some())
    }

    /// `None`: another worker has to be asked whatever flow that is.
    fn ends_of_segment(&self, ip: &IpHeader, segment: &[u8]) -> Option<Ends> {
        let (tcp, options) = TcpHeader::parse(segment).ok()?;
        let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
        if opens && !(self.table.is_watched() && joined_token(options).is_none()) {
            return None;
        }
        Some(Ends {
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
        })
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
