//! Each connection comes to its end in bounded time: bytes move, as long as there are some to be moved, and the end
//! follows.

use flexcp_faults::Fault;

use crate::mirror::{AnswerPlan, Greeting};
use crate::swarm::{PathPlan, Plan, SECOND};
use crate::world::World;

/// Pause between two looks.
pub(crate) const LOOK: u64 = SECOND;
/// What an end waits at most before it sends again what is not acknowledged: the largest timeout of a plan, and what
/// its last doubling before the end of the faults may add to that.
const TIMEOUT: u64 = 8 * SECOND;
/// Timeouts in a row that each move something else on: a subflow that is found dead, a join in its place, what that
/// one repeats, the data behind it.
const TURNS: u64 = 5;
/// After the last byte a subflow may wait for the answer to its FIN: an end gives up then.
const CLOSING: u64 = 100 * SECOND;
/// The longest time that a handshake is kept for.
const HALF_OPEN: u64 = 250 * SECOND;
/// The longest time between two SYNs of a client, and so many of a box's SYNs with MPTCP are lost where a server loses such.
const SYN_PAUSE: u64 = 16 * SECOND;
const LOST_SYNS: u64 = 2;
/// So many bytes at least get through in a round trip, delayed ACKs counted: half of the smallest segment.
const SLIVER: u64 = 32;

/// One connection.
#[derive(Clone, Copy, Default, Debug)]
struct Watch {
    progress: u64,
    since: u64,
    longest: u64,
}

/// All connections of a run.
#[derive(Debug)]
pub(crate) struct Liveness {
    watches: Vec<Watch>,
    /// How long a connection may stand, and how long it may last.
    bounds: Vec<(u64, u64)>,
    calm: u64,
}

impl Liveness {
    pub(crate) fn new(plan: &Plan) -> Self {
        let bounds = (0..plan.connections.len()).map(|n| bounds(plan, n));
        Self {
            watches: vec![Watch::default(); plan.connections.len()],
            bounds: bounds.collect(),
            calm: plan.calm,
        }
    }

    /// Looks at all connections; the ones that stand still, or go on for ever.
    pub(crate) fn look(&mut self, world: &World) -> Vec<String> {
        let mut failures = Vec::new();
        for (n, watch) in self.watches.iter_mut().enumerate() {
            let Some((progress, closing)) = world.progress(n) else {
                continue;
            };
            let now = world.now;
            let moves = progress != watch.progress || now < self.calm;
            if moves {
                (watch.progress, watch.since) = (progress, now);
                continue;
            }
            let stands = now - watch.since;
            if !closing {
                watch.longest = watch.longest.max(stands);
            }
            let (stall, _) = self.bounds[n];
            let limit = if closing { CLOSING } else { stall };
            if stands > limit {
                failures.push(format!(
                    "connection {n} stands still for {} s",
                    stands / SECOND
                ));
            }
        }
        for (n, (_, whole)) in self.bounds.iter().enumerate() {
            if world.progress(n).is_some() && world.now > self.calm + whole {
                failures.push(format!(
                    "connection {n} has not ended after {} s",
                    world.now / SECOND
                ));
            }
        }
        failures
    }

    /// The longest time that a connection stood still, of its bound: in thousandths.
    pub(crate) fn tightest(&self) -> u64 {
        let each = self.watches.iter().zip(&self.bounds);
        each.map(|(watch, bound)| watch.longest * 1000 / bound.0)
            .max()
            .unwrap_or(0)
    }
}

/// How long the n-th connection may stand still, and how long it may take in all, once the faults are over.
fn bounds(plan: &Plan, n: usize) -> (u64, u64) {
    let connection = &plan.connections[n];
    let delay = |faults: &[Fault]| -> u64 {
        let delays = faults.iter().filter_map(|fault| match fault {
            Fault::Delay(delay) => Some(delay.as_micros() as u64),
            _ => None,
        });
        delays.sum()
    };
    let way = |paths: &(PathPlan, PathPlan)| delay(&paths.0.calm) + delay(&paths.1.calm);
    let links = plan.links.iter().map(way).max().unwrap_or(0);
    let round_trip = links + way(&plan.server);
    let acks = connection.client.ack_delay.max(connection.server.ack_delay);
    let stall = TURNS * (TIMEOUT + round_trip) + connection.mptcp.rejoin;
    // A handshake that is not complete is forgotten before its client is told so.
    let stall = stall + connection.explicit.as_ref().map_or(0, |_| HALF_OPEN);
    // The pauses between two copies of a header double up to that.
    let stall = stall + if connection.told { HALF_OPEN } else { 0 };
    // Each stands behind a SYN of the client's, whose pauses have doubled up to that.
    let loses = |answers: &AnswerPlan| answers.greeting == Greeting::Lost;
    let loses = connection.answers.as_ref().is_some_and(loses);
    let stall = stall + u64::from(loses) * LOST_SYNS * SYN_PAUSE;
    // What an end with TCP has thrown away comes again behind all that is outstanding, which may be a window in pieces.
    let outstanding = if connection.server.reneges > 0 {
        connection.server.buffer
    } else {
        0
    };
    let stall = stall + outstanding / SLIVER * (round_trip + acks);
    let bytes = connection.client_app.writes + connection.server_app.writes;
    let slow = bytes / SLIVER * (round_trip + acks);
    (stall, 2 * stall + CLOSING + slow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    #[test]
    fn connection_that_stands_still_is_named() {
        let mut world = World::new(Plan::of(1), Trace::Off);
        let mut liveness = Liveness::new(&world.plan);
        world.now = world.plan.calm - 1;
        assert_eq!(liveness.look(&world), Vec::<String>::new());
        world.now += 30 * SECOND;
        assert_eq!(liveness.look(&world), Vec::<String>::new());
        world.now += 30 * SECOND;
        let failures = liveness.look(&world);
        assert_eq!(failures[0], "connection 0 stands still for 60 s");
    }
}
