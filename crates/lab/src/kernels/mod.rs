//! Every kernel that users run: Debian's own are booted under emulation, the running one is tried as it is, and each is
//! given the same items, with clients and servers of that kernel.
//!
//! `package` has the kernels, `image` makes a root, `guest` boots it, `item` says what is tried and runs it (in
//! the guest, too), `word` is what comes back, `report` judges.

mod guest;
mod image;
mod item;
mod package;
mod report;
mod sources;
mod unit;
mod word;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use self::guest::{Guest, Root};
use self::image::{HOME, Image, Own};
use self::item::{Form, Item, Programs};
use self::package::Kernel;
use self::word::Word;
use crate::daemon;
use crate::kernel_log::KernelLog;
use crate::process::output;
use crate::topology::require_root;

pub use self::report::{Results, Row};
pub use self::unit::{UnitBoot, UnitItems};
pub use self::word::{Outcome, Wait};

/// What to try, and on which kernels.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Only the rules of the offload and a transfer, on Debian's kernels
    #[arg(long)]
    short: bool,
    /// A series of Debian's kernels, e.g. 6.1, or "running" (may be given several times)
    #[arg(long = "kernel")]
    kernels: Vec<String>,
    /// Only items whose name has this in it; nothing is written down then (may be given several times)
    #[arg(long = "item")]
    items: Vec<String>,
    /// Guests at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where unpacked kernels are kept
    #[arg(long, default_value = "target/kernels")]
    cache: PathBuf,
    /// Where kernels.json and kernels.md go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

/// The items alone, on the kernel that runs here.
#[derive(Clone, Debug, Args)]
pub struct ItemArguments {
    /// As for all kernels
    #[arg(long)]
    short: bool,
    /// As for all kernels
    #[arg(long = "item")]
    items: Vec<String>,
    /// The tests of the I/O crate
    #[arg(long)]
    netns: PathBuf,
    /// The end-to-end cases
    #[arg(long)]
    e2e: PathBuf,
}

impl ItemArguments {
    /// Runs them; each is told of in a line on standard output.
    ///
    /// # Errors
    ///
    /// They can't be run at all; what an item finds is in its line.
    pub fn run(self) -> Result<()> {
        let programs = Programs {
            lab: std::env::current_exe()?,
            netns: self.netns,
            e2e: self.e2e,
        };
        let items = item::chosen(form(self.short), &self.items)?;
        item::run_all(&items, &programs, |word| item::print(&word))
    }
}

impl Arguments {
    /// Tries every kernel, prints a table and writes it down.
    ///
    /// # Errors
    ///
    /// A kernel can't be had, or did not do what it has to.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let began = Instant::now();
        let _lock = lock(&self.cache)?;
        let items = item::chosen(form(self.short), &self.items)?;
        let programs = build(&items)?;
        let rows = self.rows(&items, &programs)?;
        let mut results = Results::new(form(self.short), rows, began.elapsed());
        if self.items.is_empty() {
            results.write(&self.results, "kernels")?;
        } else {
            results.items = items.iter().map(|item| item.name).collect();
        }
        println!("\n{results}");
        results.judge()
    }

    fn rows(&self, items: &[Item], programs: &Programs) -> Result<Vec<Row>> {
        let names: Vec<&str> = match (self.kernels.is_empty(), self.short) {
            (false, _) => self.kernels.iter().map(String::as_str).collect(),
            (true, true) => DEBIANS.to_vec(),
            (true, false) => DEBIANS.into_iter().chain([RUNNING]).collect(),
        };
        // Before anything runs, so that nobody waits for what then can't go on.
        let debians = names.iter().filter(|name| **name != RUNNING);
        let flavour = form(self.short).flavour();
        let kernels = debians.map(|name| Ok((*name, Kernel::provide(name, flavour, &self.cache)?)));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        let mut rows = self.guests(&kernels, programs)?;
        if names.contains(&RUNNING) {
            rows.push(running(items, programs)?);
        }
        Ok(rows)
    }

    /// Boots the kernels, some at once; a row for each, in their order.
    fn guests(&self, kernels: &[(&str, Kernel)], programs: &Programs) -> Result<Vec<Row>> {
        let next = Mutex::new(kernels.iter().enumerate());
        let rows = Mutex::new(vec![]);
        let work = || -> Result<()> {
            loop {
                let Some((number, (series, kernel))) =
                    next.lock().map_or(None, |mut next| next.next())
                else {
                    return Ok(());
                };
                let row = self.guest(series, kernel, programs)?;
                if let Ok(mut rows) = rows.lock() {
                    rows.push((number, row));
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("boots do not panic"))
        })?;
        let mut rows = rows.into_inner().unwrap_or_default();
        rows.sort_by_key(|(number, _)| *number);
        ensure!(rows.len() == kernels.len(), "not every kernel has its row");
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    fn guest(&self, series: &str, kernel: &Kernel, programs: &Programs) -> Result<Row> {
        let began = Instant::now();
        let mut own = vec![
            Own {
                name: "lab",
                file: programs.lab.clone(),
            },
            Own {
                name: "flexcp",
                file: daemon::binary()?,
            },
        ];
        let tests = [("netns", &programs.netns), ("e2e", &programs.e2e)];
        let built = tests
            .into_iter()
            .filter(|(_, file)| !file.as_os_str().is_empty());
        own.extend(built.map(|(name, file)| Own {
            name,
            file: file.clone(),
        }));
        // One a line.
        let mut arguments = format!("--netns\n{HOME}/netns\n--e2e\n{HOME}/e2e\n");
        if self.short {
            arguments += "--short\n";
        }
        for item in &self.items {
            arguments += &format!("--item\n{item}\n");
        }
        let image = Image::build(
            &self.cache.join(format!("guest-{series}")),
            kernel,
            &own,
            &arguments,
        )?;
        let guest = Guest {
            kernel,
            root: Root::Initramfs(image.initramfs()),
            console: image.console(),
            processors: 2,
            limit: if self.short { SHORT_LIMIT } else { FULL_LIMIT },
        };
        let mut row = Row::new(&kernel.release, true);
        let ended = guest.run(|word| hear(&mut row, word));
        row.failed = ended.err().map(|error| format!("{error:#}"));
        row.alarms = guest.alarms()?;
        row.seconds = began.elapsed().as_secs_f64();
        Ok(row)
    }
}

/// Makes the directory in which kernels are kept, and has it for this process alone while the file is open.
fn lock(cache: &Path) -> Result<File> {
    fs::create_dir_all(cache).with_context(|| format!("creating {cache:?}"))?;
    let lock = File::create(cache.join("lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another run uses {}", cache.display());
    }
    Ok(lock)
}

/// The kernel that runs here.
fn running(items: &[Item], programs: &Programs) -> Result<Row> {
    let began = Instant::now();
    let mut row = Row::new("", false);
    let log = KernelLog::mark()?;
    item::run_all(items, programs, |word| {
        hear(&mut row, word);
        Ok(())
    })?;
    row.alarms = log.complaints()?;
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

/// Takes a word into a kernel's row, and says it to whoever waits.
fn hear(row: &mut Row, word: Word) {
    if let Word::Ended(outcome) = &word {
        let result = match &outcome.not_had {
            Some(feature) => &format!("no {feature}, not run:"),
            None if outcome.passed => "ok  ",
            None => "FAIL",
        };
        println!(
            "{result} {} {} {:.1} s",
            row.release, outcome.item, outcome.seconds
        );
        if !outcome.detail.is_empty() {
            println!("{}", outcome.detail);
        }
    }
    row.hear(word);
}

const fn form(short: bool) -> Form {
    if short { Form::Short } else { Form::Full }
}

/// Builds the tests that are items, as other targets of the Makefile build them, and says where they are: nowhere, if no
/// item is one of them.
fn build(items: &[Item]) -> Result<Programs> {
    // Before cargo may put another file there, after which this one has no name.
    let lab = std::env::current_exe()?;
    let program = |is_item: fn(&Item) -> bool, which: &[&str]| match items.iter().any(is_item) {
        true => test_program(which),
        false => Ok(PathBuf::new()),
    };
    let netns = program(Item::is_of_netns, &["-p", "flexcp-io", "--test", "netns"])?;
    let e2e = program(Item::is_of_e2e, &E2E)?;
    Ok(Programs { lab, netns, e2e })
}

/// Builds one test program with cargo.
fn test_program(which: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "--locked", "--no-run", "--message-format=json"])
        .args(which);
    let said = output(&mut command)?.stdout;
    let said = String::from_utf8_lossy(&said);
    let file = executable(&said).with_context(|| format!("{command:?} names no program"))?;
    ensure!(Path::new(&file).is_file(), "{file} is not there");
    Ok(file.into())
}

/// The test program that cargo's messages name, among other programs of the same packages, in any order.
fn executable(messages: &str) -> Option<String> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files = messages
        .filter(|message| message["target"]["kind"][0] == "test")
        .filter_map(|message| message["executable"].as_str().map(str::to_owned));
    files.next()
}

const E2E: [&str; 7] = [
    "--release",
    "-p",
    "flexcp-lab",
    "-p",
    "flexcp-bench",
    "--test",
    "e2e",
];

/// Of Debian 12, and of its security updates, which is Debian 13's.
const DEBIANS: [&str; 2] = ["6.1", "6.12"];
const RUNNING: &str = "running";

/// Of one guest. A quiet machine needs less than half of it.
const SHORT_LIMIT: Duration = Duration::from_secs(400);
const FULL_LIMIT: Duration = Duration::from_secs(1800);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_the_one_that_cargo_names() {
        let artifact = |kind: &str, file: Option<&str>| {
            let target = serde_json::json!({ "kind": [kind] });
            serde_json::json!({ "reason": "compiler-artifact", "target": target, "executable": file })
        };
        let mut messages = [
            artifact("lib", None),
            artifact("bin", Some("/t/lab")),
            artifact("test", Some("/t/netns-1")),
            artifact("bin", Some("/t/flexcp")),
            serde_json::json!({ "reason": "build-finished", "success": true }),
        ];
        for _ in 0..messages.len() {
            let lines: Vec<_> = messages.iter().map(ToString::to_string).collect();
            assert_eq!(executable(&lines.join("\n")).as_deref(), Some("/t/netns-1"));
            messages.rotate_left(1);
        }
        assert_eq!(executable(""), None);
    }
}
