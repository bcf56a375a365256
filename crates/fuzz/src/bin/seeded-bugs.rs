//! Puts the bugs of `mutants/*.txt` one by one into a copy of the workspace and runs the tests that need
//! no root: which test notices each of them, and which bug nobody notices. Those in `bpf/` are for root alone,
//! and take clang.
//!
//! `seeded-bugs [--check] [--only=PACKAGE] [WORD...]`: `--check` only looks whether each text still stands
//! where the list says, `--only` runs the tests of one package, WORDs choose bugs by their name.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs, io};

/// Share of the bugs that has to be noticed, in percent.
const WANTED: usize = 95;
/// Seconds for the tests of one bug: one that makes a loop endless is noticed by that.
const PATIENCE: u32 = 60;
/// Packages whose tests are run, those most likely to notice first.
const PACKAGES: [&str; 3] = ["flexcp-translator", "flexcp-wire", "flexcp-fuzz"];

#[derive(Default, Debug)]
struct Bug {
    name: String,
    file: String,
    old: Vec<String>,
    new: Vec<String>,
}

impl Bug {
    fn is_in_kernel(&self) -> bool {
        self.file.starts_with("bpf/")
    }
}

/// What the tests say of one bug.
enum Verdict {
    Caught(String),
    /// It does not compile: the list is wrong.
    Invalid(String),
    Survived,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("seeded-bugs: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let (flags, words): (Vec<_>, Vec<_>) = env::args().skip(1).partition(|a| a.starts_with("--"));
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect();
    let root = root.canonicalize().map_err(|error| error.to_string())?;
    let bugs = load(&root.join("mutants"))?;
    check(&root, &bugs)?;
    if flags.iter().any(|flag| flag == "--check") {
        println!("{} bugs, each text stands where it should", bugs.len());
        return Ok(true);
    }
    let copy = root.join("target/seeded-bugs");
    mirror(&root, &copy.join("source")).map_err(|error| format!("copy: {error}"))?;
    let only = flags.iter().find_map(|flag| flag.strip_prefix("--only="));
    let packages = only.map_or_else(|| PACKAGES.to_vec(), |package| vec![package]);
    let copy = Copy { copy, packages };
    let root = is_root();
    if let Verdict::Invalid(why) | Verdict::Caught(why) = copy.test()? {
        return Err(format!("tests fail without any bug: {why}"));
    }
    println!("| bug | caught by |\n|---|---|");
    let (mut caught, mut survived) = (0, 0);
    for bug in &bugs {
        if !words.is_empty() && !words.iter().any(|word| bug.name.contains(word.as_str())) {
            continue;
        }
        if bug.is_in_kernel() && !root {
            println!("| {} | not tried: needs root |", bug.name);
            continue;
        }
        let start = Instant::now();
        let verdict = copy.with(bug)?;
        let seconds = start.elapsed().as_secs();
        match verdict {
            Verdict::Caught(test) => {
                caught += 1;
                println!("| {} | {test} ({seconds} s) |", bug.name);
            }
            Verdict::Survived => {
                survived += 1;
                println!("| {} | **nobody** |", bug.name);
            }
            Verdict::Invalid(why) => return Err(format!("{:?} does not compile: {why}", bug.name)),
        }
    }
    let all = caught + survived;
    println!("\n{caught} of {all} caught");
    Ok(caught * 100 >= all * WANTED)
}

/// Reads the lists.
fn load(directory: &Path) -> Result<Vec<Bug>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut bugs: Vec<Bug> = Vec::new();
    for file in files {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut lines = text.lines().skip_while(|line| !line.starts_with("== "));
        lines
            .try_for_each(|line| take(&mut bugs, line))
            .map_err(|line| format!("{}: what is {line:?}?", file.display()))?;
    }
    let names: BTreeSet<&str> = bugs.iter().map(|bug| bug.name.as_str()).collect();
    if names.len() != bugs.len() {
        return Err("two bugs of the same name".into());
    }
    Ok(bugs)
}

/// One line of a list; `Err`: it means nothing.
fn take(bugs: &mut Vec<Bug>, line: &str) -> Result<(), String> {
    if let Some(name) = line.strip_prefix("== ") {
        bugs.push(Bug {
            name: name.into(),
            ..Bug::default()
        });
        return Ok(());
    }
    let Some(bug) = bugs.last_mut() else {
        return Err(line.into());
    };
    match line.split_at_checked(2) {
        Some(("@ ", file)) => bug.file = file.into(),
        Some(("- ", old)) => bug.old.push(old.into()),
        Some(("+ ", new)) => bug.new.push(new.into()),
        _ if line == "-" => bug.old.push(String::new()),
        _ if line.is_empty() => {}
        _ => return Err(line.into()),
    }
    Ok(())
}

/// Every text to find stands in its file exactly once.
fn check(root: &Path, bugs: &[Bug]) -> Result<(), String> {
    let mut wrong = Vec::new();
    for bug in bugs {
        let text = fs::read_to_string(root.join(&bug.file))
            .map_err(|error| format!("{:?}: {}: {error}", bug.name, bug.file))?;
        let found = text.matches(&bug.old.join("\n")).count();
        if found != 1 {
            wrong.push(format!(
                "{:?}: its text stands {found} times in {}",
                bug.name, bug.file
            ));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

/// Copies the sources; a file that is the same keeps its time, so that little is built again.
fn mirror(root: &Path, copy: &Path) -> io::Result<()> {
    fs::create_dir_all(copy)?;
    for name in ["Cargo.toml", "Cargo.lock"] {
        copy_file(&root.join(name), &copy.join(name))?;
    }
    for directory in ["bpf", "scripts"] {
        mirror_tree(&root.join(directory), &copy.join(directory))?;
    }
    mirror_tree(&root.join("crates"), &copy.join("crates"))
}

fn mirror_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        names.insert(entry.file_name());
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            mirror_tree(&entry.path(), &target)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).ok().as_ref() != Some(&bytes) {
        fs::write(to, bytes)?;
    }
    Ok(())
}

/// Whether this process may load programs into the kernel.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("Uid:")
            .and_then(|ids| ids.split_whitespace().nth(1))
            == Some("0")
    })
}

/// The copy that is damaged and mended.
struct Copy<'a> {
    copy: PathBuf,
    packages: Vec<&'a str>,
}

impl Copy<'_> {
    /// Puts the bug in, tests, takes it out.
    fn with(&self, bug: &Bug) -> Result<Verdict, String> {
        let file = self.copy.join("source").join(&bug.file);
        let say = |error: io::Error| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(say)?;
        let damaged = text.replacen(&bug.old.join("\n"), &bug.new.join("\n"), 1);
        fs::write(&file, damaged).map_err(say)?;
        let verdict = if bug.is_in_kernel() {
            self.test_kernel()
        } else {
            self.test()
        };
        fs::write(&file, text).map_err(say)?;
        verdict
    }

    /// Runs the tests of one package after the other until one fails; each is built when it is its turn.
    fn test(&self) -> Result<Verdict, String> {
        for package in &self.packages {
            let (builds, output) =
                self.cargo(&["--lib", "--tests", "--no-run"], package, PATIENCE * 40)?;
            if !builds {
                let error = output.lines().find(|line| line.starts_with("error"));
                return Ok(Verdict::Invalid(error.unwrap_or("no error?").into()));
            }
            let (passes, output) =
                self.cargo(&["--lib", "--tests", "--no-fail-fast"], package, PATIENCE)?;
            if !passes {
                return Ok(Verdict::Caught(who(&output)));
            }
        }
        Ok(Verdict::Survived)
    }

    /// Compiles the kernel's programs and runs the tests of them.
    fn test_kernel(&self) -> Result<Verdict, String> {
        let compiled = Command::new("sh")
            .arg("scripts/bpf")
            .current_dir(self.copy.join("source"))
            .output()
            .map_err(|error| format!("scripts/bpf: {error}"))?;
        if !compiled.status.success() {
            let output = String::from_utf8_lossy(&compiled.stderr);
            return Ok(Verdict::Invalid(output.into_owned()));
        }
        // A packet for each rule takes a second, the simulator on top of the programs longer.
        let test = |names| self.cargo(&["--test", "netns", "--", names], "flexcp-io", PATIENCE * 5);
        let (passes, mut output) = test("offload_rules")?;
        if passes {
            let (passes, rest) = test("offload")?;
            if passes {
                return Ok(Verdict::Survived);
            }
            output = rest;
        }
        let failed = output.lines().find_map(|line| {
            let (name, _) = line.strip_prefix("test ")?.split_once(" ... FAILED")?;
            Some(name.trim().to_owned())
        });
        Ok(Verdict::Caught(failed.unwrap_or_else(|| who(&output))))
    }

    fn cargo(
        &self,
        arguments: &[&str],
        package: &str,
        patience: u32,
    ) -> Result<(bool, String), String> {
        let mut command = Command::new("timeout");
        command
            .arg(patience.to_string())
            .args(["cargo", "test", "--quiet", "--offline", "--locked"])
            .args(["-p", package])
            .args(arguments)
            .current_dir(self.copy.join("source"))
            .env("CARGO_TARGET_DIR", self.copy.join("build"))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("PROPTEST_CASES", "64")
            .env("RUST_BACKTRACE", "0");
        let output = command
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok((output.status.success(), text.concat()))
    }
}

/// The first test that failed, and how many more.
fn who(output: &str) -> String {
    let failed: BTreeSet<&str> = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("thread '"))
        .filter_map(|line| line.split_once("' "))
        .map(|(name, _)| name)
        .collect();
    match (failed.first(), failed.len().saturating_sub(1)) {
        (None, _) => "a test that never ends".into(),
        (Some(first), 0) => (*first).into(),
        (Some(first), more) => format!("{first} and {more} more"),
    }
}
