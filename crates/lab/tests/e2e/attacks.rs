//! A slice of `lab attack`: hostile peers beside honest traffic. What is asserted does not depend on time.

use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::attack::{Attack, Options, Outcome, run};

crate::cases!("attack":
    syn_flood_leaves_honest_clients_alone,
    mp_capable_flood_stays_within_its_bound,
    mp_join_flood_with_a_valid_token_is_capped,
    blind_packets_from_the_client_change_nothing,
    blind_packets_from_the_server_change_nothing,
    mappings_of_single_bytes_are_capped,
);

/// Runs an attack for a moment. What it must not achieve at all is checked; memory and counts of short
/// connections are checked where they do not depend on the machine.
fn attack(name: &str) -> Result<Outcome> {
    attack_at(name, 2000)
}

/// The same, at so many packets a second.
fn attack_at(name: &str, rate: u32) -> Result<Outcome> {
    let attack = Attack::named(name);
    let options = Options {
        duration: Duration::from_secs(1),
        half_open: Some(HALF_OPEN),
        rate: Some(rate),
        seed: 1,
    };
    let outcome = run(
        attack.unwrap_or_else(|| panic!("no attack {name}")),
        &options,
    )?;
    ensure!(outcome.sent.packets > 0, "{name} sent nothing");
    let failed = outcome
        .criteria
        .iter()
        .filter(|criterion| !criterion.passed);
    let failed: Vec<_> = failed
        .map(|criterion| format!("{}: {}", criterion.what, criterion.found))
        .collect();
    ensure!(failed.is_empty(), "{name}: {}", failed.join("; "));
    Ok(outcome)
}

fn syn_flood_leaves_honest_clients_alone() -> Result<()> {
    attack("syn-flood").map(drop)
}

fn mp_capable_flood_stays_within_its_bound() -> Result<()> {
    let outcome = attack("mp-capable-flood")?;
    ensure!(
        outcome.counter("overload_plain") > 0,
        "the bound was not reached: {:?}",
        outcome.moved
    );
    let bound = u64::try_from(HALF_OPEN)? + 200;
    ensure!(
        outcome.connections <= bound,
        "{} entries with {HALF_OPEN} half-open ones allowed",
        outcome.connections
    );
    Ok(())
}

fn mp_join_flood_with_a_valid_token_is_capped() -> Result<()> {
    let outcome = attack("mp-join-token-flood")?;
    ensure!(
        outcome.counter("mp_join_refused") > 0,
        "{:?}",
        outcome.moved
    );
    Ok(())
}

fn blind_packets_from_the_client_change_nothing() -> Result<()> {
    for name in ["blind-rst-client", "blind-data-client", "blind-icmp-client"] {
        attack(name)?;
    }
    Ok(())
}

fn blind_packets_from_the_server_change_nothing() -> Result<()> {
    for name in ["blind-rst-server", "blind-fin-server", "blind-icmp-server"] {
        attack(name)?;
    }
    Ok(())
}

fn mappings_of_single_bytes_are_capped() -> Result<()> {
    // Enough in a second for more than one client to reach the bound.
    attack_at("map-bomb", 10_000).map(drop)
}

/// Handshakes that may be incomplete: few, so that a short flood reaches the bound.
const HALF_OPEN: usize = 128;
