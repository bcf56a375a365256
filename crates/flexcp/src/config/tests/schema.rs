//! The file's schema and its reader come from one table, and the file that explains all keys fits both.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::super::keys::{self, Keys, Value};
use super::super::{parse, schema};

/// `dist/flexcp.toml` with every key that it has commented out.
fn with_all_keys() -> String {
    let file = include_str!("../../../dist/flexcp.toml");
    let is_key = |line: &str| {
        let name = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ")
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let is_section = |line: &str| line.starts_with('[') && line.ends_with(']');
    let mut lines = String::new();
    for line in file.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        if is_key(bare) || is_section(bare) {
            lines += bare;
        }
        lines.push('\n');
    }
    lines
}

fn json(text: &str) -> Json {
    let table: toml::Table = text
        .parse()
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).unwrap()
}

#[track_caller]
fn errors(file: &Json) -> Vec<String> {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let errors = validator.iter_errors(file);
    errors
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect()
}

#[test]
fn example_fits_the_schema_with_all_that_it_has_commented_out() {
    assert!(jsonschema::draft202012::meta::is_valid(&schema()));
    let commented = json(include_str!("../../../dist/flexcp.toml"));
    assert_eq!(errors(&commented), [""; 0]);
    let text = with_all_keys();
    let all = json(&text);
    assert_eq!(errors(&all), [""; 0], "{text}");
    let (_, found) = parse("f", &text);
    assert!(!found.has_errors(), "{found}");
    // It has every key that there is.
    let has = |section: &Json, keys: Keys, of: &str| {
        for key in keys {
            assert!(
                section.get(key.name).is_some(),
                "dist/flexcp.toml says nothing of `{}` in {of}",
                key.name
            );
        }
    };
    for (name, keys) in keys::SECTIONS {
        has(&all[name], keys, name);
    }
    for (name, keys) in keys::LISTS {
        // Some are of different modes.
        let sections = all[name].as_array().unwrap();
        let keys_of = sections
            .iter()
            .flat_map(|section| section.as_object().unwrap());
        let together = Json::Object(
            keys_of
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        );
        has(&together, keys, name);
    }
    has(&all["service"][0], keys::TRANSPARENT, "service");
    has(&all["service"][1], keys::REVERSE, "service");
    has(&all["service"][2], keys::CONVERT, "service");
}

#[test]
fn schema_has_each_key_of_the_reader_and_no_other() {
    let schema = schema();
    let sections = schema["properties"].as_object().unwrap();
    let names = |keys: &[Keys]| -> BTreeSet<String> {
        let keys = keys.iter().copied().flatten();
        keys.map(|key| key.name.to_owned()).collect()
    };
    let of = |section: &Json| -> BTreeSet<String> {
        assert_eq!(section["additionalProperties"], false);
        section["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(sections.len(), keys::SECTIONS.len() + keys::LISTS.len());
    for (name, keys) in keys::SECTIONS {
        assert_eq!(of(&sections[*name]), names(&[keys]), "{name}");
    }
    for (name, keys) in [("access", keys::ACCESS), ("rule", keys::RULE)] {
        assert_eq!(of(&sections[name]["items"]), names(&[keys]), "{name}");
    }
    let modes = sections["service"]["items"]["oneOf"].as_array().unwrap();
    assert_eq!(of(&modes[0]), names(&[keys::SERVICE, keys::TRANSPARENT]));
    assert_eq!(of(&modes[1]), names(&[keys::SERVICE, keys::REVERSE]));
    assert_eq!(of(&modes[2]), names(&[keys::SERVICE, keys::CONVERT]));
}

/// A file that is right but for what stands in `section`.
fn file(section: &str, mode: &str, line: &str) -> String {
    let name = if line.starts_with("name = ") && section == "service" {
        ""
    } else {
        "name = 's'\n"
    };
    let service = |more: &str| match mode {
        "reverse" | "convert" => format!("[[service]]\n{name}mode = '{mode}'\n{more}\n"),
        _ => format!("[[service]]\n{name}mode = 'transparent'\n{more}\n"),
    };
    match section {
        "service" => service(line),
        "access" | "rule" => format!(
            "{}[[{section}]]\n{line}\n",
            service("destinations = ['10.0.0.0/8']")
        ),
        _ => format!(
            "[{section}]\n{line}\n{}",
            service("destinations = ['10.0.0.0/8']")
        ),
    }
}

/// All keys, with their section and a mode of services that have them.
fn all() -> Vec<(&'static str, &'static str, &'static keys::Key)> {
    let sections = keys::SECTIONS.iter().chain(keys::LISTS);
    let mut all: Vec<_> = sections
        .flat_map(|(section, keys)| keys.iter().map(move |key| (*section, "transparent", key)))
        .collect();
    all.extend(
        keys::TRANSPARENT
            .iter()
            .map(|key| ("service", "transparent", key)),
    );
    all.extend(keys::REVERSE.iter().map(|key| ("service", "reverse", key)));
    all.extend(keys::CONVERT.iter().map(|key| ("service", "convert", key)));
    all
}

#[test]
fn each_key_is_read() {
    for (section, mode, key) in all() {
        if key.name == "mode" {
            continue;
        }
        // No key takes a date.
        let text = file(section, mode, &format!("{} = 1979-05-27", key.name));
        let (_, found) = parse("f", &text);
        let said = found.to_string();
        assert!(
            said.contains(&format!("`{}` ", key.name)),
            "{section}.{} is not read: {said}\n{text}",
            key.name
        );
        assert!(!said.contains("unknown key"), "{said}");
    }
}

#[test]
fn defaults_of_the_schema_are_what_holds_without_them() {
    let mut tried = 0;
    for (section, mode, key) in all() {
        let Some(default) = key.default else { continue };
        let value = match default {
            Value::Text(text) => format!("'{text}'"),
            Value::Number(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
        };
        let read = |line: &str| {
            let (config, _) = parse("f", &file(section, mode, line));
            // Where it stands does not count.
            let said = format!("{:?}", config.unwrap());
            let parts = said
                .split("at: ")
                .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
            parts.collect::<String>()
        };
        let with = read(&format!("{} = {value}", key.name));
        assert_eq!(with, read(""), "{section}.{} = {value}", key.name);
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn schema_refuses_what_the_reader_refuses() {
    for (section, mode, line) in [
        ("device", "transparent", "wrokers = 1"),
        ("device", "transparent", "workers = 0"),
        ("device", "transparent", "workers = 65"),
        ("device", "transparent", "name = 'a-name-that-is-too-long'"),
        ("device", "transparent", "placement = 'best'"),
        ("control", "transparent", "socket = 'flexcp.sock'"),
        ("control", "transparent", "listen = '127.0.0.1:7301'"),
        (
            "control",
            "transparent",
            "listen = '127.0.0.1'\ntoken_file = '/t'",
        ),
        ("limits", "transparent", "memory = '2 gigabytes'"),
        ("timeouts", "transparent", "idle = '5m2h'"),
        ("timeouts", "transparent", "idle = -1"),
        ("service", "transparent", "destinations = []"),
        ("service", "transparent", "destinations = ['web']"),
        ("service", "transparent", "listen = ['10.0.0.1:80']"),
        (
            "service",
            "reverse",
            "listen = ['10.0.0.1']\nbackends = ['10.0.0.2:80']",
        ),
        (
            "service",
            "reverse",
            "listen = ['10.0.0.1:80']\nbackends = [{ address = '10.0.0.2:80', weight = 257 }]",
        ),
        (
            "service",
            "reverse",
            "listen = ['10.0.0.1:80']\nbackends = [{ weight = 1 }]",
        ),
        (
            "service",
            "reverse",
            "listen = ['10.0.0.1:80']\nbackends = ['10.0.0.2:80']\ncheck = { fall = 0 }",
        ),
        (
            "service",
            "reverse",
            "listen = ['10.0.0.1:80']\nbackends = ['10.0.0.2:80']\ncheck = { evry = '2s' }",
        ),
        ("rule", "transparent", "name = 'r'"),
        ("rule", "transparent", "name = 'r'\nmode = 'fastest'"),
        (
            "rule",
            "transparent",
            "name = 'r'\nmode = 'smallest-delay'\nports = [0]",
        ),
    ] {
        let text = file(section, mode, line);
        let (_, found) = parse("f", &text);
        assert!(found.has_errors(), "the reader takes {text}");
        assert!(!errors(&json(&text)).is_empty(), "the schema takes {text}");
    }
}
