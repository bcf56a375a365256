//! The kernel's programs as the configuration wants them: loads and attaches the offload, and says in a line each what
//! works, what is left out, and why. What the kernel can't is never the whole where it need not be.

use std::fmt::Write as _;
use std::net::IpAddr;

use flexcp_io::{
    Hook, KernelTables, LeftOut, Offload, OffloadError, Reasons, Refusal, Steering, SteeringError,
    Target, ethernet_interfaces,
};
use flexcp_translator::Rules;
use tracing::{info, warn};

use crate::config::{Config, file, plan};
use crate::worker::Worker;

/// The offload as it runs; what is not attached to the kernel's tables ends when it is dropped.
#[derive(Debug, Default)]
pub struct Running {
    _offload: Option<Offload>,
}

/// What is said about a running offload.
#[derive(Default)]
pub struct Said {
    /// What the programs have counted; `None` without them.
    pub reasons: Option<Reasons>,
    /// How it runs, what is left out and why, a line each.
    pub notes: Vec<String>,
}

/// Loads the programs, attaches them to all Ethernet devices, and gives each worker its share. `device`: the index of
/// FlexCP's own. Nothing is done when the configuration says so.
pub fn start(
    config: &Config,
    device: u32,
    workers: &mut [Worker],
    tables: &mut KernelTables,
) -> (Running, Said) {
    if !config.offload.enabled.value {
        return Default::default();
    }
    let mut notes = Vec::new();
    match load(config, device, workers, tables, &mut notes) {
        Ok(offload) => {
            let reasons = offload.reasons().ok();
            let running = Running {
                _offload: Some(offload),
            };
            (running, Said { reasons, notes })
        }
        Err(error) => {
            warn!("no offload: {error}; every packet goes through the workers");
            notes.push(format!("none: {error}"));
            let said = Said {
                reasons: None,
                notes,
            };
            (Running::default(), said)
        }
    }
}

fn load(
    config: &Config,
    device: u32,
    workers: &mut [Worker],
    tables: &mut KernelTables,
    notes: &mut Vec<String>,
) -> Result<Offload, OffloadError> {
    let connections = u32::try_from(config.offload.connections.value).unwrap_or(1);
    let share = connections.div_ceil(u32::try_from(workers.len()).unwrap_or(1));
    let slots = share * u32::try_from(workers.len()).unwrap_or(1);
    let mut offload = Offload::load(device, slots)?;
    let paths = workers.iter().map(|_| offload.fast_path(share));
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let by = hook(config);
    let on = attach(&mut offload, by, tables, notes)?;
    // Only now, so that nothing is lent in vain.
    for (worker, path) in workers.iter_mut().zip(paths) {
        worker.offload(Box::new(path));
    }
    info!("offload: up to {slots} connections, by {by}, on {on}");
    notes.insert(0, format!("by {by}, on {on}"));
    if let Some(left_out) = offload.left_out() {
        warn!("offload: {left_out}; {FULL_TEXT}");
        notes.push(left_out.to_string());
    }
    Ok(offload)
}

/// Attaches to all Ethernet devices that take it, and gives their names. One that does not is noted; the error is that of
/// the last, when none does.
fn attach(
    offload: &mut Offload,
    by: Hook,
    tables: &mut KernelTables,
    notes: &mut Vec<String>,
) -> Result<String, OffloadError> {
    let mut on = Vec::new();
    let mut last = None;
    for interface in ethernet_interfaces() {
        let report = &mut |change: &str| info!("kernel: {change}");
        match offload.attach(&interface, by, tables, report) {
            Ok(()) => on.push(interface),
            Err(error) => {
                warn!("offload: not on {interface}: {error}");
                notes.push(format!("not on {interface}: {error}"));
                last = Some(error);
            }
        }
    }
    match last {
        Some(error) if on.is_empty() => Err(error),
        _ => Ok(on.join(", ")),
    }
}

fn hook(config: &Config) -> Hook {
    match config.offload.attach.value {
        file::Attach::Auto => Hook::of_this_kernel(),
        file::Attach::Clsact => Hook::Clsact,
    }
}

/// What came of loading the programs for a try.
#[derive(Default, Debug)]
pub struct Tried {
    /// What works.
    pub works: Option<String>,
    /// What does not, a line each.
    pub misses: Vec<String>,
    /// All that the verifier says about what it refuses.
    pub log: String,
}

impl Tried {
    fn refused(&mut self, program: &str, refusal: &Refusal) {
        let _ = writeln!(self.log, "{program}:\n{}", refusal.log().trim_end());
    }
}

/// Loads the programs that the configuration wants, and lets go of them: nothing is attached. `sources` as
/// [`live::check`](crate::config::live::check) gives them.
#[must_use]
pub fn try_loading(config: &Config, sources: &[Vec<IpAddr>]) -> Tried {
    let mut tried = Tried::default();
    if config.offload.enabled.value {
        // Packets would be routed as from the loopback device.
        match Offload::load(1, 1) {
            Ok(offload) => {
                tried.works = Some(format!("the kernel takes it, by {}", hook(config)));
                if let Some(left_out) = offload.left_out() {
                    tried.misses.push(format!("offload: {left_out}"));
                    tried.refused("offload", left_out.refusal());
                }
            }
            Err(error) => {
                tried.misses.push(format!("no offload: {error}"));
                if let OffloadError::Refused(refusal) = &error {
                    tried.refused("offload", refusal);
                }
            }
        }
    }
    if plan::workers(config) > 1 && config.device.steering.value == file::Steering::Owner {
        let rules = Rules::new(&plan::translator(config, sources, 0), (0, 0));
        if let Err(error) = Steering::load(&rules, Target::Owner, 1) {
            tried.misses.push(format!("no steering: {error}"));
            if let SteeringError::Refused(refusal) = &error {
                tried.refused("steering", refusal);
            }
        }
    }
    tried
}

const FULL_TEXT: &str = LeftOut::FULL_TEXT;
