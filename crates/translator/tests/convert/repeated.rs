//! What a client says again of its preamble once its server has taken over.

use flexcp_wire::{CapableKeys, TcpFlags};

use crate::guest::{ALL, Guest, REQUEST, Uses};
use crate::world::*;

#[test]
fn server_sees_nothing_of_a_preamble_that_is_repeated() {
    for mptcp in [true, false] {
        let repeat = |guest: &mut Guest, data: &[u8]| {
            guest.to_server.clear();
            guest.say_and_repeat(data);
            let [packet] = &guest.to_server[..] else {
                panic!("{mptcp}: {:?}", guest.to_server)
            };
            (
                packet.tcp.seq.wrapping_sub(guest.expects),
                packet.payload.clone(),
            )
        };
        let mut guest = Guest::connected(Uses { mptcp, ..ALL });
        guest.go(-10);
        // The server ACKs what has a number that it has got.
        assert_eq!(repeat(&mut guest, &REQUEST), (u32::MAX, vec![]), "{mptcp}");
        guest.go(4);
        assert_eq!(
            repeat(&mut guest, &REQUEST[4..7]),
            (u32::MAX, vec![]),
            "{mptcp}"
        );
        // The stream stands right behind it in the same packet.
        let both = [&REQUEST[4..], b"GET"].concat();
        assert_eq!(
            repeat(&mut guest, &both),
            (u32::MAX - 2, b"GET".to_vec()),
            "{mptcp}"
        );
        guest.go(6);
        assert_eq!(guest.arrived, b"GET");
        assert_eq!(
            repeat(&mut guest, b"GET /"),
            (u32::MAX - 4, b"GET /".to_vec()),
            "{mptcp}"
        );
        assert_eq!(guest.arrived, b"GET /");
    }
    // The end of the stream is where it is.
    let mut guest = Guest::connected(Uses {
        mptcp: false,
        ..ALL
    });
    guest.go(-10);
    guest.to_server.clear();
    guest.send(ACK | TcpFlags::FIN | TcpFlags::URG, &REQUEST, vec![]);
    let [fin] = &guest.to_server[..] else {
        panic!("{:?}", guest.to_server)
    };
    assert_eq!(fin.tcp.flags, ACK | TcpFlags::FIN);
    assert!(fin.payload.is_empty());
    assert_eq!(fin.tcp.seq, guest.expects);
}

/// TCP numbers come again.
#[test]
fn stream_is_no_preamble_where_it_has_gone_round() {
    let mut guest = Guest::connected(Uses {
        mptcp: false,
        ..ALL
    });
    for _ in 0..20 {
        guest.go(1 << 29);
        guest.expects = guest.next;
        guest.say(b"more");
        guest.speak(ACK, &[], vec![]);
    }
    assert_eq!(guest.arrived, b"more".repeat(20));
}

/// It has said less behind its SYN than that carried at first, so that nothing of it ever stands where a server's stream would begin.
#[test]
fn client_that_repeats_its_syn_and_leaves_once_refused_is_forgotten() {
    let mut world = World::new();
    let asks = || [mss(), capable(CapableKeys::Syn)];
    let _ = world.of_client(SYN, [0, 0], asks(), &CONNECT);
    let _ = world.of_client(SYN, [0, 0], asks(), &[]);
    let (_, out) = world.of_server(TcpFlags::RST | ACK, [0, 25], [], &[]);
    let [answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(answer.ack(), 1);
    let said = answer.seq() + 1;
    let _ = world.of_client(SYN, [0, 0], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [1, said], [mss()], &[]);
    let refusal = i32::try_from(out[0].packet.payload.len()).unwrap();
    let _ = world.of_client(ACK | TcpFlags::FIN, [1, said + refusal + 1], [], &[]);
    world.pass(60_000);
    let _ = world.timeout();
    assert_eq!(world.translator.gauges().connections, 0);
}
