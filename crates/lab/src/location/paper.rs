//! Table 1 of T-MPTCP (Han et al., IEEE Network 2021): five aggregation servers, each over two uplinks.

/// What the paper has measured of an aggregation server: rates in Mbit/s, round trips in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// From the server to the box over each uplink, and that path's round trip.
    pub(super) paths: [(f64, f64); 2],
    /// The server's own leg, from content.
    pub(super) own: (f64, f64),
    /// Downloads.
    pub(super) throughput: f64,
}

/// Number 1 first.
pub(super) const TABLE: [Server; 5] = [
    server([(21.89, 53.37), (13.45, 91.745)], (92.8, 42.64), 24.38),
    server([(22.63, 44.60), (15.38, 64.34)], (98.4, 36.05), 28.45),
    server([(27.57, 53.97), (19.75, 67.66)], (56.31, 27.50), 36.89),
    server([(1.38, 43.67), (13.91, 57.45)], (36.31, 38.19), 13.03),
    server([(5.1, 113.15), (12.9, 179.58)], (63.28, 36.9), 17.02),
];

/// Places in the table, the best first, as the paper predicts and measures it.
pub(super) const ORDER: [usize; 5] = [2, 1, 0, 4, 3];

/// The server that the paper's choice falls on, and the one that comes next.
pub(super) const BEST: usize = ORDER[0];
pub(super) const NEXT: usize = ORDER[1];

/// What waits before a path at most, in milliseconds of its rate: towards the box, and from there, where lines are slow and queues long.
const QUEUES: [f64; 2] = [100.0, 300.0];
/// And so many bytes at least: a train of probes, which has 16 packets.
const LEAST_QUEUE: f64 = 30_000.0;
/// The paper's table has no rates from the box: they are a quarter, as a line to a home has it.
const UP: f64 = 0.25;

const fn server(paths: [(f64, f64); 2], own: (f64, f64), throughput: f64) -> Server {
    Server {
        paths,
        own,
        throughput,
    }
}

impl Server {
    /// The paper's measure: what all uplinks carry, or the own leg if that is less.
    pub(super) fn predicted(&self) -> f64 {
        self.sum().min(self.own.0)
    }

    /// What all uplinks carry.
    pub(super) fn sum(&self) -> f64 {
        self.paths.iter().map(|(rate, _)| rate).sum()
    }

    /// What the link emulator is told of an uplink's path, to the box and from it, when it carries this share of its rate.
    pub(super) fn path(&self, uplink: usize, share: f64) -> [String; 2] {
        let (rate, rtt) = self.paths[uplink];
        [1.0, UP]
            .map(|way| rate * share * way)
            .into_iter()
            .zip(QUEUES)
            .map(|(rate, queue)| faults(rate, rtt, queue))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_default()
    }

    /// The same of the own leg, for each way.
    pub(super) fn leg(&self) -> String {
        let (rate, rtt) = self.own;
        faults(rate, rtt, QUEUES[0])
    }
}

/// Half of the round trip is each way's.
fn faults(mbit: f64, rtt: f64, queue: f64) -> String {
    let bytes = (mbit * 125.0 * queue).max(LEAST_QUEUE);
    format!(
        "rate={:.0}kbit:{bytes:.0}b,delay={:.0}us",
        mbit * 1000.0,
        rtt * 500.0
    )
}

/// Places, the one with the largest figure first. What is no number comes last.
pub(super) fn order(figures: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..figures.len()).collect();
    let of = |at: usize| Some(figures[at]).filter(|figure| !figure.is_nan());
    order.sort_by(|&left, &right| of(right).partial_cmp(&of(left)).expect("no NaN"));
    order
}

/// Servers by their numbers, as the paper counts them: "3, 2, 1, 5, 4".
pub(super) fn numbers(order: &[usize]) -> String {
    let numbers: Vec<_> = order.iter().map(|at| (at + 1).to_string()).collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn papers_prediction_and_measurement_have_its_order() {
        assert_eq!(order(&TABLE.map(|server| server.predicted())), ORDER);
        assert_eq!(order(&TABLE.map(|server| server.throughput)), ORDER);
        assert_eq!(numbers(&ORDER), "3, 2, 1, 5, 4");
        assert!((TABLE[BEST].predicted() - 47.32).abs() < 1e-9);
        assert_eq!(order(&[f64::NAN, 1.0, 2.0]), [2, 1, 0]);
    }

    #[test]
    fn paths_are_as_the_emulator_has_them() {
        let [down, up] = TABLE[3].path(0, 1.0);
        assert_eq!(down, "rate=1380kbit:30000b,delay=21835us");
        assert_eq!(up, "rate=345kbit:30000b,delay=21835us");
        let [slow, _] = TABLE[3].path(0, 0.5);
        assert_eq!(slow, "rate=690kbit:30000b,delay=21835us");
        assert_eq!(TABLE[4].leg(), "rate=63280kbit:791000b,delay=18450us");
        for server in TABLE {
            for faults in [server.path(0, 1.0), server.path(1, 1.0)].concat() {
                let parsed = faults.parse::<flexcp_faults::Faults>();
                assert_eq!(parsed.expect("faults").0.len(), 2);
            }
        }
    }
}
