//! Why a server is in use, in one plain sentence.

use alloc::string::String;
use core::fmt::{self, Write};
use core::time::Duration;

use crate::rate::Rate;
use crate::table::{ServerRow, Table};
use crate::time::micros;

/// What led to the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It is the first one; nothing had been measured.
    First,
    /// All have been measured for the first time.
    Measured,
    /// It was better than the one before for so long.
    Better(Duration),
    /// The one before could not be reached.
    Unreachable,
}

/// Why a server is in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// What led to it.
    pub cause: Cause,
    /// The one before.
    pub left: Option<String>,
    /// What speaks for it, by the newest figures.
    pub text: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        let Some(left) = &self.left else {
            return Ok(());
        };
        match self.cause {
            Cause::First => Ok(()),
            Cause::Measured => write!(f, "; chosen before {left} once all were measured"),
            Cause::Better(time) => {
                write!(f, "; better than {left} for {} s", time.as_secs())
            }
            Cause::Unreachable => write!(f, "; {left} could not be reached"),
        }
    }
}

/// A delay in milliseconds.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = micros(self.0).saturating_add(50) / 100;
        write!(f, "{}.{} ms", tenths / 10, tenths % 10)
    }
}

pub(crate) fn by_rate(table: &Table, server: usize, next: Option<usize>, tolerance: u32) -> String {
    said(|text| {
        let row = &table.servers[server];
        write!(text, "{}: ", row.name)?;
        let Some(rate) = row.throughput() else {
            text.write_str("no rate is known")?;
            delay_of(text, ", ", row)?;
            return next_is(text, table, next, false);
        };
        write!(text, "{rate} ")?;
        match (row.sum(), row.own_rate()) {
            (Some(sum), Some(own)) => {
                write!(text, "= min({} over ", sum.figure())?;
                uplinks(text, table, row)?;
                write!(text, ", {} of its own)", own.figure())?;
            }
            _ => {
                text.write_str("over ")?;
                uplinks(text, table, row)?;
                text.write_str(" (its own leg is not known)")?;
            }
        }
        next_is(text, table, next, true)?;
        let Some(other) = next.and_then(|next| table.servers.get(next)) else {
            return Ok(());
        };
        match other.throughput() {
            Some(second) if !rate.differs(second, tolerance) => {
                text.write_str(", which counts as equal")?;
                delays(text, row, other)
            }
            _ => Ok(()),
        }
    })
}

pub(crate) fn by_delay(table: &Table, server: usize, next: Option<usize>) -> String {
    said(|text| {
        let row = &table.servers[server];
        write!(text, "{}: ", row.name)?;
        match row.delay() {
            Some(delay) => write!(text, "{}", Millis(delay))?,
            None => text.write_str("no delay is known")?,
        }
        if let Some(own) = row.leg.and_then(|leg| leg.delay) {
            write!(text, ", {} of it its own", Millis(own))?;
        }
        let Some(other) = next.and_then(|next| table.servers.get(next)) else {
            return Ok(());
        };
        write!(text, ", next is {}", other.name)?;
        delay_of(text, " with ", other)
    })
}

pub(crate) fn by_order(table: &Table, server: usize, next: Option<usize>) -> String {
    said(|text| {
        let name = &table.servers[server].name;
        write!(
            text,
            "{name}: the first of the configuration that can be reached"
        )?;
        next_is(text, table, next, false)
    })
}

/// Writing into a string does not fail.
fn said(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    let _ = write(&mut text);
    text
}

fn next_is(text: &mut String, table: &Table, next: Option<usize>, with_rate: bool) -> fmt::Result {
    let Some(row) = next.and_then(|next| table.servers.get(next)) else {
        return Ok(());
    };
    write!(text, ", next is {}", row.name)?;
    match row.throughput().filter(|_| with_rate) {
        Some(Rate(0)) | None => Ok(()),
        Some(rate) => write!(text, " with {rate}"),
    }
}

fn delay_of(text: &mut String, before: &str, row: &ServerRow) -> fmt::Result {
    row.delay()
        .map_or(Ok(()), |delay| write!(text, "{before}{}", Millis(delay)))
}

fn delays(text: &mut String, row: &ServerRow, other: &ServerRow) -> fmt::Result {
    let (Some(delay), Some(second)) = (row.delay(), other.delay()) else {
        return Ok(());
    };
    let more = second.saturating_sub(delay);
    if more.is_zero() {
        return Ok(());
    }
    write!(text, ", but is {} farther", Millis(more))
}

/// The uplinks whose rate counts, and those that are there but whose rate is not known.
fn uplinks(text: &mut String, table: &Table, row: &ServerRow) -> fmt::Result {
    let name = |uplink: usize| table.uplinks.get(uplink).map_or("?", |name| name);
    for (at, (uplink, _)) in row.counting().enumerate() {
        let plus = if at == 0 { "" } else { "+" };
        write!(text, "{plus}{}", name(uplink))?;
    }
    for (uplink, path) in row.paths.iter().enumerate() {
        if path.is_usable && path.is_alive != Some(false) && path.down.is_none() {
            write!(text, ", {} not measured", name(uplink))?;
        }
    }
    Ok(())
}
