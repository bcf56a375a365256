//! The command line of FlexCP.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flexcp::beside::{self, Foreseen};
use flexcp::config::live::{self, ThisHost};
use flexcp::config::plan;
use flexcp::control::{self, Action};
use flexcp::offload::{self, Tried};
use flexcp::{config, explain, run, show};
use flexcp_io::{JournalError, KernelError, KernelTables};
use tracing::level_filters::LevelFilter;

/// A splitless proxy between MPTCP clients and TCP servers
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the proxy until SIGTERM or SIGINT
    Run {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How much to log to standard error
        #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
        log_level: LogLevel,
    },
    /// Say what is wrong with a configuration file, where, and what would be right
    Check {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check against this host, too: its interfaces, addresses, ports and routes
        #[arg(long)]
        live: bool,
        /// Print all that the kernel's verifier says about programs that it refuses
        #[arg(long, requires = "live")]
        verifier_log: bool,
    },
    /// Take back what a FlexCP that crashed has left in the kernel; the next start does so, too
    Clean {
        /// The configuration file that it ran with; without one, the defaults
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Say what the numbers of `show stats` mean, and which to alarm on
    Explain {
        /// Only what has this in its name
        word: Option<String>,
        /// As a Markdown document
        #[arg(long, conflicts_with = "word")]
        markdown: bool,
    },
    /// Show what a running FlexCP does
    Show {
        #[command(subcommand)]
        what: What,
    },
}

#[derive(Subcommand)]
enum What {
    /// The connections that there are, and their subflows
    Connections(ShowArgs),
    /// What has been done and dropped so far
    Stats(ShowArgs),
    /// Whether packets get through, what is in their way, and what was put back
    Status(ShowArgs),
}

#[derive(Args)]
struct ShowArgs {
    /// Print JSON, as the daemon answers
    #[arg(long)]
    json: bool,
    /// The daemon's control socket [default: /run/flexcp/flexcp.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Take the control socket from this configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run { config, log_level } => {
            log_to_stderr(log_level);
            run::run(&config)
                .map_err(Into::into)
                .map(|()| ExitCode::SUCCESS)
        }
        Command::Check {
            config,
            live,
            verifier_log,
        } => check(&config, live, verifier_log),
        Command::Clean { config } => clean(config.as_deref()),
        Command::Show { what } => show(&what),
        Command::Explain { word, markdown } => explain(word.as_deref(), markdown),
    };
    result.unwrap_or_else(|error| {
        // Each error says what is behind it itself.
        eprintln!("flexcp: {error}");
        ExitCode::FAILURE
    })
}

fn check(path: &Path, live: bool, verifier_log: bool) -> Result<ExitCode> {
    let (config, mut found) = config::load(path)?;
    let mut tried = Tried::default();
    let mut beside = Foreseen::default();
    if let Some(config) = config.as_ref().filter(|_| live) {
        let sources = live::check(config, &ThisHost::default(), &mut found);
        if !found.has_errors() {
            tried = offload::try_loading(config, &sources);
            beside = beside::foresee(config);
        }
    }
    eprint!("{found}");
    for miss in tried.misses.iter().chain(&beside.problems) {
        eprintln!("{}: warning: {miss}", found.file());
    }
    if verifier_log {
        print(&tried.log)?;
    }
    let Some(config) = config.filter(|_| !found.has_errors()) else {
        let errors = found.errors();
        eprintln!(
            "flexcp: {}: {errors} error{}",
            found.file(),
            if errors == 1 { "" } else { "s" }
        );
        return Ok(ExitCode::FAILURE);
    };
    let services = config::summary(&config);
    let mut text = format!(
        "ok: {}: {} service{}\n",
        found.file(),
        services.len(),
        if services.len() == 1 { "" } else { "s" }
    );
    services
        .iter()
        .for_each(|line| text += &format!("  {line}\n"));
    if let Some(works) = &tried.works {
        text += &format!("  offload: {works}\n");
        for line in &beside.offload {
            text += &format!("  offload: {line}\n");
        }
    }
    print(&text)
}

fn clean(path: Option<&Path>) -> Result<ExitCode> {
    let (config, found) = match path {
        Some(path) => config::load(path)?,
        None => config::parse("", ""),
    };
    let config =
        config.with_context(|| format!("{} is not TOML; see: flexcp check", found.file()))?;
    let (journal, table) = (plan::journal(&config), plan::table(&config));
    // A service that has become wrong since is no reason to leave anything.
    if path.is_some() && found.has_errors() {
        eprintln!(
            "flexcp: {} has errors; what it says of table {table} and the journal {} is used all the same",
            found.file(),
            journal.display()
        );
    }
    let mut lines = String::new();
    let mut report = |line: &str| lines += &format!("{line}\n");
    let done = KernelTables::clean_up(&journal, table, &mut report);
    if done.is_ok() && lines.is_empty() {
        lines += "nothing to clean\n";
    }
    let printed = print(&lines);
    match done {
        Err(KernelError::Journal(JournalError::Busy { path, owner })) => anyhow::bail!(
            "flexcp is running{owner} and holds {}; stop it, and it takes back everything itself",
            path.display()
        ),
        done => done.map_err(Into::into).and(printed),
    }
}

fn show(what: &What) -> Result<ExitCode> {
    let (What::Connections(args) | What::Stats(args) | What::Status(args)) = what;
    let socket = match (&args.socket, &args.config) {
        (Some(socket), _) => socket.clone(),
        (None, Some(config)) => usable(config)?.control.socket.value,
        (None, None) => config::file::SOCKET.into(),
    };
    let action = match what {
        What::Connections(_) => Action::Connections,
        What::Stats(_) => Action::Stats,
        What::Status(_) => Action::Status,
    };
    let answer = control::ask(&socket, action)?;
    let text = match what {
        _ if args.json => format!("{}\n", answer.line()),
        What::Connections(_) => show::connections(&answer.read()?),
        What::Stats(_) => show::stats(&answer.read()?),
        What::Status(_) => show::status(&answer.read()?),
    };
    print(&text)
}

fn usable(path: &Path) -> Result<config::Config> {
    let (config, found) = config::load(path)?;
    match config.filter(|_| !found.has_errors()) {
        Some(config) => Ok(config),
        None => anyhow::bail!(
            "{path} has errors; see: flexcp check --config {path}",
            path = path.display()
        ),
    }
}

fn explain(word: Option<&str>, markdown: bool) -> Result<ExitCode> {
    if markdown {
        return print(&explain::markdown());
    }
    match explain::text(word) {
        Some(text) => print(&text),
        None => anyhow::bail!(
            "nothing is counted under a name with `{}`; see: flexcp explain",
            word.unwrap_or_default()
        ),
    }
}

/// Prints `text`; whoever reads it may go away before the end (`flexcp show connections | head`).
fn print(text: &str) -> Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn log_to_stderr(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .compact();
    // The journal has the time already.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
}
