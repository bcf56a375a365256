//! FlexCP on a host with netfilter rules of its own (`lab firewall`): what they cost, what conntrack takes for invalid, and
//! whether NAT is applied to every connection.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::daemon::{self, FlexCp};
use crate::process::text;
use crate::statistics::median;
use crate::topology::{Families, Family, Lab, require_root};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

/// What most gateways have: what is established passes, what is invalid does not, and new connections come from where
/// clients are. FlexCP's device is accepted beside them, as a packet comes out of it a second time.
pub const STATEFUL: &str = r#"
table inet firewall {
    counter invalid {}
    counter refused {}
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid counter name invalid drop
        ct state established,related accept
        iifname { "a1", "a2", "flexcp0" } accept
        counter name refused
    }
}
"#;

/// The addresses of clients stay behind the host's own.
pub const MASQUERADE: &str = r#"
table inet nat {
    counter masqueraded {}
    chain postrouting {
        type nat hook postrouting priority srcnat;
        oifname "srv1" counter name masqueraded masquerade
    }
}
"#;

const PORT: u16 = 5000;
/// Transfers at a time, and how often so many.
const AT_A_TIME: usize = 4;
/// Each way.
const BYTES: u64 = 8_000_000;
/// A transfer that takes longer has stalled.
const PATIENCE: Duration = Duration::from_secs(20);
/// Throughput with the rules, divided by that without: the aim.
const AIM: f64 = 0.9;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Firewall {
    /// Rounds, in each of which every set of rules has its turn
    #[arg(long, default_value_t = 61)]
    pub rounds: usize,
    /// Where firewall.json goes
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// A set of rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// None.
    None,
    /// [`STATEFUL`].
    Stateful,
    /// [`STATEFUL`] and [`MASQUERADE`].
    Masquerade,
}

/// What came of one set of rules and one kind of client.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The rules.
    pub rules: Rules,
    /// `mptcp` (two subflows) or `tcp`.
    pub clients: &'static str,
    /// Transfers that were done, and how many failed or stalled.
    pub transfers: usize,
    /// Those that failed.
    pub failed: usize,
    /// Median of the rounds, in MB/s, both ways together.
    pub megabytes_per_second: f64,
    /// The slowest and the fastest round.
    pub spread: [f64; 2],
    /// That, divided by the median without rules.
    pub ratio: f64,
    /// Packets that conntrack took for invalid.
    pub invalid: u64,
    /// Packets that no rule accepted.
    pub refused: u64,
    /// Connections that were masqueraded, as the rule counts them; and as the servers see them.
    pub masqueraded: [u64; 2],
    /// Of the packets that came to FlexCP's host, those that the kernel's programs translated, of 100.
    pub offloaded: u64,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The least ratio.
    pub aim: f64,
    /// One for each kind of client and set of rules.
    pub rows: Vec<Row>,
}

/// A lab with FlexCP and one set of rules.
#[derive(Debug)]
pub struct Scene {
    rules: Rules,
    plain: bool,
    lab: Lab,
    server: Server,
    flexcp: FlexCp,
    rates: Vec<f64>,
    failed: usize,
}

impl Firewall {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let mut rows = vec![];
        for plain in [false, true] {
            rows.extend(self.rows(plain)?);
        }
        let results = Results { aim: AIM, rows };
        results.write(&self.results)?;
        print!("{results}");
        results.rows.iter().try_for_each(|row| row.judge(AIM))
    }

    /// The rows of one kind of clients, by turns.
    ///
    /// # Errors
    ///
    /// Something could not be run.
    pub fn rows(&self, plain: bool) -> Result<Vec<Row>> {
        let all = [Rules::None, Rules::Stateful, Rules::Masquerade];
        let scenes = all.map(|rules| Scene::build(rules, plain));
        let mut scenes = scenes.into_iter().collect::<Result<Vec<_>>>()?;
        for _ in 0..self.rounds {
            for scene in &mut scenes {
                scene.round()?;
            }
        }
        let bare = median(&scenes[0].rates);
        scenes
            .into_iter()
            .map(|scene| {
                let row = scene.row(bare)?;
                eprintln!("{row}");
                Ok(row)
            })
            .collect()
    }
}

impl Scene {
    /// Builds it; `plain`: its clients are without MPTCP.
    ///
    /// # Errors
    ///
    /// It could not be built.
    pub fn build(rules: Rules, plain: bool) -> Result<Self> {
        let lab = Lab::builder().families(Families::V4).build()?;
        if rules != Rules::None {
            lab.proxy().nft(STATEFUL)?;
        }
        if rules == Rules::Masquerade {
            lab.proxy().nft(MASQUERADE)?;
        }
        let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &daemon::transparent(&lab, &[])))?;
        Ok(Self {
            rules,
            plain,
            lab,
            server,
            flexcp,
            rates: vec![],
            failed: 0,
        })
    }

    /// The median of the rounds so far, in MB/s.
    pub fn speed(&self) -> f64 {
        median(&self.rates)
    }

    /// Some transfers at once.
    ///
    /// # Errors
    ///
    /// They could not be run; one that fails is counted.
    pub fn round(&mut self) -> Result<()> {
        let to = self.lab.server_socket(1, Family::V4, PORT);
        let client = if self.plain {
            Client::tcp(to)
        } else {
            Client::mptcp(to)
        };
        let client = client.patience(PATIENCE);
        let begun = Instant::now();
        let reports = client.run_many_in(self.lab.client(), AT_A_TIME, &Job::both(BYTES))?;
        let bytes: u64 = reports.iter().map(|report| report.up + report.down).sum();
        #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
        self.rates
            .push(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64());
        let failed = |report: &&Report| report.failure.is_some();
        for report in reports.iter().filter(failed) {
            eprintln!("{:?}: {:?}", self.rules, report.failure);
        }
        self.failed += reports.iter().filter(failed).count();
        Ok(())
    }

    /// What came of it, beside the throughput without rules, in MB/s.
    ///
    /// # Errors
    ///
    /// Something could not be read.
    pub fn row(self, bare: f64) -> Result<Row> {
        let transfers = self.rates.len() * AT_A_TIME;
        let own = self.lab.proxy_addr_towards(1, Family::V4);
        let seen = self.server.wait_for(transfers - self.failed, PATIENCE)?;
        let behind = seen.iter().filter(|report| report.peer.ip() == own).count();
        let stats = self.flexcp.show_stats()?;
        let offloaded =
            stats.counter("offload_packets_down")? + stats.counter("offload_packets_up")?;
        let counters = if self.rules == Rules::None {
            Value::Null
        } else {
            let mut command = self.lab.proxy().command("nft");
            serde_json::from_str(&text(command.args(["-j", "list", "counters"]))?)?
        };
        let median = median(&self.rates);
        let least = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let row = Row {
            rules: self.rules,
            clients: if self.plain { "tcp" } else { "mptcp" },
            transfers,
            failed: self.failed,
            megabytes_per_second: median,
            spread: [least, self.rates.iter().copied().fold(0.0, f64::max)],
            ratio: median / bare,
            invalid: packets(&counters, "invalid"),
            refused: packets(&counters, "refused"),
            masqueraded: [packets(&counters, "masqueraded"), u64::try_from(behind)?],
            offloaded: offloaded * 100 / stats.counter("packets_in")?.max(1),
        };
        self.flexcp.terminate()?;
        Ok(row)
    }
}

/// Of a counter that nft lists by name.
fn packets(counters: &Value, name: &str) -> u64 {
    let list = counters["nftables"].as_array().into_iter().flatten();
    let named = list.filter_map(|item| item.get("counter"));
    let ours = named.filter(|counter| counter["name"] == name);
    ours.filter_map(|counter| counter["packets"].as_u64()).sum()
}

impl Row {
    /// # Errors
    ///
    /// A transfer failed, a packet was taken for invalid or refused, a connection was not masqueraded, or the rules cost
    /// more than they may.
    pub fn judge(&self, aim: f64) -> Result<()> {
        ensure!(self.failed == 0, "{self}: transfers failed");
        ensure!(
            self.invalid + self.refused == 0,
            "{self}: packets were invalid, or no rule accepted them"
        );
        let connections = u64::try_from(self.transfers)?;
        let nat = self.rules == Rules::Masquerade;
        ensure!(
            !nat || self.masqueraded == [connections; 2],
            "{self}: not every connection was masqueraded"
        );
        ensure!(
            self.ratio >= aim,
            "{self}: less than {aim} of the throughput without rules"
        );
        Ok(())
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let file = directory.join("firewall.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| file.display().to_string())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| clients | rules | transfers | failed | MB/s (slowest-fastest) | of that without (aim {}) | invalid | refused | masqueraded: rule, servers | in the kernel |\n\
             |---|---|---|---|---|---|---|---|---|---|",
            self.aim
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = match self.rules {
            Rules::None => "none",
            Rules::Stateful => "stateful",
            Rules::Masquerade => "stateful, masquerade",
        };
        let [least, most] = self.spread;
        write!(
            f,
            "| {} | {rules} | {} | {} | {:.0} ({least:.0}-{most:.0}) | {:.2} | {} | {} | {}, {} | {} % |",
            self.clients,
            self.transfers,
            self.failed,
            self.megabytes_per_second,
            self.ratio,
            self.invalid,
            self.refused,
            self.masqueraded[0],
            self.masqueraded[1],
            self.offloaded
        )
    }
}
