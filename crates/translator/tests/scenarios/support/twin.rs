//! A twin of the translator under test: it gets the same packets, its connections are installed in a fast path at
//! every opportunity, and nothing that it does may differ.

use std::sync::{Arc, Mutex, MutexGuard};

use flexcp_native::{Passed, Programs, as_handed_out};
use flexcp_testkit::Shelf as Slots;
use flexcp_translator::{
    Config, DropReason, FastPath, FlowEntry, Frame, Installed, Instant, Payload, Translator,
    Verdict, internals,
};
use flexcp_wire::{Ends, Offload};

use super::read::headers;

/// A fast path that keeps what it is installed, and gives it back as it is unless somebody has edited it.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    slots: Arc<Mutex<Slots<FlowEntry>>>,
    room: usize,
    punted: Arc<Mutex<Option<u32>>>,
    /// Ends between which what passes goes its way without the translator; `None`: none may.
    passed_by: Option<Arc<Mutex<Vec<Ends>>>>,
    /// It takes nothing for good.
    never: bool,
    /// What the host's sockets have goes to them.
    sockets: bool,
}

impl FastPath for Shelf {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, passed: Option<u32>) -> Installed {
        if slot.is_some_and(|slot| self.punted(slot) != passed) {
            return Installed::NotNow;
        }
        if self.never {
            return Installed::Never;
        }
        let mut slots = self.slots();
        if slot.unwrap_or_else(|| slots.next_slot()) as usize >= self.room {
            return Installed::NoRoom;
        }
        Installed::Slot(slots.put(slot, *entry))
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.slots().take(slot)
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        self.slots().peek(slot)
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.slots().entries().for_each(each);
    }

    fn release(&mut self, slot: u32) {
        self.slots().release(slot);
    }

    fn held(&self) -> u32 {
        self.slots().held()
    }

    fn punted(&self, _slot: u32) -> Option<u32> {
        *self.punted.lock().expect("one thread")
    }

    fn pass_by(&mut self, ends: Ends) -> bool {
        let Some(passed_by) = &self.passed_by else {
            return false;
        };
        passed_by.lock().expect("one thread").push(ends);
        true
    }

    fn leaves_to_socket(&mut self, _: Ends) -> bool {
        self.sockets
    }
}

impl Shelf {
    fn slots(&self) -> MutexGuard<'_, Slots<FlowEntry>> {
        self.slots.lock().expect("one thread")
    }

    /// So many packets have passed it on their way up.
    pub(crate) fn passed(&self, count: u32) {
        *self.punted.lock().expect("one thread") = Some(count);
    }

    pub(crate) fn new(room: usize) -> Self {
        Self {
            slots: Arc::default(),
            room,
            punted: Arc::default(),
            passed_by: None,
            never: false,
            sockets: false,
        }
    }

    /// The same for one that may have no connection.
    pub(crate) fn refusing() -> Self {
        Self {
            never: true,
            ..Self::new(usize::MAX)
        }
    }

    /// The same for one past which packets for the host's sockets go.
    pub(crate) fn with_sockets() -> Self {
        Self {
            sockets: true,
            ..Self::new(usize::MAX)
        }
    }

    /// The same for one past which plain TCP may go.
    pub(crate) fn passing() -> Self {
        Self {
            passed_by: Some(Arc::default()),
            ..Self::new(usize::MAX)
        }
    }

    /// The ends that were passed by since the last call.
    pub(crate) fn passed_by(&self) -> Vec<Ends> {
        let passed_by = self.passed_by.as_ref().expect("one that passes");
        std::mem::take(&mut *passed_by.lock().expect("one thread"))
    }

    /// Changes a flow entry that is installed in it.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut FlowEntry)) {
        edit(self.slots().entries_mut().next().expect("an entry"));
    }

    /// Slots that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.slots().held() as usize
    }

    /// The flow entries that are installed in it.
    pub(crate) fn entries(&self) -> Vec<FlowEntry> {
        self.slots().entries().copied().collect()
    }
}

/// What a translator did with one packet or timeout.
#[derive(PartialEq, Debug)]
pub(crate) struct Done {
    pub(crate) verdict: Verdict,
    /// What goes out, the packet in hand first.
    pub(crate) out: Vec<Out>,
}

/// A packet that goes out.
#[derive(PartialEq, Debug)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offload: Offload,
    pub(crate) filler: bool,
}

/// The other translator.
#[derive(Debug)]
pub(crate) struct Twin {
    pub(crate) translator: Translator,
    offload: Beneath,
    /// Packets that the programs took.
    pub(crate) taken: u64,
    /// Those of them that they dropped: stale ACKs.
    dropped: u64,
    /// A data ACK on another subflow may overtake the active one's ACK. The translator takes that for a hole, which it fills
    /// in time; the programs do not watch for holes, so that the twin does so later or not at all.
    pub(crate) may_part: bool,
    /// One has, and the other not; from there on they are two.
    pub(crate) parted: bool,
}

/// What a twin installs its connections to.
#[derive(Debug)]
enum Beneath {
    /// It only keeps them.
    Shelf(Shelf),
    /// The kernel's programs, which see every packet first.
    Programs(Programs),
}

impl Twin {
    /// `works`: the fast path takes packets; otherwise it only keeps connections.
    pub(crate) fn new(config: Config, seed: [u8; 32], works: bool) -> Self {
        let mut translator = Translator::new(config, seed);
        let offload = if works {
            let programs = Programs::default();
            translator.set_fast_path(Box::new(programs.clone()));
            Beneath::Programs(programs)
        } else {
            let shelf = Shelf::new(usize::MAX);
            translator.set_fast_path(Box::new(shelf.clone()));
            Beneath::Shelf(shelf)
        };
        internals::install_eagerly(&mut translator, !works);
        Self {
            translator,
            offload,
            taken: 0,
            dropped: 0,
            may_part: false,
            parted: false,
        }
    }

    /// What it has installed.
    pub(crate) fn installed(&self) -> Vec<FlowEntry> {
        match &self.offload {
            Beneath::Shelf(shelf) => shelf.entries(),
            Beneath::Programs(programs) => programs.entries(),
        }
    }

    /// Gives it the packet that the other one has handled, and compares.
    #[track_caller]
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        headroom: usize,
        bytes: &[u8],
        offload: Offload,
        done: &Done,
    ) {
        if self.parted {
            return;
        }
        if let Beneath::Programs(programs) = &self.offload {
            let passed = programs.pass(now.0, bytes, offload);
            if passed != Passed::Up {
                self.taken += 1;
                self.dropped += u64::from(passed == Passed::Dropped);
                assert_alike(passed, done);
                return;
            }
        }
        let mut buf = vec![0xa5; headroom + bytes.len()];
        buf[headroom..].copy_from_slice(bytes);
        let mut frame = Frame::new(&mut buf, headroom..headroom + bytes.len(), offload);
        let verdict = self.translator.handle_packet(now, &mut frame).verdict;
        let twin = finish(&mut self.translator, verdict, Some(&frame));
        assert_eq!(*done, twin, "the twin does something else");
    }

    /// The same for a timeout.
    #[track_caller]
    pub(crate) fn timeout(&mut self, now: Instant, done: &Done) {
        if self.parted {
            return;
        }
        self.translator.handle_timeout(now);
        let twin = finish(&mut self.translator, Verdict::Consume, None);
        let fills = |out: &[Out]| !out.is_empty() && out.iter().all(|out| out.filler);
        let one_fills = fills(&done.out) != fills(&twin.out);
        let other_rests = done.out.is_empty() || twin.out.is_empty();
        self.parted = self.may_part && one_fills && other_rests;
        if self.parted {
            return;
        }
        assert_eq!(*done, twin, "the twin does something else");
    }

    /// Compares all that the two know.
    #[track_caller]
    pub(crate) fn compare(&mut self, now: Instant, other: &Translator) {
        if self.parted {
            return;
        }
        self.translator.evict_all(now);
        let (ours, theirs) = (
            internals::states(&self.translator),
            internals::states(other),
        );
        assert_eq!(ours.len(), theirs.len(), "connections of the twin");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            if self.may_part {
                assert_same(&unwatched(ours), &unwatched(theirs));
            } else {
                assert_same(ours, theirs);
            }
        }
        let ours = self.translator.drops().iter().map(|(name, count)| {
            let stale = name == DropReason::StaleAck.name();
            (name, count + if stale { self.dropped } else { 0 })
        });
        assert_eq!(
            ours.collect::<Vec<_>>(),
            other.drops().iter().collect::<Vec<_>>(),
            "drops of the twin"
        );
        assert_eq!(self.translator.counters().causes, other.counters().causes);
        let ours = self.translator.counters().iter();
        for ((name, ours), (_, theirs)) in ours.zip(other.counters().iter()) {
            // What the programs drop they count themselves.
            let dropped = if name == "packets_in" {
                self.dropped
            } else {
                0
            };
            assert!(
                ours + dropped == theirs || name.starts_with("offload_"),
                "{name} of the twin"
            );
        }
    }
}

/// What goes out after a packet or timeout.
pub(crate) fn finish(
    translator: &mut Translator,
    verdict: Verdict,
    frame: Option<&Frame<'_>>,
) -> Done {
    let mut out = Vec::new();
    if let (Verdict::Forward, Some(frame)) = (verdict, frame) {
        out.push(Out {
            bytes: frame.packet().to_vec(),
            offload: frame.offload,
            filler: false,
        });
    }
    while let Some(transmit) = translator.poll_transmit() {
        assert!(out.len() < ENDLESS, "FlexCP sends without an end");
        let mut packet = transmit.header().to_vec();
        match &transmit.payload {
            Payload::None => {}
            Payload::Frame(range) => {
                packet.extend_from_slice(frame.expect("a frame").buffer(range.clone()));
            }
            Payload::Bytes(bytes) => packet.extend_from_slice(bytes),
            Payload::Zeros(len) => packet.resize(packet.len() + len, 0),
        }
        out.push(Out {
            bytes: packet,
            offload: transmit.offload,
            filler: matches!(transmit.payload, Payload::Zeros(_)),
        });
    }
    Done { verdict, out }
}

/// A connection's state without the holes that it watches.
fn unwatched(state: &str) -> String {
    let mut parts = state.split("filler: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = match part.strip_prefix("Some(") {
            Some(some) => some.split_once("})").map_or("", |(_, rest)| rest),
            None => part.strip_prefix("None").unwrap_or(part),
        };
        text + rest
    })
}

/// Fails unless the programs did what the translator does without them.
#[track_caller]
fn assert_alike(passed: Passed, done: &Done) {
    let (verdict, sent) = match passed {
        Passed::Dropped => (Verdict::Drop(DropReason::StaleAck), Vec::new()),
        Passed::Translated(mut sent) => {
            as_handed_out(&mut sent);
            (Verdict::Forward, sent)
        }
        Passed::Up => return,
    };
    let said = |(bytes, gso): (&[u8], _)| (headers(bytes).expect("a segment"), gso);
    let ours = sent.iter().map(|sent| (sent.packet(), sent.offload.gso));
    let theirs = done.out.iter().map(|out| (&out.bytes[..], out.offload.gso));
    assert_eq!(
        (verdict, ours.map(said).collect::<Vec<_>>()),
        (done.verdict, theirs.map(said).collect::<Vec<_>>()),
        "by the kernel's programs, and by the translator"
    );
}

/// Fails with what stands around the first difference.
#[track_caller]
fn assert_same(ours: &str, theirs: &str) {
    if ours != theirs {
        let same = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b);
        let at = same.count();
        let around = |text: &str| {
            text.get(at.saturating_sub(200)..).unwrap_or(text)[..]
                .chars()
                .take(300)
                .collect::<String>()
        };
        panic!(
            "the twin knows\n  {}\nnot\n  {}",
            around(ours),
            around(theirs)
        );
    }
}

/// Packets that one call can make FlexCP send at most, by far: more is a loop without an end.
const ENDLESS: usize = 100_000;
