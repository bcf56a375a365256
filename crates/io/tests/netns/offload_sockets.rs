//! Packets of connections that this host's sockets have pass the programs by, and SYNs on their way up are noted.

use std::net::{SocketAddr, TcpListener, TcpStream};

use flexcp_io::{KernelFastPath, Offload, Tried};
use flexcp_translator::FastPath as _;
use flexcp_wire::{Ends, TcpFlags};

use crate::offload::{DEVICE, network};
use crate::offload_packets::{NOW, Packet, data_up, entry};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_packets_of_sockets_pass_by", sockets),
    ("offload_packets_of_sockets_go_up_unless_told", untold),
    ("offload_sockets_take_a_mark_and_their_part", refused),
    ("offload_notes_syns_once", syns),
];

fn programs() -> (Offload, KernelFastPath) {
    network();
    let mut offload = Offload::load(DEVICE, 4).unwrap_or_else(|error| panic!("{error}"));
    offload.mark(1).unwrap();
    let path = offload.fast_path(4).unwrap();
    (offload, path)
}

/// Data between these ends.
fn between(from: SocketAddr, to: SocketAddr) -> Packet {
    let packet = data_up(&entry());
    let mut packet = if from.is_ipv6() { packet.six() } else { packet };
    (packet.ip.src, packet.ip.dst) = (from.ip(), to.ip());
    (packet.tcp.src_port, packet.tcp.dst_port) = (from.port(), to.port());
    packet
}

/// Whether the packet is counted as a socket's; it is not touched.
fn is_sockets(offload: &mut Offload, packet: &Packet) -> bool {
    let count = |offload: &Offload| {
        let counts = offload.reasons().unwrap().counts();
        counts.iter().find(|(name, _)| *name == "socket").unwrap().1
    };
    let before = count(offload);
    let tried = offload.try_packet(DEVICE, NOW, &packet.frame()).unwrap();
    assert_eq!(tried, Tried::Passed);
    count(offload) > before
}

fn connection(at: &str) -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, client)
}

fn sockets() {
    let (mut offload, _path) = programs();
    assert_eq!(offload.leave_to_sockets().unwrap(), None);
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, client) = connection(at);
        let [own, peer] = [client.local_addr().unwrap(), client.peer_addr().unwrap()];
        assert!(is_sockets(&mut offload, &between(peer, own)), "{at}");
        assert!(is_sockets(&mut offload, &between(own, peer)), "{at}");
        // Whoever listens has no connection yet.
        let mut other = own;
        other.set_port(own.port() ^ 1);
        assert!(!is_sockets(&mut offload, &between(other, peer)), "{at}");
        drop((listener, client));
    }
}

fn untold() {
    let (mut offload, _path) = programs();
    let (_listener, client) = connection("127.0.0.1:0");
    let [own, peer] = [client.local_addr().unwrap(), client.peer_addr().unwrap()];
    assert!(!is_sockets(&mut offload, &between(peer, own)));
}

fn refused() {
    const SOCKETS: u32 = 32;
    network();
    let mut unmarked = Offload::load(DEVICE, 4).unwrap();
    assert!(unmarked.leave_to_sockets().unwrap().is_some());
    let mut without = Offload::load_but(DEVICE, 4, SOCKETS).unwrap();
    without.mark(1).unwrap();
    let said = without.left_out().unwrap().to_string();
    assert!(
        said.starts_with("without connections that are to be split"),
        "{said}"
    );
    assert!(without.leave_to_sockets().unwrap().is_some());
}

fn syns() {
    let (mut offload, mut path) = programs();
    let [from, to] = ["10.1.0.2:40000", "10.9.0.2:80"].map(|end| end.parse().unwrap());
    let mut syn = between(from, to);
    syn.tcp.flags = TcpFlags::SYN;
    let ends = Ends { from, to };
    assert!(!is_sockets(&mut offload, &syn));
    assert!(
        !path.leaves_to_socket(ends),
        "nobody has said that they count"
    );
    offload.leave_to_sockets().unwrap();
    assert!(!is_sockets(&mut offload, &between(from, to)));
    assert!(!path.leaves_to_socket(ends), "no SYN has come");
    assert!(!is_sockets(&mut offload, &syn));
    assert!(path.leaves_to_socket(ends));
    assert!(!path.leaves_to_socket(ends), "once for each");
}
