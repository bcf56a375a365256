//! Exchanges that keep every rule, among them the odd ones that are allowed.

use flexcp_invariants::{Options, Point, Rule};
use flexcp_wire::TcpFlags;

use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_JOIN, ISN_JOIN_PROXY, ISN_SERVER, Packet, ack_down, ack_up,
    client_ack, client_data, data_down, data_up, dsn_down, dsn_up, dss, join_proof, join_syn,
    join_syn_ack, seq, server_ack, server_data,
};

#[test]
fn transfer_both_ways() {
    let _ = Exchange::established(false)
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            client_ack(Flow::First, 100, 100),
            ack_up(100),
            client_data(Flow::First, 0, 0, 200).with(|p| p.ack = seq(ISN_SERVER, 100)),
            data_up(0, 200).with(|p| p.ack = seq(ISN_SERVER, 100)),
            server_ack(200),
            ack_down(Flow::First, 200, 200),
        ])
        .clean();
}

#[test]
fn data_of_a_dead_subflow_on_another_and_filler_where_it_was() {
    let filler = data_down(Flow::First, 0, 0, 100).with(|p| p.payload = vec![0; 100]);
    // A capture does not say that the proxy made these zeros itself.
    let captured = Options {
        causal: false,
        ..Options::default()
    };
    let _ = Exchange::with_options(false, captured)
        .join()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(0, 100),
            data_down(Flow::Joined, 0, 0, 100),
            client_ack(Flow::Joined, 100, 100),
            ack_up(100),
            client_ack(Flow::First, 0, 100),
            filler,
        ])
        .clean();
}

#[test]
fn sack_of_a_joined_subflow_in_the_servers_numbers() {
    let _ = Exchange::established(false)
        .join()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(100, 100),
            data_down(Flow::Joined, 0, 100, 100),
            client_ack(Flow::Joined, 100, 0),
            ack_up(0).with(|p| p.sack = vec![(seq(ISN_SERVER, 100), seq(ISN_SERVER, 200))]),
        ])
        .clean();
}

#[test]
fn d_sack_first_and_inside_the_next_block() {
    let block = |from, to| (seq(ISN_SERVER, from), seq(ISN_SERVER, to));
    let _ = Exchange::established(false)
        .pass(&[
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100),
            server_data(100, 100),
            data_down(Flow::First, 100, 100, 100),
            server_data(200, 100),
            data_down(Flow::First, 200, 200, 100),
            client_ack(Flow::First, 100, 100).with(|p| p.sack = vec![block(200, 300)]),
            ack_up(100).with(|p| p.sack = vec![block(0, 100), block(200, 300)]),
            client_ack(Flow::First, 100, 100)
                .with(|p| p.sack = vec![block(200, 250), block(200, 300)]),
            ack_up(100).with(|p| p.sack = vec![block(220, 250), block(200, 300)]),
        ])
        .clean();
}

#[test]
fn servers_sack_over_the_fin() {
    let block = |from, to| (seq(ISN_CLIENT, from), seq(ISN_CLIENT, to));
    let fin = |p: &mut Packet| p.flags = TcpFlags::FIN | TcpFlags::ACK;
    let data_fin = dss(dsn_down(0), Some((dsn_up(200), 0, 1)), true);
    let _ = Exchange::established(false)
        .join()
        .pass(&[
            client_data(Flow::Joined, 0, 100, 100),
            data_up(100, 100),
            client_ack(Flow::Joined, 0, 0).with(|p| {
                p.seq = seq(ISN_JOIN, 100);
                p.mptcp = Some(data_fin);
            }),
            data_up(200, 0).with(fin),
            server_ack(0).with(|p| p.sack = vec![block(100, 201)]),
            ack_down(Flow::Joined, 0, 0).with(|p| p.ack = seq(ISN_JOIN, 100)),
        ])
        .clean();
}

/// The proxy sends the server's second copy on, which waited inside it while the client acknowledged.
#[test]
fn copy_that_was_queued_when_the_ack_was_captured() {
    let exchange = Exchange::with_options(false, Options::capture()).pass(&[
        server_data(0, 100),
        data_down(Flow::First, 0, 0, 100),
        server_data(0, 100),
        client_ack(Flow::First, 100, 100),
    ]);
    let _ = exchange.pass(&[data_down(Flow::First, 0, 0, 100)]).clean();
}

#[test]
fn partial_checksum_and_uncut_segment_in_a_capture() {
    let long = data_down(Flow::First, 0, 0, 2000).with(|p| p.damaged = true);
    let _ = Exchange::with_options(false, Options::capture())
        .pass(&[server_data(0, 2000), long])
        .clean();
}

#[test]
fn late_packet_of_the_server_keeps_its_own_time() {
    let stamped = |packet: Packet, val, ecr| packet.with(|p| p.timestamps = Some((val, ecr)));
    let _ = Exchange::established(true)
        .pass(&[
            stamped(server_data(100, 100), 910, 101),
            stamped(data_down(Flow::First, 100, 100, 100), 910, 101),
            stamped(server_data(0, 100), 905, 101),
            stamped(data_down(Flow::First, 0, 0, 100), 905, 101),
        ])
        .clean();
}

#[test]
fn end_of_both_directions() {
    let fin = |p: &mut Packet| p.flags = TcpFlags::FIN | TcpFlags::ACK;
    let data_fin = dss(dsn_down(0), Some((dsn_up(0), 0, 1)), true);
    let _ = Exchange::established(false)
        .pass(&[
            server_data(0, 0).with(fin),
            ack_down(Flow::First, 0, 0).with(|p| {
                let mapping = Some((dsn_down(0), 0, 1));
                p.mptcp = Some(dss(dsn_up(0), mapping, true));
            }),
            client_ack(Flow::First, 0, 1).with(|p| p.mptcp = Some(data_fin)),
            ack_up(0).with(fin),
        ])
        .clean();
}

#[test]
fn ack_of_a_reset_that_the_proxy_does_not_believe() {
    // The data may be filled in under its mapping all the same.
    Exchange::established(false)
        .pass(&[server_data(0, 100), data_down(Flow::First, 0, 0, 100)])
        .join()
        .pass(&[
            server_data(0, 100),
            data_down(Flow::Joined, 0, 0, 100),
            client_ack(Flow::Joined, 100, 100),
            client_ack(Flow::First, 100, 100).with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK),
            server_data(0, 100),
            data_down(Flow::First, 0, 0, 100).with(|p| {
                p.mptcp = Some(dss(dsn_up(0), None, false));
                p.payload = vec![0; 100];
            }),
        ])
        .clean();
}

#[test]
fn closed_window_at_the_end_has_room_for_a_fin() {
    let data_fin = dss(dsn_down(0), Some((dsn_up(1000), 0, 1)), true);
    Exchange::established(false)
        .pass(&[
            client_data(Flow::First, 0, 0, 500),
            data_up(0, 500),
            client_data(Flow::First, 500, 500, 500),
            data_up(500, 500),
            client_ack(Flow::First, 0, 0).with(|p| p.mptcp = Some(data_fin)),
            ack_up(0).with(|p| {
                p.flags = TcpFlags::FIN | TcpFlags::ACK;
                p.seq = seq(ISN_CLIENT, 1000);
            }),
            server_ack(1001).with(|p| p.window = 0),
            ack_down(Flow::First, 1000, 1001).with(|p| p.window = 1),
        ])
        .clean();
}

#[test]
fn wrong_checksum_that_stays_wrong() {
    let _ = Exchange::established(false)
        .pass(&[
            server_data(0, 100).with(|p| p.damaged = true),
            data_down(Flow::First, 0, 0, 100).with(|p| p.damaged = true),
        ])
        .clean();
}

#[test]
fn fallback_once_the_client_gives_a_reason() {
    let bare = client_data(Flow::First, 0, 0, 100).with(|p| p.mptcp = None);
    let _ = Exchange::established(false)
        .pass(&[
            bare,
            data_up(0, 100),
            server_ack(100),
            ack_down(Flow::First, 100, 100).with(|p| p.mptcp = None),
        ])
        .clean();
}

#[test]
fn mp_join_on_the_initial_subflow_joins_nothing() {
    // So the client may still fall back, with a FIN as its last word.
    let fin = |p: &mut Packet| p.flags = TcpFlags::FIN | TcpFlags::ACK;
    Exchange::established(false)
        .pass(&[
            client_ack(Flow::First, 0, 0).with(|p| p.mptcp = Some(join_proof())),
            client_ack(Flow::First, 0, 0)
                .with(|p| p.mptcp = None)
                .with(fin),
            ack_up(0).with(fin),
        ])
        .clean();
}

#[test]
fn memory_is_given_back() {
    let mut exchange = Exchange::established(false).join();
    for n in 0..500 {
        let at = n * 100;
        let flow = if n % 2 == 0 {
            Flow::First
        } else {
            Flow::Joined
        };
        let ssn = n / 2 * 100;
        exchange = exchange.pass(&[
            server_data(at, 100),
            data_down(flow, ssn, at, 100),
            client_ack(flow, ssn + 100, at + 100),
            ack_up(at + 100),
        ]);
    }
    assert!(exchange.clean().checker.held() < 10);
}

#[test]
fn same_packets_give_the_same_hash() {
    let run = |window| {
        let last = ack_up(100).with(|p| p.window = window);
        Exchange::established(false)
            .pass(&[
                server_data(0, 100),
                data_down(Flow::First, 0, 0, 100),
                client_ack(Flow::First, 100, 100),
                last,
            ])
            .checker
            .output_hash()
    };
    assert_eq!(run(1000), run(1000));
    assert_ne!(run(1000), run(999), "I13 has to notice another output");
}

#[test]
fn join_that_made_room_for_another_is_answered_anew() {
    Exchange::established(false)
        .pass(&[
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, 10),
            join_syn(Flow::Third),
            join_syn_ack(Flow::Third, 20),
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, 30),
        ])
        .clean();
}

#[test]
fn data_beyond_the_servers_window_may_be_acked_on_its_subflow() {
    let exchange = |from| {
        Exchange::established(false).join().pass(&[
            server_ack(0),
            client_data(Flow::Joined, 0, from, 200),
            data_up(from, 200),
        ])
    };
    // The window ends at 1000.
    exchange(801)
        .pass(&[ack_down(Flow::Joined, 200, 0)])
        .clean();
    exchange(800).breaks(Rule::AckToClient, &ack_down(Flow::Joined, 200, 0));
}

/// RFC 5961 section 5.2: a packet with an ACK from before any window is dropped, and what it says of data with it. Of that the proxy
/// does not know that the client will bring it.
#[test]
fn data_in_a_packet_of_long_ago_is_brought_by_nobody() {
    let exchange = |ack| {
        let mut exchange = Exchange::established(false).join().pass(&[server_ack(0)]);
        for from in [0, 60_000, 120_000] {
            let train = |packet: Packet| packet.with(|p| p.gso = Some(900));
            exchange.see(&train(server_data(from, 60_000)));
            exchange.see(&train(data_down(Flow::First, from, from, 60_000)));
        }
        exchange.see(&client_ack(Flow::First, 180_000, 180_000));
        let lost = client_data(Flow::First, 0, 0, 100);
        exchange.see(&lost.with(|p| p.ack = seq(ISN_SERVER, ack)));
        // The server waits for that, and the client repeats what comes behind.
        for _ in 0..4 {
            exchange.see(&client_data(Flow::Joined, 0, 100, 100));
            exchange.see(&data_up(100, 100));
        }
        exchange
    };
    let ack = ack_down(Flow::Joined, 100, 0);
    let long_ago = 180_000 - (1 << 17) - 1;
    let _ = exchange(long_ago).pass(std::slice::from_ref(&ack)).clean();
    exchange(long_ago + 1).breaks(Rule::AckToClient, &ack);
}

#[test]
fn join_that_was_reset_is_answered_anew() {
    let reset = Packet::new(
        Point::ToClient,
        Flow::Joined,
        seq(ISN_JOIN_PROXY, 0),
        seq(ISN_JOIN, 0),
    )
    .with(|p| p.flags = TcpFlags::RST | TcpFlags::ACK);
    let ask = || {
        Exchange::established(false).pass(&[
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, ISN_JOIN_PROXY),
        ])
    };
    let _ = ask()
        .pass(&[reset, join_syn(Flow::Joined), join_syn_ack(Flow::Joined, 7)])
        .clean();
    let again = ask().pass(&[join_syn(Flow::Joined)]);
    again.breaks(Rule::Translation, &join_syn_ack(Flow::Joined, 7));
}

#[test]
fn window_probe_brings_another_byte_of_what_the_server_has() {
    let acked = || {
        Exchange::established(false).pass(&[
            client_data(Flow::First, 0, 0, 100),
            data_up(0, 100),
            server_ack(100),
        ])
    };
    // Linux gives it the number before what the server waits for, and a byte of what that is.
    let probe = || client_data(Flow::First, 100, 99, 1).with(|p| p.payload = vec![0xee]);
    let up = |value| data_up(99, 1).with(|p| p.payload = vec![value]);
    let _ = acked().pass(&[probe(), up(0xee)]).clean();
    acked().pass(&[probe()]).breaks(Rule::SameBytes, &up(0xed));
    acked().breaks(Rule::SameBytes, &up(0xee));
    let sent = [client_data(Flow::First, 0, 0, 100), data_up(0, 100)];
    Exchange::established(false)
        .pass(&sent)
        .pass(&[probe()])
        .breaks(Rule::SameBytes, &up(0xee));
}
