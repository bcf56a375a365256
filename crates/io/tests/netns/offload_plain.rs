//! Plain TCP that passes the programs by: known by its ends, in both directions, until the next SYN.

use std::net::SocketAddr;

use flexcp_io::{KernelFastPath, Offload, Tried};
use flexcp_translator::FastPath as _;
use flexcp_wire::{Ends, TcpFlags};

use crate::offload::{DEVICE, network};
use crate::offload_packets::{NOW, Packet, data_down, data_up, entry};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_plain_tcp_passes_by_both_ways", both_ways),
    ("offload_plain_tcp_is_forgotten_with_a_syn", forgotten),
    ("offload_plain_tcp_passes_only_with_a_mark", marked),
    ("offload_plain_tcp_keeps_the_families_apart", families),
];

/// The programs, with a mark or none.
fn programs(mark: u32) -> (Offload, KernelFastPath) {
    network();
    let mut offload = Offload::load(DEVICE, 4).unwrap_or_else(|error| panic!("{error}"));
    offload.mark(mark).unwrap();
    let path = offload.fast_path(4).unwrap();
    (offload, path)
}

fn ends(packet: &Packet) -> Ends {
    Ends {
        from: SocketAddr::new(packet.ip.src, packet.tcp.src_port),
        to: SocketAddr::new(packet.ip.dst, packet.tcp.dst_port),
    }
}

/// Whether the packet is counted as plain TCP; it is not touched.
fn is_plain(offload: &mut Offload, packet: &Packet) -> bool {
    let plain = |offload: &Offload| {
        let counts = offload.reasons().unwrap().counts();
        counts.iter().find(|(name, _)| *name == "plain").unwrap().1
    };
    let before = plain(offload);
    let tried = offload.try_packet(DEVICE, NOW, &packet.frame()).unwrap();
    assert_eq!(tried, Tried::Passed);
    plain(offload) > before
}

fn both_ways() {
    let (mut offload, mut path) = programs(1);
    let (up, down) = (data_up(&entry()), data_down(&entry()));
    assert!(!is_plain(&mut offload, &up));
    assert!(path.pass_by(ends(&up)));
    assert!(is_plain(&mut offload, &up) && is_plain(&mut offload, &down));
    let mut other = up.clone();
    other.tcp.src_port += 1;
    assert!(!is_plain(&mut offload, &other));
}

fn forgotten() {
    let (mut offload, mut path) = programs(1);
    let (up, down) = (data_up(&entry()), data_down(&entry()));
    let with = |packet: &Packet, flags| {
        let mut packet = packet.clone();
        packet.tcp.flags = flags;
        packet
    };
    assert!(path.pass_by(ends(&up)));
    // An answer opens nothing.
    let answer = with(&down, TcpFlags::SYN | TcpFlags::ACK);
    assert!(is_plain(&mut offload, &answer));
    for syn in [with(&up, TcpFlags::SYN), with(&down, TcpFlags::SYN)] {
        assert!(path.pass_by(ends(&up)));
        assert!(is_plain(&mut offload, &up));
        assert!(!is_plain(&mut offload, &syn), "for the translator");
        assert!(!is_plain(&mut offload, &up) && !is_plain(&mut offload, &down));
    }
}

fn marked() {
    let (mut offload, mut path) = programs(0);
    let up = data_up(&entry());
    assert!(!path.pass_by(ends(&up)));
    assert!(!is_plain(&mut offload, &up));
}

/// An IPv6 address may start with the bytes of an IPv4 one, and end with zeros.
fn families() {
    let (mut offload, mut path) = programs(1);
    let up = data_up(&entry());
    let six = up.six();
    assert!(path.pass_by(ends(&up)));
    assert!(is_plain(&mut offload, &up) && !is_plain(&mut offload, &six));
    assert!(path.pass_by(ends(&six)));
    assert!(is_plain(&mut offload, &six) && !is_plain(&mut offload, &up));
}
