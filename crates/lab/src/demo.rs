//! `lab demo`: FlexCP's main job, as a human sees it.

use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::counters::{FALLBACKS, InterfaceBytes, Mib, Oracle, interfaces};
use crate::daemon::{self, FlexCp};
use crate::fault::Cut;
use crate::nginx::{Nginx, sha256_of};
use crate::process::{Background, describe_exit};
use crate::sockstat::{SocketLine, mptcp_subflows};
use crate::topology::{Family, Lab};
use crate::transfer::Proto;

/// What the demo does.
#[derive(Clone, Copy, Debug)]
pub struct Demo {
    /// Size of the file that is fetched.
    pub bytes: u64,
    /// Rate of each of the two links, each way.
    pub rate_mbit: u32,
    /// Leave the lab up at the end.
    pub keep: bool,
    /// No FlexCP: the server speaks MPTCP itself, behind a plain router.
    pub direct: bool,
}

impl Demo {
    /// Runs it; an error, after everything has been printed, if anything is wrong.
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        let paint = Paint {
            colours: std::io::stdout().is_terminal(),
        };
        let stage = self.set_the_stage(&paint)?;
        let act = self.fetch_and_cut(&stage, &paint)?;
        let wrong = self.report(&stage, &act, &paint)?;
        if self.keep {
            stage.leave_up(&paint)?;
        } else if let Some(flexcp) = stage.flexcp {
            flexcp.stop()?;
        }
        let took = began.elapsed().as_secs_f64();
        if wrong.is_empty() {
            println!(
                "\n{} in {took:.1} s",
                paint.good("Everything is as it should be,")
            );
            return Ok(());
        }
        bail!("the demo failed: {}", wrong.join("; "))
    }

    fn set_the_stage(self, paint: &Paint) -> Result<Stage> {
        paint.title("Lab");
        let rate = self.rate_mbit;
        let builder = Lab::builder()
            .rate_mbit(1, rate)
            .rate_mbit(2, rate)
            .keep(self.keep);
        let lab = builder.build()?;
        let proto = if self.direct {
            Proto::Mptcp
        } else {
            Proto::Tcp
        };
        let nginx = Nginx::start(&lab, 1, &[(FILE, self.bytes)], proto)?;
        let flexcp = if self.direct {
            None
        } else {
            Some(FlexCp::start(
                &lab,
                &daemon::config(&lab, &daemon::transparent(&lab, &[])),
            )?)
        };
        let middle = if self.direct { "router" } else { "FlexCP" };
        let end = if self.direct {
            "nginx (MPTCP)"
        } else {
            "nginx (TCP)"
        };
        let address = |link| lab.client_addr(link, Family::V4);
        println!("           {} ══ link 1, {rate} Mbit/s ══╗", address(1));
        println!("  client                                  {middle} ── {end}");
        println!("           {} ══ link 2, {rate} Mbit/s ══╝", address(2));
        Ok(Stage { flexcp, nginx, lab })
    }

    /// Fetches the file and cuts the busier link on the way.
    fn fetch_and_cut(self, stage: &Stage, paint: &Paint) -> Result<Act> {
        let lab = &stage.lab;
        paint.title("Transfer");
        let copy = lab.dir().join("copy");
        let url = format!("http://{}/{FILE}", lab.server_addr(1, Family::V4));
        println!(
            "  $ mptcpize run curl {url}    ({} MB)",
            self.bytes / 1_000_000
        );

        let oracle = Oracle::start(lab)?;
        let mut command = lab.client().command("mptcpize");
        command.args(["run", "curl", "-sS", "--fail", "--max-time", "50", "-o"]);
        command.arg(&copy).arg(&url);
        let before = interfaces(lab.client())?;
        let mut watch = Watch::start(copy.clone());
        let mut curl = Background::spawn(command, lab.dir(), "curl")?;

        let cut_at = self.bytes / 10 * 4;
        while watch.look() < cut_at && curl.try_wait()?.is_none() {}
        let mut act = Act::new(oracle, copy, before);
        if curl.try_wait()?.is_none() {
            act.link = busier_link(lab)?;
            act.at_cut = interfaces(lab.client())?;
            act.subflows = subflow_table(lab)?;
            act.connections = stage.show("connections")?;
            println!(
                "  {:>5.2} s  {:>3} %  {}",
                watch.seconds(),
                100 * watch.bytes / self.bytes,
                paint.bad(&format!("link {} cut silently", act.link))
            );
            lab.cut(act.link, Cut::Silent)?;
            watch.forget_stalls();
        }
        let mut shown_after = false;
        loop {
            if let Some(status) = curl.try_wait()? {
                watch.look();
                act.curl = if status.success() {
                    None
                } else {
                    Some(format!(
                        "curl: {} {}",
                        describe_exit(status),
                        curl.stderr().trim()
                    ))
                };
                break;
            }
            if watch.look() > self.bytes / 10 * 8 && !shown_after {
                shown_after = true;
                act.connections_after = stage.show("connections")?;
            }
        }
        act.seconds = watch.seconds();
        act.longest_stall = watch.longest_stall;
        println!(
            "  {:>5.2} s  {:>3} %",
            act.seconds,
            100 * watch.bytes / self.bytes.max(1)
        );
        Ok(act)
    }

    /// Prints everything; what is wrong, in words.
    fn report(self, stage: &Stage, act: &Act, paint: &Paint) -> Result<Vec<String>> {
        let lab = &stage.lab;
        let mut wrong = vec![];
        let mut check = |ok: bool, good: String, bad: &str| {
            println!(
                "  {} {good}",
                if ok {
                    paint.good("ok   ")
                } else {
                    paint.bad("WRONG")
                }
            );
            if !ok {
                wrong.push(bad.to_owned());
            }
        };

        let counters = act.oracle.client(lab)?;
        let after = interfaces(lab.client())?;
        paint.title("Subflows, as the client's kernel saw them before the cut (ss -tin)");
        print!("{}", act.subflows);

        paint.title("Bytes to the client per link");
        println!("            before the cut     after");
        for link in 1..=lab.links() {
            let name = format!("a{link}");
            let at = |when: &Bytes| when.get(&name).map_or(0, |bytes| bytes.rx);
            let (first, second) = (
                at(&act.at_cut) - at(&act.before),
                at(&after) - at(&act.at_cut),
            );
            println!(
                "    link {link}  {:>10.1} MB {:>10.1} MB",
                mega(first),
                mega(second)
            );
        }
        println!(
            "  {:.0} Mbit/s over all; longest stall around the cut {} ms",
            mega(self.bytes) * 8.0 / act.seconds,
            act.longest_stall.as_millis()
        );

        paint.title("Client's kernel counters");
        let all = [
            "MPCapableSYNTX",
            "MPCapableSYNACKRX",
            "MPJoinSynTx",
            "MPJoinSynAckRx",
            "SubflowStale",
            "DuplicateData",
            "MPRstTx",
            "MPRstRx",
        ];
        let row: Vec<_> = all
            .iter()
            .map(|name| format!("{name} {}", counters.get(name)))
            .collect();
        println!("  {}\n  {}", row[..4].join("   "), row[4..].join("   "));

        if stage.flexcp.is_some() {
            paint.title("flexcp show connections (before the cut)");
            print!("{}", indent(&act.connections));
            paint.title("flexcp show connections (after the cut)");
            print!("{}", indent(&act.connections_after));
            paint.title("flexcp show stats (what is not 0)");
            let stats = stage.show("stats")?;
            let moved = stats
                .lines()
                .filter(|line| !line.ends_with(" 0") && !line.is_empty());
            moved.for_each(|line| println!("  {line}"));
        }

        paint.title("Verdict");
        check(
            act.curl.is_none(),
            "curl fetched the file".into(),
            act.curl.as_deref().unwrap_or(""),
        );
        let (sum, wanted) = (
            sha256_of(&act.copy).unwrap_or_default(),
            stage.nginx.sha256(FILE)?,
        );
        check(
            sum == wanted,
            format!("SHA-256 {}…", &wanted[..16]),
            "the SHA-256 differs",
        );
        let joins = counters.get("MPJoinSynAckRx");
        check(
            joins >= 1,
            format!("{joins} subflow joined"),
            "no subflow joined",
        );
        let fallbacks = sum_of(&counters, FALLBACKS);
        check(
            fallbacks == 0,
            "no fallback to TCP".into(),
            "the connection fell back to TCP",
        );
        check(
            act.link != 0,
            "cut in the middle".into(),
            "the transfer was over before the cut",
        );
        let stall = format!("longest stall {} ms", act.longest_stall.as_millis());
        check(
            act.longest_stall < Duration::from_secs(5),
            stall,
            "stalled for more than 5 s",
        );
        Ok(wrong)
    }
}

type Bytes = std::collections::BTreeMap<String, InterfaceBytes>;

/// Lab and programs; fields in the order in which they go.
struct Stage {
    flexcp: Option<FlexCp>,
    nginx: Nginx,
    lab: Lab,
}

impl Stage {
    fn show(&self, what: &str) -> Result<String> {
        self.flexcp
            .as_ref()
            .map_or_else(|| Ok(String::new()), |flexcp| flexcp.show(what))
    }

    fn leave_up(self, paint: &Paint) -> Result<()> {
        paint.title("The lab stays up");
        let Self { flexcp, nginx, lab } = self;
        for link in 1..=lab.links() {
            lab.restore(link)?;
        }
        let mut tips = format!(
            "  try       nsenter --net=/run/netns/{} mptcpize run curl -o /dev/null http://{}/{FILE}\n",
            lab.client().name(),
            lab.server_addr(1, Family::V4)
        );
        if let Some(flexcp) = flexcp {
            let _ = writeln!(tips, "  watch     {}", flexcp.show_command_line());
            flexcp.detach();
        }
        nginx.detach();
        let prefix = lab.prefix().to_owned();
        println!(
            "{}{tips}  tear down {}",
            lab.keep()?,
            clean_command(&prefix)
        );
        Ok(())
    }
}

/// What happened during the transfer.
struct Act {
    oracle: Oracle,
    copy: PathBuf,
    /// Interface counters of the client.
    before: Bytes,
    at_cut: Bytes,
    /// The link that was cut; 0 if the transfer was too short.
    link: u8,
    subflows: String,
    connections: String,
    connections_after: String,
    seconds: f64,
    longest_stall: Duration,
    /// What curl complained about.
    curl: Option<String>,
}

impl Act {
    fn new(oracle: Oracle, copy: PathBuf, before: Bytes) -> Self {
        Self {
            oracle,
            copy,
            at_cut: before.clone(),
            before,
            link: 0,
            subflows: String::new(),
            connections: String::new(),
            connections_after: String::new(),
            seconds: 0.0,
            longest_stall: Duration::ZERO,
            curl: None,
        }
    }
}

/// The growth of a file over time.
struct Watch {
    file: PathBuf,
    began: Instant,
    grew: Instant,
    bytes: u64,
    longest_stall: Duration,
}

impl Watch {
    fn start(file: PathBuf) -> Self {
        let now = Instant::now();
        Self {
            file,
            began: now,
            grew: now,
            bytes: 0,
            longest_stall: Duration::ZERO,
        }
    }

    /// Looks once, after a moment; the file's size.
    fn look(&mut self) -> u64 {
        thread::sleep(Duration::from_millis(2));
        let bytes = fs::metadata(&self.file).map_or(0, |meta| meta.len());
        let now = Instant::now();
        self.longest_stall = self.longest_stall.max(now - self.grew);
        if bytes > self.bytes {
            (self.bytes, self.grew) = (bytes, now);
        }
        self.bytes
    }

    /// Counts stalls from here on.
    fn forget_stalls(&mut self) {
        self.grew = Instant::now();
        self.longest_stall = Duration::ZERO;
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

/// The link that brought the client more bytes in the last moments.
fn busier_link(lab: &Lab) -> Result<u8> {
    let before = interfaces(lab.client())?;
    thread::sleep(Duration::from_millis(50));
    let after = interfaces(lab.client())?;
    let gain = |link: &u8| {
        let name = format!("a{link}");
        let rx = |when: &Bytes| when.get(&name).map_or(0, |bytes| bytes.rx);
        rx(&after).saturating_sub(rx(&before))
    };
    (1..=lab.links())
        .max_by_key(gain)
        .context("a lab has links")
}

fn subflow_table(lab: &Lab) -> Result<String> {
    let mut table = String::new();
    let mut subflows = mptcp_subflows(lab.client())?;
    subflows.sort_by_key(SocketLine::is_join);
    for subflow in subflows {
        let field = |name| subflow.field(name).unwrap_or("-").to_owned();
        let kind = if subflow.is_join() {
            "joined"
        } else {
            "initial"
        };
        let _ = writeln!(
            table,
            "  {kind:<8}{:<7}{:<22} -> {:<14} rtt {:<12} received {:>6.1} MB  flags {}",
            subflow.state,
            subflow.local,
            subflow.peer,
            field("rtt"),
            mega(subflow.number("bytes_received")),
            field("flags"),
        );
    }
    ensure!(!table.is_empty(), "the client has no MPTCP subflow");
    Ok(table)
}

/// How to run this program again to remove a lab.
pub fn clean_command(prefix: &str) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| Path::new("lab").into());
    format!("{} clean {prefix}", program.display())
}

fn sum_of(mib: &Mib, names: &[&str]) -> i64 {
    names.iter().map(|name| mib.get(name)).sum()
}

fn mega(bytes: u64) -> f64 {
    // Exact up to 2^53 bytes.
    bytes as f64 / 1e6
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Colours, when there is someone to see them.
struct Paint {
    colours: bool,
}

impl Paint {
    fn title(&self, text: &str) {
        println!("\n{}", self.wrap("1", text));
    }

    fn good(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.colours {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

const FILE: &str = "file.bin";
