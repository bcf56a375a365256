use core::net::SocketAddr;

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use flexcp_wire::{OptionWriter, Sum};

mod claims;

use super::*;
use crate::config::{Limits, Mode, Service};
use crate::service::Choice;

const WORKERS: u16 = 5;
const KEYS: (u64, u64) = (7, 9);

fn config(connections: usize) -> Config {
    let mode = Mode::Reverse {
        listen: vec![at(1, 80)],
        backends: vec![at(9, 80)],
        source: vec![at(8, 0).ip()],
        source_ports: 1000..=1099,
    };
    Config {
        services: vec![Service {
            id: crate::ServiceId(0),
            name: String::new(),
            mode,
            announce: vec![],
        }],
        limits: Limits {
            connections,
            ..Limits::default()
        },
        ..Config::default()
    }
}

fn workers_of(connections: usize) -> Vec<Affinity> {
    (0..WORKERS)
        .map(|worker| Affinity::new(&config_of(worker, connections), KEYS))
        .collect()
}

fn config_of(worker: u16, connections: usize) -> Config {
    Config {
        share: Share {
            worker,
            workers: WORKERS,
        },
        ..config(connections)
    }
}

fn at(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

fn packet(from: SocketAddr, to: SocketAddr, flags: TcpFlags, token: Option<u32>) -> Vec<u8> {
    let mut options = OptionWriter::default();
    if let Some(token) = token {
        options.push(&TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
            backup: false,
            address_id: 1,
            token,
            nonce: 1,
        })));
    }
    let options = options.finish();
    let tcp_len = 20 + options.len();
    let ip = IpHeader {
        src: from.ip(),
        dst: to.ip(),
        protocol: protocol::TCP,
        header_len: 20,
        total_len: 20 + tcp_len,
        traffic_class: 0,
        ttl: 64,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
    };
    let mut bytes = vec![0; 20 + tcp_len];
    ip.emit(tcp_len, &mut bytes);
    let segment = &mut bytes[20..];
    segment[..2].copy_from_slice(&from.port().to_be_bytes());
    segment[2..4].copy_from_slice(&to.port().to_be_bytes());
    segment[12] = u8::try_from(tcp_len / 4 * 16).expect("a header");
    segment[13] = u8::try_from(flags.0).expect("flags");
    segment[20..].copy_from_slice(options);
    bytes
}

/// An ICMP error about a packet that `to` has sent.
fn error_about(about: &[u8], to: SocketAddr) -> Vec<u8> {
    let mut error = vec![0; 28 + about.len()];
    let ip = IpHeader {
        src: at(77, 0).ip(),
        dst: to.ip(),
        protocol: protocol::ICMP,
        header_len: 20,
        total_len: error.len(),
        ..IpHeader::parse(about).expect("a packet")
    };
    ip.emit(8 + about.len(), &mut error);
    error[20] = 3;
    error[21] = 1;
    error[28..].copy_from_slice(about);
    let sum = Sum::of(&error[20..]).fold();
    error[22..24].copy_from_slice(&(!sum).to_be_bytes());
    error
}

/// The worker that gets the packet in the end, from whichever it comes to first.
fn owner_of(workers: &mut [Affinity], first: u16, packet: &[u8]) -> u16 {
    match workers[usize::from(first)].owner(packet) {
        Owner::This => first,
        Owner::Worker(worker) => worker,
        Owner::Directory(directory) => match workers[usize::from(directory)].owner(packet) {
            Owner::This => directory,
            Owner::Worker(worker) => worker,
            Owner::Directory(_) => panic!("the directory asks another"),
        },
    }
}

/// The same, whichever it comes to first.
fn agreed_owner(workers: &mut [Affinity], packet: &[u8]) -> u16 {
    let owner = owner_of(workers, 0, packet);
    for first in 1..WORKERS {
        assert_eq!(owner_of(workers, first, packet), owner);
    }
    owner
}

#[test]
fn both_directions_of_a_pair_of_ends_have_one_owner_and_all_workers_have_some() {
    let mut workers = workers_of(100);
    let mut owned = [0; WORKERS as usize];
    for port in (10_000..20_000).step_by(2) {
        let (client, server) = (at(2, port), at(3, 443));
        let syn = packet(client, server, TcpFlags::SYN, None);
        let owner = agreed_owner(&mut workers, &syn);
        let answer = packet(server, client, TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &answer), owner);
        owned[usize::from(owner)] += 1;
    }
    // 1000 each, give or take five standard deviations.
    assert!(owned.iter().all(|n| (850..1150).contains(n)), "{owned:?}");
}

#[test]
fn joined_subflow_follows_its_token() {
    let mut workers = workers_of(100);
    for n in 0..50 {
        let (client, server) = (at(4, 20_000 + n), at(3, 443));
        let token = u32::from(n) * 85_899_345;
        let syn = packet(client, server, TcpFlags::SYN, Some(token));
        let owner = of_token(token, WORKERS);
        assert_eq!(agreed_owner(&mut workers, &syn), owner);
        let later = packet(client, server, TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &later), owner);
    }
}

#[test]
fn ports_of_a_joined_subflow_may_be_used_anew() {
    let mut workers = workers_of(100);
    let (client, server) = (at(4, 20_000), at(3, 443));
    let hashed = agreed_owner(&mut workers, &packet(client, server, TcpFlags::ACK, None));
    for part in 0..WORKERS {
        let token = u32::MAX / u32::from(WORKERS) * u32::from(part) + 9;
        let syn = packet(client, server, TcpFlags::SYN, Some(token));
        agreed_owner(&mut workers, &syn);
        let later = packet(client, server, TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &later), part);
    }
    let syn = packet(client, server, TcpFlags::SYN, None);
    assert_eq!(agreed_owner(&mut workers, &syn), hashed);
    let later = packet(client, server, TcpFlags::ACK, None);
    assert_eq!(agreed_owner(&mut workers, &later), hashed);
}

#[test]
fn back_end_answers_the_worker_that_its_port_names() {
    let mut workers = workers_of(100);
    for port in 1000..=1099 {
        let packet = packet(at(9, 80), at(8, port), TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &packet), port % WORKERS);
    }
}

#[test]
fn joined_subflows_that_nobody_asks_for_are_forgotten_first() {
    let capacity = 8;
    let mut workers = workers_of(capacity);
    let token = 1 << 31;
    let owner = of_token(token, WORKERS);
    let mut kept = None;
    for port in 1..2000 {
        let (client, server) = (at(4, port), at(3, 443));
        agreed_owner(
            &mut workers,
            &packet(client, server, TcpFlags::SYN, Some(token)),
        );
        let first = *kept.get_or_insert(client);
        let later = packet(first, server, TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &later), owner, "{port}");
    }
    for worker in &workers {
        assert!(worker.joined.iter().all(|joined| joined.len() <= capacity));
    }
}

#[test]
fn error_goes_where_the_packet_came_from_that_it_is_about() {
    let mut workers = workers_of(100);
    for port in 10_000..10_050 {
        let (client, server) = (at(2, port), at(3, 443));
        let about = packet(server, client, TcpFlags::ACK, None);
        let owner = agreed_owner(&mut workers, &about);
        let error = error_about(&about, server);
        assert_eq!(agreed_owner(&mut workers, &error), owner);
    }
}

#[test]
fn ports_name_their_worker() {
    for workers in 1..=9 {
        let mut seen = 0;
        for worker in 0..workers {
            let share = Share { worker, workers };
            let mut ports: Vec<_> = (0..60)
                .filter_map(|n| share.port(&(1001..=1020), n))
                .collect();
            ports.sort_unstable();
            ports.dedup();
            assert!(
                ports
                    .iter()
                    .all(|p| p % workers == worker && (1001..=1020).contains(p))
            );
            seen += ports.len();
        }
        assert_eq!(seen, 20, "{workers} workers");
    }
    let share = Share {
        worker: 2,
        workers: 4,
    };
    assert_eq!(share.port(&(1000..=1001), 0), None);
    assert_eq!(share.port(&(65_535..=65_535), 0), None);
}

#[test]
fn tokens_are_shared_out() {
    let has = |worker, token| Share { worker, workers: 3 }.has_token(token);
    assert!(has(0, 0) && has(2, u32::MAX) && has(1, 1 << 31));
    assert!(!has(1, 0) && !has(0, u32::MAX));
}

#[test]
fn keys_and_ports_of_a_translator_name_its_worker() {
    for worker in 0..WORKERS {
        let share = Share {
            worker,
            workers: WORKERS,
        };
        let config = Config {
            share,
            ..config(100)
        };
        let mut translator = Translator::new(config, [1; 32]);
        for _ in 0..20 {
            assert!(share.has_token(translator.fresh_key().token));
            let back_end = translator
                .next_backend(crate::ServiceId(0), None, Choice::Any)
                .expect("a back end");
            assert_eq!(back_end.source.port() % WORKERS, worker);
        }
    }
}

#[test]
fn flow_of_a_connection_is_known_where_it_is_but_for_a_syn() {
    let share = Share {
        worker: 1,
        workers: 2,
    };
    let config = Config {
        share,
        ..config(100)
    };
    let mut translator = Translator::new(config, [1; 32]);
    let (client, listen) = (at(2, 5000), at(1, 80));
    let syn = packet(client, listen, TcpFlags::SYN, None);
    let later = packet(client, listen, TcpFlags::ACK, None);
    assert!(!translator.has_flow_of(&later));
    handle(&mut translator, &syn);
    assert!(translator.has_flow_of(&later));
    assert!(!translator.has_flow_of(&syn));
    assert!(!translator.has_flow_of(&packet(at(2, 5001), listen, TcpFlags::ACK, None)));
    assert!(!translator.has_flow_of(&later[..19]));
    let sent = |port| packet(listen, at(2, port), TcpFlags::ACK, None);
    assert!(translator.has_flow_of(&error_about(&sent(5000), listen)));
    assert!(!translator.has_flow_of(&error_about(&sent(5001), listen)));
}

/// Gives a whole packet to a translator.
fn handle(translator: &mut Translator, packet: &[u8]) {
    let mut buffer = vec![0; crate::HEADROOM];
    buffer.extend_from_slice(packet);
    let end = buffer.len();
    let offload = flexcp_wire::Offload {
        checksum: flexcp_wire::ChecksumState::Verified,
        gso: None,
    };
    let mut frame = crate::Frame::new(&mut buffer, crate::HEADROOM..end, offload);
    let _ = translator.handle_packet(crate::Instant(0), &mut frame);
}
