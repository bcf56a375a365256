//! Is the emulator as good as its word? Measured with UDP between the ends of a link.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_io::run_promptly;
use serde::Serialize;

use crate::fault::Direction;
use crate::topology::{Family, Lab};
use crate::transfer::{Client, Job, ServeOptions, Server};

/// A lab with one emulated link and nothing behind it.
#[derive(Debug)]
pub struct SelfTest {
    lab: Lab,
    family: Family,
}

/// Datagrams of one measurement, as they arrived.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Number of each, in order of arrival, from 0.
    pub numbers: Vec<u32>,
    /// How long each was under way.
    pub delays: Vec<Duration>,
    /// From the first arrival to the last.
    pub span: Duration,
}

/// All that [`SelfTest::all`] measures.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Without faults: the median time that a datagram takes, in microseconds.
    pub carrying_us: u64,
    /// Median of |time - 20 ms - carrying|, in microseconds.
    pub delay_error_median_us: u64,
    /// The 99th percentile of the same.
    pub delay_error_p99_us: u64,
    /// Lost of 20,000 at `loss=1%`.
    pub lost: u64,
    /// Rate in kbit/s measured at `rate=20mbit`.
    pub rate_kbit: u64,
    /// TCP goodput through the link without faults, to the client, in Mbit/s.
    pub down_mbit: u64,
    /// The same from the client.
    pub up_mbit: u64,
}

impl SelfTest {
    /// Builds the lab.
    pub fn new(family: Family) -> Result<Self> {
        let families = match family {
            Family::V4 => crate::Families::V4,
            Family::V6 => crate::Families::V6,
        };
        let lab = Lab::builder()
            .access_links(1)
            .families(families)
            .faults(1, Direction::Up, "")
            .build()?;
        Ok(Self { lab, family })
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Sends `count` datagrams from the client to the proxy's end, `gap` apart, through `faults`.
    ///
    /// Each has `size` bytes of IP packet.
    pub fn send(&self, faults: &str, count: u32, gap: Duration, size: usize) -> Result<Arrivals> {
        self.lab.set_faults(1, Direction::Up, faults)?;
        let headers = if self.family == Family::V4 { 28 } else { 48 };
        // A port of the kernel's choice: a process that another thread is just starting holds what
        // this one has open until it executes its program, so a port is not free the moment that
        // it is closed.
        let at = (self.lab.proxy_addr(1, self.family), 0);
        let receiver = self.lab.proxy().run(|| Ok(UdpSocket::bind(at)?))?;
        let to = receiver.local_addr()?;
        receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
        let sender = self.lab.client().run(|| {
            let any = (self.lab.client_addr(1, self.family), 0);
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            Ok(socket)
        })?;
        let start = Instant::now();
        let mut payload = vec![0; size.checked_sub(headers).context("size below headers")?];
        ensure!(
            payload.len() >= 12,
            "a datagram has to hold its number and time"
        );
        thread::scope(|scope| {
            let arrivals = scope.spawn(|| {
                // It is the link that is measured, not how long a datagram waits for us.
                let _ = run_promptly();
                collect(&receiver, start)
            });
            for number in 0..count {
                let due = start + gap * number;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                payload[..4].copy_from_slice(&number.to_be_bytes());
                let now = nanos(start.elapsed());
                payload[4..12].copy_from_slice(&now.to_be_bytes());
                sender.send(&payload)?;
            }
            arrivals.join().expect("the receiver does not panic")
        })
    }

    /// Goodput of a TCP transfer of `job` between the ends, in Mbit/s.
    pub fn goodput(&self, job: &Job) -> Result<u64> {
        self.lab.set_faults(1, Direction::Up, "")?;
        let server = Server::start(self.lab.proxy(), ServeOptions::tcp(PORT))?;
        let to = (self.lab.proxy_addr(1, self.family), PORT).into();
        let start = Instant::now();
        let report = Client::tcp(to).run_in(self.lab.client(), job)?;
        report.ok()?;
        let micros = start.elapsed().as_micros().max(1);
        drop(server);
        let bits = u128::from(job.up + job.down) * 8;
        Ok(u64::try_from(bits / micros)?)
    }

    /// Measures everything; takes some ten seconds.
    pub fn all(&self) -> Result<Findings> {
        let ms = Duration::from_millis(1);
        // A first datagram resolves the neighbour.
        self.send("", 10, ms, 200)?;
        let carrying = self.send("", 2000, ms, 200)?.delay(50);
        let errors = self.send("delay=20ms", 2000, ms, 200)?;
        let errors = errors.errors(20 * ms + carrying);
        let before = self.lab.link_counters(1)?.up.lost_loss;
        let arrived = self.send("loss=1%", 20_000, ms / 20, 200)?.numbers.len();
        let lost = self.lab.link_counters(1)?.up.lost_loss - before;
        // The kernel's own packets may be among the lost.
        ensure!(
            (20_000..20_010).contains(&(arrived as u64 + lost)),
            "{arrived} arrived and {lost} were lost of 20000"
        );
        let rate = self.send("rate=20mbit:10mb", 2000, ms / 10, 1000)?;
        Ok(Findings {
            carrying_us: micros(carrying),
            delay_error_median_us: micros(percentile(&errors, 50)),
            delay_error_p99_us: micros(percentile(&errors, 99)),
            lost,
            rate_kbit: rate.kbit(1000),
            down_mbit: self.goodput(&Job::down(200_000_000))?,
            up_mbit: self.goodput(&Job::up(200_000_000))?,
        })
    }
}

impl Findings {
    /// Whether the emulator is good enough to be believed.
    pub fn judge(&self) -> Result<()> {
        ensure!(
            self.delay_error_p99_us <= 1000,
            "delays are off by more than 1 ms: {self:?}"
        );
        // 200 +- 3 * sqrt(20000 * 0.01 * 0.99)
        ensure!((158..=242).contains(&self.lost), "loss is not 1%: {self:?}");
        ensure!(
            (19_000..=21_000).contains(&self.rate_kbit),
            "the rate is off by more than 5%: {self:?}"
        );
        ensure!(
            self.down_mbit >= 200 && self.up_mbit >= 200,
            "below 200 Mbit/s: {self:?}"
        );
        Ok(())
    }
}

impl Arrivals {
    /// A percentile of the time under way.
    pub fn delay(&self, percent: usize) -> Duration {
        percentile(&self.delays, percent)
    }

    /// How far each was from an expected time under way.
    pub fn errors(&self, expected: Duration) -> Vec<Duration> {
        let error = |delay: &Duration| delay.abs_diff(expected);
        self.delays.iter().map(error).collect()
    }

    /// Rate of arrival of packets of `size` bytes, in kbit/s.
    pub fn kbit(&self, size: usize) -> u64 {
        let bits = (self.numbers.len().saturating_sub(1) * size * 8) as u64;
        bits * 1000 / micros(self.span).max(1)
    }
}

/// Receives until nothing more comes.
fn collect(receiver: &UdpSocket, start: Instant) -> Result<Arrivals> {
    let mut arrivals = Arrivals::default();
    let (mut first, mut last) = (None, Duration::ZERO);
    let mut buffer = [0; 2048];
    while let Ok(len) = receiver.recv(&mut buffer) {
        let now = start.elapsed();
        let [n0, n1, n2, n3, sent @ ..] = &buffer[..len.min(12)] else {
            continue;
        };
        let number = u32::from_be_bytes([*n0, *n1, *n2, *n3]);
        let sent = u64::from_be_bytes(sent.try_into().context("a short datagram")?);
        arrivals.numbers.push(number);
        arrivals
            .delays
            .push(now.saturating_sub(Duration::from_nanos(sent)));
        first.get_or_insert(now);
        last = now;
    }
    arrivals.span = last.saturating_sub(first.unwrap_or_default());
    Ok(arrivals)
}

/// The value that so many percent are not above.
pub fn percentile(values: &[Duration], percent: usize) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const PORT: u16 = 7000;
