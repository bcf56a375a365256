//! `flexcp rule`: the rules of a running FlexCP, from the command line.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use flexcp::control::view::{OneRule, Rules};
use flexcp::control::{Answer, Client, ClientError, target};
use flexcp::show;
use serde_json::{Map, Value, json};

use super::{ShowArgs, print, socket};

#[derive(Subcommand)]
pub(super) enum RuleCommand {
    /// All rules in force, in their order
    List(ShowArgs),
    /// One rule, as it may stand in the configuration file
    Show {
        /// The rule's name
        name: String,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Set a rule: it takes the place of the one of its name, or is new
    Set(RuleArgs),
    /// Add a rule, of which there is none of its name
    Add(RuleArgs),
    /// Remove a rule
    Remove {
        /// The rule's name
        name: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Carry out what a JSON file says: `{"changes": [...]}`, all of them or none; `{"rules": [...]}` in place of those there; or
    /// a document of multi-access rules
    Apply {
        /// The file; `-`: standard input
        file: PathBuf,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give back the rules to the configuration file: its own are in force again
    Reset(ChangeArgs),
}

#[derive(Args)]
pub(super) struct RuleArgs {
    /// Keys of [[rule]] and their values, like name=video ports=443,8000-8999 weights=dsl:30,lte:70; or a JSON file with one
    /// rule, `-`: standard input
    #[arg(required = true, value_name = "KEY=VALUE|FILE")]
    rule: Vec<String>,
    /// Place it before this rule
    #[arg(long, value_name = "NAME")]
    before: Option<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args)]
pub(super) struct ChangeArgs {
    /// Wait until the rules are saved
    #[arg(long)]
    saved: bool,
    /// Have existing connections judged by the rules at once
    #[arg(long = "move")]
    moves: bool,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(command: RuleCommand) -> Result<ExitCode> {
    match command {
        RuleCommand::List(args) => {
            let answer = ask(&args, "GET", target::RULES, None)?;
            tell(&args, &answer, |answer| Ok(show::rules(&answer.read()?)))
        }
        RuleCommand::Show { name, show } => {
            let answer = ask(&show, "GET", &target::rule(&name), None)?;
            let text = |answer: &Answer| Ok(show::rule(&answer.read::<OneRule>()?));
            tell(&show, &answer, text)
        }
        RuleCommand::Set(args) => set(&args, "set"),
        RuleCommand::Add(args) => set(&args, "add"),
        RuleCommand::Remove { name, change } => {
            let answer = change.send("DELETE", &target::rule(&name), None)?;
            change.tell(&answer)
        }
        RuleCommand::Apply { file, change } => apply(&file, &change),
        RuleCommand::Reset(change) => {
            let answer = change.send("DELETE", target::RULES, None)?;
            change.tell(&answer)
        }
    }
}

fn set(args: &RuleArgs, how: &str) -> Result<ExitCode> {
    let rule = match args.rule.as_slice() {
        [file] if !file.contains('=') => read(Path::new(file))?,
        keys => Value::Object(keys.iter().map(|pair| key(pair)).collect::<Result<_>>()?),
    };
    let mut change = json!({ how: rule });
    if let Some(before) = &args.before {
        change["before"] = before.as_str().into();
    }
    let body = json!({ "changes": [change] });
    let answer = args.change.send("PATCH", target::RULES, Some(&body))?;
    args.change.tell(&answer)
}

fn apply(file: &Path, change: &ChangeArgs) -> Result<ExitCode> {
    let body = read(file)?;
    let has = |key| body.get(key).is_some();
    let (method, target) = match () {
        () if has("changes") => ("PATCH", target::RULES),
        () if has("rules") => ("PUT", target::RULES),
        () if has("mars") => ("PUT", target::MAR),
        () => bail!(
            "{} says nothing to apply; write an object with `changes`, `rules` or `mars`",
            file.display()
        ),
    };
    let answer = change.send(method, target, Some(&body))?;
    change.tell(&answer)
}

/// What a file of JSON says.
fn read(file: &Path) -> Result<Value> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(file)
            .with_context(|| format!("can't read {}", file.display()))
            .map_err(whole)?;
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not JSON", file.display()))
        .map_err(whole)
}

/// An error with what is behind it, in one line.
fn whole(error: anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

/// A key of a rule and its value, from `key=value`: lists with commas, weights as `dsl:30,lte:70`, anything else as it would stand
/// in JSON, or else as text.
fn key(pair: &str) -> Result<(String, Value)> {
    let Some((key, text)) = pair.split_once('=') else {
        bail!("`{pair}` has no value; write it like mode=random");
    };
    let value = match key {
        _ if text.starts_with(['[', '{', '"']) => serde_json::from_str(text)
            .with_context(|| format!("the value of `{key}` is not JSON"))
            .map_err(whole)?,
        "services" | "servers" | "ports" | "clients" | "accesses" => {
            text.split(',').map(Value::from).collect()
        }
        "weights" => Value::Object(weights(text)?),
        "max_loss" | "client_backup" => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        _ => text.into(),
    };
    Ok((key.into(), value))
}

fn weights(text: &str) -> Result<Map<String, Value>> {
    let weight = |part: &str| {
        let (name, weight) = part.rsplit_once(':').unwrap_or((part, ""));
        match weight.parse::<u32>() {
            Ok(weight) => Ok((name.to_owned(), weight.into())),
            Err(_) => bail!("`{part}` is no weight; write them like weights=dsl:30,lte:70"),
        }
    };
    text.split(',').map(weight).collect()
}

impl ChangeArgs {
    fn send(&self, method: &'static str, target: &str, body: Option<&Value>) -> Result<Answer> {
        let flags = [(self.saved, "saved=true"), (self.moves, "move=true")];
        let query: Vec<_> = flags
            .iter()
            .filter_map(|(set, flag)| set.then_some(*flag))
            .collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let target = format!("{target}{mark}{}", query.join("&"));
        ask(&self.show, method, &target, body)
    }

    fn tell(&self, answer: &Answer) -> Result<ExitCode> {
        tell(&self.show, answer, |answer| {
            let rules: Rules = answer.read()?;
            Ok(show::rules(&rules))
        })
    }
}

fn ask(
    args: &ShowArgs,
    method: &'static str,
    target: &str,
    body: Option<&Value>,
) -> Result<Answer> {
    let body = body.map(Value::to_string);
    let mut client = Client::new(&socket(args)?);
    let answer = client.send(method, target, body.as_deref());
    answer.map_err(|error| match error {
        // It is about something in the request, and says which.
        ClientError::Refused(fault) if fault.place != "flexcp" => {
            anyhow::anyhow!("flexcp refuses: {}: {fault}", fault.place)
        }
        error => error.into(),
    })
}

fn tell(
    args: &ShowArgs,
    answer: &Answer,
    text: impl Fn(&Answer) -> Result<String>,
) -> Result<ExitCode> {
    if args.json {
        return print(&format!("{}\n", answer.line()));
    }
    print(&text(answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_a_rule() {
        let read = |pair: &str| key(pair).map_err(|error| error.to_string());
        let told = |key: &str, value: Value| Ok((key.to_owned(), value));
        assert_eq!(read("name=a=b"), told("name", json!("a=b")));
        assert_eq!(read("hold=2s"), told("hold", json!("2s")));
        assert_eq!(read("name=7"), told("name", json!("7")));
        assert_eq!(
            read("ports=443,8000-8999"),
            told("ports", json!(["443", "8000-8999"]))
        );
        assert_eq!(read("services=[\"a,b\"]"), told("services", json!(["a,b"])));
        assert_eq!(
            read("weights=dsl:30,a:b:70"),
            told("weights", json!({ "dsl": 30, "a:b": 70 }))
        );
        assert_eq!(read("max_loss=0.5"), told("max_loss", json!(0.5)));
        assert_eq!(
            read("client_backup=false"),
            told("client_backup", json!(false))
        );
        // What is no such value the daemon refuses, by its field.
        assert_eq!(read("client_backup=no"), told("client_backup", json!("no")));
        assert!(read("mode").unwrap_err().contains("has no value"));
        assert!(read("weights=dsl").unwrap_err().contains("is no weight"));
        assert!(read("ports=[1").unwrap_err().contains("is not JSON"));
    }
}
