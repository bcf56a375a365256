//! The D-tree against a linear list and ordered maps (`make bench-dtree`): nanoseconds per operation,
//! the median of several rounds, as a Markdown table.
//!
//! No two runs merge, so there are always `n` of them; that is the hard case, in an undisturbed
//! connection `n` is 1. The list and the maps do what the ring has to do as well: merge where numbers go
//! on, find by DSN and by SSN, let go from the front.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use flexcp_translator::internals::Lane;
use flexcp_wire::{Dsn, Ssn};

/// Runs held; `limits.mappings` allows 4096 by default.
const SIZES: [u32; 7] = [1, 10, 100, 1_000, 4_000, 10_000, 100_000];
/// Bytes of a mapping.
const LEN: u32 = 1000;
/// From one mapping to the next, in both spaces.
const STEP: u32 = 2 * LEN;
/// Operations timed together.
const BATCH: u32 = 64;
/// Batches of which the median is taken.
const ROUNDS: usize = 41;

/// What each of them can do. `ssn` is never wrapped here.
trait Tree: Default {
    const NAME: &'static str;

    fn append(&mut self, dsn: u64, ssn: u32);
    fn insert(&mut self, dsn: u64, ssn: u32);
    fn by_dsn(&self, dsn: u64) -> Option<u32>;
    fn by_ssn(&self, ssn: u32) -> Option<u64>;
    fn release(&mut self, acked: u32, data_acked: u64);
}

#[derive(Default)]
struct Ring(Lane);

impl Tree for Ring {
    const NAME: &'static str = "ring (ours)";

    fn append(&mut self, dsn: u64, ssn: u32) {
        self.0.append(Dsn(dsn), Ssn(ssn), LEN);
    }

    fn insert(&mut self, dsn: u64, ssn: u32) {
        assert!(self.0.insert(Dsn(dsn), Ssn(ssn), LEN));
    }

    fn by_dsn(&self, dsn: u64) -> Option<u32> {
        self.0.by_dsn(Dsn(dsn)).map(|mapping| mapping.ssn.0)
    }

    fn by_ssn(&self, ssn: u32) -> Option<u64> {
        self.0.by_ssn(Ssn(ssn)).map(|(dsn, _)| dsn.0)
    }

    fn release(&mut self, acked: u32, data_acked: u64) {
        self.0.release(Ssn(acked), Dsn(data_acked));
    }
}

/// (SSN, DSN, length), in the order of the SSNs; every search is a walk from the front.
#[derive(Default)]
struct List(Vec<(u32, u64, u32)>);

impl Tree for List {
    const NAME: &'static str = "linear list";

    fn append(&mut self, dsn: u64, ssn: u32) {
        match self.0.last_mut() {
            Some((s, d, len)) if *s + *len == ssn && *d + u64::from(*len) == dsn => *len += LEN,
            _ => self.0.push((ssn, dsn, LEN)),
        }
    }

    fn insert(&mut self, dsn: u64, ssn: u32) {
        let at = self.0.iter().position(|&(s, ..)| s > ssn);
        self.0.insert(at.unwrap_or(self.0.len()), (ssn, dsn, LEN));
    }

    fn by_dsn(&self, dsn: u64) -> Option<u32> {
        let holds = |&&(_, d, len): &&(u32, u64, u32)| d <= dsn && dsn < d + u64::from(len);
        self.0.iter().find(holds).map(|&(ssn, ..)| ssn)
    }

    fn by_ssn(&self, ssn: u32) -> Option<u64> {
        let holds = |&&(s, _, len): &&(u32, u64, u32)| s <= ssn && ssn < s + len;
        self.0
            .iter()
            .find(holds)
            .map(|&(s, d, _)| d + u64::from(ssn - s))
    }

    fn release(&mut self, acked: u32, data_acked: u64) {
        let stays =
            |&(s, d, len): &(u32, u64, u32)| s + len > acked || d + u64::from(len) > data_acked;
        let gone = self.0.iter().position(stays).unwrap_or(self.0.len());
        self.0.drain(..gone);
    }
}

/// The paper's tree, keyed by DSN, and another for the SSNs.
#[derive(Default)]
struct Maps {
    by_dsn: BTreeMap<u64, (u32, u32)>,
    by_ssn: BTreeMap<u32, u64>,
}

impl Tree for Maps {
    const NAME: &'static str = "two ordered maps";

    fn append(&mut self, dsn: u64, ssn: u32) {
        self.insert(dsn, ssn);
    }

    fn insert(&mut self, dsn: u64, ssn: u32) {
        let before = self.by_dsn.range_mut(..dsn).next_back();
        if let Some((d, (s, len))) = before
            && d + u64::from(*len) == dsn
            && *s + *len == ssn
        {
            *len += LEN;
            return;
        }
        self.by_dsn.insert(dsn, (ssn, LEN));
        self.by_ssn.insert(ssn, dsn);
    }

    fn by_dsn(&self, dsn: u64) -> Option<u32> {
        let (d, (ssn, len)) = self.by_dsn.range(..=dsn).next_back()?;
        (dsn < d + u64::from(*len)).then_some(*ssn)
    }

    fn by_ssn(&self, ssn: u32) -> Option<u64> {
        let (s, dsn) = self.by_ssn.range(..=ssn).next_back()?;
        let (_, len) = self.by_dsn.get(dsn)?;
        (ssn < s + len).then(|| dsn + u64::from(ssn - s))
    }

    fn release(&mut self, acked: u32, data_acked: u64) {
        while let Some((&dsn, &(ssn, len))) = self.by_dsn.first_key_value() {
            if ssn + len > acked || dsn + u64::from(len) > data_acked {
                break;
            }
            self.by_dsn.pop_first();
            self.by_ssn.remove(&ssn);
        }
    }
}

/// Position `i` of a tree, in both spaces.
fn place(i: u32) -> (u64, u32) {
    let at = STEP * i;
    (1 << 40 | u64::from(at), at)
}

/// A tree with `n` runs; `apart`: every other place is free.
fn filled<T: Tree>(n: u32, apart: u32) -> T {
    let mut tree = T::default();
    for i in 0..n {
        let (dsn, ssn) = place(i * apart);
        tree.append(dsn, ssn);
    }
    tree
}

/// Numbers below `bound` in no order.
fn scattered(bound: u32) -> impl Iterator<Item = u32> {
    (1_u64..).map(move |i| {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        u32::try_from(mixed % u64::from(bound)).unwrap_or(0)
    })
}

/// Nanoseconds for each of `count` operations: the median of rounds, each on a fresh tree.
fn timed<T: Tree>(
    fresh: impl Fn() -> T,
    count: u32,
    mut operation: impl FnMut(&mut T, usize),
) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let mut tree = fresh();
            let begin = Instant::now();
            operation(&mut tree, round);
            let nanos = begin.elapsed().as_secs_f64() * 1e9 / f64::from(count);
            black_box(tree);
            nanos
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// One row for each tree: what, and how.
type Measurement<T> = fn(u32) -> (Fresh<T>, u32, Operation<T>);
type Fresh<T> = Box<dyn Fn() -> T>;
type Operation<T> = Box<dyn FnMut(&mut T, usize)>;

/// New data behind all other.
fn in_order<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let operation = move |tree: &mut T, _| {
        for i in n..n + BATCH {
            let (dsn, ssn) = place(i);
            tree.append(dsn, ssn);
        }
    };
    (Box::new(move || filled(n, 1)), BATCH, Box::new(operation))
}

/// A mapping between others, anywhere.
fn reordered<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let count = BATCH.min(n);
    let operation = move |tree: &mut T, _| {
        // Each free place once.
        for i in 0..count {
            let (dsn, ssn) = place(n / count * i * 2 + 1);
            tree.insert(dsn, ssn);
        }
    };
    (Box::new(move || filled(n, 2)), count, Box::new(operation))
}

/// A mapping among the last 32: what reordering on a path gives.
fn reordered_late<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let count = 32.min(n);
    let operation = move |tree: &mut T, _| {
        for i in 0..count {
            let (dsn, ssn) = place((n - 1 - i) * 2 + 1);
            tree.insert(dsn, ssn);
        }
    };
    (Box::new(move || filled(n, 2)), count, Box::new(operation))
}

/// Which data stands at this number of the subflow: a SACK block of the client's.
fn look_up_ssn<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let operation = move |tree: &mut T, round: usize| {
        for i in scattered(n).skip(round * 7).take(BATCH as usize) {
            let (dsn, ssn) = place(i);
            assert_eq!(black_box(tree.by_ssn(black_box(ssn + 5))), Some(dsn + 5));
        }
    };
    (Box::new(move || filled(n, 1)), BATCH, Box::new(operation))
}

/// Which mapping holds this data: what the server sends again, or SACKs.
fn look_up_dsn<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let operation = move |tree: &mut T, round: usize| {
        for i in scattered(n).skip(round * 7).take(BATCH as usize) {
            let (dsn, ssn) = place(i);
            assert_eq!(black_box(tree.by_dsn(black_box(dsn + 5))), Some(ssn));
        }
    };
    (Box::new(move || filled(n, 1)), BATCH, Box::new(operation))
}

/// The same while data stands under a second, later number: then the order of the SSNs is not that of
/// the DSNs. Only the ring can be asked; the map by DSN has forgotten the first place.
fn look_up_disordered(n: u32) -> (Fresh<Ring>, u32, Operation<Ring>) {
    let fresh = move || {
        let mut tree: Ring = filled(n, 1);
        let ((dsn, _), (_, ssn)) = (place(0), place(n));
        tree.append(dsn, ssn);
        tree
    };
    let operation = move |tree: &mut Ring, round: usize| {
        for i in scattered(n).skip(round * 7).take(BATCH as usize) {
            let (dsn, _) = place(i);
            assert!(black_box(tree.by_dsn(black_box(dsn + 5))).is_some());
        }
    };
    (Box::new(fresh), BATCH, Box::new(operation))
}

/// One ACK that covers all but the last, counted for each run that goes.
fn removal<T: Tree>(n: u32) -> (Fresh<T>, u32, Operation<T>) {
    let operation = move |tree: &mut T, _| {
        let (dsn, ssn) = place(n);
        tree.release(ssn, dsn);
    };
    (Box::new(move || filled(n + 1, 1)), n, Box::new(operation))
}

fn row<T: Tree>(what: &str, name: &str, measure: Measurement<T>) {
    print!("| {what} | {name} |");
    for n in SIZES {
        let (fresh, count, operation) = measure(n);
        let nanos = timed(fresh, count, operation);
        if nanos < 100.0 {
            print!(" {nanos:.1} |");
        } else {
            print!(" {nanos:.0} |");
        }
    }
    println!();
}

fn rows(what: &str, ring: Measurement<Ring>, list: Measurement<List>, maps: Measurement<Maps>) {
    row(what, Ring::NAME, ring);
    row("", List::NAME, list);
    row("", Maps::NAME, maps);
}

fn main() {
    print!("| ns per operation, n runs | |");
    SIZES.iter().for_each(|n| print!(" {n} |"));
    print!("\n|---|---|");
    SIZES.iter().for_each(|_| print!("--:|"));
    println!();
    rows("insert in order", in_order, in_order, in_order);
    rows(
        "insert reordered, among the last 32",
        reordered_late,
        reordered_late,
        reordered_late,
    );
    rows(
        "insert reordered, anywhere",
        reordered,
        reordered,
        reordered,
    );
    rows(
        "look-up by SSN (SACK up)",
        look_up_ssn,
        look_up_ssn,
        look_up_ssn,
    );
    rows("look-up by DSN", look_up_dsn, look_up_dsn, look_up_dsn);
    row(
        "look-up by DSN, order broken",
        Ring::NAME,
        look_up_disordered,
    );
    rows("batched removal, per run", removal, removal, removal);
}
