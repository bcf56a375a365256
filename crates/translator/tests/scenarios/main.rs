//! Scenarios: what the translator does with each packet of a conversation, seen from outside.
//!
//! Each test is named after state, stimulus and outcome; `support` explains the notation.

mod support;

mod handshake;
