//! One run: the lab, the load, and what changes under it.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use flexcp_lab::aim::Line;
use flexcp_lab::series::{Recorder, Series};
use flexcp_lab::transfer::Proto;
use flexcp_lab::{Families, Family, FlexCp, Lab, Mib, carried, daemon};
use serde::Serialize;

use super::phases::{self, Marks, Phases};
use super::{Figure10, Offload};
use crate::load::{Exchange, Load, Outcome};
use crate::programs::{self, WEB};
use crate::rig;

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) offload: Offload,
    pub(super) lines: Vec<Line>,
    pub(super) marks: Marks,
    pub(super) series: Series,
}

/// What was counted from the first connection to the last.
struct Counted {
    /// At the client.
    client: Mib,
    /// At the server.
    server: Mib,
    /// Packets of the server's data that came to FlexCP.
    data: u64,
    /// Of them, those that the kernel translated, as far as FlexCP has been told.
    in_kernel: u64,
    /// Moves of a connection from one path to another.
    switches: u64,
}

impl Figure10 {
    /// Runs all phases.
    pub(super) fn once(&self, offload: Offload, phases: &Phases) -> Result<Run> {
        let lab = self.lab()?;
        rig::prepare(&lab)?;
        for namespace in [lab.client(), lab.server(1)] {
            namespace.sysctl(&[("net.ipv4.tcp_congestion_control", &self.congestion)])?;
        }
        let web = programs::web(&lab, Proto::Tcp, &[MEGA])?;
        let flexcp = self.flexcp(&lab, offload)?;
        let before = Counted::read(&lab, &flexcp)?;
        let recorder = Recorder::start(&lab, EVERY)?;
        let (marks, outcome) = thread::scope(|scope| {
            let load = self.load(&lab, phases);
            let client = lab.client().clone();
            let load = scope.spawn(move || client.run(|| load.run(None)));
            let marks = self.change(&lab, phases, &recorder);
            let outcome = load.join().map_err(|_| anyhow!("the load panicked"))?;
            anyhow::Ok((marks?, outcome?))
        })
        .with_context(|| flexcp.log())?;
        let series = recorder.finish()?;
        let counted = Counted::read(&lab, &flexcp)?.since(&before);
        flexcp.stop()?;
        drop(web);
        let mut lines = phases::judge(&series, &marks);
        lines.extend(self.beside(offload, &outcome, &counted));
        Ok(Run {
            offload,
            lines,
            marks,
            series,
        })
    }

    fn lab(&self) -> Result<Lab> {
        let builder = Lab::builder()
            .endpoints(Families::Neither)
            .queue_ms(self.queue_ms);
        let links = [1, 2].into_iter();
        links
            .fold(builder, |builder, link| {
                builder.rate_mbit(link, self.rate_mbit)
            })
            .build()
    }

    fn flexcp(&self, lab: &Lab, offload: Offload) -> Result<FlexCp> {
        let mut services = daemon::accesses(lab);
        if !self.rule.is_empty() {
            services += &format!("[[rule]]\nname = \"figure10\"\n{}\n\n", self.rule);
        }
        services += &daemon::transparent(lab, &[]);
        rig::start_flexcp(lab, offload == Offload::On, "workers = 1", &services)
    }

    fn load(&self, lab: &Lab, phases: &Phases) -> Load {
        Load {
            to: lab.server_socket(1, Family::V4, WEB),
            from: vec![],
            proto: Proto::Mptcp,
            connections: self.connections,
            exchange: Exchange::Get(MEGA),
            reconnect: false,
            warm: Duration::ZERO,
            time: Duration::from_secs_f64(phases.total()),
            enough: None,
        }
    }

    /// Does to the second path what the phases ask for.
    fn change(&self, lab: &Lab, phases: &Phases, recorder: &Recorder) -> Result<Marks> {
        let [one, two, slow, back] = phases.seconds();
        let began = recorder.now();
        let wait = |until: f64| {
            let left = (began + until - recorder.now()).max(0.0);
            thread::sleep(Duration::from_secs_f64(left));
        };
        let mut marks = Marks {
            one: began,
            two: 0.0,
            slow: 0.0,
            back: 0.0,
            end: 0.0,
        };
        wait(one);
        marks.two = recorder.now();
        let own = lab.client_addr(2, Family::V4);
        lab.client()
            .ip(&format!("mptcp endpoint add {own} dev a2 subflow"))?;
        let mut slower = lab.detour(2, "", &format!("delay={}ms", LATENCY.as_millis()))?;
        wait(one + two);
        marks.slow = recorder.now();
        slower.begin()?;
        wait(one + two + slow);
        marks.back = recorder.now();
        slower.end(2 * LATENCY)?;
        // The load ends a moment after: nothing of its end is measured.
        wait(one + two + slow + back - END);
        marks.end = recorder.now();
        Ok(marks)
    }

    /// Whether it was what it was meant to be, and what else was counted.
    fn beside(&self, offload: Offload, outcome: &Outcome, counted: &Counted) -> Vec<Line> {
        let connections = self.connections as f64;
        let of = |mib: &Mib, name: &str| mib.get(name) as f64;
        let share = 100.0 * counted.in_kernel as f64 / counted.data.max(1) as f64;
        let in_kernel = match offload {
            Offload::On => {
                Line::at_least("of the server's packets in the kernel", share, SOME, " %")
            }
            Offload::Off => {
                Line::at_most("of the server's packets in the kernel", share, 0.0, " %")
            }
        };
        let joined = of(&counted.client, "MPJoinSynAckRx");
        vec![
            Line::at_least(
                "connections that joined the second path",
                joined,
                connections,
                "",
            ),
            Line::at_most("connections that failed", outcome.failures as f64, 0.0, ""),
            in_kernel,
            Line::told("objects", outcome.micros.len().to_string()),
            Line::told(
                "moves per connection",
                format!("{:.2}", counted.switches as f64 / connections),
            ),
            Line::told(
                "segments that the server sent again",
                format!(
                    "{:.2} %",
                    100.0 * of(&counted.server, "TcpRetransSegs")
                        / of(&counted.server, "TcpOutSegs").max(1.0)
                ),
            ),
            Line::told(
                "CPUs that others kept busy",
                format!("{:.2}", outcome.cpu.foreign / outcome.cpu.wall.max(1e-3)),
            ),
        ]
    }
}

impl Counted {
    fn read(lab: &Lab, flexcp: &FlexCp) -> Result<Self> {
        let stats = flexcp.show_stats()?;
        Ok(Self {
            client: Mib::read(lab.client())?,
            server: Mib::read(lab.server(1))?,
            data: carried::from_servers(lab)?,
            in_kernel: stats.counter("offload_packets_down")?,
            switches: stats.counter("subflow_switch")?,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            client: self.client.since(&before.client),
            server: self.server.since(&before.server),
            data: self.data - before.data,
            in_kernel: self.in_kernel - before.in_kernel,
            switches: self.switches - before.switches,
        }
    }
}

/// Bytes of an object.
const MEGA: u64 = 1_000_000;
/// Between two samples.
const EVERY: Duration = Duration::from_millis(100);
/// What makes the second path slow.
const LATENCY: Duration = Duration::from_millis(100);
/// Seconds before the end of the load that are not measured.
const END: f64 = 0.2;
/// In percent. How much it is hangs on losses; without the programs there would be none at all.
const SOME: f64 = 10.0;
