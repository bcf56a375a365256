//! What a worker waits for, and the clock and randomness it hands to the translator.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Ends a worker's [`wait`] from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that has not been used yet.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Ends the wait in course or, when there is none, the next one. Any number of calls before
    /// that wait count as one.
    pub fn wake(&self) {
        // Fails only with EAGAIN, when the counter is full: then the wait ends all the same.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why a [`wait`] ended; neither: the time is up, or a signal came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// The carrier has packets, or an error to tell.
    pub packets: bool,
    /// The waker was used; it is ready for the next time.
    pub woken: bool,
}

/// Waits for packets on `carrier` and for `waker`, at most so long (`None`: for ever).
///
/// # Errors
/// What `poll` reports; an interruption by a signal is none, and a lack of memory ends the wait early.
pub fn wait(carrier: impl AsFd, waker: &Waker, timeout: Option<Duration>) -> io::Result<Ready> {
    let mut fds = [
        PollFd::from_borrowed_fd(waker.as_fd(), PollFlags::IN),
        PollFd::new(&carrier, PollFlags::IN),
    ];
    polled(&mut fds, waker, timeout)
}

/// Waits as [`wait`] does, for any number of carriers: [`Ready::packets`] says that one of them has something.
///
/// # Errors
/// Those of [`wait`].
pub fn wait_for_any(
    carriers: &[BorrowedFd<'_>],
    waker: &Waker,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let all = [waker.as_fd()].into_iter().chain(carriers.iter().copied());
    let mut fds: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    polled(&mut fds, waker, timeout)
}

/// The same; and for any of `opening`, sockets that connect, until they have or can't.
///
/// # Errors
/// Those of [`wait`].
pub fn wait_for_openings(
    carriers: &[BorrowedFd<'_>],
    opening: &[BorrowedFd<'_>],
    waker: &Waker,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let all = [waker.as_fd()].into_iter().chain(carriers.iter().copied());
    let readable = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let writable = opening.iter();
    let writable = writable.map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::OUT));
    let mut fds: Vec<_> = readable.chain(writable).collect();
    polled(&mut fds, waker, timeout)
}

/// The waker's descriptor is the first of `fds`.
fn polled(fds: &mut [PollFd<'_>], waker: &Waker, timeout: Option<Duration>) -> io::Result<Ready> {
    // A timeout that the kernel's clock cannot hold is one for ever.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR | Errno::NOMEM | Errno::AGAIN) => return Ok(Ready::default()),
        Err(error) => return Err(error.into()),
    }
    let mut has_something = fds.iter().map(|fd| !fd.revents().is_empty());
    let ready = Ready {
        woken: has_something.next().unwrap_or_default(),
        packets: has_something.any(|has| has),
    };
    if ready.woken {
        waker.clear();
    }
    Ok(ready)
}

/// Microseconds of the monotonic clock, which starts somewhere around boot.
#[must_use]
pub fn monotonic_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let unsigned = |value: i64| u64::try_from(value).expect("the monotonic clock is not negative");
    unsigned(now.tv_sec) * 1_000_000 + unsigned(now.tv_nsec) / 1_000
}

/// Bytes of the kernel's CSPRNG.
///
/// # Errors
/// When the kernel is older than `getrandom` or a sandbox forbids it.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_when_woken_before_it() {
        let (carrier, waker) = (Waker::new().unwrap(), Waker::new().unwrap());
        waker.wake();
        waker.wake();
        let ready = wait(&carrier, &waker, None).unwrap();
        assert_eq!(
            ready,
            Ready {
                packets: false,
                woken: true
            }
        );
        // The second call to `wake` was for the same wait.
        assert_eq!(
            wait(&carrier, &waker, Some(Duration::ZERO)).unwrap(),
            Ready::default()
        );
    }

    #[test]
    fn wait_ends_when_packets_are_there() {
        let (carrier, waker) = (Waker::new().unwrap(), Waker::new().unwrap());
        carrier.wake();
        let ready = wait(&carrier, &waker, Some(Duration::MAX)).unwrap();
        assert_eq!(
            ready,
            Ready {
                packets: true,
                woken: false
            }
        );
    }

    #[test]
    fn clock_does_not_go_back() {
        let first = monotonic_micros();
        assert!(monotonic_micros() >= first);
    }

    #[test]
    fn random_bytes_differ_from_call_to_call() {
        assert_ne!(random_bytes::<32>().unwrap(), random_bytes::<32>().unwrap());
        assert_eq!(random_bytes::<0>().unwrap(), [0_u8; 0]);
    }
}
