//! Rules that do not come from the file: objects with the keys of `[[rule]]`, read and checked as those are.

use serde_json::{Map, Value as Json};
use toml::de::DeTable;

use super::file::Config;
use super::read::Reader;
use super::rule::{self, Rule};
use super::span::{Diagnostics, Severity};

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

/// The rules, for the services and accesses of `config`.
///
/// # Errors
/// With the first thing that is wrong.
pub fn rules(config: &Config, told: &[Told]) -> Result<Vec<Rule>, Wrong> {
    let text = Text::of(told)?;
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
        Some(first) => Err(Wrong {
            field: text.field(first.line),
            message: first.message.clone(),
        }),
    }
}

/// The rules as a file would have them, a line for each key.
struct Text {
    toml: String,
    /// What stands on each line.
    fields: Vec<String>,
}

impl Text {
    fn of(told: &[Told]) -> Result<Self, Wrong> {
        let mut text = Self {
            toml: String::new(),
            fields: Vec::new(),
        };
        for (place, rule) in told.iter().enumerate() {
            text.line("[[rule]]", format!("rules[{place}]"));
            for (key, value) in rule {
                let field = format!("rules[{place}].{key}");
                let mut line = format!("{} = ", Json::from(key.as_str()));
                if !push(value, &mut line) {
                    return Err(Wrong {
                        field,
                        message: "null is no value; leave the key out".into(),
                    });
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
