//! Flows that workers claim where a program distributes the packets.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The program's map: flows in it, and how often one was claimed.
#[derive(Clone, Default, Debug)]
struct Claimed {
    flows: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl FlowMap for Claimed {
    fn claim(&mut self, _: Pair) -> bool {
        self.flows.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn give_up(&mut self, _: Pair) {
        self.flows.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Claimed {
    fn len(&self) -> usize {
        self.flows.load(Ordering::Relaxed)
    }
}

const WORKER: u16 = 1;

/// A worker with its part of the map.
struct Mapped {
    placement: Placement,
    claimed: Claimed,
}

impl Mapped {
    fn new(room: usize) -> Self {
        let mut placement = Placement::new(WORKER, rules(), 1000);
        let claimed = Claimed::default();
        placement.set_exceptions(Exceptions::new(Box::new(claimed.clone()), room));
        Self { placement, claimed }
    }

    fn add(&mut self, ends: Ends) {
        self.placement.note(FlowEvent::Added(ends));
    }

    fn remove(&mut self, ends: Ends) {
        self.placement.note(FlowEvent::Removed(ends));
    }
}

/// Ends of a client's packets.
fn from_client(port: u16) -> Ends {
    Ends {
        from: at(2, port),
        to: at(1, 80),
    }
}

/// Those that name another worker.
fn elsewhere() -> impl Iterator<Item = Ends> {
    let rules = rules();
    (5000..)
        .map(from_client)
        .filter(move |ends| rules.of_ends(*ends) != WORKER)
}

/// A token that names this worker.
fn own_token() -> u32 {
    u32::MAX / u32::from(WORKERS) * u32::from(WORKER) + 9
}

#[test]
fn flow_is_claimed_where_its_ends_name_another_worker_until_it_goes() {
    let mut mapped = Mapped::new(1000);
    let mut claimed = 0;
    for ends in (5000..5018).map(from_client) {
        mapped.add(ends);
        claimed += usize::from(rules().of_ends(ends) != WORKER);
        assert_eq!(mapped.claimed.len(), claimed);
        assert_eq!(mapped.placement.claimed(), claimed);
    }
    assert!(claimed > 8);
    (5000..5018).for_each(|port| mapped.remove(from_client(port)));
    assert_eq!(mapped.claimed.len(), 0);
    assert_eq!(mapped.placement.claimed(), 0);
    assert_eq!(mapped.placement.refused(), Some(0));
}

#[test]
fn flow_of_a_back_end_is_not_claimed_where_its_port_names_this_worker() {
    let mut mapped = Mapped::new(1000);
    for port in 1000..=1099 {
        let ends = Ends {
            from: at(9, 80),
            to: at(8, port),
        };
        mapped.add(ends);
        assert_eq!(mapped.claimed.len(), usize::from(port % WORKERS != WORKER));
        mapped.remove(ends);
        assert_eq!(mapped.claimed.len(), 0);
    }
}

#[test]
fn flow_stays_claimed_until_packets_of_neither_direction_belong_here() {
    let ends = elsewhere().next().expect("most of them");
    for last in [ends, ends.reversed()] {
        let mut mapped = Mapped::new(1000);
        mapped.add(ends);
        mapped.add(ends.reversed());
        assert_eq!(mapped.placement.claimed(), 1);
        mapped.remove(last.reversed());
        assert_eq!(mapped.placement.claimed(), 1);
        mapped.remove(last);
        assert_eq!(mapped.placement.claimed(), 0);
    }
}

#[test]
fn flow_that_another_worker_may_have_claimed_is_claimed_anew() {
    let mut mapped = Mapped::new(1000);
    let ends = elsewhere().next().expect("most of them");
    mapped.add(ends);
    mapped.add(ends);
    assert_eq!(mapped.claimed.calls.load(Ordering::Relaxed), 2);
    assert_eq!(mapped.placement.claimed(), 1);
}

#[test]
fn flow_that_was_never_claimed_is_not_given_up() {
    let mut mapped = Mapped::new(0);
    let ends = elsewhere().next().expect("most of them");
    mapped.add(ends);
    assert_eq!(mapped.placement.refused(), Some(1));
    // Given up in the map, it would be below zero there.
    mapped.remove(ends);
    assert_eq!(mapped.claimed.len(), 0);
}

#[test]
fn flows_without_room_are_counted_and_joins_go_by_the_directory_then() {
    let mut mapped = Mapped::new(3);
    let token = own_token();
    let join = |port| Subject::Joining {
        ends: from_client(port),
        token,
    };
    let unmapped = |port| Placement::new(WORKER, rules(), 1000).owner(join(port));
    let port = (9000..).find(|port| unmapped(*port) != Owner::This);
    let join = join(port.expect("most of them"));
    assert_eq!(mapped.placement.owner(join), Owner::This);
    elsewhere().take(60).for_each(|ends| mapped.add(ends));
    assert_eq!(mapped.claimed.len(), 3);
    assert_eq!(mapped.placement.refused(), Some(57));
    assert!(matches!(mapped.placement.owner(join), Owner::Directory(_)));
}

#[test]
fn join_with_a_token_of_another_worker_still_goes_by_the_directory() {
    let mut mapped = Mapped::new(3);
    let mut unmapped = Placement::new(WORKER, rules(), 1000);
    let token = own_token() + u32::MAX / u32::from(WORKERS);
    for port in 9000..9100 {
        let ends = from_client(port);
        let join = Subject::Joining { ends, token };
        assert_eq!(mapped.placement.owner(join), unmapped.owner(join), "{port}");
    }
}
