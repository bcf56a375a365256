//! The command line of FlexCP.
#![forbid(unsafe_code)]

mod connect_command;
mod rule_command;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flexcp::beside::{self, Foreseen};
use flexcp::config::live::{self, ThisHost};
use flexcp::config::plan;
use flexcp::control::view::{OneService, Services};
use flexcp::control::{Answer, Client, VERSION, Wanted, target};
use flexcp::offload::{self, Tried};
use flexcp::show::ConnectionTable;
use flexcp::{config, explain, run, show};
use flexcp_io::{JournalError, KernelError, KernelTables};
use serde_json::json;
use serde_json::value::RawValue;
use tracing::level_filters::LevelFilter;

use self::connect_command::ConnectCommand;
use self::rule_command::RuleCommand;

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
    /// Print what a configuration file may say, as a JSON Schema
    Schema,
    /// Tell what happens to the connections of a running FlexCP, as it happens, until interrupted
    Events(ShowArgs),
    /// List, set and remove the rules of a running FlexCP
    Rule {
        #[command(subcommand)]
        what: RuleCommand,
    },
    /// Move what goes down connections to another access or subflow
    Move {
        #[command(flatten)]
        which: WhichArgs,
        /// To a subflow of this access
        #[arg(long, value_name = "ACCESS", required_unless_present = "to_subflow")]
        to: Option<String>,
        /// To the subflow with this number, behind # in `show connections`
        #[arg(long, value_name = "NUMBER", conflicts_with = "to")]
        to_subflow: Option<u8>,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Close connections: both ends are told
    Close {
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Tell a running FlexCP the weight or the maintenance of a service's back end
    Backend {
        /// The service's name
        service: String,
        /// The back end's address and port
        address: String,
        /// Its part of all weights of new connections, 0 to 256, or `file` for that of the configuration file
        #[arg(long, value_name = "N", value_parser = weight, required_unless_present = "maintenance")]
        weight: Option<Weight>,
        /// Whether it takes no new connections for now; those that it has go on
        #[arg(long, value_enum)]
        maintenance: Option<Switch>,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Have a running FlexCP take no new connections of a service; those that it has may end, then both ends are told
    Drain {
        /// The service's name
        service: String,
        /// What its connections have to end by themselves, such as 30s [default: `drain` in [timeouts]]
        #[arg(long, value_name = "TIME")]
        within: Option<String>,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Have it take new connections of a drained service again
    Undrain {
        /// The service's name
        service: String,
        #[command(flatten)]
        show: ShowArgs,
    },
    Connect(ConnectCommand),
    /// Show what a running FlexCP does
    Show {
        #[command(subcommand)]
        what: What,
    },
}

#[derive(Subcommand)]
enum What {
    /// The connections that there are, and their subflows
    Connections {
        #[command(flatten)]
        wanted: WantedArgs,
        #[command(flatten)]
        look: LookArgs,
    },
    /// The accesses that there are, and what their subflows do
    Accesses(LookArgs),
    /// The rules in force, in their order, and where they come from
    Rules(LookArgs),
    /// The services, and how many of their back ends take connections
    Services(LookArgs),
    /// The aggregation servers of boxes: what was measured of them, in which order they are asked, and why
    Servers(LookArgs),
    /// The back ends: weight, maintenance, health, connections
    Backends(LookArgs),
    /// What has been done and dropped so far
    Stats(LookArgs),
    /// Whether packets get through, what is in their way, and what was put back
    Status(LookArgs),
}

#[derive(Args)]
struct LookArgs {
    #[command(flatten)]
    show: ShowArgs,
    /// Show it again every so many seconds, until interrupted [without a number: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

#[derive(Args)]
struct WhichArgs {
    /// That with this id, as `show connections` has it; without one, all that the options below fit
    #[arg(value_name = "ID", conflicts_with_all = ["state", "service", "client", "server", "access"])]
    id: Option<String>,
    #[command(flatten)]
    wanted: WantedArgs,
}

#[derive(Args)]
struct WantedArgs {
    /// Only those in this state: handshake, translating, half-closed, closed, plain, fallback or reset (several may
    /// be given)
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<String>,
    /// Only those of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only those with a subflow from there: an address, a prefix, ADDRESS:PORT, or :PORT
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Only those to there: what the client connected to, or the back end
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// Only those with a subflow of this access
    #[arg(long, value_name = "NAME")]
    access: Option<String>,
    /// Only those of this rule
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
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

#[derive(Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// `None`: that of the configuration file.
#[derive(Clone, Copy)]
struct Weight(Option<u16>);

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
        Command::Events(args) => events(&args),
        Command::Rule { what } => rule_command::run(what),
        Command::Move {
            which,
            to,
            to_subflow,
            show,
        } => {
            let body = match to_subflow {
                Some(subflow) => json!({ "subflow": subflow }),
                None => json!({ "access": to }),
            };
            order(&which, "move", Some(&body.to_string()), &show)
        }
        Command::Close { which, show } => order(&which, "close", None, &show),
        Command::Backend {
            service,
            address,
            weight,
            maintenance,
            show,
        } => {
            let target = target::backend(&service, &address);
            tell("PUT", &target, Some(&change(weight, maintenance)), &show)
        }
        Command::Drain {
            service,
            within,
            show,
        } => {
            let body = within.map(|within| serde_json::json!({ "within": within }).to_string());
            let target = target::drain(&service);
            tell("POST", &target, body.as_deref(), &show)
        }
        Command::Undrain { service, show } => tell("DELETE", &target::drain(&service), None, &show),
        Command::Connect(connect) => connect.run(),
        Command::Show { what } => show(what),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
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
        let host = ThisHost::beside(&config.control.socket.value);
        let sources = live::check(config, &host, &mut found);
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
    let several = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "ok: {}: {}",
        found.file(),
        several(config.services.len(), "service")
    );
    if !config.rules.is_empty() {
        text += &format!(", {}", several(config.rules.len(), "rule"));
    }
    text.push('\n');
    let lines = config::summary(&config).into_iter();
    lines
        .chain(config::summary_of_rules(&config))
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
    let journal = plan::journal(&config);
    // A service that has become wrong since is no reason to leave anything.
    if path.is_some() && found.has_errors() {
        eprintln!(
            "flexcp: {} has errors; what it says of the journal {} is used all the same",
            found.file(),
            journal.display()
        );
    }
    let mut lines = String::new();
    let mut report = |line: &str| lines += &format!("{line}\n");
    let done = KernelTables::clean_up(&journal, &mut report);
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

/// Shows it once, or again and again until nobody reads any more.
fn show(what: What) -> Result<ExitCode> {
    let look = match &what {
        What::Connections { look, .. }
        | What::Accesses(look)
        | What::Rules(look)
        | What::Services(look)
        | What::Servers(look)
        | What::Backends(look)
        | What::Stats(look)
        | What::Status(look) => look,
    };
    let mut client = Client::new(&socket(&look.show)?);
    let accesses = |answer: &Answer| Ok(show::accesses(&answer.read()?));
    let rules = |answer: &Answer| Ok(show::rules(&answer.read()?));
    let services = |answer: &Answer| Ok(show::services(&answer.read()?));
    let servers = |answer: &Answer| Ok(show::servers(&answer.read()?));
    let backends = |answer: &Answer| Ok(show::backends(&answer.read()?));
    let stats = |answer: &Answer| Ok(show::stats(&answer.read()?));
    let status = |answer: &Answer| Ok(show::status(&answer.read()?));
    let mut out = Printer::default();
    let mut next = Instant::now();
    loop {
        match &what {
            What::Connections { wanted, .. } => connections(wanted, look, &mut client, &mut out)?,
            What::Accesses(_) => numbers(target::ACCESSES, &accesses, look, &mut client, &mut out)?,
            What::Rules(_) => numbers(target::RULES, &rules, look, &mut client, &mut out)?,
            What::Services(_) => numbers(target::SERVICES, &services, look, &mut client, &mut out)?,
            What::Servers(_) => numbers(target::SERVERS, &servers, look, &mut client, &mut out)?,
            What::Backends(_) => numbers(target::SERVICES, &backends, look, &mut client, &mut out)?,
            What::Stats(_) => numbers(target::STATS, &stats, look, &mut client, &mut out)?,
            What::Status(_) => numbers(target::STATUS, &status, look, &mut client, &mut out)?,
        }
        let Some(every) = look.watch.filter(|_| out.failed.is_none()) else {
            return out.end();
        };
        // A daemon that answers late is not asked the more often afterwards.
        next = (next + every).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        if !look.show.json {
            let _ = out.print(if io::stdout().is_terminal() {
                CLEAR
            } else {
                "\n"
            });
        }
    }
}

/// How an answer is shown to people.
type Shown<'a> = &'a dyn Fn(&Answer) -> serde_json::Result<String>;

/// What one answer holds.
fn numbers(
    of: &str,
    shown: Shown<'_>,
    look: &LookArgs,
    client: &mut Client,
    out: &mut Printer,
) -> Result<()> {
    let answer = client.ask(of)?;
    let text = match look.show.json {
        true => format!("{}\n", answer.line()),
        false => shown(&answer)?,
    };
    let _ = out.print(&text);
    Ok(())
}

/// Tells a running FlexCP something about a service, and shows how that stands then.
fn tell(
    method: &'static str,
    target: &str,
    body: Option<&str>,
    args: &ShowArgs,
) -> Result<ExitCode> {
    let answer = Client::new(&socket(args)?).send(method, target, body)?;
    if args.json {
        return print(&format!("{}\n", answer.line()));
    }
    let OneService {
        version,
        generation,
        service,
    } = answer.read()?;
    let all = Services {
        version,
        generation,
        services: vec![service],
    };
    print(&format!(
        "{}\n{}",
        show::services(&all),
        show::backends(&all)
    ))
}

/// What is told about a back end.
fn change(weight: Option<Weight>, maintenance: Option<Switch>) -> String {
    let mut change = serde_json::Map::new();
    if let Some(Weight(weight)) = weight {
        change.insert("weight".into(), weight.into());
    }
    if let Some(switch) = maintenance {
        let on = matches!(switch, Switch::On);
        change.insert("maintenance".into(), on.into());
    }
    serde_json::Value::from(change).to_string()
}

/// A back end's weight; the daemon says how large it may be.
fn weight(text: &str) -> Result<Weight, String> {
    match text {
        "file" => Ok(Weight(None)),
        _ => text
            .parse()
            .map(|weight| Weight(Some(weight)))
            .map_err(|_| "not a number from 0 to 256, nor `file`".into()),
    }
}

/// The connections, each printed when it comes: of a million none has to wait for the last.
fn connections(
    wanted: &WantedArgs,
    look: &LookArgs,
    client: &mut Client,
    out: &mut Printer,
) -> Result<()> {
    let wanted = wanted.wanted();
    if look.show.json {
        let mut text = format!("{{\"version\":{VERSION},\"connections\":[");
        let mut first = true;
        client.connections(&wanted, |connection: Box<RawValue>| {
            text.push_str(if first { "" } else { "," });
            text.push_str(connection.get());
            first = false;
            if text.len() < PIECE {
                return ControlFlow::Continue(());
            }
            let printed = out.print(&text);
            text.clear();
            printed
        })?;
        let _ = out.print(&format!("{text}]}}\n"));
    } else {
        let mut table = ConnectionTable::default();
        client.connections(&wanted, |connection| {
            let block = table.add(connection);
            block.map_or(ControlFlow::Continue(()), |block| out.print(&block))
        })?;
        let _ = out.print(&table.end());
    }
    Ok(())
}

/// Has connections do something, and prints how many have.
fn order(which: &WhichArgs, what: &str, body: Option<&str>, args: &ShowArgs) -> Result<ExitCode> {
    let of_all = format!("{}/{what}", target::CONNECTIONS);
    let query = which.wanted.wanted().query();
    let (method, target) = match &which.id {
        // Nothing that is written there is taken for a part of the path.
        Some(id) if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            anyhow::bail!("`{id}` is no id of a connection; take it from: flexcp show connections")
        }
        Some(id) if what == "close" => ("DELETE", format!("{}/{id}", target::CONNECTIONS)),
        Some(id) => ("POST", format!("{}/{id}/{what}", target::CONNECTIONS)),
        None if query.is_empty() => anyhow::bail!(
            "which connections? name an id, or some by --service, --state, --client, --server or --access"
        ),
        None => ("POST", format!("{of_all}?{query}")),
    };
    let answer = Client::new(&socket(args)?).send(method, &target, body)?;
    let text = match &which.id {
        _ if args.json => format!("{}\n", answer.line()),
        Some(_) => show::done(&answer.read()?),
        None => show::done_by_all(&answer.read()?),
    };
    print(&text)
}

impl WantedArgs {
    fn wanted(&self) -> Wanted {
        Wanted {
            state: self.state.clone(),
            service: self.service.clone(),
            client: self.client.clone(),
            server: self.server.clone(),
            access: self.access.clone(),
            rule: self.rule.clone(),
        }
    }
}

/// What happens, a line each.
fn events(args: &ShowArgs) -> Result<ExitCode> {
    let mut out = Printer::default();
    Client::new(&socket(args)?).events(|line| {
        let said = if args.json {
            Some(line.into())
        } else {
            show::event(line)
        };
        let said = said.map(|said| format!("{said}\n"));
        said.map_or(ControlFlow::Continue(()), |said| out.print(&said))
    })?;
    out.end()
}

/// The control socket.
fn socket(args: &ShowArgs) -> Result<PathBuf> {
    Ok(match (&args.socket, &args.config) {
        (Some(socket), _) => socket.clone(),
        (None, Some(config)) => usable(config)?.control.socket.value,
        (None, None) => config::file::SOCKET.into(),
    })
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

/// Prints `text`.
fn print(text: &str) -> Result<ExitCode> {
    let mut out = Printer::default();
    let _ = out.print(text);
    out.end()
}

/// Standard output; whoever reads it may go away before the end (`flexcp show connections | head`).
#[derive(Default)]
struct Printer {
    failed: Option<io::Error>,
}

impl Printer {
    /// Prints `text`, and breaks when nobody reads any more.
    fn print(&mut self, text: &str) -> ControlFlow<()> {
        let mut out = io::stdout();
        let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.failed = self.failed.take().or_else(|| printed.err());
        match self.failed {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }

    fn end(self) -> Result<ExitCode> {
        match self.failed {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(ExitCode::SUCCESS),
        }
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

/// Seconds between two looks.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "not a number of seconds from 0.01 to 86400".into())
}

/// Empties a terminal (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// What is printed at a time, in bytes.
const PIECE: usize = 16 << 10;
