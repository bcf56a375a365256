//! What the kernel does to packets beside routing: netfilter with its connection tracking and NAT, and IPsec. All over
//! netlink, in the network namespace of the calling thread; it takes the capability `CAP_NET_ADMIN`.

mod changes;
mod conntrack;
mod ipsec;
mod message;
mod rule;
mod ruleset;
mod zones;

use std::io;

use flexcp_translator::Prefix;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};

pub use self::changes::Changes;
pub use self::conntrack::Conntrack;
pub use self::ipsec::{IpsecDirection, IpsecPolicy, ipsec_policies};
pub use self::ruleset::{conntrack_is_active, marks_may_be_set};
pub use self::zones::{ClientLeg, Zones};

use self::message::Message;
use super::Family;
use super::netlink::{NetlinkError, receive};

/// A socket for questions to one of these subsystems, one at a time.
#[derive(Debug)]
struct Kernel {
    socket: Socket,
    sequence: u32,
}

impl Kernel {
    /// `protocol`: such as `NETLINK_NETFILTER`.
    fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // An error then comes with the reason in words and without our request.
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(|source| NetlinkError::Socket { source })?,
            sequence: 0,
        })
    }

    /// Has nf_tables make all of these changes or none.
    fn change(&mut self, changes: Vec<(Message, u16)>) -> Result<(), NetlinkError> {
        let first = self.sequence + 1;
        let mut bytes = Vec::new();
        self.append(Message::batch(libc::NFNL_MSG_BATCH_BEGIN), 0, &mut bytes);
        let count = changes.len();
        for (number, (change, flags)) in changes.into_iter().enumerate() {
            // One answer that all went well is enough; errors come by themselves, and before it.
            let ack = if number + 1 == count { NLM_F_ACK } else { 0 };
            self.append(change, flags | ack, &mut bytes);
        }
        let last = self.sequence;
        self.append(Message::batch(libc::NFNL_MSG_BATCH_END), 0, &mut bytes);
        // A batch is one datagram. If the buffer stays too small, sending it says so.
        if set_socket_send_buffer_size_force(&self.socket, bytes.len()).is_err() {
            let _ = set_socket_send_buffer_size(&self.socket, bytes.len());
        }
        self.send(&bytes)?;
        receive::<Message>(&self.socket, &(first..=last), &mut |_| {}).map(drop)
    }

    /// What `read` makes of each thing that `question` lists.
    fn dump<T>(
        &mut self,
        question: &Message,
        read: impl Fn(&Message) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..TRIES {
            let (mut bytes, mut list) = (Vec::new(), Vec::new());
            self.append(question.clone(), NLM_F_DUMP, &mut bytes);
            self.send(&bytes)?;
            let requests = self.sequence..=self.sequence;
            let of_one_state = receive(&self.socket, &requests, &mut |thing| {
                list.extend(read(&thing));
            })?;
            if of_one_state {
                return Ok(list);
            }
        }
        Err(NetlinkError::Refused {
            source: io::ErrorKind::Interrupted.into(),
            reason: " (it is being changed all the time)".to_owned(),
        })
    }

    /// Appends a request to `bytes`.
    fn append(&mut self, message: Message, flags: u16, bytes: &mut Vec<u8>) {
        self.sequence += 1;
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let start = bytes.len();
        // Message::put keeps the length a multiple of four, as the next one has to begin.
        bytes.resize(start + request.buffer_len(), 0);
        request.serialize(&mut bytes[start..]);
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        self.socket
            .send(bytes, 0)
            .map(drop)
            .map_err(|source| NetlinkError::Socket { source })
    }
}

/// Why netfilter or IPsec cannot be asked or told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetfilterError {
    /// The table with the zones cannot be made or changed.
    #[error(
        "cannot give the clients' leg a conntrack zone of its own: {}{}",
        in_words(source),
        advice_about_zones(source)
    )]
    Zones {
        /// What the kernel says.
        source: NetlinkError,
    },
    /// The kernel does not tell what it was asked for.
    #[error("cannot {action}: {}{}", in_words(source), advice(source))]
    Refused {
        /// What failed.
        action: &'static str,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// An address is not of the family it should be.
    #[error("{}/{} is no {family} prefix", prefix.addr, prefix.len)]
    Prefix {
        /// The family.
        family: Family,
        /// The prefix.
        prefix: Prefix,
    },
    /// No interface can have this name.
    #[error("{name:?} is no name of an interface: check the name (ip link)")]
    InterfaceName {
        /// The name.
        name: String,
    },
}

/// The kernel's words without the advice about routing.
fn in_words(error: &NetlinkError) -> String {
    match error {
        NetlinkError::Refused { source, reason } => format!("{source}{reason}"),
        other => other.to_string(),
    }
}

fn number(error: &NetlinkError) -> Option<i32> {
    match error {
        NetlinkError::Refused { source, .. } | NetlinkError::Socket { source } => {
            source.raw_os_error()
        }
        NetlinkError::Answer { .. } => None,
    }
}

/// What to do about it.
fn advice(error: &NetlinkError) -> &'static str {
    match number(error) {
        Some(libc::EPERM) => ": run as root or with the capability CAP_NET_ADMIN",
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL) => {
            ": it takes the kernel's modules nf_tables and nf_conntrack_netlink, for IPsec xfrm_user (modprobe)"
        }
        _ => "",
    }
}

fn advice_about_zones(error: &NetlinkError) -> &'static str {
    match number(error) {
        Some(libc::EPERM) => {
            ": run as root or with the capability CAP_NET_ADMIN, and see that no other process holds the table inet flexcp \
             (nft list tables)"
        }
        Some(libc::EEXIST) => {
            ": somebody has made a table inet flexcp: delete it (nft delete table inet flexcp)"
        }
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::ENOENT | libc::EINVAL) => {
            ": it takes Linux 5.12 with the modules nf_tables, nft_ct and nf_conntrack (modprobe), and conntrack zones \
             (CONFIG_NF_CONNTRACK_ZONES)"
        }
        _ => "",
    }
}

/// Of a list that is changed while it is made.
const TRIES: u32 = 5;
