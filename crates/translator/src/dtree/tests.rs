use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const DSN: Dsn = Dsn(u64::MAX - 1500);
const SSN: Ssn = Ssn(u32::MAX - 700);

fn lane(mappings: &[(u64, u32, u32)]) -> Lane {
    let mut lane = Lane::default();
    for &(dsn, ssn, len) in mappings {
        lane.append(Dsn(dsn), Ssn(ssn), len);
    }
    lane
}

fn mapping(dsn: u64, ssn: u32, len: u32) -> Option<Mapping> {
    Some(Mapping {
        dsn: Dsn(dsn),
        ssn: Ssn(ssn),
        len,
        declared: true,
    })
}

#[test]
fn equal_mappings_in_order_are_one_run_and_keep_their_bounds() {
    let lane = lane(&[(100, 10, 1400), (1500, 1410, 1400), (2900, 2810, 1400)]);
    assert_eq!(lane.len(), 1);
    assert_eq!(lane.by_dsn(Dsn(1500)), mapping(1500, 1410, 1400));
    assert_eq!(lane.by_dsn(Dsn(2899)), mapping(1500, 1410, 1400));
    assert_eq!(lane.by_dsn(Dsn(2900)), mapping(2900, 2810, 1400));
}

#[test]
fn shorter_mapping_ends_a_run() {
    let mut lane = lane(&[(0, 0, 1400), (1400, 1400, 600), (2000, 2000, 1400)]);
    assert_eq!(lane.len(), 2);
    assert_eq!(lane.by_dsn(Dsn(1700)), mapping(1400, 1400, 600));
    assert_eq!(lane.by_dsn(Dsn(2000)), mapping(2000, 2000, 1400));
    lane.append(Dsn(3400), Ssn(3400), 1401);
    assert_eq!(lane.len(), 3, "a longer one never joins");
}

#[test]
fn reserved_stretch_is_declared_in_any_order() {
    let mut lane = lane(&[(0, 0, 100)]);
    lane.reserve(Dsn(100), Ssn(100), 300);
    lane.append(Dsn(400), Ssn(400), 100);
    lane.declare(Dsn(200), Ssn(200), 100);
    assert_eq!(lane.by_dsn(Dsn(250)), mapping(200, 200, 100));
    let reserved = Mapping {
        dsn: Dsn(350),
        ssn: Ssn(350),
        len: 50,
        declared: false,
    };
    assert_eq!(lane.by_dsn(Dsn(350)), Some(reserved));
    lane.declare(Dsn(100), Ssn(100), 100);
    // Longer than what is reserved.
    lane.declare(Dsn(300), Ssn(300), 150);
    assert!(lane.iter().all(|run| run.unit == 100));
}

#[test]
fn data_under_two_numbers_is_found_under_the_later() {
    let mut lane = lane(&[(1000, 0, 100), (1100, 100, 100)]);
    lane.append(Dsn(1000), Ssn(200), 100);
    assert_eq!(lane.by_dsn(Dsn(1050)), mapping(1000, 200, 100));
    assert_eq!(lane.by_ssn(Ssn(50)), Some((Dsn(1050), 150)));
    assert_eq!(lane.next_dsn(Dsn(900)), Some(Dsn(1000)));
    lane.release(Ssn(200), Dsn(1200));
    assert_eq!(lane.inversions, 0, "the order is whole again");
    assert_eq!(lane.by_dsn(Dsn(1000)), mapping(1000, 200, 100));
}

#[test]
fn release_needs_both_acks_and_whole_mappings() {
    let mut lane = lane(&[(0, 0, 100), (100, 100, 100)]);
    lane.release(Ssn(200), Dsn(0));
    lane.release(Ssn(0), Dsn(200));
    assert_eq!(lane.front(), Some((Ssn(0), Dsn(0), 200)));
    lane.release(Ssn(150), Dsn(200));
    assert_eq!(
        lane.front(),
        Some((Ssn(100), Dsn(100), 100)),
        "half a mapping stays whole"
    );
    assert_eq!(
        lane.by_ssn_late(Ssn(30)),
        Some((Dsn(30), 70)),
        "for a late D-SACK"
    );
    lane.release(Ssn(200), Dsn(200));
    assert_eq!(lane.len(), 0);
}

#[test]
fn mapping_of_the_peer_fills_a_gap_and_joins_its_neighbours() {
    let mut lane = Lane::default();
    lane.insert(Dsn(0), Ssn(0), 100, true).unwrap();
    lane.insert(Dsn(200), Ssn(200), 100, true).unwrap();
    lane.insert(Dsn(50), Ssn(50), 200, true).unwrap();
    assert_eq!(lane.front(), Some((Ssn(0), Dsn(0), 300)));
}

#[test]
fn mapping_that_gives_known_bytes_other_data_is_refused() {
    let mut lane = Lane::default();
    lane.insert(Dsn(0), Ssn(0), 100, true).unwrap();
    assert_eq!(
        lane.insert(Dsn(51), Ssn(50), 10, true),
        Err(Refused::Contradiction)
    );
    assert_eq!(
        lane.insert(Dsn(51), Ssn(50), 100, true),
        Err(Refused::Contradiction)
    );
}

/// The naive model: one entry a byte.
#[derive(Default)]
struct Bytes {
    /// By distance from the first SSN: distance from the first DSN, and the mapping's bounds.
    known: BTreeMap<u32, (u64, Option<(u64, u32)>)>,
}

#[derive(Clone, Debug)]
enum Step {
    Append { skip: u32, len: u32 },
    Again { back: u32, len: u32 },
    Reserve { len: u32 },
    Declare { at: u32, len: u32 },
    Displace { from: u32, back: u32, len: u32 },
    Release { acked: u32, data_acked: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![Just(10_u32), 1..40_u32];
    let step = prop_oneof![
        5 => (0..2_u32, len.clone()).prop_map(|(skip, len)| Step::Append { skip: skip * 7, len }),
        1 => (0..60_u32, len.clone()).prop_map(|(back, len)| Step::Again { back, len }),
        1 => len.clone().prop_map(|len| Step::Reserve { len }),
        2 => (0..400_u32, len.clone()).prop_map(|(at, len)| Step::Declare { at, len }),
        2 => (0..400_u32, 0..200_u32, len)
            .prop_map(|(from, back, len)| Step::Displace { from, back, len }),
        2 => (0..600_u32, 0..600_u32)
            .prop_map(|(acked, data_acked)| Step::Release { acked, data_acked }),
    ];
    proptest::collection::vec(step, 1..60)
}

impl Bytes {
    fn add(&mut self, ssn: u32, dsn: u64, len: u32, declared: bool) {
        for i in 0..len {
            let bounds = declared.then_some((dsn, len));
            self.known.insert(ssn + i, (dsn + u64::from(i), bounds));
        }
    }

    /// Checks every byte, and that the lane holds nothing else.
    fn check(&self, lane: &Lane) {
        let held: u32 = lane.iter().map(|run| run.len).sum();
        assert_eq!(held as usize, self.known.len());
        for (&ssn, &(dsn, bounds)) in &self.known {
            let (found, _) = lane.by_ssn(SSN.add(ssn)).expect("known byte");
            assert_eq!(found, DSN.add(dsn));
            let latest = self
                .known
                .iter()
                .rev()
                .find(|(_, (d, _))| *d == dsn)
                .unwrap();
            let mapping = lane.by_dsn(DSN.add(dsn)).expect("known data");
            match latest.1.1 {
                Some((start, len)) => {
                    assert!(mapping.declared);
                    assert_eq!((mapping.dsn, mapping.len), (DSN.add(start), len));
                    let offset = u32::try_from(dsn - start).unwrap();
                    assert_eq!(mapping.ssn.add(offset), SSN.add(*latest.0));
                }
                None => assert!(!mapping.declared),
            }
            assert!(bounds.is_none() || latest.0 >= &ssn);
        }
        let order: Vec<_> = lane.iter().collect();
        let inversions = order
            .windows(2)
            .filter(|w| w[1].dsn.before(w[0].dsn_end()))
            .count();
        assert_eq!(lane.inversions as usize, inversions);
        for pair in order.windows(2) {
            assert!(
                !pair[1].ssn.before(pair[0].ssn_end()),
                "sorted and disjoint"
            );
        }
    }

    /// Where a stretch begins that is reserved, and how long it is.
    fn reserved(&self) -> Vec<(u32, u64, u32)> {
        let mut stretches: Vec<(u32, u64, u32)> = Vec::new();
        for (&ssn, &(dsn, _)) in self
            .known
            .iter()
            .filter(|(_, (_, bounds))| bounds.is_none())
        {
            match stretches.last_mut() {
                Some((start, first, len))
                    if *start + *len == ssn && *first + u64::from(*len) == dsn =>
                {
                    *len += 1;
                }
                _ => stretches.push((ssn, dsn, 1)),
            }
        }
        stretches
    }

    fn displace(&mut self, from: u32, dsn: u64, len: u32) -> Option<(u32, u32)> {
        let stretches = self.reserved().into_iter();
        let mut fit = stretches.filter(|&(ssn, first, _)| ssn >= from && first > dsn);
        let (ssn, first, room) = fit.next()?;
        let len = len.min(room);
        self.add(ssn, dsn, len, true);
        self.add(ssn + len, first, room - len, false);
        Some((ssn, len))
    }

    /// Removes whole mappings from the front, as far as both ACKs reach.
    fn release(&mut self, acked: u32, data_acked: u64) {
        while let Some((&ssn, &(dsn, bounds))) = self.known.first_key_value() {
            let (end_ssn, end_dsn) = match bounds {
                Some((start, len)) => {
                    let into = u32::try_from(dsn - start).unwrap();
                    (ssn + len - into, start + u64::from(len))
                }
                None => {
                    // A reserved stretch goes as a whole.
                    let mut end = ssn;
                    while self
                        .known
                        .get(&end)
                        .is_some_and(|(d, b)| b.is_none() && *d == dsn + u64::from(end - ssn))
                    {
                        end += 1;
                    }
                    (end, dsn + u64::from(end - ssn))
                }
            };
            if end_ssn > acked || end_dsn > data_acked {
                break;
            }
            self.known.retain(|&s, _| s >= end_ssn);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn lane_agrees_with_a_list_of_bytes(steps in steps()) {
        let mut lane = Lane::default();
        let mut bytes = Bytes::default();
        let (mut next_ssn, mut next_dsn) = (0_u32, 0_u64);
        for step in steps {
            match step {
                Step::Append { skip, len } => {
                    next_dsn += u64::from(skip);
                    lane.append(DSN.add(next_dsn), SSN.add(next_ssn), len);
                    bytes.add(next_ssn, next_dsn, len, true);
                    next_ssn += len;
                    next_dsn += u64::from(len);
                }
                Step::Again { back, len } => {
                    let Some(dsn) = next_dsn.checked_sub(u64::from(back.max(len))) else { continue };
                    lane.append(DSN.add(dsn), SSN.add(next_ssn), len);
                    bytes.add(next_ssn, dsn, len, true);
                    next_ssn += len;
                }
                Step::Reserve { len } => {
                    lane.reserve(DSN.add(next_dsn), SSN.add(next_ssn), len);
                    bytes.add(next_ssn, next_dsn, len, false);
                    next_ssn += len;
                    next_dsn += u64::from(len);
                }
                Step::Declare { at, len } => {
                    let reserved = |ssn: u32| bytes.known.get(&ssn).filter(|(_, b)| b.is_none());
                    let Some(&(dsn, _)) = reserved(at) else { continue };
                    let fits = (0..len).all(|i| {
                        reserved(at + i).is_some_and(|(d, _)| *d == dsn + u64::from(i))
                    });
                    if fits {
                        lane.declare(DSN.add(dsn), SSN.add(at), len);
                        bytes.add(at, dsn, len, true);
                    }
                }
                Step::Displace { from, back, len } => {
                    // What a stretch is reserved for lies before what was there last.
                    let Some(dsn) = next_dsn.checked_sub(u64::from(back)) else { continue };
                    let expected = bytes.displace(from, dsn, len);
                    let found = lane.displace(SSN.add(from), DSN.add(dsn), len);
                    prop_assert_eq!(found, expected.map(|(ssn, len)| (SSN.add(ssn), len)));
                }
                Step::Release { acked, data_acked } => {
                    lane.release(SSN.add(acked), DSN.add(u64::from(data_acked)));
                    bytes.release(acked, u64::from(data_acked));
                }
            }
            bytes.check(&lane);
        }
    }

    #[test]
    fn mappings_of_the_peer_agree_with_a_list_of_bytes(
        pieces in proptest::collection::vec((0..300_u32, 1..50_u32, 0..2_u64), 1..60)
    ) {
        // Two data streams far apart: the second one breaks the order of DSNs.
        let mut lane = Lane::default();
        let mut known: BTreeMap<u32, u64> = BTreeMap::new();
        for (ssn, len, stream) in pieces {
            let dsn = |ssn: u32| u64::from(ssn) + (1 - stream) * 10_000;
            let free = (ssn..ssn + len).all(|s| known.get(&s).is_none_or(|&d| d == dsn(s)));
            let result = lane.insert(DSN.add(dsn(ssn)), SSN.add(ssn), len, true);
            if free {
                prop_assert_eq!(result, Ok(()));
                known.extend((ssn..ssn + len).map(|s| (s, dsn(s))));
            } else {
                prop_assert_eq!(result, Err(Refused::Contradiction));
                // What came before the contradiction may have been taken.
                for s in ssn..ssn + len {
                    if let Some((found, _)) = lane.by_ssn(SSN.add(s)) {
                        known.entry(s).or_insert_with(|| found.since(DSN));
                    }
                }
            }
            for s in 0..400 {
                let found = lane.by_ssn(SSN.add(s)).map(|(found, _)| found.since(DSN));
                prop_assert_eq!(found, known.get(&s).copied());
            }
            let order: Vec<_> = lane.iter().collect();
            let inversions =
                order.windows(2).filter(|w| w[1].dsn.before(w[0].dsn_end())).count();
            prop_assert_eq!(lane.inversions as usize, inversions);
        }
    }
}
