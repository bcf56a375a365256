//! Bugs put into a copy of the source on purpose, one by one, and which test notices each.
//!
//! `mutants/*.txt` hold bugs written by hand, each addressed by its function and a fragment of that; others are drawn
//! from a seed. The levels of the tests and their order are in [`level`], the format of the lists in [`list`].
#![forbid(unsafe_code)]

mod copy;
mod draw;
mod item;
mod level;
mod list;
mod place;
mod rename;
mod results;
mod run;
mod token;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use clap::{Args, Parser, Subcommand};

use crate::copy::Copy;
use crate::list::Bug;
use crate::place::Sources;
use crate::results::{Results, Score, Verdict, equivalents};
use crate::run::Runner;

#[derive(Parser)]
#[command(about = "Bugs put into a copy of the source on purpose, and which tests notice")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Looks whether each bug finds its place.
    Check {
        /// And whether it compiles there.
        #[arg(long)]
        compile: bool,
        #[command(flatten)]
        filter: Filter,
    },
    /// Names the bugs of the lists.
    List(Filter),
    /// Names the functions of a place and their lines, as bugs are addressed: `bpf`, a crate, or a path below them.
    Functions { place: String },
    /// Follows a rename in the sources: a name, a path (`Type::function`) or a place (`translator/dtree.rs`).
    Rename { old: String, new: String },
    /// Draws bugs that compile from a seed, into a list.
    Draw {
        /// Where the numbers come from; without it from the clock, and printed.
        #[arg(long)]
        seed: Option<u64>,
        #[arg(long, default_value_t = 30)]
        count: usize,
        /// Where the list goes; without it `mutants/drawn/SEED.txt`.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Tries bugs: a table, and what is known of each in a file.
    Run {
        #[command(flatten)]
        filter: Filter,
        /// Leaves out what the file knows of the same sources.
        #[arg(long)]
        resume: bool,
        /// Only tests without root.
        #[arg(long)]
        without_root: bool,
        /// Where the results go.
        #[arg(long, default_value = "lab/results/seeded-bugs.json")]
        results: PathBuf,
    },
}

#[derive(Args)]
struct Filter {
    /// A list in place of those of `mutants/`, such as one that was drawn.
    #[arg(long)]
    list: Option<PathBuf>,
    /// Bugs of one area: `bpf` or a crate.
    #[arg(long)]
    area: Option<String>,
    /// Bugs whose names hold one of these words.
    words: Vec<String>,
}

impl Filter {
    fn bugs(&self, root: &Path) -> Result<Vec<Bug>, String> {
        let mut bugs = match &self.list {
            Some(file) => list::load(file)?,
            None => list::load_all(&root.join("mutants"))?,
        };
        bugs.retain(|bug| {
            let words = &self.words;
            (words.is_empty() || words.iter().any(|word| bug.name.contains(word)))
                && self.area.as_ref().is_none_or(|area| bug.area() == area)
        });
        Ok(bugs)
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("seeded-bugs: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(verb: Verb) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root
        .canonicalize()
        .map_err(|error| format!("{}: {error}", root.display()))?;
    match verb {
        Verb::Check { compile, filter } => check(&root, &filter.bugs(&root)?, compile),
        Verb::List(filter) => {
            for bug in filter.bugs(&root)? {
                println!("{} {}: {}", bug.place, bug.function, bug.name);
            }
            Ok(true)
        }
        Verb::Functions { place } => {
            for (file, source) in Sources::new(&root).of(&place)? {
                for item in &source.items {
                    let [first, last] = source.lines(item);
                    println!("{}:{first}-{last}: {}", file.display(), item.path);
                }
            }
            Ok(true)
        }
        Verb::Rename { old, new } => {
            let changed = rename::rename(&root.join("mutants"), &old, &new)?;
            println!("{changed} lines changed");
            check(&root, &list::load_all(&root.join("mutants"))?, false)
        }
        Verb::Draw { seed, count, out } => draw_list(&root, seed, count, out),
        Verb::Run {
            filter,
            resume,
            without_root,
            results,
        } => {
            let bugs = filter.bugs(&root)?;
            let results = root.join(results);
            try_all(&root, &bugs, resume, is_root() && !without_root, &results)
        }
    }
}

/// Whether each bug finds its place, and compiles there when asked; those that do not are said.
fn check(root: &Path, bugs: &[Bug], compile: bool) -> Result<bool, String> {
    let mut sources = Sources::new(root);
    let mut wrong = 0;
    for bug in bugs {
        if let Err(why) = sources.find(bug) {
            eprintln!("{:?}: {why}", bug.name);
            wrong += 1;
        }
    }
    println!(
        "{} of {} bugs find their place",
        bugs.len() - wrong,
        bugs.len()
    );
    if !compile || wrong > 0 {
        return Ok(wrong == 0);
    }
    let copy = Copy::of(root).map_err(|error| format!("copy: {error}"))?;
    let runner = Runner::new(copy, false, BTreeMap::new());
    let mut areas: BTreeMap<&str, Vec<&Bug>> = BTreeMap::new();
    for bug in bugs {
        areas.entry(bug.area()).or_default().push(bug);
    }
    for bugs in areas.values() {
        for (bug, why) in runner.compile_errors(bugs, &mut sources)? {
            eprintln!("{:?} does not compile: {why}", bug.name);
            wrong += 1;
        }
    }
    println!("{} of {} bugs compile", bugs.len() - wrong, bugs.len());
    Ok(wrong == 0)
}

fn draw_list(
    root: &Path,
    seed: Option<u64>,
    count: usize,
    out: Option<PathBuf>,
) -> Result<bool, String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.unwrap_or_else(|| now.map_or(1, |now| now.as_secs()));
    eprintln!("seed {seed}");
    let copy = Copy::of(root).map_err(|error| format!("copy: {error}"))?;
    let mut undamaged = Sources::new(&copy.source);
    let runner = Runner::new(copy, false, BTreeMap::new());
    let mut sources = Sources::new(root);
    let bugs = draw::draw(&mut sources, seed, count, |bug| {
        let compiles = runner.compile_error(bug, &mut undamaged)?.is_none();
        eprintln!(
            "{} {}: {}",
            bug.place,
            bug.function,
            if compiles {
                "drawn"
            } else {
                "does not compile"
            }
        );
        Ok(compiles)
    })?;
    let file = out.unwrap_or_else(|| root.join(format!("mutants/drawn/{seed}.txt")));
    let command = format!("scripts/seeded-bugs draw --seed {seed} --count {count}");
    let mut text = format!("Drawn on commit {} by `{command}`.\n", commit(root));
    for bug in &bugs {
        text += "\n";
        text += &bug.to_text();
    }
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("seed {seed}: {} bugs in {}", bugs.len(), file.display());
    Ok(true)
}

fn try_all(
    root: &Path,
    bugs: &[Bug],
    resume: bool,
    may_root: bool,
    file: &Path,
) -> Result<bool, String> {
    let known = fs::read_to_string(root.join("mutants/equivalent.md")).unwrap_or_default();
    let equivalents =
        equivalents(&known).map_err(|error| format!("mutants/equivalent.md: {error}"))?;
    let copy = Copy::of(root).map_err(|error| format!("copy: {error}"))?;
    let digest = copy.digest().map_err(|error| format!("copy: {error}"))?;
    let mut sources = Sources::new(&copy.source);
    let mut results = Results::resume(file, &digest, &commit(root))?;
    if !resume {
        results
            .outcomes
            .retain(|outcome| bugs.iter().all(|bug| bug.name != outcome.name));
    }
    let mut runner = Runner::new(copy, may_root, results.levels.clone());
    println!("| bug | verdict | test | level | s of tests |\n|---|---|---|---|---|");
    for bug in bugs {
        if results.known(bug, may_root).is_none() {
            results.keep(runner.with(bug, &mut sources)?);
            results.levels.clone_from(&runner.seconds);
            results.write(file)?;
        }
        let equivalent = equivalents.get(&bug.name).map(String::as_str);
        if let Some(outcome) = results.known(bug, may_root) {
            println!("{}", outcome.row(equivalent));
            if outcome.verdict == Verdict::Caught && equivalent.is_some() {
                println!("(mutants/equivalent.md says that it changes nothing: take it out there)");
            }
        }
    }
    let outcomes = bugs.iter().filter_map(|bug| results.known(bug, may_root));
    let score = Score::of(outcomes, &equivalents);
    println!("\n{score}\n{}", file.display());
    Ok(score.passes())
}

/// The commit that is checked out, marked if the tree differs from it.
fn commit(root: &Path) -> String {
    let git = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .current_dir(root)
        .output();
    git.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Whether this process may make network namespaces and load programs into the kernel.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("Uid:")
            .and_then(|ids| ids.split_whitespace().nth(1))
            == Some("0")
    })
}
