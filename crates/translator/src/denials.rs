//! Clients that are not connected although they have named a server, or have something else to say first: the latest of them,
//! for whoever writes a log.
//!
//! A flood of them costs no memory and nothing on the path: there is room for a few, and the rest is counted.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use flexcp_preamble::Wish;

use crate::cause::PreambleRefused;

/// How many wait to be asked for.
const KEPT: usize = 16;

/// A client that is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    /// The client. Before its third packet it is whoever a SYN says it is.
    pub client: SocketAddr,
    /// The address of FlexCP's that it came to.
    pub by: SocketAddr,
    /// The server that it wants, if it has said so.
    pub wish: Option<Wish>,
    /// Why it does not get it.
    pub cause: PreambleRefused,
}

/// What nobody has asked for yet.
#[derive(Debug)]
pub(crate) struct Denials {
    kept: VecDeque<Denial>,
    lost: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            kept: VecDeque::with_capacity(KEPT),
            lost: 0,
        }
    }
}

impl Denials {
    /// Keeps it, if there is room.
    pub(crate) fn note(&mut self, denial: Denial) {
        if self.kept.len() < KEPT {
            self.kept.push_back(denial);
        } else {
            self.lost += 1;
        }
    }

    /// The next, the first before the others.
    pub(crate) fn take(&mut self) -> Option<Denial> {
        self.kept.pop_front()
    }

    /// How many found no room since this was asked last.
    pub(crate) const fn take_lost(&mut self) -> u64 {
        core::mem::replace(&mut self.lost, 0)
    }
}
