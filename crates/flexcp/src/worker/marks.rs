//! Which back ends a worker has marked: it writes, and others read whenever they like, without asking it.

use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::{BackendState, Config, Instant, Mark, MarkReason, Mode, ServiceId};

/// One worker's marks, for as long as a configuration is in force: another one has marks of its own.
#[derive(Default, Debug)]
pub struct Marks {
    /// A word for each back end, or aggregation server of a box, service by service: 0 without a mark, else its time in microseconds, and its reason in
    /// the lowest two bits.
    words: Vec<AtomicU64>,
    /// Where each service's begin.
    starts: Vec<(ServiceId, usize)>,
}

impl Marks {
    /// None yet, for the back ends of `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let mut marks = Self::default();
        for service in &config.services {
            marks.starts.push((service.id, marks.words.len()));
            let count = match &service.mode {
                Mode::Reverse { backends, .. } => backends.len(),
                Mode::Box { servers, .. } => servers.addrs().len(),
                Mode::Transparent { .. } | Mode::Explicit { .. } => 0,
            };
            marks.words.extend((0..count).map(|_| AtomicU64::new(0)));
        }
        marks
    }

    fn word(&self, service: ServiceId, backend: usize) -> Option<&AtomicU64> {
        let start = self.starts.iter().find(|(id, _)| *id == service);
        self.words.get(start?.1 + backend)
    }

    pub(crate) fn note(&self, state: BackendState) {
        let packed = state.mark.map_or(0, |mark| {
            let reason = match mark.reason {
                MarkReason::Refused => 1,
                MarkReason::Silent => 2,
                MarkReason::Unreachable => 3,
            };
            mark.since.0 << 2 | reason
        });
        if let Some(word) = self.word(state.service, state.backend) {
            word.store(packed, Ordering::Relaxed);
        }
    }

    /// The mark of a service's back end or aggregation server, by its place in the configuration.
    #[must_use]
    pub fn of(&self, service: ServiceId, backend: usize) -> Option<Mark> {
        let packed = self.word(service, backend)?.load(Ordering::Relaxed);
        let reason = match packed & 3 {
            1 => MarkReason::Refused,
            2 => MarkReason::Silent,
            3 => MarkReason::Unreachable,
            _ => return None,
        };
        let since = Instant(packed >> 2);
        Some(Mark { reason, since })
    }
}

#[cfg(test)]
mod tests {
    use flexcp_translator::Service;

    use super::*;

    #[test]
    fn mark_is_read_as_it_was_written() {
        let reverse = |count: u8| Service {
            id: ServiceId(count.into()),
            name: "shop".into(),
            mode: Mode::Reverse {
                listen: vec![],
                backends: (0..count).map(|n| ([10, 0, 0, n], 80).into()).collect(),
                source: vec![],
                source_ports: 1..=2,
            },
            announce: vec![],
            intake: flexcp_translator::Intake::default(),
        };
        let transparent = Service {
            mode: Mode::Transparent {
                destinations: vec![],
                ports: vec![],
                end_to_end: false,
            },
            ..reverse(0)
        };
        let marks = Marks::new(&Config {
            services: vec![reverse(2), transparent, reverse(1)],
            ..Config::default()
        });
        let places = [(2, 0), (2, 1), (1, 0)].map(|(id, backend)| (ServiceId(id), backend));
        let all = || places.map(|(service, backend)| marks.of(service, backend));
        for reason in [
            MarkReason::Refused,
            MarkReason::Silent,
            MarkReason::Unreachable,
        ] {
            let mark = Some(Mark {
                reason,
                since: Instant(77),
            });
            for (at, (service, backend)) in places.into_iter().enumerate() {
                let mut state = BackendState {
                    service,
                    backend,
                    mark,
                };
                marks.note(state);
                let mut expected = [None; 3];
                expected[at] = mark;
                assert_eq!(all(), expected);
                state.mark = None;
                marks.note(state);
                assert_eq!(all(), [None; 3]);
            }
        }
    }
}
