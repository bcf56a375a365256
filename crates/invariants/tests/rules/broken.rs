//! Exchanges that break a rule with their last packet.

use flexcp_invariants::{Options, Point, Rule};
use flexcp_wire::{TcpFlags, TcpOption};

use crate::exchange::{
    Exchange, Flow, ISN_CLIENT, ISN_SERVER, Packet, ack_down, ack_up, client_ack, client_data,
    data_down, data_up, dsn_down, dsn_up, dss, join_syn, join_syn_ack, seq, server_ack,
    server_data,
};

fn one_down() -> Exchange {
    Exchange::established(false).pass(&[server_data(0, 100), data_down(Flow::First, 0, 0, 100)])
}

fn one_up() -> Exchange {
    Exchange::established(false).pass(&[client_data(Flow::First, 0, 0, 100), data_up(0, 100)])
}

#[test]
fn i1_another_byte() {
    let mut wrong = data_down(Flow::First, 0, 0, 100);
    wrong.payload[70] ^= 1;
    Exchange::established(false)
        .pass(&[server_data(0, 100)])
        .breaks(Rule::SameBytes, &wrong);
    let mut wrong = data_up(0, 100);
    wrong.payload[99] ^= 1;
    Exchange::established(false)
        .pass(&[client_data(Flow::First, 0, 0, 100)])
        .breaks(Rule::SameBytes, &wrong);
}

/// A client that is a FlexCP itself closes holes with filler, where the server has ACKed the data.
#[test]
fn i1_other_bytes_than_the_server_has_acked() {
    let filler = data_up(0, 100).with(|p| p.payload = vec![0; 100]);
    let exchange = |options, acked| {
        Exchange::with_options(false, options).pass(&[
            client_data(Flow::First, 0, 0, 100),
            data_up(0, 100),
            server_ack(acked),
            ack_down(Flow::First, acked, acked),
        ])
    };
    let whole = exchange(Options::capture(), 100);
    let _ = whole.pass(std::slice::from_ref(&filler)).clean();
    exchange(Options::capture(), 90).breaks(Rule::SameBytes, &filler);
}

#[test]
fn i1_filler_under_data_that_the_client_lacks() {
    let filler = data_down(Flow::First, 0, 0, 100).with(|p| p.payload = vec![0; 100]);
    one_down().breaks(Rule::SameBytes, &filler);
}

#[test]
fn i2_other_bounds() {
    let longer = data_down(Flow::First, 0, 0, 100).with(|p| {
        p.mptcp = Some(dss(dsn_up(0), Some((dsn_down(0), 1, 120)), false));
    });
    one_down()
        .pass(&[server_data(0, 100)])
        .breaks(Rule::StableMapping, &longer);
}

#[test]
fn i2_other_data_under_the_same_numbers() {
    one_down()
        .pass(&[server_data(100, 100)])
        .breaks(Rule::StableMapping, &data_down(Flow::First, 0, 100, 100));
}

#[test]
fn i2_payload_without_mapping() {
    let bare =
        data_down(Flow::First, 0, 0, 100).with(|p| p.mptcp = Some(dss(dsn_up(0), None, false)));
    Exchange::established(false)
        .pass(&[server_data(0, 100)])
        .breaks(Rule::StableMapping, &bare);
}

#[test]
fn i2_without_data_ack() {
    one_up().pass(&[server_ack(100)]).breaks(
        Rule::StableMapping,
        &ack_down(Flow::First, 100, 100).with(|p| p.mptcp = None),
    );
}

#[test]
fn i3_data_that_was_never_sent() {
    one_up().breaks(Rule::Translation, &data_up(100, 10));
    one_down().breaks(Rule::Translation, &data_down(Flow::First, 100, 100, 10));
}

/// Copies that waited inside the proxy have the mapping that they had.
#[test]
fn i2_other_mapping_of_a_queued_copy() {
    let other = data_down(Flow::First, 0, 0, 100).with(|p| {
        p.mptcp = Some(dss(dsn_up(0), Some((dsn_down(0), 1, 101)), false));
    });
    Exchange::with_options(false, Options::capture())
        .pass(&[
            server_data(0, 200),
            data_down(Flow::First, 0, 0, 100),
            client_ack(Flow::First, 100, 100),
        ])
        .breaks(Rule::StableMapping, &other);
}

/// The client has ended its data further on.
#[test]
fn i3_fin_before_the_clients() {
    let data_fin = dss(dsn_down(0), Some((dsn_up(200), 0, 1)), true);
    let end = client_ack(Flow::First, 0, 0).with(|p| {
        p.seq = seq(ISN_CLIENT, 100);
        p.mptcp = Some(data_fin);
    });
    let fin = data_up(100, 0).with(|p| p.flags = TcpFlags::FIN | TcpFlags::ACK);
    one_up().pass(&[end]).breaks(Rule::Translation, &fin);
}

#[test]
fn i3_fin_out_of_place() {
    let fin = |p: &mut Packet| p.flags = TcpFlags::FIN | TcpFlags::ACK;
    one_up().breaks(Rule::Translation, &data_up(0, 100).with(fin));
    let data_fin = data_down(Flow::First, 0, 0, 100).with(|p| {
        p.mptcp = Some(dss(dsn_up(0), Some((dsn_down(0), 1, 101)), true));
    });
    one_down()
        .pass(&[server_data(0, 100)])
        .breaks(Rule::Translation, &data_fin);
}

#[test]
fn i3_join_answered_with_another_number() {
    let again = join_syn_ack(Flow::Joined, 30);
    Exchange::established(false)
        .pass(&[join_syn(Flow::Joined), join_syn_ack(Flow::Joined, 10)])
        .breaks(Rule::Translation, &again);
    // It was answered after the other one, which it made room for.
    Exchange::established(false)
        .pass(&[
            join_syn(Flow::Third),
            join_syn_ack(Flow::Third, 20),
            join_syn(Flow::Joined),
            join_syn_ack(Flow::Joined, 10),
        ])
        .breaks(Rule::Translation, &again);
    // A complete one does not make room.
    Exchange::established(false)
        .join()
        .pass(&[
            ack_down(Flow::Joined, 0, 0),
            join_syn(Flow::Third),
            join_syn_ack(Flow::Third, 20),
        ])
        .breaks(Rule::Translation, &again);
}

#[test]
fn i3_mptcp_to_the_server() {
    let leaked = data_up(0, 100).with(|p| p.mptcp = Some(dss(0, None, false)));
    Exchange::established(false)
        .pass(&[client_data(Flow::First, 0, 0, 100)])
        .breaks(Rule::Translation, &leaked);
}

#[test]
fn i4_subflow_ack_as_data_ack() {
    one_down()
        .pass(&[client_ack(Flow::First, 100, 0)])
        .breaks(Rule::AckToServer, &ack_up(100));
}

#[test]
fn i4_ack_goes_back() {
    one_down()
        .pass(&[client_ack(Flow::First, 100, 100), ack_up(100)])
        .breaks(Rule::AckToServer, &ack_up(50));
}

#[test]
fn i5_ack_before_the_servers() {
    one_up().breaks(Rule::AckToClient, &ack_down(Flow::First, 100, 0));
    one_up().breaks(Rule::AckToClient, &ack_down(Flow::First, 0, 100));
}

#[test]
fn i5_data_ack_goes_back_unless_it_was_overtaken() {
    let captured = Options {
        causal: false,
        ..Options::default()
    };
    let acked = |options| {
        Exchange::with_options(false, options).join().pass(&[
            client_data(Flow::First, 0, 0, 100),
            data_up(0, 100),
            client_data(Flow::Joined, 0, 100, 100),
            data_up(100, 100),
            server_ack(200),
            ack_down(Flow::First, 100, 200),
        ])
    };
    let late = ack_down(Flow::Joined, 100, 100);
    let _ = acked(captured).pass(std::slice::from_ref(&late)).clean();
    acked(captured).wait(3).breaks(Rule::AckToClient, &late);
    acked(captured).breaks(Rule::AckToClient, &ack_down(Flow::First, 100, 100));
    acked(Options::default()).breaks(Rule::AckToClient, &late);
}

#[test]
fn i5_ack_of_what_came_over_another_subflow() {
    // Announced here by a packet with no more than half of it; sent in full on the other.
    let announced = client_data(Flow::Joined, 0, 0, 100).with(|p| p.payload.truncate(50));
    Exchange::established(false)
        .join()
        .pass(&[
            announced,
            client_data(Flow::First, 0, 0, 100),
            data_up(0, 100),
            server_ack(100),
            ack_down(Flow::Joined, 50, 100),
        ])
        .breaks(Rule::AckToClient, &ack_down(Flow::Joined, 100, 100));
}

#[test]
fn i6_window_wider_than_offered() {
    // The client's scale is 2, the server's 0.
    let wide = ack_up(100).with(|p| p.window = 1001);
    one_down()
        .pass(&[client_ack(Flow::First, 100, 100)])
        .breaks(Rule::Window, &wide);
    let wide = ack_down(Flow::First, 100, 100).with(|p| p.window = 1001);
    one_up()
        .pass(&[server_ack(100)])
        .breaks(Rule::Window, &wide);
}

#[test]
fn i6_window_at_the_end_wider_than_a_fin() {
    let fin = |p: &mut Packet| p.flags = TcpFlags::FIN | TcpFlags::ACK;
    let data_fin = dss(dsn_down(0), Some((dsn_up(0), 0, 1)), true);
    Exchange::established(false)
        .pass(&[
            client_ack(Flow::First, 0, 0).with(|p| p.mptcp = Some(data_fin)),
            ack_up(0).with(fin),
            server_ack(1).with(|p| p.window = 999),
        ])
        .breaks(
            Rule::Window,
            &ack_down(Flow::First, 0, 1).with(|p| p.window = 1001),
        );
}

#[test]
fn i6_right_edge_moves_left() {
    let narrow = ack_up(100).with(|p| p.window = 900);
    one_down()
        .pass(&[client_ack(Flow::First, 100, 100), ack_up(100)])
        .breaks(Rule::Window, &narrow);
    let narrow = ack_down(Flow::First, 100, 100).with(|p| p.window = 999);
    one_up()
        .pass(&[server_ack(100), ack_down(Flow::First, 100, 100)])
        .breaks(Rule::Window, &narrow);
}

#[test]
fn i7_segment_too_long() {
    // MSS 1000, options of 28 bytes.
    let whole = data_down(Flow::First, 0, 0, 973);
    Exchange::established(false)
        .pass(&[server_data(0, 973)])
        .breaks(Rule::Size, &whole);
    let _ = Exchange::established(false)
        .pass(&[server_data(0, 973), whole.with(|p| p.gso = Some(972))])
        .clean();
}

#[test]
fn i7_option_that_nobody_offered() {
    let odd = Packet::new(Point::ToServer, Flow::Server, ISN_CLIENT, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.others = vec![TcpOption::Unknown {
            kind: 99,
            data: &[1, 2],
        }];
    });
    Exchange::established(false).breaks(Rule::Size, &odd);
}

#[test]
fn i8_wrong_checksum() {
    let wrong = data_down(Flow::First, 0, 0, 100).with(|p| p.damaged = true);
    Exchange::established(false)
        .pass(&[server_data(0, 100)])
        .breaks(Rule::Checksum, &wrong);
}

#[test]
fn i8_wrong_checksum_made_right() {
    Exchange::established(false)
        .pass(&[server_data(0, 100).with(|p| p.damaged = true)])
        .breaks(Rule::Checksum, &data_down(Flow::First, 0, 0, 100));
}

#[test]
fn i9_more_payload_than_came_in() {
    one_down().breaks(Rule::Amplification, &data_down(Flow::First, 0, 0, 100));
}

#[test]
fn i9_many_packets_for_one() {
    let acks = vec![ack_up(0); 4];
    Exchange::established(false)
        .pass(&[client_ack(Flow::First, 0, 0)])
        .pass(&acks)
        .breaks(Rule::Amplification, &ack_up(0));
}

#[test]
fn i9_reset_for_a_reset() {
    let reset = client_ack(Flow::First, 0, 0).with(|p| p.flags = TcpFlags::RST);
    let answer = ack_down(Flow::First, 0, 0).with(|p| p.flags = TcpFlags::RST);
    Exchange::established(false)
        .pass(&[reset])
        .breaks(Rule::Amplification, &answer);
}

#[test]
fn i10_clock_goes_back() {
    let stamped = |packet: Packet, val, ecr| packet.with(|p| p.timestamps = Some((val, ecr)));
    Exchange::established(true)
        .pass(&[stamped(client_ack(Flow::First, 0, 0), 110, 900)])
        .pass(&[stamped(ack_up(0), 110, 900)])
        .breaks(Rule::Timestamps, &stamped(ack_up(0), 109, 900));
    Exchange::established(true)
        .pass(&[
            stamped(server_data(0, 10), 910, 101),
            stamped(data_down(Flow::First, 0, 0, 10), 910, 101),
        ])
        .breaks(
            Rule::Timestamps,
            &stamped(ack_down(Flow::First, 0, 0), 900, 101),
        );
}

#[test]
fn i10_echo_of_what_was_never_sent() {
    let stamped = |packet: Packet, val, ecr| packet.with(|p| p.timestamps = Some((val, ecr)));
    Exchange::established(true)
        .pass(&[stamped(client_ack(Flow::First, 0, 0), 110, 900)])
        .breaks(Rule::Timestamps, &stamped(ack_up(0), 110, 899));
    let exact = Options {
        exact_echo: true,
        ..Options::default()
    };
    Exchange::with_options(true, exact)
        .pass(&[
            stamped(client_ack(Flow::First, 0, 0), 110, 900),
            stamped(server_data(0, 10), 910, 101),
        ])
        .breaks(
            Rule::Timestamps,
            &stamped(data_down(Flow::First, 0, 0, 10), 910, 105),
        );
}

#[test]
fn i10_without_timestamps() {
    Exchange::established(true)
        .pass(&[server_data(0, 10).with(|p| p.timestamps = Some((910, 101)))])
        .breaks(Rule::Timestamps, &data_down(Flow::First, 0, 0, 10));
}

#[test]
fn i11_block_over_what_the_client_lacks() {
    let block = (seq(ISN_SERVER, 50), seq(ISN_SERVER, 100));
    one_down()
        .pass(&[client_ack(Flow::First, 0, 0)])
        .breaks(Rule::Sack, &ack_up(0).with(|p| p.sack = vec![block]));
}

#[test]
fn i11_block_that_starts_at_the_ack() {
    let block = (seq(ISN_SERVER, 0), seq(ISN_SERVER, 100));
    one_down()
        .pass(&[client_ack(Flow::First, 100, 0)])
        .breaks(Rule::Sack, &ack_up(0).with(|p| p.sack = vec![block]));
}

#[test]
fn i11_blocks_that_overlap() {
    let block = |from, to| (seq(ISN_SERVER, from), seq(ISN_SERVER, to));
    let both = ack_up(0).with(|p| p.sack = vec![block(40, 100), block(50, 80)]);
    one_down()
        .pass(&[client_ack(Flow::First, 0, 0).with(|p| p.sack = vec![block(40, 100)])])
        .breaks(Rule::Sack, &both);
}

#[test]
fn i11_block_over_what_the_server_lacks() {
    let block = (seq(ISN_CLIENT, 50), seq(ISN_CLIENT, 100));
    one_up().pass(&[server_ack(0)]).breaks(
        Rule::Sack,
        &ack_down(Flow::First, 0, 0).with(|p| p.sack = vec![block]),
    );
}

#[test]
fn i11_block_beyond_what_the_client_sent_here() {
    let block = (seq(ISN_CLIENT, 50), seq(ISN_CLIENT, 101));
    one_up().pass(&[server_ack(0)]).breaks(
        Rule::Sack,
        &ack_down(Flow::First, 0, 0).with(|p| p.sack = vec![block]),
    );
}
