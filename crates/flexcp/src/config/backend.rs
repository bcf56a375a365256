//! Back ends of a service in reverse mode: `"10.0.0.11:443"`, or with a weight `{ address = "10.0.0.12:443", weight = 3 }`.

use std::fmt;
use std::net::SocketAddr;

use toml::de::DeValue;

use super::read::{FromValue, hint, integer};
use super::value;

/// A server behind FlexCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend {
    /// Its address and port.
    pub addr: SocketAddr,
    /// Its share of new connections, as its part of all weights of its service; 0: none.
    pub weight: u16,
}

impl Backend {
    /// The largest weight.
    pub const MOST_WEIGHT: u16 = 256;

    /// With this weight, if there can be such a one.
    ///
    /// # Errors
    /// With what is wrong, and what would be right.
    pub fn checked_weight(weight: i64) -> Result<u16, String> {
        let fits = u16::try_from(weight)
            .ok()
            .filter(|weight| *weight <= Self::MOST_WEIGHT);
        fits.ok_or_else(|| {
            format!(
                "{weight} is no weight; write a number from 0 to {}",
                Self::MOST_WEIGHT
            )
        })
    }
}

impl From<SocketAddr> for Backend {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, weight: 1 }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.addr)?;
        match self.weight {
            1 => Ok(()),
            weight => write!(f, " (weight {weight})"),
        }
    }
}

impl FromValue for Backend {
    const EXAMPLE: &'static str =
        "\"192.0.2.1:443\", or { address = \"192.0.2.1:443\", weight = 3 }";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        if let Some(text) = value.as_str() {
            return value::socket(text).map(|addr| Some(addr.into()));
        }
        let Some(table) = value.as_table() else {
            return Ok(None);
        };
        let names = table.keys().map(|key| key.get_ref().as_ref());
        if let Some(unknown) = { names }.find(|name| !KEYS.contains(name)) {
            let hint = hint(unknown, KEYS, &[]);
            return Err(format!("unknown key `{unknown}` in a back end; {hint}"));
        }
        let Some(addr) = table.get("address") else {
            return Err(format!(
                "a back end has no `address`; write {}",
                Self::EXAMPLE
            ));
        };
        let Some(addr) = addr.get_ref().as_str() else {
            return Err("`address` is no string; write one like \"192.0.2.1:443\"".into());
        };
        let addr = value::socket(addr)?;
        let Some(weight) = table.get("weight") else {
            return Ok(Some(addr.into()));
        };
        let Some(weight) = integer(weight.get_ref()) else {
            return Err(format!(
                "`weight` is no number; write one from 0 to {}",
                Self::MOST_WEIGHT
            ));
        };
        let weight = Self::checked_weight(weight?)?;
        Ok(Some(Self { addr, weight }))
    }
}

const KEYS: &[&str] = &["address", "weight"];
