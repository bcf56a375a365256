//! Scenarios: what the translator does with each packet of a conversation, seen from outside.
//!
//! Each test is named after state, stimulus and outcome; `support` explains the notation.

mod support;

mod ack_sack;
mod addresses;
mod astray;
mod backlog;
mod blind;
mod bypass;
mod checks;
mod choices;
mod close;
mod closed;
mod down;
mod drain;
mod events;
mod fallback;
mod flow_entry;
mod gso;
mod handshake;
mod health;
mod hold;
mod holes;
mod honest;
mod icmp;
mod install;
mod install_refused;
mod intake;
mod join;
mod limits;
mod malformed;
mod memory;
mod native;
mod new_ack;
mod orphans;
mod overtaken;
mod phases;
mod plain;
mod probe;
mod properties;
mod quality;
mod records;
mod reload;
mod reset;
mod reverse;
mod seeded;
mod steered;
mod steering;
mod switch;
mod timers;
mod timestamps;
mod up;
mod why;
mod windows;
mod wrap;
