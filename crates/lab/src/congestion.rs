//! Which congestion control the namespaces may choose: a kernel lets them have only what the host's list allows.

use std::fs;

use anyhow::{Context as _, Result, ensure};

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The host's list with one more name in it, for as long as this lives.
#[derive(Debug)]
pub struct Allowed {
    /// What was in the list.
    before: String,
}

/// Allows `name` to all namespaces.
///
/// # Errors
///
/// The kernel has no congestion control of this name, or the list can't be changed.
pub fn allow(name: &str) -> Result<Allowed> {
    let read = |file: &str| fs::read_to_string(file).with_context(|| format!("reading {file}"));
    let available = read(AVAILABLE)?;
    ensure!(
        available.split_whitespace().any(|known| known == name),
        "this kernel has no congestion control {name}, or its module tcp_{name} is not loaded: it has {}",
        available.trim()
    );
    let before = read(ALLOWED)?;
    write(&with(&before, name))?;
    Ok(Allowed { before })
}

impl Drop for Allowed {
    fn drop(&mut self) {
        if let Err(error) = write(&self.before) {
            eprintln!("{error:#}");
        }
    }
}

fn write(list: &str) -> Result<()> {
    fs::write(ALLOWED, list.trim()).with_context(|| format!("writing {ALLOWED}"))
}

/// The list with `name` in it, once.
fn with(list: &str, name: &str) -> String {
    let mut names: Vec<_> = list.split_whitespace().collect();
    if !names.contains(&name) {
        names.push(name);
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_added_once() {
        assert_eq!(with("reno bbr\n", "cubic"), "reno bbr cubic");
        assert_eq!(with("reno cubic\n", "cubic"), "reno cubic");
    }

    #[test]
    fn unknown_name_is_told() {
        let error = allow("none-such").unwrap_err().to_string();
        assert!(error.contains("none-such"), "{error}");
    }
}
