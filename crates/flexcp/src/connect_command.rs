//! `flexcp connect`: connections of programs on this host by a FlexCP with `mode = "convert"`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Result, anyhow};
use clap::{ArgGroup, Args};
use flexcp::connect::{self, Grant, Local};

/// Connect by a FlexCP with `mode = "convert"`, over MPTCP: for programs that speak neither
#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).args(["stdio", "listen", "command"]))]
pub(crate) struct ConnectCommand {
    /// The converter, such as 203.0.113.5:1080
    #[arg(long, value_name = "ADDRESS:PORT")]
    by: String,
    /// Carry standard input and output to this server and port: ssh -o ProxyCommand='flexcp connect --by ... --stdio %h %p'
    #[arg(long, num_args = 2, value_names = ["HOST", "PORT"])]
    stdio: Option<Vec<String>>,
    /// Serve SOCKS5 here, until interrupted
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Tell programs that they are connected when the converter has said so, a round trip later: they then hear why if it refuses
    #[arg(long, conflicts_with = "stdio")]
    wait: bool,
    /// Run this with ALL_PROXY set to a SOCKS5 server of its own
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ConnectCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let found = self.by.to_socket_addrs();
        let by = found.ok().and_then(|mut addrs| addrs.next());
        let by = by.ok_or_else(|| {
            anyhow!(
                "--by {}: write the converter's address and port, like 203.0.113.5:1080",
                self.by
            )
        })?;
        if let Some([host, port]) = self.stdio.as_deref() {
            return carry(by, host, port);
        }
        let grant = if self.wait {
            Grant::Answered
        } else {
            Grant::Early
        };
        if let Some(at) = self.listen {
            let local =
                Local::listen(at, by, grant).map_err(|error| anyhow!("--listen {at}: {error}"))?;
            eprintln!("flexcp: SOCKS5 at {}, by {by}", local.addr()?);
            if !at.ip().is_loopback() {
                eprintln!(
                    "flexcp: whoever reaches {at} may use it; a loopback address keeps others out"
                );
            }
            local.serve()?;
            return Ok(ExitCode::SUCCESS);
        }
        run(by, grant, &self.command)
    }
}

/// Standard input and output.
fn carry(by: SocketAddr, host: &str, port: &str) -> Result<ExitCode> {
    let port = port
        .parse()
        .map_err(|_| anyhow!("{port} is no port; write 1 to 65535"))?;
    let begun = connect::begin(by, host, port);
    let settled = begun.and_then(|begun| begun.settle(Some(&io::stdin())));
    let settled = settled.map_err(|error| anyhow!("{host} port {port}: {error}"))?;
    let reader = (!settled.is_over).then(io::stdin);
    // The thread that reads standard input may wait for it; the process ends without it.
    connect::relay(reader, &settled.server, &mut io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// A program with a SOCKS5 server of its own.
fn run(by: SocketAddr, grant: Grant, command: &[String]) -> Result<ExitCode> {
    let [program, arguments @ ..] = command else {
        return Err(anyhow!("no command; write it behind --"));
    };
    let local = Local::listen((Ipv4Addr::LOCALHOST, 0).into(), by, grant)?;
    let proxy = format!("socks5h://{}", local.addr()?);
    thread::spawn(move || local.serve());
    let mut command = Command::new(program);
    command.args(arguments);
    for variable in ["ALL_PROXY", "all_proxy"] {
        command.env(variable, &proxy);
    }
    let status = command
        .status()
        .map_err(|error| anyhow!("`{program}` can't be run: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
