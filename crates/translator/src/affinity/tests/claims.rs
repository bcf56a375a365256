//! Flows that workers claim where a program in the kernel steers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use super::*;
use crate::Instant;

/// The program's map: flows in it.
#[derive(Clone, Default, Debug)]
struct Claimed(Arc<AtomicUsize>);

impl FlowMap for Claimed {
    fn claim(&mut self, _: Pair) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn give_up(&mut self, _: Pair) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Claimed {
    fn len(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

const WORKER: u16 = 1;

/// A worker with its part of the map.
struct Steered {
    translator: Translator,
    affinity: Affinity,
    claimed: Claimed,
}

impl Steered {
    fn new(room: usize) -> Self {
        let config = config_of(WORKER, 1000);
        let mut affinity = Affinity::new(&config, KEYS);
        let mut translator = Translator::new(config, [1; 32]);
        let claimed = Claimed::default();
        affinity.steer(Exceptions::new(Box::new(claimed.clone()), room));
        translator.watch_flows();
        Self {
            translator,
            affinity,
            claimed,
        }
    }

    /// Gives a packet to the translator, wherever it should have gone.
    fn take(&mut self, packet: &[u8]) {
        handle(&mut self.translator, packet);
        self.affinity.update(&mut self.translator);
    }

    /// A connection from this port; its flow.
    fn connection(&mut self, port: u16) -> Ends {
        let ends = Ends {
            from: at(2, port),
            to: at(1, 80),
        };
        self.take(&packet(ends.from, ends.to, TcpFlags::SYN, None));
        ends
    }
}

/// A token that names this worker.
fn own_token() -> u32 {
    u32::MAX / u32::from(WORKERS) * u32::from(WORKER) + 9
}

#[test]
fn flow_is_claimed_where_its_ends_name_another_worker_until_it_goes() {
    let mut steered = Steered::new(1000);
    let rules = Rules::new(&config_of(WORKER, 1000), KEYS);
    let mut claimed = 0;
    for port in 5000..5018 {
        let ends = steered.connection(port);
        claimed += usize::from(rules.of_ends(ends) != WORKER);
        // No other: the port towards the back end names this worker.
        assert_eq!(steered.claimed.len(), claimed);
    }
    assert!(claimed > 8);
    let later = Instant(0) + Duration::from_secs(100_000);
    steered.translator.handle_timeout(later);
    steered.affinity.update(&mut steered.translator);
    assert_eq!(steered.claimed.len(), 0);
    assert_eq!(steered.affinity.refused(), Some(0));
}

#[test]
fn flows_without_room_are_counted_and_joins_go_by_the_directory_then() {
    let mut steered = Steered::new(3);
    let join = |port| packet(at(2, port), at(1, 80), TcpFlags::SYN, Some(own_token()));
    let unsteered = |port| {
        let mut affinity = Affinity::new(&config_of(WORKER, 1000), KEYS);
        affinity.owner(&join(port))
    };
    let port = (9000..).find(|port| unsteered(*port) != Owner::This);
    let join = join(port.expect("most of them"));
    assert_eq!(steered.affinity.owner(&join), Owner::This);
    (5000..5100).for_each(|port| _ = steered.connection(port));
    assert_eq!(steered.claimed.len(), 3);
    assert!(steered.affinity.refused() > Some(50));
    assert!(matches!(steered.affinity.owner(&join), Owner::Directory(_)));
}

#[test]
fn join_with_a_token_of_another_worker_still_goes_by_the_directory() {
    let mut steered = Steered::new(3);
    let mut unsteered = Affinity::new(&config_of(WORKER, 1000), KEYS);
    for port in 9000..9100 {
        let token = own_token() + u32::MAX / u32::from(WORKERS);
        let join = packet(at(2, port), at(1, 80), TcpFlags::SYN, Some(token));
        assert_eq!(
            steered.affinity.owner(&join),
            unsteered.owner(&join),
            "{port}"
        );
    }
}

#[test]
fn syn_on_a_known_flow_stays_where_it_was_steered_unless_it_joins() {
    let mut steered = Steered::new(3);
    let ends = steered.connection(5000);
    let syn = |token| packet(ends.from, ends.to, TcpFlags::SYN, token);
    assert!(steered.translator.has_flow_of(&syn(None)));
    assert!(!steered.translator.has_flow_of(&syn(Some(own_token()))));
}
