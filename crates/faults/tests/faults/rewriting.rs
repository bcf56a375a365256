//! Faults that change packets: what they change, and that checksums follow.
//!
//! `support::read` recomputes every checksum in full.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use flexcp_faults::{Path, Time, checksums_right, segments};
use flexcp_wire::{TcpFlags, TcpOption, Timestamps};

use crate::support::{Tcp, drain, options_of, pair, path, read, through};

const MS: Duration = Duration::from_millis(1);

/// MSS 1460, SACK permitted, timestamps 1000/2000, window scale 7, MP_CAPABLE version 1.
const SYN_OPTIONS: &[u8] = &[
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 3, 232, 0, 0, 7, 208, 1, 3, 3, 7, 30, 4, 1, 1,
];

/// NOP, NOP, timestamps 1000/2000, then a DSS with a mapping of 1000 bytes.
const DATA_OPTIONS: &[u8] = &[
    1, 1, 8, 10, 0, 0, 3, 232, 0, 0, 7, 208, 30, 18, 0x20, 0x05, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0,
    7, 3, 232, 1, 1,
];

fn syn() -> Tcp {
    Tcp::syn().options(SYN_OPTIONS)
}

fn data() -> Tcp {
    Tcp::data().options(DATA_OPTIONS)
}

/// The one packet that comes out, read in full.
fn one(path: &mut Path, packet: &Tcp) -> Tcp {
    let mut out = through(path, Duration::ZERO, packet.build());
    assert_eq!(out.len(), 1);
    read(&out.remove(0))
}

/// Over both IP versions.
fn both(packet: Tcp) -> [Tcp; 2] {
    [packet.clone(), packet.v6()]
}

fn mptcp_options(packet: &Tcp) -> usize {
    let options = options_of(packet).into_iter();
    options
        .filter(|option| matches!(option, TcpOption::Mptcp(_)))
        .count()
}

#[test]
fn corrupted_payload_has_a_wrong_checksum() {
    for packet in both(data()) {
        let mut path = path("corrupt=100%", 1);
        let out = through(&mut path, MS, packet.build());
        assert!(!checksums_right(&out[0]));
        let sent = packet.build();
        let differ: Vec<_> = (0..sent.len())
            .filter(|at| sent[*at] != out[0][*at])
            .collect();
        assert_eq!(differ.len(), 1);
        assert!(differ[0] >= sent.len() - packet.payload.len());
        assert_eq!((sent[differ[0]] ^ out[0][differ[0]]).count_ones(), 1);
        assert_eq!(path.counters().corrupted, 1);
    }
}

#[test]
fn corrupted_header_has_a_wrong_checksum_and_an_untouched_payload() {
    let mut path = path("corrupt=100%:header", 1);
    for packet in both(data()) {
        for _ in 0..200 {
            let out = through(&mut path, MS, packet.build());
            assert!(!checksums_right(&out[0]));
            assert!(out[0].ends_with(&packet.payload));
        }
    }
}

#[test]
fn corrupted_and_fixed_payload_goes_unnoticed() {
    for packet in both(data()) {
        let out = one(&mut path("corrupt=100%:payload:fixed", 1), &packet);
        assert_ne!(out.payload, packet.payload);
        assert_eq!(out.options, packet.options);
    }
}

#[test]
fn packet_without_payload_is_not_corrupted_there() {
    let mut path = path("corrupt=100%", 1);
    one(&mut path, &Tcp::ack());
    assert_eq!(path.counters().corrupted, 0);
}

#[test]
fn strip_overwrites_the_option_and_nothing_else() {
    for packet in both(syn()) {
        let mut path = path("strip=mptcp@syn", 1);
        let out = one(&mut path, &packet);
        assert_eq!(mptcp_options(&out), 0);
        assert_eq!(options_of(&out), options_of(&packet)[..4]);
        assert_eq!(out.options[20..], [1, 1, 1, 1]);
        assert_eq!(path.counters().stripped, 1);
    }
}

#[test]
fn strip_is_for_its_class_and_subtype() {
    let packet = data();
    for (faults, left) in [
        ("strip=mptcp@syn", 1),
        ("strip=mp-join@data", 1),
        ("strip=dss@ack", 1),
        ("strip=dss@data", 0),
        ("strip=mptcp@dss", 0),
        ("strip=kind30", 0),
    ] {
        let out = one(&mut path(faults, 1), &packet);
        assert_eq!(mptcp_options(&out), left, "{faults}");
    }
    let out = one(&mut path("strip=timestamps", 1), &packet);
    assert_eq!(options_of(&out), options_of(&packet)[1..]);
}

#[test]
fn strip_begins_with_the_packet_it_names() {
    let mut path = path("strip=mptcp@data#3", 1);
    let left: Vec<_> = (0..4)
        .map(|_| {
            one(&mut path, &Tcp::ack());
            mptcp_options(&one(&mut path, &data()))
        })
        .collect();
    assert_eq!(left, [1, 1, 0, 0]);
}

#[test]
fn window_scale_and_mss_of_syns_are_replaced() {
    for packet in both(syn()) {
        let out = one(&mut path("wscale=3,mss=1200", 1), &packet);
        let options = options_of(&out);
        assert_eq!(options[0], TcpOption::Mss(1200));
        assert_eq!(options[3], TcpOption::WindowScale(3));
        assert_eq!(options.len(), 5);
        let out = one(&mut path("mss=1500", 1), &packet);
        assert_eq!(options_of(&out)[0], TcpOption::Mss(1460));
    }
}

#[test]
fn doubled_option_stands_behind_the_others_where_it_fits() {
    for packet in both(syn()) {
        let mut path = path("double=mptcp@syn", 1);
        let out = one(&mut path, &packet);
        assert_eq!(mptcp_options(&out), 2);
        assert_eq!(options_of(&out)[..5], options_of(&packet));
        assert_eq!(path.counters().rewritten, 1);
    }
    // 32 bytes are taken, 20 more do not fit.
    let mut path = path("double=mptcp", 1);
    assert_eq!(one(&mut path, &data()).options, DATA_OPTIONS);
    assert_eq!(path.counters().rewritten, 0);
}

#[test]
fn shifted_timestamp_is_shifted_back_in_the_echo() {
    let (mut up, mut down) = pair("shift-ts=4294967295", "");
    let out = one(&mut up, &data());
    let timestamps = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    assert_eq!(options_of(&out)[0], timestamps(999, 2000));
    let out = one(&mut down, &data().reversed());
    assert_eq!(options_of(&out)[0], timestamps(1000, 2001));
}

#[test]
fn resegmented_halves_make_up_the_segment() {
    for packet in both(Tcp {
        flags: TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR,
        ..data()
    }) {
        let out = through(&mut path("resegment=300", 1), MS, packet.build());
        let [first, second] = [read(&out[0]), read(&out[1])];
        assert_eq!(first.payload, packet.payload[..300]);
        assert_eq!(second.payload, packet.payload[300..]);
        assert_eq!((first.seq, second.seq), (packet.seq, packet.seq + 300));
        assert_eq!(first.flags, TcpFlags::ACK | TcpFlags::CWR);
        assert_eq!(second.flags, TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN);
        assert_eq!(first.options, packet.options);
        assert_eq!(second.options, packet.options);
    }
}

#[test]
fn segmentation_makes_right_segments_of_one_without_checksum() {
    for packet in both(Tcp {
        flags: TcpFlags::ACK | TcpFlags::PSH,
        ..data()
    }) {
        let mut unfinished = packet.build();
        let at = unfinished.len() - packet.payload.len() - packet.options.len() - 4;
        unfinished[at] ^= 1;
        let out: Vec<_> = segments(&unfinished, 400)
            .iter()
            .map(|out| read(out))
            .collect();
        let payload: Vec<u8> = out.iter().flat_map(|out| out.payload.clone()).collect();
        assert_eq!(payload, packet.payload);
        let seqs: Vec<_> = out.iter().map(|out| out.seq - packet.seq).collect();
        assert_eq!(seqs, [0, 400, 800]);
        let pushed = out.iter().map(|out| out.flags.contains(TcpFlags::PSH));
        assert!(pushed.eq([false, false, true]));
        assert_eq!(segments(&unfinished, 0), [unfinished]);
    }
    assert_eq!(segments(&Tcp::ack().build(), 400), [Tcp::ack().build()]);
}

#[test]
fn segment_that_is_not_longer_stays_whole() {
    assert_eq!(
        one(&mut path("resegment=1000", 1), &data()).payload.len(),
        1000
    );
    one(&mut path("resegment=1", 1), &syn());
}

#[test]
fn halves_of_a_corrupted_segment_are_both_wrong() {
    let out = through(
        &mut path("corrupt=100%,resegment=300", 1),
        MS,
        data().build(),
    );
    assert!(out.iter().all(|half| !checksums_right(half)));
    let out = through(
        &mut path("corrupt=100%,strip=mptcp,nat,isn", 1),
        MS,
        data().build(),
    );
    assert!(!checksums_right(&out[0]));
}

#[test]
fn adjacent_segments_are_joined() {
    for packet in both(data()) {
        let mut path = path("coalesce=5ms:2500", 1);
        for number in 0..3 {
            let seq = packet.seq + 1000 * number;
            path.send(
                Time::from_millis(number.into()),
                Tcp {
                    seq,
                    ..packet.clone()
                }
                .build(),
            );
        }
        let out = drain(&mut path);
        // The third would make it too long: it starts anew and waits its 5 ms.
        assert_eq!(
            out.iter()
                .map(|(at, _)| at.0 / 1_000_000)
                .collect::<Vec<_>>(),
            [2, 7]
        );
        let joined = read(&out[0].1);
        assert_eq!(
            joined.payload,
            [&packet.payload[..], &packet.payload[..]].concat()
        );
        assert_eq!((joined.seq, &joined.options), (packet.seq, &packet.options));
        assert_eq!(path.counters().joined, 1);
    }
}

#[test]
fn segments_are_not_joined_across_a_gap_other_options_flows_or_acknowledgments() {
    let first = data();
    let gap = Tcp {
        seq: first.seq + 1001,
        ..data()
    };
    let mut other_options = Tcp {
        seq: first.seq + 1000,
        ..data()
    };
    other_options.options[20] = 99;
    let other_flow = Tcp {
        seq: first.seq + 1000,
        src: (first.src.0, 1001),
        ..data()
    };
    let other_ack = Tcp {
        seq: first.seq + 1000,
        ack: first.ack + 1,
        ..data()
    };
    for second in [gap, other_options, other_flow, other_ack] {
        let mut path = path("coalesce=5ms:9000", 1);
        path.send(Time::ZERO, first.build());
        path.send(Time::ZERO, second.build());
        assert_eq!(drain(&mut path).len(), 2);
    }
}

#[test]
fn push_and_whatever_is_not_data_do_not_wait() {
    let mut path = path("coalesce=5ms:9000", 1);
    path.send(Time::ZERO, data().build());
    let ack = Tcp {
        seq: 6000,
        ..Tcp::ack()
    };
    path.send(Time::ZERO, ack.build());
    assert_eq!(path.poll_timeout(), Some(Time::ZERO));
    let out: Vec<_> = drain(&mut path)
        .iter()
        .map(|(at, p)| (*at, read(p).payload.len()))
        .collect();
    assert_eq!(out, [(Time::ZERO, 1000), (Time::ZERO, 0)]);

    let mut path = self::path("coalesce=5ms:9000", 1);
    path.send(Time::ZERO, data().build());
    let push = Tcp {
        seq: 6000,
        flags: TcpFlags::ACK | TcpFlags::PSH,
        ..data()
    };
    path.send(Time::ZERO, push.build());
    let out = drain(&mut path);
    assert_eq!((out.len(), out[0].0), (1, Time::ZERO));
}

#[test]
fn waiting_segment_comes_out_when_the_faults_are_replaced() {
    let mut path = path("coalesce=5ms:9000", 1);
    path.send(Time::ZERO, data().build());
    path.set_faults(Time::from_millis(1), vec![]);
    assert_eq!(drain(&mut path), [(Time::from_millis(1), data().build())]);
}

#[test]
fn nat_maps_the_source_and_maps_answers_back() {
    for (packet, public) in both(data()).into_iter().zip([
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        "2001:db8::1".parse().expect("an address"),
    ]) {
        let (mut up, mut down) = pair("nat=192.0.2.1+2001:db8::1", "delay=1ms");
        let out = one(&mut up, &packet);
        assert_eq!(out.src.0, public);
        assert_ne!(out.src.1, packet.src.1);
        assert_eq!(out.dst, packet.dst);
        assert_eq!(one(&mut up, &packet).src, out.src, "the mapping stays");

        let answer = Tcp {
            src: out.dst,
            dst: out.src,
            ..packet.clone()
        };
        assert_eq!(one(&mut down, &answer).dst, packet.src);
        let stranger = Tcp {
            dst: (packet.src.0, 9),
            ..answer
        };
        assert_eq!(one(&mut down, &stranger).dst, stranger.dst);
    }
}

#[test]
fn nat_rebinds_on_time_and_loses_what_comes_back_to_the_old_port() {
    let (mut up, mut down) = pair("nat=every5ms+at7ms", "");
    let mut ports = vec![];
    for at in [0, 4, 5, 6, 7, 9, 10] {
        let out = through(&mut up, MS * at, data().build());
        let out = read(&out[0]);
        assert_eq!(out.src.0, data().src.0, "the address stays");
        ports.push(out.src.1);
    }
    assert_eq!(ports[0], ports[1]);
    assert_eq!(ports[2], ports[3]);
    assert_eq!(ports[4], ports[5]);
    let mut distinct = vec![ports[0], ports[2], ports[4], ports[6]];
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);

    let answer = Tcp {
        dst: (data().src.0, ports[0]),
        ..data().reversed()
    };
    assert!(through(&mut down, MS * 11, answer.build()).is_empty());
    assert_eq!(down.counters().lost_nat, 1);
}

#[test]
fn isn_is_shifted_one_way_and_acknowledgments_back() {
    for packet in both(syn()) {
        let (mut up, mut down) = pair("isn", "");
        let out = one(&mut up, &packet);
        let shift = out.seq.wrapping_sub(packet.seq);
        assert_ne!(shift, 0);
        assert_eq!(
            one(&mut up, &packet).seq,
            out.seq,
            "a repeated SYN has the same number"
        );

        let mut sack = vec![1, 1, 5, 10];
        sack.extend(out.seq.wrapping_add(2001).to_be_bytes());
        sack.extend(out.seq.wrapping_add(3001).to_be_bytes());
        let answer = Tcp {
            ack: out.seq.wrapping_add(1001),
            flags: TcpFlags::ACK,
            ..packet.clone().reversed()
        };
        let back = one(&mut down, &answer.options(&sack));
        assert_eq!(back.ack, packet.seq + 1001);
        let blocks = [(packet.seq + 2001, packet.seq + 3001)];
        assert!(matches!(options_of(&back)[0], TcpOption::Sack(sack) if *sack == blocks));
        assert_eq!(back.seq, packet.seq);
    }
}

#[test]
fn isn_of_a_connection_from_before_stays() {
    let (mut up, _) = pair("isn", "");
    assert_eq!(one(&mut up, &data()).seq, data().seq);
    assert_eq!(up.counters().shifted, 0);
}

#[test]
fn nat_and_isn_are_undone_whatever_their_order() {
    for faults in [
        "nat=192.0.2.1,isn,shift-ts=5",
        "shift-ts=5,isn,nat=192.0.2.1",
    ] {
        let (mut up, mut down) = pair(faults, "isn");
        let out = one(&mut up, &syn());
        assert_ne!((out.src, out.seq), (syn().src, syn().seq));
        let answer = Tcp {
            src: out.dst,
            dst: out.src,
            seq: 1,
            ack: out.seq.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            ..syn()
        };
        let back = one(&mut down, &answer);
        assert_eq!((back.dst, back.ack), (syn().src, syn().seq + 1), "{faults}");
        // The other direction has a shift of its own, known under the client's own address.
        let third = Tcp {
            ack: back.seq.wrapping_add(1),
            ..Tcp::ack()
        };
        assert_eq!(one(&mut up, &third).ack, 2, "{faults}");
    }
}

#[test]
fn ce_marks_what_can_carry_it() {
    for packet in both(data()) {
        for (before, after) in [
            (0b00, 0b00),
            (0b01, 0b11),
            (0b10, 0b11),
            (0b1010_0010, 0b1010_0011),
        ] {
            let packet = Tcp {
                traffic_class: before,
                ..packet.clone()
            };
            let out = one(&mut path("ce=100%", 1), &packet);
            assert_eq!(out.traffic_class, after);
        }
    }
}
