//! Reads typed values out of a TOML document and goes on after an error, so that one run names
//! everything that is wrong. (Deriving `Deserialize` would stop at the first.)

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::span::{Diagnostics, Located};
use super::value;

/// One value, as it stands in the document.
pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Keys that files may still have under another name, and what they are called.
const RENAMED: &[(&str, &str)] = &[("steering", "placement")];

/// A table whose keys are known.
pub(super) struct Reader<'a, 'i> {
    entries: &'a DeTable<'i>,
    /// For messages: "[device]", "a transparent service".
    what: String,
    /// Where the table begins.
    at: usize,
}

impl<'a, 'i> Reader<'a, 'i> {
    /// Reads `entries` and complains about every key that is neither in `known` nor in `elsewhere`;
    /// the latter are (key, where it belongs).
    pub(super) fn new(
        entries: &'a DeTable<'i>,
        (what, at): (&str, usize),
        known: &[&str],
        elsewhere: &[(&str, &str)],
        out: &mut Diagnostics,
    ) -> Self {
        for key in entries
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
        {
            let name = key.get_ref().as_ref();
            let hint = hint(name, known, elsewhere);
            out.error(
                key.span().start,
                format!("unknown key `{name}` in {what}; {hint}"),
            );
        }
        Self {
            entries,
            what: what.into(),
            at,
        }
    }

    /// The value of `key`, if it is there and right.
    pub(super) fn optional<T>(&self, key: &str, out: &mut Diagnostics) -> Option<Located<T>>
    where
        T: FromValue,
    {
        self.get(key).and_then(|value| one(key, value, out))
    }

    /// The value of `key`; `default` when it is not there (or wrong, which has been said then).
    pub(super) fn or<T: FromValue>(
        &self,
        key: &str,
        default: T,
        out: &mut Diagnostics,
    ) -> Located<T> {
        self.optional(key, out)
            .unwrap_or_else(|| Located::default(default))
    }

    /// The value of `key`, which must be there; `hint` says what to write.
    pub(super) fn required<T>(
        &self,
        key: &str,
        hint: &str,
        out: &mut Diagnostics,
    ) -> Option<Located<T>>
    where
        T: FromValue,
    {
        if self.get(key).is_none() {
            self.missing(key, hint, out);
        }
        self.optional(key, out)
    }

    /// The elements of the list `key`; none when it is not there.
    pub(super) fn list<T: FromValue>(&self, key: &str, out: &mut Diagnostics) -> Vec<Located<T>> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let DeValue::Array(elements) = value.get_ref() else {
            out.error(
                value.span().start,
                format!("`{key}` is {}; write a list: [{}]", kind(value), T::EXAMPLE),
            );
            return Vec::new();
        };
        elements
            .iter()
            .filter_map(|element| one(key, element, out))
            .collect()
    }

    /// The elements of the list `key`, of which there must be at least one.
    pub(super) fn required_list<T: FromValue>(
        &self,
        key: &str,
        hint: &str,
        out: &mut Diagnostics,
    ) -> Vec<Located<T>> {
        match self
            .get(key)
            .map(|value| (value.span().start, value.get_ref()))
        {
            None => self.missing(key, hint, out),
            Some((at, DeValue::Array(elements))) if elements.is_empty() => {
                out.error(at, format!("`{key}` is empty; {hint}"));
            }
            Some(_) => {}
        }
        self.list(key, out)
    }

    /// Where the table begins.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// The value of `key` as it stands.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value<'i>> {
        self.entries.get(key)
    }

    fn missing(&self, key: &str, hint: &str, out: &mut Diagnostics) {
        out.error(self.at, format!("{} has no `{key}`; {hint}", self.what));
    }
}

/// What can be read from one TOML value.
pub(super) trait FromValue: Sized {
    /// For messages: what to write.
    const EXAMPLE: &'static str;

    /// `Ok(None)`: not this type of value. `Err`: what is wrong with it, and what would be right.
    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String>;
}

/// A port or a range of ports.
pub(super) struct Ports(pub(super) RangeInclusive<u16>);

/// Bytes.
pub(super) struct Memory(pub(super) i64);

/// The name of a network device.
pub(super) struct Interface(pub(super) String);

/// The `known` word that `word` was most likely meant to be.
pub(crate) fn similar<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let distance = |other: &str| strsim::osa_distance(&word, &other.replace('-', "_"));
    let (nearest, best) = known
        .iter()
        .map(|&other| (distance(other), other))
        .min_by_key(|(distance, _)| *distance)?;
    (nearest <= best.len().div_ceil(3)).then_some(best)
}

/// What to do about an unknown key.
pub(super) fn hint(name: &str, known: &[&str], elsewhere: &[(&str, &str)]) -> String {
    if let Some((_, place)) = elsewhere.iter().find(|(other, _)| *other == name) {
        return format!("it belongs in {place}");
    }
    let renamed = |(old, new): &&(&str, &str)| *old == name && known.contains(new);
    if let Some((_, new)) = RENAMED.iter().find(renamed) {
        return format!("write `{new}` instead");
    }
    match similar(name, known) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// "a string", "an integer": what a value is.
pub(super) fn kind(value: &Value<'_>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn one<T: FromValue>(key: &str, value: &Value<'_>, out: &mut Diagnostics) -> Option<Located<T>> {
    let at = value.span().start;
    match T::from_value(value.get_ref()) {
        Ok(Some(value)) => return Some(Located::new(value, at)),
        Ok(None) => {
            out.error(
                at,
                format!("`{key}` can't be {}; write {}", kind(value), T::EXAMPLE),
            );
        }
        Err(wrong) => out.error(at, format!("`{key}`: {wrong}")),
    }
    None
}

/// `None`: no integer. What does not fit an `i64` fits nothing here, and is named as it stands.
pub(super) fn integer(value: &DeValue<'_>) -> Option<Result<i64, String>> {
    let integer = value.as_integer()?;
    let (digits, radix) = (integer.as_str(), integer.radix());
    let prefix = match radix {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let size = if digits.starts_with('-') {
        "small"
    } else {
        "large"
    };
    let number = i64::from_str_radix(digits, radix);
    Some(number.map_err(|_| format!("{prefix}{digits} is too {size} a number")))
}

macro_rules! from_text {
    ($type:ty, $example:literal, $parse:expr) => {
        impl FromValue for $type {
            const EXAMPLE: &'static str = $example;

            fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
                value.as_str().map($parse).transpose()
            }
        }
    };
}

from_text!(String, "a string in quotes", |text| Ok(text.into()));
from_text!(Interface, "\"eth0\"", |text| value::interface(text)
    .map(Interface));
from_text!(flexcp_translator::User, "\"name:password\"", value::user);
from_text!(Memory, "\"512MB\"", |text| value::memory(text).map(Memory));
from_text!(flexcp_translator::Prefix, "\"192.0.2.0/24\"", value::prefix);
from_text!(
    flexcp_translator::Announce,
    "\"192.0.2.1\"",
    value::announce
);
from_text!(std::net::IpAddr, "\"192.0.2.1\"", value::ip);
from_text!(
    super::file::Placement,
    "\"owner\", \"kernel\" or \"scatter\"",
    value::placement
);
from_text!(super::file::Attach, "\"auto\" or \"clsact\"", value::attach);
from_text!(
    super::file::ServiceOffload,
    "\"auto\" or \"off\"",
    value::service_offload
);
from_text!(
    super::file::ProxyProtocol,
    "\"v2\" or \"off\"",
    value::proxy_protocol
);
from_text!(
    flexcp_translator::Carrier,
    "\"splitless\", \"split\" or \"auto\"",
    value::carrier
);
from_text!(
    super::steering::Steering,
    "\"active-standby\" or another mode",
    super::steering::steering
);
from_text!(std::net::SocketAddr, "\"192.0.2.1:443\"", value::socket);
from_text!(PathBuf, "\"/run/flexcp/flexcp.sock\"", |text| {
    let path = Self::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("`{text}` must begin with /"))
    }
});

impl FromValue for bool {
    const EXAMPLE: &'static str = "true or false";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        Ok(value.as_bool())
    }
}

impl FromValue for super::steering::Weights {
    const EXAMPLE: &'static str = "{ dsl = 30, lte = 70 }";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let Some(table) = value.as_table() else {
            return Ok(None);
        };
        let entries = table.iter().map(|(name, weight)| {
            let number = integer(weight.get_ref());
            let wrong = || Err(format!("{} is no number", kind(weight)));
            (name.get_ref().to_string(), number.unwrap_or_else(wrong))
        });
        Self::new(entries).map(Some)
    }
}

impl FromValue for super::steering::Percent {
    const EXAMPLE: &'static str = "percent, like 2 or 0.5";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let digits = match value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) => integer.as_str(),
            _ => return Ok(None),
        };
        let percent = digits
            .parse()
            .map_err(|error| format!("{digits}: {error}"))?;
        Self::new(percent).map(Some)
    }
}

impl FromValue for i64 {
    const EXAMPLE: &'static str = "a number";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        integer(value).transpose()
    }
}

impl FromValue for Duration {
    const EXAMPLE: &'static str = "seconds, or a duration like \"30s\"";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        if let Some(text) = value.as_str() {
            return value::duration(text).map(Some);
        }
        let Some(seconds) = integer(value).transpose()? else {
            return Ok(None);
        };
        let seconds = u64::try_from(seconds)
            .map_err(|_| format!("{seconds} is negative; write {}", Self::EXAMPLE))?;
        Ok(Some(Self::from_secs(seconds)))
    }
}

impl FromValue for Ports {
    const EXAMPLE: &'static str = "80 or \"8000-8999\"";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        if let Some(text) = value.as_str() {
            return value::ports(text).map(|ports| Some(Self(ports)));
        }
        let Some(number) = integer(value).transpose()? else {
            return Ok(None);
        };
        value::port(number).map(|port| Some(Self(port..=port)))
    }
}
