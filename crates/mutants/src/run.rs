//! Runs the levels over the damaged copy.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::copy::Copy;
use crate::level::{Level, Profile, levels_of};
use crate::list::Bug;
use crate::place::{Site, Sources};
use crate::results::{Outcome, Verdict};

/// Seconds for building; more is a defect of the machine.
const BUILD: u64 = 3600;
/// Seconds that every level has, beside five times what it takes without a bug.
const LEAST: u64 = 60;
/// Bytes of address space of a test: a bug that makes memory grow without an end is stopped by that.
const MEMORY: u64 = 16 << 30;

/// The tests' profile has its own word on each of these.
const UNOPTIMISED: [&str; 8] = [
    "--config=profile.test.opt-level=0",
    "--config=profile.test.package.flexcp-wire.opt-level=0",
    "--config=profile.test.package.flexcp-faults.opt-level=0",
    "--config=profile.test.package.flexcp-location.opt-level=0",
    "--config=profile.test.package.flexcp-translator.opt-level=0",
    "--config=profile.test.package.flexcp-invariants.opt-level=0",
    "--config=profile.test.package.flexcp-simulator.opt-level=0",
    "--config=profile.test.package.flexcp-testkit.opt-level=0",
];

/// What a level says of the copy as it is.
#[derive(Debug)]
enum Said {
    Passed,
    /// The first test that failed, and how many more.
    Failed(Failed),
    /// Not done in time, and no test had failed by then.
    NoEnd,
    DoesNotBuild(String),
}

#[derive(PartialEq, Eq, Debug)]
struct Failed {
    first: String,
    more: usize,
}

/// The copy, and how long its levels take without a bug.
pub(crate) struct Runner {
    copy: Copy,
    /// Whether the levels that need root are tried.
    root: bool,
    /// Seconds of each level without a bug, by its name.
    pub(crate) seconds: BTreeMap<String, f64>,
}

impl Runner {
    /// `seconds`: what is known of the levels of these sources.
    pub(crate) fn new(copy: Copy, root: bool, seconds: BTreeMap<String, f64>) -> Self {
        Self {
            copy,
            root,
            seconds,
        }
    }

    /// Puts the bug in, runs its levels until one notices, takes it out. `sources` are those of the copy, undamaged.
    pub(crate) fn with(&mut self, bug: &Bug, sources: &mut Sources) -> Result<Outcome, String> {
        let site = sources
            .find(bug)
            .map_err(|why| format!("{:?}: {why}", bug.name))?;
        let mut outcome = Outcome::of(bug);
        let all = levels_of(bug);
        for &level in &all {
            if level.needs_root && !self.root {
                break;
            }
            self.measure(level)?;
            outcome.levels += 1;
            let said = self.say_damaged(bug, &site, level, &mut outcome);
            self.copy.mend().map_err(|error| format!("copy: {error}"))?;
            match said? {
                Said::Failed(failed) => {
                    outcome.verdict = Verdict::Caught;
                    outcome.level = level.name.into();
                    outcome.root = level.needs_root;
                    outcome.test = failed.to_string();
                    return Ok(outcome);
                }
                Said::DoesNotBuild(why) => {
                    outcome.verdict = Verdict::DoesNotBuild;
                    outcome.test = why;
                    return Ok(outcome);
                }
                Said::NoEnd => {
                    outcome.verdict = Verdict::NoEnd;
                    outcome.level = level.name.into();
                }
                Said::Passed => {}
            }
        }
        if outcome.verdict == Verdict::Survived && outcome.levels < all.len() {
            outcome.verdict = Verdict::NeedsRoot;
        }
        Ok(outcome)
    }

    /// Why the copy with the bug in it does not compile; `None`: it does.
    pub(crate) fn compile_error(
        &self,
        bug: &Bug,
        sources: &mut Sources,
    ) -> Result<Option<String>, String> {
        let site = sources
            .find(bug)
            .map_err(|why| format!("{:?}: {why}", bug.name))?;
        self.compile_error_of(&[(bug, site)])
    }

    /// The bugs of one area that do not compile, and why. Those that do not touch each other are tried together first.
    pub(crate) fn compile_errors<'a>(
        &self,
        bugs: &[&'a Bug],
        sources: &mut Sources,
    ) -> Result<Vec<(&'a Bug, String)>, String> {
        let mut sites = Vec::new();
        for &bug in bugs {
            let site = sources.find(bug);
            sites.push((bug, site.map_err(|why| format!("{:?}: {why}", bug.name))?));
        }
        sites.sort_by_key(|(_, site)| (site.file.clone(), site.bytes.start));
        let (mut apart, mut alone): (Vec<(&Bug, Site)>, Vec<_>) = (Vec::new(), Vec::new());
        for (bug, site) in sites {
            let before = apart.last().map(|(_, site)| site);
            let touches =
                |other: &Site| other.file == site.file && other.bytes.end > site.bytes.start;
            let list = if before.is_some_and(touches) {
                &mut alone
            } else {
                &mut apart
            };
            list.push((bug, site));
        }
        if self.compile_error_of(&apart)?.is_some() {
            alone.append(&mut apart);
        }
        let mut errors = Vec::new();
        for one in alone {
            let bug = one.0;
            let error = self.compile_error_of(&[one])?;
            errors.extend(error.map(|why| (bug, why)));
        }
        Ok(errors)
    }

    /// Compiles the copy with bugs of one area in it, which stand in the order of their places.
    fn compile_error_of(&self, bugs: &[(&Bug, Site)]) -> Result<Option<String>, String> {
        let Some((first, _)) = bugs.first() else {
            return Ok(None);
        };
        // From the end on, so that places stay where they are.
        for (bug, site) in bugs.iter().rev() {
            self.damage(bug, site)?;
        }
        let output = if first.area() == "bpf" {
            self.compile_programs()
        } else {
            let package = match first.area() {
                "flexcp" => "flexcp".to_owned(),
                area => format!("flexcp-{area}"),
            };
            self.cargo(
                BUILD,
                &["check", "--quiet", "--lib", "--bins", "-p", &package],
            )
        };
        self.copy.mend().map_err(|error| format!("copy: {error}"))?;
        let output = output.map_err(|error| format!("compile: {error}"))?;
        Ok((!output.status.success()).then(|| first_error(&text(&output))))
    }

    fn damage(&self, bug: &Bug, site: &Site) -> Result<(), String> {
        let file = self.copy.source.join(&site.file);
        let say = |error: io::Error| format!("{}: {error}", file.display());
        let mut text = fs::read_to_string(&file).map_err(say)?;
        text.replace_range(site.bytes.clone(), &bug.new);
        fs::write(&file, text).map_err(say)
    }

    fn say_damaged(
        &self,
        bug: &Bug,
        site: &Site,
        level: &'static Level,
        outcome: &mut Outcome,
    ) -> Result<Said, String> {
        self.damage(bug, site)?;
        if bug.area() == "bpf" {
            let start = Instant::now();
            let compiled = self
                .compile_programs()
                .map_err(|error| format!("scripts/bpf: {error}"))?;
            outcome.build_seconds += start.elapsed().as_secs_f64();
            if !compiled.status.success() {
                return Ok(Said::DoesNotBuild(first_error(&text(&compiled))));
            }
        }
        let patience = self.patience(level);
        let said = self.say(level, patience, outcome)?;
        match said {
            // A machine under load fails a test of real time now and then: a bug does it again.
            Said::Failed(ref failed) if level.needs_root => {
                let again = self.test(level, patience, &["--exact", &failed.first])?;
                Ok(if matches!(again, Said::Passed) {
                    Said::Passed
                } else {
                    said
                })
            }
            said => Ok(said),
        }
    }

    /// Seconds after which the tests of a level count as having no end.
    fn patience(&self, level: &Level) -> u64 {
        let known = self.seconds.get(level.name).copied().unwrap_or_default();
        LEAST + Duration::from_secs_f64(known * 5.0).as_secs()
    }

    /// Runs a level without a bug once, for its time; it has to pass.
    fn measure(&mut self, level: &'static Level) -> Result<(), String> {
        if self.seconds.contains_key(level.name) {
            return Ok(());
        }
        let mut attempts = 0;
        loop {
            let mut outcome = Outcome::of(&Bug::default());
            let said = self.say(level, BUILD, &mut outcome)?;
            attempts += 1;
            match said {
                Said::Passed => {
                    let (tests, build) = (outcome.test_seconds, outcome.build_seconds);
                    eprintln!(
                        "without a bug: {} passes in {tests:.0} s, built in {build:.0} s",
                        level.name
                    );
                    self.seconds.insert(level.name.to_owned(), tests);
                    return Ok(());
                }
                Said::Failed(failed) if attempts < 3 => {
                    eprintln!("without a bug: {} fails, once more: {failed}", level.name);
                }
                said => return Err(format!("{} fails without any bug: {said:?}", level.name)),
            }
        }
    }

    /// Builds a level and runs it.
    fn say(&self, level: &Level, patience: u64, outcome: &mut Outcome) -> Result<Said, String> {
        let start = Instant::now();
        let built = self
            .build(level)
            .map_err(|error| format!("cargo: {error}"))?;
        outcome.build_seconds += start.elapsed().as_secs_f64();
        if let Some(why) = built {
            return Ok(Said::DoesNotBuild(why));
        }
        let start = Instant::now();
        let said = self.test(level, patience, &[level.filter]);
        outcome.test_seconds += start.elapsed().as_secs_f64();
        said
    }

    /// Builds a level; why it can't be built, if it can't.
    fn build(&self, level: &Level) -> io::Result<Option<String>> {
        if level.profile == Profile::Fuzz {
            let output = self.cargo(
                BUILD,
                &["build", "--quiet", "--profile=fuzz", "-p", "flexcp"],
            )?;
            if !output.status.success() {
                return Ok(Some(first_error(&text(&output))));
            }
        }
        let output = self.cargo(BUILD, &[&arguments(level)[..], &["--no-run"]].concat())?;
        Ok((!output.status.success()).then(|| first_error(&text(&output))))
    }

    fn test(&self, level: &Level, patience: u64, filter: &[&str]) -> Result<Said, String> {
        let arguments = [&arguments(level)[..], &["--"], filter].concat();
        let output = self
            .cargo(patience, &arguments)
            .map_err(|error| format!("cargo: {error}"))?;
        Ok(judge(&output))
    }

    fn compile_programs(&self) -> io::Result<Output> {
        Command::new("sh")
            .arg("scripts/bpf")
            .current_dir(&self.copy.source)
            .output()
    }

    /// Cargo in the copy, stopped after `patience` seconds.
    fn cargo(&self, patience: u64, arguments: &[&str]) -> io::Result<Output> {
        Command::new("timeout")
            .arg("--kill-after=10")
            .arg(patience.to_string())
            .args(["prlimit", &format!("--as={MEMORY}"), "cargo"])
            .args(arguments.iter().filter(|argument| !argument.is_empty()))
            .current_dir(&self.copy.source)
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TARGET_DIR", &self.copy.build)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_FUZZ_DEBUG", "0")
            .env("PROPTEST_CASES", "64")
            // That a case fails is enough.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("RUST_BACKTRACE", "0")
            .output()
    }
}

fn arguments(level: &Level) -> Vec<&'static str> {
    let mut arguments = vec!["test", "--locked"];
    match level.profile {
        Profile::Test => {}
        Profile::Quick => arguments.extend(UNOPTIMISED),
        Profile::Fuzz => arguments.push("--profile=fuzz"),
    }
    arguments.extend(["-p", level.package]);
    arguments.extend(level.targets);
    arguments
}

/// What the tests' end and their output mean.
fn judge(output: &Output) -> Said {
    let text = text(output);
    if output.status.success() {
        // A filter that fits no test would let every bug pass.
        return if ran(&text) {
            Said::Passed
        } else {
            Said::Failed(Failed {
                first: "no test ran".to_owned(),
                more: 0,
            })
        };
    }
    if let Some(failed) = who(&text) {
        return Said::Failed(failed);
    }
    // Of timeout: 124, or 137 where the tests had to be killed.
    if matches!(output.status.code(), Some(124 | 137) | None) {
        return Said::NoEnd;
    }
    let died = text.lines().rfind(|line| line.contains("signal:"));
    Said::Failed(Failed {
        first: died
            .map_or("a test process that failed without a name", str::trim)
            .to_owned(),
        more: 0,
    })
}

/// Whether there was a test at all, of the output of libtest or libtest-mimic.
fn ran(output: &str) -> bool {
    let counts = output.lines().filter_map(|line| {
        let count = line.strip_prefix("running ")?;
        count.split(' ').next()?.parse::<usize>().ok()
    });
    counts.sum::<usize>() > 0
}

/// The tests that failed, of the output of libtest or libtest-mimic.
fn who(output: &str) -> Option<Failed> {
    let mut failed: Vec<&str> = Vec::new();
    for line in output.lines() {
        let name = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "));
        let name = match name {
            Some((name, end)) if end.starts_with("FAILED") => Some(name.trim()),
            _ => line
                .strip_prefix("---- ")
                .and_then(|rest| rest.strip_suffix(" stdout ----")),
        };
        failed.extend(name.filter(|name| !failed.contains(name)));
    }
    let first = (*failed.first()?).to_owned();
    Some(Failed {
        first,
        more: failed.len() - 1,
    })
}

fn first_error(output: &str) -> String {
    let error = output.lines().find(|line| line.contains("error"));
    let error = error.or_else(|| output.lines().last());
    error.unwrap_or("it said nothing").trim().to_owned()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.more {
            0 => f.write_str(&self.first),
            more => write!(f, "{} and {more} more", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, text: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: text.into(),
            stderr: Vec::new(),
        }
    }

    #[test]
    fn tests_that_are_stopped_have_no_end_unless_one_has_failed() {
        assert!(matches!(
            judge(&output(124, "test a ... ok\n")),
            Said::NoEnd
        ));
        assert!(matches!(judge(&output(137, "")), Said::NoEnd));
        let said = judge(&output(124, "test a ... FAILED\ntest b ... ok\n"));
        assert!(matches!(said, Said::Failed(failed) if failed.first == "a"));
    }

    #[test]
    fn tests_that_pass_have_to_be_some() {
        let two = "running 0 tests\nrunning 2 tests\ntest a ... ok\n";
        assert!(matches!(judge(&output(0, two)), Said::Passed));
        let said = judge(&output(0, "running 0 tests\n"));
        assert!(matches!(said, Said::Failed(failed) if failed.first == "no test ran"));
    }

    #[test]
    fn tests_that_failed_are_named_once() {
        let text =
            "test a::b ... FAILED\ntest c ... ok\ntest d ... FAILED\n---- a::b stdout ----\n";
        let failed = who(text).unwrap();
        assert_eq!(failed.to_string(), "a::b and 1 more");
        let panicked = who("---- seeds stdout ----\n").unwrap();
        assert_eq!(panicked.to_string(), "seeds");
    }

    #[test]
    fn process_that_dies_is_noticed() {
        let said = judge(&output(101, "(signal: 6, SIGABRT: process abort signal)"));
        assert!(matches!(said, Said::Failed(failed) if failed.first.contains("SIGABRT")));
    }
}
