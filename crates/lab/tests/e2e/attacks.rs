//! A slice of `lab attack`: hostile peers beside honest traffic. What is asserted does not depend on time.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::attack::{Attack, HostileMemory, Options, Outcome, Pace, run};

crate::cases!("attack":
    syn_flood_leaves_honest_clients_alone,
    mp_capable_flood_stays_within_its_bound,
    mp_join_flood_with_a_valid_token_is_capped,
    blind_packets_from_the_client_change_nothing,
    blind_packets_from_the_server_change_nothing,
    mappings_of_single_bytes_are_capped,
    hostile_clients_hold_no_more_than_the_budget,
    spoofed_preambles_call_no_server_twice_and_amplify_nothing,
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

fn spoofed_preambles_call_no_server_twice_and_amplify_nothing() -> Result<()> {
    let outcome = attack("convert-syn-flood")?;
    let called = outcome.syns_to_server;
    ensure!(
        called >= outcome.sent.packets / 2,
        "{called} SYNs to the server: they were no preambles"
    );
    for name in ["convert-refused-flood", "socks5-syn-flood"] {
        attack(name)?;
    }
    Ok(())
}

/// A small `make hostile-memory`: what does not depend on how fast the machine is.
fn hostile_clients_hold_no_more_than_the_budget() -> Result<()> {
    let hostile = HostileMemory {
        connections: 200,
        mappings: 1000,
        budget_mb: 2,
        rate: 50_000,
        honest_mb: 20,
        results: PathBuf::new(),
    };
    let hoarded = hostile.hoard()?;
    let text = format!("{hoarded:?}");
    ensure!(hoarded.refused > 0, "nothing was refused: {text}");
    ensure!(
        hoarded.memory > hoarded.budget / 2,
        "they hold little: {text}"
    );
    ensure!(
        hoarded.counted <= hoarded.budget,
        "the budget is overdrawn: {text}"
    );
    let all = |pace: &Pace| pace.mptcp == pace.connections;
    ensure!(
        all(&hoarded.honest[2]) && hoarded.turned_away == 0,
        "honest clients had to do without MPTCP: {text}"
    );
    Ok(())
}

/// Handshakes that may be incomplete: few, so that a short flood reaches the bound.
const HALF_OPEN: usize = 128;
