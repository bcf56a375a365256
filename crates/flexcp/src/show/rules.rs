//! `flexcp show rules`.

use super::align;
use crate::control::view::{OneRule, Rule, Rules, Source};

/// A line on where they come from, and a table with a line for each, in their order.
#[must_use]
pub fn rules(rules: &Rules) -> String {
    let source = match rules.source {
        Source::File => "of the configuration file",
        Source::Api => "set by the API",
    };
    if rules.rules.is_empty() {
        return format!("no rules, {source}\n");
    }
    let header = HEADER.map(String::from).to_vec();
    let rows = [header].into_iter().chain(rules.rules.iter().map(row));
    let lines = align(&rows.collect::<Vec<_>>());
    let table: String = lines.into_iter().map(|line| line + "\n").collect();
    format!("rules {source}\n{table}")
}

/// As it may stand in the configuration file.
#[must_use]
pub fn rule(rule: &OneRule) -> String {
    let document = serde_json::json!({ "rule": [rule.keys] });
    // Strings, numbers, lists and one table: all of it has a form in TOML.
    toml::to_string(&document).unwrap_or_default()
}

fn row(rule: &Rule) -> Vec<String> {
    vec![
        rule.name.clone(),
        rule.mode.clone(),
        accesses(rule),
        limits(rule),
        time(rule.hold_us),
        time(rule.fail_back_us),
        traffic(rule),
    ]
}

/// "lte,dsl", or "dsl:30,lte:70" with weights.
fn accesses(rule: &Rule) -> String {
    let weights = rule.weights.iter().flatten();
    let weighed = weights.map(|(name, weight)| format!("{name}:{weight}"));
    let all: Vec<_> = rule.accesses.iter().cloned().chain(weighed).collect();
    or_dash(all.join(","))
}

/// "rtt<80ms loss<2%".
fn limits(rule: &Rule) -> String {
    let rtt = rule.max_rtt_us.map(|rtt| format!("rtt<{}", time(rtt)));
    let loss = rule.max_loss.map(|loss| match loss % 100 {
        0 => format!("loss<{}%", loss / 100),
        part => format!("loss<{}.{part:02}%", loss / 100),
    });
    let both: Vec<_> = rtt.into_iter().chain(loss).collect();
    or_dash(both.join(" "))
}

/// "service web to 10.9.1.0/24 port 443 from 10.1.0.0/16", or "all".
fn traffic(rule: &Rule) -> String {
    let parts = [
        ("service", &rule.services),
        ("to", &rule.servers),
        ("port", &rule.ports),
        ("from", &rule.clients),
    ];
    let told = parts.iter().filter(|(_, names)| !names.is_empty());
    let mut all: Vec<_> = told
        .map(|(what, names)| format!("{what} {}", names.join(",")))
        .collect();
    if all.is_empty() {
        all.push("all".into());
    }
    if let Some(carrier) = &rule.carrier {
        all.push(format!("(carrier {carrier})"));
    }
    if !rule.client_backup {
        all.push("(the client's backup flag does not count)".into());
    }
    all.join(" ")
}

/// "1s", "1500ms", "30us".
fn time(micros: u64) -> String {
    match micros {
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
        _ => format!("{micros}us"),
    }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

const HEADER: [&str; 7] = [
    "RULE",
    "MODE",
    "ACCESSES",
    "LIMITS",
    "HOLD",
    "FAIL-BACK",
    "CONNECTIONS",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::control::VERSION;

    fn all() -> Rules {
        let strings = |text: &str| text.split_whitespace().map(String::from).collect();
        let video = Rule {
            name: "video".into(),
            services: strings("web"),
            servers: strings("10.9.1.0/24 2001:db8::/32"),
            ports: strings("443 8000-8999"),
            clients: strings("10.1.0.0/16"),
            mode: "active-standby".into(),
            accesses: strings("lte dsl"),
            hold_us: 1_500_000,
            fail_back_us: 60_000_000,
            weights: None,
            max_rtt_us: None,
            max_loss: None,
            client_backup: false,
            carrier: Some("split".into()),
        };
        let rest = Rule {
            name: "rest".into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode: "load-balancing".into(),
            accesses: vec![],
            weights: Some([("dsl".into(), 30), ("lte".into(), 70)].into()),
            max_rtt_us: Some(80_000),
            max_loss: Some(205),
            client_backup: true,
            carrier: None,
            ..video.clone()
        };
        Rules {
            version: VERSION,
            generation: 1,
            source: Source::Api,
            rules: vec![video, rest],
        }
    }

    #[test]
    fn rules_are_aligned_in_their_order() {
        assert_eq!(
            rules(&all()),
            "\
rules set by the API
RULE   MODE            ACCESSES       LIMITS               HOLD    FAIL-BACK  CONNECTIONS
video  active-standby  lte,dsl        -                    1500ms  60s        service web to 10.9.1.0/24,2001:db8::/32 port 443,8000-8999 from 10.1.0.0/16 (carrier split) (the client's backup flag does not count)
rest   load-balancing  dsl:30,lte:70  rtt<80ms loss<2.05%  1500ms  60s        all
"
        );
    }

    #[test]
    fn no_rules() {
        let none = Rules {
            source: Source::File,
            rules: vec![],
            ..all()
        };
        assert_eq!(rules(&none), "no rules, of the configuration file\n");
    }

    #[test]
    fn one_rule_is_shown_as_the_file_has_it() {
        let keys = json!({ "name": "rest", "mode": "load-balancing", "ports": ["443"], "weights": { "dsl": 30 }, "max_loss": 0.5 });
        let one = OneRule {
            version: VERSION,
            generation: 1,
            source: Source::Api,
            place: 1,
            rule: all().rules[1].clone(),
            keys: keys.as_object().unwrap().clone(),
        };
        let shown = rule(&one);
        assert!(shown.starts_with("[[rule]]\n"), "{shown}");
        let read: serde_json::Value = toml::from_str(&shown).unwrap();
        assert_eq!(read, json!({ "rule": [keys] }));
    }
}
