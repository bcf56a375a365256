//! Who has opened a flow, and so which way its packets go.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use flexcp_invariants::Point;
use flexcp_wire::{CapableKeys, MptcpOption, TcpFlags};

use super::frames::Frames;
use super::packets::{Segment, tcp_ends};

/// A side of FlexCP: that of the ends with MPTCP, which the rules call clients, or that of the ends with TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Client,
    Server,
}

/// Two ends of a flow: the one that opened it, and the other.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// The flows whose SYN was seen.
pub(super) struct Flows {
    opened: [HashSet<Ends>; 2],
    /// The addresses of a box's uplinks; `None`: FlexCP is a proxy, towards which the ends with MPTCP open.
    uplinks: Option<HashSet<IpAddr>>,
}

impl Flows {
    /// With a proxy.
    pub(super) fn of_proxy() -> Self {
        Self {
            opened: Default::default(),
            uplinks: None,
        }
    }

    /// With a box. The addresses of its uplinks are those that ask for MPTCP in the captures taken there.
    pub(super) fn of_box(captures: &[PathBuf]) -> Result<Self> {
        let mut uplinks = HashSet::new();
        for path in captures {
            let mut frames = Frames::open(path)?;
            while let Some(frame) = frames.next()? {
                let Some((from, _, segment)) = tcp_ends(&frame.packet) else {
                    continue;
                };
                if is_syn(&segment) && segment.mptcp.iter().any(asks) {
                    uplinks.insert(from.ip());
                }
            }
        }
        Ok(Self {
            uplinks: Some(uplinks),
            ..Self::of_proxy()
        })
    }

    /// How many there are on each side.
    pub(super) fn count(&self) -> [usize; 2] {
        [Side::Client, Side::Server].map(|side| self.opened[side as usize].len())
    }

    /// Where a packet was seen. `None`: it is of no flow whose SYN was, or of one that the far end of an uplink has opened.
    pub(super) fn point(&mut self, side: Side, ends: Ends, segment: &Segment) -> Option<Point> {
        let (from, to) = ends;
        if is_syn(segment) && !self.is_from_far_end(side, ends) {
            self.opened[side as usize].insert(ends);
        }
        let opened = &self.opened[side as usize];
        let by_opener = opened.contains(&(from, to));
        if !by_opener && !opened.contains(&(to, from)) {
            return None;
        }
        // A proxy hears the end with MPTCP open, and opens towards the other; a box is on the other side of both.
        let comes_in = by_opener == ((side == Side::Client) == self.uplinks.is_none());
        Some(match (side, comes_in) {
            (Side::Client, true) => Point::FromClient,
            (Side::Client, false) => Point::ToClient,
            (Side::Server, true) => Point::FromServer,
            (Side::Server, false) => Point::ToServer,
        })
    }

    /// A join that a box refuses, or something that comes for its host.
    fn is_from_far_end(&self, side: Side, (from, to): Ends) -> bool {
        let own = |end: SocketAddr| {
            let uplinks = self.uplinks.as_ref();
            uplinks.is_some_and(|uplinks| uplinks.contains(&end.ip()))
        };
        side == Side::Client && own(to) && !own(from)
    }
}

fn is_syn(segment: &Segment) -> bool {
    let flags = segment.header.flags;
    flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK)
}

fn asks(option: &MptcpOption) -> bool {
    matches!(option, MptcpOption::Capable(capable) if capable.keys == CapableKeys::Syn)
}

#[cfg(test)]
mod tests {
    use flexcp_testkit::Packet;

    use super::*;

    const LAN: ([u8; 4], u16) = ([192, 168, 1, 2], 40000);
    const UPLINK: ([u8; 4], u16) = ([10, 1, 1, 1], 61000);
    const SERVER: ([u8; 4], u16) = ([10, 200, 0, 1], 80);

    fn point(
        flows: &mut Flows,
        side: Side,
        (from, to): (([u8; 4], u16), ([u8; 4], u16)),
        flags: TcpFlags,
    ) -> Option<Point> {
        let (from, to) = (from.into(), to.into());
        let packet = Packet::new(from, to).flags(flags).bytes();
        let (_, _, segment) = tcp_ends(&packet).unwrap();
        flows.point(side, (from, to), &segment)
    }

    fn of_box() -> Flows {
        Flows {
            uplinks: Some([UPLINK.0.into()].into()),
            ..Flows::of_proxy()
        }
    }

    #[test]
    fn clients_open_towards_a_proxy_and_it_towards_servers() {
        let mut flows = Flows::of_proxy();
        let cases = [
            (Side::Client, Point::FromClient, Point::ToClient),
            (Side::Server, Point::ToServer, Point::FromServer),
        ];
        for (side, opener, other) in cases {
            let mut seen = |ends, flags| point(&mut flows, side, ends, flags);
            assert_eq!(seen((SERVER, LAN), TcpFlags::ACK), None, "no SYN");
            assert_eq!(seen((LAN, SERVER), TcpFlags::SYN), Some(opener));
            assert_eq!(seen((SERVER, LAN), TcpFlags::ACK), Some(other));
            assert_eq!(seen((LAN, SERVER), TcpFlags::ACK), Some(opener));
        }
        assert_eq!(flows.count(), [1, 1]);
    }

    #[test]
    fn box_hears_the_lan_open_and_opens_over_its_uplinks() {
        let mut flows = of_box();
        let mut seen = |side, ends, flags| point(&mut flows, side, ends, flags);
        let lan = seen(Side::Server, (LAN, SERVER), TcpFlags::SYN);
        assert_eq!(lan, Some(Point::FromServer));
        let uplink = seen(Side::Client, (UPLINK, SERVER), TcpFlags::SYN);
        assert_eq!(uplink, Some(Point::ToClient));
        let answer = TcpFlags::SYN | TcpFlags::ACK;
        let heard = seen(Side::Client, (SERVER, UPLINK), answer);
        assert_eq!(heard, Some(Point::FromClient));
        let passed_on = seen(Side::Server, (SERVER, LAN), answer);
        assert_eq!(passed_on, Some(Point::ToServer));
    }

    #[test]
    fn flow_that_the_far_end_opens_towards_a_box_is_not_judged() {
        let mut flows = of_box();
        let mut seen = |ends, flags| point(&mut flows, Side::Client, ends, flags);
        assert_eq!(seen((SERVER, UPLINK), TcpFlags::SYN), None);
        assert_eq!(seen((UPLINK, SERVER), TcpFlags::RST), None);
        assert_eq!(flows.count(), [0, 0]);
    }
}
