//! Clients that name their server by SOCKS5 (RFC 1928), on Linux's own stack.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::{End, Expect, Families, Family, Lab, daemon};

use crate::offload::carried;
use crate::rig::{PORT, Rig, crowd, cut_in_mid_transfer, ensure_named, with};

crate::cases!("socks5":
    bytes_both_ways_over_two_links,
    carried_by_the_kernel,
    plain_tcp_client,
    ipv6,
    server_that_speaks_first,
    server_by_name,
    cut_while_downloading,
    many_connections_at_once,
    servers_that_are_not_to_be_had,
);

const LISTEN: u16 = 1080;

fn proxy(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

/// A case with a SOCKS5 server on the first link's address, which connects with the servers of these prefixes.
fn socks5(
    lab: Lab,
    family: Family,
    (allow, server): (&[&str], ServeOptions),
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let service = daemon::explicit("socks5", &[proxy(&lab, family).to_string()], allow);
    with(lab, &service, server, case)
}

const LAB: &[&str] = &["10.9.0.0/16", "fd09::/16"];

fn tcp() -> ServeOptions {
    ServeOptions::tcp(PORT)
}

fn through(rig: &Rig, client: fn(SocketAddr) -> Client, family: Family) -> Client {
    let server = rig.lab.server_socket(1, family, PORT);
    client(proxy(&rig.lab, family)).socks5(&server.ip().to_string(), PORT)
}

fn bytes_both_ways_over_two_links() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 200).rate_mbit(2, 200).build()?;
    socks5(lab, Family::V4, (LAB, tcp()), |rig| {
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

/// What comes behind the client's DATA_FIN is FlexCP's, and as much of a short upload as of a long one.
fn carried_by_the_kernel() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    socks5(lab, Family::V4, (LAB, tcp()), |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        for job in [Job::down(30_000_000), Job::up(100_000_000)] {
            carried(rig, |rig| rig.run_client(&client, &job).map(drop))?;
        }
        ensure_named(rig, 2)?;
        Ok(Expect::clean())
    })
}

fn plain_tcp_client() -> Result<()> {
    socks5(Lab::builder().build()?, Family::V4, (LAB, tcp()), |rig| {
        let client = through(rig, Client::tcp, Family::V4);
        rig.run_client(&client, &Job::both(10_000_000))?;
        ensure_named(rig, 1)?;
        Ok(Expect::clean().own("plain_syn", "the client does without MPTCP"))
    })
}

fn ipv6() -> Result<()> {
    let lab = Lab::builder().families(Families::V6).build()?;
    socks5(lab, Family::V6, (LAB, tcp()), |rig| {
        let client = through(rig, Client::mptcp, Family::V6);
        rig.run_client(&client, &Job::both(1_000_000))?;
        ensure_named(rig, 1)?;
        Ok(Expect::clean())
    })
}

fn server_that_speaks_first() -> Result<()> {
    let server = tcp().banner(5000);
    socks5(Lab::builder().build()?, Family::V4, (LAB, server), |rig| {
        for client in [Client::mptcp, Client::tcp] {
            let client = through(rig, client, Family::V4).banner(5000);
            rig.run_client(&client, &Job::both(100_000))?;
        }
        ensure_named(rig, 2)?;
        Ok(Expect::clean().own("plain_syn", "a client does without MPTCP"))
    })
}

fn server_by_name() -> Result<()> {
    socks5(Lab::builder().build()?, Family::V4, (LAB, tcp()), |rig| {
        let IpAddr::V4(server) = rig.lab.server_socket(1, Family::V4, PORT).ip() else {
            unreachable!("of IPv4");
        };
        // A name to SOCKS5, and to the resolver a number that needs no server of names.
        let name = server.to_bits().to_string();
        let client = Client::mptcp(proxy(&rig.lab, Family::V4)).socks5(&name, PORT);
        rig.run_client(&client, &Job::both(100_000))?;
        ensure_named(rig, 1)?;
        Ok(Expect::clean())
    })
}

fn cut_while_downloading() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 100).rate_mbit(2, 100).build()?;
    socks5(lab, Family::V4, (LAB, tcp()), |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        cut_in_mid_transfer(rig, &client)
    })
}

fn many_connections_at_once() -> Result<()> {
    socks5(Lab::builder().build()?, Family::V4, (LAB, tcp()), |rig| {
        let client = through(rig, Client::mptcp, Family::V4);
        crowd(rig, &client)
    })
}

fn servers_that_are_not_to_be_had() -> Result<()> {
    socks5(Lab::builder().build()?, Family::V4, (LAB, tcp()), |rig| {
        let cases = [
            // Not allowed by the ruleset, connection refused, host unreachable.
            ("10.8.0.1", PORT, 2),
            (
                &rig.lab.server_socket(1, Family::V4, PORT).ip().to_string(),
                PORT + 1,
                5,
            ),
            ("no.such.name.invalid", PORT, 4),
        ];
        for (host, port, code) in cases {
            for client in [Client::mptcp, Client::tcp] {
                let client = client(proxy(&rig.lab, Family::V4)).socks5(host, port);
                let report = rig.attempt(&client, &Job::down(1000))?;
                let told = format!("{report:?}");
                ensure!(
                    told.contains(&format!("[5, 0], [5, {code}, 0, 1]")),
                    "{host}: {told}"
                );
            }
        }
        ensure!(rig.server.accepted() == 0, "the server has heard of it");
        // A client that is told so at once resets the subflow that it has yet to join.
        Ok(Expect::clean()
            .between(End::Client, "MPRstTx", 0..=3)
            .own("plain_syn", "a client does without MPTCP"))
    })
}
