use core::net::SocketAddr;

use alloc::vec;
use alloc::vec::Vec;

use flexcp_testkit::{Packet, icmp_error, ip_header};
use flexcp_wire::{Ends, MpJoin, MptcpOption, TcpFlags, TcpOption, protocol};

mod claims;

use super::*;
use crate::rules::of_token;

const WORKERS: u16 = 5;

fn rules() -> Rules {
    Rules {
        workers: WORKERS,
        hash_keys: (7, 9),
        back_ends: vec![BackEnds {
            addrs: Some(vec![at(9, 80)]),
            sources: vec![at(8, 0).ip()],
            ports: 1000..=1099,
        }],
    }
}

fn workers_of(connections: usize) -> Vec<Placement> {
    (0..WORKERS)
        .map(|worker| Placement::new(worker, rules(), connections))
        .collect()
}

fn at(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

fn packet(from: SocketAddr, to: SocketAddr, flags: TcpFlags, token: Option<u32>) -> Vec<u8> {
    let join = |token| {
        TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
            backup: false,
            address_id: 1,
            token,
            nonce: 1,
        }))
    };
    let packet = Packet::new(from, to).flags(flags);
    packet.with_options(token.map(join)).bytes()
}

/// An ICMP error about a packet that `to` has sent.
fn error_about(about: &[u8], to: SocketAddr) -> Vec<u8> {
    let header = ip_header(at(77, 0).ip(), to.ip(), protocol::ICMP);
    icmp_error(&header, (3, 1), 0, about)
}

/// The worker that gets the packet in the end, from whichever it comes to first.
fn owner_of(workers: &mut [Placement], first: u16, packet: &[u8]) -> u16 {
    let subject = Subject::of(packet).expect("a packet of a flow");
    match workers[usize::from(first)].owner(subject) {
        Owner::This => first,
        Owner::Worker(worker) => worker,
        Owner::Directory(directory) => match workers[usize::from(directory)].owner(subject) {
            Owner::This => directory,
            Owner::Worker(worker) => worker,
            Owner::Directory(_) => panic!("the directory asks another"),
        },
    }
}

/// The same, whichever it comes to first.
fn agreed_owner(workers: &mut [Placement], packet: &[u8]) -> u16 {
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
fn what_is_only_like_a_back_ends_goes_by_its_ends() {
    let mut workers = workers_of(100);
    for port in 1000..=1099 {
        // From another port or host, to another address, to a port beyond the range.
        let alike = [
            (at(9, 81), at(8, port)),
            (at(7, 80), at(8, port)),
            (at(9, 80), at(6, port)),
            (at(9, 80), at(8, port + 100)),
        ];
        for (from, to) in alike {
            let there = packet(from, to, TcpFlags::ACK, None);
            let back = packet(to, from, TcpFlags::ACK, None);
            let owner = agreed_owner(&mut workers, &there);
            assert_eq!(agreed_owner(&mut workers, &back), owner, "{from} to {to}");
        }
    }
}

#[test]
fn joined_subflows_that_nobody_asks_for_are_forgotten_first() {
    let capacity = 8;
    let mut workers = workers_of(capacity);
    let token = 1 << 31;
    let owner = of_token(token, WORKERS);
    let server = at(3, 443);
    // One whose directory is another worker: its owner has to be remembered.
    let of_ends = |client| {
        let to_server = Ends {
            from: client,
            to: server,
        };
        rules().of_ends(to_server)
    };
    let first = (1..).map(|port| at(4, port)).find(|c| of_ends(*c) != owner);
    let first = first.expect("most of them");
    for port in first.port()..2000 {
        let syn = packet(at(4, port), server, TcpFlags::SYN, Some(token));
        agreed_owner(&mut workers, &syn);
        let later = packet(first, server, TcpFlags::ACK, None);
        assert_eq!(agreed_owner(&mut workers, &later), owner, "{port}");
    }
    for worker in &workers {
        assert!(worker.remembered().iter().all(|len| *len <= capacity));
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
fn subject_is_read_from_segments_and_from_what_errors_quote() {
    let ends = Ends {
        from: at(2, 5000),
        to: at(3, 443),
    };
    let of = |flags, token| Subject::of(&packet(ends.from, ends.to, flags, token));
    let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
    assert_eq!(of(syn, None), Some(Subject::Opening(ends)));
    let token = 77;
    let joining = Subject::Joining { ends, token };
    assert_eq!(of(syn, Some(token)), Some(joining));
    // The answer to a SYN opens nothing, whatever its options.
    for flags in [ack, syn | ack, TcpFlags::RST] {
        assert_eq!(of(flags, Some(token)), Some(Subject::Flow(ends)));
    }
    let sent = packet(ends.to, ends.from, ack, None);
    let error = error_about(&sent, ends.to);
    assert_eq!(Subject::of(&error), Some(Subject::Flow(ends)));
}

#[test]
fn what_belongs_to_no_connection_has_no_subject() {
    let segment = packet(at(2, 5000), at(3, 443), TcpFlags::ACK, None);
    for len in 0..segment.len() {
        assert_eq!(Subject::of(&segment[..len]), None, "{len} bytes");
    }
    let mut datagram = segment.clone();
    datagram[9] = 17;
    assert_eq!(Subject::of(&datagram), None);
    let mut ping = error_about(&segment, at(2, 5000));
    ping[20] = 8;
    assert_eq!(Subject::of(&ping), None);
}

#[test]
fn only_worker_asks_nobody() {
    let rules = Rules {
        workers: 1,
        ..rules()
    };
    let mut placement = Placement::new(0, rules, 100);
    for token in [None, Some(u32::MAX)] {
        let syn = packet(at(2, 5000), at(3, 443), TcpFlags::SYN, token);
        let subject = Subject::of(&syn).expect("a SYN");
        assert_eq!(placement.owner(subject), Owner::This);
    }
}
