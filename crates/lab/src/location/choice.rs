//! What a box chooses that measures: at first, while nothing changes, and when the best server becomes slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use super::paper::{BEST, NEXT, ORDER, TABLE, numbers};
use super::site::{Leads, PROBE_BYTES, Site};
use super::{HOLD, INTERVAL};
use crate::aim::Line;
use crate::daemon::FlexCp;
use crate::statistics::{median, quantile};
use crate::transfer::Job;

/// What was seen of a box.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Choice {
    /// Seconds until the paper's server was in use and all had been measured; `None`: never.
    first: Option<f64>,
    /// While nothing changed.
    looks: Vec<Look>,
    changes: Vec<Change>,
    probes: Probes,
}

/// A look at what the box says of its servers.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Look {
    /// Since the box was started, in seconds.
    at: f64,
    /// Places in the table, the server in use first.
    order: Vec<usize>,
    /// By place, in Mbit/s.
    carries: Vec<Option<f64>>,
    /// How often another server was used so far.
    switches: u64,
}

/// The best server became slow, and fast again.
#[derive(Clone, Debug, Serialize)]
struct Change {
    /// Seconds until the next best was in use; `None`: never.
    away: Option<f64>,
    /// Whether a download was carried by that one then.
    carried: bool,
    /// Seconds until the best was in use again.
    back: Option<f64>,
}

/// What probes have cost.
#[derive(Clone, Debug, Serialize)]
struct Probes {
    /// Since the box was started.
    seconds: f64,
    /// What the box has counted: what it sent, and the most that this may have brought back.
    counted: u64,
    /// What has reached the servers, and what those sent.
    sent: u64,
    received: u64,
}

/// The share of its rates that the best server is left with.
const SLOW: f64 = 0.25;
const LOOK: Duration = Duration::from_millis(500);
/// How long is waited for what has to come within two intervals.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a client in the LAN fetches now and then.
const LITTLE: u64 = 20_000;
const PAUSE: Duration = Duration::from_secs(2);

impl Choice {
    /// Starts a box and watches it for `stable` seconds, then through so many changes.
    ///
    /// # Errors
    /// Something could not be run.
    pub(super) fn measure(site: &Site, stable: u64, changes: u32) -> Result<Self> {
        let flexcp = site.start_box(Leads::Measured(INTERVAL))?;
        let stop = AtomicBool::new(false);
        let began = Instant::now();
        let choice = thread::scope(|scope| {
            let traffic = scope.spawn(|| fetch(site, &stop));
            let choice = watch(site, (&flexcp, began), stable, changes);
            stop.store(true, Ordering::Relaxed);
            let fetched = traffic.join().expect("a client does not panic");
            let choice = choice?;
            fetched.map(|()| choice)
        });
        let choice = choice.with_context(|| flexcp.log())?;
        flexcp.terminate()?;
        Ok(choice)
    }

    /// What the box said that a server carries, the middle of the looks while nothing changed, in Mbit/s.
    pub(super) fn carries(&self, server: usize) -> f64 {
        let each = self.looks.iter().filter_map(|look| look.carries[server]);
        median(&each.collect::<Vec<_>>())
    }

    /// What it was beside what it has to be.
    pub(super) fn lines(&self) -> Vec<Line> {
        let two = 2.0 * seconds(Duration::from_secs(INTERVAL));
        let mut lines = vec![
            Line::within(
                "server 3 in use, and all measured",
                self.first,
                seconds(PATIENCE),
            ),
            self.in_use(),
            self.as_told(),
            Line::at_most(
                format!("switches within a hold time ({HOLD} s), nothing changes"),
                f64::from(most_within(&self.switches(), HOLD)),
                1.0,
                "",
            ),
        ];
        let (away, back) = (
            self.changes.iter().map(|change| change.away),
            self.changes.iter().map(|change| change.back),
        );
        if !self.changes.is_empty() {
            let what = |what: &str, all: &[f64]| {
                let (least, middle) = (quantile(all, 0.0), median(all));
                format!(
                    "{what}, the slowest of {} (least {least:.1}, middle {middle:.1} s)",
                    all.len()
                )
            };
            let known: Vec<_> = away.clone().flatten().collect();
            let text = what("server 3 slow: server 2 in use", &known);
            lines.push(Line::within(text, slowest(away), two));
            let carried = self.changes.iter().filter(|change| change.carried).count();
            let all = self.changes.len();
            let figure = format!("{carried} of {all}");
            let met = carried == all;
            lines.push(Line::judged(
                "downloads by server 2 then",
                format!("{all} of {all}"),
                figure,
                met,
            ));
            let known: Vec<_> = back.clone().flatten().collect();
            let figure =
                slowest(back).map_or_else(|| "never".into(), |slowest| format!("{slowest:.1} s"));
            lines.push(Line::told(
                what("server 3 fast: in use again", &known),
                figure,
            ));
        }
        lines.extend(self.probes.lines());
        lines
    }

    /// The share of looks while nothing changed that had the paper's server in use.
    fn in_use(&self) -> Line {
        let looks = self
            .looks
            .iter()
            .filter(|look| look.order.first() == Some(&BEST));
        let share = percent(looks.count(), self.looks.len());
        Line::at_least("server 3 in use while nothing changes", share, 95.0, " %")
    }

    /// The share of looks at which the box told the paper's order.
    fn as_told(&self) -> Line {
        let looks = self.looks.iter().filter(|look| look.order == ORDER);
        let share = percent(looks.count(), self.looks.len());
        let what = format!("the box's own order is {}", numbers(&ORDER));
        Line::at_least(what, share, 50.0, " %")
    }

    /// When the server in use changed while nothing else did, once for each switch.
    fn switches(&self) -> Vec<f64> {
        let pairs = self.looks.windows(2);
        let each = pairs.flat_map(|pair| {
            let switches = pair[1].switches.saturating_sub(pair[0].switches);
            (0..switches).map(|_| pair[1].at)
        });
        each.collect()
    }
}

impl Probes {
    fn lines(&self) -> Vec<Line> {
        let hours = self.seconds / 3600.0;
        let an_hour = |bytes: u64| {
            let megabytes = megabytes(bytes);
            format!("{megabytes:.1} MB, {:.0} MB an hour", megabytes / hours)
        };
        let after = format!("probes in {:.0} s", self.seconds);
        let figure = format!(
            "{} of {:.0} MB (`probe_bytes`)",
            an_hour(self.counted),
            megabytes(PROBE_BYTES)
        );
        let met = megabytes(self.counted) / hours <= megabytes(PROBE_BYTES);
        vec![
            Line::told(
                format!("{after}, from the box, as servers got them"),
                an_hour(self.sent),
            ),
            Line::told(format!("{after}, from the servers"), an_hour(self.received)),
            Line::judged(
                format!("{after}, as the box counts"),
                "within `probe_bytes` at this pace",
                figure,
                met,
            ),
            Line::judged(
                "probes' bytes from servers",
                "no more than came",
                format!(
                    "{:.2} of them",
                    megabytes(self.received) / megabytes(self.sent)
                ),
                self.received <= self.sent,
            ),
        ]
    }
}

/// Fetches a little again and again, so that the box has connections.
fn fetch(site: &Site, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        site.run(&Job::down(LITTLE), None)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn watch(site: &Site, box_since: (&FlexCp, Instant), stable: u64, changes: u32) -> Result<Choice> {
    let first = until(box_since, |look| {
        look.order.first() == Some(&BEST) && look.carries.iter().all(Option::is_some)
    })?;
    eprintln!("server 3 in use after {first:?} s");
    let mut looks = vec![];
    let end = Instant::now() + Duration::from_secs(stable);
    while Instant::now() < end {
        looks.push(Look::now(box_since)?);
        thread::sleep(LOOK);
    }
    let mut seen = vec![];
    for number in 0..changes {
        let change = change(site, box_since)?;
        eprintln!("server 3 slow, and fast: {change:?}");
        seen.push(change);
        // Not always in the same part of an interval.
        thread::sleep(Duration::from_millis(3700) * number);
    }
    let told = box_since.0.show_json("servers")?;
    let [sent, received] = site.probe_bytes()?;
    Ok(Choice {
        first,
        looks,
        changes: seen,
        probes: Probes {
            seconds: seconds(box_since.1.elapsed()),
            counted: told["boxes"][0]["probe_bytes"]
                .as_u64()
                .context("no bytes of probes")?,
            sent,
            received,
        },
    })
}

fn change(site: &Site, box_since: (&FlexCp, Instant)) -> Result<Change> {
    let in_use = |server: usize| move |look: &Look| look.order.first() == Some(&server);
    site.set_share(BEST, SLOW)?;
    let away = until((box_since.0, Instant::now()), in_use(NEXT))?;
    let before = site.carried()?;
    site.run(&Job::down(1_000_000), None)?;
    let carried = site.carried()?[NEXT] > before[NEXT];
    site.set_share(BEST, 1.0)?;
    let back = until((box_since.0, Instant::now()), in_use(BEST))?;
    Ok(Change {
        away,
        carried,
        back,
    })
}

/// Looks until this is so, and says after how many seconds it was, or that it was not.
fn until(box_since: (&FlexCp, Instant), so: impl Fn(&Look) -> bool) -> Result<Option<f64>> {
    while box_since.1.elapsed() < PATIENCE {
        let look = Look::now(box_since)?;
        if so(&look) {
            return Ok(Some(look.at));
        }
        thread::sleep(LOOK / 5);
    }
    Ok(None)
}

impl Look {
    fn now((flexcp, since): (&FlexCp, Instant)) -> Result<Self> {
        let told = &flexcp.show_json("servers")?["boxes"][0];
        let servers = told["servers"].as_array().context("no servers")?;
        let (mut order, mut carries) = (vec![], vec![None; TABLE.len()]);
        for server in servers {
            let name = server["name"].as_str().unwrap_or_default();
            let number = name
                .strip_prefix("server")
                .and_then(|it| it.parse::<usize>().ok());
            let Some(at) = number
                .and_then(|it| it.checked_sub(1))
                .filter(|at| *at < TABLE.len())
            else {
                bail!("a server {name}");
            };
            order.push(at);
            carries[at] = server["throughput"].as_f64().map(|rate| rate / 1e6);
        }
        ensure!(order.len() == TABLE.len(), "{} servers", order.len());
        Ok(Self {
            at: seconds(since.elapsed()),
            order,
            carries,
            switches: told["switches"].as_u64().context("no switches")?,
        })
    }
}

/// Most of these times within so many seconds.
fn most_within(times: &[f64], span: f64) -> u32 {
    let from = |begin: &f64| {
        times
            .iter()
            .filter(|at| (*begin..*begin + span).contains(*at))
            .count()
    };
    let most = times.iter().map(from).max().unwrap_or(0);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// The longest; `None` if one never came.
fn slowest(all: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Option<Vec<_>> = all.collect();
    all.map(|all| quantile(&all, 1.0))
}

fn seconds(of: Duration) -> f64 {
    of.as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "counts of looks")]
fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: f64, order: [usize; 5], switches: u64) -> Look {
        Look {
            at,
            order: order.into(),
            carries: vec![Some(at); 5],
            switches,
        }
    }

    fn choice() -> Choice {
        Choice {
            first: Some(2.0),
            looks: vec![
                look(1.0, ORDER, 1),
                look(2.0, ORDER, 1),
                look(3.0, [2, 1, 0, 3, 4], 1),
            ],
            changes: vec![Change {
                away: Some(19.0),
                carried: true,
                back: Some(7.0),
            }],
            probes: Probes {
                seconds: 360.0,
                counted: 100_000_000,
                sent: 9_000_000,
                received: 8_000_000,
            },
        }
    }

    fn missed(choice: &Choice) -> Vec<String> {
        let lines = choice.lines().into_iter().filter(|line| !line.met);
        lines.map(|line| line.what).collect()
    }

    #[test]
    fn what_is_as_it_has_to_be_misses_nothing() {
        let choice = choice();
        assert_eq!(missed(&choice), [""; 0]);
        assert!((choice.carries(4) - 2.0).abs() < 1e-9);
        let lines = choice.lines();
        let told = |text: &str| lines.iter().any(|line| line.figure.contains(text));
        assert!(told("9.0 MB, 90 MB an hour"));
        assert!(told("100.0 MB, 1000 MB an hour of 4000 MB (`probe_bytes`)"));
    }

    #[test]
    fn each_aim_can_be_missed() {
        let mut bad = choice();
        bad.first = None;
        bad.looks = vec![
            look(1.0, [1, 2, 0, 4, 3], 1),
            look(2.0, ORDER, 2),
            look(5.9, [1, 2, 0, 4, 3], 3),
        ];
        bad.changes[0].away = Some(20.5);
        bad.changes[0].carried = false;
        bad.probes.counted = 500_000_000;
        bad.probes.received = 9_000_001;
        assert_eq!(missed(&bad).len(), 8, "{:?}", missed(&bad));
        bad.changes[0].away = None;
        assert_eq!(missed(&bad).len(), 8);
        bad.looks.clear();
        assert_eq!(missed(&bad).len(), 7);
    }

    #[test]
    fn two_switches_are_in_one_hold_time_if_less_than_that_is_between_them() {
        assert_eq!(most_within(&[], 4.0), 0);
        assert_eq!(most_within(&[1.0, 5.0, 9.0], 4.0), 1);
        assert_eq!(most_within(&[1.0, 4.9, 9.0], 4.0), 2);
    }
}
