//! Checks of a service's back ends: `check = { every = "2s", timeout = "1s", fall = 3, rise = 2 }`.

use std::time::Duration;

use flexcp_translator::Check;
use toml::de::{DeTable, DeValue};

use super::read::{FromValue, hint, integer};

impl FromValue for Check {
    const EXAMPLE: &'static str = "{ every = \"2s\", timeout = \"1s\", fall = 3, rise = 2 }";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let Some(table) = value.as_table() else {
            return Ok(None);
        };
        let names = table.keys().map(|key| key.get_ref().as_ref());
        if let Some(unknown) = { names }.find(|name| !KEYS.contains(name)) {
            let hint = hint(unknown, KEYS, &[]);
            return Err(format!("unknown key `{unknown}` in a check; {hint}"));
        }
        let every = time(table, "every")?.unwrap_or(EVERY);
        let check = Self {
            every,
            timeout: time(table, "timeout")?.unwrap_or_else(|| TIMEOUT.min(every)),
            fall: times(table, "fall", 3)?,
            rise: times(table, "rise", 2)?,
        };
        if !(LEAST_EVERY..=MOST_EVERY).contains(&check.every) {
            return Err("`every` has to be between 100ms and 1h; write one like \"2s\"".into());
        }
        if check.timeout < LEAST_TIMEOUT || check.timeout > check.every {
            return Err(
                "`timeout` has to be between 10ms and `every`; write one like \"1s\"".into(),
            );
        }
        Ok(Some(check))
    }
}

fn time(table: &DeTable<'_>, key: &str) -> Result<Option<Duration>, String> {
    let Some(value) = table.get(key) else {
        return Ok(None);
    };
    let read =
        Duration::from_value(value.get_ref()).map_err(|wrong| format!("`{key}`: {wrong}"))?;
    let wrong = || format!("`{key}` is no time; write {}", Duration::EXAMPLE);
    read.map(Some).ok_or_else(wrong)
}

fn times(table: &DeTable<'_>, key: &str, default: u8) -> Result<u8, String> {
    let Some(value) = table.get(key) else {
        return Ok(default);
    };
    let number = integer(value.get_ref()).and_then(Result::ok);
    let number = number.and_then(|number| u8::try_from(number).ok());
    let fits = number.filter(|number| (1..=MOST_TIMES).contains(number));
    fits.ok_or_else(|| {
        format!("`{key}` is no number from 1 to {MOST_TIMES}; write one like {default}")
    })
}

const KEYS: &[&str] = &["every", "timeout", "fall", "rise"];
const EVERY: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(1);
/// More often a check would be a load.
const LEAST_EVERY: Duration = Duration::from_millis(100);
const MOST_EVERY: Duration = Duration::from_secs(3600);
const LEAST_TIMEOUT: Duration = Duration::from_millis(10);
pub(super) const MOST_TIMES: u8 = 100;
