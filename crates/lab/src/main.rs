//! `lab`: FlexCP's laboratory at the command line.

#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flexcp_faults::Faults;
use flexcp_lab::attack::{self, Attack, HostileMemory};
use flexcp_lab::carried;
use flexcp_lab::compare::Compare;
use flexcp_lab::demo::{Demo, clean_command};
use flexcp_lab::endings::Endings;
use flexcp_lab::firewall::Firewall;
use flexcp_lab::kernels;
use flexcp_lab::link::{Emulator, LinkSpec, SelfTest};
use flexcp_lab::lossy::Lossy;
use flexcp_lab::matrix::{self, Matrix};
use flexcp_lab::repeat::Repeat;
use flexcp_lab::transfer::{Client, Job, Mode, Proto, ServeOptions, Server};
use flexcp_lab::watch::Watch;
use flexcp_lab::wirecheck::WireCheck;
use flexcp_lab::{
    Direction, Families, Family, FlexCp, KernelLog, Lab, LabBuilder, Sweep, remove, require_root,
    seed, sweep,
};

/// Network namespaces, faults and transfers around FlexCP.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch a file over two links, cut one on the way, and show what happened
    Demo(DemoArgs),
    /// Build a lab and leave it up
    Up(UpArgs),
    /// Build a lab, open a shell in its client, and remove it at the end
    Shell(UpArgs),
    /// Remove a lab that was left up, or all that no living process owns
    Clean {
        /// Its name, e.g. fxl1234
        prefix: Option<String>,
    },
    /// Carry packets between two interfaces of this network namespace, with faults
    ///
    /// Reads commands from standard input, one a line: `up FAULTS` and `down FAULTS` replace the
    /// faults of a direction, `show` prints the counters as JSON. Ends with the input.
    Link(LinkArgs),
    /// Measure how exact emulated links are, and how fast
    LinkSelftest {
        /// IPv6 instead of IPv4
        #[arg(long)]
        v6: bool,
    },
    /// Attack FlexCP beside honest traffic: floods, blind injection, a hostile client
    Attack(AttackArgs),
    /// Hold all the mappings that FlexCP lets hostile clients hold: its memory, and honest transfers beside them
    HostileMemory(HostileMemory),
    /// Run the fault matrix: small transfers through FlexCP over faulty links
    Faults(FaultsArgs),
    /// Measure FlexCP beside TCP and kernel-to-kernel MPTCP over the same links
    Compare(CompareArgs),
    /// Try FlexCP on every kernel that users run: Debian's under emulation, and the running one
    Kernels(kernels::Arguments),
    /// Try it on the running kernel alone: the items of `kernels`, a line of JSON each
    KernelItems(kernels::ItemArguments),
    /// Try the unit under Debian 12's own systemd, on its kernels under emulation
    UnitBoot(kernels::UnitBoot),
    /// Try it on this machine, which is changed by it: the items of `unit-boot`, a line of JSON each
    UnitItems(kernels::UnitItems),
    /// Run a transfer through FlexCP and say how much of its data the kernel carried, as JSON
    Carried(carried::Transfer),
    /// Many connections with much data over links that lose single segments
    Lossy(LossyArgs),
    /// Rules of netfilter on FlexCP's host: what they cost, what is taken for invalid, whether NAT is applied
    Firewall(Firewall),
    /// Stop FlexCP under transfers, or kill it and start it again: how long clients and servers wait to hear of it
    Endings(Endings),
    /// Take away rules, routes, links and addresses under live transfers: how soon they are back, or told
    Watch(Watch),
    /// Run the end-to-end tests many times, one attempt each, and say how often each case failed
    ///
    /// Goes on where a run of the same commit was broken off. Exit code 1 when more than one run failed.
    Repeat(Repeat),
    /// Hold captures from both sides of FlexCP against the rules of the wire
    ///
    /// Captures are those of tcpdump; 256 bytes of each packet are enough. They need the SYN of every
    /// connection that is to be judged. Exit code 1 when a rule was broken.
    Wirecheck(WirecheckArgs),
    /// Move checked bytes over real sockets
    #[command(subcommand)]
    Transfer(TransferCommand),
}

#[derive(Args)]
struct DemoArgs {
    /// Leave the lab up at the end and say how to enter it
    #[arg(long)]
    keep: bool,
    /// Size of the file
    #[arg(long, default_value_t = 100_000_000)]
    bytes: u64,
    /// Rate of each link in Mbit/s
    #[arg(long, default_value_t = 200)]
    rate_mbit: u32,
    /// For comparison: no FlexCP, the server speaks MPTCP itself
    #[arg(long)]
    direct: bool,
}

#[derive(Args)]
struct UpArgs {
    /// Access links between client and proxy
    #[arg(long, default_value_t = 2)]
    links: u8,
    /// Servers
    #[arg(long, default_value_t = 1)]
    servers: u8,
    /// IP versions
    #[arg(long, value_enum, default_value_t = FamiliesArg::Both)]
    families: FamiliesArg,
    /// Rate of each link in Mbit/s
    #[arg(long)]
    rate_mbit: Option<u32>,
    /// Start FlexCP with this file; {dir} in it becomes the lab's directory
    #[arg(long)]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum FamiliesArg {
    V4,
    V6,
    Both,
}

#[derive(Args)]
struct FaultsArgs {
    /// Cells whose name has this in it, e.g. loss-1/v4 or /down/4/ (may be given several times)
    #[arg(long = "cell")]
    cells: Vec<String>,
    /// That many cells, spread over the matrix
    #[arg(long)]
    sample: Option<usize>,
    /// Start no cell after that many minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Cells at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Chooses the luck of every packet: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    seed: u64,
    /// Hold captures of every cell against the rules of the wire, and leave those of failed cells here
    #[arg(long)]
    captures: Option<PathBuf>,
    /// List the cells and run nothing
    #[arg(long)]
    list: bool,
    /// Where faults.json and faults.md go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

#[derive(Args)]
struct AttackArgs {
    /// Attacks by name; all when there are none
    names: Vec<String>,
    /// List the attacks and run nothing
    #[arg(long)]
    list: bool,
    /// How long each goes on, at least
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Packets a second, instead of each attack's own
    #[arg(long)]
    rate: Option<u32>,
    /// FlexCP's bound on handshakes that are not complete, instead of its default
    #[arg(long)]
    half_open: Option<usize>,
    /// Chooses addresses and numbers of the attacker's: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    seed: u64,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Where attack.json and attack.md go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

#[derive(Args)]
struct CompareArgs {
    /// Transfers of each kind over each link
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Transfers of each kind with a path that is cut
    #[arg(long, default_value_t = 5)]
    cuts: usize,
    /// Congestion control of the servers, e.g. cubic (default: the kernel's)
    #[arg(long)]
    congestion: Option<String>,
    /// Where compare.json goes
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

#[derive(Args)]
struct LossyArgs {
    /// Loss in each direction of both links (may be given several times)
    #[arg(long = "loss", default_values = ["0.1%", "1%", "5%"])]
    losses: Vec<String>,
    /// Connections at once, of two subflows each
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Of all connections at all losses together, up and down together
    #[arg(long, default_value_t = 10_000_000_000)]
    bytes: u64,
    /// Chooses the luck of every packet: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    seed: u64,
    /// Where lossy.json goes
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

#[derive(Args)]
struct WirecheckArgs {
    /// Captures from the clients' side, then one from the servers' side
    #[arg(num_args = 2.., required = true, value_name = "CLIENT.pcap... SERVER.pcap")]
    files: Vec<PathBuf>,
    /// Further captures from the servers' side
    #[arg(long, value_name = "PCAP")]
    server: Vec<PathBuf>,
    /// Segmentation and checksum offloads were off: judge lengths and checksums as well
    #[arg(long)]
    offloads_off: bool,
    /// FlexCP's programs in the kernel were off: all packets leave in one order
    #[arg(long)]
    without_programs: bool,
}

#[derive(Args)]
struct LinkArgs {
    /// The interface where the way up begins
    first: String,
    /// The interface where it ends
    second: String,
    /// Faults from the first interface to the second, e.g. loss=1%,delay=10ms
    #[arg(long, default_value = "")]
    up: Faults,
    /// Faults from the second interface to the first
    #[arg(long, default_value = "")]
    down: Faults,
    /// Decides the luck of every packet
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum TransferCommand {
    /// Serve until killed; one line of JSON for every connection
    Serve {
        /// Port, on all addresses
        #[arg(long, default_value_t = 5000)]
        port: u16,
        /// Protocol of the listening socket
        #[arg(long, value_enum, default_value_t = Proto::Tcp)]
        proto: Proto,
        /// Bytes to send before the client has said anything
        #[arg(long, default_value_t = 0)]
        banner: u64,
    },
    /// Fetch bytes
    Get {
        /// Address and port of the server
        server: SocketAddr,
        /// How many
        bytes: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
    /// Send bytes
    Put {
        /// Address and port of the server
        server: SocketAddr,
        /// How many
        bytes: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
    /// Any other order of events
    Run {
        /// Address and port of the server
        server: SocketAddr,
        /// What happens
        #[arg(long, value_enum)]
        mode: Mode,
        /// Bytes to the server
        #[arg(long, default_value_t = 0)]
        up: u64,
        /// Bytes from the server
        #[arg(long, default_value_t = 0)]
        down: u64,
        /// Number of exchanges (ping-pong)
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// Pause between exchanges, or time to hold, in milliseconds
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
}

#[derive(Args)]
struct ClientArgs {
    /// Protocol of the socket
    #[arg(long, value_enum, default_value_t = Proto::Mptcp)]
    proto: Proto,
    /// Connections at once
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Own address
    #[arg(long)]
    from: Option<IpAddr>,
    /// Bytes the server sends first
    #[arg(long, default_value_t = 0)]
    banner: u64,
    /// Read at most that many bytes a second
    #[arg(long)]
    read_rate: Option<u64>,
    /// Receive buffer in bytes (SO_RCVBUF; the kernel doubles it)
    #[arg(long)]
    receive_buffer: Option<usize>,
    /// Chooses the payload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give up after that many seconds without progress
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(DemoArgs {
            keep,
            bytes,
            rate_mbit,
            direct,
        }) => Demo {
            bytes,
            rate_mbit,
            keep,
            direct,
        }
        .run(),
        Command::Up(args) => up(&args),
        Command::Shell(args) => shell(&args),
        Command::Clean { prefix } => clean(prefix.as_deref()),
        Command::Attack(args) => attack(&args),
        Command::Faults(args) => faults(&args),
        Command::Link(args) => link(args),
        Command::LinkSelftest { v6 } => link_selftest(if v6 { Family::V6 } else { Family::V4 }),
        Command::Compare(args) => compare(&args),
        Command::Kernels(args) => args.run(),
        Command::KernelItems(args) => args.run(),
        Command::UnitBoot(args) => args.run(),
        Command::UnitItems(args) => args.run(),
        Command::Carried(transfer) => transfer.print(),
        Command::Lossy(args) => lossy(&args),
        Command::Firewall(firewall) => firewall.run(),
        Command::Endings(endings) => require_root().and_then(|()| endings.run()),
        Command::HostileMemory(hostile) => require_root().and_then(|()| hostile.run()),
        Command::Watch(watch) => watch.run(),
        Command::Repeat(repeat) => repeat.run(),
        Command::Wirecheck(args) => wirecheck(args),
        Command::Transfer(command) => transfer(command),
    }
}

impl UpArgs {
    fn builder(&self) -> LabBuilder {
        let families = match self.families {
            FamiliesArg::V4 => Families::V4,
            FamiliesArg::V6 => Families::V6,
            FamiliesArg::Both => Families::Both,
        };
        let builder = Lab::builder()
            .access_links(self.links)
            .servers(self.servers)
            .families(families);
        let Some(mbit) = self.rate_mbit else {
            return builder;
        };
        (1..=self.links).fold(builder, |builder, link| builder.rate_mbit(link, mbit))
    }

    fn start_flexcp(&self, lab: &Lab) -> Result<Option<FlexCp>> {
        let Some(file) = &self.config else {
            return Ok(None);
        };
        let config = fs::read_to_string(file).with_context(|| format!("reading {file:?}"))?;
        let config = config.replace("{dir}", &lab.dir().display().to_string());
        FlexCp::start(lab, &config).map(Some)
    }
}

fn up(args: &UpArgs) -> Result<()> {
    let lab = args.builder().keep(true).build()?;
    if let Some(flexcp) = args.start_flexcp(&lab)? {
        println!("  watch     {}", flexcp.show_command_line());
        flexcp.detach();
    }
    let prefix = lab.prefix().to_owned();
    print!("{}", lab.keep()?);
    println!("  tear down {}", clean_command(&prefix));
    Ok(())
}

fn shell(args: &UpArgs) -> Result<()> {
    let lab = args.builder().build()?;
    let flexcp = args.start_flexcp(&lab)?;
    if let Some(flexcp) = &flexcp {
        println!("watch FlexCP: {}", flexcp.show_command_line());
    }
    println!(
        "this shell is in the client's namespace {}; exit ends the lab",
        lab.client().name()
    );
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    lab.client().command(shell).status()?;
    flexcp.map_or(Ok(()), FlexCp::stop)
}

fn clean(prefix: Option<&str>) -> Result<()> {
    require_root()?;
    let removed = match prefix {
        Some(prefix) => {
            ensure!(remove(prefix), "there is no lab {prefix}");
            vec![prefix.to_owned()]
        }
        None => sweep(Sweep::DeadAndKept),
    };
    for prefix in removed {
        println!("removed {prefix}");
    }
    Ok(())
}

fn faults(args: &FaultsArgs) -> Result<()> {
    let matrix = Matrix {
        only: args.cells.clone(),
        sample: args.sample,
        limit: args
            .minutes
            .map(|minutes| Duration::from_secs(60 * minutes)),
        jobs: args.jobs,
        seed: args.seed,
        captures: args.captures.clone(),
    };
    let cells = matrix.cells();
    ensure!(
        !cells.is_empty(),
        "no cell has such a name; --list shows them"
    );
    if args.list {
        for cell in &cells {
            println!("{}", cell.name());
        }
        return Ok(());
    }
    require_root()?;
    println!("seed {}", args.seed);
    let log = KernelLog::mark()?;
    let outcomes = matrix.run(|outcome| {
        let passed = match (outcome.passed, &outcome.first_attempt) {
            (true, None) => "ok   ",
            (true, Some(_)) => "again",
            (false, _) => "FAIL ",
        };
        let detail = outcome.first_attempt.as_ref().unwrap_or(&outcome.detail);
        let detail = detail.lines().next().unwrap_or_default();
        println!("{passed} {} {} ms {detail}", outcome.cell, outcome.millis);
    })?;
    matrix::write(&outcomes, &args.results)?;
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let (run, all) = (outcomes.len(), cells.len());
    let count = |what: fn(&matrix::Outcome) -> usize| outcomes.iter().map(what).sum::<usize>();
    println!(
        "{run} of {all} cells run, {failed} failed, {} at a second attempt, {} draws that showed nothing; see {}",
        count(|outcome| usize::from(outcome.first_attempt.is_some())),
        count(|outcome| outcome.void_draws.len()),
        args.results.display()
    );
    ensure!(failed == 0, "{failed} cells failed");
    log.silent()
}

fn attack(args: &AttackArgs) -> Result<()> {
    let known = |name: &String| {
        Attack::named(name).with_context(|| format!("there is no attack {name}; --list shows them"))
    };
    let attacks = if args.names.is_empty() {
        Attack::all()
    } else {
        args.names.iter().map(known).collect::<Result<_>>()?
    };
    if args.list {
        for attack in &attacks {
            println!("{}", attack.name);
        }
        return Ok(());
    }
    require_root()?;
    let options = attack::Options {
        duration: Duration::from_secs(args.seconds),
        half_open: args.half_open,
        rate: args.rate,
        seed: args.seed,
    };
    eprintln!("seed {}", args.seed);
    let log = KernelLog::mark()?;
    let mut outcomes = vec![];
    for attack in attacks {
        let outcome = attack::run(attack, &options)?;
        let verdict = if outcome.passed() { "ok  " } else { "FAIL" };
        eprintln!(
            "{verdict} {} {}",
            attack.name,
            outcome.failures().join("; ")
        );
        outcomes.push(outcome);
    }
    attack::write(&outcomes, &args.results)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print!("{}", attack::table(&outcomes));
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed()).count();
    ensure!(
        failed == 0,
        "{failed} of {} attacks had an effect",
        outcomes.len()
    );
    log.silent()
}

fn compare(args: &CompareArgs) -> Result<()> {
    require_root()?;
    let compare = Compare {
        runs: args.runs,
        cuts: args.cuts,
        congestion: args.congestion.clone(),
    };
    let results = compare.run(|step| eprintln!("{step} ..."))?;
    results.write(&args.results)?;
    print!("{results}");
    ensure!(
        results.cut.passes(),
        "the gap at a cut is more than 50 ms longer through FlexCP"
    );
    Ok(())
}

fn lossy(args: &LossyArgs) -> Result<()> {
    require_root()?;
    let lossy = Lossy {
        losses: args.losses.clone(),
        connections: args.connections,
        bytes: args.bytes,
        seed: args.seed,
    };
    let results = lossy.run(|row| eprintln!("{row}"))?;
    results.write(&args.results)?;
    print!("{results}");
    results.judge()
}

fn wirecheck(args: WirecheckArgs) -> Result<()> {
    let WirecheckArgs {
        files: mut client,
        mut server,
        offloads_off,
        without_programs,
    } = args;
    server.extend(client.pop());
    let findings = WireCheck {
        client,
        server,
        offloads_off,
        offload: !without_programs,
    }
    .run()?;
    println!("{findings}");
    findings.ok()
}

fn link(args: LinkArgs) -> Result<()> {
    let spec = LinkSpec {
        up: args.up,
        down: args.down,
        seed: args.seed,
    };
    let emulator = Emulator::start_here([&args.first, &args.second], spec)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (command, faults) = line.split_once(' ').unwrap_or((&line, ""));
        let outcome = match command {
            "up" | "down" => faults
                .parse()
                .map_err(anyhow::Error::from)
                .and_then(|list| {
                    let up = command == "up";
                    let direction = if up { Direction::Up } else { Direction::Down };
                    emulator.set_faults(direction, list)
                }),
            "show" => emulator
                .counters()
                .map(|counters| println!("{}", counters.to_json())),
            _ => Err(anyhow!("`{line}`: expected up FAULTS, down FAULTS or show")),
        };
        if let Err(error) = outcome {
            eprintln!("lab: {error:#}");
        }
    }
    Ok(())
}

fn link_selftest(family: Family) -> Result<()> {
    let findings = SelfTest::new(family)?.all()?;
    println!("{}", serde_json::to_string_pretty(&findings)?);
    findings.judge()
}

fn transfer(command: TransferCommand) -> Result<()> {
    match command {
        TransferCommand::Serve {
            port,
            proto,
            banner,
        } => {
            let options = match proto {
                Proto::Tcp => ServeOptions::tcp(port),
                Proto::Mptcp => ServeOptions::mptcp(port),
            };
            serve(options.banner(banner))
        }
        TransferCommand::Get {
            server,
            bytes,
            options,
        } => options.run(server, &Job::down(bytes)),
        TransferCommand::Put {
            server,
            bytes,
            options,
        } => options.run(server, &Job::up(bytes)),
        TransferCommand::Run {
            server,
            mode,
            up,
            down,
            rounds,
            pause_ms,
            options,
        } => options.run(
            server,
            &Job {
                rounds,
                ..Job::new(mode, up, down).pause_ms(pause_ms)
            },
        ),
    }
}

fn serve(options: ServeOptions) -> Result<()> {
    flexcp_lab::transfer::raise_file_limit()?;
    let server = Server::start_here(options)?;
    loop {
        for report in server.take_reports() {
            println!("{}", serde_json::to_string(&report)?);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl ClientArgs {
    fn run(&self, server: SocketAddr, job: &Job) -> Result<()> {
        let mut client = Client::new(server, self.proto)
            .banner(self.banner)
            .patience(Duration::from_secs(self.patience));
        if let Some(address) = self.from {
            client = client.from(address);
        }
        if let Some(rate) = self.read_rate {
            client = client.read_rate(rate);
        }
        if let Some(bytes) = self.receive_buffer {
            client = client.receive_buffer(bytes);
        }
        let reports = client.run_many(self.connections, &job.seed(self.seed))?;
        for report in &reports {
            println!("{}", serde_json::to_string(report)?);
        }
        let failed = reports
            .iter()
            .filter(|report| report.failure.is_some())
            .count();
        ensure!(
            failed == 0,
            "{failed} of {} connections failed",
            reports.len()
        );
        Ok(())
    }
}
