//! Back ends that the workers have marked, as they are told.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_translator::{Mark, MarkReason};

use super::facts::Problem;
use crate::config::Config;
use crate::config::file::Mode;
use crate::control::status::{MarkedBackend, ServiceStatus};
use crate::worker::WorkerHandle;

/// What is told of back ends.
#[derive(Debug)]
pub struct Backends {
    services: Vec<Service>,
    workers: Vec<WorkerHandle>,
    problems: Vec<Problem>,
}

/// A service and its back ends; none on the path.
#[derive(Debug)]
struct Service {
    name: String,
    backends: Vec<SocketAddr>,
}

impl Backends {
    /// Those of `config`, as `workers` have them.
    pub fn new(config: &Config, workers: Vec<WorkerHandle>) -> Self {
        let services = config.services.iter().map(|service| Service {
            name: service.name.value.clone(),
            backends: match &service.mode {
                Mode::Reverse { backends, .. } => backends.iter().map(|to| to.value).collect(),
                Mode::Transparent { .. } => vec![],
            },
        });
        Self {
            services: services.collect(),
            workers,
            problems: vec![],
        }
    }

    /// Looks at the marks, at a moment in microseconds. `true`: what there is to tell has changed.
    pub(super) fn look(&mut self, now: u64) -> bool {
        let mut problems = vec![];
        for (at, service) in self.services.iter().enumerate() {
            for (number, addr) in service.backends.iter().enumerate() {
                let Some((mark, _)) = self.mark(at, number) else {
                    continue;
                };
                if now.saturating_sub(mark.since.0) >= TOLD {
                    let passed_by = match service.backends.len() {
                        1 => "",
                        _ => "; connections pass it by",
                    };
                    let (name, how) = (&service.name, how(mark.reason));
                    problems.push(Problem {
                        line: format!("back end {addr} of service {name} {how}{passed_by}"),
                        service: Some(at),
                        stops: false,
                    });
                }
            }
        }
        let changed = self.problems != problems;
        self.problems = problems;
        changed
    }

    /// What is wrong for long enough to be told.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Adds those that are marked now to their services.
    pub(super) fn add_to(&self, services: &mut [ServiceStatus], now: u64) {
        let all = services.iter_mut().zip(&self.services).enumerate();
        for (at, (status, service)) in all {
            let numbered = service.backends.iter().enumerate();
            let marked = numbered.filter_map(|(number, addr)| {
                let (mark, workers) = self.mark(at, number)?;
                Some(MarkedBackend {
                    address: *addr,
                    reason: mark.reason.name().into(),
                    marked_us: now.saturating_sub(mark.since.0),
                    workers,
                })
            });
            status.marked_backends = marked.collect();
        }
    }

    /// The oldest mark of a back end, and how many workers have marked it.
    fn mark(&self, service: usize, backend: usize) -> Option<(Mark, u64)> {
        let workers = self.workers.iter();
        let marks = workers.filter_map(|worker| worker.marks().of(service, backend));
        let count = u64::try_from(marks.clone().count()).unwrap_or(u64::MAX);
        Some((marks.min_by_key(|mark| mark.since)?, count))
    }
}

/// What a back end does, for people.
const fn how(reason: MarkReason) -> &'static str {
    match reason {
        MarkReason::Refused => "refuses connections",
        MarkReason::Silent => "does not answer",
        MarkReason::Unreachable => "can't be reached",
    }
}

/// A mark is told once it has stood for so long, in microseconds: a SYN that got lost is no news, and a back end that
/// lives has answered the first probe by then.
const TOLD: u64 = Duration::from_millis(1500).as_micros() as u64;
