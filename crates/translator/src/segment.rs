//! One TCP segment as the translator sees it, and the headers it writes.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use flexcp_wire::{
    AddAddr, ChecksumState, Dss, Ends, Gso, GsoKind, IpHeader, MAX_HEADERS_LEN, MpCapable,
    MpFastClose, MpJoin, MptcpOption, Offload, OptionWriter, ParseError, RemoveAddr, SackBlocks,
    Sum, TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOption, TcpOptions, Timestamps, update_checksum,
};

use crate::counters::DropReason;
use crate::frame::{Frame, Payload, Transmit};

/// IP protocol number of TCP.
const TCP: u8 = 6;
/// What the length field of an IP header can say.
const MAX_IP_LEN: usize = 0xffff;
/// TTL of packets that FlexCP makes.
const OWN_TTL: u8 = 64;

/// A parsed segment. The payload is named by its place in the frame's buffer.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) ip: IpHeader,
    pub(crate) tcp: TcpHeader,
    pub(crate) options: Options,
    pub(crate) payload: Range<usize>,
    /// Where the TCP header stands in the frame's buffer.
    tcp_start: usize,
}

/// The options FlexCP cares about.
#[derive(Clone, Default, Debug)]
pub(crate) struct Options {
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) sack: SackBlocks,
    /// A TCP Fast Open option, with a cookie or asking for one (RFC 7413).
    pub(crate) fast_open: bool,
    pub(crate) capable: Option<MpCapable>,
    pub(crate) join: Option<MpJoin>,
    pub(crate) dss: Option<Dss>,
    pub(crate) add_addr: Option<AddAddr>,
    pub(crate) remove_addr: Option<RemoveAddr>,
    /// `MP_PRIO`: the backup bit.
    pub(crate) prio: Option<bool>,
    pub(crate) fail: bool,
    pub(crate) fast_close: Option<u64>,
    /// Some MPTCP option is there, even one that can't be read.
    pub(crate) mptcp: bool,
}

impl Segment {
    /// # Errors
    /// Why the packet is dropped.
    pub(crate) fn parse(frame: &Frame<'_>) -> Result<Self, DropReason> {
        let packet = frame.packet();
        let ip = IpHeader::parse(packet).map_err(|error| match error {
            ParseError::Fragment => DropReason::Fragment,
            _ => DropReason::Malformed,
        })?;
        if ip.protocol != TCP {
            return Err(DropReason::NotTcp);
        }
        let start = frame.range().start;
        let segment = packet
            .get(ip.header_len..ip.total_len)
            .ok_or(DropReason::Malformed)?;
        let (tcp, option_bytes) = TcpHeader::parse(segment).map_err(|_| DropReason::Malformed)?;
        let options = Options::parse(option_bytes)?;
        if (ip.src, tcp.src_port) == (ip.dst, tcp.dst_port) {
            return Err(DropReason::Spoofed);
        }
        let tcp_start = start + ip.header_len;
        let payload = tcp_start + tcp.header_len..start + ip.total_len;
        Ok(Self {
            ip,
            tcp,
            options,
            payload,
            tcp_start,
        })
    }

    /// The same without the first bytes of its payload.
    pub(crate) fn without_front(&self, bytes: usize) -> Self {
        let bytes = bytes.min(self.payload.len());
        let seq = u32::try_from(bytes).unwrap_or(0);
        Self {
            tcp: TcpHeader {
                seq: self.tcp.seq.wrapping_add(seq),
                ..self.tcp
            },
            payload: self.payload.start + bytes..self.payload.end,
            options: self.options.clone(),
            ..*self
        }
    }

    /// Both ends, as it goes.
    pub(crate) const fn ends(&self) -> Ends {
        Ends {
            from: self.source(),
            to: self.destination(),
        }
    }

    /// Sender.
    pub(crate) const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    /// Receiver.
    pub(crate) const fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }

    /// Payload bytes.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "an IP packet is at most 64 KiB long"
    )]
    pub(crate) const fn payload_len(&self) -> u32 {
        (self.payload.end - self.payload.start) as u32
    }

    /// Bytes of sequence space that it takes.
    pub(crate) fn sequence_len(&self) -> u32 {
        self.payload_len() + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    pub(crate) fn has(&self, flag: TcpFlags) -> bool {
        self.tcp.flags.contains(flag)
    }

    /// A SYN that opens a connection, and nothing beside.
    pub(crate) fn is_syn(&self) -> bool {
        let not_opening = TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        self.has(TcpFlags::SYN) && !self.tcp.flags.intersects(not_opening)
    }

    /// The option bytes as they came.
    pub(crate) fn option_bytes<'f>(&self, frame: &'f Frame<'_>) -> &'f [u8] {
        frame.buffer(self.tcp_start + TCP_HEADER_LEN..self.payload.start)
    }

    /// The packet's headers, checksum field as zero, as they enter the TCP checksum.
    fn header_sum(&self, frame: &Frame<'_>) -> Sum {
        let tcp_len = self.payload.end - self.tcp_start;
        let header = frame.buffer(self.tcp_start..self.payload.start);
        self.ip
            .pseudo_header_sum(tcp_len)
            .add(Sum::of(header))
            .sub(Sum::default().add_u16(self.tcp.checksum))
    }

    /// Whether a checksum that nobody has checked yet is right.
    pub(crate) fn checksum_is_right(&self, frame: &Frame<'_>) -> bool {
        if frame.offload.checksum != ChecksumState::Complete {
            return true;
        }
        let payload = Sum::of(frame.buffer(self.payload.clone()));
        self.header_sum(frame).add(payload).checksum() == self.tcp.checksum
            || self
                .header_sum(frame)
                .add(payload)
                .add_u16(self.tcp.checksum)
                .fold()
                == 0xffff
    }
}

impl Options {
    fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let mut options = Self::default();
        for option in TcpOptions::new(bytes) {
            match option {
                Ok(option) => options.take(option),
                // An MPTCP option that can't be read counts as none; the others behind it stand.
                Err(ParseError::MptcpLength { .. }) => options.mptcp = true,
                Err(_) => return Err(DropReason::MalformedOptions),
            }
        }
        Ok(options)
    }

    fn take(&mut self, option: TcpOption<'_>) {
        match option {
            TcpOption::Mss(mss) => self.mss = Some(mss),
            TcpOption::WindowScale(shift) => self.window_scale = Some(shift.min(14)),
            TcpOption::SackPermitted => self.sack_permitted = true,
            TcpOption::Sack(blocks) => self.sack = blocks,
            TcpOption::Timestamps(timestamps) => self.timestamps = Some(timestamps),
            TcpOption::FastOpen(_) => self.fast_open = true,
            TcpOption::Mptcp(option) => self.take_mptcp(option),
            TcpOption::Unknown { .. } => {}
        }
    }

    fn take_mptcp(&mut self, option: MptcpOption) {
        self.mptcp = true;
        match option {
            MptcpOption::Capable(capable) => self.capable = Some(capable),
            MptcpOption::Join(join) => self.join = Some(join),
            MptcpOption::Dss(dss) => self.dss = Some(dss),
            MptcpOption::AddAddr(add_addr) => self.add_addr = Some(add_addr),
            MptcpOption::RemoveAddr(remove_addr) => self.remove_addr = Some(remove_addr),
            MptcpOption::Prio(prio) => self.prio = Some(prio.backup),
            MptcpOption::Fail(_) => self.fail = true,
            MptcpOption::FastClose(MpFastClose { key }) => self.fast_close = Some(key),
            MptcpOption::Reset(_) | MptcpOption::Experimental(_) | MptcpOption::Unknown(_) => {}
        }
    }
}

/// A segment to be written: the header fields of the leg it goes out on.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) ends: Ends,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// Leave the ECN bits of the IP header as they came; otherwise the packet is not ECN-capable.
    pub(crate) keep_ecn: bool,
    /// IPv6 flow label, the same for all packets of a flow, or routers and cores that tell flows apart by
    /// it let them overtake each other (RFC 6437 section 2).
    pub(crate) flow_label: u32,
    pub(crate) options: OptionWriter,
}

/// Headers as bytes.
struct Header {
    bytes: [u8; MAX_HEADERS_LEN],
    len: usize,
    ip_len: usize,
}

impl Outgoing {
    /// Puts the headers before `payload`, the segment's or a part of it, in place.
    ///
    /// `limit`: the largest payload that one packet may carry on this leg; a longer one is marked for
    /// segmentation.
    pub(crate) fn forward(
        mut self,
        frame: &mut Frame<'_>,
        segment: &Segment,
        payload: Range<usize>,
        limit: u16,
    ) -> Result<(), DropReason> {
        let v6 = self.ends.to.is_ipv6();
        let ip_len = if v6 { 0 } else { 20 };
        if ip_len + TCP_HEADER_LEN + self.options.finish().len() + payload.len() > MAX_IP_LEN {
            return Err(DropReason::NoHeadroom);
        }
        let gso = segmentation(frame.offload, payload.len(), limit, v6);
        let mut checksum = frame.offload.checksum;
        let changed = gso.is_some() || payload != segment.payload;
        if checksum == ChecksumState::Complete && changed {
            if !segment.checksum_is_right(frame) {
                return Err(DropReason::Checksum);
            }
            checksum = ChecksumState::Verified;
        }
        let header = if checksum == ChecksumState::Complete {
            // Nobody has checked it, so a wrong one has to stay wrong (RFC 1624).
            let mut header = self.write(&segment.ip, payload.len(), 0);
            let ip = self.ip_header(&segment.ip);
            let tcp = &header.bytes[header.ip_len..header.len];
            let new = ip
                .pseudo_header_sum(tcp.len() + payload.len())
                .add(Sum::of(tcp));
            let updated = update_checksum(segment.tcp.checksum, segment.header_sum(frame), new);
            let at = header.ip_len + 16;
            header.bytes[at..at + 2].copy_from_slice(&updated.to_be_bytes());
            header
        } else {
            self.write_partial(&segment.ip, payload.len())
        };
        if !frame.replace_header(&header.bytes[..header.len], payload) {
            return Err(DropReason::NoHeadroom);
        }
        let checksum = match checksum {
            ChecksumState::Complete => ChecksumState::Complete,
            ChecksumState::Verified | ChecksumState::Partial => ChecksumState::Partial,
        };
        frame.offload = Offload { checksum, gso };
        Ok(())
    }

    /// A packet with part of the payload in hand. The caller has made sure that the checksum it came
    /// with was right.
    pub(crate) fn piece(
        self,
        frame: &Frame<'_>,
        like: &IpHeader,
        payload: Range<usize>,
        limit: u16,
    ) -> Transmit {
        let v6 = self.ends.to.is_ipv6();
        let gso = segmentation(frame.offload, payload.len(), limit, v6);
        let payload = if payload.is_empty() {
            Payload::None
        } else {
            Payload::Frame(payload)
        };
        self.made(like, payload, gso)
    }

    /// A packet of FlexCP's own, without payload.
    pub(crate) fn own(self) -> Transmit {
        let like = self.own_ip_header();
        self.made(&like, Payload::None, None)
    }

    /// A packet of FlexCP's own with `len` zero bytes, at most `limit` in each segment.
    pub(crate) fn filler(self, len: usize, limit: u16) -> Transmit {
        let like = self.own_ip_header();
        let gso = segmentation(Offload::default(), len, limit, self.ends.to.is_ipv6());
        self.made(&like, Payload::Zeros(len), gso)
    }

    /// A packet of FlexCP's own with data of one segment.
    pub(crate) fn with_payload(self, payload: Box<[u8]>) -> Transmit {
        let like = self.own_ip_header();
        self.made(&like, Payload::Bytes(payload), None)
    }

    fn made(mut self, like: &IpHeader, payload: Payload, gso: Option<Gso>) -> Transmit {
        let header = self.write_partial(like, payload.len());
        let offload = Offload {
            checksum: ChecksumState::Partial,
            gso,
        };
        Transmit::new(header.bytes, header.len, header.ip_len, payload, offload)
    }

    fn own_ip_header(&self) -> IpHeader {
        IpHeader {
            src: self.ends.from.ip(),
            dst: self.ends.to.ip(),
            protocol: TCP,
            header_len: 0,
            total_len: 0,
            traffic_class: 0,
            ttl: OWN_TTL,
            identification: 0,
            dont_fragment: true,
            flow_label: 0,
        }
    }

    fn ip_header(&self, like: &IpHeader) -> IpHeader {
        let (src, dst) = (self.ends.from.ip(), self.ends.to.ip());
        let same_family = like.is_v6() == matches!(dst, IpAddr::V6(_));
        IpHeader {
            src,
            dst,
            // What only one family has is not carried over into the other.
            identification: if same_family { like.identification } else { 0 },
            dont_fragment: if same_family {
                like.dont_fragment
            } else {
                true
            },
            flow_label: self.flow_label,
            traffic_class: if self.keep_ecn {
                like.traffic_class
            } else {
                like.traffic_class & !3
            },
            protocol: TCP,
            ..*like
        }
    }

    /// Headers whose TCP checksum is the pseudo-header's sum: the carrier completes it.
    fn write_partial(&mut self, like: &IpHeader, payload_len: usize) -> Header {
        let options_len = self.options.finish().len();
        let tcp_len = TCP_HEADER_LEN + options_len + payload_len;
        let sum = self.ip_header(like).pseudo_header_sum(tcp_len).fold();
        self.write(like, payload_len, sum)
    }

    fn write(&mut self, like: &IpHeader, payload_len: usize, checksum: u16) -> Header {
        let ip = self.ip_header(like);
        let options = self.options.finish();
        let mut bytes = [0; MAX_HEADERS_LEN];
        let ip_len = ip.emit(TCP_HEADER_LEN + options.len() + payload_len, &mut bytes);
        let tcp = TcpHeader {
            src_port: self.ends.from.port(),
            dst_port: self.ends.to.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            checksum,
            urgent: self.urgent,
            header_len: TCP_HEADER_LEN + options.len(),
        };
        tcp.emit(options.len(), &mut bytes[ip_len..]);
        let options_start = ip_len + TCP_HEADER_LEN;
        let len = options_start + options.len();
        bytes[options_start..len].copy_from_slice(options);
        Header { bytes, len, ip_len }
    }
}

/// Segmentation for `payload_len` bytes of which one packet may carry `limit`.
fn segmentation(offload: Offload, payload_len: usize, limit: u16, v6: bool) -> Option<Gso> {
    let size = offload.gso.map_or(limit, |gso| gso.size.min(limit)).max(1);
    let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    let ecn = offload.gso.is_some_and(|gso| gso.ecn);
    (payload_len > usize::from(size)).then_some(Gso { kind, size, ecn })
}
