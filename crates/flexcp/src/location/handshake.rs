//! TCP handshakes whose time is taken: they show how far a server is that nobody answers probes for.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use flexcp_location::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, socket_error};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Handshakes under way, each with whom it is for.
#[derive(Debug)]
pub(super) struct Handshakes<T>(Vec<Handshake<T>>);

#[derive(Debug)]
struct Handshake<T> {
    of: T,
    fd: OwnedFd,
    begun: Time,
}

impl<T: Copy + PartialEq> Handshakes<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Begins one from an address of this host, or from whichever the kernel takes. Another one of `of` is given up.
    ///
    /// # Errors
    /// What the kernel says when it can't even begin.
    pub(super) fn begin(
        &mut self,
        of: T,
        (from, to): (Option<IpAddr>, SocketAddr),
        now: Time,
    ) -> Result<(), Errno> {
        self.0.retain(|known| known.of != of);
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        // It ends with a RST: nothing stays behind here or there.
        set_socket_linger(&fd, Some(Duration::ZERO))?;
        if let Some(from) = from {
            bind(&fd, &SocketAddr::new(from, 0))?;
        }
        match connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        self.0.push(Handshake { of, fd, begun: now });
        Ok(())
    }

    /// Gives up those of which this is so.
    pub(super) fn give_up(&mut self, is_so: impl Fn(&T) -> bool) {
        self.0.retain(|known| !is_so(&known.of));
    }

    /// Those that are over: how long each took, or that it had no answer.
    pub(super) fn over(&mut self, now: Time) -> Vec<(T, Option<Duration>)> {
        let mut over = Vec::new();
        self.0.retain(|known| {
            let outcome = match known.outcome() {
                Some(true) => Some(now.since(known.begun)),
                Some(false) => None,
                None if now.since(known.begun) >= PATIENCE => None,
                None => return true,
            };
            over.push((known.of, outcome));
            false
        });
        over
    }

    /// What to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|known| known.fd.as_fd())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T> Handshake<T> {
    /// Whether the other end has answered; `None`: not yet. A RST is an answer of its host, but not of a server.
    fn outcome(&self) -> Option<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let ready = poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        );
        if ready.is_err() || fds[0].revents().is_empty() {
            return None;
        }
        Some(matches!(socket_error(&self.fd), Ok(Ok(()))))
    }
}

/// How long one may take; the locator waits somewhat longer.
const PATIENCE: Duration = Duration::from_secs(9);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::location::now;

    fn until_over(all: &mut Handshakes<u8>) -> Vec<(u8, Option<Duration>)> {
        for _ in 0..500 {
            let over = all.over(now());
            if !over.is_empty() {
                return over;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing comes of it");
    }

    #[test]
    fn handshake_with_a_listener_has_a_time_and_one_with_nobody_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut all = Handshakes::new();
        let from = Some(IpAddr::from([127, 0, 0, 9]));
        all.begin(1, (from, to), now()).unwrap();
        let [(1, Some(took))] = until_over(&mut all)[..] else {
            panic!("no answer");
        };
        assert!(took < Duration::from_secs(5), "{took:?}");
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(Some(peer.ip()), from);
        drop(listener);
        all.begin(2, (None, to), now()).unwrap();
        assert_eq!(until_over(&mut all), [(2, None)]);
        assert_eq!(all.len(), 0);
        let not_ours = Some(IpAddr::from([192, 0, 2, 77]));
        assert!(all.begin(3, (not_ours, to), now()).is_err());
    }
}
