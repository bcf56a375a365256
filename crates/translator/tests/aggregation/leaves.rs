//! Uplinks that are lost, and come back.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use flexcp_translator::{FastPath, FlowEntry, Installed, Mode, Uplink, Verdict};
use flexcp_wire::{Ends, MpJoin};

use crate::world::*;

const FIRST: Option<&str> = Some("10.1.0.2");
const SECOND: Option<&str> = Some("10.2.0.2");

/// Subflow and ids of each `REMOVE_ADDR` among the packets.
fn removed(out: &[Out]) -> Vec<(Option<usize>, Vec<u8>)> {
    let removed = out.iter().map(|out| (out.subflow, out.removed()));
    removed.filter(|(_, ids)| !ids.is_empty()).collect()
}

fn living(world: &World) -> usize {
    let view = world.translator.connections(world.now).next();
    let view = view.expect("the connection goes on");
    view.subflows.len()
}

#[test]
fn lost_uplink_is_left_at_once_and_the_server_hears_of_it() {
    let mut world = World::joined();
    let out = world.with_uplinks([None, SECOND]);
    assert_eq!(removed(&out), [(Some(1), vec![0])]);
    assert!(out.iter().all(|out| out.subflow == Some(1)), "{out:?}");
    assert_eq!(living(&world), 1);
    // The client's data goes by the other.
    let (_, out) = world.of_client(ACK, [1, 1], [], b"x");
    assert_eq!(out[0].subflow, Some(1));
    // The same of a joined one, whose address has another id.
    let mut world = World::joined();
    let out = world.with_uplinks([FIRST, None]);
    assert_eq!(removed(&out), [(Some(0), vec![2])]);
    assert_eq!(world.translator.counters().rm_addr_tx, 1);
}

#[test]
fn server_is_told_three_times() {
    let mut world = World::joined();
    assert_eq!(world.with_uplinks([None, SECOND]).len(), 1);
    let mut told = vec![];
    let since = world.now;
    for _ in 0..100 {
        world.pass(50);
        if !removed(&world.timeout()).is_empty() {
            told.push(world.now.since(since).as_millis());
        }
    }
    assert_eq!(told, [250, 750]);
}

#[test]
fn uplink_that_is_back_is_joined_at_once_and_not_withdrawn_again() {
    let mut world = World::joined();
    let _ = world.with_uplinks([FIRST, None]);
    world.pass(100);
    let out = world.with_uplinks([FIRST, Some("10.2.0.9")]);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!(syn.packet.ends().from.ip(), end("10.2.0.9:1").ip());
    let Some(MpJoin::Syn { address_id, .. }) = syn.join() else {
        panic!("{out:?}")
    };
    assert_eq!(address_id, 2);
    for _ in 0..20 {
        world.pass(50);
        assert_eq!(removed(&world.timeout()), []);
    }
}

#[test]
fn uplink_that_rests_after_a_refusal_is_tried_once_it_has_come_back() {
    let mut world = World::established();
    let _ = world.timeout();
    let _ = world.of_server(1, RST | ACK, [0, 1], [], &[]);
    assert!(world.with_uplinks([FIRST, None]).is_empty());
    let out = world.with_uplinks([FIRST, SECOND]);
    assert!(matches!(out[0].join(), Some(MpJoin::Syn { .. })));
}

#[test]
fn last_subflow_is_kept_until_there_is_another() {
    let mut world = World::established();
    let _ = world.with_uplinks([FIRST, None]);
    assert!(world.with_uplinks([None, None]).is_empty());
    assert_eq!(living(&world), 1);
    let out = world.with_uplinks([None, SECOND]);
    assert!(matches!(out[0].join(), Some(MpJoin::Syn { .. })), "{out:?}");
    assert_eq!(removed(&out), []);
    let _ = world.answer_join(1);
    assert_eq!(living(&world), 2);
    let data_ack = dss(world.idsn() + 1, None);
    let (_, out) = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
    assert_eq!(removed(&out), [(Some(1), vec![0])]);
    assert_eq!(living(&world), 1);
}

#[test]
fn all_uplinks_may_be_lost_for_a_while() {
    let mut world = World::joined();
    assert!(world.with_uplinks([None, None]).is_empty());
    assert_eq!(living(&world), 2);
    assert!(world.with_uplinks([FIRST, SECOND]).is_empty());
    let (_, out) = world.of_client(ACK, [1, 1], [], b"x");
    assert_eq!(out[0].subflow, Some(0));
}

#[test]
fn join_over_a_lost_uplink_is_given_up() {
    let mut world = World::established();
    assert_eq!(world.timeout().len(), 1);
    let out = world.with_uplinks([FIRST, None]);
    assert!(out.iter().all(|out| out.join().is_none()), "{out:?}");
    world.pass(1100);
    assert!(world.timeout().iter().all(|out| out.join().is_none()));
    assert_eq!(living(&world), 1);
}

#[test]
fn syn_that_nobody_has_answered_goes_by_another_uplink_once_its_own_is_lost() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    assert!(world.with_uplinks([None, SECOND]).is_empty());
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].packet.ends().from.ip(), uplinks()[1]);
    assert!(out[0].keys().is_some());
}

#[test]
fn connection_begins_on_the_first_uplink_that_has_an_address() {
    let mut world = World::new();
    let _ = world.with_uplinks([None, SECOND]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].packet.ends().from.ip(), uplinks()[1]);
}

#[test]
fn port_that_is_used_again_is_a_new_subflow() {
    let ports = 61000..=61003;
    let mut world = World::answered_with(|config| {
        let Mode::Box { source_ports, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        *source_ports = ports.clone();
    });
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    let _ = world.timeout();
    for number in 1..=40 {
        world.pass(3000);
        let addr = ["10.2.0.9", "10.2.0.2"][number % 2];
        let out = world.with_uplinks_at([FIRST, Some(addr)], ports.clone());
        let joins = |out: &&Out| matches!(out.join(), Some(MpJoin::Syn { .. }));
        let syn = out.iter().find(joins).expect("a join at once");
        let subflow = syn.subflow.expect("a subflow");
        let out = world.answer_join(subflow);
        assert!(
            matches!(out[0].join(), Some(MpJoin::Ack { .. })),
            "{number}: {out:?}"
        );
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(subflow, ACK, [1, 1], [data_ack], &[]);
        assert_eq!(living(&world), 2);
    }
}

#[test]
fn uplinks_that_change_bring_no_join_before_the_server_has_the_keys() {
    let mut world = World::opened();
    for addrs in [[FIRST, None], [FIRST, SECOND]] {
        let out = world.with_uplinks(addrs);
        assert!(out.iter().all(|out| out.join().is_none()), "{out:?}");
    }
}

/// Three uplinks, of which the first two are lost, at once or a while apart.
#[test]
fn all_lost_addresses_are_told_over_all_subflows() {
    let uplinks = ["10.1.0.2", "10.2.0.2", "10.3.0.2", "10.4.0.2"];
    let at = |there: [bool; 4]| {
        let uplinks = uplinks.iter().zip(there);
        let uplink = |(addr, there): (&&str, bool)| match there {
            true => Uplink::from(addr.parse::<std::net::IpAddr>().expect("an address")),
            false => Uplink::default(),
        };
        let mut config = World::config();
        let Mode::Box { uplinks: of, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        *of = uplinks.map(uplink).collect();
        config
    };
    for at_once in [true, false] {
        let mut world = World::answered_with(|config| *config = at([true; 4]));
        let _ = world.of_client(ACK, [1, 1], [], &[]);
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
        let asked = world.timeout();
        assert_eq!(asked.len(), 3);
        for (subflow, syn) in asked.iter().enumerate() {
            let Some(MpJoin::Syn { nonce, .. }) = syn.join() else {
                panic!("{syn:?}")
            };
            world.join_nonce = nonce;
            let _ = world.answer_join(subflow + 1);
            let _ = world.of_server(subflow + 1, ACK, [1, 1], [data_ack], &[]);
        }
        let change = |world: &mut World, there| {
            let now = world.now;
            world.translator.configure(at(there), now.0);
            let cursor = flexcp_translator::Cursor::default();
            let _ = world.translator.follow_uplinks(now, cursor, 100);
            removed(&world.timeout())
        };
        if !at_once {
            assert_eq!(change(&mut world, [false, true, true, true]).len(), 3);
        }
        let told = change(&mut world, [false, false, true, true]);
        assert_eq!(
            told,
            [(Some(2), vec![0, 2]), (Some(3), vec![0, 2])],
            "{at_once}"
        );
        // Both are told as often as one is.
        let mut times = 0;
        for _ in 0..40 {
            world.pass(50);
            let again = removed(&world.timeout());
            assert!(again.iter().all(|(_, ids)| *ids == [0, 2]));
            times += again.len();
        }
        assert_eq!(times, 4);
    }
}

#[test]
fn address_that_is_back_leaves_the_others_lost() {
    let mut world = World::joined();
    let change = |world: &mut World, there: [Uplink; 3]| {
        let mut config = World::config();
        let Mode::Box { uplinks, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        *uplinks = there.into();
        world.translator.configure(config, world.now.0);
        let cursor = flexcp_translator::Cursor::default();
        let _ = world.translator.follow_uplinks(world.now, cursor, 100);
        world.timeout()
    };
    let [first, second] = uplinks().map(Uplink::from);
    let third = Uplink::from("10.3.0.2".parse::<std::net::IpAddr>().expect("an address"));
    let out = change(&mut world, [first, second, third]);
    let Some(MpJoin::Syn { nonce, .. }) = out[0].join() else {
        panic!("{out:?}")
    };
    world.join_nonce = nonce;
    let _ = world.answer_join(2);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(2, ACK, [1, 1], [data_ack], &[]);
    let none = Uplink::default();
    let out = change(&mut world, [none, none, third]);
    assert_eq!(removed(&out), [(Some(2), vec![0, 2])]);
    let _ = change(&mut world, [none, second, third]);
    world.pass(250);
    let out = world.timeout();
    assert_eq!(removed(&out), [(Some(2), vec![0])]);
}

#[test]
fn subflow_on_a_lost_uplink_is_kept_while_the_only_other_one_joins() {
    let mut world = World::established();
    assert_eq!(world.timeout().len(), 1);
    let out = world.with_uplinks([None, SECOND]);
    assert_eq!((removed(&out), living(&world)), (vec![], 2));
    let _ = world.answer_join(1);
    let data_ack = dss(world.idsn() + 1, None);
    let (_, out) = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
    assert_eq!(removed(&out), [(Some(1), vec![0])]);
    assert_eq!(living(&world), 1);
}

/// A fast path that carries nothing, and lets pass by whatever it is asked to.
#[derive(Clone, Debug, Default)]
struct Bystander(Arc<Mutex<Vec<SocketAddr>>>);

impl FastPath for Bystander {
    fn install(&mut self, _: Option<u32>, _: &FlowEntry, _: Option<u32>) -> Installed {
        Installed::NoRoom
    }

    fn evict(&mut self, _: u32) -> FlowEntry {
        unreachable!("nothing was installed")
    }

    fn peek(&self, _: u32) -> FlowEntry {
        unreachable!("nothing was installed")
    }

    fn peek_all(&self, _: &mut dyn FnMut(&FlowEntry)) {}

    fn release(&mut self, _: u32) {}

    fn held(&self) -> u32 {
        0
    }

    fn pass_by(&mut self, ends: Ends) -> bool {
        self.0.lock().expect("one thread").push(ends.to);
        true
    }
}

/// Who uses its port next would pass by, too.
#[test]
fn packet_of_a_subflow_that_is_forgotten_does_not_have_its_port_pass_by() {
    let (mut world, passed) = (World::joined(), Bystander::default());
    world.translator.set_fast_path(Box::new(passed.clone()));
    let stray = |from, to| flexcp_testkit::Packet::new(from, to).flags(ACK);
    for to in ["10.2.0.2:61500", "10.2.7.7:61500"] {
        let verdict = world.put_raw(&stray(server(), end(to)));
        assert_eq!(verdict, Verdict::Forward, "the host refuses it");
    }
    assert_eq!(*passed.0.lock().unwrap(), []);
    // A client's may.
    let verdict = world.put_raw(&stray(end("192.168.1.10:7"), server()));
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!(*passed.0.lock().unwrap(), [server()]);
}

#[test]
fn hundred_changes_of_an_address_leave_two_subflows() {
    let mut world = World::joined();
    for number in 1..=100 {
        world.pass(3000);
        let addr = format!("10.2.1.{number}");
        let out = world.with_uplinks([FIRST, Some(&addr)]);
        let joins = |out: &&Out| matches!(out.join(), Some(MpJoin::Syn { .. }));
        let syn = out.iter().find(joins).expect("a join at once");
        let subflow = syn.subflow.expect("a subflow");
        let _ = world.answer_join(subflow);
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(subflow, ACK, [1, 1], [data_ack], &[]);
        assert_eq!(living(&world), 2);
    }
}
