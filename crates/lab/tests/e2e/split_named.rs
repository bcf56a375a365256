//! Split connections whose client names its server: by SOCKS5, by Convert after the handshake and in the SYN.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::{
    Direction, End, Expect, Families, Family, Lab, LabBuilder, Mib, SERVER_RESET, daemon,
};
use libtest_mimic::Trial;

use crate::access;
use crate::rig::{PORT, Rig, with};
use crate::split::{ensure_split, kernels_own};

crate::cases!("split_named":
    socks5_both_ways_over_two_links,
    socks5_by_name,
    socks5_ipv6,
    server_that_speaks_first,
    plain_tcp_clients,
    convert_after_the_handshake,
    convert_in_the_syn,
    convert_in_the_syn_ipv6,
    data_of_a_syn_that_sockets_do_not_take,
    client_that_has_not_shown_where_it_is,
    every_row_of_the_table,
    clients_beyond_their_limit,
);

/// Those that apply: without the offload's programs nothing can be split.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    if daemon::offload_is_off() {
        return vec![];
    }
    cases()
}

const LISTEN: u16 = 1080;
const LAB: &[&str] = &["10.9.0.0/16", "fd09::/16"];

/// Clients may send data in a SYN without a cookie.
fn lab() -> LabBuilder {
    let builder = Lab::builder().client_sysctl("net.ipv4.tcp_fastopen", "5");
    builder.client_sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")
}

fn proxy(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

/// A case with a service that splits all its connections. `takes`: its sockets take data of SYNs.
fn named(
    lab: Lab,
    (mode, family, takes): (&str, Family, bool),
    server: ServeOptions,
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let servers = if takes { "3" } else { "1" };
    lab.proxy().sysctl(&[("net.ipv4.tcp_fastopen", servers)])?;
    let service = daemon::explicit(mode, &[proxy(&lab, family).to_string()], LAB);
    let service = service + "carrier = \"split\"\n";
    with(lab, &service, server, case)
}

fn tcp() -> ServeOptions {
    ServeOptions::tcp(PORT)
}

fn by_socks5(rig: &Rig, client: fn(SocketAddr) -> Client, family: Family) -> Client {
    let server = rig.lab.server_socket(1, family, PORT);
    client(proxy(&rig.lab, family)).socks5(&server.ip().to_string(), PORT)
}

fn over_two_links(rig: &Rig, client: &Client) -> Result<Expect> {
    for job in [
        Job::down(10_000_000),
        Job::up(10_000_000),
        Job::both(10_000_000),
    ] {
        rig.run_client(client, &job)?;
    }
    ensure_split(rig, 3)?;
    let joins = rig.counter("split_joins")?;
    ensure!(joins >= 3, "{joins} joins");
    Ok(kernels_own().exactly(End::Client, "MPJoinSynAckRx", 3))
}

fn paced(lab: LabBuilder) -> Result<Lab> {
    lab.rate_mbit(1, 200).rate_mbit(2, 200).build()
}

fn socks5_both_ways_over_two_links() -> Result<()> {
    let of = ("socks5", Family::V4, false);
    named(paced(lab())?, of, tcp(), |rig| {
        over_two_links(rig, &by_socks5(rig, Client::mptcp, Family::V4))
    })
}

fn socks5_by_name() -> Result<()> {
    named(
        lab().build()?,
        ("socks5", Family::V4, false),
        tcp(),
        |rig| {
            let IpAddr::V4(server) = rig.lab.server_socket(1, Family::V4, PORT).ip() else {
                unreachable!("of IPv4");
            };
            // A name to SOCKS5, and to the resolver a number that needs no server of names.
            let name = server.to_bits().to_string();
            let client = Client::mptcp(proxy(&rig.lab, Family::V4)).socks5(&name, PORT);
            rig.run_client(&client, &Job::both(100_000))?;
            ensure_split(rig, 1)?;
            Ok(kernels_own())
        },
    )
}

fn socks5_ipv6() -> Result<()> {
    let lab = lab().families(Families::V6).build()?;
    named(lab, ("socks5", Family::V6, false), tcp(), |rig| {
        let client = by_socks5(rig, Client::mptcp, Family::V6);
        rig.run_client(&client, &Job::both(1_000_000))?;
        ensure_split(rig, 1)?;
        Ok(kernels_own())
    })
}

fn server_that_speaks_first() -> Result<()> {
    let server = tcp().banner(5000);
    named(
        lab().build()?,
        ("socks5", Family::V4, false),
        server,
        |rig| {
            for client in [Client::mptcp, Client::tcp] {
                let client = by_socks5(rig, client, Family::V4).banner(5000);
                rig.run_client(&client, &Job::both(100_000))?;
            }
            ensure_split(rig, 2)?;
            Ok(kernels_own())
        },
    )
}

fn plain_tcp_clients() -> Result<()> {
    named(
        lab().build()?,
        ("socks5", Family::V4, false),
        tcp(),
        |rig| {
            let client = by_socks5(rig, Client::tcp, Family::V4);
            rig.run_client(&client, &Job::both(1_000_000))?;
            ensure_split(rig, 1)?;
            Ok(kernels_own())
        },
    )?;
    named(
        lab().build()?,
        ("convert", Family::V4, true),
        tcp(),
        |rig| {
            let server = rig.lab.server_socket(1, Family::V4, PORT);
            let client = Client::tcp(proxy(&rig.lab, Family::V4)).convert(server);
            rig.run_client(&client, &Job::both(1_000_000))?;
            ensure_split(rig, 1)?;
            Ok(kernels_own())
        },
    )
}

/// The second link has an RTT: without one the first data of its subflow comes while the relay's kernel still finishes the join, and
/// is now and then misplaced by it (docs/split.md).
fn convert_after_the_handshake() -> Result<()> {
    named(
        lab().faults(2, Direction::Down, "delay=5ms").build()?,
        ("convert", Family::V4, false),
        tcp(),
        |rig| {
            let server = rig.lab.server_socket(1, Family::V4, PORT);
            for client in [Client::mptcp, Client::tcp] {
                let client = client(proxy(&rig.lab, Family::V4)).convert_late(server);
                rig.run_client(&client, &Job::both(1_000_000))?;
            }
            ensure_split(rig, 2)?;
            Ok(kernels_own())
        },
    )
}

/// The sockets have taken what stands in the SYNs. With a buffer that grows, downloads would wait for what Linux sends beyond
/// the window (docs/split.md).
fn taken_from_the_syn(rig: &Rig, client: Client) -> Result<Expect> {
    let expect = over_two_links(rig, &client.receive_buffer(1 << 20))?;
    let taken = Mib::read(rig.lab.proxy())?.get("TCPFastOpenPassive");
    ensure!(taken == 3, "the data of {taken} SYNs");
    Ok(expect)
}

fn convert_in_the_syn() -> Result<()> {
    named(paced(lab())?, ("convert", Family::V4, true), tcp(), |rig| {
        let server = rig.lab.server_socket(1, Family::V4, PORT);
        let client = Client::mptcp(proxy(&rig.lab, Family::V4)).convert(server);
        taken_from_the_syn(rig, client)
    })
}

fn convert_in_the_syn_ipv6() -> Result<()> {
    let lab = paced(lab().families(Families::V6))?;
    named(lab, ("convert", Family::V6, true), tcp(), |rig| {
        let server = rig.lab.server_socket(1, Family::V6, PORT);
        let client = Client::mptcp(proxy(&rig.lab, Family::V6)).convert(server);
        taken_from_the_syn(rig, client)
    })
}

/// The host allows its servers none: such a connection is translated, and none is split without what its SYN said.
fn data_of_a_syn_that_sockets_do_not_take() -> Result<()> {
    named(
        lab().build()?,
        ("convert", Family::V4, false),
        tcp(),
        |rig| {
            let server = rig.lab.server_socket(1, Family::V4, PORT);
            let client = Client::mptcp(proxy(&rig.lab, Family::V4)).convert(server);
            rig.run_client(&client, &Job::both(1_000_000))?;
            let counted =
                ["split", "split_refused", "connections_opened"].map(|it| rig.counter(it));
            let counted = counted.into_iter().collect::<Result<Vec<_>>>()?;
            ensure!(counted == [0, 1, 1], "{counted:?}");
            Ok(Expect::clean())
        },
    )
}

/// The client's side of the SYN/ACKs that never arrive.
const SILENCE: &str = "table inet silence {
    counter data {}
    counter answers {}
    chain input {
        type filter hook input priority 0;
        tcp sport 1080 ip length > 80 counter name data
        tcp sport 1080 tcp flags & (syn | ack) == syn | ack counter name answers drop
    }
}";

/// The server is called and speaks first, and nothing of that goes to an address that may be anybody's.
fn client_that_has_not_shown_where_it_is() -> Result<()> {
    let server = tcp().banner(5000);
    named(
        lab().build()?,
        ("convert", Family::V4, true),
        server,
        |rig| {
            rig.lab.client().nft(SILENCE)?;
            let server = rig.lab.server_socket(1, Family::V4, PORT);
            let client = Client::tcp(proxy(&rig.lab, Family::V4)).convert(server);
            let client = client.patience(Duration::from_secs(3));
            let report = rig.attempt(&client, &Job::down(100_000))?;
            ensure!(report.failure.is_some(), "{report:?}");
            let of = |name| {
                let mut command = rig.lab.client().command("nft");
                flexcp_lab::text(command.args(["list", "counter", "inet", "silence", name]))
            };
            let (data, answers) = (of("data")?, of("answers")?);
            ensure!(!answers.contains("packets 0 "), "no SYN/ACK: {answers}");
            ensure!(data.contains("packets 0 "), "{data}");
            let called = Mib::read(rig.lab.server(1))?.get("TcpPassiveOpens");
            ensure!(called == 1, "the server was called {called} times");
            Ok(kernels_own()
                .disturbed("its SYN/ACKs are lost")
                .own(SERVER_RESET, "the client is given up"))
        },
    )
}

fn every_row_of_the_table() -> Result<()> {
    access::table(true)
}

fn clients_beyond_their_limit() -> Result<()> {
    access::beyond_their_limit(true)
}
