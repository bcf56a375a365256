//! The file as a JSON Schema (draft 2020-12), for editors and other programs that write it. It says the form of each value;
//! what has to fit together, `flexcp check` says.

use serde_json::{Map, Value as Json, json};

use super::backend::Backend;
use super::checked;
use super::keys::{self, Key, Keys, Kind, Value};

/// The schema of the whole file.
#[must_use]
pub fn schema() -> Json {
    let mut properties = Map::new();
    for (name, keys) in keys::SECTIONS {
        let mut section = object(keys.iter());
        if *name == "control" {
            section["dependentRequired"] = json!({"listen": ["token_file"]});
        }
        properties.insert((*name).into(), section);
    }
    for (name, keys) in keys::LISTS {
        let (items, least) = match *name {
            "service" => (service(), 1),
            _ => (object(keys.iter()), 0),
        };
        properties.insert(
            (*name).into(),
            json!({"type": "array", "items": items, "minItems": least}),
        );
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "FlexCP's configuration",
        "description": "The file that flexcp run and flexcp check take, in TOML.",
        "type": "object",
        "properties": properties,
        "required": ["service"],
        "additionalProperties": false,
    })
}

/// One of any mode.
fn service() -> Json {
    let of = |mode: &str, keys: Keys| {
        let mut service = object(keys::SERVICE.iter().chain(keys));
        service["properties"]["mode"] = json!({"const": mode});
        service
    };
    json!({"oneOf": [
        of("transparent", keys::TRANSPARENT),
        of("reverse", keys::REVERSE),
        of("convert", keys::CONVERT),
        of("socks5", keys::SOCKS5),
        of("box", keys::BOX),
    ]})
}

fn object<'a>(keys: impl Iterator<Item = &'a Key> + Clone) -> Json {
    let properties: Map<_, _> = keys
        .clone()
        .map(|key| (key.name.into(), property(key)))
        .collect();
    let required: Vec<_> = keys
        .filter(|key| key.is_required)
        .map(|key| key.name)
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Json {
    let mut property = kind(key.kind);
    property["description"] = key.about.into();
    match key.default {
        None => {}
        Some(Value::Text(text)) => property["default"] = text.into(),
        Some(Value::Number(number)) => property["default"] = number.into(),
        Some(Value::Flag(flag)) => property["default"] = flag.into(),
    }
    property
}

fn kind(kind: Kind) -> Json {
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    match kind {
        Kind::Name => text(r"^\S+$"),
        Kind::User => text(r"^[^:]{1,255}:.{1,255}$"),
        Kind::Interface => text(r"^[A-Za-z0-9_.@:-]{1,15}$"),
        Kind::Path => text("^/"),
        Kind::Number(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Duration => either(
            json!({"type": "integer", "minimum": 0}),
            json!({
                "type": "string",
                "minLength": 1,
                "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?([0-9]+us)?$",
            }),
        ),
        Kind::Memory => text("^[0-9]+(kB|MB|GB|KiB|MiB|GiB)$"),
        Kind::Rate => text("^[0-9]+(kbit|Mbit|Gbit)$"),
        Kind::Percent => json!({"type": "number", "minimum": 0, "exclusiveMaximum": 100}),
        Kind::Weights => json!({
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
            "minProperties": 1,
        }),
        Kind::OneOf(words) => json!({"enum": words}),
        Kind::Prefix => text("^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"),
        Kind::Address => text("^[0-9A-Fa-f:.]+$"),
        Kind::Socket => text(r"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"),
        Kind::Backend => backend(),
        Kind::Server => server(),
        Kind::Exception => exception(),
        Kind::Check => check(),
        Kind::Announce => {
            text(r"^([0-9A-Fa-f:.]+|[0-9.]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?)$")
        }
        Kind::Ports => either(
            json!({"type": "integer", "minimum": 1, "maximum": 65535}),
            text("^ *[0-9]{1,5} *(- *[0-9]{1,5} *)?$"),
        ),
        Kind::List(of) => json!({"type": "array", "items": self::kind(*of)}),
        Kind::Some(of) => json!({"type": "array", "items": self::kind(*of), "minItems": 1}),
    }
}

/// An address with a port, or that with a weight.
fn backend() -> Json {
    either(
        kind(Kind::Socket),
        json!({
            "type": "object",
            "properties": {
                "address": kind(Kind::Socket),
                "weight": {"type": "integer", "minimum": 0, "maximum": Backend::MOST_WEIGHT, "default": 1},
            },
            "required": ["address"],
            "additionalProperties": false,
        }),
    )
}

/// A server that connects on for a box.
fn server() -> Json {
    json!({
        "type": "object",
        "properties": {
            "address": kind(Kind::Socket),
            "mode": kind(Kind::OneOf(&["convert", "socks5"])),
            "user": kind(Kind::User),
            "early": {"type": "boolean", "default": false},
            "name": kind(Kind::Name),
            "probe": kind(Kind::Socket),
            "key_file": kind(Kind::Path),
        },
        "required": ["address", "mode"],
        "dependentRequired": {"probe": ["key_file"]},
        "additionalProperties": false,
    })
}

/// What a box leaves alone.
fn exception() -> Json {
    either(
        kind(Kind::Prefix),
        json!({
            "type": "object",
            "properties": {
                "prefix": kind(Kind::Prefix),
                "ports": kind(Kind::Some(&Kind::Ports)),
            },
            "required": ["prefix"],
            "additionalProperties": false,
        }),
    )
}

/// How back ends are checked.
fn check() -> Json {
    let times = |default: u8| json!({"type": "integer", "minimum": 1, "maximum": checked::MOST_TIMES, "default": default});
    json!({
        "type": "object",
        "properties": {
            "every": kind(Kind::Duration),
            "timeout": kind(Kind::Duration),
            "fall": times(3),
            "rise": times(2),
        },
        "additionalProperties": false,
    })
}

fn either(one: Json, other: Json) -> Json {
    json!({"anyOf": [one, other]})
}
