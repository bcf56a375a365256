//! How often connections move from path to path, and how soon again: from what FlexCP lists, again and again.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use crate::aim::Line;
use crate::daemon::FlexCp;
use crate::process::output;

/// Looks where each connection's data goes until it is dropped.
#[derive(Debug)]
pub(super) struct Moves {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What has been seen, by connection.
#[derive(Debug, Default)]
struct Seen {
    now: HashMap<String, (String, Option<f64>)>,
    shortest_hold: Option<f64>,
}

/// Moves of connections on paths to which nothing happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steadiness {
    /// Connections that there were.
    pub(super) connections: u64,
    /// Moves of all of them.
    pub(super) switches: u64,
    /// Payload bytes to clients that had been sent before.
    pub(super) again: u64,
    /// Segments that servers sent again.
    pub(super) segments: i64,
    /// The shortest time that a connection stayed where it was moved, in seconds; `None`: none moved twice.
    pub(super) shortest_hold: Option<f64>,
}

impl Moves {
    pub(super) fn watch(flexcp: &FlexCp) -> Result<Self> {
        let seen = Arc::new(Mutex::<Seen>::default());
        let over = Arc::new(AtomicBool::new(false));
        let mut ask = flexcp.asking(&["show", "connections", "--json"]);
        let (kept, stop) = (Arc::clone(&seen), Arc::clone(&over));
        let look = move || {
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                // One that could not answer in time is asked again; that it is gone the case finds out.
                if let Ok(now) = listed(&mut ask) {
                    let at = began.elapsed().as_secs_f64();
                    let mut seen = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.note(at, now);
                }
                thread::sleep(EVERY);
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("moves".into()).spawn(look)?;
        Ok(Self {
            seen,
            over,
            thread: Some(thread),
        })
    }

    pub(super) fn shortest_hold(&self) -> Option<f64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.shortest_hold
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has been finished")?;
        thread.join().map_err(|_| anyhow!("a watcher panicked"))?
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    /// The access of each connection at a time.
    fn note(&mut self, at: f64, now: HashMap<String, String>) {
        let mut next = HashMap::with_capacity(now.len());
        for (connection, access) in now {
            let moved = match self.now.remove(&connection) {
                Some((before, moved)) if before != access => {
                    let stayed = moved.map(|moved| at - moved);
                    let shortest = self.shortest_hold.into_iter().chain(stayed);
                    self.shortest_hold = shortest.reduce(f64::min);
                    Some(at)
                }
                Some((_, moved)) => moved,
                None => None,
            };
            next.insert(connection, (access, moved));
        }
        self.now = next;
    }
}

impl Steadiness {
    /// What is held against the rule's `hold`, in seconds, if it has one.
    pub(super) fn lines(&self, hold: Option<f64>) -> Vec<Line> {
        let moves = self.switches as f64 / self.connections as f64;
        let held = |stayed: f64, hold: f64| stayed >= hold - EVERY.as_secs_f64();
        let stayed = self.shortest_hold;
        let figure = stayed.map_or_else(
            || "none moved twice".to_owned(),
            |stayed| format!("{stayed:.1} s"),
        );
        let again = match self.switches {
            0 => "none moved".to_owned(),
            switches => format!("{:.0} bytes", self.again as f64 / switches as f64),
        };
        let what = "shortest time between two moves of one";
        let stays = match hold {
            None => Line::told(what, figure),
            Some(hold) => Line::judged(
                what,
                format!("at least {hold} s, less a look ({} s)", EVERY.as_secs_f64()),
                figure,
                stayed.is_none_or(|stayed| held(stayed, hold)),
            ),
        };
        vec![
            Line::at_most(
                "moves per connection, while nothing happens",
                moves,
                MOVES,
                "",
            ),
            stays,
            Line::told("bytes sent to clients again, per move", again),
            Line::told(
                "segments that servers sent again",
                self.segments.to_string(),
            ),
        ]
    }
}

/// The access that each connection's data goes down, by its ends and token.
pub(super) fn active(flexcp: &FlexCp) -> Result<HashMap<String, String>> {
    listed(&mut flexcp.asking(&["show", "connections", "--json"]))
}

fn listed(ask: &mut Command) -> Result<HashMap<String, String>> {
    let list: Value = serde_json::from_slice(&output(ask)?.stdout)?;
    Ok(read(&list))
}

fn read(list: &Value) -> HashMap<String, String> {
    let connections = list["connections"].as_array().into_iter().flatten();
    let active = connections.filter_map(|connection| {
        let subflows = connection["subflows"].as_array()?;
        let active = subflows.iter().find(|subflow| subflow["active"] == true)?;
        let key = format!("{} {}", connection["client"], connection["token"]);
        Some((key, active["access"].as_str()?.to_owned()))
    });
    active.collect()
}

/// Between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// A connection is led to its path once, and a few are led to another.
const MOVES: f64 = 1.5;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(looks: &[(f64, &str)]) -> Option<f64> {
        let mut seen = Seen::default();
        for (at, access) in looks {
            seen.note(*at, HashMap::from([("one".into(), (*access).to_owned())]));
        }
        seen.shortest_hold
    }

    #[test]
    fn hold_is_between_two_moves() {
        assert_eq!(seen(&[(0.0, "a"), (1.0, "b"), (5.0, "b")]), None);
        assert_eq!(seen(&[(0.0, "a"), (1.0, "b"), (4.0, "a")]), Some(3.0));
        let thrice = [(0.0, "a"), (1.0, "b"), (4.0, "a"), (4.5, "b"), (9.0, "a")];
        assert_eq!(seen(&thrice), Some(0.5));
    }

    #[test]
    fn moves_and_holds_can_be_too_many_and_too_short() {
        let good = Steadiness {
            connections: 10,
            switches: 15,
            shortest_hold: Some(0.85),
            ..Steadiness::default()
        };
        let met = |of: Steadiness| of.lines(Some(1.0)).iter().all(|line| line.met);
        assert!(met(good));
        let switches = 16;
        assert!(!met(Steadiness { switches, ..good }));
        let shortest_hold = Some(0.75);
        assert!(!met(Steadiness {
            shortest_hold,
            ..good
        }));
        // A rule without a hold is not held to one.
        let lines = Steadiness {
            shortest_hold,
            ..good
        }
        .lines(None);
        assert!(lines.iter().all(|line| line.met));
        let nobody = Steadiness::default();
        assert!(!met(nobody), "nobody was there");
    }

    #[test]
    fn active_path_is_read_from_the_list() {
        let subflow = |access, active| json!({"access": access, "active": active});
        let list = json!({"connections": [
            {"client": "x", "token": 1, "subflows": [subflow("a", false), subflow("b", true)]},
            {"client": "y", "token": 2, "subflows": [subflow("a", false)]},
        ]});
        let active = read(&list);
        assert_eq!(active.len(), 1);
        assert_eq!(active["\"x\" 1"], "b");
    }
}
