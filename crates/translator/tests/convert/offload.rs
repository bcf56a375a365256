//! When such a connection is offloaded.

use std::sync::{Arc, Mutex, MutexGuard};

use flexcp_testkit::Shelf;
use flexcp_translator::{FastPath, FlowEntry, Installed};
use flexcp_wire::{CapableKeys, TcpOption, Timestamps};

use crate::guest::{ALL, Guest, REQUEST, SERVER, SERVER_CLOCK};
use crate::world::*;

/// A fast path that says how many connections it has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots(Arc<Mutex<Shelf<FlowEntry>>>);

impl Slots {
    pub(crate) fn shelf(&self) -> MutexGuard<'_, Shelf<FlowEntry>> {
        self.0.lock().expect("one thread")
    }
}

impl FastPath for Slots {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, _: Option<u32>) -> Installed {
        Installed::Slot(self.shelf().put(slot, *entry))
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.shelf().take(slot)
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        self.shelf().peek(slot)
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.shelf().entries().for_each(each);
    }

    fn release(&mut self, slot: u32) {
        self.shelf().release(slot);
    }

    fn held(&self) -> u32 {
        self.shelf().held()
    }

    fn punted(&self, _: u32) -> Option<u32> {
        None
    }

    fn pass_by(&mut self, _: flexcp_wire::Ends) -> bool {
        false
    }
}

#[test]
fn connection_is_offloaded_once_its_client_has_the_answer() {
    const fn ts(val: u32, ecr: u32) -> TcpOption<'static> {
        TcpOption::Timestamps(Timestamps { val, ecr })
    }
    let (mut world, slots) = (World::new(), Slots::default());
    world.translator.set_fast_path(Box::new(slots.clone()));
    let options = [mss(), ts(1000, 0), capable(CapableKeys::Syn)];
    let _ = world.of_client(SYN, [0, 0], options, &CONNECT);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss(), ts(5000, 1000)], &[]);
    let keys = capable(CapableKeys::Ack {
        sender: CLIENT_KEY,
        receiver: world.key.expect("a SYN/ACK"),
    });
    let _ = world.of_client(ACK, [25, -3], [ts(1001, 5000), keys], &[]);
    let idsn = world.idsn();
    let _ = world.of_server(ACK, [1, 25], [ts(5001, 1001)], &[]);
    let send = |world: &mut World, round: i32, acked: u64, ack: i32| {
        world.pass(10);
        let at = 1 + round * 100;
        let _ = world.of_server(ACK, [at, 25], [ts(5001, 1001)], &[b'x'; 100]);
        let data_ack = dss(idsn.wrapping_add(acked), None);
        let _ = world.of_client(ACK, [25, ack], [ts(1001, 5001), data_ack], &[]);
        world.translator.idle(world.now);
        slots.shelf().held()
    };
    for round in 0..30 {
        assert_eq!(send(&mut world, round, 1, -3), 0, "the answer is missing");
    }
    for round in 30..60 {
        let all = 1 + (round + 1) * 100;
        send(&mut world, round, u64::try_from(all + 4).unwrap(), all);
    }
    assert_eq!(slots.shelf().held(), 1);
    let entry = *slots.shelf().entries().next().expect("an entry");
    let subflow = entry.subflows[0];
    // Mappings count from behind the preamble, and from before the answer.
    assert_eq!(subflow.isn_remote, at(CLIENT_ISN, 24));
    assert_eq!(subflow.isn_local, at(SERVER_ISN, -4));
}

/// A client whose server has taken over from FlexCP with a SYN/ACK that has these options, and then brings it data; the flow
/// entry, if there is one. `echoes`: the client shows that it has the server's timestamps.
fn handed_over(answer: &[TcpOption<'_>], echoes: bool) -> (Guest, Option<FlowEntry>) {
    let (mut guest, slots) = (Guest::greeted(ALL), Slots::default());
    guest
        .world
        .translator
        .set_fast_path(Box::new(slots.clone()));
    guest.say(&REQUEST);
    let early = guest.shown;
    guest.world.pass(50);
    guest.speak(SYN | ACK, &[], answer.to_vec());
    guest.speaks = guest.speaks.wrapping_add(1);
    for _ in 0..60 {
        guest.world.pass(10);
        guest.server_says(&[b'x'; 100]);
        if !echoes {
            guest.shown = early;
        }
        guest.acknowledge();
        let now = guest.world.now;
        guest.world.translator.idle(now);
    }
    let entry = slots.shelf().entries().next().copied();
    (guest, entry)
}

const SCALE: TcpOption<'static> = TcpOption::WindowScale(9);

#[test]
fn connection_is_offloaded_behind_its_hand_over() {
    let (guest, entry) = handed_over(&[mss(), SCALE, TcpOption::SackPermitted], true);
    let entry = entry.expect("an entry");
    // The server's own numbers, clock and scale, and what the client takes them for.
    assert_eq!(entry.seq_down, SERVER.wrapping_add(1 + 6_000));
    assert_eq!(entry.seq_up, guest.expects);
    assert_eq!((entry.sent_scale, entry.server_scale), (9, 7));
    let clock = SERVER_CLOCK + u32::try_from(guest.world.now.0 / 1000).unwrap() - 1000;
    assert_eq!(entry.ts_heard, clock.wrapping_add(entry.ts_shift));
    assert_eq!(entry.ts_heard, guest.shown);
    assert_eq!(entry.server_sack, 1);
    // The client takes SACK, and the server does not.
    let (_, entry) = handed_over(&[mss(), SCALE], true);
    assert_eq!(entry.expect("an entry").server_sack, 0);
}

#[test]
fn what_no_fast_path_can_follow_is_not_offloaded() {
    // The server takes the client's windows for unscaled ones.
    let (_, entry) = handed_over(&[mss()], true);
    assert!(entry.is_none());
    // The client still echoes the responder.
    let (_, entry) = handed_over(&[mss(), SCALE], false);
    assert!(entry.is_none());
}
