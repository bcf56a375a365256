//! How long a client waits for the first byte of a server that it names to a proxy (`lab ttfb`), beside one that it connects with
//! itself.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::aim::{self, Line};
use crate::daemon::{self, FlexCp};
use crate::fault::Direction;
use crate::nginx::Nginx;
use crate::process::{Background, text};
use crate::statistics::{median, quantile};
use crate::topology::{Families, Family, Lab, require_root};
use crate::transfer::Proto;

/// One way between client and proxy, in milliseconds.
const DELAY: u32 = 20;
/// What Convert may take beyond TCP to the server itself, whose packets go through the same host: there is no detour.
const BEYOND: f64 = 2.0;
const FILE: &str = "small";

const CONVERT: u16 = 5124;
const SOCKS5: u16 = 1080;
const HAPROXY: u16 = 8080;
/// Where `flexcp connect` listens on the client's host.
const LOCAL: u16 = 1081;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Ttfb {
    /// Rounds, in each of which every way has its turn
    #[arg(long, default_value_t = 61)]
    pub rounds: usize,
    /// Where ttfb.json and ttfb.md go
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// How a client reaches its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// TCP, without a proxy.
    Direct,
    /// `flexcp connect`: Convert in the SYN, over MPTCP.
    Convert,
    /// SOCKS5 of FlexCP, over MPTCP.
    Socks5,
    /// haproxy that takes MPTCP, and knows one server.
    Haproxy,
}

const WAYS: [Way; 4] = [Way::Direct, Way::Convert, Way::Socks5, Way::Haproxy];

/// What came of one way.
#[derive(Clone, Debug, Serialize)]
struct Row {
    way: Way,
    /// From the start of the client's connection to the first byte of the answer, in milliseconds, each round.
    milliseconds: Vec<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    lines: Vec<Line>,
}

/// Everything that runs.
struct Scene {
    lab: Lab,
    flexcp: FlexCp,
    _server: Nginx,
    _programs: [Background; 2],
}

impl Ttfb {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let scene = Scene::build()?;
        let mut rows = WAYS.map(|way| Row {
            way,
            milliseconds: vec![],
        });
        // The first of each resolves neighbours and the like.
        for round in 0..=self.rounds {
            for row in &mut rows {
                let taken = scene.fetch(row.way)?;
                if round > 0 {
                    row.milliseconds.push(taken);
                }
            }
        }
        scene.judge_wire(self.rounds)?;
        scene.flexcp.terminate()?;
        let lines = lines(&rows);
        let results = Results {
            rows: rows.into(),
            lines,
        };
        results.write(&self.results)?;
        print!("{}", aim::table(&results.lines));
        aim::judge(&results.lines)
    }
}

impl Scene {
    fn build() -> Result<Self> {
        let delay = format!("delay={DELAY}ms");
        let lab = Lab::builder()
            .families(Families::V4)
            .access_links(1)
            // Data goes with SYNs, without a cookie (docs/operation.md).
            .client_sysctl("net.ipv4.tcp_fastopen", "5")
            .faults(1, Direction::Up, &delay)
            .faults(1, Direction::Down, &delay)
            .build()?;
        let server = Nginx::start(&lab, 1, &[(FILE, 100)], Proto::Tcp)?;
        let at = |port| SocketAddr::new(lab.proxy_addr(1, Family::V4), port).to_string();
        let allow = [lab.server_addr(1, Family::V4).to_string()];
        let allow: Vec<_> = allow.iter().map(String::as_str).collect();
        let services = ["convert", "socks5"].map(|mode| {
            let port = if mode == "convert" { CONVERT } else { SOCKS5 };
            let service = daemon::explicit(mode, &[at(port)], &allow);
            service.replace("\"any\"", &format!("{mode:?}"))
        });
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services.join("\n")))?;
        let programs = [haproxy(&lab)?, connect(&lab, &at(CONVERT))?];
        Ok(Self {
            lab,
            flexcp,
            _server: server,
            _programs: programs,
        })
    }

    /// Has curl fetch a file: milliseconds until its first byte.
    fn fetch(&self, way: Way) -> Result<f64> {
        let server = self.lab.server_addr(1, Family::V4);
        let proxy = self.lab.proxy_addr(1, Family::V4);
        let client = self.lab.client();
        let (mptcp, proxy_of_curl, host) = match way {
            Way::Direct => (false, None, server.to_string()),
            Way::Convert => (false, Some(here(LOCAL)), server.to_string()),
            Way::Socks5 => (
                true,
                Some(SocketAddr::new(proxy, SOCKS5)),
                server.to_string(),
            ),
            Way::Haproxy => (true, None, format!("{proxy}:{HAPROXY}")),
        };
        let mut command = client.command(if mptcp { "mptcpize" } else { "curl" });
        if mptcp {
            command.args(["run", "curl"]);
        }
        if let Some(socks) = proxy_of_curl {
            command.args(["--socks5", &socks.to_string()]);
        }
        let url = format!("http://{host}/{FILE}");
        let told = "%{http_code} %{size_download} %{time_starttransfer}";
        command.args(["-sS", "-m", "10", "-o", "/dev/null", "-w", told, &url]);
        let said = text(&mut command).with_context(|| format!("{way:?}"))?;
        let seconds = said.strip_prefix("200 100 ");
        let seconds = seconds.with_context(|| format!("{way:?}: curl says {said:?}"))?;
        Ok(seconds.trim().parse::<f64>()? * 1000.0)
    }

    /// Whether the clients did what they are measured for: Convert in a SYN, MPTCP without a fallback.
    fn judge_wire(&self, rounds: usize) -> Result<()> {
        let stats = self.flexcp.show_stats()?;
        let each = u64::try_from(rounds)? + 1;
        let preambles = stats.counter("preambles")?;
        ensure!(
            preambles == 2 * each,
            "{preambles} preambles of {each} clients each"
        );
        // A client whose preamble is all in its SYN needs no responder.
        let hosted = stats.counter("hosted")?;
        ensure!(
            hosted == each,
            "{hosted} were answered before their server, {each} were to be"
        );
        for counter in ["fallback_handshake", "fallback_established"] {
            let count = stats.counter(counter)?;
            ensure!(count == 0, "{counter}: {count}");
        }
        Ok(())
    }
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn haproxy(lab: &Lab) -> Result<Background> {
    let file = lab.dir().join("haproxy.cfg");
    let server = lab.server_addr(1, Family::V4);
    let config = format!(
        "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
         listen web\n  bind *:{HAPROXY}\n  server s {server}:80\n"
    );
    fs::write(&file, config)?;
    let mut command = lab.proxy().command("mptcpize");
    command.args(["run", "haproxy", "-db", "-f"]).arg(&file);
    let mut program = Background::spawn(command, lab.dir(), "haproxy")?;
    program.wait_for_listener(lab.proxy(), here(HAPROXY))?;
    Ok(program)
}

fn connect(lab: &Lab, converter: &str) -> Result<Background> {
    let mut command = lab.client().command(daemon::binary()?);
    let local = here(LOCAL).to_string();
    command.args(["connect", "--by", converter, "--listen", &local]);
    let mut program = Background::spawn(command, lab.dir(), "connect")?;
    program.wait_for_listener(lab.client(), here(LOCAL))?;
    Ok(program)
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let middle = |way| {
        let row = rows.iter().find(|row| row.way == way);
        row.map_or(f64::NAN, |row| median(&row.milliseconds))
    };
    let told = rows.iter().map(|row| {
        let of = &row.milliseconds;
        let [middle, least, most] = [median(of), quantile(of, 0.1), quantile(of, 0.9)];
        let what = format!("first byte, {}", row.way.name());
        Line::told(what, format!("{middle:.1} ms ({least:.1} to {most:.1})"))
    });
    let beyond = |way| middle(way) - middle(Way::Direct);
    let mut lines: Vec<_> = told.collect();
    let what = "Convert, beyond TCP to the server itself";
    lines.push(Line::at_most(what, beyond(Way::Convert), BEYOND, " ms"));
    for way in [Way::Socks5, Way::Haproxy] {
        let what = format!("{}, beyond it", way.name());
        lines.push(Line::told(what, format!("{:.1} ms", beyond(way))));
    }
    lines
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "TCP to the server itself",
            Self::Convert => "Convert (`flexcp connect`, MPTCP)",
            Self::Socks5 => "SOCKS5 of FlexCP (MPTCP)",
            Self::Haproxy => "haproxy (MPTCP)",
        }
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let mut text = format!(
            "# First byte, {} ms from client to proxy and back\n\n",
            2 * DELAY
        );
        let _ = write!(text, "{}", aim::table(&self.lines));
        for (name, text) in [
            ("ttfb.json", serde_json::to_string_pretty(self)? + "\n"),
            ("ttfb.md", text),
        ] {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}
