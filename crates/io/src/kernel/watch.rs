//! Hears of changes to the kernel's tables, whoever makes them, and says when to look at everything again.
//!
//! What a message says does not matter: each means that something may have changed, and so does a message that got lost
//! (ENOBUFS). A look compares all that is there with all that should be, so changes of our own call forth one more
//! look, which finds nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::mend::{Mended, mend};
use super::netlink::NetlinkError;
use super::{KernelError, KernelTables};

/// Watches the network namespace that it was opened in. Wait for its descriptor, [`note`](Self::note) what came, and
/// [`look`](Self::look) when it is [`due`](Self::due). Times are of the monotonic clock, in microseconds.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    /// When to look again; `None` before something happens.
    due: Option<u64>,
    looked: Option<u64>,
    /// From the last look to the next at least.
    distance: u64,
    pace: Pace,
}

/// What a look has found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// What was not as it should be.
    pub found: Mended,
    /// Whether that has been put back; otherwise it is too soon.
    pub put_back: bool,
    /// What is wrong now and not changed from here, a line each.
    pub problems: Vec<String>,
}

impl Watch {
    /// Hears of everything from now on; the first look is due at once.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                match socket.add_membership(group) {
                    // The kernel does without that family.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    done => done?,
                }
            }
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(|source| NetlinkError::Socket { source })?,
            due: Some(0),
            looked: None,
            distance: NEAREST,
            pace: Pace::default(),
        })
    }

    /// Takes what the kernel has told so far: if anything, a look is due soon.
    ///
    /// # Errors
    /// When the socket is of no use any more.
    pub fn note(&mut self, now: u64) -> Result<(), NetlinkError> {
        let mut buffer = [0; 4096];
        loop {
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                // Cut off or lost: it has been told that something happened.
                Ok(_) | Err(Errno::NOBUFS) => self.look_at(now + SETTLE),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => {
                    return Err(NetlinkError::Socket {
                        source: error.into(),
                    });
                }
            }
        }
    }

    /// When to look again, if at all.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.due
    }

    /// Compares everything, puts back what is missing, and says what it found. More than ten times a minute nothing is
    /// put back.
    ///
    /// # Errors
    /// [`KernelError::DeviceGone`]: there is nothing to be mended any more.
    pub fn look(&mut self, tables: &mut KernelTables, now: u64) -> Result<Look, KernelError> {
        self.due = None;
        let after = now.saturating_sub(self.looked.unwrap_or(0));
        self.distance = if after > QUIET {
            NEAREST
        } else {
            (2 * self.distance).min(FARTHEST)
        };
        self.looked = Some(now);
        let mut look = Look {
            put_back: self.pace.allows(now),
            ..Look::default()
        };
        look.found = mend(tables, look.put_back, &mut look.problems)?;
        if look.found.is_empty() {
            return Ok(look);
        }
        if look.put_back {
            self.pace.count(now);
        } else {
            look.problems.push(TOO_OFTEN.to_owned());
            self.look_at(self.pace.end());
        }
        // Nothing happens that would call for another try.
        if look.found.failed > 0 {
            self.look_at(now + AGAIN);
        }
        Ok(look)
    }

    fn look_at(&mut self, time: u64) {
        let time = time.max(self.looked.map_or(0, |looked| looked + self.distance));
        self.due = Some(self.due.map_or(time, |due| due.min(time)));
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How often something was put back in the minute that began with the first time.
#[derive(Clone, Copy, Default, Debug)]
struct Pace {
    began: u64,
    times: u32,
}

impl Pace {
    fn allows(self, now: u64) -> bool {
        self.times < TIMES || now >= self.end()
    }

    fn count(&mut self, now: u64) {
        if self.times == 0 || now >= self.end() {
            *self = Self {
                began: now,
                times: 0,
            };
        }
        self.times += 1;
    }

    fn end(self) -> u64 {
        self.began + MINUTE
    }
}

/// As soon as this after something happened: until all is back, packets of FlexCP's connections pass it by, which its
/// clients do not forgive.
const SETTLE: u64 = 500;
/// Between two looks. Each that follows the one before without a pause is twice as far from it: who takes away rules one
/// by one is to come to an end, and a router that learns a thousand routes a second has other things to do.
const NEAREST: u64 = 10_000;
const FARTHEST: u64 = 320_000;
/// A pause.
const QUIET: u64 = 1_000_000;
/// To the next try after one that failed.
const AGAIN: u64 = 1_000_000;
const MINUTE: u64 = 60_000_000;
/// In a minute.
const TIMES: u32 = 10;
const TOO_OFTEN: &str = "FlexCP's routing rules, routes or device were changed more than 10 times within a minute: nothing \
    is put back before the minute is over; find out who does that (ip monitor)";

/// Links, and of both families addresses, routes, rules, and switches such as forwarding.
const GROUPS: [u32; 10] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_TC,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_NETCONF,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_times_a_minute() {
        let mut pace = Pace::default();
        for time in 0..10 {
            assert!(pace.allows(time * 100));
            pace.count(time * 100);
        }
        assert!(!pace.allows(1000));
        assert!(!pace.allows(MINUTE - 1));
        assert!(pace.allows(MINUTE));
        pace.count(MINUTE);
        assert_eq!((pace.end(), pace.times), (2 * MINUTE, 1));
    }

    #[test]
    fn looks_keep_a_distance_and_an_earlier_one_stays() {
        let mut watch = Watch::open().unwrap();
        assert_eq!(watch.due(), Some(0));
        watch.due = None;
        watch.looked = Some(1_000_000);
        watch.look_at(1_000_500);
        assert_eq!(watch.due(), Some(1_000_000 + NEAREST));
        watch.look_at(9_000_000);
        assert_eq!(watch.due(), Some(1_000_000 + NEAREST));
    }
}
