//! Bytes through FlexCP: sizes, directions, subflows, families, odd settings.

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::{End, Expect, Families, Family, Lab, LabBuilder, Mib, SENT_AGAIN, daemon};

use crate::rig::{PORT, Rig, lively, short, transparent, with};

crate::cases!("transfer":
    down_of_every_size,
    up_of_every_size,
    both_ways_of_every_size,
    down_of_a_gigabyte,
    up_of_a_gigabyte,
    both_ways_at_full_speed,
    one_subflow_ipv4,
    one_subflow_ipv6,
    two_subflows_ipv4,
    two_subflows_ipv6,
    four_subflows_ipv4,
    four_subflows_ipv6,
    ipv6_joins_an_ipv4_connection,
    ipv4_joins_an_ipv6_connection,
    announced_address_is_joined,
    thousand_connections_at_once,
    connections_one_after_another,
    server_that_speaks_first,
    slow_reader_closes_the_window,
    smallest_receive_buffer,
    ping_pong_on_two_links,
    without_offloads,
    without_timestamps,
    without_timestamps_at_the_client,
    without_sack,
    without_window_scaling,
    with_dss_checksums,
    with_a_smaller_mtu_on_the_second_link,
    with_jumbo_frames_to_the_client,
);

const SIZES: &[u64] = &[
    0, 1, 2, 3, 536, 1219, 1420, 1421, 1448, 1449, 9000, 65_535, 65_536, 100_003, 3_000_017,
];

fn two_links() -> LabBuilder {
    Lab::builder()
}

/// Slow enough that a transfer of some megabytes does not end before its joins.
fn paced(links: u8, families: Families) -> Result<Lab> {
    let builder = Lab::builder().access_links(links).families(families);
    (1..=links)
        .fold(builder, |builder, link| builder.rate_mbit(link, 400))
        .build()
}

fn down_of_every_size() -> Result<()> {
    each_size(Job::down)
}

fn up_of_every_size() -> Result<()> {
    each_size(Job::up)
}

fn both_ways_of_every_size() -> Result<()> {
    each_size(Job::both)
}

fn each_size(job: fn(u64) -> Job) -> Result<()> {
    transparent(two_links().build()?, |rig| {
        for size in SIZES {
            rig.run(Family::V4, &job(*size).seed(*size))?;
        }
        Ok(short())
    })
}

fn down_of_a_gigabyte() -> Result<()> {
    bulk(&Job::down(1 << 30))
}

fn up_of_a_gigabyte() -> Result<()> {
    bulk(&Job::up(1 << 30))
}

fn both_ways_at_full_speed() -> Result<()> {
    bulk(&Job::both(200_000_000))
}

fn bulk(job: &Job) -> Result<()> {
    transparent(two_links().build()?, |rig| {
        rig.run(Family::V4, job)?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn one_subflow_ipv4() -> Result<()> {
    subflows(1, Family::V4)
}

fn one_subflow_ipv6() -> Result<()> {
    subflows(1, Family::V6)
}

fn two_subflows_ipv4() -> Result<()> {
    subflows(2, Family::V4)
}

fn two_subflows_ipv6() -> Result<()> {
    subflows(2, Family::V6)
}

fn four_subflows_ipv4() -> Result<()> {
    subflows(4, Family::V4)
}

fn four_subflows_ipv6() -> Result<()> {
    subflows(4, Family::V6)
}

fn subflows(links: u8, family: Family) -> Result<()> {
    let families = if family == Family::V4 {
        Families::V4
    } else {
        Families::V6
    };
    transparent(paced(links, families)?, |rig| {
        for job in [
            Job::down(15_000_000),
            Job::up(15_000_000),
            Job::both(10_000_000),
        ] {
            rig.run(family, &job)?;
        }
        let joins = 3 * (i64::from(links) - 1);
        // Whoever asks, joins. A client that is starved asks too late in one of the connections.
        let joined = rig.counter("mp_join_ack_rx")?;
        // Linux before 6.12 does not count how often it asks; FlexCP counts what comes.
        let counted = Mib::read(rig.lab.client())?.has("MPJoinSynTx");
        let asked = if counted {
            rig.oracle.client(&rig.lab)?.get("MPJoinSynTx")
        } else {
            i64::try_from(rig.counter("mp_join_syn_rx")?)?
        };
        ensure!(
            joined == u64::try_from(asked)?,
            "{joined} of {asked} joined"
        );
        Ok(Expect::clean()
            .exactly(End::Client, "MPCapableSYNACKRX", 3)
            .between(End::Client, "MPJoinSynAckRx", joins * 2 / 3..=joins)
            .exactly(End::Client, "MPJoinSynAckRx", asked))
    })
}

fn ipv6_joins_an_ipv4_connection() -> Result<()> {
    mixed(Family::V4, Family::V6)
}

fn ipv4_joins_an_ipv6_connection() -> Result<()> {
    mixed(Family::V6, Family::V4)
}

/// FlexCP announces an address of the other family on the second link.
fn mixed(first: Family, second: Family) -> Result<()> {
    let lab = Lab::builder()
        .families(Families::Both)
        .endpoints(Families::Neither)
        .rate_mbit(1, 400)
        .rate_mbit(2, 400)
        .build()?;
    announcing(lab, first, second)
}

fn announced_address_is_joined() -> Result<()> {
    let builder = Lab::builder().endpoints(Families::Neither);
    announcing(
        builder.rate_mbit(1, 400).rate_mbit(2, 400).build()?,
        Family::V4,
        Family::V4,
    )
}

fn announcing(lab: Lab, first: Family, second: Family) -> Result<()> {
    let service = daemon::transparent(&lab, &[lab.proxy_addr(2, second).to_string()]);
    with(lab, &service, ServeOptions::tcp(PORT), |rig| {
        let client = rig.client(first).mapped();
        for job in [Job::both(10_000_000), Job::ping_pong(20, 1000).pause_ms(25)] {
            rig.run_client(&client, &job)?;
        }
        Ok(Expect::clean()
            .exactly(End::Client, "AddAddr", 2)
            .exactly(End::Client, "EchoAddTx", 2)
            .exactly(End::Client, "MPJoinSynAckRx", 2))
    })
}

fn thousand_connections_at_once() -> Result<()> {
    transparent(two_links().build()?, |rig| {
        let job = Job::ping_pong(5, 4000).pause_ms(100);
        let reports = rig
            .client(Family::V4)
            .run_many_in(rig.lab.client(), 1000, &job)?;
        lively(&reports)?;
        ensure!(rig.counter("mp_capable_ack_rx")? == 1000);
        Ok(short()
            .own(
                SENT_AGAIN,
                "two processors take seconds to come round to a thousand connections",
            )
            .exactly(End::Client, "MPCapableSYNACKRX", 1000)
            // A SYN lost in the burst comes again only after the connection's end.
            .at_least(End::Client, "MPJoinSynAckRx", 980)
            // So does what waited in the queue before FlexCP for too long.
            .allow("TCPACKSkippedTimeWait"))
    })
}

fn connections_one_after_another() -> Result<()> {
    transparent(two_links().build()?, |rig| {
        for seed in 0..200 {
            rig.run(Family::V4, &Job::both(10_000).seed(seed))?;
        }
        Ok(short())
    })
}

fn server_that_speaks_first() -> Result<()> {
    let lab = two_links().build()?;
    let service = daemon::transparent(&lab, &[]);
    with(lab, &service, ServeOptions::tcp(PORT).banner(500), |rig| {
        for _ in 0..20 {
            rig.run_client(&rig.client(Family::V4).banner(500), &Job::both(100_000))?;
        }
        Ok(short())
    })
}

fn slow_reader_closes_the_window() -> Result<()> {
    transparent(two_links().build()?, |rig| {
        let client = rig
            .client(Family::V4)
            .receive_buffer(32 << 10)
            .read_rate(2_000_000);
        rig.run_client(&client, &Job::down(3_000_000))?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// A client that offers one segment at a time, over one subflow and over two. A kernel that delays the ACK of each would take
/// three minutes; kernel to kernel two subflows take over 8 s as often as not.
fn smallest_receive_buffer() -> Result<()> {
    const BOUND_US: u64 = 8_000_000;
    for links in [1, 2] {
        let lab = Lab::builder().access_links(links).families(Families::Both);
        transparent(lab.build()?, |rig| {
            for family in [Family::V4, Family::V6] {
                let client = rig.client(family).receive_buffer(2048);
                let took = rig.run_client(&client, &Job::down(3_000_000))?.total_us;
                ensure!(
                    took < BOUND_US,
                    "{family:?} over {links} links: {took} us, {BOUND_US} may be"
                );
            }
            Ok(short())
        })?;
    }
    Ok(())
}

fn ping_pong_on_two_links() -> Result<()> {
    transparent(two_links().build()?, |rig| {
        rig.run(Family::V4, &Job::ping_pong(2000, 100))?;
        rig.run(Family::V4, &Job::ping_pong(50, 50_000).pause_ms(5))?;
        Ok(short())
    })
}

/// The usual jobs on a lab of some special kind.
fn assorted(lab: Lab, check: fn(&Rig) -> Result<Expect>) -> Result<()> {
    transparent(lab, |rig| {
        for job in [
            Job::down(5_000_000),
            Job::up(5_000_000),
            Job::both(5_000_000),
        ] {
            rig.run(Family::V4, &job)?;
        }
        rig.run(Family::V4, &Job::ping_pong(20, 1000).pause_ms(5))?;
        check(rig)
    })
}

/// All connections were MPTCP.
fn translated(_: &Rig) -> Result<Expect> {
    Ok(short().exactly(End::Client, "MPCapableSYNACKRX", 4))
}

fn without_offloads() -> Result<()> {
    assorted(two_links().offloads(false).build()?, translated)
}

fn without_timestamps() -> Result<()> {
    assorted(
        two_links()
            .server_sysctl("net.ipv4.tcp_timestamps", "0")
            .build()?,
        translated,
    )
}

fn without_timestamps_at_the_client() -> Result<()> {
    assorted(
        two_links()
            .client_sysctl("net.ipv4.tcp_timestamps", "0")
            .build()?,
        translated,
    )
}

fn without_sack() -> Result<()> {
    let lab = two_links()
        .server_sysctl("net.ipv4.tcp_sack", "0")
        .build()?;
    assorted(lab, |rig| {
        const ALONE: &str = "without SACK FlexCP takes no joins";
        Ok(translated(rig)?
            .own("mp_join_refused", ALONE)
            .own("unexpected", ALONE))
    })
}

fn without_window_scaling() -> Result<()> {
    assorted(
        two_links()
            .server_sysctl("net.ipv4.tcp_window_scaling", "0")
            .build()?,
        translated,
    )
}

/// FlexCP may translate or pass as plain TCP; the bytes must arrive.
fn with_dss_checksums() -> Result<()> {
    let lab = two_links()
        .client_sysctl("net.mptcp.checksum_enabled", "1")
        .build()?;
    assorted(lab, |_| {
        Ok(short()
            .allow("MPCapableFallbackSYNACK")
            .own("plain_syn", "the client wants checksums"))
    })
}

fn with_a_smaller_mtu_on_the_second_link() -> Result<()> {
    assorted(
        two_links()
            .mtu(2, 1300)
            .rate_mbit(1, 400)
            .rate_mbit(2, 400)
            .build()?,
        translated,
    )
}

/// Segments from the server are smaller than the client's path would take.
fn with_jumbo_frames_to_the_client() -> Result<()> {
    assorted(two_links().mtu(1, 9000).mtu(2, 9000).build()?, translated)
}

/// Used by the fallback group: a plain TCP client of the same server.
pub(crate) fn tcp_client(rig: &Rig, family: Family) -> Client {
    Client::tcp(rig.lab.server_socket(1, family, PORT))
}
