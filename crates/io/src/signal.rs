//! The signals that end or reload the daemon, as something to read instead of something that
//! interrupts.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A signal that was sent to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// `SIGTERM`: end.
    Terminate,
    /// `SIGINT`: end (Ctrl-C).
    Interrupt,
    /// `SIGHUP`: read the configuration again.
    Hangup,
}

/// `SIGTERM`, `SIGINT` and `SIGHUP`, kept from their usual effect and read from a file descriptor.
///
/// They stay blocked when this is dropped.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in this thread and in every thread it starts from now on: to be called
    /// in `main`, before any other thread.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset makes `set` a valid, empty set before anything reads it, and
        // sigaddset is given numbers of signals that exist.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for (number, _) in NUMBERS {
                libc::sigaddset(set.as_mut_ptr(), number);
            }
            set.assume_init()
        };
        // SAFETY: `set` is a valid set; a null pointer for the old one means that nobody asks.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: `set` is a valid set; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made `fd`, and nothing else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that was sent; `None` when there is none now.
    ///
    /// # Errors
    /// What reading the descriptor reports.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut info)) {
            // The number is the first field, a 32-bit integer.
            Ok(_) => Ok(signal(i32::from_ne_bytes([
                info[0], info[1], info[2], info[3],
            ]))),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a signal, at most so long (`None`: for ever).
    ///
    /// # Errors
    /// What waiting for or reading the descriptor reports.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => self.next(),
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn signal(number: i32) -> Option<Signal> {
    NUMBERS
        .into_iter()
        .find(|&(known, _)| known == number)
        .map(|(_, signal)| signal)
}

const NUMBERS: [(i32, Signal); 3] = [
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGHUP, Signal::Hangup),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_instead_of_having_their_effect() {
        let signals = Signals::block().unwrap();
        assert_eq!(signals.next().unwrap(), None);
        assert_eq!(signals.wait(Some(Duration::from_millis(1))).unwrap(), None);
        for (number, signal) in NUMBERS {
            // SAFETY: raise has no precondition; the signal goes to this thread, which blocks it.
            assert_eq!(unsafe { libc::raise(number) }, 0);
            assert_eq!(signals.wait(None).unwrap(), Some(signal));
        }
        assert_eq!(signals.next().unwrap(), None);
    }
}
