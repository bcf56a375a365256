//! One seed, from its plan to its verdict.

use flexcp_translator::{Gauges, Instant};

use crate::errand::Errands;
use crate::liveness::{LOOK, Liveness};
use crate::mirror;
use crate::proxy::Kernel;
use crate::swarm::{Plan, SECOND};
use crate::trace::Trace;
use crate::undisturbed;
use crate::world::World;

/// After the end, a connection that ended well is gone in this time.
const FREED: u64 = 260 * SECOND;
/// One that was aborted: the idle timeout and more.
const FREED_ABORTED: u64 = 8000 * SECOND;
/// Steps of a run at most: more go round in a circle.
const MAX_STEPS: u64 = 5_000_000;

/// What became of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Packets in and out of the translator.
    pub packets: u64,
    /// Virtual microseconds until everything was done.
    pub time: u64,
    /// A hash of what the translator sent.
    pub hash: u64,
    /// ACKs that the carrier left out, as a later packet said the same.
    pub left_out: u64,
    /// The longest time that a connection stood still after the faults, in thousandths of what it may.
    pub stood: u64,
    /// How often steering modes have moved connections.
    pub led: u64,
    /// What has come of errands, where FlexCP is a box.
    pub errands: Errands,
    /// What went wrong: each a line or more.
    pub failures: Vec<String>,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    run_world(&mut World::new(Plan::of(seed), Trace::Off))
}

/// Runs a seed with a carrier that sends every packet at once, and connections that are not steered.
#[must_use]
pub fn run_at_once(seed: u64) -> Outcome {
    let plan = Plan {
        keeps: 0,
        ..Plan::unsteered(seed)
    };
    run_world(&mut World::new(plan, Trace::Off))
}

/// Runs a seed with a translator that installs what runs its steady course in a fast path, which only keeps it:
/// nothing may differ. Also how often it did.
#[must_use]
pub fn run_installed(seed: u64) -> (Outcome, u64) {
    let mut world = World::new(Plan::of(seed), Trace::Off);
    world.proxy.install();
    let outcome = run_world(&mut world);
    (outcome, world.proxy.translator.counters().offload_installed)
}

/// Whether rules steer the connections of a seed: of what is installed their modes are asked at other times.
#[must_use]
pub fn steers(seed: u64) -> bool {
    !Plan::of(seed).stages.is_empty()
}

/// Runs a seed without faults, resets and limits: then every request and every join has to be accepted, and nothing
/// reset.
#[must_use]
pub fn run_undisturbed(seed: u64) -> Outcome {
    let plan = Plan::of(seed).undisturbed();
    assert!(plan.is_undisturbed(), "what disturbs is left out");
    run_world(&mut World::new(plan, Trace::Off))
}

/// Runs a seed and prints its packets.
#[must_use]
pub fn run_traced(seed: u64) -> Outcome {
    run_world(&mut World::new(Plan::of(seed), Trace::On))
}

/// Runs a seed in mirror: FlexCP is a box between clients with TCP and servers with MPTCP.
#[must_use]
pub fn run_mirrored(seed: u64, traced: bool) -> Outcome {
    let trace = if traced { Trace::On } else { Trace::Off };
    run_world(&mut World::new(Plan::mirrored(seed), trace))
}

/// The same with connections that are not steered.
#[must_use]
pub fn run_mirrored_unsteered(seed: u64) -> Outcome {
    run_world(&mut World::new(Plan::mirrored_unsteered(seed), Trace::Off))
}

/// Runs a seed in mirror with a translator that installs what runs its steady course in a fast path, which only keeps it. Also how often it
/// did.
#[must_use]
pub fn run_mirrored_installed(seed: u64) -> (Outcome, u64) {
    let mut world = World::new(Plan::mirrored(seed), Trace::Off);
    world.proxy.install();
    let outcome = run_world(&mut world);
    (outcome, world.proxy.translator.counters().offload_installed)
}

/// The same without faults, resets and limits.
#[must_use]
pub fn run_mirrored_undisturbed(seed: u64, traced: bool) -> Outcome {
    let plan = Plan::mirrored(seed).undisturbed();
    assert!(plan.is_undisturbed(), "what disturbs is left out");
    let trace = if traced { Trace::On } else { Trace::Off };
    run_world(&mut World::new(plan, trace))
}

/// What a seed in mirror stands for, as text.
#[must_use]
pub fn describe_mirrored(seed: u64) -> String {
    format!("{:#?}", Plan::mirrored(seed))
}

/// What a seed stands for, as text.
#[must_use]
pub fn describe(seed: u64) -> String {
    format!("{:#?}", Plan::of(seed))
}

/// What the fast path took of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Offloaded {
    /// Packets.
    pub packets: u64,
    /// Those of them that had several segments.
    pub trains: u64,
    /// The translator without a fast path filled a hole that was none, or a mode moved, measured or told something at another
    /// time, as it is asked more rarely of what the fast path carries; behind that, nothing was compared.
    pub parted: bool,
}

/// Runs a seed with the kernel's fast path under the translator. What leaves has to be what a translator without a
/// fast path sends. How many packets the fast path took comes beside the outcome.
#[must_use]
pub fn run_on(kernel: Box<dyn Kernel>, seed: u64, traced: bool) -> (Outcome, Offloaded) {
    run_plan_on(kernel, Plan::of(seed), traced)
}

/// The same of a seed in mirror.
#[must_use]
pub fn run_mirrored_on(kernel: Box<dyn Kernel>, seed: u64, traced: bool) -> (Outcome, Offloaded) {
    run_plan_on(kernel, Plan::mirrored(seed), traced)
}

fn run_plan_on(kernel: Box<dyn Kernel>, plan: Plan, traced: bool) -> (Outcome, Offloaded) {
    let trace = if traced { Trace::On } else { Trace::Off };
    let mut world = World::new(plan, trace);
    world.put_on(kernel);
    let outcome = run_world(&mut world);
    let offloaded = Offloaded {
        packets: world.proxy.offloaded,
        trains: world.proxy.offloaded_trains,
        parted: world.proxy.parted(),
    };
    (outcome, offloaded)
}

fn run_world(world: &mut World) -> Outcome {
    let seed = world.plan.seed;
    let calm = world.plan.calm;
    let mut connections = world.plan.connections.iter();
    // Who has been refused, and hears of a connection all the same, resets that.
    let resets = world.plan.refuses();
    let aborts = resets || connections.any(|connection| connection.aborts);
    let mut failures = Vec::new();
    let mut steps = 0;
    let mut limit = LOOK;
    let mut liveness = Liveness::new(&world.plan);
    let broken = |world: &World| {
        let proxy = &world.proxy;
        proxy.checker.violation_count() > 0
            || proxy.difference().is_some()
            || proxy.heard.contradiction().is_some()
            || world.failure().is_some()
            || world.contradiction().is_some()
    };
    while !world.is_done() && !broken(world) {
        steps += 1;
        if steps > MAX_STEPS {
            failures.push(format!("no end in sight{}", world.unfinished()));
            break;
        }
        if !world.step(limit) {
            world.now = limit;
            let stalled = liveness.look(world);
            if !stalled.is_empty() {
                failures.push(format!("{}{}", stalled.join(", "), world.unfinished()));
                break;
            }
            limit += LOOK;
        }
    }
    let time = world.now;
    if world.plan.is_undisturbed() && !broken(world) {
        failures.extend(undisturbed::failures(world));
    }
    if failures.is_empty() && !broken(world) {
        let limit = time.max(calm) + if aborts { FREED_ABORTED } else { FREED };
        drain(world, limit, &mut failures);
    }
    if let Some(why) = world.failure() {
        failures.push(why.to_owned());
    }
    failures.extend(world.contradiction());
    failures.extend(mirror::failures(
        &world.plan,
        world.proxy.translator.counters(),
    ));
    failures.extend(world.proxy.difference().map(ToOwned::to_owned));
    let contradiction = world.proxy.heard.contradiction();
    failures.extend(contradiction.map(|wrong| format!("events: {wrong}")));
    let found = world.proxy.checker.violations();
    failures.extend(found.iter().map(ToString::to_string));
    Outcome {
        seed,
        packets: world.proxy.packets,
        time,
        hash: world.proxy.checker.output_hash(),
        left_out: world.proxy.left_out,
        stood: liveness.tightest(),
        led: world.proxy.heard.led,
        errands: Errands::of(world),
        failures,
    }
}

/// After the end: the last packets, then the translator's timers, until nothing is left (I12).
fn drain(world: &mut World, limit: u64, failures: &mut Vec<String>) {
    let mut steps = 0;
    while world.step(limit) {
        steps += 1;
        if steps > MAX_STEPS {
            failures.push("hosts do not come to rest".into());
            return;
        }
        if world.failure().is_some() {
            return;
        }
    }
    let left = world.proxy.translator.connections(Instant(limit)).count();
    if left > 0 {
        failures.push(format!(
            "I12: {left} connections left{}",
            world.unfinished()
        ));
    }
    let counters = world.proxy.translator.counters();
    if left == 0 && counters.connections_opened != counters.connections_closed {
        failures.push(format!("I12: counters disagree: {counters:?}"));
    }
    if left == 0
        && world.proxy.heard.contradiction().is_none()
        && let Some(wrong) = world.proxy.heard.failure()
    {
        failures.push(format!("events: {wrong}"));
    }
    let held = world.proxy.translator.gauges();
    if left == 0 && held != Gauges::default() {
        failures.push(format!("I12: still held: {held:?}"));
    }
}
