//! Clients that name their server in the SYN (0-RTT Convert, RFC 8803), on Linux's own stack.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, Proto, Report, ServeOptions};
use flexcp_lab::{
    Direction, End, Expect, Families, Family, Lab, LabBuilder, Nginx, daemon, output, sha256_of,
};

use crate::rig::{PORT, Rig, crowd, cut_in_mid_transfer, ensure_named, short, with};

crate::cases!("convert":
    bytes_both_ways_over_two_links,
    message_after_the_handshake,
    plain_tcp_client,
    ipv6,
    cut_while_downloading,
    many_connections_at_once,
    server_that_speaks_first,
    server_that_nobody_may_name,
    server_that_refuses,
    programs_by_flexcp_connect,
    refusal_that_comes_after_the_grant,
    cookie_after_the_grant,
    lost_third_ack_of_a_client_that_waits,
    lost_syn_to_the_server,
);

const LISTEN: u16 = 1080;

const LAB: &[&str] = &["10.9.0.0/16", "fd09::/16"];

/// Clients may send data in a SYN without having asked for a cookie: Convert has its own (RFC 8803 section 6.2.7).
fn lab() -> LabBuilder {
    let builder = Lab::builder().client_sysctl("net.ipv4.tcp_fastopen", "5");
    // Another case's refusal may have had the client's kernel give fast open up for an hour.
    builder.client_sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")
}

fn converter(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

/// A case with a converter on the first link's address, which connects with the servers of these prefixes.
fn convert(
    lab: Lab,
    family: Family,
    allow: &[&str],
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let service = daemon::explicit("convert", &[converter(&lab, family).to_string()], allow);
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

fn through(rig: &Rig, client: fn(SocketAddr) -> Client, family: Family) -> Client {
    let server = rig.lab.server_socket(1, family, PORT);
    client(converter(&rig.lab, family)).convert(server)
}

fn bytes_both_ways_over_two_links() -> Result<()> {
    let lab = lab().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    convert(lab, Family::V4, &["10.9.0.0/16"], |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        for job in [
            Job::down(10_000_000),
            Job::up(10_000_000),
            Job::both(10_000_000),
        ] {
            rig.run_client(&client, &job)?;
        }
        ensure_named(rig, 3)?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

fn message_after_the_handshake() -> Result<()> {
    let lab = lab().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    convert(lab, Family::V4, &["10.9.0.0/16"], |rig| {
        let server = rig.lab.server_socket(1, Family::V4, PORT);
        for client in [Client::mptcp, Client::tcp] {
            let client = client(converter(&rig.lab, Family::V4)).convert_late(server);
            rig.run_client(&client, &Job::both(10_000_000))?;
        }
        ensure_named(rig, 2)?;
        Ok(Expect::clean()
            .exactly(End::Client, "MPJoinSynAckRx", 1)
            .own("plain_syn", "a client does without MPTCP"))
    })
}

fn plain_tcp_client() -> Result<()> {
    convert(lab().build()?, Family::V4, &["10.9.0.0/16"], |rig| {
        let client = through(rig, Client::tcp, Family::V4);
        rig.run_client(&client, &Job::both(1_000_000))?;
        ensure_named(rig, 1)?;
        Ok(Expect::clean().own("plain_syn", "the client does without MPTCP"))
    })
}

fn ipv6() -> Result<()> {
    let lab = lab().families(Families::V6).build()?;
    convert(lab, Family::V6, &["fd09::/16"], |rig| {
        let client = through(rig, Client::mptcp, Family::V6);
        rig.run_client(&client, &Job::both(1_000_000))?;
        ensure_named(rig, 1)?;
        Ok(Expect::clean())
    })
}

fn cut_while_downloading() -> Result<()> {
    let lab = lab().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
    convert(lab, Family::V4, &["10.9.0.0/16"], |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        cut_in_mid_transfer(rig, &client)
    })
}

fn many_connections_at_once() -> Result<()> {
    convert(lab().build()?, Family::V4, &["10.9.0.0/16"], |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        crowd(rig, &client)
    })
}

fn server_that_speaks_first() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let families = if family == Family::V4 {
            Families::V4
        } else {
            Families::V6
        };
        let lab = lab().families(families).build()?;
        let service = daemon::explicit("convert", &[converter(&lab, family).to_string()], LAB);
        with(lab, &service, ServeOptions::tcp(PORT).banner(5000), |rig| {
            let server = rig.lab.server_socket(1, family, PORT);
            let late = Client::mptcp(converter(&rig.lab, family)).convert_late(server);
            for client in [through(rig, Client::mptcp, family), late] {
                rig.run_client(&client.banner(5000), &Job::both(100_000))?;
            }
            ensure_named(rig, 2)?;
            Ok(short())
        })?;
    }
    Ok(())
}

/// The client is told what Convert has for that.
fn ensure_told(report: &Report, error: &str) -> Result<()> {
    let told = format!("{report:?}");
    ensure!(told.contains(error), "{told}");
    Ok(())
}

fn server_that_nobody_may_name() -> Result<()> {
    // All public servers; the lab's is none.
    convert(lab().build()?, Family::V4, &["0.0.0.0/0"], |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        let report = rig.attempt(&client, &Job::down(1000))?;
        ensure_told(&report, "NotAuthorized")?;
        let refused = rig.counter("preambles_refused")?;
        ensure!(refused == 1, "{refused} refused");
        ensure!(rig.server.accepted() == 0, "the server has heard of it");
        Ok(Expect::clean().between(End::Client, "MPRstTx", 0..=2))
    })
}

fn server_that_refuses() -> Result<()> {
    convert(lab().build()?, Family::V4, &["10.9.0.0/16"], |rig| {
        let nobody = rig.lab.server_socket(1, Family::V4, PORT + 1);
        let client = || Client::mptcp(converter(&rig.lab, Family::V4));
        for client in [client().convert(nobody), client().convert_late(nobody)] {
            let report = rig.attempt(&client, &Job::down(1000))?;
            ensure_told(&report, "ConnectionReset")?;
        }
        Ok(Expect::clean().between(End::Client, "MPRstTx", 0..=2))
    })
}

fn connect_by(rig: &Rig, by: &str) -> Result<Command> {
    let mut command = rig.lab.client().command(daemon::binary()?);
    command.args(["connect", "--by", by]);
    Ok(command)
}

/// Programs that speak neither MPTCP nor Convert: a command with its variables, standard input and output, a listener.
fn programs_by_flexcp_connect() -> Result<()> {
    let lab = lab().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 5_000_000)], Proto::Tcp)?;
    convert(lab, Family::V4, &["10.9.0.0/16"], |rig| {
        let by = converter(&rig.lab, Family::V4).to_string();
        let connect = || connect_by(rig, &by);
        let copy = rig.lab.dir().join("copy");
        let mut curl = connect()?;
        curl.args(["--", "curl", "-sS", "--fail", "-o"]).arg(&copy);
        output(curl.arg("http://10.9.1.2/file"))?;
        ensure!(sha256_of(&copy)? == nginx.sha256("file")?);

        let mut stdio = connect()?;
        let mut stdio = stdio
            .args(["--stdio", "10.9.1.2", "80"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let request = b"GET /file HTTP/1.0\r\nHost: 10.9.1.2\r\n\r\n";
        // It stays open: nginx leaves who has closed, and the end of the answer ends the program.
        let mut pipe = stdio.stdin.take().expect("a pipe");
        pipe.write_all(request)?;
        let answer = stdio.wait_with_output()?;
        drop(pipe);
        ensure!(answer.status.success() && answer.stdout.starts_with(b"HTTP/1.1 200"));
        ensure!(answer.stdout.len() > 5_000_000);

        let mut refused = connect()?;
        let refused = refused.args(["--stdio", "10.8.0.1", "80"]).output()?;
        let told = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            !refused.status.success() && told.contains("does not allow"),
            "{told}"
        );
        ensure_named(rig, 2)?;
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 2)
            .between(End::Client, "MPRstTx", 0..=1))
    })
}

/// A program is told that it is connected before the converter has answered, unless it waits for that.
fn refusal_that_comes_after_the_grant() -> Result<()> {
    convert(lab().build()?, Family::V4, &["10.9.0.0/16"], |rig| {
        let by = converter(&rig.lab, Family::V4).to_string();
        // curl has 55 or 56 for a connection that is reset, and 97 for a refusal of SOCKS5.
        for (words, codes, told) in [
            (
                &[][..],
                55..=56,
                "10.8.0.1:80: the converter does not allow that server",
            ),
            (&["--wait"], 97..=97, "(2)"),
        ] {
            let mut command = connect_by(rig, &by)?;
            command.args(words).args(["--", "curl", "-sS"]);
            let refused = command.arg("http://10.8.0.1/").output()?;
            let said = String::from_utf8_lossy(&refused.stderr);
            ensure!(
                refused
                    .status
                    .code()
                    .is_some_and(|code| codes.contains(&code))
                    && said.contains(told),
                "{words:?}: {:?}: {said}",
                refused.status
            );
        }
        Ok(Expect::clean().between(End::Client, "MPRstTx", 0..=2))
    })
}

/// What a program has said meanwhile goes by the connection that brings the cookie.
fn cookie_after_the_grant() -> Result<()> {
    let lab = lab().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 1_000_000)], Proto::Tcp)?;
    let at = converter(&lab, Family::V4).to_string();
    let service = daemon::explicit("convert", std::slice::from_ref(&at), &["10.9.0.0/16"]);
    let service = service + "cookies = true\n";
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let copy = rig.lab.dir().join("copy");
        let mut curl = connect_by(rig, &at)?;
        curl.args(["--", "curl", "-sS", "--fail", "-o"]).arg(&copy);
        output(curl.arg("http://10.9.1.2/file"))?;
        ensure!(sha256_of(&copy)? == nginx.sha256("file")?);
        let refused = rig.counter("preambles_refused")?;
        ensure!(refused == 1, "{refused} refused");
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 1)
            .between(End::Client, "MPRstTx", 0..=1))
    })
}

/// A client that has nothing to say, as its server speaks first, still shows that it is there.
fn lost_third_ack_of_a_client_that_waits() -> Result<()> {
    let lab = lab()
        .access_links(1)
        .faults(1, Direction::Up, "drop=1:ack")
        .build()?;
    let at = converter(&lab, Family::V4).to_string();
    let service = daemon::explicit("convert", std::slice::from_ref(&at), LAB);
    with(lab, &service, ServeOptions::tcp(PORT).banner(5000), |rig| {
        let mut stdio = connect_by(rig, &at)?;
        let mut stdio = stdio
            .args(["--stdio", "10.9.1.2", &PORT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut banner = vec![0; 5000];
        let out = stdio.stdout.as_mut().context("a pipe")?;
        let started = Instant::now();
        let heard = out.read_exact(&mut banner);
        let waited = started.elapsed();
        stdio.kill()?;
        stdio.wait()?;
        heard.with_context(|| format!("after {waited:?}"))?;
        ensure!(waited < Duration::from_secs(4), "{waited:?}");
        // The server's SYN/ACK comes again, once with no credit for it and then to a client that is connected.
        Ok(short()
            .own("unproved", "the client has shown nothing yet")
            .between(End::Client, "TCPChallengeACK", 0..=3)
            .between(End::Client, "TcpInErrs", 0..=3))
    })
}

/// The server loses what comes first.
const FIRST_IS_LOST: &str = "table inet first {
    chain input {
        type filter hook input priority 0;
        tcp dport 5000 tcp flags & (syn | ack) == syn quota until 100 bytes drop
    }
}";

/// The client sends its SYN again, without what it carried, and is connected by MPTCP all the same.
fn lost_syn_to_the_server() -> Result<()> {
    for (family, families) in [(Family::V4, Families::V4), (Family::V6, Families::V6)] {
        let lab = lab().families(families).build()?;
        convert(lab, family, LAB, |rig| {
            rig.lab.server(1).nft(FIRST_IS_LOST)?;
            let report =
                rig.run_client(&through(rig, Client::mptcp, family), &Job::both(1_000_000))?;
            ensure!(report.connect_us > 900_000, "no SYN was lost: {report:?}");
            ensure_named(rig, 1)?;
            Ok(short()
                .disturbed("a SYN is lost")
                .exactly(End::Client, "MPJoinSynAckRx", 1))
        })?;
    }
    Ok(())
}
