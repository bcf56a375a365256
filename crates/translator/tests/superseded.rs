//! Which ACKs a later packet makes superfluous.

use std::net::SocketAddr;

use flexcp_testkit as testkit;
use flexcp_translator::supersedes;
use flexcp_wire::{
    DataNumber, Dss, DssMapping, MpPrio, MptcpOption, SackBlocks, TcpFlags, TcpOption, Timestamps,
    protocol,
};

/// A packet of one flow, an ACK alone unless a test changes it.
#[derive(Clone)]
struct Packet {
    ends: (&'static str, &'static str),
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    window: u16,
    traffic_class: u8,
    protocol: u8,
    timestamps: bool,
    data_ack: Option<DataNumber>,
    mapping: bool,
    sack: bool,
    prio: bool,
    payload: usize,
}

/// The ACK of 1000 bytes and their place in the data.
fn ack() -> Packet {
    Packet {
        ends: ("10.1.0.1", "10.9.0.2"),
        ports: (40_000, 80),
        seq: 500,
        ack: 1000,
        flags: TcpFlags::ACK,
        window: 64,
        traffic_class: 0,
        protocol: protocol::TCP,
        timestamps: true,
        data_ack: Some(DataNumber::Long(0x1_0000_1000)),
        mapping: false,
        sack: false,
        prio: false,
        payload: 0,
    }
}

/// The same with what a test changes.
fn with(change: impl FnOnce(&mut Packet)) -> Packet {
    let mut packet = ack();
    change(&mut packet);
    packet
}

/// The ACK behind it, of 1000 bytes more, with what a test changes.
fn next(change: impl FnOnce(&mut Packet)) -> Packet {
    with(|packet| {
        packet.ack = 2000;
        change(packet);
    })
}

impl Packet {
    fn options(&self) -> Vec<TcpOption<'static>> {
        let mut options = vec![];
        if self.timestamps {
            options.push(TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 }));
        }
        if self.sack {
            let mut blocks = SackBlocks::default();
            blocks.push(3000, 4000);
            options.push(TcpOption::Sack(blocks));
        }
        if self.prio {
            let prio = MpPrio { backup: true };
            options.push(TcpOption::Mptcp(MptcpOption::Prio(prio)));
        }
        if self.data_ack.is_some() || self.mapping {
            let mapping = DssMapping {
                dsn: DataNumber::Short(7),
                ssn: 1,
                len: 100,
                checksum: None,
            };
            options.push(TcpOption::Mptcp(MptcpOption::Dss(Dss {
                data_ack: self.data_ack,
                mapping: self.mapping.then_some(mapping),
                data_fin: false,
            })));
        }
        options
    }

    fn bytes(&self) -> Vec<u8> {
        let [from, to] = [(self.ends.0, self.ports.0), (self.ends.1, self.ports.1)]
            .map(|(addr, port)| SocketAddr::new(addr.parse().unwrap(), port));
        let mut packet = testkit::Packet::new(from, to)
            .flags(self.flags)
            .numbers(self.seq, self.ack)
            .with_options(self.options())
            .with_payload(vec![0; self.payload]);
        packet.tcp.window = self.window;
        packet.ip.traffic_class = self.traffic_class;
        packet.ip.protocol = self.protocol;
        packet.bytes()
    }

    fn is_said_by(&self, later: &Self) -> bool {
        supersedes(&later.bytes(), &self.bytes())
    }
}

#[test]
fn later_ack_or_data_says_what_an_ack_says() {
    assert!(ack().is_said_by(&next(|_| {})));
    assert!(ack().is_said_by(&with(|later| {
        later.payload = 100;
        later.mapping = true;
        later.flags = TcpFlags::ACK | TcpFlags::PSH;
    })));
    assert!(ack().is_said_by(&with(|later| {
        later.seq = 600;
        later.flags = TcpFlags::ACK | TcpFlags::FIN;
    })));
    // The window of the last one counts, whatever it is.
    assert!(ack().is_said_by(&next(|later| later.window = 1)));
    assert!(ack().is_said_by(&next(|later| later.sack = true)));
}

#[test]
fn duplicate_leaves_the_first_one_alone() {
    // Without that it would itself be the first, and one of three be missing (RFC 5681 section 3.2).
    assert!(!ack().is_said_by(&ack()));
    assert!(!ack().is_said_by(&with(|later| later.window = 65)));
}

#[test]
fn numbers_are_compared_round_the_end() {
    let last = with(|ack| (ack.seq, ack.ack) = (u32::MAX, u32::MAX - 5));
    assert!(last.is_said_by(&with(|later| (later.seq, later.ack) = (3, 10))));
    assert!(!with(|ack| (ack.seq, ack.ack) = (3, 10)).is_said_by(&last));
}

#[test]
fn both_families_and_no_other_flow() {
    let v6 = |packet: &mut Packet| packet.ends = ("fd01::1", "fd09::2");
    assert!(with(v6).is_said_by(&next(v6)));
    assert!(!ack().is_said_by(&next(v6)));
    for other in [
        next(|later| later.ends.0 = "10.1.0.2"),
        next(|later| later.ends.1 = "10.9.0.3"),
        next(|later| later.ports.0 = 40_001),
        next(|later| later.ports.1 = 81),
    ] {
        assert!(!ack().is_said_by(&other));
    }
}

#[test]
fn older_packet_says_less() {
    assert!(!ack().is_said_by(&with(|later| later.ack = 999)));
    assert!(
        !ack().is_said_by(&next(|later| later.seq = 499)),
        "repeated data"
    );
    let number = Some(DataNumber::Long(0x1_0000_0fff));
    assert!(!ack().is_said_by(&next(|later| later.data_ack = number)));
}

#[test]
fn data_acks_of_either_length_are_compared() {
    let short = |low| move |packet: &mut Packet| packet.data_ack = Some(DataNumber::Short(low));
    assert!(ack().is_said_by(&next(short(0x1000))));
    assert!(!ack().is_said_by(&next(short(0x0fff))));
    assert!(with(short(0x1000)).is_said_by(&next(|_| {})));
    assert!(!with(short(0x1001)).is_said_by(&next(|_| {})));
}

#[test]
fn packet_without_a_data_ack_or_timestamps_says_less() {
    assert!(!ack().is_said_by(&next(|later| later.data_ack = None)));
    assert!(!ack().is_said_by(&next(|later| later.timestamps = false)));
    let bare = |packet: &mut Packet| (packet.data_ack, packet.timestamps) = (None, false);
    assert!(with(bare).is_said_by(&next(|_| {})));
    assert!(with(bare).is_said_by(&next(bare)));
}

#[test]
fn packet_that_opens_or_resets_says_nothing_of_it() {
    for flag in [TcpFlags::SYN, TcpFlags::RST] {
        assert!(!ack().is_said_by(&next(|later| later.flags = TcpFlags::ACK | flag)));
    }
    assert!(!ack().is_said_by(&next(|later| later.flags = TcpFlags::PSH)));
}

#[test]
fn what_says_more_than_an_ack_goes_out() {
    for more in [
        with(|packet| packet.payload = 1),
        with(|packet| packet.flags = TcpFlags::ACK | TcpFlags::FIN),
        with(|packet| packet.flags = TcpFlags::ACK | TcpFlags::ECE),
        with(|packet| packet.flags = TcpFlags::ACK | TcpFlags::PSH),
        with(|packet| packet.sack = true),
        with(|packet| packet.prio = true),
        with(|packet| packet.mapping = true),
        with(|packet| packet.traffic_class = 3),
    ] {
        let mut again = more.clone();
        again.ack = 2000;
        assert!(!more.is_said_by(&again));
        assert!(!more.is_said_by(&next(|_| {})));
    }
    // Only the mark of congestion counts there.
    let ect = with(|packet| packet.traffic_class = 2);
    assert!(ect.is_said_by(&next(|_| {})));
}

#[test]
fn what_is_no_tcp_packet_says_nothing() {
    let udp = |packet: &mut Packet| packet.protocol = 17;
    assert!(!with(udp).is_said_by(&next(udp)));
    let (first, second) = (ack().bytes(), next(|_| {}).bytes());
    assert!(supersedes(&second, &first));
    for len in 0..first.len() {
        assert!(!supersedes(&second[..len], &first));
        assert!(!supersedes(&second, &first[..len]));
    }
}
