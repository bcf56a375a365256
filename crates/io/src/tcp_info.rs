//! What the kernel says of a TCP connection, and how its sockets take data of SYNs.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `TCPI_OPT_SYN_DATA` of `linux/tcp.h`.
const SYN_DATA: u8 = 32;

/// `TCP_SYN_RECV` and `TCP_CLOSE` of `net/tcp_states.h`.
const SYN_RECV: u8 = 3;
const CLOSE: u8 = 7;

/// Whether the other end took, with its SYN/ACK, the data that went with this connection's SYN (RFC 7413). Over MPTCP the first
/// subflow is asked.
///
/// # Errors
/// The kernel does not say: one before 5.16 of MPTCP, or the socket is none of TCP.
pub fn syn_data_taken(socket: impl AsFd) -> io::Result<bool> {
    Ok(tcp_info(socket)?.tcpi_options & SYN_DATA != 0)
}

/// Whether the client of a socket that was accepted has shown that it is where its SYN says. Before it has, the socket has data of
/// the SYN (RFC 7413). Over MPTCP the first subflow is asked.
///
/// # Errors
/// The client never will: the connection has gone. Or the kernel does not say, as above.
pub fn client_is_proved(socket: impl AsFd) -> io::Result<bool> {
    match tcp_info(socket)?.tcpi_state {
        SYN_RECV => Ok(false),
        CLOSE => Err(io::ErrorKind::NotConnected.into()),
        _ => Ok(true),
    }
}

fn tcp_info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let Ok(mut len) = libc::socklen_t::try_from(size_of::<libc::tcp_info>()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the kernel writes at most `len` bytes into `info`, which has as many, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, for which zeroes do where the kernel has written fewer bytes.
    Ok(unsafe { info.assume_init() })
}

/// Makes a socket, which does not listen yet, take data of SYNs without a cookie (RFC 7413): of so many clients at a time that have
/// not shown yet that they are where they say. The host has to allow it, too (`net.ipv4.tcp_fastopen`).
///
/// # Errors
/// The kernel can't: one before 6.2 of MPTCP.
pub fn take_syn_data(socket: impl AsFd, clients: u16) -> io::Result<()> {
    let socket = socket.as_fd();
    set(socket, libc::TCP_FASTOPEN, clients.into())?;
    set(socket, libc::TCP_FASTOPEN_NO_COOKIE, 1)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let Ok(len) = libc::socklen_t::try_from(size_of::<libc::c_int>()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the kernel reads `len` bytes from `value`, which has as many and outlives the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_TCP,
            option,
            (&raw const value).cast(),
            len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn connection_without_data_in_its_syn_has_none_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!syn_data_taken(&stream).unwrap());
        assert!(syn_data_taken(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
        assert!(client_is_proved(&listener.accept().unwrap().0).unwrap());
    }
}
