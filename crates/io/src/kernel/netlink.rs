//! Questions to the kernel over rtnetlink, one at a time.

use std::io;
use std::ops::RangeInclusive;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// A socket that asks and waits for the answer.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // An error then comes with the reason in words and without our request.
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            // A dump of routes then is one of the table asked for alone.
            socket.set_netlink_get_strict_chk(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| NetlinkError::Socket { source })?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// For questions that take any socket of the namespace.
    pub(crate) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Has the kernel change something.
    pub(crate) fn change(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        self.exchange(message, NLM_F_ACK | flags).map(drop)
    }

    /// Asks for one thing.
    pub(crate) fn get(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.exchange(message, NLM_F_ACK)
    }

    /// Asks for all there is of a kind.
    pub(crate) fn dump(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.exchange(message, NLM_F_DUMP)
    }

    /// The same, one answer after the other: of what may be more than there is room for.
    pub(crate) fn dump_each(
        &mut self,
        message: RouteNetlinkMessage,
        each: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.ask(message, NLM_F_DUMP, each)
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let mut answers = Vec::new();
        self.ask(message, flags, &mut |answer| answers.push(answer))?;
        Ok(answers)
    }

    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.sequence += 1;
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket
            .send(&bytes, 0)
            .map_err(|source| NetlinkError::Socket { source })?;

        receive(&self.socket, &(self.sequence..=self.sequence), each).map(drop)
    }
}

/// Takes what the kernel answers to the requests with these sequence numbers, until it is done with the last of them or
/// refuses one. Whether a dump is of one state; if not, there were changes while it was made.
pub(super) fn receive<M: NetlinkDeserializable>(
    socket: &Socket,
    requests: &RangeInclusive<u32>,
    each: &mut dyn FnMut(M),
) -> Result<bool, NetlinkError> {
    let mut of_one_state = true;
    loop {
        let (bytes, _) = socket
            .recv_from_full()
            .map_err(|source| NetlinkError::Socket { source })?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let answer = NetlinkMessage::<M>::deserialize(rest)
                .map_err(|source| NetlinkError::Answer { source })?;
            let len = usize::try_from(answer.header.length).unwrap_or(usize::MAX);
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            let request = answer.header.sequence_number;
            if !requests.contains(&request) {
                continue;
            }
            of_one_state &= answer.header.flags & NLM_F_DUMP_INTR == 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(inner) => each(inner),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(NetlinkError::Refused {
                        source: error.to_io(),
                        reason: reason(&error.header),
                    });
                }
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(NetlinkError::Refused {
                        source: io::Error::from_raw_os_error(-done.code),
                        reason: String::new(),
                    });
                }
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_)
                    if request == *requests.end() =>
                {
                    return Ok(of_one_state);
                }
                _ => {}
            }
        }
    }
}

/// The kernel's own words about an error: attributes behind the header of the request.
fn reason(request_header_and_attributes: &[u8]) -> String {
    const REQUEST_HEADER_LEN: usize = 16;
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let attributes = request_header_and_attributes
        .get(REQUEST_HEADER_LEN..)
        .unwrap_or_default();
    NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
        .and_then(|attribute| {
            let words = attribute.value().split(|&byte| byte == 0).next()?;
            Some(format!(" ({})", String::from_utf8_lossy(words)))
        })
        .unwrap_or_default()
}

/// Why the kernel's tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The socket does not open, or does not carry the message.
    #[error("netlink socket: {source}")]
    Socket {
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel's answer is not understood.
    #[error("netlink answer: {source}")]
    Answer {
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The kernel does not do what it was asked for.
    #[error("{source}{reason}{}", advice(source))]
    Refused {
        /// The error number.
        source: io::Error,
        /// The kernel's reason in words, in brackets, or nothing.
        reason: String,
    },
}

impl NetlinkError {
    /// The error number with which the kernel refused, if it did.
    pub(crate) fn refusal(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => ": run as root or with the capability CAP_NET_ADMIN",
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {
            ": the kernel lacks or has disabled this family"
        }
        _ => "",
    }
}
