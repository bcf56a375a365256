//! `lab`: FlexCP's laboratory at the command line.

#![forbid(unsafe_code)]

mod arguments;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser as _;
use flexcp_lab::attack::{self, Attack};
use flexcp_lab::compare::Compare;
use flexcp_lab::demo::{Demo, clean_command};
use flexcp_lab::link::{Emulator, LinkSpec, SelfTest};
use flexcp_lab::lossy::Lossy;
use flexcp_lab::matrix::{self, Matrix, Side};
use flexcp_lab::transfer::{Client, Job, Proto, ServeOptions, Server};
use flexcp_lab::wirecheck::{Preamble, WireCheck};
use flexcp_lab::{
    Direction, Families, Family, FlexCp, KernelLog, Lab, LabBuilder, Sweep, remove, require_root,
    sweep,
};

use crate::arguments::{
    AttackArgs, Cli, ClientArgs, Command, CompareArgs, DemoArgs, FamiliesArg, FaultsArgs, LinkArgs,
    LossyArgs, TransferCommand, UpArgs, WirecheckArgs,
};

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
        Command::Reload(reload) => require_root().and_then(|()| reload.run()),
        Command::HostileMemory(hostile) => require_root().and_then(|()| hostile.run()),
        Command::Steering(steering) => steering.run(),
        Command::RuleChanges(changes) => changes.run(),
        Command::Split(split) => split.run(),
        Command::Ttfb(ttfb) => ttfb.run(),
        Command::Uplinks(uplinks) => uplinks.run(),
        Command::Box(aggregation) => aggregation.run(),
        Command::Location(location) => location.run(),
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
        sides: args.sides.clone(),
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
    matrix::write(&outcomes, &args.results, results_of(&args.sides))?;
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

/// What the results of these sides are called.
fn results_of(sides: &[Side]) -> &'static str {
    match sides.first() {
        None | Some(Side::Proxy) => "faults",
        Some(Side::Box) => "faults-box",
        Some(Side::Converter) => "faults-converter",
        Some(Side::Kernel) => "faults-kernel",
    }
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
        aggregates,
        convert,
        early,
        socks5,
    } = args;
    server.extend(client.pop());
    let convert = convert.into_iter().map(|at| (at, Preamble::Convert));
    let early = early.into_iter().map(|at| (at, Preamble::Early));
    let socks5 = socks5.into_iter().map(|at| (at, Preamble::Socks5));
    let findings = WireCheck {
        client,
        server,
        offloads_off,
        offload: !without_programs,
        aggregates,
        explicit: convert.chain(early).chain(socks5).collect(),
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
