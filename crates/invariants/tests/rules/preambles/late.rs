//! SOCKS5, with a password.

use super::*;

fn up(offset: u64, payload: &[u8]) -> Packet {
    let (seq, ack) = (seq(ISN_CLIENT, offset), seq(ISN_PROXY, 0));
    Packet::new(Point::FromClient, Flow::First, seq, ack).with(|p| {
        p.payload = payload.to_vec();
        let mapping = (dsn_up(offset), offset as u32 + 1, payload.len() as u16);
        p.mptcp = Some(dss(dsn_down(0), Some(mapping), false));
    })
}

/// An answer, when the client has said so much.
fn down(offset: u64, payload: &[u8], said: u64) -> Packet {
    let (seq, ack) = (seq(ISN_PROXY, offset), seq(ISN_CLIENT, said));
    Packet::new(Point::ToClient, Flow::First, seq, ack).with(|p| {
        p.payload = payload.to_vec();
        let mapping = (dsn_down(offset), offset as u32 + 1, payload.len() as u16);
        p.mptcp = Some(dss(dsn_up(said), Some(mapping), false));
    })
}

fn opened() -> Exchange {
    opens(starts(Preamble::Socks5))
}

fn opens(exchange: Exchange) -> Exchange {
    let ask = syn(Point::FromClient, Flow::First, ISN_CLIENT)
        .with(|p| p.mptcp = Some(capable(CapableKeys::Syn)));
    let answer = syn_ack(Point::ToClient, Flow::First, ISN_PROXY, seq(ISN_CLIENT, 0))
        .with(|p| p.mptcp = Some(capable(CapableKeys::SynAck { sender: KEY_PROXY })));
    exchange.pass(&[ask, answer, third(seq(ISN_CLIENT, 0), seq(ISN_PROXY, 0))])
}

fn asked() -> Exchange {
    asks(opened())
}

fn asks(exchange: Exchange) -> Exchange {
    exchange.pass(&[
        up(0, &GREETING),
        down(0, &METHOD, 4),
        up(4, &PASSWORD),
        down(2, &RIGHT, 13),
        up(13, &REQUEST),
    ])
}

fn call() -> Packet {
    let number = ISN_CLIENT.wrapping_add(SAID as u32);
    syn(Point::ToServer, Flow::Server, number)
}

fn called() -> Exchange {
    calls(asked())
}

fn calls(exchange: Exchange) -> Exchange {
    let ack = seq(ISN_CLIENT, SAID);
    exchange.pass(&[
        call(),
        syn_ack(Point::FromServer, Flow::Server, ISN_SERVER, ack),
    ])
}

fn ack_up(offset: u64) -> Packet {
    let (seq, ack) = (seq(ISN_CLIENT, SAID), seq(ISN_SERVER, offset));
    // Of the window that the client has offered the answer takes a part.
    Packet::new(Point::ToServer, Flow::Server, seq, ack).with(|p| p.window -= ANSWERED as u16)
}

fn granted() -> Packet {
    down(4, &CONNECTED, SAID)
}

fn connected() -> Exchange {
    called().pass(&[ack_up(0), granted()])
}

fn data_up(payload: &[u8]) -> Packet {
    let (seq, ack) = (seq(ISN_CLIENT, SAID), seq(ISN_SERVER, 0));
    Packet::new(Point::ToServer, Flow::Server, seq, ack).with(|p| {
        p.window -= ANSWERED as u16;
        p.payload = payload.to_vec();
    })
}

fn server_data(len: u64) -> Packet {
    let (seq, ack) = (seq(ISN_SERVER, 0), seq(ISN_CLIENT, SAID));
    Packet::new(Point::FromServer, Flow::Server, seq, ack).with(|p| p.payload = bytes(0, len))
}

#[test]
fn transfer_both_ways() {
    let _ = connected()
        .pass(&[
            up(SAID, &bytes(0, 100)),
            data_up(&bytes(0, 100)),
            server_data(50),
            down(ANSWERED, &bytes(0, 50), SAID),
        ])
        .clean();
}

/// On the joined subflow, behind so many bytes of it.
fn down_joined(ssn: u64, offset: u64, payload: &[u8]) -> Packet {
    let (seq, ack) = (seq(ISN_JOIN_PROXY, ssn), seq(ISN_JOIN, 0));
    Packet::new(Point::ToClient, Flow::Joined, seq, ack).with(|p| {
        p.payload = payload.to_vec();
        let mapping = (dsn_down(offset), ssn as u32 + 1, payload.len() as u16);
        p.mptcp = Some(dss(dsn_up(SAID), Some(mapping), false));
    })
}

/// The answer, which the client owes the proxy an ACK of, goes again over another subflow after so many milliseconds. Both copies
/// are ACKed then, and the server sends something.
fn answered_again(after: u64) -> Exchange {
    let own = seq(ISN_JOIN, 0);
    let third = Packet::new(Point::FromClient, Flow::Joined, own, seq(ISN_JOIN_PROXY, 0));
    let heard = |flow, own, ack| {
        Packet::new(Point::FromClient, flow, own, ack)
            .with(|p| p.mptcp = Some(dss(dsn_down(ANSWERED), None, false)))
    };
    let first = (seq(ISN_CLIENT, SAID), seq(ISN_PROXY, ANSWERED));
    let options = Options {
        told: true,
        ..judged(BOUNDS)
    };
    calls(asks(opens(starts_with(Preamble::Socks5, options))))
        .pass(&[ack_up(0), granted()])
        .pass(&[
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
            third.with(|p| p.mptcp = Some(join_proof())),
            down_joined(0, 4, &[]).with(|p| p.mptcp = Some(dss(dsn_up(SAID), None, false))),
        ])
        .wait(after)
        .switches_to(Flow::Joined, false)
        .pass(&[
            down_joined(0, 4, &CONNECTED),
            heard(Flow::Joined, own, seq(ISN_JOIN_PROXY, 10)),
            heard(Flow::First, first.0, first.1),
            server_data(50),
        ])
}

/// What the proxy says itself stands for what a server sends.
#[test]
fn i17_answer_that_is_late_shows_that_its_path_is_silent() {
    let new = down_joined(10, ANSWERED, &bytes(0, 50));
    let silent = answered_again(100).pass(std::slice::from_ref(&new));
    let _ = silent.clean();
    answered_again(50).breaks(Rule::Switch, &new);
}

/// What is said again goes over another subflow, whose numbers have nothing to do with the initial one's.
#[test]
fn said_again_over_a_joined_subflow() {
    let own = seq(ISN_JOIN, 0);
    let third = Packet::new(Point::FromClient, Flow::Joined, own, seq(ISN_JOIN_PROXY, 0));
    let ack = |said: u64| Some(dss(dsn_up(said), None, false));
    let again = down_joined(0, 0, &METHOD).with(|p| {
        p.mptcp = Some(dss(dsn_up(4), Some((dsn_down(0), 1, 2)), false));
    });
    let _ = opened()
        .pass(&[
            up(0, &GREETING),
            down(0, &METHOD, 4),
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
            third.with(|p| p.mptcp = Some(join_proof())),
            down_joined(0, 4, &[]).with(|p| p.mptcp = ack(4)),
        ])
        .wait(100)
        .switches_to(Flow::Joined, false)
        .pass(&[again, up(4, &PASSWORD), down(2, &RIGHT, 13)])
        .clean();
}

#[test]
fn i19_syn_to_another_server_or_with_another_number() {
    asked().breaks(Rule::Preamble, &call().with(|p| p.seq = ISN_CLIENT));
    let elsewhere = [&REQUEST[..7], &[2, 0, 80]].concat();
    opened()
        .pass(&[
            up(0, &GREETING),
            down(0, &METHOD, 4),
            up(4, &PASSWORD),
            down(2, &RIGHT, 13),
            up(13, &elsewhere),
        ])
        .breaks(Rule::Preamble, &call());
}

/// The proxy has given it up by then, and told the client so.
#[test]
fn i14_server_that_answers_too_late_is_reset() {
    let number = seq(ISN_CLIENT, SAID);
    let late = syn_ack(Point::FromServer, Flow::Server, ISN_SERVER, number);
    let rst =
        Packet::new(Point::ToServer, Flow::Server, number, 0).with(|p| p.flags = TcpFlags::RST);
    let called = || asks(opens(starts_with(Preamble::Socks5, judged(BOUNDS)))).pass(&[call()]);
    let refused = down(4, &[5, 4, 0, 1, 0, 0, 0, 0, 0, 0], SAID);
    let _ = called().pass(&[refused, late.clone(), rst.clone()]).clean();
    called().pass(&[late]).breaks(Rule::Reset, &rst);
}

#[test]
fn i19_connected_before_the_server_has_answered() {
    asked().breaks(Rule::Preamble, &granted());
    asked().pass(&[call()]).breaks(Rule::Preamble, &granted());
}

#[test]
fn i19_password_that_goes_to_the_server() {
    let leaked = data_up(&PASSWORD).with(|p| p.seq = seq(ISN_CLIENT, 4));
    connected().breaks(Rule::Preamble, &leaked);
    called().breaks(Rule::Preamble, &leaked);
}

#[test]
fn i1_password_in_the_place_of_the_stream() {
    connected()
        .pass(&[up(SAID, &bytes(0, 9))])
        .breaks(Rule::SameBytes, &data_up(&PASSWORD));
}

#[test]
fn i3_stream_that_the_client_has_not_sent() {
    connected().breaks(Rule::Translation, &data_up(&bytes(0, 10)));
}

#[test]
fn i1_server_data_a_byte_away() {
    let late = down(ANSWERED, &bytes(1, 50), SAID);
    connected()
        .pass(&[server_data(60)])
        .breaks(Rule::SameBytes, &late);
}

#[test]
fn i5_stream_that_no_server_has() {
    let early = || asked().pass(&[up(SAID, &bytes(0, 100))]);
    let ack = |said| {
        Packet::new(
            Point::ToClient,
            Flow::First,
            seq(ISN_PROXY, 4),
            seq(ISN_CLIENT, said),
        )
        .with(|p| p.mptcp = Some(dss(dsn_up(said), None, false)))
    };
    let _ = early().pass(&[ack(SAID)]).clean();
    early().breaks(Rule::AckToClient, &ack(SAID + 1));
}

/// The client repeats what came first, and the server lacks what comes behind that.
#[test]
fn i5_what_a_server_without_sack_may_have_before_what_it_lacks() {
    let turned = |ssn: u64, offset: u64| {
        up(SAID + ssn, &bytes(offset, 100)).with(|p| {
            let mapping = (dsn_up(SAID + offset), (SAID + ssn) as u32 + 1, 100);
            p.mptcp = Some(dss(dsn_down(0), Some(mapping), false));
        })
    };
    let passed =
        |offset| data_up(&bytes(offset, 100)).with(|p| p.seq = seq(ISN_CLIENT, SAID + offset));
    let exchange = |sack: bool, options: Options, times| {
        let number = seq(ISN_CLIENT, SAID);
        let answer = syn_ack(Point::FromServer, Flow::Server, ISN_SERVER, number);
        let answer = answer.with(|p| {
            p.others
                .retain(|option| sack || !matches!(option, TcpOption::SackPermitted));
        });
        let exchange = asks(opens(starts_with(Preamble::Socks5, options)));
        let exchange = exchange.pass(&[call(), answer, ack_up(0), granted()]);
        let mut exchange = exchange.pass(&[turned(0, 100), passed(100), turned(100, 0)]);
        for _ in 0..times {
            exchange = exchange.pass(&[turned(0, 100), passed(100)]);
        }
        exchange
    };
    let ack = down(ANSWERED, &[], SAID).with(|p| {
        p.ack = seq(ISN_CLIENT, SAID + 100);
        p.mptcp = Some(dss(dsn_up(SAID), None, false));
    });
    let clean = |exchange: Exchange| exchange.pass(std::slice::from_ref(&ack)).clean();
    let _ = clean(exchange(false, Options::default(), 3));
    exchange(true, Options::default(), 3).breaks(Rule::AckToClient, &ack);
    exchange(false, Options::default(), 2).breaks(Rule::AckToClient, &ack);
    // In a capture the server's ACK before may stand behind what came after it.
    let _ = clean(exchange(false, Options::capture(), 1));
    exchange(false, Options::capture(), 0).breaks(Rule::AckToClient, &ack);
}

#[test]
fn i4_server_is_acked_what_the_client_has_not_acked() {
    connected().breaks(Rule::AckToServer, &ack_up(1));
}

/// A client that is told so sends what it likes, and all of it is taken.
#[test]
fn refused() {
    let wrong = down(2, &[1, 1], 13);
    let fin = dss(dsn_up(13), Some((dsn_down(4), 0, 1)), true);
    let end = Packet::new(
        Point::ToClient,
        Flow::First,
        seq(ISN_PROXY, 4),
        seq(ISN_CLIENT, 13),
    )
    .with(|p| p.mptcp = Some(fin));
    let ack = end.clone().with(|p| {
        p.ack = seq(ISN_CLIENT, 63);
        p.mptcp = Some(dss(dsn_up(63), None, false));
    });
    let _ = opened()
        .pass(&[
            up(0, &GREETING),
            down(0, &METHOD, 4),
            up(4, &PASSWORD),
            wrong,
            end,
            up(13, &bytes(0, 50)),
            ack,
        ])
        .clean();
}

/// The client, which has not heard of the method yet, has said all else at once, and 50 bytes for a server. The proxy says again
/// what it lacks before it says more, and ACKs all with that.
fn foretold() -> Exchange {
    let early = [&PASSWORD[..], &REQUEST, &bytes(0, 50)].concat();
    opened().pass(&[
        up(0, &GREETING),
        down(0, &METHOD, 4),
        up(4, &early),
        down(0, &METHOD, SAID + 50),
    ])
}

#[test]
fn refused_behind_what_is_said_again() {
    let _ = foretold().pass(&[down(2, &[1, 1], SAID + 50)]).clean();
}

#[test]
fn i5_client_is_acked_what_was_for_a_server_and_not_refused() {
    foretold().breaks(Rule::AckToClient, &down(2, &RIGHT, SAID + 50));
}

#[test]
fn i2_dss_of_a_fallen_back_connection_is_owed_until_there_is_cause() {
    connected().pass(&[server_data(50)]).breaks(
        Rule::StableMapping,
        &down(ANSWERED, &bytes(0, 50), SAID).with(|p| p.mptcp = None),
    );
}
