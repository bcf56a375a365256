//! Raw frames of an interface (`AF_PACKET`), with the kernel's virtio-net header: what is still to be
//! done about checksum and segmentation is said, not lost.
//!
//! This is what the lab's link emulator stands on; the proxy itself has its TUN.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// A socket that receives every frame that comes in on one interface, and sends on it.
/// Non-blocking; frames that this machine sends are not seen.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// A frame as it came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedFrame<'a> {
    /// From the Ethernet header on.
    pub bytes: &'a [u8],
    /// The transport checksum is still to be completed: where in `bytes` the sum starts, and where
    /// behind that start it has to stand.
    pub checksum: Option<(usize, usize)>,
    /// The frame has several segments: bytes of payload for each of them.
    pub segment_size: Option<u16>,
}

impl PacketSocket {
    /// Opens one on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, the caller lacks `CAP_NET_RAW`, or what the socket calls report.
    pub fn open(interface: &str) -> io::Result<Self> {
        Self::open_for(interface, libc::ETH_P_ALL)
    }

    /// The same for one that sends alone: it receives nothing.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_to_send(interface: &str) -> io::Result<Self> {
        Self::open_for(interface, 0)
    }

    fn open_for(interface: &str, protocol: libc::c_int) -> io::Result<Self> {
        let index = crate::kernel::interface_index(interface).ok_or_else(|| {
            let message = format!("there is no interface {interface}");
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Without a protocol it receives nothing before it is bound.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)?;
        // What waits in a queue of the interface counts: with less than that queue holds, frames would be refused before it is
        // full.
        sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES)?;
        set_option(&socket, libc::PACKET_VNET_HDR)?;
        set_option(&socket, libc::PACKET_IGNORE_OUTGOING)?;
        bind(&socket, index, protocol)?;
        Ok(Self(socket))
    }

    /// The next frame, in `buf` (of [`FRAME_BUFFER`](Self::FRAME_BUFFER) bytes); `None` when none is
    /// waiting.
    ///
    /// # Errors
    /// What reading reports, such as that the interface went down (once; `ENETDOWN`).
    pub fn receive<'b>(&self, buf: &'b mut [u8]) -> io::Result<Option<ReceivedFrame<'b>>> {
        let len = loop {
            match rustix::io::read(&self.0, &mut *buf) {
                Ok(len) => break len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        // struct virtio_net_hdr, in host byte order: flags, gso_type, hdr_len, gso_size,
        // csum_start, csum_offset.
        let (header, bytes) = buf[..len].split_at(VNET_LEN.min(len));
        let [flags, gso, _, _, g0, g1, s0, s1, o0, o1] = *header else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let place = || {
            let place = [[s0, s1], [o0, o1]].map(u16::from_ne_bytes);
            (usize::from(place[0]), usize::from(place[1]))
        };
        Ok(Some(ReceivedFrame {
            bytes,
            checksum: (flags & NEEDS_CHECKSUM != 0).then(place),
            segment_size: (gso != 0).then(|| u16::from_ne_bytes([g0, g1])),
        }))
    }

    /// Sends a frame, given in two parts, as it is: checksums complete, one segment.
    ///
    /// # Errors
    /// What writing reports: `ENOBUFS` when the interface's queue is full, `WouldBlock` when the kernel takes no more now,
    /// `EMSGSIZE` when the frame is longer than the interface allows, `ENETDOWN`.
    pub fn send(&self, header: &[u8], packet: &[u8]) -> io::Result<()> {
        let parts = [&[0; VNET_LEN], header, packet].map(IoSlice::new);
        loop {
            match rustix::io::writev(&self.0, &parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes of buffer that hold every frame: headers, then 64 KiB of packet.
    pub const FRAME_BUFFER: usize = VNET_LEN + 14 + 65_536;
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Switches an option of level `SOL_PACKET` on.
fn set_option(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads `size_of_val(&on)` bytes at `&on`, which lives through the call, and
    // writes nothing. rustix has no options of this level.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            length_of::<libc::c_int>(),
        )
    };
    check(result)
}

/// Binds to an interface, for a protocol or all; 0: none comes in.
fn bind(socket: &OwnedFd, index: u32, protocol: libc::c_int) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
        sll_protocol: u16::try_from(protocol).unwrap_or_default().to_be(),
        sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads `size_of_val(&address)` bytes at `&address`, a sockaddr_ll that lives
    // through the call. rustix has no address type for this family.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length_of::<libc::sockaddr_ll>(),
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default()
}

const VNET_LEN: usize = flexcp_wire::VNET_HEADER_LEN;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`
const NEEDS_CHECKSUM: u8 = 1;

/// Some hundred packets of 64 KiB: what a fast sender has under way.
const BUFFER_BYTES: usize = 32 << 20;
