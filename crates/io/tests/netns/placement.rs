//! The placement program against the rules that workers go by: the queue that it chooses is the worker that they would
//! hand the packet to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flexcp_io::{PacketBuffer, PlacementProgram, Target, Tun};
use flexcp_placement::{BackEnds, FlowMap, Owner, Pair, Placement, Rules, Subject};
use flexcp_simulator::seeds;
use flexcp_testkit::{Packet, Random, icmp_error, ip_header};
use flexcp_wire::{Ends, MpJoin, MptcpOption, TcpFlags, TcpOption, Timestamps, protocol};

use crate::host::{DEVICE, ip};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("program_chooses_the_owner_v4", || agree(V4)),
    ("program_chooses_the_owner_v6", || agree(V6)),
    ("claimed_flow_goes_to_its_worker_alone", claims),
    ("queue_is_the_one_that_the_program_chooses", queues),
    ("scattered_packets_take_turns", scattered),
    (
        "placement_follows_back_ends_that_change",
        back_ends_that_change,
    ),
];

/// Of clients, of a service, of FlexCP towards back ends, of back ends.
type Nets = [[u8; 2]; 4];
const V4: Nets = [[10, 1], [10, 2], [10, 3], [10, 9]];
const V6: Nets = [[0xfd, 1], [0xfd, 2], [0xfd, 3], [0xfd, 9]];

const KEYS: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const FLOWS: u32 = 1024;

/// Workers by themselves, and the program that brings packets to them.
struct Both {
    workers: Vec<Placement>,
    program: PlacementProgram,
}

impl Both {
    fn new(nets: Nets, workers: u16) -> Self {
        let rules = rules(nets, workers);
        let program = PlacementProgram::load(&rules, Target::Owner, FLOWS);
        Self {
            workers: (0..workers)
                .map(|worker| Placement::new(worker, rules.clone(), 1 << 20))
                .collect(),
            program: program.unwrap_or_else(|error| panic!("{error}")),
        }
    }

    /// The worker that gets the packet in the end.
    fn owner(&mut self, packet: &[u8]) -> u32 {
        let subject = Subject::of(packet).expect("a packet of a flow");
        let owner = match self.workers[0].owner(subject) {
            Owner::Directory(directory) => {
                match self.workers[usize::from(directory)].owner(subject) {
                    Owner::This => directory,
                    Owner::Worker(worker) => worker,
                    Owner::Directory(_) => panic!("the directory asks another"),
                }
            }
            Owner::This => 0,
            Owner::Worker(worker) => worker,
        };
        owner.into()
    }

    #[track_caller]
    fn check(&mut self, what: &str, packet: &[u8]) -> u32 {
        let owner = self.owner(packet);
        let chosen = self.program.try_packet(packet).unwrap();
        assert_eq!(chosen, owner, "{what}: {packet:02x?}");
        owner
    }
}

fn rules(nets: Nets, workers: u16) -> Rules {
    let servers = vec![socket(nets, 3, 1, 80), socket(nets, 3, 2, 8080)];
    let back_ends = |ports, addrs| BackEnds {
        addrs,
        sources: vec![socket(nets, 2, 1, 0).ip(), socket(nets, 2, 2, 0).ip()],
        ports,
    };
    Rules {
        workers,
        hash_keys: KEYS,
        // Two services that share their back ends, and one whose clients name the server.
        back_ends: vec![
            back_ends(61000..=61999, Some(servers.clone())),
            back_ends(63000..=63999, Some(servers)),
            back_ends(64000..=64099, None),
        ],
    }
}

fn socket(nets: Nets, net: usize, host: u16, port: u16) -> SocketAddr {
    let [a, b] = nets[net];
    let [c, d] = host.to_be_bytes();
    let ip: IpAddr = if a == 10 {
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        let mut octets = [0; 16];
        (octets[0], octets[1], octets[14], octets[15]) = (a, b, c, d);
        Ipv6Addr::from(octets).into()
    };
    SocketAddr::new(ip, port)
}

fn segment<'a>(
    ends: Ends,
    flags: TcpFlags,
    options: impl IntoIterator<Item = TcpOption<'a>>,
) -> Vec<u8> {
    let packet = Packet::between(ends).flags(flags);
    packet.with_options(options).bytes()
}

/// A number below `end`.
fn below(numbers: &mut Random, end: u64) -> u16 {
    u16::try_from(numbers.below(end)).unwrap()
}

/// The options of a SYN that joins, in one of several orders.
fn join(token: u32, order: u16) -> Vec<TcpOption<'static>> {
    let join = TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
        backup: order % 2 == 1,
        address_id: 3,
        token,
        nonce: 0x1e0c_0102,
    }));
    let times = TcpOption::Timestamps(Timestamps { val: 1, ecr: 0 });
    let mut options = vec![
        TcpOption::Mss(1460),
        TcpOption::SackPermitted,
        times,
        TcpOption::WindowScale(7),
    ];
    options.insert(usize::from(order % 4), join);
    options
}

/// An ICMP error about `packet`, from somewhere on its way.
fn error_about(packet: &[u8], ends: Ends, about_len: usize, kind: usize) -> Vec<u8> {
    let (types, protocol): (&[u8], _) = if ends.from.is_ipv4() {
        (&[3, 11], protocol::ICMP)
    } else {
        (&[1, 2, 3], protocol::ICMPV6)
    };
    let header = ip_header(ends.to.ip(), ends.from.ip(), protocol);
    let quoted = &packet[..about_len.min(packet.len())];
    icmp_error(&header, (types[kind % types.len()], 0), 1280, quoted)
}

fn agree(nets: Nets) {
    for seed in seeds(1..2, 1) {
        agree_with(nets, seed);
    }
}

fn agree_with(nets: Nets, seed: u64) {
    let mut numbers = Random::new(seed);
    for workers in [1, 2, 3, 4, 7, 64] {
        let mut both = Both::new(nets, workers);
        // The only worker never asks.
        let mut seen = vec![0; workers.into()];
        for round in 0..200 {
            let what = format!("seed {seed}, {workers} workers, round {round}");
            seen[initial(&mut both, nets, &mut numbers, &what) as usize] += 1;
            joined(&mut both, nets, &mut numbers, &what);
            from_back_end(&mut both, nets, &mut numbers, &what);
        }
        let used = seen.iter().filter(|count| **count > 0).count();
        assert!(used * 10 >= usize::from(workers) * 8, "{seen:?}");
    }
}

/// An initial subflow, and the server's side of it in transparent mode. Gives its worker.
fn initial(both: &mut Both, nets: Nets, numbers: &mut Random, what: &str) -> u32 {
    let (client, server) = (
        socket(nets, 0, below(numbers, 9), 1024 + below(numbers, 60_000)),
        socket(nets, 1, below(numbers, 9), 1 + below(numbers, 1000)),
    );
    let up = Ends {
        from: client,
        to: server,
    };
    let down = Ends {
        from: server,
        to: client,
    };
    let owner = both.check(what, &segment(up, TcpFlags::SYN, []));
    let answer = segment(down, TcpFlags::SYN | TcpFlags::ACK, [TcpOption::Mss(1460)]);
    assert_eq!(both.check(what, &answer), owner);
    for ends in [up, down] {
        let times = TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 });
        let data = segment(ends, TcpFlags::ACK, [times]);
        assert_eq!(both.check(what, &data), owner);
        let kind = below(numbers, 3).into();
        let error = error_about(&data, ends, 48 + usize::from(below(numbers, 20)), kind);
        assert_eq!(both.check(what, &error), owner);
    }
    owner
}

/// A joined subflow, whose worker claims it; then its ends come anew, without a connection.
fn joined(both: &mut Both, nets: Nets, numbers: &mut Random, what: &str) {
    let ends = Ends {
        from: socket(nets, 0, 50, 1024 + below(numbers, 60_000)),
        to: socket(nets, 1, 1, 443),
    };
    let token = u32::try_from(numbers.next() >> 32).unwrap();
    let syn = segment(ends, TcpFlags::SYN, join(token, below(numbers, 8)));
    let owner = both.check(what, &syn);
    let mut flows = both.program.flows(u16::try_from(owner).unwrap()).unwrap();
    assert!(flows.claim(Pair::of(ends)));
    let data = segment(ends, TcpFlags::ACK, []);
    assert_eq!(both.check(what, &data), owner);
    let sent = Ends {
        from: ends.to,
        to: ends.from,
    };
    let error = error_about(&segment(sent, TcpFlags::ACK, []), sent, 60, 0);
    assert_eq!(both.check(what, &error), owner);
    flows.give_up(Pair::of(ends));
    // No join: the same ends are an initial subflow's.
    both.check(what, &segment(ends, TcpFlags::SYN, []));
    both.check(what, &data);
}

/// What a back end sends, and what is only like it.
fn from_back_end(both: &mut Both, nets: Nets, numbers: &mut Random, what: &str) {
    let backends = [socket(nets, 3, 1, 80), socket(nets, 3, 2, 8080)];
    let other = [socket(nets, 3, 1, 81), socket(nets, 3, 3, 80)];
    let source = socket(
        nets,
        2,
        1 + below(numbers, 3),
        60_900 + below(numbers, 3300),
    );
    for from in backends.into_iter().chain(other) {
        let ends = Ends { from, to: source };
        both.check(what, &segment(ends, TcpFlags::ACK, []));
        let sent = Ends {
            from: source,
            to: from,
        };
        let error = error_about(&segment(sent, TcpFlags::ACK, []), sent, 60, 1);
        both.check(what, &error);
    }
}

fn claims() {
    let mut both = Both::new(V4, 4);
    let ends = Ends {
        from: socket(V4, 0, 1, 5000),
        to: socket(V4, 1, 1, 80),
    };
    let data = segment(ends, TcpFlags::ACK, []);
    let by_hash = both.check("not claimed", &data);
    let [first, second] = [1, 2].map(|n| u16::try_from((by_hash + n) % 4).unwrap());
    let mut of_first = both.program.flows(first).unwrap();
    let mut of_second = both.program.flows(second).unwrap();
    assert!(of_first.claim(Pair::of(ends)));
    assert_eq!(both.program.try_packet(&data).unwrap(), u32::from(first));
    // A SYN without MP_JOIN meets whoever has the flow.
    let syn = segment(ends, TcpFlags::SYN, []);
    assert_eq!(both.program.try_packet(&syn).unwrap(), u32::from(first));
    // The client has joined another connection from there; the first worker finds out late.
    assert!(of_second.claim(Pair::of(ends)));
    of_first.give_up(Pair::of(ends));
    assert_eq!(both.program.try_packet(&data).unwrap(), u32::from(second));
    of_second.give_up(Pair::of(ends));
    assert_eq!(both.program.try_packet(&data).unwrap(), by_hash);
    // There is room for so many and no more.
    let taken = (0..=FLOWS).filter(|n| {
        let from = socket(V4, 0, 2, 10_000 + u16::try_from(*n).unwrap());
        of_first.claim(Pair::of(Ends { from, ..ends }))
    });
    assert_eq!(taken.count(), FLOWS as usize);
}

/// What the kernel sends through the device comes to the queue that the program names.
fn queues() {
    const QUEUES: u16 = 3;
    let first = Tun::open(DEVICE).unwrap();
    let rules = rules(V4, QUEUES);
    let program =
        PlacementProgram::load(&rules, Target::Owner, 16).unwrap_or_else(|error| panic!("{error}"));
    let more = (1..QUEUES).map(|_| first.another_queue().unwrap());
    let mut queues: Vec<_> = more.collect();
    queues.insert(0, first);
    program
        .attach(&queues[1])
        .unwrap_or_else(|error| panic!("{error}"));
    ip(&format!("link set {DEVICE} up"));
    ip(&format!("addr add 10.1.0.1/24 dev {DEVICE}"));
    ip(&format!("-6 addr add fd01::1/64 dev {DEVICE} nodad"));
    let mut buffer = PacketBuffer::new();
    let mut seen = [0; QUEUES as usize];
    for n in 0..40 {
        let to: SocketAddr = if n % 2 == 0 {
            ([10, 1, 0, 2], 80).into()
        } else {
            ("fd01::2".parse::<IpAddr>().unwrap(), 80).into()
        };
        // Nobody answers: one SYN is all that comes.
        let _ = TcpStream::connect_timeout(&to, Duration::from_millis(1));
        let deadline = Instant::now() + Duration::from_secs(5);
        let (queue, ends) = loop {
            assert!(Instant::now() < deadline, "no SYN");
            let syn = queues.iter().enumerate().find_map(|(number, queue)| {
                let frame = queue.receive(&mut buffer).unwrap()?;
                Packet::parse(frame.packet()).map(|packet| (number, packet.ends()))
            });
            if let Some(syn) = syn {
                break syn;
            }
        };
        assert_eq!(usize::from(rules.of_ends(ends)), queue);
        seen[queue] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

fn back_ends_that_change() {
    let first = rules(V4, 4);
    let program =
        PlacementProgram::load(&first, Target::Owner, 16).unwrap_or_else(|error| panic!("{error}"));
    let mut back_ends = program.back_ends().unwrap();
    let new = socket(V4, 3, 9, 80);
    let mut second = first.clone();
    for addrs in second
        .back_ends
        .iter_mut()
        .filter_map(|known| known.addrs.as_mut())
    {
        addrs[0] = new;
    }
    let chosen = |from, port| {
        let to = SocketAddr::new(socket(V4, 2, 1, 0).ip(), port);
        let data = segment(Ends { from, to }, TcpFlags::ACK, []);
        program.try_packet(&data).unwrap()
    };
    let (old, stays) = (socket(V4, 3, 1, 80), socket(V4, 3, 2, 8080));
    let by_port = |from| (61_000..61_040).all(|port| chosen(from, port) == u32::from(port % 4));
    let which = || [old, stays, new].map(by_port);
    assert_eq!(which(), [true, true, false]);
    back_ends.change(&second).unwrap();
    assert_eq!(which(), [false, true, true]);
    back_ends.change(&first).unwrap();
    assert_eq!(which(), [true, true, false]);
    second.back_ends.clear();
    back_ends.change(&second).unwrap();
    assert_eq!(which(), [false; 3]);
}

fn scattered() {
    let rules = rules(V4, 3);
    let program = PlacementProgram::load(&rules, Target::Scatter, 1)
        .unwrap_or_else(|error| panic!("{error}"));
    let ends = Ends {
        from: socket(V4, 0, 1, 5000),
        to: socket(V4, 1, 1, 80),
    };
    let data = segment(ends, TcpFlags::ACK, []);
    let mut seen = [0; 3];
    for _ in 0..30 {
        seen[program.try_packet(&data).unwrap() as usize] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
