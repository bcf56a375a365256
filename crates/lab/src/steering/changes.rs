//! Rules that change while connections are steered by them (`lab rule-changes`): a hundred changes a second, and whole sets of
//! a thousand rules. What downloads lose by that, what refused changes change, and how often the rules are saved.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use serde_json::{Value, json};

use super::caller::Caller;
use super::load::{Running, failures};
use super::scene::{Scene, Shape};
use crate::aim::{self, Line};
use crate::daemon;
use crate::fault::Direction;
use crate::statistics::median;
use crate::topology::require_root;
use crate::transfer::Job;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct RuleChanges {
    /// Clients that download at the same time
    #[arg(long, default_value_t = 64)]
    pub clients: u64,
    /// How long each turn takes, in seconds
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Turns of each kind: without changes, with a hundred a second, with whole sets
    #[arg(long, default_value_t = 31)]
    pub rounds: usize,
    /// Where rule-changes.json goes
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Whether programs in the kernel could translate.
    pub offload: bool,
    /// What was measured.
    pub lines: Vec<Line>,
}

/// What a turn does to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Nothing,
    /// A rule at a time, a hundred times a second.
    Single,
    /// A thousand rules at a time, once a second.
    Whole,
}

/// What became of changes.
#[derive(Clone, Default, Debug)]
struct Changes {
    accepted: u64,
    /// Accepted, and not in force when that was answered.
    ignored: u64,
    refused: u64,
    /// Wrong, and accepted all the same, or refused without naming the field.
    misjudged: u64,
    /// Refused, and something changed.
    changed: u64,
    /// Answered as saved.
    saved: u64,
    /// Of those: not in the file then.
    unsaved: u64,
    /// The longest time until an answer, of those that do not wait for the file.
    slowest: Duration,
    /// Single ones accepted per second, in each turn of them.
    paces: Vec<f64>,
}

impl RuleChanges {
    /// Runs it, prints the table and writes it down.
    ///
    /// # Errors
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let results = self.measure()?;
        fs::create_dir_all(&self.results)?;
        let json = serde_json::to_string_pretty(&results)?;
        let file = self.results.join("rule-changes.json");
        fs::write(&file, json + "\n").with_context(|| file.display().to_string())?;
        print!("{}", aim::table(&results.lines));
        results.judge(false)
    }

    /// Runs it.
    ///
    /// # Errors
    /// It could not be run.
    pub fn measure(&self) -> Result<Results> {
        let scene = Scene::start(Shape::FAST, RULE)?;
        let socket = scene.socket().to_owned();
        let file = scene.lab.dir().join("flexcp0.rules.json");
        let saves = Saves::watch(&file)?;
        let load = Running::jobs(&scene, self.clients, Job::down(LONG))?;
        scene.wait_for_joins(usize::try_from(self.clients)?)?;
        scene.pass(1.0);
        let mut changes = Changes::default();
        let mut number = 0;
        let mut turns = vec![];
        for round in 0..self.rounds {
            let mut order = [Turn::Nothing, Turn::Single, Turn::Whole];
            // None of them always comes behind the same one.
            order.rotate_left(round % 3);
            for turn in order {
                let from = scene.now();
                match turn {
                    Turn::Nothing => drop(scene.pass(self.seconds)),
                    _ => changes.make(turn, self.seconds, (&socket, &file), &mut number)?,
                }
                turns.push((turn, [from, scene.now()]));
            }
        }
        let (most, times) = saves.finish()?;
        load.stop();
        let (failed, why) = failures(&load.finish()?);
        let series = scene.finish()?;
        let speeds = |kind| {
            let of_kind = turns.iter().filter(|(turn, _)| *turn == kind);
            let speed = |(_, span): &(Turn, [f64; 2])| series.mbit(Direction::Down, *span);
            of_kind.map(speed).collect::<Vec<_>>()
        };
        let still = speeds(Turn::Nothing);
        let mut lines = vec![
            Line::at_most("transfers lost", failed, 0.0, &format!(" {why}")),
            Line::told("without changes", format!("{:.0} Mbit/s", median(&still))),
        ];
        for (what, turn) in [
            ("100 changes a second", Turn::Single),
            ("sets of 1,000 rules", Turn::Whole),
        ] {
            // Each beside the turn without changes of its round: the machine has its moods.
            let changed = speeds(turn);
            let parts = changed
                .iter()
                .zip(&still)
                .map(|(with, without)| with / without);
            lines.push(Line::at_least(
                format!("{THROUGHPUT}, {what}"),
                median(&parts.collect::<Vec<_>>()),
                0.95,
                "",
            ));
        }
        lines.extend(changes.lines());
        lines.push(Line::at_most("saves in a second", most as f64, 1.0, ""));
        lines.push(Line::at_least("saves", times as f64, 1.0, ""));
        Ok(Results {
            offload: !daemon::offload_is_off(),
            lines,
        })
    }
}

impl Results {
    /// Judges all lines, or all but those that turns of some seconds on a busy machine say nothing of: throughput and pace.
    ///
    /// # Errors
    /// An aim is missed.
    pub fn judge(&self, short: bool) -> Result<()> {
        let timely = |line: &&Line| line.what.starts_with(THROUGHPUT) || line.what == PACE;
        let lines = self.lines.iter().filter(|line| !short || !timely(line));
        aim::judge(&lines.cloned().collect::<Vec<_>>())
    }
}

impl Changes {
    /// Changes rules for so many seconds.
    fn make(
        &mut self,
        turn: Turn,
        seconds: f64,
        (socket, file): (&Path, &Path),
        number: &mut u64,
    ) -> Result<()> {
        // FlexCP closes one that asks for nothing for some seconds.
        let api = &mut Caller::open(socket)?;
        if turn == Turn::Whole {
            return self.make_whole(seconds, (api, file), number);
        }
        *number += 1;
        let first = *number;
        let mut other = Caller::open(socket)?;
        thread::scope(|scope| {
            // The file takes up to a second, in which others go on.
            let saved = scope.spawn(move || {
                let mut alone = Self::default();
                alone.set(&mut other, Some(file), first, 0).map(|()| alone)
            });
            let (began, before) = (Instant::now(), self.accepted);
            let mut due = began;
            while began.elapsed().as_secs_f64() < seconds {
                *number += 1;
                self.set(api, None, *number, 0)?;
                // Beside another change nobody could say what a wrong one has changed.
                if number.is_multiple_of(10) && saved.is_finished() {
                    self.try_wrong(api, *number, 0)?;
                }
                due += Duration::from_millis(10);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let accepted = (self.accepted - before) as f64;
            self.paces.push(accepted / began.elapsed().as_secs_f64());
            let alone = saved.join().map_err(|_| anyhow!("a change panicked"))?;
            self.add(&alone?);
            Ok(())
        })
    }

    /// A whole set each second.
    fn make_whole(
        &mut self,
        seconds: f64,
        (api, file): (&mut Caller, &Path),
        number: &mut u64,
    ) -> Result<()> {
        let began = Instant::now();
        let mut due = began;
        while began.elapsed().as_secs_f64() < seconds {
            *number += 1;
            let file = (*number % 3 == 1).then_some(file);
            if number.is_multiple_of(3) {
                self.try_wrong(api, *number, SET - 1)?;
            } else {
                self.set(api, file, *number, SET - 1)?;
            }
            due += Duration::from_secs(1);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.ignored += other.ignored;
        self.misjudged += other.misjudged;
        self.saved += other.saved;
        self.unsaved += other.unsaved;
    }

    /// Sets the rules with this number, behind so many others. With `file` it waits until they are saved there.
    fn set(
        &mut self,
        api: &mut Caller,
        file: Option<&Path>,
        number: u64,
        others: usize,
    ) -> Result<()> {
        let target = match file {
            Some(_) => "/v1/rules?saved=true",
            None => "/v1/rules",
        };
        let body = json!({ "rules": rules(number, others) });
        let began = Instant::now();
        let (status, answer) = api.ask("PUT", target, &body.to_string())?;
        if status != 200 {
            self.misjudged += 1;
            return Ok(());
        }
        self.accepted += 1;
        let answer = serde_json::from_str(&answer)?;
        self.ignored += u64::from(number_of(&answer) != Some(number));
        if let Some(file) = file {
            self.saved += 1;
            let kept = number_of(&serde_json::from_slice(&fs::read(file)?)?);
            self.unsaved += u64::from(kept.is_none_or(|kept| kept < number));
        } else {
            self.slowest = self.slowest.max(began.elapsed());
        }
        Ok(())
    }

    /// Asks for rules of which the last is wrong.
    fn try_wrong(&mut self, api: &mut Caller, number: u64, others: usize) -> Result<()> {
        let (_, before) = api.ask("GET", "/v1/rules", "")?;
        let mut rules = rules(number, others);
        let wrongs = [
            ("mode", json!("smalest-delay")),
            ("hold", json!("1 fortnight")),
            ("ports", json!([70_000])),
            ("clients", json!(["10.0.0.0/33"])),
            ("weight", json!(1)),
        ];
        let place = usize::try_from(number / 10 + number % 10).unwrap_or(0) % wrongs.len();
        let (key, wrong) = &wrongs[place];
        if let Some(last) = rules.last_mut() {
            last[*key] = wrong.clone();
        }
        let body = json!({ "rules": rules }).to_string();
        let (status, answer) = api.ask("PUT", "/v1/rules", &body)?;
        let named = answer.contains(&format!("rules[{others}].{key}"));
        self.refused += u64::from(status == 400);
        self.misjudged += u64::from(status != 400 || !named);
        let (_, after) = api.ask("GET", "/v1/rules", "")?;
        self.changed += u64::from(before != after);
        Ok(())
    }

    fn lines(&self) -> Vec<Line> {
        let none = |what: &str, count: u64| Line::at_most(what, count as f64, 0.0, "");
        vec![
            // Whoever wakes up late misses some.
            Line::at_least(PACE, median(&self.paces), 98.0, ""),
            none(
                "of those not in force when they were answered",
                self.ignored,
            ),
            Line::at_least("wrong changes refused", self.refused as f64, 1.0, ""),
            none(
                "right ones refused, wrong ones accepted or not named",
                self.misjudged,
            ),
            none("of those refused that changed anything", self.changed),
            Line::at_least("changes answered as saved", self.saved as f64, 1.0, ""),
            none("of those not in the file then", self.unsaved),
            Line::at_most("slowest answer", self.slowest.as_secs_f64(), 1.0, " s"),
        ]
    }
}

/// How often a file is replaced: looks at its inode every few milliseconds.
struct Saves {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Instant>>,
}

impl Saves {
    fn watch(file: &Path) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (stop, file) = (Arc::clone(&over), file.to_owned());
        let look = move || {
            let about = || {
                fs::metadata(&file)
                    .ok()
                    .map(|it| (it.ino(), it.mtime_nsec()))
            };
            let mut known = about();
            let mut times = vec![];
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
                let now = about();
                if now != known {
                    times.push(Instant::now());
                    known = now;
                }
            }
            times
        };
        let thread = thread::Builder::new().name("saves".into()).spawn(look)?;
        Ok(Self { over, thread })
    }

    /// The most in any second, and all of them.
    fn finish(self) -> Result<(usize, usize)> {
        self.over.store(true, Ordering::Relaxed);
        let times = self
            .thread
            .join()
            .map_err(|_| anyhow!("a watch panicked"))?;
        Ok((most_in_a_second(&times), times.len()))
    }
}

/// A look may come late, as much as [`LATE`].
fn most_in_a_second(times: &[Instant]) -> usize {
    let within = |first: usize| {
        let second = times[first] + Duration::from_secs(1) - LATE;
        times[first..].iter().take_while(|at| **at < second).count()
    };
    (0..times.len()).map(within).max().unwrap_or(0)
}

/// Rules for other clients, and behind them the one that the downloads have, which differs from number to number.
fn rules(number: u64, others: usize) -> Vec<Value> {
    let other = |n: usize| {
        json!({
            "name": format!("other {n}"), "mode": "active-standby", "accesses": ["a", "b"],
            "clients": [format!("10.{}.{}.0/24", 100 + n / 256, n % 256)], "ports": [1 + n % 1000, "4000-5999"],
        })
    };
    let weight = 50 + number % 7;
    let own = json!({
        "name": "case", "mode": "load-balancing", "weights": { "a": weight, "b": 100 - weight }, "hold": "1s",
        "fail_back": format!("{number}us"),
    });
    (0..others).map(other).chain([own]).collect()
}

/// The number of rules that end with the downloads', as they were set or as an answer has them.
fn number_of(rules: &Value) -> Option<u64> {
    let own = rules["rules"].as_array()?.last()?;
    let set = || own["fail_back"].as_str()?.strip_suffix("us")?.parse().ok();
    own["fail_back_us"].as_u64().or_else(set)
}

/// Lines of the results.
const THROUGHPUT: &str = "throughput";
const PACE: &str = "changes a second";
/// The rule to begin with.
const RULE: &str = "mode = \"load-balancing\"\nweights = { a = 50, b = 50 }\nhold = \"1s\"";
/// Rules of a whole set.
const SET: usize = 1000;
/// Bytes of a download: some seconds.
const LONG: u64 = 100_000_000;
/// How late a look at the file may come.
const LATE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_are_counted_in_any_second() {
        let began = Instant::now();
        let at = |all: &[u64]| {
            let times = all.iter().map(|ms| began + Duration::from_millis(*ms));
            most_in_a_second(&times.collect::<Vec<_>>())
        };
        assert_eq!(at(&[]), 0);
        assert_eq!(at(&[0, 1000, 1990, 3000]), 1, "looks come late");
        assert_eq!(at(&[0, 1000, 1900]), 2);
        assert_eq!(at(&[0, 500, 900]), 3);
    }

    #[test]
    fn each_change_is_another_and_sets_end_with_the_downloads_rule() {
        assert_ne!(rules(1, 0), rules(2, 0));
        let set = rules(3, SET - 1);
        assert_eq!(set.len(), SET);
        assert_eq!(set[SET - 1], rules(3, 0)[0]);
        let body = json!({ "rules": set });
        assert_eq!(number_of(&body), Some(3));
        let told = json!({ "rules": [{ "fail_back_us": 4 }] });
        assert_eq!(number_of(&told), Some(4));
        assert_eq!(number_of(&json!({ "rules": [] })), None);
    }

    #[test]
    fn each_aim_can_be_missed() {
        let good = Changes {
            paces: vec![20.0, 98.0, 100.0],
            refused: 100,
            saved: 3,
            ..Changes::default()
        };
        let judge = |changes: &Changes| aim::judge(&changes.lines());
        judge(&good).expect("met");
        let misses: [fn(&mut Changes); 8] = [
            |it| it.paces[1] = 97.9,
            |it| it.ignored = 1,
            |it| it.refused = 0,
            |it| it.misjudged = 1,
            |it| it.changed = 1,
            |it| it.saved = 0,
            |it| it.unsaved = 1,
            |it| it.slowest = Duration::from_millis(1001),
        ];
        assert_eq!(misses.len(), good.lines().len());
        for miss in misses {
            let mut changes = good.clone();
            miss(&mut changes);
            assert!(judge(&changes).is_err(), "{changes:?}");
        }
    }
}
