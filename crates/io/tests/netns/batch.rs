//! Packets that are kept and go out together.

use std::net::UdpSocket;

use flexcp_io::{KernelTables, SendBatch, Tun};
use flexcp_translator::{Frame, HEADROOM};
use flexcp_wire::Offload;

use crate::host::{DEVICE, Neighbours, ip, journal, plan};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("batch_keeps_small_packets_and_their_order", order),
    ("batch_that_is_full_goes_out", full),
    ("batch_counts_what_the_device_refuses", refused),
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

fn send(batch: &mut SendBatch, tun: &Tun, number: u8, len: usize, at_once: bool) {
    let mut packet = datagram(number, len);
    let range = HEADROOM..packet.len();
    batch.send(
        tun,
        &mut Frame::new(&mut packet, range, Offload::default()),
        at_once,
    );
}

fn with_socket(case: impl FnOnce(&Tun, &mut dyn FnMut() -> Vec<u8>)) {
    let _neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    let socket = UdpSocket::bind(("10.1.0.1", PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    case(&tun, &mut || {
        let mut bytes = [0; 4000];
        std::iter::from_fn(|| socket.recv(&mut bytes).ok().map(|_| bytes[0])).collect()
    });
}

fn order() {
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        send(&mut batch, tun, 1, 30, false);
        send(&mut batch, tun, 2, 1400, false);
        assert!(arrived().is_empty());
        batch.flush(tun);
        assert_eq!(arrived(), [1, 2]);
        // What is large or in haste goes behind what is kept.
        send(&mut batch, tun, 3, 30, false);
        send(&mut batch, tun, 4, 2000, false);
        assert_eq!(arrived(), [3, 4]);
        send(&mut batch, tun, 5, 30, false);
        send(&mut batch, tun, 6, 30, true);
        assert_eq!(arrived(), [5, 6]);
        batch.flush(tun);
        assert_eq!((arrived(), batch.failed()), (vec![], 0));
    });
}

fn full() {
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        let mut sent = vec![];
        while sent.len() < 100 && arrived().is_empty() {
            let number = u8::try_from(sent.len()).unwrap();
            send(&mut batch, tun, number, 1450, false);
            sent.push(number);
            if sent.len() == 15 {
                assert!(arrived().is_empty());
            }
        }
        assert_eq!(sent.len(), 16);
    });
}

fn refused() {
    with_socket(|tun, arrived| {
        let mut batch = SendBatch::new();
        ip("link set flexcp0 down");
        for number in 1..=3 {
            send(&mut batch, tun, number, 30, false);
        }
        assert_eq!(batch.failed(), 0);
        batch.flush(tun);
        send(&mut batch, tun, 4, 30, true);
        assert_eq!((arrived(), batch.failed()), (vec![], 4));
    });
}

const PORT: u16 = 7001;
