//! The steering program against the rules that workers go by: the queue that it chooses is the worker that they would
//! hand the packet to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flexcp_io::{PacketBuffer, Steering, Target, Tun};
use flexcp_simulator::seeds;
use flexcp_translator::{
    Affinity, Config, Ends, FlowMap, Mode, Owner, Pair, Rules, Service, Share,
};
use flexcp_wire::{
    IpHeader, MpJoin, MptcpOption, OptionWriter, Sum, TcpFlags, TcpHeader, TcpOption, Timestamps,
    protocol,
};

use crate::host::{DEVICE, ip};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("program_chooses_the_owner_v4", || agree(V4)),
    ("program_chooses_the_owner_v6", || agree(V6)),
    ("claimed_flow_goes_to_its_worker_alone", claims),
    ("queue_is_the_one_that_the_program_chooses", queues),
    ("scattered_packets_take_turns", scattered),
    (
        "steering_follows_back_ends_that_change",
        back_ends_that_change,
    ),
];

/// Of clients, of a service, of FlexCP towards back ends, of back ends.
type Nets = [[u8; 2]; 4];
const V4: Nets = [[10, 1], [10, 2], [10, 3], [10, 9]];
const V6: Nets = [[0xfd, 1], [0xfd, 2], [0xfd, 3], [0xfd, 9]];

const KEYS: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const FLOWS: u32 = 1024;

/// Workers that nobody steers, and the program that steers.
struct Both {
    workers: Vec<Affinity>,
    steering: Steering,
}

impl Both {
    fn new(nets: Nets, workers: u16) -> Self {
        let config = |worker| config(nets, Share { worker, workers });
        let rules = Rules::new(&config(0), KEYS);
        let steering = Steering::load(&rules, Target::Owner, FLOWS);
        Self {
            workers: (0..workers)
                .map(|worker| Affinity::new(&config(worker), KEYS))
                .collect(),
            steering: steering.unwrap_or_else(|error| panic!("{error}")),
        }
    }

    /// The worker that gets the packet in the end.
    fn owner(&mut self, packet: &[u8]) -> u32 {
        let owner = match self.workers[0].owner(packet) {
            Owner::Directory(directory) => {
                match self.workers[usize::from(directory)].owner(packet) {
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
        let chosen = self.steering.try_packet(packet).unwrap();
        assert_eq!(chosen, owner, "{what}: {packet:02x?}");
        owner
    }
}

fn config(nets: Nets, share: Share) -> Config {
    let reverse = |ports| Service {
        id: flexcp_translator::ServiceId(0),
        name: String::new(),
        mode: Mode::Reverse {
            listen: vec![socket(nets, 1, 1, 80)],
            backends: vec![socket(nets, 3, 1, 80), socket(nets, 3, 2, 8080)],
            source: vec![socket(nets, 2, 1, 0).ip(), socket(nets, 2, 2, 0).ip()],
            source_ports: ports,
        },
        announce: vec![],
    };
    Config {
        // Two that share their back ends.
        services: vec![reverse(61000..=61999), reverse(63000..=63999)],
        share,
        ..Config::default()
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

/// Numbers from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u16 {
        u16::try_from(self.next() % end).unwrap()
    }
}

fn ip_header(from: IpAddr, to: IpAddr, protocol: u8) -> IpHeader {
    IpHeader {
        src: from,
        dst: to,
        protocol,
        header_len: 0,
        total_len: 0,
        traffic_class: 0,
        ttl: 64,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
    }
}

fn with_ip(header: IpHeader, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; header.emitted_len()];
    header.emit(body.len(), &mut packet);
    packet.extend_from_slice(body);
    packet
}

fn segment(ends: Ends, flags: TcpFlags, options: &[u8]) -> Vec<u8> {
    let header = TcpHeader {
        src_port: ends.from.port(),
        dst_port: ends.to.port(),
        flags,
        ..TcpHeader::default()
    };
    let mut segment = vec![0; 20];
    header.emit(options.len(), &mut segment);
    segment.extend_from_slice(options);
    with_ip(
        ip_header(ends.from.ip(), ends.to.ip(), protocol::TCP),
        &segment,
    )
}

/// The options of a SYN that joins, in one of several orders.
fn join(token: u32, order: u16) -> Vec<u8> {
    let join = TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
        backup: order % 2 == 1,
        address_id: 3,
        token,
        nonce: 0x1e0c_0102,
    }));
    let times = TcpOption::Timestamps(Timestamps { val: 1, ecr: 0 });
    let all = [
        TcpOption::Mss(1460),
        TcpOption::SackPermitted,
        times,
        TcpOption::WindowScale(7),
    ];
    let mut options = OptionWriter::default();
    for (at, option) in all.iter().enumerate() {
        if at == usize::from(order % 4) {
            options.push(&join);
        }
        options.push(option);
    }
    options.finish().to_vec()
}

/// An ICMP error about `packet`, from somewhere on its way.
fn error_about(packet: &[u8], ends: Ends, about_len: usize, kind: usize) -> Vec<u8> {
    let v4 = ends.from.is_ipv4();
    let types: &[u8] = if v4 { &[3, 11] } else { &[1, 2, 3] };
    let mut message = vec![types[kind % types.len()], 0, 0, 0, 0, 0, 5, 0];
    message.extend_from_slice(&packet[..about_len.min(packet.len())]);
    let protocol = if v4 { protocol::ICMP } else { protocol::ICMPV6 };
    let header = ip_header(ends.to.ip(), ends.from.ip(), protocol);
    let sum = Sum::of(&message).fold();
    message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    with_ip(header, &message)
}

fn agree(nets: Nets) {
    for seed in seeds(1..2, 1) {
        agree_with(nets, seed);
    }
}

fn agree_with(nets: Nets, seed: u64) {
    let mut numbers = Numbers(seed);
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
fn initial(both: &mut Both, nets: Nets, numbers: &mut Numbers, what: &str) -> u32 {
    let (client, server) = (
        socket(nets, 0, numbers.below(9), 1024 + numbers.below(60_000)),
        socket(nets, 1, numbers.below(9), 1 + numbers.below(1000)),
    );
    let up = Ends {
        from: client,
        to: server,
    };
    let down = Ends {
        from: server,
        to: client,
    };
    let owner = both.check(what, &segment(up, TcpFlags::SYN, &[]));
    let answer = segment(down, TcpFlags::SYN | TcpFlags::ACK, &[2, 4, 5, 0xb4]);
    assert_eq!(both.check(what, &answer), owner);
    for ends in [up, down] {
        let data = segment(ends, TcpFlags::ACK, &[1; 8]);
        assert_eq!(both.check(what, &data), owner);
        let kind = numbers.below(3).into();
        let error = error_about(&data, ends, 48 + usize::from(numbers.below(20)), kind);
        assert_eq!(both.check(what, &error), owner);
    }
    owner
}

/// A joined subflow, whose worker claims it; then its ends come anew, without a connection.
fn joined(both: &mut Both, nets: Nets, numbers: &mut Numbers, what: &str) {
    let ends = Ends {
        from: socket(nets, 0, 50, 1024 + numbers.below(60_000)),
        to: socket(nets, 1, 1, 443),
    };
    let token = u32::try_from(numbers.next() >> 32).unwrap();
    let syn = segment(ends, TcpFlags::SYN, &join(token, numbers.below(8)));
    let owner = both.check(what, &syn);
    let mut flows = both.steering.flows(u16::try_from(owner).unwrap()).unwrap();
    assert!(flows.claim(Pair::of(ends)));
    let data = segment(ends, TcpFlags::ACK, &[]);
    assert_eq!(both.check(what, &data), owner);
    let sent = Ends {
        from: ends.to,
        to: ends.from,
    };
    let error = error_about(&segment(sent, TcpFlags::ACK, &[]), sent, 60, 0);
    assert_eq!(both.check(what, &error), owner);
    flows.give_up(Pair::of(ends));
    // No join: the same ends are an initial subflow's.
    both.check(what, &segment(ends, TcpFlags::SYN, &[]));
    both.check(what, &data);
}

/// What a back end sends, and what is only like it.
fn from_back_end(both: &mut Both, nets: Nets, numbers: &mut Numbers, what: &str) {
    let backends = [socket(nets, 3, 1, 80), socket(nets, 3, 2, 8080)];
    let other = [socket(nets, 3, 1, 81), socket(nets, 3, 3, 80)];
    let source = socket(nets, 2, 1 + numbers.below(3), 60_900 + numbers.below(3300));
    for from in backends.into_iter().chain(other) {
        let ends = Ends { from, to: source };
        both.check(what, &segment(ends, TcpFlags::ACK, &[]));
        let sent = Ends {
            from: source,
            to: from,
        };
        let error = error_about(&segment(sent, TcpFlags::ACK, &[]), sent, 60, 1);
        both.check(what, &error);
    }
}

fn claims() {
    let mut both = Both::new(V4, 4);
    let ends = Ends {
        from: socket(V4, 0, 1, 5000),
        to: socket(V4, 1, 1, 80),
    };
    let data = segment(ends, TcpFlags::ACK, &[]);
    let by_hash = both.check("not claimed", &data);
    let [first, second] = [1, 2].map(|n| u16::try_from((by_hash + n) % 4).unwrap());
    let mut of_first = both.steering.flows(first).unwrap();
    let mut of_second = both.steering.flows(second).unwrap();
    assert!(of_first.claim(Pair::of(ends)));
    assert_eq!(both.steering.try_packet(&data).unwrap(), u32::from(first));
    // A SYN without MP_JOIN meets whoever has the flow.
    let syn = segment(ends, TcpFlags::SYN, &[]);
    assert_eq!(both.steering.try_packet(&syn).unwrap(), u32::from(first));
    // The client has joined another connection from there; the first worker finds out late.
    assert!(of_second.claim(Pair::of(ends)));
    of_first.give_up(Pair::of(ends));
    assert_eq!(both.steering.try_packet(&data).unwrap(), u32::from(second));
    of_second.give_up(Pair::of(ends));
    assert_eq!(both.steering.try_packet(&data).unwrap(), by_hash);
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
    let share = Share {
        worker: 0,
        workers: QUEUES,
    };
    let first = Tun::open(DEVICE).unwrap();
    let rules = Rules::new(&config(V4, share), KEYS);
    let steering =
        Steering::load(&rules, Target::Owner, 16).unwrap_or_else(|error| panic!("{error}"));
    let more = (1..QUEUES).map(|_| first.another_queue().unwrap());
    let mut queues: Vec<_> = more.collect();
    queues.insert(0, first);
    steering
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
        let (queue, packet) = loop {
            assert!(Instant::now() < deadline, "no SYN");
            let syn = queues.iter().enumerate().find_map(|(number, queue)| {
                let frame = queue.receive(&mut buffer).unwrap()?;
                let packet = frame.packet().to_vec();
                let tcp = IpHeader::parse(&packet).is_ok_and(|ip| ip.protocol == protocol::TCP);
                tcp.then_some((number, packet))
            });
            if let Some(syn) = syn {
                break syn;
            }
        };
        let (ip, ports) = (IpHeader::parse(&packet).unwrap(), [0, 2]);
        let [from, to] = ports.map(|at| {
            let port = &packet[ip.header_len + at..][..2];
            u16::from_be_bytes(port.try_into().unwrap())
        });
        let ends = Ends {
            from: (ip.src, from).into(),
            to: (ip.dst, to).into(),
        };
        assert_eq!(usize::from(rules.of_ends(ends)), queue);
        seen[queue] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

fn back_ends_that_change() {
    let share = Share {
        worker: 0,
        workers: 4,
    };
    let mut config = config(V4, share);
    let first = Rules::new(&config, KEYS);
    let steering =
        Steering::load(&first, Target::Owner, 16).unwrap_or_else(|error| panic!("{error}"));
    let mut back_ends = steering.back_ends().unwrap();
    let new = socket(V4, 3, 9, 80);
    for service in &mut config.services {
        if let Mode::Reverse { backends, .. } = &mut service.mode {
            backends[0] = new;
        }
    }
    let second = Rules::new(&config, KEYS);
    let chosen = |from, port| {
        let to = SocketAddr::new(socket(V4, 2, 1, 0).ip(), port);
        let data = segment(Ends { from, to }, TcpFlags::ACK, &[]);
        steering.try_packet(&data).unwrap()
    };
    let (old, stays) = (socket(V4, 3, 1, 80), socket(V4, 3, 2, 8080));
    let by_port = |from| (61_000..61_040).all(|port| chosen(from, port) == u32::from(port % 4));
    let which = || [old, stays, new].map(by_port);
    assert_eq!(which(), [true, true, false]);
    back_ends.change(&second).unwrap();
    assert_eq!(which(), [false, true, true]);
    back_ends.change(&first).unwrap();
    assert_eq!(which(), [true, true, false]);
    config.services.clear();
    back_ends.change(&Rules::new(&config, KEYS)).unwrap();
    assert_eq!(which(), [false; 3]);
}

fn scattered() {
    let share = Share {
        worker: 0,
        workers: 3,
    };
    let rules = Rules::new(&config(V4, share), KEYS);
    let steering =
        Steering::load(&rules, Target::Scatter, 1).unwrap_or_else(|error| panic!("{error}"));
    let ends = Ends {
        from: socket(V4, 0, 1, 5000),
        to: socket(V4, 1, 1, 80),
    };
    let data = segment(ends, TcpFlags::ACK, &[]);
    let mut seen = [0; 3];
    for _ in 0..30 {
        seen[steering.try_packet(&data).unwrap() as usize] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
