//! The fault model as its users see it: packets in, packets out, virtual time.

mod rewriting;
mod support;
mod text;
mod traffic;
