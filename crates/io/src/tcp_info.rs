//! What the kernel says of a TCP connection.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// `TCPI_OPT_SYN_DATA` of `linux/tcp.h`.
const SYN_DATA: u8 = 32;

/// Whether the other end took, with its SYN/ACK, the data that went with this connection's SYN (RFC 7413). Over MPTCP the first
/// subflow is asked.
///
/// # Errors
/// The kernel does not say: one before 5.16 of MPTCP, or the socket is none of TCP.
pub fn syn_data_taken(socket: impl AsFd) -> io::Result<bool> {
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
    let info = unsafe { info.assume_init() };
    Ok(info.tcpi_options & SYN_DATA != 0)
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
    }
}
