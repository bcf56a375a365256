//! The items that each kernel is tried with, and how one is run: as a program of its own, with a time limit, on the
//! kernel that runs here.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use super::package::Flavour;
use super::report::AIM_PERCENT;
use super::word::{Outcome, Word};
use crate::carried::Carried;
use crate::feature::Feature;
use crate::process::{describe_exit, text};

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Less than two minutes for all kernels.
    Short,
    /// All of it.
    Full,
}

impl Form {
    /// Which of Debian's kernels are tried: of two that differ in their drivers, so that the programs are loaded on both.
    pub(super) const fn flavour(self) -> Flavour {
        match self {
            Self::Short => Flavour::Cloud,
            // The other one has no PPP.
            Self::Full => Flavour::Pc,
        }
    }
}

/// Something to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) name: &'static str,
    what: What,
    /// What not every kernel has. One that is without it is not given the item, and that is told.
    needs: Option<Feature>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// `lab` with these arguments.
    Lab(&'static [&'static str]),
    /// `lab carried` with these arguments: its last line is what was carried.
    Carried(&'static [&'static str]),
    /// One end-to-end case.
    Case(&'static str),
    /// Tests of the I/O crate; so many of them at least.
    Rules(&'static [&'static str], usize),
}

/// The programs that items are made of.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) lab: PathBuf,
    /// Tests of the I/O crate.
    pub(super) netns: PathBuf,
    /// End-to-end cases.
    pub(super) e2e: PathBuf,
}

/// The items, in their order.
pub(super) fn items(form: Form) -> &'static [Item] {
    match form {
        Form::Short => &SHORT,
        Form::Full => &FULL,
    }
}

/// Of these the ones whose name has one of `texts` in it; all, if there is no text.
///
/// # Errors
///
/// There is none.
pub(super) fn chosen(form: Form, texts: &[String]) -> Result<Vec<Item>> {
    let mut chosen = items(form).to_vec();
    let named = |item: &Item| texts.iter().any(|text| item.name.contains(text.as_str()));
    chosen.retain(|item| texts.is_empty() || named(item));
    let all: Vec<_> = items(form).iter().map(|item| item.name).collect();
    ensure!(
        !chosen.is_empty(),
        "no item is called {texts:?}; there are: {}",
        all.join("; ")
    );
    Ok(chosen)
}

const fn item(name: &'static str, what: What) -> Item {
    Item {
        name,
        what,
        needs: None,
    }
}

/// A case for kernels that have this.
const fn if_had(feature: Feature, name: &'static str, case: &'static str) -> Item {
    Item {
        name,
        what: What::Case(case),
        needs: Some(feature),
    }
}

/// The transfer that is the same on every kernel.
const TRANSFER: Item = item(CARRIED, What::Carried(&[]));

/// The item whose share of packets in the kernel is judged.
pub(super) const CARRIED: &str = "transfer, down";

const OFFLOAD_RULES: Item = item("rules of the offload", What::Rules(&["offload_"], 10));

const SHORT: [Item; 2] = [
    item("rules of the offload", What::Rules(&["offload_rules_"], 7)),
    TRANSFER,
];

const FULL: [Item; 30] = [
    OFFLOAD_RULES,
    item(
        "placement, tables, device",
        What::Rules(&["--skip", "offload_"], 40),
    ),
    item(
        "check: a good file",
        What::Case("operation::check_accepts_a_good_file"),
    ),
    item(
        "check: a bad file",
        What::Case("operation::check_says_what_is_wrong_and_where"),
    ),
    item(
        "crash is cleaned up",
        What::Case("operation::crash_is_cleaned_up_at_the_next_start"),
    ),
    item(
        "transparent, IPv4",
        What::Case("transfer::two_subflows_ipv4"),
    ),
    item(
        "transparent, IPv6",
        What::Case("transfer::two_subflows_ipv6"),
    ),
    item(
        "reverse, IPv4",
        What::Case("reverse::bytes_both_ways_over_two_links"),
    ),
    item("reverse, IPv6", What::Case("reverse::ipv6_listener")),
    item(
        "curl and nginx",
        What::Case("program::curl_downloads_from_nginx"),
    ),
    TRANSFER,
    item("transfer, down, IPv6", What::Carried(&["--v6"])),
    Item {
        needs: Some(Feature::Vlan),
        ..item("transfer, down, VLAN", What::Carried(&["--vlan"]))
    },
    if_had(
        Feature::Vlan,
        "VLAN on one path",
        "device::vlan_on_one_path",
    ),
    if_had(
        Feature::Bridge,
        "bridge on one path",
        "device::bridge_on_one_path",
    ),
    if_had(
        Feature::Bond,
        "bond on one path",
        "device::bond_on_one_path",
    ),
    if_had(Feature::Ppp, "PPP as a box's uplink", "bare::ppp_uplink"),
    if_had(
        Feature::Ppp,
        "PPP as a box's uplink, IPv6",
        "bare::ppp_uplink_ipv6",
    ),
    if_had(
        Feature::WireGuard,
        "WireGuard as a box's uplink",
        "bare::wireguard_uplink",
    ),
    if_had(
        Feature::WireGuard,
        "WireGuard as a box's uplink, IPv6",
        "bare::wireguard_uplink_ipv6",
    ),
    if_had(
        Feature::Vrf,
        "VRF that FlexCP's device is in",
        "device::vrf_that_the_device_is_in",
    ),
    if_had(
        Feature::Vrf,
        "VRF that FlexCP's device is not in",
        "device::vrf_that_the_device_is_not_in",
    ),
    if_had(Feature::Esp, "IPsec to the server", "ipsec::to_the_server"),
    if_had(
        Feature::Esp,
        "IPsec to the server, under a transfer",
        "ipsec::to_the_server_from_the_middle_of_a_transfer",
    ),
    if_had(
        Feature::Esp,
        "IPsec to the clients",
        "ipsec::to_the_clients",
    ),
    if_had(
        Feature::Esp,
        "IPsec to the clients, under a transfer",
        "ipsec::to_the_clients_from_the_middle_of_a_transfer",
    ),
    if_had(
        Feature::Esp,
        "IPsec to the server, IPv6",
        "ipsec::to_the_server_over_ipv6_is_told_to_fail",
    ),
    if_had(
        Feature::Esp,
        "IPsec to the server, by an interface",
        "ipsec::to_the_server_by_an_xfrm_interface",
    ),
    item("demo", What::Lab(&["demo"])),
    item(
        "slice of the fault matrix",
        What::Lab(&[
            "faults",
            "--sample",
            "12",
            "--jobs",
            "1",
            "--results",
            "/tmp/faults",
        ]),
    ),
];

/// Runs items on the kernel that runs here, and tells of each.
///
/// # Errors
///
/// Nothing could be run or told at all; what fails in an item is in its word.
pub(super) fn run_all(
    items: &[Item],
    programs: &Programs,
    mut tell: impl FnMut(Word) -> Result<()>,
) -> Result<()> {
    let release = text(Command::new("uname").arg("-r"))?.trim().to_owned();
    tell(Word::Kernel { release })?;
    for item in items {
        tell(Word::Begin {
            item: item.name.to_owned(),
        })?;
        tell(Word::Ended(item.run(programs)))?;
    }
    tell(Word::End)
}

/// Writes a word to standard output at once.
pub(super) fn print(word: &Word) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(word.line()?.as_bytes())?;
    Ok(out.flush()?)
}

impl Item {
    /// Whether it takes the tests of the I/O crate.
    pub(super) fn is_of_netns(&self) -> bool {
        matches!(self.what, What::Rules(..))
    }

    /// Whether it takes the end-to-end cases.
    pub(super) fn is_of_e2e(&self) -> bool {
        matches!(self.what, What::Case(_))
    }

    fn run(&self, programs: &Programs) -> Outcome {
        let began = Instant::now();
        let mut outcome = Outcome {
            item: self.name.to_owned(),
            passed: false,
            not_had: None,
            seconds: 0.0,
            carried: None,
            waits: vec![],
            detail: String::new(),
        };
        if let Some(feature) = self.needs
            && !feature.is_there()
        {
            outcome.not_had = Some(feature.to_string());
            return outcome;
        }
        match self.attempt(programs) {
            Ok(carried) => {
                outcome.passed = true;
                outcome.carried = carried;
                self.try_again(programs, &mut outcome);
            }
            Err(error) => outcome.detail = format!("{error:#}"),
        }
        outcome.seconds = began.elapsed().as_secs_f64();
        outcome
    }

    /// A transfer of which too few packets were carried in the kernel runs once more, and the better counts: guests beside
    /// each other share the processors, and what waits for one of them comes up to the worker.
    fn try_again(&self, programs: &Programs, outcome: &mut Outcome) {
        let Some(first) = outcome
            .carried
            .filter(|first| first.percent() < AIM_PERCENT)
        else {
            return;
        };
        let share = first.percent();
        outcome.detail = format!(
            "a second attempt: {share:.1} % of the data packets in the kernel at the first"
        );
        match self.attempt(programs) {
            Ok(Some(second)) if second.percent() > share => outcome.carried = Some(second),
            Ok(_) => {}
            Err(error) => {
                outcome.passed = false;
                outcome.detail = format!("{error:#}");
            }
        }
    }

    fn attempt(&self, programs: &Programs) -> Result<Option<Carried>> {
        let (program, arguments) = match self.what {
            What::Lab(arguments) => (&programs.lab, arguments.to_vec()),
            What::Carried(arguments) => (&programs.lab, [&["carried"], arguments].concat()),
            What::Case(name) => (&programs.e2e, vec!["--exact", name]),
            What::Rules(arguments, _) => (&programs.netns, arguments.to_vec()),
        };
        let ended = finish(program, &arguments)?;
        let judged = self.judge(&ended);
        judged.with_context(|| format!("{}\n{}", self.name, last_lines(&ended.said, DETAIL)))
    }

    fn judge(&self, ended: &Ended) -> Result<Option<Carried>> {
        ensure!(
            ended.failure.is_none(),
            "{}",
            ended.failure.as_deref().unwrap_or_default()
        );
        match self.what {
            What::Lab(_) => Ok(None),
            What::Carried(_) => {
                let line = ended.said.lines().rev().find(|line| line.starts_with('{'));
                let line = line.context("no word on what was carried")?;
                Ok(Some(serde_json::from_str(line)?))
            }
            What::Case(_) => all_run(&ended.said, 1).map(|()| None),
            What::Rules(_, least) => all_run(&ended.said, least).map(|()| None),
        }
    }
}

/// The end of a program, in words if it was a bad one, and what it printed.
struct Ended {
    failure: Option<String>,
    said: String,
}

/// Runs a program to its end. It ends with this process, and its whole group with the time limit.
fn finish(program: &Path, arguments: &[&str]) -> Result<Ended> {
    let file = env::temp_dir().join(format!("flexcp-item-{}", std::process::id()));
    let out = File::create(&file).with_context(|| format!("creating {file:?}"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(program).args(arguments).process_group(0);
    // Emulation is some thirty times as slow, and the running kernel has them all in the I/O crate's own tests.
    command.env("FLEXCP_SEEDS", SEEDS);
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out);
    let child = command.spawn();
    let mut child = child.with_context(|| format!("could not start {command:?}"))?;
    let deadline = Instant::now() + LIMIT;
    let failure = loop {
        match child.try_wait()? {
            Some(status) if status.success() => break None,
            Some(status) => break Some(describe_exit(status)),
            None if Instant::now() > deadline => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                child.wait()?;
                break Some(format!("still running after {LIMIT:?}"));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let said = read_lossy(&file);
    let _ = fs::remove_file(&file);
    Ok(Ended { failure, said })
}

fn read_lossy(file: &Path) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a test program has run at least so many tests, none failed and none was left out as ignored.
fn all_run(said: &str, least: usize) -> Result<()> {
    let result = said
        .lines()
        .rev()
        .find_map(|line| line.split_once("test result: "));
    let (_, result) = result.context("no word on the tests' result")?;
    let count = |what: &str| {
        let mut counts = result
            .split([';', '.'])
            .filter_map(|part| part.trim().strip_suffix(what));
        let number = counts
            .next()
            .and_then(|number| number.trim().parse::<usize>().ok());
        number.with_context(|| format!("{what} tests are not counted in {result:?}"))
    };
    let (passed, failed, ignored) = (count("passed")?, count("failed")?, count("ignored")?);
    ensure!(failed == 0, "{failed} tests failed");
    ensure!(ignored == 0, "{ignored} tests were not run");
    ensure!(
        passed >= least,
        "{passed} tests were run, of {least} or more"
    );
    Ok(())
}

fn last_lines(said: &str, most: usize) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}

/// Of one item, also under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Simulated connections that go through the programs.
const SEEDS: &str = "4";

/// Lines of a failed item's output that are kept.
const DETAIL: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 48 filtered out; finished in 8.60s";

    #[test]
    fn tests_that_were_run_pass() {
        assert!(all_run(&format!("running 10 tests\n{GOOD}\n"), 10).is_ok());
    }

    #[test]
    fn no_test_is_no_pass() {
        assert!(all_run("", 1).is_err());
        assert!(all_run(&GOOD.replace("10 passed", "0 passed"), 1).is_err());
        assert!(all_run(GOOD, 11).is_err());
    }

    #[test]
    fn ignored_or_failed_is_no_pass() {
        assert!(all_run(&GOOD.replace("0 ignored", "1 ignored"), 1).is_err());
        assert!(all_run(&GOOD.replace("0 failed", "1 failed"), 1).is_err());
    }

    #[test]
    fn names_are_told_apart() {
        for form in [Form::Short, Form::Full] {
            let names: std::collections::BTreeSet<_> =
                items(form).iter().map(|item| item.name).collect();
            assert_eq!(names.len(), items(form).len());
            assert!(names.contains(CARRIED));
        }
    }

    #[test]
    fn items_are_chosen_by_a_part_of_their_name() {
        let names = |texts: &[&str]| -> Vec<_> {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            let chosen = chosen(Form::Full, &texts).unwrap();
            chosen.iter().map(|item| item.name).collect()
        };
        assert_eq!(names(&["check: a", "demo"]).len(), 3);
        assert_eq!(names(&[]).len(), FULL.len());
        assert!(chosen(Form::Full, &["nothing".to_owned()]).is_err());
    }

    #[test]
    fn program_that_fails_says_why() {
        let ended = finish(Path::new("/bin/sh"), &["-c", "echo this; exit 3"]).unwrap();
        assert_eq!(ended.failure.as_deref(), Some("exit code 3"));
        assert_eq!(ended.said, "this\n");
    }
}
