//! The numbers for Prometheus, made when they are asked for. Labels are bounded: workers, services, servers, uplinks and accesses of
//! the configuration, names of reasons; never an address of a client.

mod servers;

use std::fmt;
use std::sync::Arc;

use flexcp_io::Reasons;
use flexcp_translator::{Causes, Counters, DropReason, Gauges};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _, MetricEncoder, text,
};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::{MetricType, TypedMetric as _};
use prometheus_client::registry::{Registry, Unit};

use super::accesses;
use super::server::Asked;
use super::servers::servers;
use super::status::{State, Status};
use super::view::{Access, BoxServers, ResponderStatus};
use crate::split::Tally;
use crate::worker::{CarrierCounters, Snapshot, Unaccounted};

/// What is told at one scrape.
#[derive(Default, Debug)]
pub(super) struct Numbers {
    workers: Vec<Snapshot>,
    /// `None` without the offload.
    offload: Option<Offload>,
    /// `None`: the watcher is gone, as all is taken back.
    status: Option<Status>,
    accesses: Vec<Access>,
    /// What the relay of split connections counts.
    split: Vec<(&'static str, u64)>,
    /// The aggregation servers of boxes; none where that is not known.
    boxes: Vec<BoxServers>,
    /// What answers the probes of boxes here, if anything does.
    responder: Option<ResponderStatus>,
}

/// What the offload's programs say.
#[derive(Debug)]
struct Offload {
    /// Packets by reason.
    counts: Vec<(&'static str, u64)>,
    held: [(&'static str, u64); 2],
}

/// How it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// As the header `Accept` asks for.
    pub(super) fn wanted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Numbers {
    /// Asks for all of them; with accesses, which takes a look at all connections, if there are any and `accesses` says so.
    pub(super) fn gather(asked: &Asked, accesses: bool) -> Result<Self, String> {
        let workers = asked
            .workers
            .iter()
            .map(|worker| worker.stats().map_err(|gone| gone.to_string()));
        let names = asked.watch.names().map_err(|gone| gone.to_string())?;
        let accesses = match accesses && !names.accesses.is_empty() {
            true => accesses::sums(asked)?.accesses,
            false => vec![],
        };
        let (boxes, responder) =
            servers(asked).map_or_else(|_| (vec![], None), |all| (all.boxes, all.responder));
        Ok(Self {
            workers: workers.collect::<Result<_, _>>()?,
            offload: asked.offload.as_ref().map(|reasons| Offload {
                counts: reasons.counts(),
                held: reasons.held(),
            }),
            status: asked.watch.status().ok(),
            accesses,
            split: asked.split.tally.iter().collect(),
            boxes,
            responder,
        })
    }

    pub(super) fn text(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::new(self)));
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = text::encode(&mut text, &registry);
        match format {
            Format::OpenMetrics => text,
            Format::Prometheus => prometheus(&text),
        }
    }
}

/// OpenMetrics as Prometheus' older format: there a counter is described by the whole name of its samples, and units and the
/// end are not said.
fn prometheus(text: &str) -> String {
    let is_counter = |name: &str| text.contains(&format!("# TYPE {name} counter\n"));
    let mut lines = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if is_counter(name) => {
                lines += &format!("# {what} {name}_total {rest}");
            }
            _ => lines += line,
        }
        lines.push('\n');
    }
    lines
}

impl Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.translator(&mut out)?;
        self.carrier(&mut out)?;
        self.held(&mut out)?;
        self.offloaded(&mut out)?;
        self.host(&mut out)?;
        self.services(&mut out)?;
        self.servers(&mut out)?;
        self.answered(&mut out)?;
        self.relay(&mut out)?;
        self.accesses(&mut out)
    }
}

impl Numbers {
    /// What the translators count.
    fn translator(&self, out: &mut Out<'_>) -> fmt::Result {
        for (place, &(name, meaning)) in Counters::MEANINGS.iter().enumerate() {
            let of = |worker: &Snapshot| nth(worker.counters.iter(), place);
            out.of_workers(name, &joined(meaning), &self.workers, of)?;
        }
        let help = "Packets that were dropped, by reason.";
        let reasons: Vec<_> = DropReason::MEANINGS.iter().map(|(name, _)| *name).collect();
        let dropped = self
            .workers
            .iter()
            .enumerate()
            .flat_map(|(number, worker)| {
                let counts = reasons.iter().zip(worker.drops.iter());
                counts
                    .map(move |(reason, (_, count))| (worker_and("reason", number, reason), count))
            });
        out.counters("packets_dropped", help, dropped)?;
        let help = "What was decided, and why: see flexcp explain.";
        let decided = self
            .workers
            .iter()
            .enumerate()
            .flat_map(|(number, worker)| {
                let causes: &Causes = &worker.counters.causes;
                causes.iter().map(move |(decision, cause, count)| {
                    let mut labels = worker_and("decision", number, decision);
                    labels.push(("cause", cause.into()));
                    (labels, count)
                })
            });
        out.counters("decisions", help, decided)
    }

    /// Packets between the device and the translators.
    fn carrier(&self, out: &mut Out<'_>) -> fmt::Result {
        for (place, &(name, meaning)) in CarrierCounters::MEANINGS.iter().enumerate() {
            let of = |worker: &Snapshot| nth(worker.carrier.iter(), place);
            out.of_workers(
                &format!("carrier_{name}"),
                &joined(meaning),
                &self.workers,
                of,
            )?;
        }
        let help =
            "Packets that can't be accounted for, by where they are lost: a defect unless it is 0.";
        let unaccounted = self
            .workers
            .iter()
            .enumerate()
            .flat_map(|(number, worker)| {
                let sums: Vec<_> = Unaccounted::of(worker).iter().collect();
                sums.into_iter()
                    .map(move |(name, count)| (worker_and("sum", number, name), count))
            });
        out.gauges("packets_unaccounted", help, None, unaccounted)?;
        let sum = |of: fn(&CarrierCounters) -> u64| -> u64 {
            self.workers.iter().map(|worker| of(&worker.carrier)).sum()
        };
        let in_rings =
            sum(|carrier| carrier.handed_over).saturating_sub(sum(|carrier| carrier.taken_over));
        let help = "Packets on their way to another worker.";
        out.gauges(
            "packets_in_rings",
            help,
            None,
            [(vec![], in_rings)].into_iter(),
        )
    }

    /// What the workers hold now.
    fn held(&self, out: &mut Out<'_>) -> fmt::Result {
        for (place, &(name, meaning)) in Gauges::MEANINGS.iter().enumerate() {
            let held = self.by_worker(|worker| nth(worker.gauges.iter(), place));
            out.gauges(name, &joined(meaning), None, held)?;
        }
        let help = "Bytes of memory that the connections of the worker may take.";
        let budgets = self.by_worker(|worker| worker.memory_budget);
        out.gauges("memory_budget", help, Some(Unit::Bytes), budgets)?;
        let kept = self.by_worker(|worker| worker.kept);
        out.gauges(
            "packets_kept",
            "Packets that wait to be written.",
            None,
            kept,
        )?;
        let help = "Flows that the worker has claimed in the placement program's map.";
        let claimed = self.by_worker(|worker| worker.claimed_flows);
        out.gauges("claimed_flows", help, None, claimed)
    }

    fn by_worker<'a>(
        &'a self,
        of: impl Fn(&Snapshot) -> u64 + 'a,
    ) -> impl Iterator<Item = (Labels, u64)> + 'a {
        let workers = self.workers.iter().enumerate();
        workers.map(move |(number, worker)| (worker_label(number), of(worker)))
    }

    /// What the kernel's programs count and hold.
    fn offloaded(&self, out: &mut Out<'_>) -> fmt::Result {
        let Some(Offload { counts, held }) = &self.offload else {
            return Ok(());
        };
        debug_assert_eq!(
            counts.len(),
            Reasons::meanings().len(),
            "one for each reason"
        );
        let help = "Packets of connections that were installed once, by what became of them: see flexcp explain offload.";
        let counts = counts
            .iter()
            .map(|(reason, count)| (label("reason", reason), *count));
        out.counters("offload_packets", help, counts)?;
        for ((name, count), help) in held.iter().zip(HELD) {
            out.gauges(name, help, None, [(vec![], *count)].into_iter())?;
        }
        Ok(())
    }

    /// What the watcher says.
    fn host(&self, out: &mut Out<'_>) -> fmt::Result {
        let Some(status) = &self.status else {
            return Ok(());
        };
        let version = [(label("version", &status.release), 1)].into_iter();
        out.gauges("build_info", "The version that runs.", None, version)?;
        let states = [State::Ready, State::Degraded, State::Waiting];
        let states = states.map(|state| {
            (
                label("state", state.name()),
                u64::from(state == status.state),
            )
        });
        out.gauges(
            "state",
            "Whether packets get through: 1 at one of the states.",
            None,
            states.into_iter(),
        )?;
        let problems = status.problems.len() as u64;
        out.gauges(
            "problems",
            "What is in the way of packets: see flexcp show status.",
            None,
            one(problems),
        )?;
        let help = "Number of the configuration in force.";
        out.gauges(
            "configuration_generation",
            help,
            None,
            one(status.generation),
        )?;
        let help = "Earlier configurations whose connections may still go on.";
        out.gauges("configurations_draining", help, None, one(status.draining))?;
        let help = "Seconds since the start.";
        let uptime = [(vec![], status.uptime_us)].into_iter();
        out.seconds("uptime", help, uptime)?;
        let help = "What others had taken away in the kernel and FlexCP has put back.";
        let mended = status.mended.0.iter();
        let mended = mended.map(|(what, count)| (label("what", what), *count));
        out.counters("mended", help, mended)
    }

    /// What the relay of split connections has done.
    fn relay(&self, out: &mut Out<'_>) -> fmt::Result {
        for ((name, count), (_, meaning)) in self.split.iter().zip(Tally::MEANINGS) {
            let count = [(vec![], *count)].into_iter();
            out.counters(&format!("relay_{name}"), &joined(meaning), count)?;
        }
        Ok(())
    }

    fn services(&self, out: &mut Out<'_>) -> fmt::Result {
        let services = self.status.iter().flat_map(|status| &status.services);
        let passes = services.clone().map(|service| {
            let labels = vec![
                ("service", service.name.clone()),
                ("mode", service.mode.clone()),
            ];
            (labels, u64::from(service.passes))
        });
        out.gauges(
            "service_passes",
            "Whether packets of the service get through.",
            None,
            passes,
        )?;
        let marked = services.clone().map(|service| {
            let marked = service.marked_backends.len() as u64;
            (label("service", &service.name), marked)
        });
        let help = "Back ends that new connections pass by.";
        out.gauges("service_marked_backends", help, None, marked)?;
        let up = services.flat_map(|service| {
            service.interfaces.iter().map(|interface| {
                let labels = vec![
                    ("service", service.name.clone()),
                    ("interface", interface.name.clone()),
                ];
                (labels, u64::from(interface.present && interface.up))
            })
        });
        out.gauges(
            "service_interface_up",
            "Whether an interface of clients is there and up.",
            None,
            up,
        )
    }

    /// What the subflows do that live: sums that fall when some end.
    fn accesses(&self, out: &mut Out<'_>) -> fmt::Result {
        if self.accesses.is_empty() {
            return Ok(());
        }
        let of = |number: fn(&Access) -> u64| {
            let of = self.accesses.iter();
            of.map(move |access| (of_access(access), number(access)))
        };
        for (name, help, number) in SUMS {
            out.gauges(name, help, None, of(number))?;
        }
        for (name, help, number) in TOTALS {
            out.counters(name, help, of(number))?;
        }
        let timed = |time: fn(&Access) -> Option<u64>| {
            let timed = self.accesses.iter();
            timed.filter_map(move |access| Some((of_access(access), time(access)?)))
        };
        out.seconds(
            "access_rtt_mean",
            "The mean of the subflows' smoothed RTTs.",
            timed(|access| access.rtt_us),
        )?;
        let help = "The least RTT of the last five minutes.";
        out.seconds(
            "access_rtt_least",
            help,
            timed(|access| access.rtt_least_us),
        )
    }
}

/// Name, meaning and number.
type Sum<T = Access> = (&'static str, &'static str, fn(&T) -> u64);

/// Names and values.
type Labels = Vec<(&'static str, String)>;

/// Where metrics are written to.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    /// A counter of each worker. A name that ends with its unit says it.
    fn of_workers(
        &mut self,
        name: &str,
        help: &str,
        workers: &[Snapshot],
        of: impl Fn(&Snapshot) -> u64,
    ) -> fmt::Result {
        let counts = workers.iter().enumerate();
        self.counters(
            name,
            help,
            counts.map(|(number, worker)| (worker_label(number), of(worker))),
        )
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        counts: impl Iterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let (name, unit) = with_unit(name, None);
        let kind = ConstCounter::<u64>::TYPE;
        let mut family = self.0.encode_descriptor(&name, help, unit.as_ref(), kind)?;
        for (labels, count) in counts {
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        numbers: impl Iterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let (name, unit) = with_unit(name, unit);
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(&name, help, unit.as_ref(), kind)?;
        for (labels, number) in numbers {
            gauge(&mut family, &labels, &number)?;
        }
        Ok(())
    }

    /// Gauges of times that are given in microseconds.
    fn seconds(
        &mut self,
        name: &str,
        help: &str,
        times: impl Iterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let name = format!("{PREFIX}{name}");
        let unit = Some(&Unit::Seconds);
        let mut family = self
            .0
            .encode_descriptor(&name, help, unit, MetricType::Gauge)?;
        for (labels, micros) in times {
            #[expect(
                clippy::cast_precision_loss,
                reason = "no time is longer than 285 years"
            )]
            let seconds = micros as f64 / 1e6;
            gauge(&mut family, &labels, &seconds)?;
        }
        Ok(())
    }
}

/// A gauge's sample. Without labels there are no braces, either.
fn gauge(
    family: &mut MetricEncoder<'_>,
    labels: &Labels,
    number: &impl EncodeGaugeValue,
) -> fmt::Result {
    match labels.as_slice() {
        [] => family.encode_gauge(number),
        _ => family.encode_family(labels)?.encode_gauge(number),
    }
}

/// The name as it is told, and its unit, which a name that ends with it says by itself.
fn with_unit(name: &str, unit: Option<Unit>) -> (String, Option<Unit>) {
    match name.strip_suffix("_bytes") {
        Some(name) if unit.is_none() => (format!("{PREFIX}{name}"), Some(Unit::Bytes)),
        _ => (format!("{PREFIX}{name}"), unit),
    }
}

fn nth(mut numbers: impl Iterator<Item = (&'static str, u64)>, place: usize) -> u64 {
    numbers.nth(place).map_or(0, |(_, number)| number)
}

/// The lines of a comment, as one.
fn joined(meaning: &[&str]) -> String {
    let lines: Vec<_> = meaning.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.into())]
}

/// One number, without labels.
fn one(value: u64) -> impl Iterator<Item = (Labels, u64)> {
    [(vec![], value)].into_iter()
}

fn worker_label(number: usize) -> Labels {
    vec![("worker", number.to_string())]
}

fn worker_and(name: &'static str, number: usize, value: &str) -> Labels {
    let mut labels = worker_label(number);
    labels.push((name, value.into()));
    labels
}

fn of_access(access: &Access) -> Labels {
    label("access", access.name.as_deref().unwrap_or_default())
}

/// Before all names.
const PREFIX: &str = "flexcp_";

/// What the programs hold, in the order of [`Reasons::held`].
const HELD: [&str; 2] = [
    "Entries of the kernel programs' table of flows.",
    "Connections that are the kernel programs' own.",
];

/// What is summed of an access's subflows.
const SUMS: [Sum; 5] = [
    ("access_subflows", "Subflows of the access.", |access| {
        access.subflows
    }),
    (
        "access_active_subflows",
        "Subflows that carry their connection's data to the client.",
        |access| access.active,
    ),
    (
        "access_backup_subflows",
        "Subflows that are to be used when no other is left.",
        |access| access.backup,
    ),
    (
        "access_in_flight_bytes",
        "Bytes to the clients that they have not ACKed.",
        |access| access.in_flight,
    ),
    (
        "access_delivery_rate_bytes_per_second",
        "Bytes per second that the clients ACK, of the subflows on which something is outstanding.",
        |access| access.delivery_rate,
    ),
];
const TOTALS: [Sum; 6] = [
    (
        "access_opened",
        "Subflows that came up: first ones of clients that asked for MPTCP, and joins.",
        |access| access.opened,
    ),
    (
        "access_stripped",
        "Of the subflows that came up, those whose MPTCP options did not come through.",
        |access| access.stripped,
    ),
    (
        "access_plain",
        "Connections whose SYN was without MPTCP.",
        |access| access.plain,
    ),
    (
        "access_up_bytes",
        "Bytes from the clients, retransmissions included.",
        |access| access.bytes_up,
    ),
    (
        "access_down_bytes",
        "Bytes to the clients, retransmissions included.",
        |access| access.bytes_down,
    ),
    (
        "access_retransmitted_down_bytes",
        "Bytes to the clients that had been sent before.",
        |access| access.retransmitted_down,
    ),
];
