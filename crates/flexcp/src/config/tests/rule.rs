//! Rules: what can be wrong with them, and what the translator is told.

use std::time::Duration;

use flexcp_translator::{
    ActiveStandby, Automatic, LoadBalancing, Priority, Random, RoundRobin, ServiceId,
    SmallestDelay, Thresholds,
};

use super::{REVERSE, TRANSPARENT, good, plan, section};

const LTE: &str = "[[access]]\nname = 'lte'\nclients = ['10.64.0.0/10']\n";
const DSL: &str = "[[access]]\nname = 'dsl'\nclients = ['10.0.0.0/8']\n";

/// Asserts that a rule of these lines gives just this message; the first of them is the second of the file.
#[track_caller]
fn rule(lines: &str, message: &str) {
    section(&format!("[[rule]]\n{lines}"), message);
}

#[test]
fn rules_are_told_in_their_order() {
    let video = "[[rule]]\nname = 'video'\nservices = ['shop']\nservers = ['10.0.0.0/24']\nports = [443, '8000-8999']\n\
                 clients = ['10.64.0.0/10']\nmode = 'active-standby'\naccesses = ['dsl', 'lte']\nhold = '2s'\n\
                 fail_back = '1m'\n";
    let rest = "[[rule]]\nname = 'rest'\nmode = 'smallest-delay'\n";
    let config = good(&format!("{LTE}{DSL}{video}{rest}{TRANSPARENT}{REVERSE}"));
    let told = plan::translator(&config, &[vec![], vec![]], &[ServiceId(7), ServiceId(3)], 0);
    let [video, rest] = told.rules.as_slice() else {
        panic!("{:?}", told.rules);
    };
    assert_eq!(
        (&*video.name, &video.services),
        ("video", &vec![ServiceId(3)])
    );
    assert_eq!((video.servers[0].len, video.clients[0].len), (24, 10));
    assert_eq!(video.ports, [443..=443, 8000..=8999]);
    let times = [video.hold, video.fail_back];
    assert_eq!(times, [2, 60].map(Duration::from_secs));
    let accesses = [1, 0].map(flexcp_translator::AccessId).to_vec();
    let mode = format!("{:?}", ActiveStandby { accesses });
    assert_eq!(format!("{:?}", video.mode), mode);
    assert_eq!(format!("{:?}", rest.mode), format!("{SmallestDelay:?}"));
    assert!(rest.services.is_empty() && rest.ports.is_empty());
    let times = [rest.hold, rest.fail_back];
    assert_eq!(times, [1, 5].map(Duration::from_secs));
    assert!(good(TRANSPARENT).rules.is_empty());
}

#[test]
fn rule_that_is_no_section() {
    section(
        "rule = 'video'",
        "f:1:8: error: `rule` is a string; write [[rule]], in two brackets, for each",
    );
    section(
        "rule = ['video']",
        "f:1:9: error: a rule can't be a string; write a [[rule]] section",
    );
}

#[test]
fn rule_without_name_or_mode() {
    rule(
        "mode = 'smallest-delay'",
        "f:1:1: error: a rule has no `name`; write name = \"video\"",
    );
    rule(
        "name = 'video'",
        "f:1:1: error: a rule has no `mode`; write mode = \"smallest-delay\"",
    );
}

#[test]
fn rule_of_a_mode_that_nobody_knows() {
    rule(
        "name = 'video'\nmode = 'fastest'",
        "f:3:8: error: `mode`: there is no steering mode `fastest`; write \"active-standby\", \"smallest-delay\", \
         \"load-balancing\", \"priority\", \"redundant\", \"random\" or \"round-robin\"",
    );
}

#[test]
fn rule_with_a_key_that_nobody_knows() {
    rule(
        "name = 'video'\nmode = 'smallest-delay'\nport = [443]",
        "f:4:1: error: unknown key `port` in a rule; did you mean `ports`?",
    );
}

#[test]
fn rules_of_one_name() {
    rule(
        "name = 'a'\nports = [443]\nmode = 'smallest-delay'\n[[rule]]\nname = 'a'\nmode = 'smallest-delay'",
        "f:6:8: error: there is a rule named `a` already; give each its own name",
    );
}

#[test]
fn rule_that_no_connection_can_be_of() {
    rule(
        "name = 'all'\nmode = 'smallest-delay'\n[[rule]]\nname = 'b'\nports = [443]\nmode = 'smallest-delay'",
        "f:4:1: error: no connection can be of this rule: all are of `all` before it; put it there, or narrow the other",
    );
}

#[test]
fn names_that_a_rule_names_are_there() {
    rule(
        "name = 'video'\nmode = 'smallest-delay'\nservices = ['web', 'shop']",
        "f:4:20: error: there is no service `shop`; write the name of one, or a [[service]] of that name",
    );
    rule(
        "name = 'video'\nmode = 'active-standby'\naccesses = ['dsl']",
        "f:4:13: error: there is no access `dsl`; write the name of one, or a [[access]] of that name",
    );
}

#[test]
fn accesses_are_those_of_active_standby() {
    rule(
        "name = 'video'\nmode = 'active-standby'",
        "f:1:1: error: a rule of active-standby names no `accesses`; write the active one first, like accesses = [\"dsl\", \
         \"lte\"]",
    );
    section(
        &format!("{DSL}[[rule]]\nname = 'video'\nmode = 'smallest-delay'\naccesses = ['dsl']"),
        "f:7:13: error: `accesses` is for active-standby, priority and redundant alone, as smallest-delay takes all of them; remove it",
    );
}

#[test]
fn keys_of_one_mode_are_not_for_others() {
    let of = |lines: &str, message: &str| {
        section(&format!("{DSL}[[rule]]\nname = 'video'\n{lines}"), message);
    };
    of(
        "mode = 'random'\nweights = { dsl = 1 }",
        "f:7:11: error: `weights` is for load-balancing alone, not random; remove it",
    );
    of(
        "mode = 'round-robin'\nmax_rtt = '50ms'",
        "f:7:11: error: `max_rtt` is for load-balancing, priority and redundant alone, not round-robin; remove it",
    );
    of(
        "mode = 'smallest-delay'\nmax_loss = 2",
        "f:7:12: error: `max_loss` is for load-balancing, priority and redundant alone, not smallest-delay; remove it",
    );
    of(
        "mode = 'priority'\naccesses = ['dsl']",
        "f:4:1: error: a rule of priority does not say when an access is congested; write max_rtt = \"50ms\" or max_loss = \
         2, or take active-standby",
    );
    rule(
        "name = 'video'\nmode = 'random'",
        "f:3:8: error: random tells paths apart by their accesses, and there are none; write an [[access]] for each",
    );
}

#[test]
fn weights_and_thresholds_are_bounded() {
    let of = |lines: &str, message: &str| {
        let mode = "mode = 'load-balancing'";
        section(
            &format!("{DSL}[[rule]]\nname = 'video'\n{mode}\n{lines}"),
            message,
        );
    };
    of(
        "weights = { dsl = 1, lte = 1 }",
        "f:7:11: error: there is no access `lte`; write the name of one, or a [[access]] of that name",
    );
    of(
        "weights = { dsl = 0 }",
        "f:7:11: error: no access has a weight; write them like { dsl = 30, lte = 70 }, or remove `weights`: connections go \
         where they fare best then",
    );
    for weight in ["-1", "1000001"] {
        of(
            &format!("weights = {{ dsl = {weight} }}"),
            "f:7:11: error: `weights`: the weight of `dsl` has to be a number from 0 to 1000000",
        );
    }
    of(
        "weights = { dsl = 'all' }",
        "f:7:11: error: `weights`: `dsl`: a string is no number",
    );
    for rtt in ["'999us'", "'61s'"] {
        of(
            &format!("max_rtt = {rtt}"),
            "f:7:11: error: `max_rtt` has to be between 1ms and 1m; write one like \"50ms\"",
        );
    }
    for loss in ["-0.5", "100", "nan"] {
        let said = if loss == "nan" { "NaN" } else { loss };
        of(
            &format!("max_loss = {loss}"),
            &format!(
                "f:7:12: error: `max_loss`: {said} is no part of a whole; write percent, like 2 or 0.5"
            ),
        );
    }
}

#[test]
fn modes_are_told_with_what_they_take() {
    let told = |lines: &str| {
        let rule = format!("[[rule]]\nname = 'video'\n{lines}\n");
        let config = good(&format!("{LTE}{DSL}{rule}{TRANSPARENT}"));
        let told = plan::translator(&config, &[vec![]], &[ServiceId(7)], 0);
        let rule = &told.rules[0];
        (format!("{:?}", rule.mode), rule.heeds_backup)
    };
    let [lte, dsl] = [0, 1].map(flexcp_translator::AccessId);
    let thresholds = Thresholds {
        rtt: Some(Duration::from_millis(80)),
        loss: Some(50),
    };
    let limits = "max_rtt = '80ms'\nmax_loss = 0.5";
    let balanced = LoadBalancing {
        weights: vec![(dsl, 30), (lte, 70)],
        thresholds,
    };
    let weights = "weights = { dsl = 30, lte = 70 }";
    assert_eq!(
        told(&format!("mode = 'load-balancing'\n{weights}\n{limits}")),
        (format!("{balanced:?}"), true)
    );
    let automatic = Automatic { thresholds };
    assert_eq!(
        told(&format!(
            "mode = 'load-balancing'\n{limits}\nclient_backup = false"
        )),
        (format!("{automatic:?}"), false)
    );
    let priority = Priority {
        accesses: vec![dsl, lte],
        thresholds,
    };
    assert_eq!(
        told(&format!(
            "mode = 'priority'\naccesses = ['dsl', 'lte']\n{limits}"
        ))
        .0,
        format!("{priority:?}")
    );
    assert_eq!(told("mode = 'random'").0, format!("{Random:?}"));
    assert_eq!(told("mode = 'round-robin'").0, format!("{RoundRobin:?}"));
}

#[test]
fn times_of_a_rule_are_bounded() {
    for hold in ["'99ms'", "0", "'25h'"] {
        rule(
            &format!("name = 'video'\nmode = 'smallest-delay'\nhold = {hold}"),
            "f:4:8: error: `hold` has to be between 100ms and 24h; write one like \"1s\"",
        );
    }
    rule(
        "name = 'video'\nmode = 'smallest-delay'\nfail_back = '25h'",
        "f:4:13: error: `fail_back` can't be more than 24h; write one like \"5s\"",
    );
}
