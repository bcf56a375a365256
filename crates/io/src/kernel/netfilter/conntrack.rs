//! What conntrack does to single connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use flexcp_wire::Ends;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};

use super::message::{Message, attribute, attributes, has_attribute};
use super::{Kernel, NetfilterError};

/// A socket for questions about connections, for one thread. A question takes a few microseconds.
///
/// Conntrack knows a connection by two tuples of addresses and ports: that of its initiator's packets and that of the
/// replies, each as they arrive at this host, before any translation. Without NAT one is the mirror of the other. With
/// NAT, packets are found by these ends where FlexCP meets them, which is before routing: after `dnat`, and after `snat`
/// has been undone.
///
/// | packets | of the initiator | replies |
/// |---|---|---|
/// | `snat`, `masquerade` | their own | the mirror of their own |
/// | `dnat`, `redirect` | the mirror of their own | their own |
/// | both | none | none |
#[derive(Debug)]
pub struct Conntrack {
    kernel: Kernel,
    /// The question, kept to be used again.
    bytes: Vec<u8>,
}

/// A connection as conntrack knows it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    translated: bool,
    /// Whether netfilter also looks into its payload, or has changed the numbers of TCP.
    followed: bool,
}

impl Conntrack {
    /// Asks about the network namespace of the calling thread, also later and from other threads.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open() -> Result<Self, NetfilterError> {
        let open = || {
            let kernel = Kernel::open(NETLINK_NETFILTER)?;
            let timeout = Some(PATIENCE);
            set_socket_timeout(&kernel.socket, Timeout::Recv, timeout).map_err(|error| {
                super::NetlinkError::Socket {
                    source: error.into(),
                }
            })?;
            Ok(kernel)
        };
        Ok(Self {
            kernel: open().map_err(|source| NetfilterError::Refused {
                action: "ask about tracked connections",
                source,
            })?,
            bytes: Vec::new(),
        })
    }

    /// Whether netfilter has to see the packets with these ends in this zone, in either direction, and as FlexCP meets
    /// them: they may be forwarded without it if not. It has to if it translates their addresses or ports, changes the
    /// numbers of TCP, or looks into their payload (helpers, as for FTP). It also has to if conntrack finds no connection:
    /// both ends may be translated. So it is said of connections that are not tracked (`notrack`), too; where
    /// conntrack is not active at all, do not ask.
    ///
    /// # Errors
    /// When there is no answer: the kernel is without `nf_conntrack_netlink`, or the two ends are not of one family.
    pub fn touches(&mut self, ends: Ends, zone: u16) -> io::Result<bool> {
        let entry = match self.entry(ends, zone)? {
            None => self.entry(mirror(ends), zone)?,
            entry => entry,
        };
        Ok(entry.is_none_or(|entry| entry.translated || entry.followed))
    }

    /// Whether the TCP connection one of whose two kinds of packets arrives with these ends, before any translation, is
    /// translated; `None`: conntrack knows no such connection in this zone.
    ///
    /// # Errors
    /// As of [`Conntrack::touches`].
    pub fn translated(&mut self, ends: Ends, zone: u16) -> io::Result<Option<bool>> {
        Ok(self.entry(ends, zone)?.map(|entry| entry.translated))
    }

    fn entry(&mut self, ends: Ends, zone: u16) -> io::Result<Option<Entry>> {
        let question = question(ends, zone).ok_or(io::ErrorKind::InvalidInput)?;
        self.bytes.clear();
        let mut bytes = std::mem::take(&mut self.bytes);
        self.kernel.append(question, 0, &mut bytes);
        self.bytes = bytes;
        self.kernel.socket.send(&self.bytes, 0)?;
        self.answer()
    }

    fn answer(&self) -> io::Result<Option<Entry>> {
        let mut buffer = [0; ANSWER_LEN];
        loop {
            let len = match recv(&self.kernel.socket, &mut buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                done => done?,
            };
            let answer = NetlinkMessage::<Message>::deserialize(&buffer[..len.0])
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            // One that came too late for its question.
            if answer.header.sequence_number != self.kernel.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(entry) => Ok(Some(Entry::of(&entry))),
                NetlinkPayload::Error(error) => match error.to_io() {
                    error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                    error => Err(error),
                },
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

impl Entry {
    fn of(message: &Message) -> Self {
        let body = message.body(NFGENMSG_LEN);
        let status = attribute(body, CTA_STATUS)
            .try_into()
            .map_or(0, u32::from_be_bytes);
        let [original, reply] =
            [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY].map(|kind| ends_of(attribute(body, kind)));
        let mirrored = original.is_some() && original.map(mirror) == reply;
        Self {
            translated: !mirrored || status & (IPS_SRC_NAT | IPS_DST_NAT) != 0,
            followed: status & IPS_SEQ_ADJUST != 0 || has_attribute(body, CTA_HELP),
        }
    }
}

/// `None` if the two ends are not of one family.
fn question(ends: Ends, zone: u16) -> Option<Message> {
    let family = match (ends.from, ends.to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => libc::NFPROTO_IPV4,
        (SocketAddr::V6(_), SocketAddr::V6(_)) => libc::NFPROTO_IPV6,
        _ => return None,
    };
    let mut question = Message::netfilter(libc::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, family);
    question.nest(CTA_TUPLE_ORIG, |tuple| {
        tuple.nest(CTA_TUPLE_IP, |ip| {
            for (end, [v4, v6]) in [
                (ends.from, [CTA_IP_V4_SRC, CTA_IP_V6_SRC]),
                (ends.to, [CTA_IP_V4_DST, CTA_IP_V6_DST]),
            ] {
                match end.ip() {
                    IpAddr::V4(address) => ip.put(v4, &address.octets()),
                    IpAddr::V6(address) => ip.put(v6, &address.octets()),
                }
            }
        });
        tuple.nest(CTA_TUPLE_PROTO, |proto| {
            proto.put(CTA_PROTO_NUM, &[TCP]);
            proto.put(CTA_PROTO_SRC_PORT, &ends.from.port().to_be_bytes());
            proto.put(CTA_PROTO_DST_PORT, &ends.to.port().to_be_bytes());
        });
    });
    if zone != 0 {
        question.put(CTA_ZONE, &zone.to_be_bytes());
    }
    Some(question)
}

/// What a tuple says.
fn ends_of(tuple: &[u8]) -> Option<Ends> {
    let mut addresses = [None; 2];
    for (kind, value) in attributes(attribute(tuple, CTA_TUPLE_IP)) {
        let address = if let Ok(octets) = <[u8; 4]>::try_from(value) {
            IpAddr::V4(Ipv4Addr::from(octets))
        } else {
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?))
        };
        let to = [CTA_IP_V4_DST, CTA_IP_V6_DST].contains(&kind);
        addresses[usize::from(to)] = Some(address);
    }
    let [from, to] = addresses;
    let proto = attribute(tuple, CTA_TUPLE_PROTO);
    let port = |kind| {
        attribute(proto, kind)
            .try_into()
            .ok()
            .map(u16::from_be_bytes)
    };
    Some(Ends {
        from: SocketAddr::new(from?, port(CTA_PROTO_SRC_PORT)?),
        to: SocketAddr::new(to?, port(CTA_PROTO_DST_PORT)?),
    })
}

/// The ends of packets in the other direction.
const fn mirror(ends: Ends) -> Ends {
    Ends {
        from: ends.to,
        to: ends.from,
    }
}

/// The kernel has answered when the question is sent; this is for one that does not.
const PATIENCE: Duration = Duration::from_millis(20);
/// An answer has about 300 bytes, and some more for labels, a security context and a helper.
const ANSWER_LEN: usize = 4096;

const TCP: u8 = 6;
const IPCTNL_MSG_CT_GET: std::ffi::c_int = 1;
const NFGENMSG_LEN: usize = 4;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_HELP: u16 = 5;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;
const IPS_SEQ_ADJUST: u32 = 1 << 6;
