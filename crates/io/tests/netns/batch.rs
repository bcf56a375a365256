//! Packets that are kept and go out together.

use std::net::{SocketAddr, UdpSocket};

use flexcp_io::{KernelTables, PacketSocket, SendBatch, Tun};
use flexcp_testkit::Packet;
use flexcp_translator::{Frame, HEADROOM};
use flexcp_wire::Offload;

use crate::host::{DEVICE, Neighbours, ip, journal, plan};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("batch_keeps_small_packets_and_their_order", order),
    ("batch_that_is_full_goes_out", full),
    ("batch_without_room_for_another_goes_out", full_of_bytes),
    ("batch_counts_what_the_device_refuses", refused),
    ("batch_sends_the_last_of_the_acks_of_a_flow", acks),
    ("batch_sends_an_ack_that_is_not_new", duplicates),
    ("batch_sends_the_ack_of_another_flow", flows),
    ("batch_drops_an_ack_before_a_large_packet", large),
];

/// A datagram of `len` bytes from the server's side, with its number in it.
fn datagram(number: u8, len: usize) -> Vec<u8> {
    let total = 28 + len;
    let mut packet = vec![0; HEADROOM + total];
    let ip = &mut packet[HEADROOM..];
    let bytes_of = |value: usize| u16::try_from(value).unwrap().to_be_bytes();
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&bytes_of(total));
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&[10, 9, 0, 2]);
    ip[16..20].copy_from_slice(&[10, 1, 0, 1]);
    let words = ip[..20].chunks(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&(!folded).to_be_bytes());
    ip[20..22].copy_from_slice(&7000_u16.to_be_bytes());
    ip[22..24].copy_from_slice(&PORT.to_be_bytes());
    ip[24..26].copy_from_slice(&bytes_of(8 + len));
    ip[28] = number;
    packet
}

fn send(batch: &mut SendBatch, tun: &Tun, number: u8, len: usize) {
    let mut packet = datagram(number, len);
    let range = HEADROOM..packet.len();
    batch.send(tun, &mut Frame::new(&mut packet, range, Offload::default()));
}

fn send_at_once(batch: &mut SendBatch, tun: &Tun, number: u8) {
    let mut packet = datagram(number, 30);
    let range = HEADROOM..packet.len();
    batch.send_at_once(tun, &mut Frame::new(&mut packet, range, Offload::default()));
}

/// A packet of the flow from `port` that ACKs `ack`, with `len` zero bytes.
fn send_ack(batch: &mut SendBatch, tun: &Tun, port: u16, ack: u32, len: usize, new: bool) {
    let [from, to] = [([10, 9, 0, 2], port), ([10, 1, 0, 1], PORT)].map(SocketAddr::from);
    let segment = Packet::new(from, to)
        .numbers(0, ack)
        .with_payload(vec![0; len]);
    let mut packet = [vec![0; HEADROOM], segment.bytes()].concat();
    let range = HEADROOM..packet.len();
    let mut frame = Frame::new(&mut packet, range, Offload::default());
    frame.set_new_ack(new);
    batch.send(tun, &mut frame);
}

/// `case` sends on the device; what it asks for are port, ACK and length of the TCP packets that have come since.
fn with_capture(
    case: impl FnOnce(&mut SendBatch, &Tun, &mut dyn FnMut() -> Vec<(u16, u32, usize)>),
) {
    let _neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    let socket = PacketSocket::open(DEVICE).unwrap();
    let mut bytes = vec![0; PacketSocket::FRAME_BUFFER];
    case(&mut SendBatch::new(), &tun, &mut || {
        let mut seen = vec![];
        while let Some(frame) = socket.receive(&mut bytes).unwrap() {
            if let Some(packet) = Packet::parse(frame.bytes) {
                let (tcp, len) = (packet.tcp, packet.payload.len());
                seen.push((tcp.src_port, tcp.ack, len));
            }
        }
        seen
    });
}

fn acks() {
    with_capture(|batch, tun, arrived| {
        for ack in [100, 200, 300] {
            send_ack(batch, tun, 80, ack, 0, true);
        }
        // It stands behind them, and stays.
        send_ack(batch, tun, 80, 400, 10, false);
        send_ack(batch, tun, 80, 500, 0, true);
        assert!(arrived().is_empty());
        batch.flush(tun);
        assert_eq!(arrived(), [(80, 400, 10), (80, 500, 0)]);
        assert_eq!((batch.superseded(), batch.failed()), (3, 0));
        // What has gone out is none of the next ones' business.
        send_ack(batch, tun, 80, 600, 0, true);
        batch.flush(tun);
        assert_eq!((arrived(), batch.superseded()), (vec![(80, 600, 0)], 3));
    });
}

fn duplicates() {
    with_capture(|batch, tun, arrived| {
        send_ack(batch, tun, 80, 100, 0, true);
        send_ack(batch, tun, 80, 100, 0, false);
        send_ack(batch, tun, 80, 100, 0, false);
        batch.flush(tun);
        // Receivers count them.
        assert_eq!(arrived(), [(80, 100, 0); 3]);
        assert_eq!(batch.superseded(), 0);
        // One that is not new goes out, too, whatever is behind it.
        send_ack(batch, tun, 80, 100, 0, false);
        send_ack(batch, tun, 80, 200, 0, true);
        batch.flush(tun);
        assert_eq!(
            (arrived(), batch.superseded()),
            (vec![(80, 100, 0), (80, 200, 0)], 0)
        );
        // What is older says less.
        send_ack(batch, tun, 80, 100, 0, true);
        send_ack(batch, tun, 80, 90, 0, true);
        send_ack(batch, tun, 80, 80, 9000, false);
        let all = vec![(80, 100, 0), (80, 90, 0), (80, 80, 9000)];
        assert_eq!((arrived(), batch.superseded()), (all, 0));
    });
}

fn flows() {
    with_capture(|batch, tun, arrived| {
        for ack in [100, 200] {
            for port in [80, 81, 82] {
                send_ack(batch, tun, port, ack, 0, true);
            }
        }
        batch.flush(tun);
        assert_eq!(arrived(), [(80, 200, 0), (81, 200, 0), (82, 200, 0)]);
        assert_eq!(batch.superseded(), 3);
    });
}

fn large() {
    with_capture(|batch, tun, arrived| {
        send_ack(batch, tun, 80, 100, 0, true);
        send_ack(batch, tun, 81, 100, 0, true);
        send_ack(batch, tun, 80, 200, 9000, false);
        assert_eq!(arrived(), [(81, 100, 0), (80, 200, 9000)]);
        assert_eq!((batch.superseded(), batch.failed()), (1, 0));
    });
}

fn with_socket(case: impl FnOnce(&Tun, &mut dyn FnMut() -> Vec<u8>)) {
    let _neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    let socket = UdpSocket::bind(("10.1.0.1", PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    case(&tun, &mut || {
        let mut bytes = [0; 10_000];
        std::iter::from_fn(|| socket.recv(&mut bytes).ok().map(|_| bytes[0])).collect()
    });
}

fn order() {
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        send(&mut batch, tun, 1, 30);
        send(&mut batch, tun, 2, 3900);
        assert!(arrived().is_empty());
        batch.flush(tun);
        assert_eq!(arrived(), [1, 2]);
        // What is large or in haste goes behind what is kept.
        send(&mut batch, tun, 3, 30);
        send(&mut batch, tun, 4, 9000);
        assert_eq!(arrived(), [3, 4]);
        send(&mut batch, tun, 5, 30);
        send_at_once(&mut batch, tun, 6);
        assert_eq!(arrived(), [5, 6]);
        batch.flush(tun);
        assert_eq!((arrived(), batch.failed()), (vec![], 0));
    });
}

/// Packets of `len` bytes that are sent until the first ones arrive.
fn sent_until_full(len: usize) -> usize {
    let mut count = 0;
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        let mut seen = vec![];
        while count < 200 && seen.is_empty() {
            send(&mut batch, tun, 0, len);
            count += 1;
            seen = arrived();
        }
        assert_eq!(batch.failed(), 0);
    });
    count
}

fn full() {
    assert_eq!(sent_until_full(30), 64);
}

fn full_of_bytes() {
    // 256 KB, less room for the largest that may come.
    assert_eq!(sent_until_full(8000), 32);
}

fn refused() {
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        ip("link set flexcp0 down");
        for number in 1..=3 {
            send(&mut batch, tun, number, 30);
        }
        assert_eq!(batch.failed(), 0);
        batch.flush(tun);
        send_at_once(&mut batch, tun, 4);
        assert_eq!((arrived(), batch.failed()), (vec![], 4));
    });
}

const PORT: u16 = 7001;
