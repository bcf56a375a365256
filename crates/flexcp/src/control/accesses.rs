//! Accesses as they stand: sums of the subflows that live.

use flexcp_translator::{AccessId, ConnectionView, SubflowView};

use super::VERSION;
use super::server::{Asked, Names};
use super::stats::each_connection;
use super::view::{Access, Accesses};

/// The sums of all workers' subflows.
pub(super) fn sums(asked: &Asked) -> Result<Accesses, String> {
    let names = asked.watch.names().map_err(|gone| gone.to_string())?;
    let mut sums = Sums::of(&names);
    each_connection(asked, |view| sums.add(&view))?;
    Ok(sums.end())
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
        Accesses {
            version: VERSION,
            accesses: accesses
                .filter(|access| access.name.is_some() || access.subflows > 0)
                .collect(),
        }
    }
}

impl Sum {
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
