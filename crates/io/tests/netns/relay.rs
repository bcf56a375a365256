//! A proxy without a translator: it writes back what the TUN device gives, as it is or with other
//! addresses in it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use flexcp_io::{PacketBuffer, Tun, Waker, wait};
use flexcp_translator::Frame;
use flexcp_wire::{ChecksumState, IpHeader, Sum, update_checksum};

/// What passed.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) packets: AtomicUsize,
    /// Packets of more than one segment.
    pub(crate) large: AtomicUsize,
    pub(crate) largest: AtomicUsize,
    /// With only the sum of the pseudo-header in it.
    pub(crate) partial: AtomicUsize,
}

/// The relay's thread; it ends when this is dropped.
pub(crate) struct Relay {
    pub(crate) seen: Arc<Seen>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<Tun>>,
}

/// Reverse mode with one connection: clients connect to `listen`, the server sees `source`.
#[derive(Clone, Copy)]
pub(crate) struct Reverse {
    pub(crate) client: SocketAddr,
    pub(crate) listen: SocketAddr,
    pub(crate) source: SocketAddr,
    pub(crate) server: SocketAddr,
}

impl Relay {
    pub(crate) fn start(tun: Tun, reverse: Option<Reverse>) -> Self {
        let (seen, waker) = (Arc::<Seen>::default(), Arc::new(Waker::new().unwrap()));
        let thread = thread::spawn({
            let (seen, waker) = (seen.clone(), waker.clone());
            move || {
                let mut buffer = PacketBuffer::new();
                while !wait(&tun, &waker, None).unwrap().woken {
                    while let Some(mut frame) = tun.receive(&mut buffer).unwrap() {
                        seen.count(&frame);
                        if let Some(reverse) = &reverse {
                            reverse.translate(&mut frame);
                        }
                        send(&tun, frame, seen.packets.load(Ordering::Relaxed));
                    }
                }
                tun
            }
        });
        Self {
            seen,
            waker,
            thread: Some(thread),
        }
    }

    /// Ends the relay and gives the device back.
    pub(crate) fn stop(mut self) -> Tun {
        self.waker.wake();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.waker.wake();
    }
}

impl Seen {
    fn count(&self, frame: &Frame<'_>) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.largest
            .fetch_max(frame.packet().len(), Ordering::Relaxed);
        self.large
            .fetch_add(frame.offload.gso.is_some().into(), Ordering::Relaxed);
        let partial = frame.offload.checksum == ChecksumState::Partial;
        self.partial.fetch_add(partial.into(), Ordering::Relaxed);
    }
}

/// By turns in both ways there are.
fn send(tun: &Tun, mut frame: Frame<'_>, turn: usize) {
    if turn.is_multiple_of(2) {
        return tun.send(&mut frame).unwrap();
    }
    let packet = frame.packet();
    let ip = IpHeader::parse(packet).unwrap().header_len;
    let (headers, payload) = packet.split_at(ip + usize::from(packet[ip + 12] >> 4) * 4);
    tun.send_parts(headers, ip, payload, &frame.offload)
        .unwrap();
}

impl Reverse {
    fn translate(&self, frame: &mut Frame<'_>) {
        let ip = IpHeader::parse(frame.packet()).unwrap();
        let port = |at: usize| {
            let bytes = &frame.packet()[ip.header_len + at..][..2];
            u16::from_be_bytes([bytes[0], bytes[1]])
        };
        let from_to = (
            SocketAddr::new(ip.src, port(0)),
            SocketAddr::new(ip.dst, port(2)),
        );
        if from_to == (self.client, self.listen) {
            rewrite(frame, &ip, self.source, self.server);
        } else if from_to == (self.server, self.source) {
            rewrite(frame, &ip, self.listen, self.client);
        } else {
            panic!("diverted although it matches nothing: {from_to:?}");
        }
    }
}

fn rewrite(frame: &mut Frame<'_>, old: &IpHeader, src: SocketAddr, dst: SocketAddr) {
    let partial = frame.offload.checksum == ChecksumState::Partial;
    let (packet, tcp) = (frame.packet_mut(), old.header_len);
    let pseudo = |ip: &IpHeader| ip.pseudo_header_sum(old.total_len - tcp);
    let mut new = *old;
    (new.src, new.dst, new.ttl) = (src.ip(), dst.ip(), 64);
    // No addresses of a length other than before, no options.
    assert_eq!(new.emit(old.total_len - tcp, packet), tcp);
    let mut before = pseudo(old);
    let mut after = pseudo(&new);
    if !partial {
        before = before.add(Sum::of(&packet[tcp..tcp + 4]));
    }
    packet[tcp..tcp + 2].copy_from_slice(&src.port().to_be_bytes());
    packet[tcp + 2..tcp + 4].copy_from_slice(&dst.port().to_be_bytes());
    if !partial {
        after = after.add(Sum::of(&packet[tcp..tcp + 4]));
    }
    let field = &mut packet[tcp + 16..tcp + 18];
    let checksum = u16::from_be_bytes([field[0], field[1]]);
    // A partial checksum is a sum and not its complement.
    let checksum = if partial {
        !update_checksum(!checksum, before, after)
    } else {
        update_checksum(checksum, before, after)
    };
    field.copy_from_slice(&checksum.to_be_bytes());
}

pub(crate) fn socket(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}
