//! The program itself: bad starts, ends of every kind, nothing left behind.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Background, Family, FlexCp, Lab, daemon};
use socket2::{Domain, Protocol, Socket, Type};

use crate::rig::{PORT, config, ensure_same, kernel_state};

crate::cases!("operation":
    bad_toml_is_refused,
    unknown_key_is_refused,
    bad_address_is_refused,
    missing_privileges_are_named,
    address_in_use_is_refused,
    device_in_use_is_refused,
    check_says_what_is_wrong_and_where,
    check_accepts_a_good_file,
    crash_is_cleaned_up_at_the_next_start,
    second_daemon_with_the_same_socket_is_refused,
    pings_pass,
);

fn lab() -> Result<Lab> {
    Lab::builder().build()
}

/// What a start that failed said.
struct Refusal {
    message: String,
}

impl Refusal {
    fn names(&self, word: &str) -> Result<()> {
        ensure!(
            self.message.contains(word),
            "no {word:?} in the message: {}",
            self.message
        );
        Ok(())
    }
}

/// Starts FlexCP, which must end with a message, and leave nothing behind.
fn refused(lab: &Lab, config: &str) -> Result<Refusal> {
    refused_command(lab, FlexCp::command(lab, config)?)
}

fn refused_command(lab: &Lab, command: Command) -> Result<Refusal> {
    let before = kernel_state(lab.proxy())?;
    let mut process = Background::spawn(command, lab.dir(), "refused")?;
    let status = process
        .wait(Duration::from_secs(3))?
        .context("it goes on running")?;
    let message = process.stderr();
    ensure!(!status.success(), "exit code 0: {message}");
    ensure!(status.code().is_some(), "killed by a signal: {message}");
    ensure!(!message.contains("panicked"), "{message}");
    ensure!(!message.trim().is_empty(), "no message");
    ensure!(
        message.lines().count() <= 12,
        "not one clear message:\n{message}"
    );
    ensure_same(&before, &kernel_state(lab.proxy())?)?;
    Ok(Refusal { message })
}

fn bad_toml_is_refused() -> Result<()> {
    let lab = lab()?;
    let good = config(&lab, &daemon::transparent(&lab, &[]));
    refused(&lab, &good.replace("table = 7300", "table = = 7300"))?.names("flexcp.toml:3:")
}

fn unknown_key_is_refused() -> Result<()> {
    let lab = lab()?;
    let good = config(&lab, &daemon::transparent(&lab, &[]));
    refused(&lab, &good.replace("interfaces", "interfacez"))?.names("interfacez")
}

fn bad_address_is_refused() -> Result<()> {
    let lab = lab()?;
    let good = config(&lab, &daemon::transparent(&lab, &[]));
    refused(&lab, &good.replace("10.9.0.0/16", "10.9.0.0/36"))?.names("`/36`")
}

fn missing_privileges_are_named() -> Result<()> {
    let lab = lab()?;
    // Where the program is may be closed to others: a copy that is not.
    let copy = lab.dir().join("flexcp");
    std::fs::copy(daemon::binary()?, &copy)?;
    std::fs::write(
        lab.dir().join("flexcp.toml"),
        config(&lab, &daemon::transparent(&lab, &[])),
    )?;
    let mut command = lab.proxy().command("setpriv");
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--",
    ]);
    command
        .arg(copy)
        .args(["run", "--config"])
        .arg(lab.dir().join("flexcp.toml"));
    refused_command(&lab, command)?.names("CAP_NET_ADMIN")
}

fn address_in_use_is_refused() -> Result<()> {
    let lab = lab()?;
    let listen = format!("{}:8080", lab.proxy_addr(1, Family::V4));
    let _taken = lab.proxy().run(|| Ok(TcpListener::bind(&listen)?))?;
    let backends = [lab.server_socket(1, Family::V4, PORT).to_string()];
    let service = daemon::reverse("shop", std::slice::from_ref(&listen), &backends, &[]);
    refused(&lab, &config(&lab, &service))?.names(&listen)
}

fn device_in_use_is_refused() -> Result<()> {
    let lab = lab()?;
    lab.proxy()
        .ip("link add flexcp0 type veth peer name other0")?;
    refused(&lab, &config(&lab, &daemon::transparent(&lab, &[])))?.names("flexcp0")
}

fn check_says_what_is_wrong_and_where() -> Result<()> {
    let lab = lab()?;
    let good = config(&lab, &daemon::transparent(&lab, &[]));
    let bad = good.replace("mode = \"transparent\"", "mode = \"invisible\"");
    let line = bad
        .lines()
        .position(|line| line.contains("invisible"))
        .unwrap_or(0)
        + 1;
    let output = daemon::check(&lab, &bad)?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "exit code 0: {said}");
    for word in ["invisible", "transparent", "reverse", &format!("{line}")] {
        ensure!(said.contains(word), "no {word:?} in: {said}");
    }
    Ok(())
}

fn check_accepts_a_good_file() -> Result<()> {
    let lab = lab()?;
    let output = daemon::check(&lab, &config(&lab, &daemon::transparent(&lab, &[])))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(())
}

fn crash_is_cleaned_up_at_the_next_start() -> Result<()> {
    let lab = lab()?;
    let before = kernel_state(lab.proxy())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let config = config(&lab, &daemon::transparent(&lab, &[]));
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
    for _ in 0..3 {
        let flexcp = FlexCp::start(&lab, &config)?;
        client.run_in(lab.client(), &Job::both(100_000))?.ok()?;
        flexcp.kill()?;
    }
    let flexcp = FlexCp::start(&lab, &config)?;
    client.run_in(lab.client(), &Job::both(100_000))?.ok()?;
    flexcp.stop()?;
    ensure_same(&before, &kernel_state(lab.proxy())?)
}

fn second_daemon_with_the_same_socket_is_refused() -> Result<()> {
    let lab = lab()?;
    let config = config(&lab, &daemon::transparent(&lab, &[]));
    let flexcp = FlexCp::start(&lab, &config)?;
    refused(&lab, &config)?;
    // The first one has not noticed.
    flexcp.show_stats()?;
    flexcp.stop()
}

/// Rules can't tell an ICMP error about a connection from a ping: both go through FlexCP.
fn pings_pass() -> Result<()> {
    let lab = lab()?;
    let services = daemon::transparent(&lab, &[])
        + &daemon::reverse(
            "shop",
            &[format!("{}:8080", lab.proxy_addr(1, Family::V4))],
            &[lab.server_socket(1, Family::V4, PORT).to_string()],
            &[],
        );
    let flexcp = FlexCp::start(&lab, &config(&lab, &services))?;
    for to in [
        lab.server_socket(1, Family::V4, 0).ip(),
        lab.proxy_addr(1, Family::V4),
    ] {
        // The larger one travels in fragments.
        for len in [56, 4000] {
            let answer = lab.client().run(|| ping(to, len));
            answer.with_context(|| format!("{len} bytes to {to}"))?;
        }
    }
    flexcp.stop()
}

/// One ICMP echo request of `len` bytes, and its reply.
fn ping(to: IpAddr, len: usize) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    let mut request = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    request.extend((0..len).map(|i| i.to_le_bytes()[0]));
    let sum = request.chunks(2).fold(0_u32, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16))?;
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    socket.send_to(&request, &SocketAddr::new(to, 0).into())?;
    let mut buffer = vec![0; 20 + request.len()];
    let got = (&socket).read(&mut buffer).context("no answer")?;
    let (_, reply) = buffer[..got].split_at(20);
    ensure!(reply[0] == 0, "ICMP type {}", reply[0]);
    ensure!(reply[4..] == request[4..], "other bytes than were sent");
    Ok(())
}
