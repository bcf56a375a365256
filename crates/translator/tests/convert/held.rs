//! SYNs of connections that are split: they wait until the server that they name has answered, or go on without their message.

use std::net::SocketAddr;

use flexcp_testkit::Packet;
use flexcp_translator::{
    Ahead, Carrier, FastPath, FlowEntry, Frame, HEADROOM, Installed, Protocol, ServiceId, Verdict,
};
use flexcp_wire::{CapableKeys, ChecksumState, Ends, Offload};

use crate::offload::Slots;
use crate::world::*;

/// A fast path past which packets for the host's sockets go.
#[derive(Debug)]
struct Sockets(Slots);

impl FastPath for Sockets {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, passed: Option<u32>) -> Installed {
        self.0.install(slot, entry, passed)
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.0.evict(slot)
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        self.0.peek(slot)
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.0.peek_all(each);
    }

    fn release(&mut self, slot: u32) {
        self.0.release(slot);
    }

    fn held(&self) -> u32 {
        self.0.held()
    }

    fn leaves_to_socket(&mut self, _: Ends) -> bool {
        true
    }
}

/// A converter whose relay has its connections.
fn splitting(protocol: Protocol) -> World {
    let mut world = World::with(|config| {
        let service = &mut config.services[0];
        service.intake.carrier = Some(Carrier::Split);
        service.intake.relay_takes_syn_data = true;
        if let flexcp_translator::Mode::Explicit {
            protocol: spoken, ..
        } = &mut service.mode
        {
            *spoken = protocol;
        }
    });
    let sockets = Sockets(Slots::default());
    world.translator.set_fast_path(Box::new(sockets));
    world
}

/// A SYN of the client's, from this port.
fn syn(port: u16, message: &[u8]) -> Packet {
    let from = SocketAddr::new(client().ip(), port);
    Packet::new(from, proxy())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0)
        .with_options([mss(), capable(CapableKeys::Syn)])
        .with_payload(message)
}

fn ends(port: u16) -> Ends {
    Ends {
        from: SocketAddr::new(client().ip(), port),
        to: proxy(),
    }
}

/// What becomes of a packet, with these bytes.
fn put_as(world: &mut World, bytes: &[u8], checksum: ChecksumState) -> Verdict {
    let mut buf = vec![0; HEADROOM + bytes.len()];
    buf[HEADROOM..].copy_from_slice(bytes);
    let range = HEADROOM..buf.len();
    let offload = Offload {
        checksum,
        gso: None,
    };
    let mut frame = Frame::new(&mut buf, range, offload);
    world
        .translator
        .handle_packet(world.now, &mut frame)
        .verdict
}

fn put(world: &mut World, packet: &Packet) -> Verdict {
    put_as(world, &packet.bytes(), ChecksumState::Complete)
}

/// The packets that leave, whose checksums have to be right.
fn leaves(world: &mut World) -> Vec<Packet> {
    let made = std::iter::from_fn(|| world.translator.poll_transmit());
    let read = made.map(|sent| {
        let mut bytes = sent.header().to_vec();
        if let flexcp_translator::Payload::Bytes(data) = &sent.payload {
            bytes.extend_from_slice(data);
        }
        Packet::read_in(&bytes, sent.offload.checksum)
    });
    read.collect()
}

fn counts(world: &World) -> [u64; 3] {
    let counters = world.translator.counters();
    [counters.split, counters.syn_held, counters.syn_stripped]
}

#[test]
fn syn_waits_for_its_server_and_goes_on_as_it_came() {
    let mut world = splitting(Protocol::Convert);
    let said = [&CONNECT[..], b"GET /"].concat();
    for (checksum, port) in [(ChecksumState::Complete, 1), (ChecksumState::Partial, 2)] {
        let syn = syn(port, &said);
        let bytes = syn.bytes_in(checksum);
        assert_eq!(put_as(&mut world, &bytes, checksum), Verdict::Consume);
        assert!(leaves(&mut world).is_empty());
        let ahead = Ahead {
            service: ServiceId(0),
            ends: ends(port),
            server: server(),
        };
        assert_eq!(world.translator.poll_ahead(), Some(ahead));
        assert_eq!(world.translator.poll_ahead(), None, "once");
        world.translator.called_ahead(ends(port), true);
        let out = leaves(&mut world);
        let [sent] = &out[..] else { panic!("{out:?}") };
        assert_eq!((sent.ends(), &sent.payload), (ends(port), &said));
        assert_eq!(sent.tcp.seq, CLIENT_ISN);
        assert_eq!(sent.view().capable, syn.view().capable);
    }
    // Nobody waits any more.
    world.translator.called_ahead(ends(1), true);
    assert!(leaves(&mut world).is_empty());
    assert_eq!(counts(&world), [2, 2, 0]);
}

/// What the socket's SYN/ACK ACKs says that the server has answered: where it has not, the client says its message again.
#[test]
fn syn_whose_server_has_not_answered_goes_on_without_its_data() {
    let mut world = splitting(Protocol::Convert);
    for checksum in [ChecksumState::Complete, ChecksumState::Partial] {
        let syn = syn(1, &CONNECT);
        let bytes = syn.bytes_in(checksum);
        let _ = put_as(&mut world, &bytes, checksum);
        world.translator.called_ahead(ends(1), false);
        let out = leaves(&mut world);
        let [sent] = &out[..] else { panic!("{out:?}") };
        assert_eq!((sent.ends(), sent.payload.len()), (ends(1), 0));
        assert_eq!((sent.tcp.seq, sent.tcp.flags), (CLIENT_ISN, SYN));
        assert_eq!(sent.options, syn.options);
        let total = sent.ip.total_len;
        assert_eq!(total, bytes.len() - CONNECT.len());
    }
    assert_eq!(counts(&world), [2, 2, 2]);
}

#[test]
fn syn_that_comes_again_has_waited_long_enough() {
    let mut world = splitting(Protocol::Convert);
    for _ in 0..2 {
        assert_eq!(put(&mut world, &syn(1, &CONNECT)), Verdict::Consume);
    }
    assert_eq!(leaves(&mut world).len(), 1);
    assert_eq!(counts(&world), [2, 1, 1]);
    world.translator.called_ahead(ends(1), true);
    assert!(leaves(&mut world).is_empty(), "it is on its way");
}

/// Whoever names nobody, nobody whom it may, or speaks otherwise is heard by the relay.
#[test]
fn syn_that_names_no_server_does_not_wait() {
    let mut elsewhere = CONNECT;
    elsewhere[21] ^= 1;
    let mut junk = CONNECT;
    junk[2] ^= 1;
    for message in [&CONNECT[..10], &elsewhere, &junk] {
        let mut world = splitting(Protocol::Convert);
        assert_eq!(put(&mut world, &syn(1, message)), Verdict::Consume);
        assert_eq!(world.translator.poll_ahead(), None, "{message:?}");
        let out = leaves(&mut world);
        assert!(out[0].payload.is_empty(), "{message:?}");
        assert_eq!(counts(&world), [1, 0, 1]);
    }
    let mut world = splitting(Protocol::Convert);
    assert_eq!(put(&mut world, &syn(1, &[])), Verdict::Forward);
    let mut world = splitting(Protocol::Socks5);
    assert_eq!(put(&mut world, &syn(1, &[5, 1, 0])), Verdict::Forward);
    assert_eq!(counts(&world), [1, 0, 0]);
}

#[test]
fn few_wait_at_a_time() {
    let mut world = splitting(Protocol::Convert);
    for port in 1..=300 {
        assert_eq!(put(&mut world, &syn(port, &CONNECT)), Verdict::Consume);
    }
    assert_eq!(counts(&world), [300, 256, 44]);
    assert_eq!(leaves(&mut world).len(), 44);
    let wanted = std::iter::from_fn(|| world.translator.poll_ahead());
    assert_eq!(wanted.count(), 256);
}
