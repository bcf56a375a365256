//! The metrics, as Prometheus reads them.

use std::collections::{BTreeMap, BTreeSet};

use flexcp_translator::DropReason;

use super::*;

/// A metric's family.
#[derive(Default, Debug)]
struct Family {
    help: String,
    kind: String,
    samples: Vec<(String, f64)>,
}

/// Reads the text format 0.0.4, and refuses what is not described before it comes.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name, rest) = (
                words.next().unwrap(),
                words.next().unwrap(),
                words.next().unwrap(),
            );
            let family = families.entry(name.into()).or_default();
            let field = match what {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                _ => panic!("{line}"),
            };
            assert!(field.is_empty(), "twice: {line}");
            *field = rest.into();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let labels = series[name.len()..].to_owned();
            let family = families
                .get_mut(name)
                .unwrap_or_else(|| panic!("not described: {line}"));
            assert!(!family.kind.is_empty() && !family.help.is_empty(), "{line}");
            assert!(
                family.samples.iter().all(|(other, _)| *other != labels),
                "twice: {line}"
            );
            family.samples.push((labels, value.parse().unwrap()));
        }
    }
    families
}

fn scraped(served: &Served) -> BTreeMap<String, Family> {
    let (status, head, body) = exchanged(&served.path(), "GET", "/metrics");
    assert_eq!(status, 200, "{body}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    families(&body)
}

#[test]
fn every_metric_is_described_and_has_its_unit_in_its_name() {
    let served = Served::by(vec![played(), played()]);
    let families = scraped(&served);
    for (name, family) in &families {
        assert!(name.starts_with("flexcp_"), "{name}");
        assert!(
            family.help.ends_with('.') && !family.help.contains(".."),
            "{name}: {}",
            family.help
        );
        assert_eq!(
            family.kind == "counter",
            name.ends_with("_total"),
            "{name}: {}",
            family.kind
        );
        assert!(
            ["counter", "gauge"].contains(&family.kind.as_str()),
            "{name}"
        );
        for unit in ["_us", "_ms", "_micros", "_kb"] {
            assert!(!name.ends_with(unit), "{name}");
        }
        let says = |word: &str| family.help.starts_with(word);
        assert!(
            !says("Bytes") || name.contains("_bytes"),
            "{name}: {}",
            family.help
        );
        assert!(
            !says("Seconds") || name.contains("_seconds"),
            "{name}: {}",
            family.help
        );
    }
    // Each that FlexCP counts is among them, of each worker.
    for (name, _) in Counters::default().iter() {
        let family = &families[&format!("flexcp_{name}_total")];
        let labels: Vec<_> = family
            .samples
            .iter()
            .map(|(labels, _)| labels.as_str())
            .collect();
        assert_eq!(labels, ["{worker=\"0\"}", "{worker=\"1\"}"], "{name}");
    }
    for (name, _) in Gauges::default().iter() {
        assert!(families.contains_key(&format!("flexcp_{name}")), "{name}");
    }
    for (name, _) in CarrierCounters::default().iter() {
        assert!(
            families.contains_key(&format!("flexcp_carrier_{name}_total")),
            "{name}"
        );
    }
    assert_eq!(
        families["flexcp_packets_dropped_total"].samples.len(),
        2 * DropReason::ALL.len()
    );
    let causes = Counters::default().causes;
    assert_eq!(
        families["flexcp_decisions_total"].samples.len(),
        2 * causes.iter().count()
    );
}

#[test]
fn metrics_are_the_workers_numbers() {
    let served = Served::by(vec![played(), played()]);
    let families = scraped(&served);
    let value = |name: &str, labels: &str| {
        let mut samples = families[name].samples.iter();
        let sample = samples.find(|(of, _)| of == labels);
        sample
            .unwrap_or_else(|| panic!("{name}{labels}: {:?}", families[name]))
            .1
    };
    for (name, labels, expected) in [
        ("flexcp_packets_in_total", "{worker=\"1\"}", 10.0),
        ("flexcp_connections_opened_total", "{worker=\"0\"}", 5.0),
        ("flexcp_carrier_send_failed_total", "{worker=\"0\"}", 2.0),
        ("flexcp_flows", "{worker=\"0\"}", 3.0),
        ("flexcp_memory_budget_bytes", "{worker=\"0\"}", 5e6),
        (
            "flexcp_packets_dropped_total",
            "{worker=\"0\",reason=\"malformed\"}",
            0.0,
        ),
        (
            "flexcp_decisions_total",
            "{worker=\"0\",decision=\"plain_syn\",cause=\"no_option\"}",
            0.0,
        ),
        (
            "flexcp_packets_unaccounted",
            "{worker=\"0\",sum=\"translated\"}",
            10.0,
        ),
        ("flexcp_build_info", "{version=\"0.1.0\"}", 1.0),
        ("flexcp_state", "{state=\"degraded\"}", 1.0),
        ("flexcp_state", "{state=\"ready\"}", 0.0),
        ("flexcp_problems", "", 1.0),
        ("flexcp_configuration_generation", "", 3.0),
        ("flexcp_uptime_seconds", "", 7e-6),
        ("flexcp_mended_total", "{what=\"rules\"}", 9.0),
        (
            "flexcp_service_passes",
            "{service=\"web\",mode=\"transparent\"}",
            1.0,
        ),
        ("flexcp_service_marked_backends", "{service=\"web\"}", 1.0),
        (
            "flexcp_service_interface_up",
            "{service=\"web\",interface=\"wan1\"}",
            0.0,
        ),
        ("flexcp_access_subflows", "{access=\"lte\"}", 2.0),
        ("flexcp_access_subflows", "{access=\"dsl\"}", 0.0),
        ("flexcp_access_opened_total", "{access=\"lte\"}", 16.0),
        ("flexcp_access_stripped_total", "{access=\"lte\"}", 4.0),
        ("flexcp_access_plain_total", "{access=\"lte\"}", 6.0),
        (
            "flexcp_access_down_bytes_total",
            "{access=\"lte\"}",
            8.0 + 2.0 * (1_u64 << 40) as f64,
        ),
        (
            "flexcp_access_delivery_rate_bytes_per_second",
            "{access=\"lte\"}",
            2.5e7,
        ),
    ] {
        let told = value(name, labels);
        assert!((told - expected).abs() < 1e-9, "{name}{labels}: {told}");
    }
}

/// Neither addresses of clients nor anything else that strangers choose becomes a label.
#[test]
fn labels_are_bounded() {
    let served = Served::by(vec![played()]);
    let families = scraped(&served);
    let labels = families.values().flat_map(|family| &family.samples);
    let names: BTreeSet<_> = labels
        .flat_map(|(labels, _)| {
            let inner = labels.trim_matches(['{', '}']);
            let names = inner.split(',').filter_map(|label| label.split_once('='));
            names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        })
        .collect();
    let bounded = [
        "access",
        "cause",
        "decision",
        "interface",
        "mode",
        "reason",
        "service",
        "state",
        "sum",
        "version",
        "what",
        "worker",
    ];
    assert_eq!(
        names.iter().map(String::as_str).collect::<Vec<_>>(),
        bounded
    );
    let (_, _, body) = exchanged(&served.path(), "GET", "/metrics");
    for address in ["10.0.1.2", "2001:db8", "10.9.0.2", "10.0.0.11"] {
        assert!(!body.contains(address), "{address}");
    }
}

#[test]
fn open_metrics_for_who_asks_for_it() {
    let served = Served::by(vec![played()]);
    let answer = raw(
        &served.path(),
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: application/openmetrics-text;version=1.0.0\r\nconnection: close\r\n\r\n",
    );
    let (status, head, body) = parted(&answer);
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(body.ends_with("# EOF\n"));
    assert!(
        body.contains("# TYPE flexcp_packets_in counter\n"),
        "{body}"
    );
    assert!(body.contains("# UNIT flexcp_memory_bytes bytes\n"));
    assert!(body.contains("flexcp_packets_in_total{worker=\"0\"} 10\n"));
}
