//! Packets that came to the wrong worker. Between every two workers there is a ring each way, for one to fill
//! and the other to empty, and the empty buffers go back the same way: no lock, and nothing is allocated.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use flexcp_io::{PacketBuffer, Waker};
use flexcp_placement::{Exceptions, Owner, Placement, Rules, Subject};
use flexcp_translator::{Config, Translator};
use flexcp_wire::Offload;
use rtrb::{Consumer, Producer, RingBuffer};

/// Buffers of all rings together, as far as each ring keeps [`LEAST_DEPTH`].
const BUFFERS: usize = 1024;
const LEAST_DEPTH: usize = 16;

/// A packet under way to another worker.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) buffer: PacketBuffer,
    pub(super) range: Range<usize>,
    pub(super) offload: Offload,
    /// Whoever gets it is its owner; otherwise it knows who is.
    owned: bool,
}

/// Where parcels for another worker go.
#[derive(Debug)]
struct Outbound {
    full: Producer<Parcel>,
    empty: Consumer<PacketBuffer>,
    bell: Arc<Bell>,
}

/// Where parcels from another worker come from.
#[derive(Debug)]
struct Inbound {
    full: Consumer<Parcel>,
    empty: Producer<PacketBuffer>,
}

/// Wakes a worker, if it sleeps.
#[derive(Debug)]
struct Bell {
    asleep: AtomicBool,
    waker: Arc<Waker>,
}

/// What became of a packet just received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sorted {
    /// It belongs here.
    Ours,
    /// Another worker has it.
    HandedOver,
    /// The ring to its owner was full.
    Lost,
}

/// One worker's end of all rings.
#[derive(Debug)]
pub(super) struct Handover {
    placement: Placement,
    bell: Arc<Bell>,
    /// By the number of the worker; none to itself.
    to: Vec<Option<Outbound>>,
    from: Vec<Inbound>,
    /// The ring that is looked at first.
    next: usize,
}

impl Handover {
    /// Connects the workers whose translators are configured with `configs`, in order. `hash_keys` must be
    /// unpredictable.
    pub(super) fn connect(
        configs: &[Config],
        wakers: &[Arc<Waker>],
        hash_keys: (u64, u64),
    ) -> Vec<Self> {
        let ends = configs.iter().zip(wakers).map(|(config, waker)| Self {
            placement: placement(config, hash_keys),
            bell: Arc::new(Bell {
                asleep: AtomicBool::new(false),
                waker: Arc::clone(waker),
            }),
            to: vec![],
            from: vec![],
            next: 0,
        });
        let mut ends: Vec<_> = ends.collect();
        let count = ends.len();
        let depth = (BUFFERS / (count * count)).max(LEAST_DEPTH);
        for from in 0..count {
            for to in 0..count {
                let outbound = (from != to).then(|| {
                    let (outbound, inbound) = ring(depth, &ends[to].bell);
                    ends[to].from.push(inbound);
                    outbound
                });
                ends[from].to.push(outbound);
            }
        }
        ends
    }

    /// A program brings each packet to its worker, and this one claims what is not where its ends say.
    pub(super) fn set_exceptions(&mut self, exceptions: Exceptions) {
        self.placement.set_exceptions(exceptions);
    }

    /// These rules name the owner of a packet from here on.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        self.placement.set_rules(rules);
    }

    /// To be called when the translator has handled something, before its answer is sent: the program learns of the
    /// flows that came and went.
    pub(super) fn update(&mut self, translator: &mut Translator) {
        while let Some(event) = translator.poll_flow_event() {
            self.placement.note(event);
        }
    }

    /// Flows of this worker that stand in the program's map.
    pub(super) fn claimed(&self) -> usize {
        self.placement.claimed()
    }

    /// Flows that the program's map had no room for.
    pub(super) fn refused(&self) -> u64 {
        self.placement.refused().unwrap_or_default()
    }

    /// Finds out whose the packet in `buffer` is, and hands it over with its buffer when it is another's;
    /// `buffer` is then an empty one.
    pub(super) fn sort(
        &mut self,
        translator: &Translator,
        buffer: &mut PacketBuffer,
        range: Range<usize>,
        offload: Offload,
    ) -> Sorted {
        let Some(subject) = Subject::of(&buffer.as_bytes()[range.clone()]) else {
            return Sorted::Ours;
        };
        if translator.has_flow_of(subject) {
            return Sorted::Ours;
        }
        let (worker, owned) = match self.placement.owner(subject) {
            Owner::This => return Sorted::Ours,
            Owner::Worker(worker) => (worker, true),
            Owner::Directory(worker) => (worker, false),
        };
        let outbound = self.to.get_mut(usize::from(worker));
        let Some(outbound) = outbound.and_then(Option::as_mut) else {
            return Sorted::Lost;
        };
        let Ok(empty) = outbound.empty.pop() else {
            return Sorted::Lost;
        };
        let parcel = Parcel {
            buffer: mem::replace(buffer, empty),
            range,
            offload,
            owned,
        };
        // A ring has room for all of its buffers.
        if outbound.full.push(parcel).is_err() {
            return Sorted::Lost;
        }
        outbound.bell.ring();
        Sorted::HandedOver
    }

    /// A packet that another worker has handed over, and which of them.
    pub(super) fn take(&mut self) -> Option<(usize, Parcel)> {
        for _ in 0..self.from.len() {
            let from = self.next;
            self.next = (from + 1) % self.from.len();
            if let Ok(parcel) = self.from[from].full.pop() {
                return Some((from, parcel));
            }
        }
        None
    }

    /// Gives the buffer of a parcel back.
    pub(super) fn give_back(&mut self, from: usize, buffer: PacketBuffer) {
        // The ring has room for all of its buffers: this is one of them.
        let _ = self.from[from].empty.push(buffer);
    }

    /// To be called before the worker sleeps. `false`: it may not, there are parcels.
    pub(super) fn may_sleep(&self) -> bool {
        self.bell.asleep.store(true, Ordering::Relaxed);
        // Whoever pushes a parcel looks at `asleep` afterwards; here it is the other way round. One of the two
        // sees what the other did.
        fence(Ordering::SeqCst);
        let empty = self.from.iter().all(|inbound| inbound.full.is_empty());
        if !empty {
            self.has_woken();
        }
        empty
    }

    /// To be called when it has woken.
    pub(super) fn has_woken(&self) {
        self.bell.asleep.store(false, Ordering::Relaxed);
    }
}

impl Parcel {
    /// Whether nobody has to be asked any more whose it is.
    pub(super) const fn is_owned(&self) -> bool {
        self.owned
    }
}

impl Bell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.waker.wake();
        }
    }
}

/// What the worker with the translator of this configuration knows of whose a packet is.
fn placement(config: &Config, hash_keys: (u64, u64)) -> Placement {
    let rules = config.placement(hash_keys);
    Placement::new(config.share.worker, rules, config.limits.connections)
}

fn ring(depth: usize, bell: &Arc<Bell>) -> (Outbound, Inbound) {
    let (full, filled) = RingBuffer::new(depth);
    let (mut emptied, empty) = RingBuffer::new(depth);
    for _ in 0..depth {
        emptied
            .push(PacketBuffer::new())
            .expect("a ring has room for all of its buffers");
    }
    let outbound = Outbound {
        full,
        empty,
        bell: Arc::clone(bell),
    };
    let inbound = Inbound {
        full: filled,
        empty: emptied,
    };
    (outbound, inbound)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use flexcp_placement::{FlowMap, Pair, Share};
    use flexcp_testkit::Packet;
    use flexcp_translator::{HEADROOM, Instant, Mode, Service};
    use flexcp_wire::{ChecksumState, TcpFlags};

    use super::*;

    /// Two workers, their translators, and a SYN that is the second one's.
    fn two() -> (Vec<Handover>, Translator, Vec<u8>) {
        let web = Service {
            id: flexcp_translator::ServiceId(0),
            name: "web".into(),
            mode: Mode::Reverse {
                listen: vec![([10, 9, 0, 2], 80).into()],
                backends: vec![([10, 8, 0, 2], 80).into()],
                source: vec![[10, 8, 0, 1].into()],
                source_ports: 1000..=1099,
            },
            announce: vec![],
            intake: flexcp_translator::Intake::default(),
        };
        let config = |worker| Config {
            services: vec![web.clone()],
            share: Share { worker, workers: 2 },
            ..Config::default()
        };
        let wakers = [(); 2].map(|()| Arc::new(Waker::new().expect("a descriptor")));
        let ends = Handover::connect(&[config(0), config(1)], &wakers, (1, 2));
        let translator = Translator::new(config(0), [0; 32]);
        let mut first = placement(&config(0), (1, 2));
        let is_others = |syn: &Vec<u8>| {
            let subject = Subject::of(syn).expect("a SYN");
            first.owner(subject) != Owner::This
        };
        let syn = (1000..2000).map(syn_from).find(is_others);
        (ends, translator, syn.expect("half of them are"))
    }

    fn syn_from(port: u16) -> Vec<u8> {
        let [from, to] = [([10, 1, 0, 2], port), ([10, 9, 0, 2], 80)].map(SocketAddr::from);
        Packet::new(from, to).flags(TcpFlags::SYN).bytes()
    }

    fn buffer_with(packet: &[u8]) -> (PacketBuffer, Range<usize>) {
        let mut buffer = PacketBuffer::new();
        let range = HEADROOM..HEADROOM + packet.len();
        let mut frame = buffer.frame(range.clone(), Offload::default());
        frame.packet_mut().copy_from_slice(packet);
        (buffer, range)
    }

    #[test]
    fn packet_of_the_other_worker_arrives_there_with_its_buffer() {
        let (mut ends, translator, syn) = two();
        let (mut buffer, range) = buffer_with(&syn);
        let offload = Offload::default();
        let sorted = ends[0].sort(&translator, &mut buffer, range.clone(), offload);
        assert_eq!(sorted, Sorted::HandedOver);
        assert!(ends[0].take().is_none());
        let (from, parcel) = ends[1].take().expect("a parcel");
        assert_eq!(parcel.buffer.as_bytes()[parcel.range.clone()], syn);
        // Its owner finds that out by itself: this one only knew who knows.
        assert!(!parcel.is_owned());
        ends[1].give_back(from, parcel.buffer);
        assert!(ends[1].take().is_none());
    }

    #[test]
    fn packets_are_lost_when_the_ring_is_full_and_buffers_come_back() {
        let (mut ends, translator, syn) = two();
        let hand_over = |ends: &mut Vec<Handover>| {
            let (mut buffer, range) = buffer_with(&syn);
            ends[0].sort(&translator, &mut buffer, range, Offload::default())
        };
        let mut count = 0;
        while count <= BUFFERS && hand_over(&mut ends) == Sorted::HandedOver {
            count += 1;
        }
        assert_eq!(count, BUFFERS / 4);
        assert_eq!(hand_over(&mut ends), Sorted::Lost);
        let (from, parcel) = ends[1].take().expect("a parcel");
        ends[1].give_back(from, parcel.buffer);
        assert_eq!(hand_over(&mut ends), Sorted::HandedOver);
    }

    /// A map that takes all.
    #[derive(Debug)]
    struct Willing;

    impl FlowMap for Willing {
        fn claim(&mut self, _: Pair) -> bool {
            true
        }

        fn give_up(&mut self, _: Pair) {}
    }

    #[test]
    fn flow_that_comes_to_a_worker_is_claimed_there_and_given_up_when_it_goes() {
        let (mut ends, mut translator, syn) = two();
        ends[0].set_exceptions(Exceptions::new(Box::new(Willing), 10));
        translator.watch_flows();
        let (mut buffer, range) = buffer_with(&syn);
        let verified = Offload {
            checksum: ChecksumState::Verified,
            gso: None,
        };
        let mut frame = buffer.frame(range, verified);
        let _ = translator.handle_packet(Instant(0), &mut frame);
        ends[0].update(&mut translator);
        assert_eq!(ends[0].claimed(), 1);
        translator.handle_timeout(Instant(0) + Duration::from_secs(100_000));
        ends[0].update(&mut translator);
        assert_eq!((ends[0].claimed(), ends[0].refused()), (0, 0));
    }

    #[test]
    fn worker_sleeps_only_without_parcels_and_is_woken_once() {
        let (mut ends, translator, syn) = two();
        assert!(ends[1].may_sleep());
        let (mut buffer, range) = buffer_with(&syn);
        ends[0].sort(&translator, &mut buffer, range, Offload::default());
        assert!(!ends[1].bell.asleep.load(Ordering::Relaxed));
        assert!(!ends[1].may_sleep());
        assert!(!ends[1].bell.asleep.load(Ordering::Relaxed));
    }
}
