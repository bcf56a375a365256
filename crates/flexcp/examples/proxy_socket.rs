//! A program that runs FlexCP itself, with a steering mode of its own: downloads that are fast go down one access, all
//! others stay on the other.
//!
//! `proxy_socket CONFIG RULE LIGHT HEAVY`: the configuration file, the rule whose connections it steers, and the names of
//! two accesses. It says what it accepts and what has come of it, and ends on SIGTERM, SIGINT or SIGHUP.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flexcp::listener::{
    AccessId, ConnectionState, Move, Proxied, Setup, SteeringMode, SubflowSwitch, SubflowView, View,
};
use flexcp_io::Signals;

/// Where a download goes, by its rate.
#[derive(Debug)]
struct ByRate {
    light: AccessId,
    heavy: AccessId,
}

/// Bytes per second from which on a download is heavy.
const HEAVY: u64 = 500_000;

impl SteeringMode for ByRate {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let wanted = if view.flow.rate >= HEAVY {
            self.heavy
        } else {
            self.light
        };
        if view.active.access == Some(wanted) {
            return None;
        }
        let path = view
            .others
            .iter()
            .find(|path| path.access == Some(wanted))?;
        Some(Move {
            to: path.subflow,
            cause: SubflowSwitch::Preferred,
            back: false,
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before there are other threads.
    let signals = Signals::block()?;
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [config, rule, light, heavy] = &words[..] else {
        return Err("usage: proxy_socket CONFIG RULE LIGHT HEAVY".into());
    };
    let setup = Setup::read(Path::new(config))?;
    let access = |name: &str| {
        setup
            .access(name)
            .ok_or_else(|| format!("there is no access {name}"))
    };
    let mode = ByRate {
        light: access(light)?,
        heavy: access(heavy)?,
    };
    let mut listener = setup.steer(rule, Arc::new(mode))?.bind()?;
    let mut open = HashMap::new();
    while signals.next()?.is_none() {
        while let Some(proxied) = listener.accept_within(Duration::from_millis(50))? {
            println!("{} > {} accepted", proxied.client(), proxied.server());
            open.insert(proxied.id(), (proxied, vec![]));
        }
        open.retain(|_, (proxied, known)| is_open(proxied, known));
    }
    Ok(listener.stop()?)
}

/// Notes the subflows of a connection as they stand. Says what they have carried once it is over.
fn is_open(proxied: &Proxied, known: &mut Vec<SubflowView>) -> bool {
    if let Ok(view) = proxied.statistics()
        && !matches!(view.state, ConnectionState::Closed | ConnectionState::Reset)
    {
        *known = view.subflows;
        return true;
    }
    println!("{} > {} is over", proxied.client(), proxied.server());
    for subflow in known {
        let access = subflow.access.map(|access| access.0);
        println!("  access {access:?}: {} bytes down", subflow.bytes_down);
    }
    false
}
