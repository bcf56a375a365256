//! What is measured: groups of cells that share labs, and the work of each cell.

use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::statistics::{median, quantile};

use crate::load::{Exchange, Load, Outcome};
use crate::rig::{Rig, Setting, Subject};

/// Cells that are measured in the same labs.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) setting: Setting,
    pub(crate) cells: Vec<Cell>,
}

/// One thing that is measured, in all rounds, of all subjects.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Within its group, e.g. `down/64x2`.
    pub(crate) name: String,
    pub(crate) work: Work,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Objects over persistent connections, as fast as they go.
    Throughput {
        exchange: Exchange,
        connections: usize,
        subflows: usize,
    },
    /// One object after the other, each on a connection of its own.
    Response { bytes: u64, count: usize },
    /// Objects of 1 KB over persistent connections.
    Requests { connections: usize },
    /// Objects of 1 KB, each on a connection of its own.
    NewConnections { connections: usize },
}

/// How long each run of a load is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) warm: Duration,
    pub(crate) time: Duration,
}

/// A figure of one run: what is put before the cell's name, unit, value.
pub(crate) type Figure = (&'static str, &'static str, f64);

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) figures: Vec<Figure>,
    /// CPUs that others kept busy meanwhile.
    pub(crate) foreign: f64,
}

impl Work {
    /// Does it once.
    pub(crate) fn run(self, rig: &Rig, pace: Pace) -> Result<Run> {
        let (load, subflows) = self.load(rig, pace);
        let outcome = rig.load(&load, subflows)?;
        let failed = outcome.failures;
        ensure!(!outcome.micros.is_empty(), "no object arrived as a whole");
        ensure!(
            failed * 1000 <= outcome.micros.len(),
            "{failed} failures beside {} objects: {}",
            outcome.micros.len(),
            outcome.failure.as_deref().unwrap_or_default()
        );
        Ok(Run {
            figures: self.figures(rig.subject, &outcome),
            foreign: outcome.cpu.foreign / outcome.cpu.wall,
        })
    }

    fn load(self, rig: &Rig, pace: Pace) -> (Load, usize) {
        let base = |exchange, connections| Load {
            to: rig.target(exchange),
            from: vec![],
            proto: rig.proto(),
            connections,
            exchange,
            reconnect: false,
            warm: pace.warm,
            time: pace.time,
            enough: None,
        };
        match self {
            Self::Throughput {
                exchange,
                connections,
                subflows,
            } => (base(exchange, connections), subflows),
            Self::Response { bytes, count } => {
                let load = Load {
                    reconnect: true,
                    warm: Duration::ZERO,
                    time: RESPONSES,
                    enough: Some(count),
                    ..base(Exchange::Get(bytes), 1)
                };
                (load, 2)
            }
            Self::Requests { connections } => (base(Exchange::Get(KILO), connections), 2),
            Self::NewConnections { connections } => {
                let load = Load {
                    from: rig.addresses(),
                    reconnect: true,
                    ..base(Exchange::Get(KILO), connections)
                };
                (load, 1)
            }
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "bytes and objects of a few seconds"
    )]
    fn figures(self, subject: Subject, outcome: &Outcome) -> Vec<Figure> {
        let cpu = outcome.cpu;
        let objects = outcome.micros.len() as f64;
        match self {
            Self::Throughput { .. } => {
                let giga = outcome.bytes as f64 / 1e9;
                let mut figures = vec![
                    ("throughput", "GB/s", giga / cpu.wall),
                    ("cpu", "s/GB", cpu.ours / giga),
                ];
                if !subject.is_bare() {
                    let charged = outcome.cpu_of_process / giga;
                    figures.push(("cpu-charged-to-proxy", "s/GB", charged));
                }
                figures
            }
            Self::Response { .. } => vec![
                ("response-median", "us", median(&outcome.micros)),
                ("response-p99", "us", quantile(&outcome.micros, 0.99)),
            ],
            Self::Requests { connections: 1 } => vec![
                ("latency-median", "us", median(&outcome.micros)),
                ("latency-p99", "us", quantile(&outcome.micros, 0.99)),
            ],
            Self::Requests { .. } => vec![
                ("requests", "1/s", objects / cpu.wall),
                ("cpu", "us/request", cpu.ours * 1e6 / objects),
            ],
            Self::NewConnections { .. } => vec![
                ("connections", "1/s", objects / cpu.wall),
                ("cpu", "us/connection", cpu.ours * 1e6 / objects),
            ],
        }
    }
}

/// The first item alone, in short.
pub(crate) fn quick() -> Vec<Group> {
    let mut group = throughput();
    group.cells.retain(|cell| cell.name.starts_with("down/64x"));
    vec![group]
}

/// Everything that is a load.
pub(crate) fn all() -> Vec<Group> {
    vec![
        throughput(),
        small(),
        no_gso(),
        tun(),
        unsteered(),
        sustained(),
        two_workers(),
        placement(),
        plain(),
        rule(),
        crowd("crowd", "-crowd", false),
        crowd("crowd-plain", "-crowd-plain", true),
    ]
}

fn setting(objects: &[u64]) -> Setting {
    Setting {
        gso: true,
        in_order: true,
        congestion: None,
        objects: objects.to_vec(),
        addresses: 0,
        workers: 1,
        plain: false,
    }
}

fn cell(name: String, work: Work) -> Cell {
    Cell { name, work }
}

fn throughput() -> Group {
    let mut cells = vec![];
    for (direction, exchange) in [("down", Exchange::Get(MEGA)), ("up", Exchange::Put(MEGA))] {
        for connections in [64, 256] {
            for subflows in [1, 2] {
                let work = Work::Throughput {
                    exchange,
                    connections,
                    subflows,
                };
                let name = format!("{direction}/{connections}x{subflows}");
                cells.push(cell(name, work));
            }
        }
    }
    Group {
        name: "bulk",
        subjects: Subject::COMPARED.to_vec(),
        setting: setting(&[MEGA]),
        cells,
    }
}

/// Times of single objects, small objects, new connections.
fn small() -> Group {
    let sizes = [
        ("1KB", KILO, 200),
        ("16KB", 16 * KILO, 200),
        ("256KB", 256 * KILO, 200),
        ("1MB", MEGA, 100),
        ("4MB", 4 * MEGA, 50),
        ("16MB", 16 * MEGA, 20),
        ("64MB", 64 * MEGA, 8),
    ];
    let mut cells: Vec<_> = sizes
        .map(|(name, bytes, count)| cell(name.to_owned(), Work::Response { bytes, count }))
        .into();
    for (name, connections) in [("1KB/1-connection", 1), ("1KB/16-connections", 16)] {
        cells.push(cell(name.to_owned(), Work::Requests { connections }));
    }
    let work = Work::NewConnections { connections: 64 };
    cells.push(cell("1KB/64-at-once".to_owned(), work));
    Group {
        name: "small",
        subjects: Subject::COMPARED.to_vec(),
        setting: Setting {
            addresses: 8,
            ..setting(&sizes.map(|(_, bytes, _)| bytes))
        },
        cells,
    }
}

/// Cells of `bulk` in other circumstances, with a suffix to their names.
fn variant(name: &'static str, suffix: &str, chosen: impl Fn(&str) -> bool) -> Group {
    let mut group = throughput();
    group.name = name;
    group.cells.retain(|cell| chosen(&cell.name));
    for cell in &mut group.cells {
        cell.name.push_str(suffix);
    }
    group
}

fn no_gso() -> Group {
    let mut group = variant("no-gso", "-no-gso", |cell| cell.starts_with("down/64x"));
    group.setting.gso = false;
    group
}

/// What a TUN device carries at most, and how near the translator comes.
fn tun() -> Group {
    let mut group = variant("tun", "-tun", |cell| cell.ends_with("x2"));
    group.subjects = vec![Subject::Translator, Subject::Haproxy, Subject::Tun];
    group
}

/// On links without receive packet steering: the CPU that sends a packet receives it, too, and packets overtake each
/// other.
fn unsteered() -> Group {
    let mut group = variant("unsteered", "-unsteered", |cell| cell.ends_with("x2"));
    let work = Work::Requests { connections: 16 };
    let requests = cell("1KB/16-connections-unsteered".to_owned(), work);
    group.cells.push(requests);
    group.setting.objects.push(KILO);
    group.setting.in_order = false;
    group
}

/// Objects of which each takes much longer than a connection needs to be installed.
fn sustained() -> Group {
    const OBJECT: u64 = 64 * MEGA;
    let mut group = variant("sustained", "-sustained", |cell| cell.ends_with("x2"));
    for cell in &mut group.cells {
        if let Work::Throughput { exchange, .. } = &mut cell.work {
            *exchange = match exchange {
                Exchange::Get(_) => Exchange::Get(OBJECT),
                Exchange::Put(_) => Exchange::Put(OBJECT),
            };
        }
    }
    group.subjects = vec![Subject::FlexCp, Subject::Mptcp, Subject::Tcp];
    group.setting.objects = vec![OBJECT];
    group.setting.in_order = false;
    group
}

/// Two workers of FlexCP, with all packets of a connection on one of them.
fn two_workers() -> Group {
    let mut group = variant("workers", "-two-workers", |cell| cell == "down/256x2");
    group.subjects = vec![Subject::FlexCp, Subject::Translator];
    group.setting.workers = 2;
    group
}

/// What placement is worth (figure 9 of the paper): two workers that get all packets of their connections, those that
/// the kernel chooses, or every other packet.
fn placement() -> Group {
    let mut group = variant("placement", "-placement", |cell| cell.ends_with("x2"));
    group.subjects = vec![
        Subject::Translator,
        Subject::KernelPlacement,
        Subject::Scatter,
    ];
    group.setting.workers = 2;
    group
}

/// Clients that speak TCP, as most of a service on the path do: through FlexCP and past it.
fn plain() -> Group {
    let mut group = variant("plain", "-plain", |cell| cell.ends_with("x1"));
    group.subjects.retain(|subject| *subject != Subject::Mptcp);
    group.setting.plain = true;
    group
}

/// What steering costs connections that have a choice.
fn rule() -> Group {
    let mut group = variant("rule", "-rule", |cell| cell.starts_with("down/64x"));
    group.subjects = vec![Subject::FlexCp, Subject::Ruled];
    group
}

/// 256 connections alone, and among many that are idle.
fn crowd(name: &'static str, suffix: &str, plain: bool) -> Group {
    let mut group = variant(name, suffix, |cell| cell.ends_with("/256x1"));
    group.subjects = vec![Subject::FlexCp, Subject::Crowded];
    group.setting.plain = plain;
    group
}

/// Longer than it takes to fetch the objects of a cell, unless something stalls.
const RESPONSES: Duration = Duration::from_secs(8);

pub(crate) const KILO: u64 = 1000;
pub(crate) const MEGA: u64 = 1_000_000;
