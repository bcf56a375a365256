//! The attacks there are, and the packets of each.

use std::net::{IpAddr, SocketAddr};

use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpJoin, MptcpOption,
    TcpFlags, TcpOption,
};

use super::forge::{Dice, Forged, icmp};
use super::tap::Numbers;
use crate::transfer::connect_message;

/// What an attack sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, for comparison.
    Nothing,
    /// Packets of nobody's to a service.
    Flood(Flood),
    /// Packets into a connection whose ends are known, on one of its legs.
    Blind(Leg, Blind),
    /// A client that proves its keys, then maps single bytes in reverse order.
    MapBomb,
    /// Clients that say byte by byte whom they want, and never come to the end of it.
    SlowLoris,
}

/// The service that is attacked, and whose short connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The server's own address.
    Transparent,
    /// An address of FlexCP's, with a back end.
    Reverse,
    /// The same, and clients name the server by Convert.
    Convert,
    /// The same by SOCKS5.
    Socks5,
    /// By Convert, and the relay carries their connections.
    Split,
}

impl Service {
    /// Whether clients name their server.
    pub const fn is_explicit(self) -> bool {
        matches!(self, Self::Convert | Self::Socks5 | Self::Split)
    }

    /// What a client says of whom it wants, without the end of it.
    pub(super) fn unending(self, server: SocketAddr) -> Vec<u8> {
        let mut said = match self {
            Self::Socks5 => [&[5, 40][..], &[0; 40]].concat(),
            _ => connect_message(server),
        };
        said.pop();
        said
    }
}

/// Packets of nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// SYNs.
    Syn,
    /// SYNs with `MP_CAPABLE`.
    Capable,
    /// The same from the honest client's address.
    CapableOfClient,
    /// SYNs with `MP_JOIN` and a token that nobody has.
    JoinUnknown,
    /// SYNs with `MP_JOIN` and the token of the long connection.
    JoinToken,
    /// ACKs with a data ACK, of connections that there are not.
    Ack,
    /// SYNs and ACKs whose options can't be right.
    Malformed,
    /// No flags, all flags, and other sets that make no sense.
    Flags,
    /// From the service to itself.
    Land,
    /// SYNs with `MP_CAPABLE` that ask a converter for the server.
    Connect,
    /// The same for a server that nobody may name.
    ConnectRefused,
    /// SYNs with data that is no preamble.
    Garbage,
}

/// Packets into a connection, whose numbers the attacker knows in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    /// RST: far off, and in the window but not at its edge.
    Rst,
    /// SYN, with any number.
    Syn,
    /// FIN: the sequence number or the ACK far off.
    Fin,
    /// Data: the sequence number or the ACK far off.
    Data,
    /// ACKs: of what was never sent, or with a sequence number far off.
    Ack,
    /// DSS with data and DATA_FIN, at the right place of the subflow, whose data sequence number is a guess.
    DataFin,
    /// ICMP errors that quote a sequence number far off.
    Icmp,
    /// Options that can't be right, flags that make no sense.
    Malformed,
}

/// The leg that is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// Between client and FlexCP, as if from the client.
    Client,
    /// Between FlexCP and server, as if from the server.
    Server,
}

/// One attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    /// Its name, for the command line.
    pub name: &'static str,
    /// What it sends.
    pub kind: Kind,
    /// What it is aimed at.
    pub service: Service,
    /// Packets a second.
    pub rate: u32,
}

impl Attack {
    /// All attacks; the first one sends nothing.
    pub fn all() -> Vec<Self> {
        use Service::{Convert, Reverse, Socks5, Split, Transparent};
        let attack = |name, kind, service, rate| Self {
            name,
            kind,
            service,
            rate,
        };
        let flood = |name, flood, service| attack(name, Kind::Flood(flood), service, FLOOD_RATE);
        let blind =
            |name, leg, blind| attack(name, Kind::Blind(leg, blind), Transparent, BLIND_RATE);
        vec![
            attack("none", Kind::Nothing, Transparent, 0),
            attack("none-reverse", Kind::Nothing, Reverse, 0),
            flood("syn-flood", Flood::Syn, Transparent),
            flood("syn-flood-reverse", Flood::Syn, Reverse),
            flood("mp-capable-flood", Flood::Capable, Transparent),
            flood("mp-capable-flood-reverse", Flood::Capable, Reverse),
            flood(
                "mp-capable-flood-client",
                Flood::CapableOfClient,
                Transparent,
            ),
            flood("mp-join-flood", Flood::JoinUnknown, Transparent),
            flood("mp-join-flood-reverse", Flood::JoinUnknown, Reverse),
            flood("mp-join-token-flood", Flood::JoinToken, Transparent),
            flood("ack-flood", Flood::Ack, Transparent),
            flood("ack-flood-reverse", Flood::Ack, Reverse),
            flood("malformed-options", Flood::Malformed, Transparent),
            flood("malformed-options-reverse", Flood::Malformed, Reverse),
            flood("odd-flags", Flood::Flags, Transparent),
            flood("land", Flood::Land, Transparent),
            flood("land-reverse", Flood::Land, Reverse),
            blind("blind-rst-client", Leg::Client, Blind::Rst),
            blind("blind-rst-server", Leg::Server, Blind::Rst),
            blind("blind-syn-client", Leg::Client, Blind::Syn),
            blind("blind-syn-server", Leg::Server, Blind::Syn),
            blind("blind-fin-client", Leg::Client, Blind::Fin),
            blind("blind-fin-server", Leg::Server, Blind::Fin),
            blind("blind-data-client", Leg::Client, Blind::Data),
            blind("blind-data-server", Leg::Server, Blind::Data),
            blind("blind-ack-client", Leg::Client, Blind::Ack),
            blind("blind-ack-server", Leg::Server, Blind::Ack),
            blind("blind-data-fin", Leg::Client, Blind::DataFin),
            blind("blind-icmp-client", Leg::Client, Blind::Icmp),
            blind("blind-icmp-server", Leg::Server, Blind::Icmp),
            blind("blind-malformed-client", Leg::Client, Blind::Malformed),
            blind("blind-malformed-server", Leg::Server, Blind::Malformed),
            attack("map-bomb", Kind::MapBomb, Transparent, FLOOD_RATE),
            attack("none-convert", Kind::Nothing, Convert, 0),
            flood("convert-syn-flood", Flood::Connect, Convert),
            flood("convert-refused-flood", Flood::ConnectRefused, Convert),
            flood("convert-garbage", Flood::Garbage, Convert),
            attack("convert-slow-loris", Kind::SlowLoris, Convert, LORIS_RATE),
            attack("none-socks5", Kind::Nothing, Socks5, 0),
            flood("socks5-syn-flood", Flood::Capable, Socks5),
            flood("socks5-garbage", Flood::Garbage, Socks5),
            attack("socks5-slow-loris", Kind::SlowLoris, Socks5, LORIS_RATE),
            flood("split-syn-flood", Flood::Connect, Split),
            attack("split-slow-loris", Kind::SlowLoris, Split, LORIS_RATE),
        ]
    }

    /// The attack of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|attack| attack.name == name)
    }
}

/// A packet of a flood to `service`; client, token and server are those of the long connection.
pub(super) fn flood(
    flood: Flood,
    service: SocketAddr,
    (client, token, server): (IpAddr, u32, SocketAddr),
    dice: &mut Dice,
) -> Vec<u8> {
    let from = dice.stranger();
    let syn = Forged::new(from, service, TcpFlags::SYN)
        .numbers(dice.word(), 0)
        .option(&TcpOption::Mss(1460));
    match flood {
        Flood::Syn => syn,
        Flood::Capable => syn.option(&capable()),
        Flood::CapableOfClient => Forged {
            from: SocketAddr::new(client, from.port()),
            ..syn.option(&capable())
        },
        Flood::JoinUnknown => {
            let unknown = dice.word();
            syn.option(&join(unknown, dice))
        }
        Flood::JoinToken => syn.option(&join(token, dice)),
        Flood::Ack => {
            let dss = data_ack(dice.next());
            Forged::new(from, service, TcpFlags::ACK)
                .numbers(dice.word(), dice.word())
                .option(&dss)
        }
        Flood::Malformed => {
            let flags = [TcpFlags::SYN, TcpFlags::ACK][pick(dice, 2)];
            Forged::new(from, service, flags)
                .numbers(dice.word(), dice.word())
                .raw_options(bad_options(dice))
        }
        Flood::Flags => {
            Forged::new(from, service, odd_flags(dice)).numbers(dice.word(), dice.word())
        }
        Flood::Land => Forged {
            from: service,
            ..syn.option(&capable())
        },
        Flood::Connect => syn.option(&capable()).payload(&connect_message(server)),
        Flood::ConnectRefused => {
            let nobody = SocketAddr::new([10, 8, 0, 1].into(), server.port());
            syn.option(&capable()).payload(&connect_message(nobody))
        }
        Flood::Garbage => {
            let said: Vec<u8> = (0..8).flat_map(|_| dice.word().to_be_bytes()).collect();
            syn.option(&capable()).payload(&said)
        }
    }
    .bytes()
}

/// A packet as if from `from`, whose last real one would have had these numbers: `next` is what its receiver
/// expects of it, `ack` what it may acknowledge.
pub(super) fn blind(
    blind: Blind,
    from: SocketAddr,
    to: SocketAddr,
    right: Numbers,
    dice: &mut Dice,
) -> Vec<u8> {
    let Numbers { next, ack } = right;
    // Beyond whatever arrives meanwhile, and inside the window that Linux offers to a fast sender.
    let near = next.wrapping_add(NEAR + dice.below(NEAR));
    // A wrong sequence number with the right ACK, or the other way round.
    let halves = if dice.below(2) == 0 {
        (dice.far_from(next), ack)
    } else {
        (near, dice.far_from(ack))
    };
    let forge = |flags| Forged::new(from, to, flags);
    match blind {
        Blind::Rst => {
            let far = dice.far_from(next);
            let seq = [near, far][pick(dice, 2)];
            let flags = [TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK];
            forge(flags[pick(dice, 2)]).numbers(seq, ack)
        }
        Blind::Syn => {
            let seq = [next, near, dice.word()][pick(dice, 3)];
            let syn = forge(TcpFlags::SYN).numbers(seq, 0);
            match dice.below(3) {
                0 => syn,
                1 => syn.option(&capable()),
                _ => Forged {
                    flags: TcpFlags::SYN | TcpFlags::ACK,
                    ..syn.numbers(seq, ack)
                },
            }
        }
        Blind::Fin => forge(TcpFlags::FIN | TcpFlags::ACK).numbers(halves.0, halves.1),
        Blind::Data => {
            let data = forge(TcpFlags::ACK | TcpFlags::PSH).numbers(halves.0, halves.1);
            let guess = dice.next();
            let data = match dice.below(2) {
                0 => data,
                _ => data.option(&mapping(guess, dice.word(), 8, false)),
            };
            data.payload(b"INJECTED")
        }
        Blind::Ack => forge(TcpFlags::ACK)
            .numbers(halves.0, halves.1)
            .option(&data_ack(dice.next())),
        Blind::DataFin => {
            let guess = dice.next();
            let (ssn, data_fin) = (dice.word(), dice.below(2) == 0);
            forge(TcpFlags::ACK)
                .numbers(next, ack)
                .option(&mapping(guess, ssn, 9, data_fin))
                .payload(b"INJECTED")
        }
        Blind::Icmp => return blind_icmp(from, to, ack, dice),
        Blind::Malformed => {
            let flags = odd_flags(dice);
            // A RST among them is only a RST.
            forge(flags.without(TcpFlags::RST))
                .numbers(halves.0, halves.1)
                .raw_options(bad_options(dice))
                .payload(b"INJECTED")
        }
    }
    .bytes()
}

/// An error about a packet that the attacked end sent to `from`.
fn blind_icmp(from: SocketAddr, to: SocketAddr, sent: u32, dice: &mut Dice) -> Vec<u8> {
    let router = IpAddr::from([198, 18, 0, 1]);
    // Fragmentation needed; host, protocol, port unreachable; time exceeded.
    let kinds = [(3, 4), (3, 1), (3, 2), (3, 3), (11, 0)];
    let kind = kinds[pick(dice, 5)];
    let mtu = [68, 552, 600][pick(dice, 3)];
    icmp(router, kind, mtu, (to, from), dice.far_from(sent))
}

fn capable() -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys: CapableKeys::Syn,
    }))
}

fn join(token: u32, dice: &mut Dice) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Join(MpJoin::Syn {
        backup: false,
        address_id: 1,
        token,
        nonce: dice.word(),
    }))
}

fn data_ack(number: u64) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: Some(DataNumber::Long(number)),
        ..Dss::default()
    }))
}

fn mapping(dsn: u64, ssn: u32, len: u16, data_fin: bool) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: None,
        mapping: Some(DssMapping {
            dsn: DataNumber::Long(dsn),
            ssn,
            len,
            checksum: None,
        }),
        data_fin,
    }))
}

/// Lengths of 0 and 1, beyond the header, of the wrong kind; subtypes that there are not; empty hands.
fn bad_options(dice: &mut Dice) -> &'static [u8] {
    const BAD: &[&[u8]] = &[
        &[2, 0, 5, 180],
        &[30, 1, 0, 0],
        &[30, 0],
        &[30, 40, 1, 1],
        &[30, 3, 1, 1],
        &[30, 4, 0xf0, 0],
        &[30, 4, 0x01, 0x81, 30, 12, 0x10, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        &[30, 12, 0x01, 0x81, 1, 2, 3, 4, 5, 6, 7, 8],
        &[30, 24, 0x10, 0, 0, 0, 0, 0],
        &[8, 10, 1, 2],
        &[8, 4, 1, 2, 5, 10, 0, 0],
        &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[30, 5, 0x60, 1, 2, 1, 1, 1],
        &[3, 3, 255, 1],
        &[2, 4, 0, 0],
    ];
    BAD[pick(dice, BAD.len())]
}

/// An index below `len`.
fn pick(dice: &mut Dice, len: usize) -> usize {
    let end = u32::try_from(len).unwrap_or(u32::MAX);
    usize::try_from(dice.below(end)).unwrap_or_default()
}

fn odd_flags(dice: &mut Dice) -> TcpFlags {
    let all = 0x1ff;
    let sets = [
        0,
        all,
        (TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG).0,
        (TcpFlags::SYN | TcpFlags::FIN).0,
        (TcpFlags::SYN | TcpFlags::RST).0,
        TcpFlags::FIN.0,
        TcpFlags::URG.0,
    ];
    TcpFlags(sets[pick(dice, sets.len())])
}

/// More than a hundred times what the honest short connections make.
const FLOOD_RATE: u32 = 10_000;

const BLIND_RATE: u32 = 5_000;

/// Bytes a second of a thousand clients.
const LORIS_RATE: u32 = 2_000;

/// Bytes ahead of what is expected.
const NEAR: u32 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found() {
        let all = Attack::all();
        for attack in &all {
            let same = all.iter().filter(|other| other.name == attack.name);
            assert_eq!(same.count(), 1, "{}", attack.name);
            assert_eq!(Attack::named(attack.name), Some(*attack));
        }
    }

    #[test]
    fn blind_resets_are_never_exact() {
        let (from, to) = ("10.1.1.2:4000", "10.9.1.2:5000");
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let right = Numbers { next: 77, ack: 99 };
        let mut dice = Dice::new(3);
        for _ in 0..1000 {
            let packet = blind(Blind::Rst, from, to, right, &mut dice);
            let seq = u32::from_be_bytes(packet[24..28].try_into().unwrap());
            assert!(seq.wrapping_sub(77) >= NEAR, "{seq}");
        }
    }
}
