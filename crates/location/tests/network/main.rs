//! The locator and its responders over a network in virtual time: Table 1 of the T-MPTCP paper, changes, noise, budgets.

mod changes;
mod link;
mod noise;
// The crate's own numbers, which are not for its users.
#[path = "../../src/random.rs"]
mod random;
mod table1;
mod trouble;
mod world;
