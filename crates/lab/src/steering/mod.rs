//! Each steering mode measured by what the links carry (`lab steering`): a rule, a load of real clients on two paths, and what
//! has to come over which of them.

mod balance;
mod caller;
mod case;
mod changes;
mod copies;
mod delay;
mod flows;
mod load;
mod moves;
mod priority;
mod scene;
mod standby;

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use self::case::{CASES, Case};
pub use self::changes::{Results as ChangeResults, RuleChanges};
use crate::aim::{self, Line};
use crate::daemon;
use crate::topology::require_root;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Steering {
    /// Cases whose name has this in it (may be given several times) [default: all]
    #[arg(long)]
    pub only: Vec<String>,
    /// Lines of the rule instead of those of the cases, to try another mode
    #[arg(long)]
    pub rule: Option<String>,
    /// Decides the sizes of what is transferred
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// List the cases with their rules, and run nothing
    #[arg(long)]
    pub list: bool,
    /// Where steering.json and steering.md go
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// What came of all cases.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// Whether programs in the kernel could translate.
    pub offload: bool,
    /// In order.
    pub cases: Vec<Outcome>,
}

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// Lines of its rule.
    pub rule: String,
    /// What was measured.
    pub lines: Vec<Line>,
    /// Why it could not be run: FlexCP does not know the mode, for instance.
    pub failure: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

impl Steering {
    /// Runs the cases, prints the tables and writes them down.
    ///
    /// # Errors
    /// An aim is missed, or a case could not be run.
    pub fn run(&self) -> Result<()> {
        let wanted = |case: &&Case| {
            let mut only = self.only.iter();
            self.only.is_empty() || only.any(|part| case.name.contains(part.as_str()))
        };
        let cases: Vec<_> = CASES.iter().filter(wanted).collect();
        ensure!(
            !cases.is_empty(),
            "no case has such a name; --list shows them"
        );
        if self.list {
            for case in cases {
                println!("{}\n    {}", case.name, case.rule.replace('\n', "\n    "));
            }
            return Ok(());
        }
        require_root()?;
        let mut results = Results {
            offload: !daemon::offload_is_off(),
            cases: vec![],
        };
        for case in cases {
            let outcome = self.one(case);
            eprintln!("{}", outcome.verdict());
            results.cases.push(outcome);
            results.write(&self.results)?;
        }
        print!("{results}");
        results.judge()
    }

    fn one(&self, case: &Case) -> Outcome {
        let began = Instant::now();
        let rule = self.rule.as_deref().unwrap_or(case.rule);
        let run = case.run(rule, self.seed);
        let (lines, failure) = match run {
            Ok(lines) => (lines, None),
            Err(error) => (vec![], Some(format!("{error:#}"))),
        };
        Outcome {
            name: case.name,
            rule: rule.to_owned(),
            lines,
            failure,
            seconds: began.elapsed().as_secs_f64(),
        }
    }
}

impl Outcome {
    /// What is wrong with it, if anything.
    fn wrong(&self) -> Option<String> {
        let failed = self.failure.clone();
        failed.or_else(|| Some(format!("{:#}", aim::judge(&self.lines).err()?)))
    }

    /// A line for whoever waits.
    fn verdict(&self) -> String {
        let (word, why) = match self.wrong() {
            None => ("ok  ", String::new()),
            Some(why) => ("FAIL", why),
        };
        format!("{word} {} {:.0} s {why}", self.name, self.seconds)
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
        let json = serde_json::to_string_pretty(self)?;
        fs::write(directory.join("steering.json"), json + "\n")?;
        fs::write(directory.join("steering.md"), self.to_string())?;
        Ok(())
    }

    /// An error that names each case that went wrong, and how.
    ///
    /// # Errors
    /// A case missed an aim or could not be run, or there is none.
    pub fn judge(&self) -> Result<()> {
        ensure!(!self.cases.is_empty(), "no case was run");
        let mut wrong = String::new();
        for case in &self.cases {
            if let Some(why) = case.wrong() {
                let _ = write!(wrong, "\n{}: {why}", case.name);
            }
        }
        ensure!(wrong.is_empty(), "cases went wrong:{wrong}");
        Ok(())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offload = if self.offload { "on" } else { "off" };
        writeln!(f, "Offload {offload}.")?;
        for case in &self.cases {
            writeln!(
                f,
                "\n## {}\n\n```\n{}\n```\n\n{}",
                case.name,
                case.rule,
                aim::table(&case.lines)
            )?;
            if let Some(failure) = &case.failure {
                writeln!(f, "Not run: {failure}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: Vec<Line>, failure: Option<&str>) -> Outcome {
        Outcome {
            name: "case",
            rule: "mode = \"random\"".into(),
            lines,
            failure: failure.map(str::to_owned),
            seconds: 1.0,
        }
    }

    fn judged(cases: Vec<Outcome>) -> Result<()> {
        let offload = true;
        Results { offload, cases }.judge()
    }

    #[test]
    fn a_case_that_could_not_be_run_is_an_error_with_its_reason() {
        let good = outcome(vec![Line::at_most("what", 1.0, 2.0, "")], None);
        judged(vec![good.clone()]).expect("met");
        let refused = outcome(vec![], Some("there is no steering mode `random`"));
        let error = judged(vec![good.clone(), refused]).unwrap_err().to_string();
        assert!(
            error.ends_with("case: there is no steering mode `random`"),
            "{error}"
        );
        let missed = outcome(vec![Line::at_most("what", 3.0, 2.0, "")], None);
        assert!(judged(vec![good, missed]).is_err());
        assert!(judged(vec![outcome(vec![], None)]).is_err());
        assert!(judged(vec![]).is_err());
    }
}
