//! Documents, what they become, and what is refused.

use serde_json::{Value as Json, json};

use super::*;
use crate::config::parse;

fn config() -> Config {
    let file = "[[access]]\nname = \"lte\"\nclients = [\"10.1.0.0/16\"]\n[[access]]\nname = \"wifi\"\n\
                clients = [\"10.2.0.0/16\"]\n[[service]]\nname = \"web\"\nmode = \"transparent\"\n\
                destinations = [\"10.9.0.0/16\"]\n";
    let (config, found) = parse("flexcp.toml", file);
    assert!(!found.has_errors(), "{found}");
    config.expect("a configuration")
}

/// A multi-access rule of active-standby, changed as `more` says: null takes a key out.
fn mar(more: &Json) -> Json {
    let mut mar = json!({
        "mar_id": 1, "precedence": 10, "steering_functionality": "mptcp", "steering_mode": "active-standby",
        "3gpp": { "far_id": 1, "priority": "standby" }, "non_3gpp": { "far_id": 2, "priority": "active" },
    });
    for (key, value) in more.as_object().expect("an object") {
        mar[key] = value.clone();
    }
    mar
}

fn document(mars: &[Json]) -> Json {
    json!({ "accesses": { "3gpp": "lte", "non_3gpp": "wifi" }, "mars": mars })
}

fn made(mars: &[Json]) -> Json {
    let (told, rules) = rules(&config(), &document(mars)).expect("it can be honoured");
    assert_eq!(told.len(), rules.len());
    json!(told)
}

/// What stands in the one rule, without its name.
fn one(more: &Json) -> Json {
    let mut rule = made(&[mar(more)])[0].take();
    assert_eq!(rule["name"], "mar-1");
    rule.as_object_mut().expect("an object").remove("name");
    rule
}

fn wrong(more: &Json) -> String {
    let error = rules(&config(), &document(&[mar(more)])).expect_err("it can't be honoured");
    assert!(error.message.contains("; "), "no remedy: {error}");
    error.to_string()
}

fn weights(cellular: u8, other: u8) -> Json {
    json!({
        "steering_mode": "load-balancing", "3gpp": { "far_id": 1, "weight": cellular },
        "non_3gpp": { "far_id": 2, "weight": other },
    })
}

fn with(mut base: Json, more: Json) -> Json {
    for (key, value) in more.as_object().expect("an object") {
        base[key] = value.clone();
    }
    base
}

fn ranks(mode: &str, cellular: &str, other: &str) -> Json {
    json!({
        "steering_mode": mode, "3gpp": { "far_id": 1, "priority": cellular }, "non_3gpp": { "far_id": 2, "priority": other },
    })
}

fn without_ranks(mode: &str) -> Json {
    json!({ "steering_mode": mode, "3gpp": { "far_id": 1 }, "non_3gpp": { "far_id": 2 } })
}

#[test]
fn modes_become_those_of_rules() {
    assert_eq!(
        one(&json!({})),
        json!({ "mode": "active-standby", "accesses": ["wifi", "lte"] })
    );
    let other_way = ranks("active-standby", "active", "standby");
    assert_eq!(
        one(&other_way),
        json!({ "mode": "active-standby", "accesses": ["lte", "wifi"] })
    );
    assert_eq!(
        one(&without_ranks("smallest-delay")),
        json!({ "mode": "smallest-delay" })
    );
    let split = json!({ "mode": "load-balancing", "weights": { "lte": 30, "wifi": 70 } });
    assert_eq!(one(&weights(30, 70)), split);
    assert_eq!(
        one(&weights(100, 0))["weights"],
        json!({ "lte": 100, "wifi": 0 })
    );
    let limited = with(
        weights(30, 70),
        json!({ "thresholds": { "rtt_ms": 80, "plr_pct": 2 } }),
    );
    let limits = json!({ "max_rtt": "80ms", "max_loss": 2 });
    assert_eq!(one(&limited), with(split, limits));
    let free = with(weights(30, 70), json!({ "indicator": { "albi": true } }));
    assert_eq!(one(&free), json!({ "mode": "load-balancing" }));
    let free = with(
        without_ranks("load-balancing"),
        json!({ "indicator": { "albi": true } }),
    );
    assert_eq!(one(&free), json!({ "mode": "load-balancing" }));
    let priority = with(
        ranks("priority-based", "low", "high"),
        json!({ "thresholds": { "plr_pct": 0 } }),
    );
    assert_eq!(
        one(&priority),
        json!({ "mode": "priority", "accesses": ["wifi", "lte"], "max_loss": 0 })
    );
}

#[test]
fn numbers_that_say_nothing_here_are_taken() {
    let told = json!({
        "3gpp": { "far_id": 4_294_967_295_u32, "priority": "standby", "urr_ids": [1, 2], "rat_type": 6 },
        "indicator": { "albi": false, "ueai": false },
    });
    assert_eq!(one(&told), one(&json!({})));
}

#[test]
fn traffic_is_told_by_descriptors_or_flow_descriptions() {
    let traffic = json!({
        "services": ["web"], "servers": ["10.9.1.0/24"], "ports": [443, "8000-8999"], "clients": ["10.2.0.0/16"],
    });
    let same = one(&json!({ "traffic": traffic }));
    assert_eq!(same, with(one(&json!({})), traffic));
    let filters = json!({ "sdf_filters": [
        "permit out ip from 10.9.1.0/24 443,8000-8999 to assigned", "permit out 6 from any to 10.2.0.0/16",
    ] });
    let rules = made(&[mar(&filters)]);
    assert_eq!(
        (&rules[0]["name"], &rules[1]["name"]),
        (&json!("mar-1"), &json!("mar-1.2"))
    );
    assert_eq!(
        (&rules[0]["servers"], &rules[0]["ports"]),
        (&json!(["10.9.1.0/24"]), &json!(["443", "8000-8999"]))
    );
    assert_eq!(
        (&rules[0]["clients"], &rules[1]["clients"]),
        (&Json::Null, &json!(["10.2.0.0/16"]))
    );
    assert_eq!(rules[1]["servers"], Json::Null);
}

#[test]
fn precedence_makes_the_order() {
    let of = |id: u16, precedence: u32| {
        mar(&json!({ "mar_id": id, "precedence": precedence, "traffic": { "ports": [id] } }))
    };
    let all = made(&[of(7, 30), of(8, 10), of(9, 4_294_967_295), of(65_535, 20)]);
    let names: Vec<_> = (0..4).map(|place| all[place]["name"].clone()).collect();
    assert_eq!(
        json!(names),
        json!(["mar-8", "mar-65535", "mar-7", "mar-9"])
    );
    assert_eq!(made(&[]), json!([]));
    let refused = |mars: &[Json]| {
        rules(&config(), &document(mars))
            .expect_err("it is ambiguous")
            .field
    };
    assert_eq!(refused(&[of(1, 1), of(2, 1)]), "mars[1].precedence");
    assert_eq!(refused(&[of(1, 1), of(1, 2)]), "mars[1].mar_id");
    // One that all fits is before another.
    assert_eq!(
        refused(&[of(1, 3), mar(&json!({ "mar_id": 2, "precedence": 2 }))]),
        "mars[0]"
    );
}

#[test]
fn what_can_not_be_honoured_is_named_by_its_field_with_the_reason() {
    let refused = |more: Json, starts: &str| {
        let said = wrong(&more);
        assert!(said.starts_with(starts), "{said}");
    };
    for functionality in ["atsss-ll", "mpquic"] {
        refused(
            json!({ "steering_functionality": functionality }),
            "mars[0].steering_functionality: FlexCP steers connections of MPTCP alone; ",
        );
    }
    refused(
        json!({ "transport_mode": "datagram-1" }),
        "mars[0].transport_mode: it is for MPQUIC",
    );
    refused(
        json!({ "suspend": true }),
        "mars[0].suspend: redundant sending",
    );
    refused(
        json!({ "resume": false }),
        "mars[0].resume: redundant sending",
    );
    let balanced = |more| with(weights(50, 50), more);
    refused(
        balanced(json!({ "indicator": { "albi": true, "ueai": true } })),
        "mars[0].indicator: ",
    );
    refused(
        balanced(json!({ "indicator": { "ueai": true } })),
        "mars[0].indicator.ueai: ",
    );
    refused(
        json!({ "indicator": { "albi": true } }),
        "mars[0].indicator.albi: it is for load-balancing",
    );
    let limits = json!({ "thresholds": { "rtt_ms": 50 } });
    let free = with(limits.clone(), json!({ "indicator": { "albi": true } }));
    refused(
        balanced(free),
        "mars[0].thresholds: they are for a fixed split",
    );
    refused(
        limits.clone(),
        "mars[0].thresholds: they are for load-balancing",
    );
    refused(
        with(without_ranks("smallest-delay"), limits),
        "mars[0].thresholds: they are for",
    );
    refused(
        balanced(json!({ "thresholds": {} })),
        "mars[0].thresholds: there is none",
    );
    refused(
        ranks("priority-based", "high", "low"),
        "mars[0].thresholds: FlexCP tells by them",
    );
    refused(
        weights(50, 49),
        "mars[0].3gpp.weight: the weights of both accesses have to sum to 100",
    );
    refused(
        weights(200, 156),
        "mars[0].3gpp.weight: the weights of both",
    );
    refused(
        without_ranks("load-balancing"),
        "mars[0].3gpp.weight: load-balancing takes",
    );
    let half = json!({ "steering_mode": "load-balancing", "3gpp": { "far_id": 1, "weight": 100 }, "non_3gpp": { "far_id": 2 } });
    refused(half, "mars[0].non_3gpp.weight: load-balancing takes");
    let weighed = json!({ "non_3gpp": { "far_id": 1, "priority": "active", "weight": 1 } });
    refused(weighed, "mars[0].non_3gpp.weight: it is for load-balancing");
}

#[test]
fn priorities_have_to_fit_the_mode() {
    for (mode, cellular, other, field) in [
        ("active-standby", "active", "active", "non_3gpp"),
        ("active-standby", "active", "no-standby", "non_3gpp"),
        ("active-standby", "high", "low", "3gpp"),
        ("active-standby", "standby", "low", "non_3gpp"),
        ("priority-based", "high", "high", "non_3gpp"),
        ("priority-based", "primary", "secondary", "3gpp"),
        ("redundant", "primary", "low", "non_3gpp"),
        ("redundant", "active", "standby", "3gpp"),
        ("smallest-delay", "high", "low", "3gpp"),
        ("load-balancing", "high", "low", "3gpp"),
    ] {
        let said = wrong(&with(
            ranks(mode, cellular, other),
            json!({ "thresholds": { "rtt_ms": 5 } }),
        ));
        let expected = format!("mars[0].{field}.priority: ");
        assert!(
            said.starts_with(&expected),
            "{mode} {cellular} {other}: {said}"
        );
    }
    assert!(wrong(&without_ranks("active-standby")).starts_with("mars[0].3gpp.priority: "));
    let half = json!({ "non_3gpp": { "far_id": 2 } });
    assert!(wrong(&half).starts_with("mars[0].non_3gpp.priority: "));
}

/// Whether the validator knows the mode or not: a refusal names the document's field.
#[test]
fn redundant_sending_is_told_by_its_name() {
    for (ranked, accesses) in [(false, json!(null)), (true, json!(["wifi"]))] {
        let base = match ranked {
            true => ranks("redundant", "secondary", "primary"),
            false => without_ranks("redundant"),
        };
        let document = document(&[mar(&with(base, json!({ "thresholds": { "plr_pct": 1 } })))]);
        match rules(&config(), &document) {
            Ok((told, _)) => {
                let known = (&json!("redundant"), &accesses, &json!(1));
                let rule = json!(told)[0].take();
                assert_eq!((&rule["mode"], &rule["accesses"], &rule["max_loss"]), known);
            }
            Err(error) => assert_eq!(error.field, "mars[0].steering_mode", "{error}"),
        }
    }
}

#[test]
fn what_the_validator_says_is_named_by_the_documents_field() {
    let limits = |limits: Json| with(weights(50, 50), json!({ "thresholds": limits }));
    assert!(
        wrong(&limits(json!({ "rtt_ms": 0 })))
            .starts_with("mars[0].thresholds.rtt_ms: `max_rtt` has to be")
    );
    assert!(wrong(&limits(json!({ "rtt_ms": 65_535 }))).starts_with("mars[0].thresholds.rtt_ms: "));
    assert!(wrong(&limits(json!({ "plr_pct": 100 }))).starts_with("mars[0].thresholds.plr_pct: "));
    for (key, value) in [
        ("services", "mail"),
        ("servers", "here"),
        ("ports", "http"),
        ("clients", "10.2.0.1/16"),
    ] {
        let said = wrong(&json!({ "traffic": { key: [value] } }));
        assert!(
            said.starts_with(&format!("mars[0].traffic.{key}: ")),
            "{said}"
        );
    }
    for filter in [
        "deny out ip from any to assigned",
        "permit in ip from any to assigned",
        "permit out 17 from any to assigned",
        "permit out ip to assigned",
        "permit out ip from any",
        "permit out ip from any 443",
        "permit out ip from here to assigned",
        "permit out ip from any to !10.0.0.0/8",
        "permit out ip from any to assigned 80",
        "permit out ip from any http to assigned",
        "permit out ip from any to assigned established",
        "",
    ] {
        let good = "permit out ip from 10.9.0.0/16 to assigned";
        let said = wrong(&json!({ "sdf_filters": [good, filter] }));
        assert!(said.starts_with("mars[0].sdf_filters[1]: "), "{said}");
    }
    let twice = json!({ "traffic": {}, "sdf_filters": ["permit out ip from any to any"] });
    assert!(wrong(&twice).starts_with("mars[0].sdf_filters: "));
}

#[test]
fn what_has_the_wrong_form_is_named_by_its_field() {
    let named = |more: Json| {
        let said = wrong(&more);
        said.split(':').next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        named(json!({ "steering_mode": "fast" })),
        "mars[0].steering_mode"
    );
    assert_eq!(named(json!({ "mar_id": 65_536 })), "mars[0].mar_id");
    assert_eq!(named(json!({ "mar": 1 })), "mars[0].mar");
    assert_eq!(
        named(json!({ "3gpp": { "far_id": -1 } })),
        "mars[0].3gpp.far_id"
    );
    assert_eq!(named(json!({ "3gpp": {} })), "mars[0].3gpp");
    assert_eq!(
        named(json!({ "thresholds": { "rtt_ms": 70_000 } })),
        "mars[0].thresholds.rtt_ms"
    );
    let of = |document: Json| rules(&config(), &document).expect_err("it is none").field;
    assert_eq!(of(json!([])), "the body");
    assert_eq!(of(json!({ "mars": [] })), "the body");
    let bound = |cellular: &str, other: &str| {
        of(json!({ "accesses": { "3gpp": cellular, "non_3gpp": other }, "mars": [] }))
    };
    assert_eq!(bound("5g", "wifi"), "accesses.3gpp");
    assert_eq!(bound("lte", "dsl"), "accesses.non_3gpp");
    assert_eq!(bound("lte", "lte"), "accesses.non_3gpp");
}
