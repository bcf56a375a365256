//! Two emulated paths, FlexCP under a rule, and a server.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::moves::{Moves, Steadiness};
use crate::counters::Mib;
use crate::daemon::{self, FlexCp};
use crate::fault::Direction;
use crate::series::{Recorder, Series};
use crate::topology::{Family, Lab};
use crate::transfer::{Client, ServeOptions, Server};

/// What the paths are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Each way, in Mbit/s.
    pub(super) rate_mbit: u32,
    /// What waits at most, in milliseconds of the rate.
    pub(super) queue_ms: u32,
    /// Of paths `a` and `b`, each way, in milliseconds.
    pub(super) delay_ms: [u32; 2],
}

/// All that runs.
pub(super) struct Scene {
    /// `None` once it has been closed.
    server: Option<Server>,
    flexcp: FlexCp,
    recorder: Recorder,
    moves: Moves,
    before: Counts,
    shape: Shape,
    pub(super) lab: Lab,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    switches: u64,
    /// Payload bytes to clients that had been sent before.
    again: u64,
    /// Connections of MPTCP.
    opened: u64,
    /// Segments that servers sent again.
    segments: i64,
}

impl Shape {
    /// As fast as the machine, and not emulated.
    pub(super) const FAST: Self = Self {
        rate_mbit: 0,
        queue_ms: 0,
        delay_ms: [0, 0],
    };

    /// Faults of a path, one way.
    pub(super) fn faults(&self, path: usize) -> String {
        let kilobytes = self.rate_mbit * self.queue_ms / 8;
        format!(
            "rate={}mbit:{kilobytes}kb,delay={}ms",
            self.rate_mbit, self.delay_ms[path]
        )
    }

    /// The longer round trip of the two.
    pub(super) fn rtt(&self) -> Duration {
        Duration::from_millis((2 * self.delay_ms[0].max(self.delay_ms[1])).into())
    }
}

impl Scene {
    /// Starts all of it. What FlexCP says of a rule that it does not know is the error.
    pub(super) fn start(shape: Shape, rule: &str) -> Result<Self> {
        let mut builder = Lab::builder();
        let emulated = LINKS.into_iter().filter(|_| shape != Shape::FAST);
        for link in emulated {
            let faults = shape.faults(usize::from(link) - 1);
            for direction in [Direction::Up, Direction::Down] {
                builder = builder.faults(link, direction, &faults);
            }
        }
        let lab = builder.build()?;
        // Two SYNs lost on a busy machine, and the client would use TCP for an hour. Older kernels don't.
        let _ = lab.client().sysctl(&[("net.mptcp.blackhole_timeout", "0")]);
        let mut services = daemon::accesses(&lab);
        if !rule.is_empty() {
            services += &format!("[[rule]]\nname = \"case\"\n{rule}\n\n");
        }
        services += &daemon::transparent(&lab, &[]);
        let config = daemon::config(&lab, &services);
        let checked = daemon::check(&lab, &config)?;
        if !checked.status.success() {
            bail!("{}", String::from_utf8_lossy(&checked.stderr).trim());
        }
        let server = Some(Server::start(lab.server(1), ServeOptions::tcp(PORT))?);
        let flexcp = FlexCp::start(&lab, &config)?;
        Ok(Self {
            before: Counts::read(&lab, &flexcp)?,
            recorder: Recorder::start(&lab, EVERY)?,
            moves: Moves::watch(&flexcp)?,
            server,
            flexcp,
            shape,
            lab,
        })
    }

    /// A client that has joined the second path before it asks.
    pub(super) fn client(&self) -> Client {
        let to = self.lab.server_socket(1, Family::V4, PORT);
        Client::mptcp(to).head_start(HEAD_START)
    }

    /// Where FlexCP's API is.
    pub(super) fn socket(&self) -> &Path {
        self.flexcp.socket()
    }

    /// The time of the samples.
    pub(super) fn now(&self) -> f64 {
        self.recorder.now()
    }

    /// Waits; the time afterwards.
    pub(super) fn pass(&self, seconds: f64) -> f64 {
        thread::sleep(Duration::from_secs_f64(seconds));
        self.now()
    }

    /// Cuts a link, from 1, both ways and silently.
    pub(super) fn cut(&self, link: u8) -> Result<f64> {
        self.faults(link, "loss=100%")
    }

    /// Makes a link as it was.
    pub(super) fn restore(&self, link: u8) -> Result<f64> {
        self.faults(link, &self.shape.faults(usize::from(link) - 1))
    }

    /// Gives each path the delay of the other.
    pub(super) fn swap(&mut self) -> Result<f64> {
        self.shape.delay_ms.swap(0, 1);
        for link in LINKS {
            self.restore(link)?;
        }
        Ok(self.now())
    }

    fn faults(&self, link: u8, faults: &str) -> Result<f64> {
        for direction in [Direction::Up, Direction::Down] {
            self.lab.set_faults(link, direction, faults)?;
        }
        Ok(self.now())
    }

    /// Payload bytes that a path carried so far, up and down, of connections that there are.
    pub(super) fn payload(&self, access: &str) -> Result<[u64; 2]> {
        let list = self.flexcp.show_connections()?;
        let connections = list["connections"].as_array().into_iter().flatten();
        let mut sums = [0, 0];
        for subflow in connections.filter_map(|connection| connection["subflows"].as_array()) {
            for subflow in subflow.iter().filter(|of| of["access"] == access) {
                for (sum, key) in sums.iter_mut().zip(["bytes_up", "bytes_down"]) {
                    *sum += subflow[key].as_u64().unwrap_or(0);
                }
            }
        }
        Ok(sums)
    }

    /// Connections whose data goes down each of the two paths.
    pub(super) fn active(&self) -> Result<[usize; 2]> {
        let now = super::moves::active(&self.flexcp)?;
        Ok(["a", "b"].map(|access| now.values().filter(|on| *on == access).count()))
    }

    /// How often connections moved since the start, while nothing happened to the paths.
    pub(super) fn steadiness(&self) -> Result<Steadiness> {
        let now = Counts::read(&self.lab, &self.flexcp)?;
        Ok(Steadiness {
            connections: now.opened - self.before.opened,
            switches: now.switches - self.before.switches,
            again: now.again - self.before.again,
            segments: now.segments - self.before.segments,
            shortest_hold: self.moves.shortest_hold(),
        })
    }

    /// One of the daemon's counters.
    pub(super) fn counter(&self, name: &str) -> Result<u64> {
        Ok(self.flexcp.show_stats()?.counter(name)?)
    }

    /// Breaks off what the server has begun, so that clients end.
    pub(super) fn close(&mut self) {
        self.server = None;
    }

    /// Ends everything; what the links carried.
    pub(super) fn finish(self) -> Result<Series> {
        let Self {
            flexcp,
            recorder,
            moves,
            server,
            lab,
            ..
        } = self;
        let series = recorder.finish()?;
        moves.finish()?;
        drop(server);
        flexcp.stop()?;
        drop(lab);
        Ok(series)
    }

    /// Waits until so many connections have two paths.
    pub(super) fn wait_for_joins(&self, count: usize) -> Result<()> {
        let deadline = Instant::now() + JOINED;
        loop {
            let list = self.flexcp.show_connections()?;
            let connections = list["connections"].as_array().into_iter().flatten();
            let joined = connections.filter(|connection| {
                let subflows = connection["subflows"].as_array().into_iter().flatten();
                subflows.filter(|of| of["established"] == true).count() == 2
            });
            let joined = joined.count();
            if joined >= count {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{joined} of {count} connections have two paths"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Counts {
    fn read(lab: &Lab, flexcp: &FlexCp) -> Result<Self> {
        let stats = flexcp.show_stats()?;
        Ok(Self {
            switches: stats.counter("subflow_switch")?,
            again: stats.counter("retransmitted_down_bytes")?,
            opened: stats.counter("mp_capable_ack_rx")?,
            segments: Mib::read(lab.server(1))?.get("TcpRetransSegs"),
        })
    }
}

/// Path `a`, then `b`.
pub(super) const LINKS: [u8; 2] = [1, 2];
pub(super) const PORT: u16 = 5000;
/// Between two samples of the links.
const EVERY: Duration = Duration::from_millis(100);
/// What a client that connects ahead waits: a join takes two round trips, of 40 ms at most here.
pub(super) const HEAD_START: Duration = Duration::from_millis(300);
/// What joining takes at most.
const JOINED: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_their_rate_queue_and_delay() {
        let shape = Shape {
            rate_mbit: 40,
            queue_ms: 100,
            delay_ms: [5, 20],
        };
        assert_eq!(shape.faults(0), "rate=40mbit:500kb,delay=5ms");
        assert_eq!(shape.faults(1), "rate=40mbit:500kb,delay=20ms");
        assert_eq!(shape.rtt(), Duration::from_millis(40));
    }
}
