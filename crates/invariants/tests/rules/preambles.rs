//! Clients that name their server, by Convert in their SYN and by SOCKS5 after the handshake: exchanges that are right, and one packet
//! of each that is not.

mod late;

use flexcp_invariants::{Options, Point, Preamble, Rule};
use flexcp_wire::{CapableKeys, TcpFlags, TcpOption};

use crate::causes::{BOUNDS, judged};
use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_JOIN, ISN_JOIN_PROXY, ISN_SERVER, KEY_CLIENT, KEY_PROXY,
    Packet, byte, bytes, capable, dsn_down, dsn_up, dss, join_proof, join_syn, join_syn_ack, seq,
};

/// A Convert message that names 10.8.0.1, port 80.
const CONVERT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 8, 0, 1,
];
const CONVERTED: [u8; 4] = [1, 1, 0x22, 0x63];
/// The same, refused: not authorized.
const REFUSED: [u8; 8] = [1, 2, 0x22, 0x63, 30, 1, 32, 0];
/// Bytes of the stream behind the message in the SYN.
const EARLY: u64 = 10;

const GREETING: [u8; 4] = [5, 2, 0, 2];
const METHOD: [u8; 2] = [5, 2];
const PASSWORD: [u8; 9] = [1, 3, b'a', b'l', b'i', 3, b'p', b'w', b'd'];
const RIGHT: [u8; 2] = [1, 0];
const REQUEST: [u8; 10] = [5, 1, 0, 1, 10, 8, 0, 1, 0, 80];
const CONNECTED: [u8; 10] = [5, 0, 0, 1, 10, 9, 0, 2, 11, 184];
/// Lengths of what both say before their streams.
const SAID: u64 = 4 + 9 + 10;
const ANSWERED: u64 = 2 + 2 + 10;
/// The proxy's number, which has nothing to do with the server's.
const ISN_PROXY: u32 = u32::MAX - 5;

fn syn_options() -> Vec<TcpOption<'static>> {
    vec![
        TcpOption::Mss(1000),
        TcpOption::SackPermitted,
        TcpOption::WindowScale(0),
    ]
}

fn syn(point: Point, flow: Flow, seq: u32) -> Packet {
    Packet::new(point, flow, seq, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.others = syn_options();
    })
}

fn syn_ack(point: Point, flow: Flow, seq: u32, ack: u32) -> Packet {
    Packet::new(point, flow, seq, ack).with(|p| {
        p.flags = TcpFlags::SYN | TcpFlags::ACK;
        p.others = syn_options();
    })
}

/// The third packet, with the client's keys.
fn third(seq: u32, ack: u32) -> Packet {
    let keys = CapableKeys::Ack {
        sender: KEY_CLIENT,
        receiver: KEY_PROXY,
    };
    Packet::new(Point::FromClient, Flow::First, seq, ack).with(|p| p.mptcp = Some(capable(keys)))
}

fn starts(preamble: Preamble) -> Exchange {
    starts_with(preamble, Options::default())
}

fn starts_with(preamble: Preamble, options: Options) -> Exchange {
    let mut exchange = Exchange::start(options);
    let listen = "10.9.0.1:80".parse().unwrap();
    exchange.checker.expect_preambles(listen, preamble);
    exchange
}

/// Convert in the SYN.
mod in_syn {
    use super::*;

    const SAID: u64 = CONVERT.len() as u64;
    const DATA: u64 = SAID + EARLY;
    const ANSWER: u32 = CONVERTED.len() as u32;

    fn asked() -> Exchange {
        let ask = syn(Point::FromClient, Flow::First, ISN_CLIENT).with(|p| {
            p.payload = [&CONVERT[..], &bytes(0, EARLY)].concat();
            p.mptcp = Some(capable(CapableKeys::Syn));
        });
        starts(Preamble::Convert).pass(&[ask])
    }

    fn call() -> Packet {
        syn(
            Point::ToServer,
            Flow::Server,
            ISN_CLIENT.wrapping_add(SAID as u32),
        )
    }

    fn called() -> Exchange {
        let ack = seq(ISN_CLIENT, SAID);
        let answer = syn_ack(Point::FromServer, Flow::Server, ISN_SERVER, ack);
        asked().pass(&[call(), answer])
    }

    fn answer() -> Packet {
        let ack = seq(ISN_CLIENT, DATA);
        syn_ack(Point::ToClient, Flow::First, ISN_SERVER - ANSWER, ack)
            .with(|p| p.mptcp = Some(capable(CapableKeys::SynAck { sender: KEY_PROXY })))
    }

    fn opened() -> Exchange {
        let client = seq(ISN_CLIENT, DATA);
        called().pass(&[answer(), third(client, seq(ISN_SERVER, 0) - ANSWER)])
    }

    fn told() -> Packet {
        let (seq, ack) = (seq(ISN_SERVER, 0) - ANSWER, seq(ISN_CLIENT, DATA));
        Packet::new(Point::ToClient, Flow::First, seq, ack).with(|p| {
            // The server has not got what came in the SYN.
            p.window -= EARLY as u16;
            p.payload = CONVERTED.to_vec();
            p.mptcp = Some(dss(dsn_up(0), Some((dsn_down(0), 1, ANSWER as u16)), false));
        })
    }

    fn ack_up(offset: u64) -> Packet {
        let (seq, ack) = (seq(ISN_CLIENT, SAID), seq(ISN_SERVER, offset));
        // Of the window that the client has offered the answer takes a part.
        Packet::new(Point::ToServer, Flow::Server, seq, ack).with(|p| p.window -= ANSWER as u16)
    }

    /// Bytes of the stream, of which the first `EARLY` were in the SYN.
    fn data_up(offset: u64, len: u64) -> Packet {
        let (seq, ack) = (seq(ISN_CLIENT, SAID + offset), seq(ISN_SERVER, 0));
        Packet::new(Point::ToServer, Flow::Server, seq, ack).with(|p| {
            p.window -= ANSWER as u16;
            p.payload = bytes(offset, len);
        })
    }

    fn connected() -> Exchange {
        opened().pass(&[told(), ack_up(0), data_up(0, EARLY)])
    }

    fn client_data(len: u64) -> Packet {
        let (seq, ack) = (seq(ISN_CLIENT, DATA), seq(ISN_SERVER, 0));
        Packet::new(Point::FromClient, Flow::First, seq, ack).with(|p| {
            p.payload = bytes(EARLY, len);
            let mapping = (dsn_up(0), 1, len as u16);
            p.mptcp = Some(dss(dsn_down(ANSWER.into()), Some(mapping), false));
        })
    }

    fn server_data(len: u64) -> Packet {
        let (seq, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, SAID));
        Packet::new(Point::FromServer, Flow::Server, seq, ack).with(|p| p.payload = bytes(0, len))
    }

    fn data_down(len: u64) -> Packet {
        let (seq, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, DATA));
        let start = u64::from(ANSWER);
        Packet::new(Point::ToClient, Flow::First, seq, ack).with(|p| {
            p.window -= EARLY as u16;
            p.payload = bytes(0, len);
            let mapping = (dsn_down(start), ANSWER + 1, len as u16);
            p.mptcp = Some(dss(dsn_up(0), Some(mapping), false));
        })
    }

    #[test]
    fn transfer_both_ways() {
        let server_ack = |offset| {
            let (seq, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, SAID + offset));
            Packet::new(Point::FromServer, Flow::Server, seq, ack)
        };
        let ack_down = |len| {
            let (seq, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, DATA + len));
            Packet::new(Point::ToClient, Flow::First, seq, ack)
                .with(|p| p.mptcp = Some(dss(dsn_up(len), None, false)))
        };
        let _ = connected()
            .pass(&[
                client_data(100),
                data_up(EARLY, 100),
                server_ack(EARLY + 100),
                ack_down(100),
                server_data(50),
                data_down(50).with(|p| {
                    p.window = 1000;
                    p.ack = seq(ISN_CLIENT, DATA + 100);
                    let mapping = (dsn_down(ANSWER.into()), ANSWER + 1, 50);
                    p.mptcp = Some(dss(dsn_up(100), Some(mapping), false));
                }),
            ])
            .clean();
    }

    #[test]
    fn i19_syn_to_the_server_with_another_number() {
        for wrong in [ISN_CLIENT, call().seq.wrapping_add(1)] {
            asked().breaks(Rule::Preamble, &call().with(|p| p.seq = wrong));
        }
    }

    #[test]
    fn i19_preamble_in_the_syn_to_the_server() {
        asked().breaks(
            Rule::Preamble,
            &call().with(|p| p.payload = CONVERT.to_vec()),
        );
    }

    #[test]
    fn i19_preamble_that_goes_to_the_server() {
        let leaked = data_up(0, 0).with(|p| {
            p.seq = seq(ISN_CLIENT, 0);
            p.payload = CONVERT.to_vec();
        });
        connected().breaks(Rule::Preamble, &leaked);
    }

    #[test]
    fn i1_preamble_in_the_place_of_the_stream() {
        let leaked = data_up(0, 0).with(|p| p.payload = CONVERT[..10].to_vec());
        opened()
            .pass(&[told(), ack_up(0)])
            .breaks(Rule::SameBytes, &leaked);
        connected().pass(&[client_data(24)]).breaks(
            Rule::SameBytes,
            &data_up(EARLY, 0).with(|p| p.payload = CONVERT.to_vec()),
        );
    }

    #[test]
    fn i1_what_came_in_the_syn_is_another_byte_away() {
        let late = data_up(0, EARLY).with(|p| p.payload = bytes(1, EARLY));
        opened()
            .pass(&[told(), ack_up(0)])
            .breaks(Rule::SameBytes, &late);
    }

    #[test]
    fn i5_syn_ack_of_more_than_the_syn_had() {
        called().breaks(
            Rule::AckToClient,
            &answer().with(|p| p.ack = p.ack.wrapping_add(1)),
        );
    }

    #[test]
    fn i19_numbers_that_have_no_room_for_the_answer() {
        let wrong = answer().with(|p| p.seq += 1);
        let client = seq(ISN_CLIENT, DATA);
        called()
            .pass(&[wrong, third(client, seq(ISN_SERVER, 0) - ANSWER + 1)])
            .breaks(Rule::Preamble, &told().with(|p| p.seq += 1));
    }

    #[test]
    fn i1_server_data_a_byte_away() {
        let late = data_down(50).with(|p| p.payload = (1..51).map(byte).collect());
        connected()
            .pass(&[server_data(60)])
            .breaks(Rule::SameBytes, &late);
    }

    #[test]
    fn i1_another_answer() {
        let other = told().with(|p| p.payload = vec![1, 1, 0x22, 0x64]);
        connected().breaks(Rule::SameBytes, &other);
    }

    #[test]
    fn i2_mapping_over_what_the_syn_carried() {
        // Numbers of mappings count behind the SYN's data: this one's place is that of the byte before.
        connected()
            .pass(&[client_data(100)])
            .breaks(Rule::Translation, &data_up(EARLY + 91, 10));
    }

    #[test]
    fn i4_server_is_acked_what_the_client_has_not_acked() {
        connected().breaks(Rule::AckToServer, &ack_up(1));
    }

    #[test]
    fn i6_window_wider_than_offered() {
        let wide = |window| ack_up(0).with(|p| p.window = window);
        let _ = opened().pass(&[told(), wide(996)]).clean();
        opened().pass(&[told()]).breaks(Rule::Window, &wide(997));
    }

    #[test]
    fn refused_by_the_proxy() {
        let ack = seq(ISN_CLIENT, DATA);
        let own = ISN_PROXY;
        let answer = answer().with(|p| p.seq = own);
        let told = |payload: &[u8]| {
            Packet::new(Point::ToClient, Flow::First, seq(own, 0), ack).with(|p| {
                p.payload = payload.to_vec();
                let mapping = (dsn_down(0), 1, payload.len() as u16);
                p.mptcp = Some(dss(dsn_up(0), Some(mapping), false));
            })
        };
        let asked = || asked().pass(&[answer.clone(), third(ack, seq(own, 0))]);
        let _ = asked().pass(&[told(&REFUSED)]).clean();
        // Nobody has been asked.
        asked().breaks(Rule::Preamble, &told(&CONVERTED));
    }

    /// The answer to a client without MPTCP goes with the SYN/ACK.
    #[test]
    fn plain_client() {
        let ask = syn(Point::FromClient, Flow::First, ISN_CLIENT)
            .with(|p| p.payload = [&CONVERT[..], &bytes(0, EARLY)].concat());
        let answered = answer().with(|p| {
            p.mptcp = None;
            p.payload = CONVERTED.to_vec();
        });
        let ack = seq(ISN_CLIENT, SAID);
        let opened = || {
            starts(Preamble::Convert).pass(&[
                ask.clone(),
                call(),
                syn_ack(Point::FromServer, Flow::Server, ISN_SERVER, ack),
                answered.clone(),
                third(seq(ISN_CLIENT, DATA), seq(ISN_SERVER, 0)).with(|p| p.mptcp = None),
            ])
        };
        let down = |from: u64| {
            data_down(50).with(|p| {
                p.mptcp = None;
                p.payload = bytes(from, 50);
            })
        };
        let _ = opened()
            .pass(&[ack_up(0), data_up(0, EARLY), server_data(60), down(0)])
            .clean();
        opened()
            .pass(&[ack_up(0), server_data(60)])
            .breaks(Rule::SameBytes, &down(1));
        opened().breaks(
            Rule::SameBytes,
            &data_up(0, EARLY).with(|p| p.payload = bytes(1, EARLY)),
        );
    }
}
