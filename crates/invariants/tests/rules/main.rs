//! For each rule an exchange that keeps it, and ones that break it in a single packet.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers on the wire are the low halves of offsets"
)]

mod asking;
mod broken;
mod captured;
mod causes;
mod clean;
mod errands;
mod exchange;
mod hostile;
mod preambles;
