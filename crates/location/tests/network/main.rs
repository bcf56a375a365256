//! The locator and its responders over a network in virtual time: Table 1 of the T-MPTCP paper, changes, noise, budgets.

mod changes;
mod link;
mod noise;
mod table1;
mod trouble;
mod world;
