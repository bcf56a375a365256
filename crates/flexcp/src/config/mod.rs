//! The configuration file: what it says ([`mod@file`]), whether that makes sense (`check`), whether it
//! fits the host ([`live`]) and a process that runs ([`fixed`]), and what follows from it for the translator and the kernel ([`plan`]).

pub mod access;
pub mod aggregation;
pub mod backend;
pub mod edit;
pub mod file;
pub mod fixed;
pub mod live;
pub mod location;
pub mod mar;
pub mod plan;
pub mod rule;
pub mod span;
pub mod steering;
pub mod told;

pub(crate) mod check;
mod checked;
mod keys;
mod modes;
mod overlap;
mod read;
mod schema;
mod split;
mod summary;
#[cfg(test)]
mod tests;
mod value;

use std::io;
use std::path::{Path, PathBuf};

pub use file::Config;
pub(crate) use read::similar;
pub use schema::schema;
pub use span::Diagnostics;
pub(crate) use split::relays;
pub use summary::{summary, summary_of_rules};
pub(crate) use value::{ShowPorts, ShowPrefix, carrier_name, duration, prefix};

/// Reads and checks the file `path`, not the host. The configuration is there unless the file is not
/// TOML; whether it can be used, [`Diagnostics::has_errors`] tells.
///
/// # Errors
/// When the file can't be read.
pub fn load(path: &Path) -> Result<(Option<Config>, Diagnostics), ReadError> {
    let text = std::fs::read(path).map_err(|error| ReadError {
        path: path.into(),
        error,
    })?;
    let text = String::from_utf8(text).map_err(|_| ReadError {
        path: path.into(),
        error: io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"),
    })?;
    Ok(parse(&path.display().to_string(), &text))
}

/// Checks `text`, which `file` holds.
#[must_use]
pub fn parse(file: &str, text: &str) -> (Option<Config>, Diagnostics) {
    let mut found = Diagnostics::new(file, text);
    let config = file::read(text, &mut found);
    if let Some(config) = &config {
        check::check(config, &mut found);
    }
    (config, found)
}

/// The configuration file can't be read.
#[derive(thiserror::Error, Debug)]
#[error("can't read the configuration {path}: {error}", path = path.display())]
pub struct ReadError {
    path: PathBuf,
    error: io::Error,
}
