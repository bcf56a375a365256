//! Real workers, on threads of their own, whose device is one end of a pair of sockets: what passes there is counted
//! by the test, which shares nothing with the workers.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flexcp_io::Tun;
use flexcp_placement::Share;
use flexcp_testkit as testkit;
use flexcp_translator::{Config, Mode, Prefix, Service, ServiceId, Timeouts};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, DataNumber, Dsn, Dss, Gso, GsoKind, MpCapable,
    MpJoin, MptcpOption, Offload, TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOption, VNET_HEADER_LEN,
    emit_vnet,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::*;

mod reads;

/// Workers, and the other ends of their devices.
struct Bench {
    far: Vec<OwnedFd>,
    handles: Vec<WorkerHandle>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    put_in: u64,
    came_out: Vec<Vec<u8>>,
}

impl Bench {
    fn of(workers: u16) -> Self {
        Self::with(workers, |_| {})
    }

    /// The same with something of their configuration changed.
    fn with(workers: u16, change: impl Fn(&mut Config)) -> Self {
        let pair = || {
            let flags = SocketFlags::CLOEXEC;
            let family = AddressFamily::UNIX;
            rustix::net::socketpair(family, SocketType::SEQPACKET, flags, None).expect("sockets")
        };
        let (near, far): (Vec<_>, Vec<_>) = (0..workers).map(|_| pair()).unzip();
        let queue = |(number, fd)| {
            let mut config = config(Share {
                worker: u16::try_from(number).expect("few"),
                workers,
            });
            change(&mut config);
            (Tun::over(fd, "test").expect("a descriptor"), config)
        };
        let queues = near.into_iter().enumerate().map(queue).collect();
        let made = Worker::all(queues, (1, 2), [3; 32]).expect("workers");
        let (workers, handles): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let threads = workers
            .into_iter()
            .map(|w| spawn(w, || {}).expect("a thread"));
        Self {
            far,
            handles,
            threads: threads.collect(),
            put_in: 0,
            came_out: vec![],
        }
    }

    /// Gives the packet to the queue of a worker, with its virtio-net header.
    fn put(&mut self, queue: usize, packet: &[u8]) {
        rustix::net::send(&self.far[queue], packet, SendFlags::empty()).expect("a queue");
        self.put_in += 1;
        self.take();
    }

    /// Takes what has come out so far.
    fn take(&mut self) {
        let mut buffer = vec![0; 1 << 17];
        for far in &self.far {
            while let Ok((_, len)) = rustix::net::recv(far, &mut buffer, RecvFlags::DONTWAIT) {
                self.came_out.push(buffer[..len].to_vec());
            }
        }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        let asked = self.handles.iter().map(WorkerHandle::stats);
        asked.map(|stats| stats.expect("an answer")).collect()
    }

    /// Waits until the workers have handled all that was put in; what they say then.
    fn settled(&mut self) -> Vec<Snapshot> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.take();
            let said = self.snapshots();
            let sum = |of: fn(&Snapshot) -> u64| said.iter().map(of).sum::<u64>();
            let in_rings = sum(|s| s.carrier.handed_over) - sum(|s| s.carrier.taken_over);
            if sum(|s| s.carrier.device_rx) == self.put_in && in_rings == 0 {
                self.take();
                return said;
            }
            assert!(Instant::now() < deadline, "{said:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a packet that `fits`, and takes it out of what has come.
    fn next(&mut self, fits: impl Fn(&Seen) -> bool) -> Seen {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let at = self
                .came_out
                .iter()
                .position(|bytes| fits(&Seen::of(bytes)));
            if let Some(at) = at {
                // It stays counted.
                return Seen::of(&self.came_out[at]);
            }
            assert!(Instant::now() < deadline, "no such packet");
            thread::sleep(Duration::from_millis(1));
            self.take();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.handles.iter().for_each(WorkerHandle::stop);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok_and(|end| end.is_ok()));
        }
    }
}

fn config(share: Share) -> Config {
    Config {
        services: vec![Service {
            id: ServiceId(0),
            name: "web".into(),
            mode: Mode::Transparent {
                destinations: vec![Prefix {
                    addr: [10, 9, 0, 0].into(),
                    len: 16,
                }],
                ports: vec![],
                end_to_end: false,
            },
            announce: vec![],
            intake: flexcp_translator::Intake::default(),
        }],
        timeouts: Timeouts {
            half_open: Duration::from_millis(300),
            linger: Duration::from_millis(300),
            ..Timeouts::default()
        },
        share,
        ..Config::default()
    }
}

/// What the test needs to know of a packet that came out.
#[derive(Clone, Debug)]
struct Seen {
    from: SocketAddr,
    to: SocketAddr,
    tcp: TcpHeader,
    /// FlexCP's key in a SYN/ACK.
    key: Option<u64>,
    /// Data sequence number of the first byte.
    dsn: Option<u64>,
}

impl Seen {
    fn of(bytes: &[u8]) -> Self {
        let packet = testkit::Packet::parse(&bytes[VNET_HEADER_LEN..]).expect("TCP");
        let (ends, view) = (packet.ends(), packet.view());
        let mapping = view.dss.and_then(|dss| dss.mapping);
        Self {
            from: ends.from,
            to: ends.to,
            tcp: packet.tcp,
            key: view.key(),
            dsn: mapping.map(|mapping| mapping.dsn.expand(Dsn(0)).0),
        }
    }
}

/// A packet, in the order in which a test says what matters.
struct Packet<'a> {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    options: &'a [TcpOption<'a>],
    payload: usize,
    gso: Option<u16>,
}

impl Packet<'_> {
    fn bytes(&self) -> Vec<u8> {
        let packet = testkit::Packet::new(self.from, self.to)
            .flags(self.flags)
            .numbers(self.seq, self.ack)
            .with_options(self.options.iter().copied())
            .with_payload(vec![0; self.payload]);
        let gso = self.gso.map(|size| Gso {
            kind: GsoKind::TcpV4,
            size,
            ecn: false,
        });
        let offload = Offload {
            checksum: if gso.is_some() {
                ChecksumState::Partial
            } else {
                ChecksumState::Verified
            },
            gso,
        };
        let tcp_len = TCP_HEADER_LEN + packet.options.len();
        let mut bytes = vec![0; VNET_HEADER_LEN];
        let vnet = bytes.first_chunk_mut().expect("room");
        emit_vnet(&offload, packet.ip.emitted_len(), tcp_len, vnet);
        bytes.extend(packet.bytes_in(offload.checksum));
        bytes
    }
}

const SERVER: ([u8; 4], u16) = ([10, 9, 0, 2], 80);
const ISN_CLIENT: u32 = 1000;
const ISN_SERVER: u32 = 5000;

fn client(number: u16) -> SocketAddr {
    ([10, 1, 0, 2], 20_000 + number).into()
}

fn capable(keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }))
}

fn data_ack(dsn: u64) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: Some(DataNumber::Long(dsn)),
        ..Dss::default()
    }))
}

fn packet<'a>(from: SocketAddr, to: SocketAddr, flags: TcpFlags, at: (u32, u32)) -> Packet<'a> {
    Packet {
        from,
        to,
        seq: at.0,
        ack: at.1,
        flags,
        options: &[],
        payload: 0,
        gso: None,
    }
}

/// A connection from the client's first SYN on: data both ways, ACKs that follow each other closely, and segments put
/// together. Packets go to the queues by turns, as if nobody had chosen them.
fn converse(bench: &mut Bench, number: u16, mptcp: bool) {
    let (client, server) = (client(number), SocketAddr::from(SERVER));
    let queues = bench.far.len();
    let mut turn = usize::from(number);
    let mut put = |bench: &mut Bench, packet: &Packet<'_>| {
        bench.put(turn % queues, &packet.bytes());
        turn += 1;
    };
    let asks = [TcpOption::Mss(1460), capable(CapableKeys::Syn)];
    let answers = [TcpOption::Mss(1460)];
    let mut syn = packet(client, server, TcpFlags::SYN, (ISN_CLIENT, 0));
    syn.options = if mptcp { &asks } else { &answers };
    put(bench, &syn);
    bench.next(|seen| seen.from == client && seen.tcp.flags == TcpFlags::SYN);
    let both = TcpFlags::SYN | TcpFlags::ACK;
    let mut syn_ack = packet(server, client, both, (ISN_SERVER, ISN_CLIENT + 1));
    syn_ack.options = &answers;
    put(bench, &syn_ack);
    let answer = bench.next(|seen| seen.to == client && seen.tcp.flags == both);
    assert_eq!(answer.key.is_some(), mptcp);
    let keys = answer.key.map(|receiver| {
        capable(CapableKeys::AckData {
            sender: 0x0102_0304,
            receiver,
            data_len: 100,
            checksum: None,
        })
    });
    let (up, down) = (ISN_CLIENT + 1, ISN_SERVER + 1);
    let mut first = packet(client, server, TcpFlags::ACK, (up, down));
    first.payload = 100;
    first.options = keys.as_slice();
    put(bench, &first);
    bench.next(|seen| seen.from == client && seen.tcp.seq == up && seen.tcp.ack == down);
    for burst in 0..4_u32 {
        let mut data = packet(
            server,
            client,
            TcpFlags::ACK,
            (down + burst * 4000, up + 100),
        );
        data.payload = 4000;
        data.gso = Some(1000);
        put(bench, &data);
    }
    let dsn = bench
        .next(|seen| seen.to == client && seen.tcp.seq == down)
        .dsn;
    assert_eq!(dsn.is_some(), mptcp);
    for acked in 1..=16_u32 {
        let at = (up + 100, down + acked * 1000);
        let mut ack = packet(client, server, TcpFlags::ACK, at);
        let data_ack = dsn.map(|dsn| data_ack(dsn + u64::from(acked) * 1000));
        ack.options = data_ack.as_slice();
        put(bench, &ack);
    }
    // The server has missed the ACK: FlexCP answers it.
    let mut again = packet(server, client, TcpFlags::ACK, (down, up + 100));
    again.payload = 1000;
    put(bench, &again);
}

/// What nobody can translate.
fn nonsense(bench: &mut Bench) {
    let (stranger, server) = (client(999), SocketAddr::from(SERVER));
    let mut packets = vec![
        // A virtio-net header nobody agreed on, and less than one.
        vec![0xff; 40],
        vec![0; 3],
        // Not IP, and cut short.
        vec![0; VNET_HEADER_LEN + 40],
        packet(stranger, server, TcpFlags::ACK, (1, 1)).bytes()[..VNET_HEADER_LEN + 30].to_vec(),
        // Of nobody.
        packet(stranger, server, TcpFlags::ACK, (1, 1)).bytes(),
        packet(server, server, TcpFlags::SYN, (1, 0)).bytes(),
    ];
    let mut other = packet(stranger, server, TcpFlags::ACK, (1, 1)).bytes();
    other[VNET_HEADER_LEN + 9] = 17;
    packets.push(other);
    // A join with a token that nobody has.
    let join = [TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
        backup: false,
        address_id: 1,
        token: 1,
        nonce: 2,
    }))];
    let mut syn = packet(stranger, server, TcpFlags::SYN, (1, 0));
    syn.options = &join;
    packets.push(syn.bytes());
    for (turn, bytes) in packets.iter().enumerate() {
        bench.put(turn % bench.far.len(), bytes);
    }
}

/// All that was put in and all that came out is what the workers say, and they can account for every packet.
fn assert_conserved(bench: &mut Bench) -> Vec<Snapshot> {
    let said = bench.settled();
    for worker in &said {
        assert_eq!(
            Unaccounted::of(worker),
            Unaccounted::default(),
            "{worker:?}"
        );
        assert_eq!(worker.kept, 0);
    }
    let sent: u64 = said.iter().map(|worker| worker.carrier.device_tx).sum();
    assert_eq!(sent, bench.came_out.len() as u64, "{said:?}");
    said
}

fn sum(said: &[Snapshot], of: impl Fn(&Snapshot) -> u64) -> u64 {
    said.iter().map(of).sum()
}

#[test]
fn worker_accounts_for_every_packet() {
    let mut bench = Bench::of(1);
    for number in 0..60 {
        converse(&mut bench, number, number % 2 == 0);
        if number % 10 == 0 {
            nonsense(&mut bench);
        }
    }
    let said = assert_conserved(&mut bench);
    // Each term of the equations was there.
    assert!(
        sum(&said, |s| s.counters.packets_forwarded) > 1000,
        "{said:?}"
    );
    assert!(sum(&said, |s| s.counters.packets_consumed) > 0, "{said:?}");
    assert!(sum(&said, |s| s.counters.packets_made) > 0, "{said:?}");
    assert_eq!(sum(&said, |s| s.carrier.malformed_rx), 12, "{said:?}");
    assert!(
        sum(&said, |s| s.drops.iter().map(|(_, n)| n).sum()) > 10,
        "{said:?}"
    );
    assert_eq!(sum(&said, |s| s.counters.mp_capable_ack_rx), 30, "{said:?}");
    assert_eq!(sum(&said, |s| s.counters.fallback_established), 0);
}

#[test]
fn workers_account_for_packets_that_they_hand_over() {
    let mut bench = Bench::of(3);
    for number in 0..60 {
        converse(&mut bench, number, number % 2 == 0);
    }
    nonsense(&mut bench);
    let said = assert_conserved(&mut bench);
    let handed_over = sum(&said, |s| s.carrier.handed_over);
    assert!(handed_over > 500, "{said:?}");
    assert_eq!(handed_over, sum(&said, |s| s.carrier.taken_over));
}

#[test]
fn worker_counts_what_the_device_does_not_take() {
    let mut bench = Bench::of(1);
    converse(&mut bench, 0, false);
    let data = packet(
        client(0),
        SERVER.into(),
        TcpFlags::ACK,
        (ISN_CLIENT + 101, ISN_SERVER + 1),
    );
    let bytes = data.bytes();
    bench.take();
    // Nobody takes what comes out: the device is full after some packets.
    for _ in 0..3000 {
        while rustix::net::send(&bench.far[0], &bytes, SendFlags::DONTWAIT).is_err() {
            thread::yield_now();
        }
        bench.put_in += 1;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while bench.snapshots()[0].carrier.device_rx < bench.put_in {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    let said = assert_conserved(&mut bench);
    assert!(sum(&said, |s| s.carrier.send_failed) > 100, "{said:?}");
}

#[test]
fn superseded_acks_are_accounted_for() {
    let mut bench = Bench::of(1);
    // Of ACKs that come together some go unsaid; whether they come together is for the scheduler to say.
    for number in 0..200 {
        converse(&mut bench, number, true);
        let said = assert_conserved(&mut bench);
        if sum(&said, |s| s.carrier.acks_superseded) > 0 {
            return;
        }
    }
    panic!("no ACK was superseded: {:?}", bench.snapshots());
}

#[test]
fn nothing_is_held_when_all_connections_are_over() {
    let mut bench = Bench::of(2);
    let asks = [TcpOption::Mss(1460), capable(CapableKeys::Syn)];
    for number in 0..20 {
        let at = (ISN_CLIENT, 0);
        let mut syn = packet(client(number), SERVER.into(), TcpFlags::SYN, at);
        syn.options = &asks;
        bench.put(usize::from(number) % 2, &syn.bytes());
    }
    let said = bench.settled();
    assert_eq!(sum(&said, |s| s.gauges.connections), 20, "{said:?}");
    assert_eq!(sum(&said, |s| s.gauges.flows), 40, "{said:?}");
    assert_eq!(sum(&said, |s| s.gauges.tokens), 20, "{said:?}");
    assert_eq!(sum(&said, |s| s.gauges.half_open), 20, "{said:?}");
    assert_eq!(sum(&said, |s| s.gauges.timers), 20, "{said:?}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while bench
        .snapshots()
        .iter()
        .any(|s| s.gauges != Gauges::default())
    {
        assert!(Instant::now() < deadline, "{:?}", bench.snapshots());
        thread::sleep(Duration::from_millis(20));
    }
}
