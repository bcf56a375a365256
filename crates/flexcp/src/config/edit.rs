//! Changes of single rules among others: set, placed, removed, one behind the other.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::file::Config;
use super::rule::Rule;
use super::told::{self, Told, Wrong};

/// A change of one rule.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Takes the place of the rule of its name, or is new.
    Set {
        /// The rule.
        rule: Told,
        /// There has to be none of its name.
        new: bool,
        /// The name of the one that it is placed before; `None`: it stays in its place, and a new one is the last.
        before: Option<String>,
    },
    /// The rule of this name goes.
    Remove(String),
}

/// What comes of changes.
#[derive(Debug)]
pub struct Edited {
    /// All rules, as they are told.
    pub told: Vec<Told>,
    /// The same, read and checked.
    pub rules: Vec<Rule>,
    /// So many of them were not there before.
    pub new: usize,
}

/// Makes all of `edits` to `rules`, in their order. Costs about as much as reading as many rules.
///
/// # Errors
/// With the first thing that is wrong: in a field such as `changes[3].set.hold`, or, where a rule is wrong after a change of
/// others, in the rule by its name.
pub fn edited(
    config: &Config,
    rules: impl IntoIterator<Item = Told>,
    edits: Vec<Edit>,
) -> Result<Edited, Wrong> {
    let mut list = List::of(rules);
    let mut new = 0;
    for (change, edit) in edits.into_iter().enumerate() {
        match edit {
            Edit::Set {
                rule,
                new: has_to_be_new,
                before,
            } => {
                let change = Change {
                    number: change,
                    key: if has_to_be_new { "add" } else { "set" },
                };
                let is_new = list.set(change, rule, before.as_deref())?;
                new += usize::from(is_new);
            }
            Edit::Remove(name) => {
                let place = list.names.remove(&name);
                let place =
                    place.ok_or_else(|| unknown(format!("changes[{change}].remove"), &name))?;
                list.unlink(place);
            }
        }
    }
    let (told, changes): (Vec<_>, Vec<_>) = list.in_order().into_iter().unzip();
    let name = |place: usize| match changes.get(place) {
        Some(Some(change)) => change.field(),
        _ => format!(
            "rule `{}`",
            told.get(place).and_then(named).unwrap_or_default()
        ),
    };
    let rules = told::named_rules(config, &told, name)?;
    Ok(Edited { told, rules, new })
}

fn unknown(field: String, name: &str) -> Wrong {
    Wrong::new(
        field,
        format!("there is no rule `{name}`; GET /v1/rules says which there are"),
    )
}

fn named(rule: &Told) -> Option<&str> {
    rule.get("name").and_then(Json::as_str)
}

/// Which change has put a rule where it is.
#[derive(Clone, Copy)]
struct Change {
    number: usize,
    /// "set" or "add".
    key: &'static str,
}

impl Change {
    /// The rule in it.
    fn field(self) -> String {
        format!("changes[{}].{}", self.number, self.key)
    }
}

/// Rules in their order, in which each is found by its name: a place knows its neighbours.
struct List {
    /// The first is before the first rule and behind the last, and has none itself.
    places: Vec<Place>,
    names: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Place {
    rule: Told,
    /// The change that has put it there.
    change: Option<Change>,
    previous: usize,
    next: usize,
}

impl List {
    fn of(rules: impl IntoIterator<Item = Told>) -> Self {
        let mut list = Self {
            places: vec![Place::default()],
            names: BTreeMap::new(),
        };
        for rule in rules {
            if let Some(name) = named(&rule).map(str::to_owned) {
                let place = list.add(Place {
                    rule,
                    ..Place::default()
                });
                list.link(place, END);
                list.names.insert(name, place);
            }
        }
        list
    }

    /// `true`: there was none of its name.
    fn set(&mut self, change: Change, rule: Told, before: Option<&str>) -> Result<bool, Wrong> {
        let field = || format!("{}.name", change.field());
        let beside = || format!("changes[{}].before", change.number);
        let Some(name) = named(&rule).map(str::to_owned) else {
            let said = "a rule has a name; write one like \"video\"";
            return Err(Wrong::new(field(), said));
        };
        if before == Some(name.as_str()) {
            let said = format!("rule `{name}` can't stand before itself; name another");
            return Err(Wrong::new(beside(), said));
        }
        if change.key == "add" && self.names.contains_key(&name) {
            let said =
                format!("there is a rule `{name}` already; set it, or give this one another name");
            return Err(Wrong::new(field(), said));
        }
        let before = before.map(|before| {
            let place = self.names.get(before).copied();
            place.ok_or_else(|| unknown(beside(), before))
        });
        let before = before.transpose()?;
        let known = self.names.get(&name).copied();
        let place = known.unwrap_or_else(|| self.add(Place::default()));
        self.places[place].rule = rule;
        self.places[place].change = Some(change);
        if known.is_some() && before.is_some() {
            self.unlink(place);
        }
        if known.is_none() || before.is_some() {
            self.link(place, before.unwrap_or(END));
        }
        self.names.insert(name, place);
        Ok(known.is_none())
    }

    fn add(&mut self, place: Place) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }

    /// Puts a place before another.
    fn link(&mut self, place: usize, next: usize) {
        let previous = self.places[next].previous;
        self.places[place].previous = previous;
        self.places[place].next = next;
        self.places[previous].next = place;
        self.places[next].previous = place;
    }

    fn unlink(&mut self, place: usize) {
        let Place { previous, next, .. } = self.places[place];
        self.places[previous].next = next;
        self.places[next].previous = previous;
    }

    /// Each with the change that it is from.
    fn in_order(mut self) -> Vec<(Told, Option<Change>)> {
        let mut rules = Vec::new();
        let mut place = self.places[END].next;
        while place != END {
            let Place {
                rule, change, next, ..
            } = std::mem::take(&mut self.places[place]);
            rules.push((rule, change));
            place = next;
        }
        rules
    }
}

/// The place behind the last rule.
const END: usize = 0;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::config::parse;

    fn rule(name: &str, more: Json) -> Told {
        let mut rule = more.as_object().expect("an object").clone();
        rule.insert("name".into(), name.into());
        rule.entry("mode").or_insert_with(|| "random".into());
        rule
    }

    /// A rule that narrows what it is for, so that others may stand behind it.
    fn of_port(name: &str, port: u16) -> Told {
        rule(name, json!({ "ports": [port] }))
    }

    fn set(rule: Told, before: Option<&str>) -> Edit {
        let before = before.map(str::to_owned);
        let new = false;
        Edit::Set { rule, new, before }
    }

    fn made(edits: Vec<Edit>) -> Result<Edited, Wrong> {
        let file = "[[access]]\nname = \"lte\"\nclients = [\"10.1.0.0/16\"]\n[[service]]\nname = \"web\"\n\
                    mode = \"transparent\"\ndestinations = [\"10.9.0.0/16\"]\n";
        let config = parse("flexcp.toml", file).0.expect("a configuration");
        edited(&config, ["a", "b", "c"].map(|name| of_port(name, 1)), edits)
    }

    fn order(edits: Vec<Edit>) -> String {
        let made = made(edits).expect("the changes are right");
        let names = made.rules.iter().map(|rule| rule.name.value.as_str());
        let names: Vec<_> = names.collect();
        assert_eq!(
            made.told.iter().filter_map(named).collect::<Vec<_>>(),
            names
        );
        names.join(" ")
    }

    fn wrong(edits: Vec<Edit>) -> String {
        made(edits).expect_err("something is wrong").to_string()
    }

    #[test]
    fn rules_are_placed_as_told_and_stay_where_nothing_is_told() {
        assert_eq!(order(vec![]), "a b c");
        assert_eq!(order(vec![set(of_port("d", 2), None)]), "a b c d");
        assert_eq!(order(vec![set(of_port("d", 2), Some("a"))]), "d a b c");
        assert_eq!(order(vec![set(of_port("b", 2), None)]), "a b c");
        assert_eq!(order(vec![set(of_port("c", 2), Some("a"))]), "c a b");
        assert_eq!(order(vec![set(of_port("a", 2), Some("b"))]), "a b c");
        assert_eq!(
            order(["a", "b", "c"].map(|name| Edit::Remove(name.into())).into()),
            ""
        );
        let made = made(vec![set(of_port("b", 7), None), set(of_port("d", 2), None)]);
        let made = made.expect("they are right");
        assert_eq!((made.rules[1].ports[0].value.clone(), made.new), (7..=7, 1));
    }

    #[test]
    fn changes_are_made_one_behind_the_other() {
        let edits = vec![
            Edit::Remove("b".into()),
            set(of_port("d", 2), Some("c")),
            set(of_port("e", 2), Some("d")),
            set(of_port("b", 2), None),
            Edit::Remove("d".into()),
        ];
        assert_eq!(order(edits), "a e c b");
    }

    #[test]
    fn what_is_wrong_is_named_by_the_change() {
        let good = || set(of_port("d", 2), None);
        assert_eq!(
            wrong(vec![good(), Edit::Remove("x".into())]),
            "changes[1].remove: there is no rule `x`; GET /v1/rules says which there are"
        );
        assert!(
            wrong(vec![good(), set(of_port("e", 1), Some("x"))])
                .starts_with("changes[1].before: there is no rule `x`")
        );
        assert!(
            wrong(vec![set(of_port("a", 1), Some("a"))])
                .starts_with("changes[0].before: rule `a` can't")
        );
        assert!(wrong(vec![good(), set(Told::new(), None)]).starts_with("changes[1].set.name: "));
        let bad = rule("e", json!({ "ports": [3], "hold": "1ms" }));
        assert!(
            wrong(vec![good(), set(bad.clone(), Some("a"))])
                .starts_with("changes[1].set.hold: `hold` has")
        );
        let add = |name| Edit::Set {
            rule: of_port(name, 2),
            new: true,
            before: None,
        };
        assert!(
            wrong(vec![good(), add("a")])
                .starts_with("changes[1].add.name: there is a rule `a` already; ")
        );
        assert_eq!(order(vec![Edit::Remove("a".into()), add("a")]), "b c a");
        // What is made good again is not wrong.
        assert_eq!(
            order(vec![set(bad, None), Edit::Remove("e".into())]),
            "a b c"
        );
        // One that nobody has changed.
        let all = set(rule("all", json!({})), Some("c"));
        assert!(
            wrong(vec![good(), all])
                .starts_with("rule `c`: no connection can be of this rule: all are of `all`")
        );
    }

    #[test]
    fn thousands_of_changes_take_no_time_each() {
        let started = Instant::now();
        let port = |n: usize| u16::try_from(n % 60_000 + 1).unwrap();
        let many = |n| set(of_port(&format!("rule {n}"), port(n)), Some("a"));
        let mut edits: Vec<_> = (0..10_000).map(many).collect();
        edits.extend((0..10_000).map(|n| Edit::Remove(format!("rule {n}"))));
        assert_eq!(order(edits.clone()), "a b c");
        edits.truncate(10_000);
        assert_eq!(made(edits).expect("they are right").rules.len(), 10_003);
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
    }
}
