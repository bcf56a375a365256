//! What a gigabyte costs of processors, over uplinks as fast as the machine carries packets.

use anyhow::Result;
use serde::Serialize;

use super::site::Site;
use super::way::{FarEnd, MOBILE, Network, Way};
use crate::aim::Line;
use crate::cpu::Sample;
use crate::statistics::{median, quantile};

/// Of one way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    way: Way,
    /// In MB/s.
    rates: Vec<f64>,
    /// CPU seconds for each 10^9 bytes that are charged to what runs in the box; none where nothing does.
    of_the_box: Vec<f64>,
    /// And of the whole machine, client and server among them, less programs that have no part in it.
    of_the_machine: Vec<f64>,
    /// CPUs that such programs kept busy meanwhile.
    foreign: Vec<f64>,
}

const WAYS: [Way; 6] = [
    Way::Box(FarEnd::Direct),
    Way::Box(FarEnd::Convert),
    Way::Box(FarEnd::Socks5),
    Way::Kernel,
    Way::Proxies,
    Way::Alone(MOBILE),
];

/// Of each download.
const BYTES: u64 = 1_000_000_000;

/// Runs downloads by turns.
///
/// # Errors
///
/// A download fails, or was not what it is measured as.
pub(super) fn run(rounds: usize, network: &Network) -> Result<Vec<Cost>> {
    let sites = WAYS.map(|way| Site::build(way, network, false));
    let sites = sites.into_iter().collect::<Result<Vec<_>>>()?;
    let mut costs = WAYS.map(|way| Cost {
        way,
        rates: vec![],
        of_the_box: vec![],
        of_the_machine: vec![],
        foreign: vec![],
    });
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let number = (round + turn) % WAYS.len();
            costs[number].add(&sites[number])?;
        }
    }
    sites.into_iter().try_for_each(Site::end)?;
    Ok(costs.into())
}

impl Cost {
    fn add(&mut self, site: &Site) -> Result<()> {
        let before = Sample::take()?;
        let seconds = site.seconds(BYTES)?;
        let after = Sample::take()?;
        #[allow(clippy::cast_precision_loss, reason = "a gigabyte")]
        let giga = BYTES as f64 / 1e9;
        let used = after.since(&before);
        self.rates.push(giga * 1000.0 / seconds);
        self.of_the_machine.push(used.ours / giga);
        self.foreign.push(used.foreign / used.wall.max(1e-3));
        let charged = site
            .in_the_box()
            .map(|pid| after.of_tree_since(&before, pid));
        self.of_the_box
            .extend(charged.map(|charged| charged / giga));
        Ok(())
    }
}

fn spread(values: &[f64]) -> String {
    let [least, most] = [0.0, 1.0].map(|share| quantile(values, share));
    if values.is_empty() {
        return "none".to_owned();
    }
    format!("{:.2} ({least:.2} to {most:.2})", median(values))
}

/// As a table in Markdown.
pub(super) fn table(costs: &[Cost]) -> String {
    let mut text = "| way | CPU s/GB of the box's processes | CPU s/GB of the machine | MB/s |\n\
                    |---|---|---|---|\n"
        .to_owned();
    for cost in costs {
        let columns = [&cost.of_the_box, &cost.of_the_machine].map(|values| spread(values));
        text += &format!(
            "| {} | {} | {:.0} |\n",
            cost.way.cost_name(),
            columns.join(" | "),
            median(&cost.rates)
        );
    }
    text
}

/// The cost of each beside the others is told, not judged.
pub(super) fn lines(costs: &[Cost]) -> Vec<Line> {
    let lines = costs.iter().map(|cost| {
        let what = format!("CPU seconds for each GB, {}", cost.way.cost_name());
        let told = format!(
            "{} of the box, {} of the machine",
            spread(&cost.of_the_box),
            spread(&cost.of_the_machine)
        );
        Line::told(what, told)
    });
    let mut lines: Vec<_> = lines.collect();
    let foreign = costs.iter().flat_map(|cost| cost.foreign.iter().copied());
    let foreign: Vec<_> = foreign.collect();
    if !foreign.is_empty() {
        lines.push(Line::told(
            "CPUs that others kept busy meanwhile",
            spread(&foreign),
        ));
    }
    lines
}

impl Way {
    /// Where uplinks have no rate there is neither mobile nor telecom.
    fn cost_name(self) -> &'static str {
        match self {
            Self::Alone(_) => "TCP, forwarded",
            _ => self.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_runs_in_the_box_nothing_is_charged_to_it() {
        let cost = |way, of_the_box| Cost {
            way,
            rates: vec![900.0],
            of_the_box,
            of_the_machine: vec![1.0, 3.0, 2.0],
            foreign: vec![0.0],
        };
        let costs = [
            cost(Way::Alone(MOBILE), vec![]),
            cost(Way::Proxies, vec![0.5]),
        ];
        let text = table(&costs);
        assert!(text.contains("| TCP, forwarded | none | 2.00 (1.00 to 3.00) | 900 |"));
        assert!(text.contains("| redsocks and danted | 0.50 (0.50 to 0.50) | 2.00"));
    }
}
