//! Sockets of UDP that say when the kernel got each datagram (`SO_TIMESTAMPNS`): whoever reads late still knows how far apart they
//! came.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::time::{ClockId, clock_gettime};

use crate::event::monotonic_micros;

/// A socket of UDP that never blocks. The kernel turns its stamps on a moment after the first socket of the host asks for them; a
/// datagram that came before has the time of its reading.
#[derive(Debug)]
pub struct StampedSocket(UdpSocket);

/// A datagram that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    /// Bytes of the buffer.
    pub length: usize,
    /// Where it has come from.
    pub from: SocketAddr,
    /// When the kernel got it, in microseconds of the monotonic clock; now where the kernel does not say.
    pub at: u64,
}

/// Room for what the kernel says beside a datagram, aligned as it wants it.
#[repr(C, align(8))]
struct Beside([u8; 64]);

/// Bytes that wait for whoever reads late, and to be sent: a train of the longest kind, and more.
const WAITING: libc::c_int = 1 << 20;

impl StampedSocket {
    /// Binds one. An address that the host does not have yet is none to bind to.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(addr)?;
        socket.set_nonblocking(true)?;
        set(socket.as_fd(), libc::SO_TIMESTAMPNS, 1)?;
        // As much as the host allows those who may not administer it.
        for option in [
            libc::SO_RCVBUF,
            libc::SO_RCVBUFFORCE,
            libc::SO_SNDBUF,
            libc::SO_SNDBUFFORCE,
        ] {
            let _ = set(socket.as_fd(), option, WAITING);
        }
        Ok(Self(socket))
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Sends a datagram. One that there is no room for is as if lost on the way.
    ///
    /// # Errors
    /// What the kernel says, an ICMP error about an earlier datagram among it.
    pub fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        match self.0.send_to(datagram, to) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// Takes the next datagram; `None`: there is none now.
    ///
    /// # Errors
    /// What the kernel says, an ICMP error about an earlier datagram among it.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Stamped>> {
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut beside = Beside([0; 64]);
        // SAFETY: all fields are integers and pointers, for which zeroes do.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen =
            libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = beside.0.len() as _;
        // SAFETY: each pointer of `message` leads to as many bytes as it says, which outlive the call.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        };
        // SAFETY: the kernel has written an address of the family that it says; what it has not written are zeroes.
        let name = unsafe { name.assume_init() };
        let from = address(&name).ok_or(io::ErrorKind::InvalidData)?;
        let at = stamp(&message).map_or_else(monotonic_micros, on_monotonic_clock);
        Ok(Some(Stamped { length, from, at }))
    }
}

impl AsFd for StampedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel reads `len` bytes from `value`, which has as many and outlives the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            len,
        )
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let storage: *const libc::sockaddr_storage = name;
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: `sockaddr_storage` is as large as any address and aligned for it, and the family says which it is.
            let v4 = unsafe { &*storage.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// The kernel's time stamp, on the clock of the day.
fn stamp(message: &libc::msghdr) -> Option<libc::timespec> {
    // SAFETY: the kernel has written whole headers into the room that `message` names, which is there still.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: `header` is one that the kernel has written, within that room.
        let what = unsafe { &*header };
        if (what.cmsg_level, what.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: behind a header of this kind stands a `timespec`, which need not be aligned.
            let at = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::timespec>()
                    .read_unaligned()
            };
            return Some(at);
        }
        // SAFETY: as of the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

/// The same moment on the monotonic clock. A clock that was set meanwhile makes it now.
fn on_monotonic_clock(at: libc::timespec) -> u64 {
    let now = monotonic_micros();
    let today = clock_gettime(ClockId::Realtime);
    let micros =
        |secs: i64, nanos: i64| secs.saturating_mul(1_000_000).saturating_add(nanos / 1000);
    let passed = micros(today.tv_sec, today.tv_nsec) - micros(at.tv_sec, at.tv_nsec);
    now.saturating_sub(u64::try_from(passed).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn datagrams_have_the_time_at_which_they_came_and_not_that_of_reading() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let own: SocketAddr = own.parse().unwrap();
            let [one, other] = [own, own].map(|own| StampedSocket::bind(own).unwrap());
            let to = other.local_addr().unwrap();
            let mut buffer = [0; 100];
            assert_eq!(other.receive(&mut buffer).unwrap(), None);
            wait_for_stamps(&one, &other);
            one.send(b"first", to).unwrap();
            let sent = monotonic_micros();
            thread::sleep(Duration::from_millis(30));
            one.send(b"second", to).unwrap();
            thread::sleep(Duration::from_millis(30));
            let [first, second] = [5, 6].map(|length| {
                let got = other.receive(&mut buffer).unwrap().unwrap();
                assert_eq!((got.length, got.from), (length, one.local_addr().unwrap()));
                got.at
            });
            assert!(first.abs_diff(sent) < 20_000, "{first} {sent}");
            assert!(second - first >= 29_000, "{first} {second}");
            assert!(monotonic_micros() - second >= 29_000, "{second}");
        }
    }

    /// Sends datagrams until the kernel stamps them as they come: it turns its stamps on in the background.
    fn wait_for_stamps(one: &StampedSocket, other: &StampedSocket) {
        for _ in 0..200 {
            one.send(b"stamped?", other.local_addr().unwrap()).unwrap();
            thread::sleep(Duration::from_millis(10));
            let read = monotonic_micros();
            let got = other.receive(&mut [0; 100]).unwrap().unwrap();
            if got.at + 5_000 < read {
                return;
            }
        }
        panic!("the kernel stamps no datagram");
    }
}
