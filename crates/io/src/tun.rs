//! The TUN carrier: whole IP packets, up to 64 KiB of TCP in one piece, with the kernel's
//! virtio-net header that says what is still to be done about checksum and segmentation.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::{Frame, HEADROOM, Payload, Transmit};
use flexcp_wire::{ChecksumState, IpHeader, Offload, VNET_HEADER_LEN, emit_vnet, parse_vnet};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

/// One queue of a TUN device with virtio-net headers, non-blocking.
///
/// The device lives as long as one of its queues.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    index: u32,
    counts: Counts,
}

/// What passed a queue; only the thread that owns the queue adds to it.
#[derive(Default, Debug)]
struct Counts {
    received: AtomicU64,
    failed: AtomicU64,
    malformed: AtomicU64,
    sent: AtomicU64,
}

impl Tun {
    /// Makes the device `name` and opens its first queue. The device is down and has no address;
    /// [`KernelTables::install`](crate::KernelTables::install) takes it up.
    ///
    /// # Errors
    /// Says which step failed and what to do about it; in particular when an interface of that
    /// name exists already.
    pub fn open(name: &str) -> Result<Self, TunError> {
        Self::open_queue(name, libc::IFF_TUN_EXCL)
    }

    /// Opens a further queue of the same device, for another worker.
    ///
    /// # Errors
    /// Says which step failed and what to do about it.
    pub fn another_queue(&self) -> Result<Self, TunError> {
        Self::open_queue(&self.name, 0)
    }

    /// A queue that an earlier process has opened, and that somebody has kept since; `None` when it is not one of the
    /// device `name`, or of another kind than FlexCP's. What waits in it was meant for that process.
    ///
    /// # Errors
    /// Says which step failed.
    pub(crate) fn inherited(fd: OwnedFd, name: &str) -> Result<Option<Self>, TunError> {
        let file = File::from(fd);
        let wanted = InterfaceRequest::new(name)?;
        let mut found = InterfaceRequest::new(name)?;
        // SAFETY: TUNGETIFF writes a `struct ifreq`, which InterfaceRequest is laid out as (its size is asserted below).
        let got = unsafe {
            ioctl(
                &file,
                Updater::<TUNGETIFF, InterfaceRequest>::new(&mut found),
            )
        };
        if got.is_err() || found.name != wanted.name || found.flags & TUN_FLAGS != TUN_FLAGS {
            return Ok(None);
        }
        rustix::io::ioctl_fionbio(&file, true).map_err(|errno| TunError::Attach {
            name: name.to_owned(),
            source: errno.into(),
        })?;
        Self::set_up(file, name).map(Some)
    }

    fn open_queue(name: &str, exclusive: libc::c_int) -> Result<Self, TunError> {
        let mut request = InterfaceRequest::new(name)?;
        request.flags = TUN_FLAGS | flag(exclusive);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(CLONE_DEVICE)
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => TunError::NoDriver,
                io::ErrorKind::PermissionDenied => TunError::DriverClosed { source },
                _ => TunError::OpenDriver { source },
            })?;
        attach(&file, request).map_err(|errno| match errno {
            Errno::BUSY => TunError::NameBusy {
                name: name.to_owned(),
            },
            Errno::PERM | Errno::ACCESS => TunError::NoPermission,
            _ => TunError::Attach {
                name: name.to_owned(),
                source: errno.into(),
            },
        })?;
        Self::set_up(file, name)
    }

    fn set_up(file: File, name: &str) -> Result<Self, TunError> {
        set_header_size(&file).map_err(|errno| TunError::HeaderSize {
            source: errno.into(),
        })?;
        set_offloads(&file).map_err(|errno| TunError::Offloads {
            source: errno.into(),
        })?;
        let index = crate::kernel::interface_index(name).ok_or_else(|| TunError::Vanished {
            name: name.to_owned(),
        })?;
        Ok(Self {
            file,
            name: name.to_owned(),
            index,
            counts: Counts::default(),
        })
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's interface index.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// A queue of something else that keeps packets apart, such as one end of a pair of `SOCK_SEQPACKET` sockets: what
    /// is written at the other end comes in here, virtio-net header first. For tests without a device.
    ///
    /// # Errors
    /// When the descriptor can't be made non-blocking.
    pub fn over(fd: OwnedFd, name: &str) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self {
            file: fd.into(),
            name: name.to_owned(),
            index: 0,
            counts: Counts::default(),
        })
    }

    /// Packets that the device has given, those with a wrong virtio-net header included.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.counts.received.load(Ordering::Relaxed)
    }

    /// Packets that were skipped because their virtio-net header asks for something that was never
    /// agreed on.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.counts.malformed.load(Ordering::Relaxed)
    }

    /// Reads that brought an error instead of a packet, and after which the device was still there.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }

    /// Packets that the device has taken.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }

    /// Reads one packet into `buf`, over what stood there; `None` when none is waiting, or the kernel lacks the memory to
    /// give it now.
    ///
    /// # Errors
    /// That the device was deleted (`EBADFD`, `EIO`), or what reading reports over and over. An error of one packet, as
    /// for one that the driver can't describe (`EINVAL`), is counted.
    pub fn receive<'b>(&self, buf: &'b mut PacketBuffer) -> io::Result<Option<Frame<'b>>> {
        let mut tries = 0;
        let (range, offload) = loop {
            let len = match rustix::io::read(&self.file, &mut buf.0[VNET_START..]) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error @ (Errno::BADFD | Errno::BADF | Errno::IO)) => return Err(error.into()),
                Err(error) => {
                    add_one(&self.counts.failed);
                    tries += 1;
                    match error {
                        Errno::NOMEM | Errno::NOBUFS => return Ok(None),
                        _ if tries < TRIES => continue,
                        _ => return Err(error.into()),
                    }
                }
            };
            add_one(&self.counts.received);
            let parsed = buf.0[VNET_START..VNET_START + len]
                .first_chunk::<VNET_HEADER_LEN>()
                .and_then(|header| parse_vnet(header).ok());
            match parsed {
                Some(offload) => break (HEADROOM..VNET_START + len, offload),
                None => add_one(&self.counts.malformed),
            }
        };
        Ok(Some(Frame::new(&mut buf.0, range, offload)))
    }

    /// Sends the frame as it stands now.
    ///
    /// # Errors
    /// `WouldBlock` when the kernel takes no more now; `InvalidInput` when the frame's offload does
    /// not fit its packet. Anything else is what writing reports, such as that the device is down
    /// (`EIO`).
    pub fn send(&self, frame: &mut Frame<'_>) -> io::Result<()> {
        let header = vnet_header(frame)?;
        let (buf, range) = frame.parts_mut();
        let Some(start) = range.start.checked_sub(VNET_HEADER_LEN) else {
            return self.write_parts(&[IoSlice::new(&header), IoSlice::new(&buf[range])]);
        };
        buf[start..range.start].copy_from_slice(&header);
        self.write(&buf[start..range.end])
    }

    /// Sends a packet that the translator made. `frame_buffer` is the whole buffer of the frame
    /// the translator handled last.
    ///
    /// # Errors
    /// As [`Tun::send`]; `InvalidInput` also when the payload lies outside of `frame_buffer`.
    pub fn send_transmit(&self, transmit: &Transmit, frame_buffer: &[u8]) -> io::Result<()> {
        self.send_parts(
            transmit.header(),
            transmit.ip_header_len(),
            payload_of(transmit, frame_buffer)?,
            &transmit.offload,
        )
    }

    /// Sends a packet whose headers (of which the first `ip_header_len` bytes are IP) and payload
    /// stand in different places.
    ///
    /// # Errors
    /// As [`Tun::send`].
    pub fn send_parts(
        &self,
        headers: &[u8],
        ip_header_len: usize,
        payload: &[u8],
        offload: &Offload,
    ) -> io::Result<()> {
        let header = vnet_header_of(headers, ip_header_len, offload)?;
        self.write_parts(&[
            IoSlice::new(&header),
            IoSlice::new(headers),
            IoSlice::new(payload),
        ])
    }

    /// Writes a packet that [`put`] or [`put_transmit`] has put together.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.file, bytes))?;
        add_one(&self.counts.sent);
        Ok(())
    }

    fn write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.file, parts))?;
        add_one(&self.counts.sent);
        Ok(())
    }
}

/// Adds to a counter that nobody else adds to: cheaper than an atomic addition.
fn add_one(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Room for one packet and the headers that may grow before it. One per worker, used over and over.
#[derive(Debug)]
pub struct PacketBuffer(Box<[u8]>);

impl PacketBuffer {
    /// A buffer for the largest packet there is.
    #[must_use]
    pub fn new() -> Self {
        Self(vec![0; HEADROOM + MAX_PACKET].into_boxed_slice())
    }

    /// The packet that stands at `range`, as [`Tun::receive`] put it there.
    ///
    /// # Panics
    /// When `range` does not lie inside the buffer.
    pub fn frame(&mut self, range: Range<usize>, offload: Offload) -> Frame<'_> {
        Frame::new(&mut self.0, range, offload)
    }

    /// All of the buffer: what [`Tun::send_transmit`] wants when the frame is gone.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for PacketBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Why there is no TUN device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// The name cannot be that of an interface.
    #[error(
        "{name:?} cannot be the name of a TUN device: give 1 to 15 characters without space, \
         '/', ':' and '%'"
    )]
    Name {
        /// What was asked for.
        name: String,
    },
    /// The kernel has no TUN driver, or the container does not show it.
    #[error(
        "{CLONE_DEVICE} is missing: load the driver (modprobe tun), or give the container the \
         device (--device {CLONE_DEVICE})"
    )]
    NoDriver,
    /// The process may not make network devices.
    #[error("no permission to make a TUN device: run as root or with the capability CAP_NET_ADMIN")]
    NoPermission,
    /// The process may not open the driver's file: its mode, or a device cgroup, is in the way. No capability helps.
    #[error(
        "cannot open {CLONE_DEVICE}: {source}; let the user that runs flexcp read and write it (chmod 0666 \
         {CLONE_DEVICE}), and its service or container use it (DeviceAllow={CLONE_DEVICE} rw, --device {CLONE_DEVICE})"
    )]
    DriverClosed {
        /// What the kernel says.
        source: io::Error,
    },
    /// The driver's file does not open.
    #[error("cannot open {CLONE_DEVICE}: {source}")]
    OpenDriver {
        /// What the kernel says.
        source: io::Error,
    },
    /// An interface of that name exists.
    #[error(
        "there is an interface {name} already: if it is another FlexCP's, stop that; otherwise configure another name"
    )]
    NameBusy {
        /// The name.
        name: String,
    },
    /// The device cannot be made, or has no more queues.
    #[error("cannot make a queue of the TUN device {name}: {source}")]
    Attach {
        /// The device.
        name: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel refuses the size of the virtio-net header.
    #[error("the TUN driver refuses a virtio-net header of {VNET_HEADER_LEN} bytes: {source}")]
    HeaderSize {
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel refuses checksum and segmentation offload.
    #[error("the TUN driver refuses checksum and TCP segmentation offload: {source}")]
    Offloads {
        /// What the kernel says.
        source: io::Error,
    },
    /// What the service manager says about the descriptors that it has kept makes no sense.
    #[error("the service manager passes descriptors that can't be taken (LISTEN_FDS): {source}")]
    Kept {
        /// What is wrong.
        source: io::Error,
    },
    /// Somebody deleted or renamed the device at once.
    #[error("the TUN device {name} vanished while it was being made")]
    Vanished {
        /// The device.
        name: String,
    },
}

/// `struct ifreq` as far as `TUNSETIFF` reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    unused: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str) -> Result<Self, TunError> {
        // By '%' the kernel would choose a number itself.
        if !crate::kernel::is_interface_name(name) || name.contains('%') {
            return Err(TunError::Name {
                name: name.to_owned(),
            });
        }
        let mut request = Self {
            name: [0; libc::IFNAMSIZ],
            flags: 0,
            unused: [0; 22],
        };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }
}

fn attach(file: &File, mut request: InterfaceRequest) -> Result<(), Errno> {
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which InterfaceRequest is laid out as
    // (its size is asserted below).
    unsafe {
        ioctl(
            file,
            Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request),
        )
    }
}

fn set_header_size(file: &File) -> Result<(), Errno> {
    let size = libc::c_int::try_from(VNET_HEADER_LEN).expect("a small constant");
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { ioctl(file, Setter::<TUNSETVNETHDRSZ, libc::c_int>::new(size)) }
}

fn set_offloads(file: &File) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes the flags themselves as its argument, no pointer.
    unsafe { ioctl(file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) }
}

/// Puts what [`Tun::send`] would write at the beginning of `room`; gives its length.
pub(crate) fn put(frame: &Frame<'_>, room: &mut [u8]) -> io::Result<usize> {
    join(&[&vnet_header(frame)?, frame.packet()], room)
}

/// Puts what [`Tun::send_transmit`] would write at the beginning of `room`; gives its length.
pub(crate) fn put_transmit(
    transmit: &Transmit,
    frame_buffer: &[u8],
    room: &mut [u8],
) -> io::Result<usize> {
    let (header, payload) = (transmit.header(), payload_of(transmit, frame_buffer)?);
    let vnet = vnet_header_of(header, transmit.ip_header_len(), &transmit.offload)?;
    join(&[&vnet, header, payload], room)
}

fn join(parts: &[&[u8]], room: &mut [u8]) -> io::Result<usize> {
    let mut end = 0;
    for part in parts {
        let place = room.get_mut(end..end + part.len());
        place
            .ok_or_else(|| invalid("no room for the packet"))?
            .copy_from_slice(part);
        end += part.len();
    }
    Ok(end)
}

fn vnet_header(frame: &Frame<'_>) -> io::Result<[u8; VNET_HEADER_LEN]> {
    let offload = frame.offload;
    let (ip_header_len, tcp_header_len) = if needs_lengths(&offload) {
        header_lengths(frame.packet())?
    } else {
        (0, 0)
    };
    let mut header = [0; VNET_HEADER_LEN];
    emit_vnet(&offload, ip_header_len, tcp_header_len, &mut header);
    Ok(header)
}

/// The same where the length of the IP header among `headers` is known.
fn vnet_header_of(
    headers: &[u8],
    ip_header_len: usize,
    offload: &Offload,
) -> io::Result<[u8; VNET_HEADER_LEN]> {
    let tcp_header_len = headers
        .len()
        .checked_sub(ip_header_len)
        .ok_or_else(|| invalid("the IP header is longer than all headers"))?;
    let mut header = [0; VNET_HEADER_LEN];
    emit_vnet(offload, ip_header_len, tcp_header_len, &mut header);
    Ok(header)
}

fn payload_of<'b>(transmit: &'b Transmit, frame_buffer: &'b [u8]) -> io::Result<&'b [u8]> {
    match &transmit.payload {
        Payload::None => Ok(&[]),
        Payload::Frame(range) => frame_buffer
            .get(range.clone())
            .ok_or_else(|| invalid("the payload lies outside of the frame's buffer")),
        Payload::Zeros(len) => ZEROS
            .get(..*len)
            .ok_or_else(|| invalid("more filler than a packet can hold")),
        Payload::Bytes(bytes) => Ok(bytes),
    }
}

fn needs_lengths(offload: &Offload) -> bool {
    offload.gso.is_some() || offload.checksum == ChecksumState::Partial
}

/// Lengths of the IP and the TCP header.
fn header_lengths(packet: &[u8]) -> io::Result<(usize, usize)> {
    let ip = match packet {
        [first, ..] if first >> 4 == 4 => usize::from(first & 0xf) * 4,
        // No extension header, as good as always.
        [first, _, _, _, _, _, 6, ..] if first >> 4 == 6 => 40,
        _ => {
            IpHeader::parse(packet)
                .map_err(|error| invalid(&error.to_string()))?
                .header_len
        }
    };
    let offset = packet
        .get(ip + 12)
        .ok_or_else(|| invalid("offload without a TCP header"))?;
    Ok((ip, usize::from(offset >> 4) * 4))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "IFF_TUN_EXCL is the short's top bit"
)]
const fn flag(flag: libc::c_int) -> libc::c_short {
    flag as libc::c_short
}

const CLONE_DEVICE: &str = "/dev/net/tun";
const TUN_FLAGS: libc::c_short =
    flag(libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE);
// linux/if_tun.h; libc has them in a type of another width.
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
const TUNGETIFF: Opcode = opcode::read::<libc::c_uint>(b'T', 210);
const TUNSETOFFLOAD: Opcode = opcode::write::<libc::c_uint>(b'T', 208);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<libc::c_int>(b'T', 216);
const OFFLOADS: usize =
    (libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN) as usize;
/// Reads that fail one after another before the device is given up.
const TRIES: u32 = 1000;
/// An IPv6 header and the 65535 bytes it can announce, and some more to be sure that a full buffer
/// never is a cut packet.
const MAX_PACKET: usize = 65536 + 128;
/// The packet itself is read right behind the headroom.
const VNET_START: usize = HEADROOM - VNET_HEADER_LEN;
static ZEROS: [u8; MAX_PACKET] = [0; MAX_PACKET];

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_would_refuse_or_change() {
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "a:b",
            "tun%d",
            "sixteen_letters_",
            "a\0b",
        ] {
            assert!(
                matches!(Tun::open(name), Err(TunError::Name { .. })),
                "{name:?}"
            );
        }
        assert!(InterfaceRequest::new("fifteen_letters").is_ok());
    }

    /// A socket whose next read tells of an ICMP error stands for a device that fails once.
    #[test]
    fn error_of_one_read_is_counted_and_the_next_packet_comes() {
        use std::net::UdpSocket;
        let any = "127.0.0.1:0";
        let socket = UdpSocket::bind(any).unwrap();
        let own = socket.local_addr().unwrap();
        let closed = UdpSocket::bind(any).unwrap().local_addr().unwrap();
        socket.connect(closed).unwrap();
        socket.send(&[0]).unwrap();
        let again = UdpSocket::bind(closed).unwrap();
        again.send_to(&[0; VNET_HEADER_LEN + 20], own).unwrap();
        let tun = Tun::over(socket.into(), "t").unwrap();
        let mut buffer = PacketBuffer::new();
        let frame = tun.receive(&mut buffer).unwrap();
        assert_eq!(frame.map(|frame| frame.packet().len()), Some(20));
        assert_eq!((tun.failed(), tun.received()), (1, 1));
    }

    #[test]
    fn error_of_every_read_is_the_end() {
        let directory = File::open("/").unwrap();
        let tun = Tun::over(directory.into(), "t").unwrap();
        let error = tun.receive(&mut PacketBuffer::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        assert_eq!(tun.failed(), u64::from(TRIES));
    }

    #[test]
    fn header_lengths_of_both_families() {
        let mut v4 = [0; 60];
        (v4[0], v4[24 + 12]) = (0x46, 0x80);
        assert_eq!(header_lengths(&v4).unwrap(), (24, 32));
        let mut v6 = [0; 80];
        (v6[0], v6[6], v6[40 + 12]) = (0x60, 6, 0xf0);
        assert_eq!(header_lengths(&v6).unwrap(), (40, 60));
        assert!(header_lengths(&[]).is_err());
        assert!(header_lengths(&[0x45; 30]).is_err());
    }
}
