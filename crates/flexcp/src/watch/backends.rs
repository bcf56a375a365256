//! Back ends that the workers have marked, as they are told.

use std::net::SocketAddr;
use std::sync::Arc;

use flexcp_translator::{Mark, MarkReason, Part, ServiceId};

use super::facts::Problem;
use crate::control::status::{MarkedBackend, ServiceStatus};
use crate::generation::Generation;
use crate::worker::Marks;

/// What is told of back ends.
#[derive(Debug)]
pub(super) struct Backends {
    services: Vec<Service>,
    /// Each worker's.
    marks: Vec<Arc<Marks>>,
    problems: Vec<Problem>,
}

/// A service and its back ends; none on the path.
#[derive(Debug)]
struct Service {
    id: ServiceId,
    name: String,
    backends: Vec<SocketAddr>,
    /// Those of them that take new connections.
    taking: Vec<SocketAddr>,
    /// Those that nobody expects to answer.
    maintenance: Vec<SocketAddr>,
}

impl Backends {
    /// Those of a generation, as workers have marked them.
    pub(super) fn new(generation: &Generation, marks: Vec<Arc<Marks>>) -> Self {
        let services = generation.config.services.iter().zip(&generation.ids);
        let services = services.map(|(service, id)| {
            let name = &service.name.value;
            let backends = service.mode.backends();
            let of = |which: fn(Part) -> bool| {
                let parts = backends.iter().map(|to| {
                    let (part, _) = generation.orders.part(name, to.value);
                    (to.value.addr, part)
                });
                let parts = parts.filter(|(_, part)| which(*part));
                parts.map(|(addr, _)| addr).collect()
            };
            Service {
                id: *id,
                name: name.clone(),
                backends: of(|_| true),
                taking: of(Part::takes),
                maintenance: of(|part| part.maintenance),
            }
        });
        Self {
            services: services.collect(),
            marks,
            problems: vec![],
        }
    }

    /// Looks at the marks, at a moment in microseconds. `true`: what there is to tell has changed.
    pub(super) fn look(&mut self, now: u64) -> bool {
        let mut problems = vec![];
        for (at, service) in self.services.iter().enumerate() {
            if service.taking.is_empty() && !service.backends.is_empty() {
                problems.push(Problem {
                    line: format!(
                        "service {} takes no connection: each of its back ends is in maintenance or has weight 0",
                        service.name
                    ),
                    service: Some(at),
                    stops: true,
                });
            }
            for (number, addr) in service.backends.iter().enumerate() {
                let Some((mark, _)) = self.mark(service.id, number) else {
                    continue;
                };
                if service.maintenance.contains(addr) {
                    continue;
                }
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
        for (status, service) in services.iter_mut().zip(&self.services) {
            let numbered = service.backends.iter().enumerate();
            let marked = numbered.filter_map(|(number, addr)| {
                let (mark, workers) = self.mark(service.id, number)?;
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
    fn mark(&self, service: ServiceId, backend: usize) -> Option<(Mark, u64)> {
        let workers = self.marks.iter();
        let marks = workers.filter_map(|marks| marks.of(service, backend));
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
const TOLD: u64 = 1_500_000;

#[cfg(test)]
mod tests {
    use flexcp_translator::{BackendState, Instant, Service as Told};

    use super::*;

    const SINCE: u64 = 5_000_000;

    fn marks() -> Arc<Marks> {
        let backends = addrs();
        let mode = flexcp_translator::Mode::Reverse {
            listen: vec![],
            backends,
            source: vec![],
            source_ports: 1..=2,
        };
        Arc::new(Marks::new(&flexcp_translator::Config {
            services: vec![Told {
                id: ServiceId(0),
                name: "shop".into(),
                mode,
                announce: vec![],
                intake: flexcp_translator::Intake::default(),
            }],
            ..Default::default()
        }))
    }

    fn addrs() -> Vec<SocketAddr> {
        ["10.0.0.11:443", "10.0.0.12:443"]
            .map(|addr| addr.parse().unwrap())
            .into()
    }

    fn backends(workers: &[Arc<Marks>]) -> Backends {
        Backends {
            services: vec![Service {
                id: ServiceId(0),
                name: "shop".into(),
                backends: addrs(),
                taking: addrs(),
                maintenance: vec![],
            }],
            marks: workers.to_vec(),
            problems: vec![],
        }
    }

    fn marked(since: u64, reason: MarkReason) -> BackendState {
        BackendState {
            service: ServiceId(0),
            backend: 1,
            mark: Some(Mark {
                reason,
                since: Instant(since),
            }),
        }
    }

    fn lines(backends: &Backends) -> Vec<&str> {
        let lines = backends.problems().iter().map(|problem| &*problem.line);
        lines.collect()
    }

    #[test]
    fn mark_that_stands_is_told_once_and_until_it_goes() {
        let workers = [marks(), marks()];
        let mut backends = backends(&workers);
        assert!(!backends.look(SINCE));
        workers[1].note(marked(SINCE, MarkReason::Silent));
        assert!(!backends.look(SINCE + TOLD - 1));
        assert!(backends.look(SINCE + TOLD));
        let line = "back end 10.0.0.12:443 of service shop does not answer; connections pass it by";
        assert_eq!(lines(&backends), [line]);
        assert!(!backends.look(SINCE + 2 * TOLD));
        workers[1].note(marked(SINCE, MarkReason::Refused));
        assert!(backends.look(SINCE + 2 * TOLD));
        assert!(lines(&backends)[0].contains("refuses connections"));
        workers[1].note(BackendState {
            mark: None,
            ..marked(0, MarkReason::Silent)
        });
        assert!(backends.look(SINCE + 2 * TOLD));
        assert!(lines(&backends).is_empty());
    }

    #[test]
    fn back_end_in_maintenance_is_no_problem_and_none_that_takes_connections_is_one() {
        let workers = [marks()];
        let mut backends = backends(&workers);
        workers[0].note(marked(SINCE, MarkReason::Silent));
        backends.services[0].maintenance = vec![addrs()[1]];
        assert!(!backends.look(SINCE + TOLD));
        backends.services[0].taking.clear();
        assert!(backends.look(SINCE + TOLD));
        let line = "service shop takes no connection: each of its back ends is in maintenance or has weight 0";
        assert_eq!(lines(&backends), [line]);
        assert!(backends.problems()[0].stops);
    }

    #[test]
    fn status_has_each_mark_at_once_with_the_first_workers_word() {
        let workers = [marks(), marks()];
        let backends = backends(&workers);
        workers[0].note(marked(SINCE + 3, MarkReason::Silent));
        workers[1].note(marked(SINCE, MarkReason::Refused));
        let mut status = [ServiceStatus {
            name: "shop".into(),
            mode: "reverse".into(),
            passes: true,
            interfaces: vec![],
            marked_backends: vec![],
        }];
        backends.add_to(&mut status, SINCE + 10);
        let expected = MarkedBackend {
            address: addrs()[1],
            reason: "refused".into(),
            marked_us: 10,
            workers: 2,
        };
        assert_eq!(status[0].marked_backends, [expected]);
    }
}
