//! A connection through the translator without ends that think: its handshake, then data and ACKs, as many as one
//! likes. For measuring the translator alone: nothing here allocates once the connection is open.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use flexcp_testkit::{self as testkit, ip_header, keys, write_headers};
use flexcp_translator::{
    Config, Frame, HEADROOM, Instant, Limits, Mode, Prefix, Service, Timeouts, Translator, Verdict,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, Gso, GsoKind, MpCapable,
    MptcpOption, Offload, OptionWriter, TcpFlags, TcpHeader, TcpOption, Timestamps, protocol,
};

/// A connection that is established, and what it takes to go on with it.
#[derive(Debug)]
pub struct Conversation {
    translator: Translator,
    now: Instant,
    buf: Vec<u8>,
    /// Bytes of the server so far.
    sent: u64,
    /// The data sequence number of its first byte.
    first: u64,
    /// Bytes of the client so far.
    sent_up: u64,
    /// The data sequence number of its first byte.
    first_up: u64,
    /// Packets are made and not translated, to see what making them costs.
    only_made: bool,
}

#[derive(Clone, Copy)]
struct Packet {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    payload: usize,
}

impl Conversation {
    /// Plays the handshake.
    #[must_use]
    pub fn open() -> Self {
        let mut conversation = Self {
            translator: Translator::new(config(), [7; 32]),
            now: Instant::default(),
            buf: vec![0; HEADROOM + 100 + SEGMENT * SEGMENTS],
            sent: 0,
            first: 0,
            sent_up: 0,
            first_up: first_number(CLIENT_KEY),
            only_made: false,
        };
        let syn = up(CLIENT_ISN, 0, TcpFlags::SYN);
        conversation.send(syn, &opening(Some(capable(CapableKeys::Syn))));
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        let syn_ack = down(SERVER_ISN, CLIENT_ISN + 1, flags, 0);
        let answer = conversation.send(syn_ack, &opening(None));
        let key = proxy_key(&answer);
        conversation.first = first_number(key);
        let keys = CapableKeys::Ack {
            sender: CLIENT_KEY,
            receiver: key,
        };
        let third = up(CLIENT_ISN + 1, SERVER_ISN + 1, TcpFlags::ACK);
        let options = with_clock(Some(TcpOption::Mptcp(capable(keys))));
        conversation.send(third, &options);
        conversation
    }

    /// From now on packets are only made.
    pub const fn only_make(&mut self) {
        self.only_made = true;
    }

    /// From here on what happens is told.
    pub fn listen(&mut self) {
        self.translator.keep_events(true);
    }

    /// A packet of many segments from the server.
    pub fn data_down(&mut self) {
        let seq = self.server_next();
        let len = SEGMENT * SEGMENTS;
        let packet = down(seq, self.client_next(), TcpFlags::ACK, len);
        self.send(packet, &with_clock(None));
        self.sent += len as u64;
    }

    /// A segment of the client's, with its mapping.
    pub fn data_up(&mut self) {
        let ssn = low_half(self.sent_up).wrapping_add(1);
        let dss = Dss {
            data_ack: Some(DataNumber::Long(self.first.wrapping_add(self.sent))),
            mapping: Some(DssMapping {
                dsn: DataNumber::Long(self.first_up.wrapping_add(self.sent_up)),
                ssn,
                len: SEGMENT as u16,
                checksum: None,
            }),
            ..Dss::default()
        };
        let mut packet = up(self.client_next(), self.server_next(), TcpFlags::ACK);
        packet.payload = SEGMENT;
        let options = with_clock(Some(TcpOption::Mptcp(MptcpOption::Dss(dss))));
        self.send(packet, &options);
        self.sent_up += SEGMENT as u64;
    }

    /// The server's ACK of all of it.
    pub fn ack_down(&mut self) {
        let packet = down(self.server_next(), self.client_next(), TcpFlags::ACK, 0);
        self.send(packet, &with_clock(None));
    }

    /// The number of the server's next byte.
    const fn server_next(&self) -> u32 {
        SERVER_ISN.wrapping_add(1).wrapping_add(low_half(self.sent))
    }

    /// The number of the client's next byte.
    const fn client_next(&self) -> u32 {
        CLIENT_ISN
            .wrapping_add(1)
            .wrapping_add(low_half(self.sent_up))
    }

    /// The client's ACK of all of it.
    pub fn ack_up(&mut self) {
        let ack = self.server_next();
        let data_ack = self.first.wrapping_add(self.sent);
        let dss = Dss {
            data_ack: Some(DataNumber::Long(data_ack)),
            ..Dss::default()
        };
        let options = with_clock(Some(TcpOption::Mptcp(MptcpOption::Dss(dss))));
        self.send(up(self.client_next(), ack, TcpFlags::ACK), &options);
    }

    /// Translates a packet, which has to be sent on; the headers that it has then.
    fn send(&mut self, packet: Packet, options: &OptionBytes) -> Vec<u8> {
        let options = &options.0[..options.1];
        let ip = ip_header(packet.from.ip(), packet.to.ip(), protocol::TCP);
        let tcp = TcpHeader {
            src_port: packet.from.port(),
            dst_port: packet.to.port(),
            seq: packet.seq,
            ack: packet.ack,
            flags: packet.flags,
            window: 65_000,
            ..TcpHeader::default()
        };
        let headers = write_headers(
            &ip,
            &tcp,
            options,
            packet.payload,
            &mut self.buf[HEADROOM..],
        );
        let offload = Offload {
            checksum: ChecksumState::Partial,
            gso: (packet.payload > SEGMENT).then_some(Gso {
                kind: GsoKind::TcpV4,
                size: SEGMENT as u16,
                ecn: false,
            }),
        };
        let range = HEADROOM..HEADROOM + headers + packet.payload;
        if self.only_made {
            black_box(&mut self.buf);
            return vec![];
        }
        let mut frame = Frame::new(&mut self.buf, range, offload);
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        assert_eq!(verdict, Verdict::Forward, "{tcp:?}");
        let headers = if packet.flags.contains(TcpFlags::SYN) {
            frame.packet().to_vec()
        } else {
            vec![]
        };
        while self.translator.poll_transmit().is_some() {}
        headers
    }
}

/// The data sequence number of the first byte of whoever has this key (RFC 8684, section 3.1).
fn first_number(key: u64) -> u64 {
    keys::idsn(key).wrapping_add(1)
}

/// A position as it goes into a field of 32 bits.
const fn low_half(position: u64) -> u32 {
    position as u32
}

/// Options as they go into a header, and their length.
#[derive(Clone, Copy)]
struct OptionBytes([u8; 40], usize);

impl OptionBytes {
    fn new(options: impl IntoIterator<Item = TcpOption<'static>>) -> Self {
        let mut writer = OptionWriter::new();
        for option in options {
            writer.push(&option);
        }
        let written = writer.finish();
        let mut bytes = [0; 40];
        bytes[..written.len()].copy_from_slice(written);
        Self(bytes, written.len())
    }
}

fn with_clock(more: Option<TcpOption<'static>>) -> OptionBytes {
    let clock = TcpOption::Timestamps(Timestamps {
        val: 1000,
        ecr: 1000,
    });
    OptionBytes::new([clock].into_iter().chain(more))
}

fn opening(mptcp: Option<MptcpOption>) -> OptionBytes {
    let usual = [
        TcpOption::Mss(1460),
        TcpOption::SackPermitted,
        TcpOption::Timestamps(Timestamps { val: 1000, ecr: 0 }),
        TcpOption::WindowScale(10),
    ];
    OptionBytes::new(usual.into_iter().chain(mptcp.map(TcpOption::Mptcp)))
}

const fn capable(keys: CapableKeys) -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    })
}

/// FlexCP's key out of its SYN/ACK.
fn proxy_key(packet: &[u8]) -> u64 {
    let answer = testkit::Packet::parse(packet).expect("FlexCP sends whole headers");
    answer.view().key().expect("FlexCP answers MP_CAPABLE")
}

const fn up(seq: u32, ack: u32, flags: TcpFlags) -> Packet {
    Packet {
        from: CLIENT,
        to: SERVER,
        seq,
        ack,
        flags,
        payload: 0,
    }
}

const fn down(seq: u32, ack: u32, flags: TcpFlags, payload: usize) -> Packet {
    Packet {
        from: SERVER,
        to: CLIENT,
        seq,
        ack,
        flags,
        payload,
    }
}

fn config() -> Config {
    let destinations = vec![Prefix {
        addr: SERVER.ip(),
        len: 32,
    }];
    Config {
        services: vec![Service {
            id: flexcp_translator::ServiceId(0),
            name: "conversation".into(),
            mode: Mode::Transparent {
                destinations,
                ports: vec![],
                end_to_end: false,
            },
            announce: vec![],
            intake: flexcp_translator::Intake::default(),
        }],
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        ..Config::default()
    }
}

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 1, 2)), 50_000);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 1, 2)), 80);
const CLIENT_ISN: u32 = 0x1000_0000;
const SERVER_ISN: u32 = 0x3000_0000;
const CLIENT_KEY: u64 = 0x0503_34cf_e246_2c44;

/// Payload of a segment, and segments of a packet.
const SEGMENT: usize = 1420;
const SEGMENTS: usize = 20;
