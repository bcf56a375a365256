//! Rules that do not come from the file: objects with the keys of `[[rule]]`, read and checked as those are.

use serde_json::{Map, Value as Json};
use toml::de::DeTable;

use super::file::Config;
use super::read::Reader;
use super::rule::{self, Rule};
use super::span::{Diagnostics, Located, Severity};
use super::steering::Percent;
use super::value::{ShowDuration, ShowPorts, ShowPrefix, carrier_name};

/// A rule as it was told.
pub type Told = Map<String, Json>;

/// Why rules can't be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Wrong {
    /// Which part of them, such as `rules[2].max_rtt`.
    pub field: String,
    /// What is wrong with it and, behind a semicolon, what would be right.
    pub message: String,
}

impl Wrong {
    /// What is wrong with `field`.
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// The rules, for the services and accesses of `config`.
///
/// # Errors
/// With the first thing that is wrong, in a field such as `rules[2].max_rtt`.
pub fn rules(config: &Config, told: &[Told]) -> Result<Vec<Rule>, Wrong> {
    named_rules(config, told, |place| format!("rules[{place}]"))
}

/// The same; `field` names the rule at a place.
///
/// # Errors
/// With the first thing that is wrong, in a key of a rule that is named so.
pub(crate) fn named_rules(
    config: &Config,
    told: &[Told],
    field: impl Fn(usize) -> String,
) -> Result<Vec<Rule>, Wrong> {
    let text = Text::of(told, field)?;
    let mut found = Diagnostics::new("rules", &text.toml);
    let (document, errors) = DeTable::parse_recoverable(&text.toml);
    for error in &errors {
        let at = error.span().map_or(text.toml.len(), |span| span.start);
        found.error(at, error.message());
    }
    let root = Reader::new(
        document.get_ref(),
        ("the rules", 0),
        &["rule"],
        &[],
        &mut found,
    );
    let read = rule::read(&root, &mut found);
    let with = Config {
        rules: read,
        ..config.clone()
    };
    if !found.has_errors() {
        rule::check(&with, &mut found);
    }
    let errors = found.found().into_iter();
    let mut errors = errors.filter(|found| found.severity == Severity::Error);
    match errors.next() {
        None => Ok(with.rules),
        Some(first) => Err(Wrong::new(text.field(first.line), first.message.clone())),
    }
}

/// The rule as it would be told: what [`rules`] makes of that is the same rule.
#[must_use]
pub fn of(rule: &Rule) -> Told {
    // Each field by its name, so that none is left out.
    let Rule {
        at: _,
        name,
        services,
        servers,
        ports,
        clients,
        mode,
        accesses,
        weights,
        max_rtt,
        max_loss,
        hold,
        fail_back,
        client_backup,
        carrier,
        // Nothing but the program that FlexCP is part of can give it.
        own_mode: _,
    } = rule;
    let carrier_told = |carrier: &Located<_>| Json::from(carrier_name(carrier.value));
    let time = |time: &Located<_>| Json::from(ShowDuration(time.value).to_string());
    let weights = weights.as_ref().map(|weights| {
        let weights = weights.value.0.iter();
        let weights = weights.map(|(name, weight)| (name.clone(), Json::from(*weight)));
        Json::Object(weights.collect())
    });
    let keys = [
        ("name", Some(Json::from(name.value.as_str()))),
        ("mode", Some(Json::from(mode.value.name()))),
        ("services", list(services, String::clone)),
        ("servers", list(servers, |to| ShowPrefix(*to).to_string())),
        ("ports", list(ports, |ports| ShowPorts(ports).to_string())),
        (
            "clients",
            list(clients, |from| ShowPrefix(*from).to_string()),
        ),
        ("accesses", list(accesses, String::clone)),
        ("weights", weights),
        ("max_rtt", max_rtt.as_ref().map(time)),
        ("max_loss", max_loss.map(|loss| percent(loss.value))),
        ("hold", Some(time(hold))),
        ("fail_back", Some(time(fail_back))),
        ("client_backup", Some(Json::from(client_backup.value))),
        ("carrier", carrier.as_ref().map(carrier_told)),
    ];
    let told = keys.into_iter();
    told.filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

/// `None`: it is empty.
fn list<T>(list: &[Located<T>], show: impl Fn(&T) -> String) -> Option<Json> {
    let shown = list.iter().map(|element| Json::from(show(&element.value)));
    (!list.is_empty()).then(|| Json::Array(shown.collect()))
}

/// As a file has it.
fn percent(part: Percent) -> Json {
    match part.0 {
        whole if whole % 100 == 0 => (whole / 100).into(),
        part => (f64::from(part) / 100.0).into(),
    }
}

/// The rules as a file would have them, a line for each key.
struct Text {
    toml: String,
    /// What stands on each line.
    fields: Vec<String>,
}

impl Text {
    fn of(told: &[Told], name: impl Fn(usize) -> String) -> Result<Self, Wrong> {
        let mut text = Self {
            toml: String::new(),
            fields: Vec::new(),
        };
        for (place, rule) in told.iter().enumerate() {
            let name = name(place);
            text.line("[[rule]]", name.clone());
            for (key, value) in rule {
                let field = format!("{name}.{key}");
                let mut line = format!("{} = ", Json::from(key.as_str()));
                if !push(value, &mut line) {
                    return Err(Wrong::new(field, "null is no value; leave the key out"));
                }
                text.line(&line, field);
            }
        }
        Ok(text)
    }

    fn line(&mut self, line: &str, field: String) {
        self.toml.push_str(line);
        self.toml.push('\n');
        self.fields.push(field);
    }

    /// What stands on a line, counted from 1.
    fn field(&self, line: usize) -> String {
        let field = line.checked_sub(1).and_then(|line| self.fields.get(line));
        field.cloned().unwrap_or_else(|| "rules".into())
    }
}

/// Writes a value as TOML has it, on one line: what JSON escapes in a string is escaped alike there. `false`: there is a null
/// in it.
fn push(value: &Json, out: &mut String) -> bool {
    match value {
        Json::Null => return false,
        Json::Bool(_) | Json::Number(_) | Json::String(_) => out.push_str(&value.to_string()),
        Json::Array(elements) => {
            out.push('[');
            for element in elements {
                if !push(element, out) {
                    return false;
                }
                out.push_str(", ");
            }
            out.push(']');
        }
        Json::Object(entries) => {
            out.push_str("{ ");
            for (place, (key, element)) in entries.iter().enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push_str(" = ");
                if !push(element, out) {
                    return false;
                }
            }
            out.push_str(" }");
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::parse;

    const FILE: &str = "[[access]]\nname = \"dsl\"\nclients = [\"10.1.0.0/16\"]\n[[access]]\nname = \"lte\"\n\
                        clients = [\"10.2.0.0/16\"]\n[[service]]\nname = \"web\"\nmode = \"transparent\"\n\
                        destinations = [\"10.9.0.0/16\"]\nports = [443]\n";

    fn read(told: &Json) -> Result<Vec<Rule>, Wrong> {
        let (config, found) = parse("flexcp.toml", FILE);
        assert!(!found.has_errors(), "{found:?}");
        let told: Vec<Told> = serde_json::from_value(told.clone()).expect("objects");
        rules(&config.expect("a configuration"), &told)
    }

    fn wrong(told: &Json) -> String {
        read(told).expect_err("something is wrong").to_string()
    }

    #[test]
    fn rules_are_read_as_the_file_has_them() {
        let rules = read(&json!([
            {
                "name": "vi\"deo\n", "mode": "load-balancing", "weights": { "dsl": 30, "lte": 70 }, "max_rtt": "80ms",
                "ports": [443, "8000-8999"], "services": ["web"], "client_backup": false
            },
            { "name": "rest", "mode": "active-standby", "accesses": ["lte", "dsl"] }
        ]));
        let rules = rules.expect("they are right");
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].name.value, "vi\"deo\n");
        assert_eq!(rules[0].ports[1].value, 8000..=8999);
        assert!(!rules[0].client_backup.value);
        assert_eq!(rules[1].accesses[0].value, "lte");
        assert_eq!(read(&json!([])).expect("none is a set, too").len(), 0);
    }

    #[test]
    fn rule_is_told_as_it_was() {
        let told = json!([
            {
                "name": "vi\"deo\n", "mode": "load-balancing", "weights": { "dsl": 30, "lte": 70 }, "max_rtt": "80ms",
                "max_loss": 0.07, "ports": ["443", "8000-8999"], "services": ["web"], "servers": ["10.9.1.0/24"],
                "clients": ["2001:db8::/32", "10.1.1.1/32"], "client_backup": false, "hold": "1500ms", "fail_back": "1d"
            },
            {
                "name": "rest", "mode": "priority", "accesses": ["lte", "dsl"], "max_loss": 2, "hold": "100001us",
                "fail_back": "0s", "client_backup": true
            }
        ]);
        let rules = read(&told).expect("they are right");
        let again: Vec<_> = rules.iter().map(of).collect();
        assert_eq!(json!(again), told);
        // What was left out is told.
        let short = read(&json!([{ "name": "short", "mode": "random" }])).expect("it is right");
        let known = json!({
            "name": "short", "mode": "random", "hold": "1s", "fail_back": "5s", "client_backup": true
        });
        assert_eq!(json!(of(&short[0])), known);
        for part in 0..10_000 {
            let told = json!([{ "name": "p", "mode": "priority", "accesses": ["lte"], "max_loss": percent(Percent(part)) }]);
            let loss = read(&told).expect("each is right")[0].max_loss;
            assert_eq!(loss.map(|loss| loss.value.0), Some(part));
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        let good = json!({ "name": "one", "mode": "smallest-delay" });
        let with = |key: &str, value: Json| {
            let mut rule = good.clone();
            rule[key] = value;
            wrong(&json!([{ "name": "zero", "mode": "random", "ports": [1] }, rule]))
        };
        assert_eq!(
            with("hold", json!("5ms")),
            "rules[1].hold: `hold` has to be between 100ms and 24h; write one like \"1s\""
        );
        assert!(with("holt", json!("1s")).starts_with("rules[1].holt: unknown key `holt`"));
        assert!(
            with("services", json!(["mail"]))
                .starts_with("rules[1].services: there is no service `mail`")
        );
        assert!(with("mode", json!("fast")).starts_with("rules[1].mode: "));
        assert!(
            with("name", json!("zero")).starts_with("rules[1].name: there is a rule named `zero`")
        );
        assert_eq!(
            with("max_rtt", Json::Null),
            "rules[1].max_rtt: null is no value; leave the key out"
        );
        assert!(with("ports", json!([[null]])).contains("null"));
        assert!(
            with("ports", json!([99_999_999_999_999_999_999_f64])).starts_with("rules[1].ports: ")
        );
        assert!(with("hold", json!(u64::MAX)).starts_with("rules[1].hold: "));
        assert!(with("\u{7f}", json!(1)).starts_with("rules[1].\u{7f}: "));
        assert!(wrong(&json!([{ "mode": "random" }])).starts_with("rules[0]: "));
    }
}
