//! What a packet says of its owner.

use flexcp_wire::{
    Ends, IcmpError, IpHeader, MpJoin, MptcpOption, TcpFlags, TcpHeader, TcpOption, TcpOptions,
    protocol,
};

/// What names the owner of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A packet of this flow. An ICMP error goes with the packet that it quotes, as if that had come back.
    Flow(Ends),
    /// A SYN: these ends may belong to another connection from now on.
    Opening(Ends),
    /// A SYN with `MP_JOIN`.
    Joining {
        /// Of the new subflow.
        ends: Ends,
        /// Of the connection that it joins.
        token: u32,
    },
}

impl Subject {
    /// Reads a packet, from its IP header on. `None`: it belongs to no connection, so whoever has it may keep it.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        let body = packet.get(ip.header_len..ip.total_len)?;
        match ip.protocol {
            protocol::TCP => Self::of_segment(&ip, body),
            protocol::ICMP | protocol::ICMPV6 => {
                let error = IcmpError::parse(&ip, body)?;
                // The packet that the error quotes went the other way.
                Some(Self::Flow(Ends {
                    from: error.dst,
                    to: error.src,
                }))
            }
            _ => None,
        }
    }

    fn of_segment(ip: &IpHeader, segment: &[u8]) -> Option<Self> {
        let (tcp, options) = TcpHeader::parse(segment).ok()?;
        let ends = Ends {
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
        };
        let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
        Some(match opens.then(|| joined_token(options)) {
            None => Self::Flow(ends),
            Some(None) => Self::Opening(ends),
            Some(Some(token)) => Self::Joining { ends, token },
        })
    }
}

/// The token of a SYN with `MP_JOIN`.
fn joined_token(options: &[u8]) -> Option<u32> {
    TcpOptions::new(options)
        .map_while(Result::ok)
        .find_map(|option| match option {
            TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn { token, .. })) => Some(token),
            _ => None,
        })
}
