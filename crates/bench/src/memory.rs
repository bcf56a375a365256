//! Memory of connections that are open and idle: of the proxy, and of the kernel.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::cpu::Sample;
use flexcp_lab::{Families, Family, FlexCp, Lab, daemon};

use crate::hold::Helper;
use crate::programs::{self, Program, open_files};
use crate::record::Results;
use crate::rig::{Subject, prepare, start_flexcp};

/// Measures them, of every subject once, with that many connections.
pub(crate) fn measure(
    results: &mut Results,
    subjects: &[Subject],
    connections: usize,
    say: &impl Fn(&str),
) {
    // The others are FlexCP with several workers, which it is not about.
    let compared = subjects
        .iter()
        .filter(|subject| Subject::COMPARED.contains(subject));
    for subject in compared.copied() {
        let stage = Stage::build(subject, connections);
        match stage.and_then(|stage| stage.measure(connections)) {
            Ok(figures) => figures.add(results, subject, connections, say),
            Err(error) => {
                say(&format!("memory: {}: {error:#}", subject.name()));
                results.miss("memory", Some(subject), &format!("{error:#}"));
            }
        }
    }
}

/// Bytes at one moment.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    /// Of the proxy's processes.
    proxy: u64,
    /// Of the kernel, that cannot be reclaimed.
    kernel: u64,
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    open: usize,
    before: Bytes,
    with: Bytes,
    after: Bytes,
}

/// A lab, and as many processes of everything as open files demand: slice by slice.
struct Stage {
    lab: Lab,
    proxies: Vec<Program>,
    flexcp: Option<FlexCp>,
    _sinks: Vec<Helper>,
    subject: Subject,
    slices: u16,
}

impl Stage {
    fn build(subject: Subject, connections: usize) -> Result<Self> {
        let lab = Lab::builder()
            .wire(false)
            .endpoints(Families::Neither)
            .build()?;
        prepare(&lab)?;
        // haproxy has two sockets of each, and some more for pipes.
        let slice = usize::try_from(open_files() * 2 / 5 - 300)?;
        let slices = u16::try_from(connections.div_ceil(slice))?;
        let mut sinks = vec![];
        let mut proxies = vec![];
        for port in (0..slices).map(|number| PORT + number) {
            let own = address(port - PORT);
            lab.client().ip(&format!("addr add {own}/24 dev a1"))?;
            sinks.push(Helper::sink(lab.server(1), subject.server(), port)?);
            match subject {
                Subject::Nginx => proxies.push(programs::nginx_proxy(&lab, &[port])?),
                Subject::Haproxy => proxies.push(programs::haproxy(&lab, &[port])?),
                _ => {}
            }
        }
        let offload = match subject {
            Subject::FlexCp => Some(true),
            Subject::Translator => Some(false),
            _ => None,
        };
        let start = |offload| {
            start_flexcp(
                &lab,
                offload,
                "workers = 1",
                &daemon::transparent(&lab, &[]),
            )
        };
        let flexcp = offload.map(start).transpose()?;
        Ok(Self {
            flexcp,
            proxies,
            _sinks: sinks,
            subject,
            slices,
            lab,
        })
    }

    fn measure(&self, connections: usize) -> Result<Figures> {
        let before = self.bytes()?;
        let mut helpers = vec![];
        for number in 0..self.slices {
            let to = SocketAddr::new(self.target(), PORT + number);
            let count = connections.div_ceil(self.slices.into());
            let ends = (address(number), to);
            let proto = self.subject.client();
            helpers.push(Helper::connections(self.lab.client(), proto, ends, count)?);
        }
        let mut open = 0;
        let mut why = String::new();
        for helper in &mut helpers {
            let line = helper.line()?;
            let (count, failure) = line.split_once(' ').unwrap_or((&line, ""));
            open += count.parse::<usize>().context("a helper's count")?;
            if why.is_empty() {
                failure.clone_into(&mut why);
            }
        }
        // Now they are idle.
        thread::sleep(SETTLE);
        let with = self.bytes()?;
        ensure!(
            open * 10 >= connections * 9,
            "{open} of {connections} connections came about: {why}"
        );
        drop(helpers);
        self.wait_for_the_end()?;
        Ok(Figures {
            open,
            before,
            with,
            after: self.bytes()?,
        })
    }

    /// Waits until FlexCP has let go of all connections, which linger after their end; of others nobody knows.
    fn wait_for_the_end(&self) -> Result<()> {
        thread::sleep(SETTLE);
        let Some(flexcp) = &self.flexcp else {
            return Ok(());
        };
        let start = Instant::now();
        while open_connections(flexcp)? > 0 {
            ensure!(start.elapsed() < LEAVING, "connections stay");
            thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    fn target(&self) -> IpAddr {
        match self.subject {
            Subject::Nginx | Subject::Haproxy => self.lab.proxy_addr(1, Family::V4),
            _ => self.lab.server_addr(1, Family::V4),
        }
    }

    fn bytes(&self) -> Result<Bytes> {
        let sample = Sample::take()?;
        let proxies = self.proxies.iter().map(Program::pid);
        let pids = proxies.chain(self.flexcp.as_ref().map(FlexCp::pid));
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        Ok(Bytes {
            proxy: pids.map(|pid| sample.resident(pid)).sum(),
            kernel: unreclaimable(&meminfo).context("/proc/meminfo has no SUnreclaim")?,
        })
    }
}

impl Figures {
    #[allow(clippy::cast_precision_loss, reason = "bytes of memory")]
    fn add(self, results: &mut Results, subject: Subject, wanted: usize, say: &impl Fn(&str)) {
        let each = |now: u64, before: u64| (now as f64 - before as f64) / self.open as f64;
        let Self {
            before,
            with,
            after,
            open,
        } = self;
        let mut figures = vec![
            ("connections", "connections", open as f64),
            (
                "kernel",
                "bytes/connection",
                each(with.kernel, before.kernel),
            ),
        ];
        if with.proxy > 0 {
            figures.extend([
                ("proxy", "bytes/connection", each(with.proxy, before.proxy)),
                ("proxy-before", "MB", before.proxy as f64 / 1e6),
                ("proxy-with", "MB", with.proxy as f64 / 1e6),
                ("proxy-after", "MB", after.proxy as f64 / 1e6),
            ]);
        }
        say(&format!(
            "memory: {}: {open} of {wanted} connections, {figures:?}",
            subject.name()
        ));
        for (name, unit, value) in figures {
            results.add(&format!("memory/{name}"), Some(subject), unit, value);
        }
    }
}

/// `SUnreclaim` of `/proc/meminfo`, in bytes: sockets and what belongs to them.
fn unreclaimable(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("SUnreclaim:"))?;
    let kilo: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilo * 1024)
}

/// The client's address for a slice.
fn address(slice: u16) -> IpAddr {
    let host = u8::try_from(100 + slice).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, 1, 1, host).into()
}

/// Port of the first slice; FlexCP's service covers 4000 to 5999.
const PORT: u16 = 5000;

/// After the last packet: longer than what FlexCP takes to see that connections are idle, and than its `linger` after
/// their end.
const SETTLE: Duration = Duration::from_secs(15);
/// What FlexCP may take beyond that to let go of all.
const LEAVING: Duration = Duration::from_secs(120);

fn open_connections(flexcp: &FlexCp) -> Result<u64> {
    let stats = flexcp.show_stats()?;
    let opened = stats.counter("connections_opened")?;
    Ok(opened.saturating_sub(stats.counter("connections_closed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kilobytes() {
        let text = "MemTotal: 1 kB\nSUnreclaim:       42 kB\n";
        assert_eq!(unreclaimable(text), Some(43_008));
        assert_eq!(unreclaimable("MemTotal: 1 kB\n"), None);
    }
}
