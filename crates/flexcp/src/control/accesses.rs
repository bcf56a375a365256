//! Accesses as they stand: sums of their subflows, with those that are over.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::{AccessId, AccessTotals, ConnectionView, MAX_ACCESSES, SubflowView};

use super::VERSION;
use super::server::{Asked, Names};
use super::stats::each_connection;
use super::view::{Access, Accesses};

/// The sums of all workers' subflows.
pub(super) fn sums(asked: &Asked) -> Result<Accesses, String> {
    let names = asked.watch.names().map_err(|gone| gone.to_string())?;
    let mut sums = Sums::of(&names);
    for worker in &asked.workers {
        let totals = worker.access_totals().map_err(|gone| gone.to_string())?;
        sums.add_totals(&totals);
    }
    each_connection(asked, |view| sums.add(&view))?;
    asked.floors.raise(&names.accesses, &mut sums.accesses);
    Ok(sums.end())
}

/// What was told of the bytes of each access. A subflow that ends between two questions to its worker would be missing in the
/// sums once; numbers that are told never become less.
#[derive(Debug)]
pub struct Floors {
    /// A hash of the accesses' names.
    names: AtomicU64,
    told: Box<[[AtomicU64; 3]]>,
}

impl Default for Floors {
    fn default() -> Self {
        let none = || [const { AtomicU64::new(0) }; 3];
        Self {
            names: AtomicU64::new(0),
            told: (0..=MAX_ACCESSES).map(|_| none()).collect(),
        }
    }
}

impl Floors {
    fn raise(&self, names: &[String], sums: &mut [Sum]) {
        let mut hash = DefaultHasher::new();
        names.hash(&mut hash);
        let names = hash.finish();
        if self.names.swap(names, Ordering::Relaxed) != names {
            // Other accesses have these places.
            let all = self.told.iter().flatten();
            all.for_each(|floor| floor.store(0, Ordering::Relaxed));
        }
        for (sum, floors) in sums.iter_mut().zip(&self.told) {
            let access = &mut sum.access;
            let counts = [
                &mut access.bytes_up,
                &mut access.bytes_down,
                &mut access.retransmitted_down,
            ];
            for (count, floor) in counts.into_iter().zip(floors) {
                *count = floor.fetch_max(*count, Ordering::Relaxed).max(*count);
            }
        }
    }
}

struct Sums {
    /// The last is of subflows that are of no access.
    accesses: Vec<Sum>,
}

/// An access, and what its mean RTT is made of.
struct Sum {
    access: Access,
    rtts: u64,
    timed: u64,
}

impl Sums {
    fn of(names: &Names) -> Self {
        let names = names.accesses.iter().cloned().map(Some);
        let accesses = names.chain([None]).map(|name| Sum {
            access: Access {
                name,
                ..Access::default()
            },
            rtts: 0,
            timed: 0,
        });
        Self {
            accesses: accesses.collect(),
        }
    }

    /// The last is of none; those of accesses that a reload has just brought count there, too.
    fn add_totals(&mut self, totals: &[AccessTotals]) {
        let named = totals.len().saturating_sub(1);
        for (place, totals) in totals.iter().enumerate() {
            let id = u8::try_from(place).ok().filter(|_| place < named);
            self.of_id(id.map(AccessId)).add_totals(totals);
        }
    }

    fn add(&mut self, connection: &ConnectionView) {
        for subflow in &connection.subflows {
            self.of_id(subflow.access).add(subflow);
        }
    }

    /// That of an access which a reload has just brought counts as none.
    fn of_id(&mut self, id: Option<AccessId>) -> &mut Sum {
        let last = self.accesses.len() - 1;
        let at = id.map_or(last, |id| usize::from(id.0).min(last));
        &mut self.accesses[at]
    }

    fn end(self) -> Accesses {
        let accesses = self.accesses.into_iter().map(Sum::end);
        let came = |access: &Access| access.subflows + access.opened + access.plain > 0;
        Accesses {
            version: VERSION,
            accesses: accesses
                .filter(|access| access.name.is_some() || came(access))
                .collect(),
        }
    }
}

impl Sum {
    fn add_totals(&mut self, totals: &AccessTotals) {
        let access = &mut self.access;
        access.opened += totals.opened;
        access.stripped += totals.stripped;
        access.plain += totals.plain;
        access.bytes_up += totals.bytes_up;
        access.bytes_down += totals.bytes_down;
        access.retransmitted_down += totals.retransmitted_down;
    }

    fn add(&mut self, subflow: &SubflowView) {
        let access = &mut self.access;
        access.subflows += 1;
        access.active += u64::from(subflow.active);
        access.backup += u64::from(subflow.backup);
        access.bytes_up += subflow.bytes_up;
        access.bytes_down += subflow.bytes_down;
        access.retransmitted_down += subflow.retransmitted_down;
        let path = &subflow.quality;
        access.in_flight += u64::from(path.in_flight);
        if path.in_flight > 0 {
            access.delivery_rate += u64::from(path.delivery_rate);
        }
        let micros = |time: Option<std::time::Duration>| {
            time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        if let Some(rtt) = micros(path.rtt) {
            self.rtts = self.rtts.saturating_add(rtt);
            self.timed += 1;
        }
        let least = [access.rtt_least_us, micros(path.rtt_least)];
        access.rtt_least_us = least.into_iter().flatten().min();
    }

    fn end(self) -> Access {
        Access {
            rtt_us: self.rtts.checked_div(self.timed),
            ..self.access
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flexcp_translator::PathQuality;

    use super::*;

    fn subflow(access: Option<u8>, rtt: Option<u64>, in_flight: u32) -> SubflowView {
        SubflowView {
            subflow: 0,
            client: "10.1.0.2:1".parse().unwrap(),
            local: "10.9.0.2:80".parse().unwrap(),
            address_id: 0,
            access: access.map(AccessId),
            active: in_flight > 0,
            backup: false,
            established: true,
            bytes_up: 1,
            bytes_down: 10,
            retransmitted_down: 2,
            quality: PathQuality {
                rtt: rtt.map(Duration::from_millis),
                rtt_least: rtt.map(|rtt| Duration::from_millis(rtt / 2)),
                delivery_rate: 1000,
                in_flight,
                ..PathQuality::default()
            },
        }
    }

    fn sums(names: &[&str], subflows: &[SubflowView]) -> Vec<Access> {
        let names = Names {
            accesses: names.iter().map(|&name| name.into()).collect(),
            ..Names::default()
        };
        let mut sums = Sums::of(&names);
        for subflow in subflows {
            sums.of_id(subflow.access).add(subflow);
        }
        sums.end().accesses
    }

    #[test]
    fn access_is_the_sum_of_its_subflows() {
        let told = sums(
            &["dsl", "lte"],
            &[
                subflow(Some(1), Some(20), 100),
                subflow(Some(1), Some(40), 0),
                subflow(Some(1), None, 50),
            ],
        );
        let lte = Access {
            name: Some("lte".into()),
            subflows: 3,
            active: 2,
            backup: 0,
            opened: 0,
            stripped: 0,
            plain: 0,
            bytes_up: 3,
            bytes_down: 30,
            retransmitted_down: 6,
            rtt_us: Some(30_000),
            rtt_least_us: Some(10_000),
            // Of those that are busy.
            delivery_rate: 2000,
            in_flight: 150,
        };
        let dsl = Access {
            name: Some("dsl".into()),
            ..Access::default()
        };
        assert_eq!(told, [dsl, lte]);
    }

    #[test]
    fn what_is_over_counts_and_what_was_told_never_becomes_less() {
        let names: Vec<String> = vec!["dsl".into(), "lte".into()];
        let totals = |bytes_down| AccessTotals {
            opened: 5,
            stripped: 2,
            plain: 1,
            bytes_down,
            ..AccessTotals::default()
        };
        let floors = Floors::default();
        let told = |names: &[String], last: u64, living: &[SubflowView]| {
            let mut sums = Sums::of(&Names {
                accesses: names.to_vec(),
                ..Names::default()
            });
            sums.add_totals(&[totals(100), totals(200), totals(last)]);
            living.iter().for_each(|it| sums.of_id(it.access).add(it));
            floors.raise(names, &mut sums.accesses);
            let told = sums.end().accesses;
            told.iter().map(|it| it.bytes_down).collect::<Vec<_>>()
        };
        assert_eq!(
            told(&names, 300, &[subflow(Some(1), None, 0)]),
            [100, 210, 300]
        );
        // It is over, and its worker was asked before that.
        assert_eq!(told(&names, 300, &[]), [100, 210, 300]);
        assert_eq!(told(&names, 301, &[]), [100, 210, 301]);
        let others = ["lte".into(), "dsl".into()];
        assert_eq!(told(&others, 1, &[]), [100, 200, 1], "they are others'");
        let mut sums = Sums::of(&Names {
            accesses: names,
            ..Names::default()
        });
        sums.add_totals(&[totals(0), totals(0), totals(0)]);
        sums.add_totals(&[totals(0), totals(0), totals(0)]);
        let of = &sums.end().accesses[1];
        assert_eq!(
            (of.opened, of.stripped, of.plain),
            (10, 4, 2),
            "of all workers"
        );
    }

    #[test]
    fn subflows_of_no_access_stand_last_if_there_are_any() {
        assert_eq!(sums(&[], &[]), []);
        // The third has come since the names were asked for.
        let told = sums(
            &["dsl"],
            &[subflow(None, None, 0), subflow(Some(7), None, 0)],
        );
        let names: Vec<_> = told.iter().map(|access| access.name.as_deref()).collect();
        assert_eq!(names, [Some("dsl"), None]);
        assert_eq!([told[0].subflows, told[1].subflows], [0, 2]);
    }
}
