//! What clients and servers go through when FlexCP ends under them (`lab endings`): stopped, or killed and started
//! again, while they upload, download or wait.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Serialize;
use socket2::{Domain, Socket, Type};

use crate::daemon::{self, FlexCp};
use crate::manager::Manager;
use crate::process::text;
use crate::topology::{Families, Family, Lab};
use crate::transfer::{Client, Job, Proto, ServeOptions, Server};

/// What connections have to end by themselves when FlexCP is stopped.
const DRAIN: Duration = Duration::from_secs(1);
/// Between a kill and the next start, as the unit has it (`RestartSec`).
const PAUSE: Duration = Duration::from_secs(1);
/// Who has heard nothing by then is counted as silent.
const PATIENCE: Duration = Duration::from_secs(15);
/// What an end may go on waiting, at most: the aim.
const AIM: Duration = Duration::from_secs(1);
/// Where clients find the service: the server's port, and the listening one.
const PORT: u16 = 5000;
/// More than any client moves in that time.
const ENDLESS: u64 = 1 << 40;
/// Of each link, in Mbit/s: enough packets on their way, few enough for two processors.
const RATE: u32 = 200;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Endings {
    /// Connections at once, of two subflows each: two in five upload, two in five download, the others wait
    #[arg(long, default_value_t = 50)]
    pub clients: usize,
    /// Where endings.json goes
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// How FlexCP ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// SIGTERM; counted from the end of the drain.
    Stop,
    /// SIGKILL, and a start a second later, by a service manager that has kept what FlexCP gave it; counted from that
    /// start.
    Kill,
}

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Work {
    Upload,
    Download,
    Wait,
}

/// What came of one way to end.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `transparent` or `reverse`.
    pub mode: &'static str,
    /// How FlexCP ended.
    pub ending: Ending,
    /// Connections.
    pub clients: usize,
    /// Subflows that had joined before.
    pub joined: u64,
    /// Clients that have heard nothing at the end.
    pub silent: usize,
    /// How long the others waited, in milliseconds: the median and the longest.
    pub median_ms: u64,
    /// The longest.
    pub longest_ms: u64,
    /// The longest of those that wait without sending anything.
    pub longest_idle_ms: u64,
    /// Connections that the servers still had after the aim.
    pub left_at_servers: usize,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The aim, in milliseconds.
    pub aim_ms: u64,
    /// One for each mode and ending.
    pub rows: Vec<Row>,
}

impl Endings {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        let mut rows = vec![];
        for mode in ["transparent", "reverse"] {
            for ending in [Ending::Stop, Ending::Kill] {
                let row = self.row(mode, ending)?;
                eprintln!("{row}");
                rows.push(row);
            }
        }
        let results = Results {
            aim_ms: millis(AIM),
            rows,
        };
        results.write(&self.results)?;
        print!("{results}");
        results.judge()
    }

    /// One way to end.
    ///
    /// # Errors
    ///
    /// It could not be run.
    pub fn row(&self, mode: &'static str, ending: Ending) -> Result<Row> {
        let lab = Lab::builder()
            .families(Families::V4)
            .rate_mbit(1, RATE)
            .rate_mbit(2, RATE)
            .build()?;
        let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
        let (services, to) = match mode {
            "reverse" => {
                let to = std::net::SocketAddr::new(lab.proxy_addr(1, Family::V4), PORT);
                let backend = lab.server_socket(1, Family::V4, PORT).to_string();
                (
                    daemon::reverse("shop", &[to.to_string()], &[backend], &[]),
                    to,
                )
            }
            _ => (
                daemon::transparent(&lab, &[]),
                lab.server_socket(1, Family::V4, PORT),
            ),
        };
        let timeouts = format!("[timeouts]\ndrain = \"{}ms\"\n\n", DRAIN.as_millis());
        let config = daemon::config(&lab, &(timeouts + &services));
        let mut manager = Manager::new(lab.dir())?;
        let flexcp = FlexCp::start_as_service(&lab, &config, &mut manager)?;
        let client = Client::mptcp(to).patience(PATIENCE);
        let works: Vec<_> = (0..self.clients).map(Work::of).collect();
        thread::scope(|scope| {
            let clients = scope.spawn(|| lab.client().run(|| ends(&client, to, &works)));
            let joined = wait_for_joins(&flexcp, self.clients)?;
            let begun = end(&lab, &config, flexcp, &mut manager, ending)?;
            let (begun, restarted) = begun;
            thread::sleep((begun + AIM).saturating_duration_since(Instant::now()));
            let left_at_servers = established(&lab)?;
            let ends = clients.join().map_err(|_| anyhow!("a client panicked"))??;
            if let Some(flexcp) = restarted {
                // Its device has packets of two runs.
                flexcp.terminate()?;
            }
            Ok(Row::new(
                mode,
                ending,
                joined,
                begun,
                &works,
                &ends,
                left_at_servers,
            ))
        })
    }
}

impl Work {
    const fn of(number: usize) -> Self {
        match number % 5 {
            0 | 1 => Self::Upload,
            2 | 3 => Self::Download,
            _ => Self::Wait,
        }
    }
}

/// Ends FlexCP. The moment from which on its clients should know, and the next run of it.
fn end(
    lab: &Lab,
    config: &str,
    flexcp: FlexCp,
    manager: &mut Manager,
    ending: Ending,
) -> Result<(Instant, Option<FlexCp>)> {
    match ending {
        Ending::Stop => {
            let over = Instant::now() + DRAIN;
            flexcp.terminate()?;
            Ok((over, None))
        }
        Ending::Kill => {
            flexcp.kill()?;
            thread::sleep(PAUSE);
            let begun = Instant::now();
            Ok((begun, Some(FlexCp::start_as_service(lab, config, manager)?)))
        }
    }
}

/// Runs all clients; for each, when it had ended, whatever it ended with, and `None` when it had heard nothing.
fn ends(client: &Client, to: std::net::SocketAddr, works: &[Work]) -> Result<Vec<Option<Instant>>> {
    thread::scope(|scope| {
        let run = |work: Work| {
            let failure = match work {
                Work::Upload => client.run(&Job::up(ENDLESS)).failure,
                Work::Download => client.run(&Job::down(ENDLESS)).failure,
                Work::Wait => return wait(to, PATIENCE),
            };
            let silent = failure.is_some_and(|failure| failure.kind == "timeout");
            Ok((!silent).then(Instant::now))
        };
        let threads: Vec<_> = works
            .iter()
            .map(|&work| scope.spawn(move || run(work)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|end| end.map_err(|_| anyhow!("a client panicked"))?)
            .collect()
    })
}

/// Connects, asks for nothing to be sent, and reads: when that came to an end, `None` if it has not within `patience`.
pub(crate) fn wait(to: std::net::SocketAddr, patience: Duration) -> Result<Option<Instant>> {
    let socket = Socket::new(
        Domain::for_address(to),
        Type::STREAM,
        Some(Proto::Mptcp.socket2()),
    )?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(&to.into())?;
    let mut stream = std::net::TcpStream::from(socket);
    Job::hold(millis(patience)).send(&mut stream)?;
    let silent = |kind| {
        matches!(
            kind,
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        )
    };
    match stream.read(&mut [0]) {
        Err(error) if silent(error.kind()) => Ok(None),
        _ => Ok(Some(Instant::now())),
    }
}

/// Waits until each connection has its second subflow; how many subflows have joined.
fn wait_for_joins(flexcp: &FlexCp, clients: usize) -> Result<u64> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let joined = flexcp.show_stats()?.counter("mp_join_ack_rx")?;
        if joined >= u64::try_from(clients)? {
            return Ok(joined);
        }
        ensure!(
            Instant::now() < deadline,
            "{joined} of {clients} subflows have joined"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connections that the server has.
fn established(lab: &Lab) -> Result<usize> {
    let mut command = lab.server(1).command("ss");
    command.args(["-Htn", "state", "established"]);
    Ok(text(&mut command)?.lines().count())
}

impl Row {
    fn new(
        mode: &'static str,
        ending: Ending,
        joined: u64,
        begun: Instant,
        works: &[Work],
        ends: &[Option<Instant>],
        left_at_servers: usize,
    ) -> Self {
        let waited = |end: &Instant| millis(end.saturating_duration_since(begun));
        let mut all: Vec<u64> = ends.iter().flatten().map(waited).collect();
        all.sort_unstable();
        let idle = works
            .iter()
            .zip(ends)
            .filter(|(work, _)| **work == Work::Wait);
        let idle = idle.filter_map(|(_, end)| end.as_ref()).map(waited);
        Self {
            mode,
            ending,
            clients: works.len(),
            joined,
            silent: ends.iter().filter(|end| end.is_none()).count(),
            median_ms: all.get(all.len() / 2).copied().unwrap_or(0),
            longest_ms: all.last().copied().unwrap_or(0),
            longest_idle_ms: idle.max().unwrap_or(0),
            left_at_servers,
        }
    }

    /// # Errors
    ///
    /// An end has waited for longer than it may.
    pub fn judge(&self) -> Result<()> {
        ensure!(
            self.silent == 0 && self.longest_ms <= millis(AIM) && self.left_at_servers == 0,
            "{self}: an end has waited for longer than {AIM:?}"
        );
        Ok(())
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let file = directory.join("endings.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| file.display().to_string())
    }

    fn judge(&self) -> Result<()> {
        self.rows.iter().try_for_each(Row::judge)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| mode | FlexCP is | clients | heard nothing | waited, median | longest (aim {} ms) | longest of those that wait | left at the server |\n\
             |---|---|---|---|---|---|---|---|",
            self.aim_ms
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            clients,
            silent,
            median_ms,
            longest_ms,
            longest_idle_ms,
            left_at_servers,
            ..
        } = self;
        let ending = match self.ending {
            Ending::Stop => "stopped",
            Ending::Kill => "killed and started again",
        };
        write!(
            f,
            "| {mode} | {ending} | {clients} | {silent} | {median_ms} ms | {longest_ms} ms | {longest_idle_ms} ms | {left_at_servers} |"
        )
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            mode: "reverse",
            ending: Ending::Kill,
            clients: 50,
            joined: 50,
            silent: 0,
            median_ms: 10,
            longest_ms: 1000,
            longest_idle_ms: 20,
            left_at_servers: 0,
        }
    }

    #[test]
    fn row_passes_only_when_nobody_waits_for_longer_than_the_aim() {
        assert!(row().judge().is_ok());
        let bad = [
            Row { silent: 1, ..row() },
            Row {
                longest_ms: 1001,
                ..row()
            },
            Row {
                left_at_servers: 1,
                ..row()
            },
        ];
        assert!(bad.iter().all(|row| row.judge().is_err()));
    }

    #[test]
    fn those_that_heard_nothing_are_counted_and_the_others_measured_from_the_moment_that_counts() {
        let begun = Instant::now();
        let at = |ms| Some(begun + Duration::from_millis(ms));
        let works = [Work::Upload, Work::Download, Work::Wait, Work::Wait];
        let ends = [at(5), at(900), at(30), None];
        let row = Row::new("reverse", Ending::Stop, 4, begun, &works, &ends, 0);
        assert_eq!((row.silent, row.median_ms), (1, 30));
        assert_eq!((row.longest_ms, row.longest_idle_ms), (900, 30));
        // One that ended before has waited for nothing.
        let late = begun + Duration::from_secs(1);
        let row = Row::new("reverse", Ending::Stop, 4, late, &works, &ends, 0);
        assert_eq!(row.longest_ms, 0);
    }
}
