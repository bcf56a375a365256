//! ICMPv6 errors about packets that FlexCP has sent from an address of this host go to its device, and nothing else of ICMPv6 does.

use std::net::Ipv6Addr;

use flexcp_io::{LinkHeader, Offload, OwnEnds, Tried};
use flexcp_wire::protocol;

use crate::offload::{DEVICE, network};
use crate::offload_packets::NOW;
use crate::tap::{ETHERNET, Line};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_errors_about_own_packets_are_flexcps", own_packets),
    ("offload_errors_about_others_are_the_kernels", others),
    ("offload_errors_follow_the_configuration", followed),
    ("offload_errors_come_without_ethernet_headers", bare),
];

const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const OTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 9, 0, 0, 0, 9);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 9, 0, 0, 0, 1);

/// An ICMPv6 message, and the packet that it quotes.
#[derive(Clone, Copy)]
struct Message {
    kind: u8,
    to: Ipv6Addr,
    quoted: u8,
    from: (Ipv6Addr, u16),
    len: usize,
}

const TOO_BIG: Message = Message {
    kind: 2,
    to: OWN,
    quoted: protocol::TCP,
    from: (OWN, 443),
    len: 20,
};

fn header(next: u8, from: Ipv6Addr, to: Ipv6Addr, len: usize) -> Vec<u8> {
    let len = u16::try_from(len).unwrap().to_be_bytes();
    let start = [0x60, 0, 0, 0, len[0], len[1], next, 64];
    [&start[..], &from.octets(), &to.octets()].concat()
}

impl Message {
    /// From the Ethernet header on; its checksum is the receiver's business.
    fn frame(self) -> Vec<u8> {
        let mut tcp = [self.from.1.to_be_bytes(), [0, 80]].concat();
        tcp.resize(self.len, 0);
        let quote = header(self.quoted, self.from.0, FAR, 20);
        let message = [&[self.kind, 0, 0, 0, 0, 0, 5, 0][..], &quote, &tcp].concat();
        // The loopback device, on which programs are tried, has an address of zeros.
        let ethernet = [&[0; 12][..], &[0x86, 0xdd]].concat();
        let ip = header(protocol::ICMPV6, ROUTER, self.to, message.len());
        [ethernet, ip, message].concat()
    }
}

fn programs(ends: &[OwnEnds]) -> Offload {
    network();
    let mut offload = Offload::load(DEVICE, 4).unwrap_or_else(|error| panic!("{error}"));
    offload.take_errors(ends).unwrap();
    offload
}

fn own() -> Vec<OwnEnds> {
    [443..=443, 61_000..=61_999]
        .map(|ports| OwnEnds { addr: OWN, ports })
        .to_vec()
}

/// Whether it goes to FlexCP's device, as it is.
fn goes(offload: &mut Offload, message: Message) -> bool {
    let frame = message.frame();
    match offload.try_packet(DEVICE, NOW, &frame).unwrap() {
        Tried::Translated(out) => {
            assert_eq!(out, frame);
            true
        }
        Tried::Passed => false,
        Tried::Dropped => panic!("dropped"),
    }
}

fn own_packets() {
    let mut offload = programs(&own());
    for kind in [1, 2, 3] {
        for port in [443, 61_000, 61_500, 61_999] {
            let from = (OWN, port);
            let message = Message {
                kind,
                from,
                ..TOO_BIG
            };
            assert!(goes(&mut offload, message), "type {kind}, port {port}");
        }
    }
    // Up to its ports, no more is needed.
    assert!(goes(&mut offload, Message { len: 4, ..TOO_BIG }));
}

fn others() {
    let mut offload = programs(&own());
    let not = |message: Message| !goes(&mut offload, message);
    let mut others = vec![];
    // Parameter problem, echo, router and neighbour discovery.
    for kind in [4, 128, 129, 133, 134, 135, 136, 137, 0] {
        others.push(Message { kind, ..TOO_BIG });
    }
    for port in [442, 444, 60_999, 62_000, 0] {
        let from = (OWN, port);
        others.push(Message { from, ..TOO_BIG });
    }
    let udp = 17;
    others.push(Message {
        quoted: udp,
        ..TOO_BIG
    });
    others.push(Message { len: 3, ..TOO_BIG });
    let from = (OTHER, 443);
    others.push(Message { from, ..TOO_BIG });
    others.push(Message {
        from,
        to: OTHER,
        ..TOO_BIG
    });
    others.push(Message {
        to: OTHER,
        ..TOO_BIG
    });
    assert!(others.into_iter().all(not));
}

fn followed() {
    let mut offload = programs(&[]);
    assert!(!goes(&mut offload, TOO_BIG));
    offload.take_errors(&own()).unwrap();
    assert!(goes(&mut offload, TOO_BIG));
    offload.take_errors(&own()[1..]).unwrap();
    assert!(!goes(&mut offload, TOO_BIG));
    let from = (OWN, 61_000);
    assert!(goes(&mut offload, Message { from, ..TOO_BIG }));
}

/// From a device without Ethernet headers to FlexCP's, which has none either.
fn bare() {
    let mut line = Line::between([LinkHeader::Nothing; 2], 4, false);
    line.programs.take_errors(&own()).unwrap();
    let others = Message {
        from: (OTHER, 443),
        ..TOO_BIG
    };
    for (message, goes) in [(TOO_BIG, true), (others, false)] {
        let packet = message.frame().split_off(ETHERNET);
        let left = line.hand_over(NOW, &packet);
        assert_eq!(left, goes.then_some(packet));
    }
}
