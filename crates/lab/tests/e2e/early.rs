//! A box whose converter says by its SYN/ACK that it has connected on: a FlexCP that splits connections, which calls the server before
//! its kernel's socket gets the SYN.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, Mode, ServeOptions};
use flexcp_lab::wirecheck::{Preamble, packets};
use flexcp_lab::{Beyond, Expect, Family, Lab, SERVER_RESET, daemon};
use flexcp_wire::TcpFlags;
use libtest_mimic::Trial;

use crate::aggregation::{PORT, Rig, lab_of};
use crate::errands::{self, CONVERT, Far, left, listen, with_far_end};
use crate::split::kernels_own;
use crate::wire::{Wire, captured};

crate::cases!("early":
    both_ways,
    both_ways_ipv6,
    server_speaks_first,
    many_at_once,
    client_is_answered_before_the_converters_answer,
    refused_connection_is_refused,
    unreachable_server_is_told,
    server_that_is_slow_to_answer,
    box_beyond_its_limit_asks_the_next,
    converter_that_translates_is_believed_until_it_refuses,
);

/// Those that apply: without the offload's programs nothing can be split.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    if daemon::offload_is_off() {
        return vec![];
    }
    cases()
}

/// A box by a converter at the far end, whose service has this line, in a lab that has been built for it.
fn by_converter(
    (lab, family): (Lab, Family),
    line: &str,
    case: impl FnOnce(&Rig, &Far) -> Result<Expect>,
) -> Result<()> {
    // Messages in SYNs are split connections' too.
    lab.client().sysctl(&[("net.ipv4.tcp_fastopen", "3")])?;
    lab.client().ip("mptcp limits set subflows 8")?;
    let service = errands::service("convert", (family, CONVERT), line);
    let servers = [errands::server(
        "convert",
        &listen(family, CONVERT),
        ", early = true",
    )];
    with_far_end((lab, family), &service, (&servers, ""), case)
}

fn early(family: Family, case: impl FnOnce(&Rig, &Far) -> Result<Expect>) -> Result<()> {
    by_converter((lab_of(family, 100)?, family), "carrier = \"split\"", case)
}

/// So many clients were answered so, by as many connections that the far end has called ahead.
fn ensure_early(rig: &Rig, far: &Far, count: u64) -> Result<()> {
    rig.ensure(&[
        ("server_early", count),
        ("server_granted", count),
        ("server_retracted", 0),
        ("server_bypassed", 0),
        ("fallback_handshake", 0),
        ("fallback_established", 0),
    ])?;
    ensure_far(far, [count, count, 0])
}

/// The far end's SYNs of split connections, those of them that waited, and those that went on without their data.
fn ensure_far(far: &Far, expected: [u64; 3]) -> Result<()> {
    let stats = far.server.show_stats()?;
    let counted = ["split", "syn_held", "syn_stripped"].map(|name| stats.counter(name));
    for (counted, expected) in counted.into_iter().zip(expected) {
        let counted = counted?;
        ensure!(
            counted == expected,
            "at the far end {counted}, not {expected}: {stats:?}"
        );
    }
    Ok(())
}

fn wire(family: Family) -> Result<Wire> {
    let server: SocketAddr = listen(family, CONVERT).parse()?;
    Ok(Wire::default().of_box(&[(server, Preamble::Early)]))
}

fn transfers(family: Family) -> Result<()> {
    early(family, |rig, far| {
        let content = far.serve(ServeOptions::tcp(PORT))?;
        let findings = wire(family)?.judged(&rig.lab, || {
            for job in [
                Job::down(8_000_000),
                Job::up(4_000_000),
                Job::both(2_000_000),
                Job::new(Mode::UpThenDown, 100_000, 2_000_000),
            ] {
                far.run(&rig.lab, &job)?;
            }
            Ok(())
        })?;
        findings.ok()?;
        ensure_early(rig, far, 4)?;
        let joins = rig.counter("mp_join_synack_rx")?;
        // The last transfer may be over before one is there.
        ensure!(joins >= 3, "{joins} joins");
        ensure!(
            content.accepted() == 4,
            "{} connections",
            content.accepted()
        );
        Ok(kernels_own())
    })
}

fn both_ways() -> Result<()> {
    transfers(Family::V4)
}

fn both_ways_ipv6() -> Result<()> {
    transfers(Family::V6)
}

fn server_speaks_first() -> Result<()> {
    early(Family::V4, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT).banner(3000))?;
        for _ in 0..10 {
            let client = Client::tcp(Beyond::socket(Family::V4, PORT)).banner(3000);
            let report = client.run_in(rig.lab.server(1), &Job::both(100_000))?;
            report.ok()?;
        }
        ensure_early(rig, far, 10)?;
        Ok(kernels_own())
    })
}

fn many_at_once() -> Result<()> {
    early(Family::V4, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let client = Client::tcp(Beyond::socket(Family::V4, PORT));
        let reports = client.run_many_in(rig.lab.server(1), 50, &Job::both(100_000))?;
        reports
            .iter()
            .try_for_each(|report| report.ok().map(drop))?;
        rig.ensure(&[("server_granted", 50), ("server_retracted", 0)])?;
        Ok(kernels_own().disturbed("fifty fill the queues of the links"))
    })
}

/// Figure 3 of T-MPTCP, a round trip sooner: the client's request is on its way when the answer comes.
fn client_is_answered_before_the_converters_answer() -> Result<()> {
    early(Family::V4, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let job = Job::new(Mode::UpThenDown, 1000, 100_000);
        let files = captured(&rig.lab, || far.run(&rig.lab, &job))?;
        wire(Family::V4)?.judge(&rig.lab, &files)?.ok()?;
        let (mut syn_ack, mut answered, mut said) = (None, None, None);
        for file in &files {
            let in_lan = file.to_string_lossy().contains("srv1");
            for packet in packets(file)? {
                let answers = packet.flags.contains(TcpFlags::SYN | TcpFlags::ACK);
                let from_far = packet.from.port() == CONVERT;
                let first = match (in_lan, answers, from_far) {
                    (true, true, _) => &mut answered,
                    (false, true, true) => &mut syn_ack,
                    (false, false, true) if packet.payload > 0 => &mut said,
                    _ => continue,
                };
                let known = first.unwrap_or(packet.time);
                *first = Some(known.min(packet.time));
            }
        }
        let all = [syn_ack, answered, said];
        let [Some(syn_ack), Some(answered), Some(said)] = all else {
            anyhow::bail!("not all that there has to be: {all:?}");
        };
        ensure!(syn_ack <= answered && answered < said, "{all:?}");
        ensure_early(rig, far, 1)?;
        Ok(kernels_own())
    })
}

/// The far end does not take the message with the SYN, and tells behind the handshake what has come of it.
fn refused_connection_is_refused() -> Result<()> {
    early(Family::V4, |rig, far| {
        let report = far.attempt(&rig.lab, &Job::both(1))?;
        ensure!(report.failure_kind() == "ECONNREFUSED", "{report:?}");
        rig.ensure(&[
            ("server_refused", 1),
            ("server_early", 0),
            ("server_retracted", 0),
        ])?;
        ensure_far(far, [1, 1, 1])?;
        Ok(left(kernels_own()))
    })
}

fn unreachable_server_is_told() -> Result<()> {
    early(Family::V4, |rig, far| {
        far.attempt_unreachable(&rig.lab)?;
        rig.ensure(&[("server_refused", 1), ("server_retracted", 0)])?;
        Ok(left(kernels_own()))
    })
}

/// The SYN waits for it no longer than a box waits for who may be gone, and the converter's answer as long as it takes.
fn server_that_is_slow_to_answer() -> Result<()> {
    early(Family::V4, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let beyond = far.beyond.namespace();
        beyond.nft(&format!(
            "table ip slow {{\n chain in {{\n  type filter hook input priority 0\n  tcp dport {PORT} drop\n }}\n}}\n"
        ))?;
        thread::scope(|scope| {
            let run = scope.spawn(|| far.run(&rig.lab, &Job::both(100_000)));
            thread::sleep(Duration::from_millis(500));
            beyond.nft("delete table ip slow\n")?;
            run.join().expect("a client does not panic")
        })?;
        rig.ensure(&[
            ("server_granted", 1),
            ("server_early", 0),
            ("server_skipped", 0),
        ])?;
        ensure_far(far, [1, 1, 1])?;
        Ok(kernels_own())
    })
}

/// To the converter all clients of a box are one.
fn box_beyond_its_limit_asks_the_next() -> Result<()> {
    let line = "carrier = \"split\"\n[limits]\nclient_connections = 1";
    by_converter((lab_of(Family::V4, 100)?, Family::V4), line, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let _mptcp = rig.serve(ServeOptions::mptcp(PORT))?;
        let clients = Client::tcp(Beyond::socket(Family::V4, PORT));
        let job = Job::new(Mode::UpThenDown, 1000, 3_000_000);
        let reports = clients.run_many_in(rig.lab.server(1), 2, &job)?;
        let served = reports.iter().filter(|report| report.ok().is_ok());
        ensure!(served.count() >= 1, "{reports:?}");
        rig.ensure(&[
            ("server_early", 1),
            ("server_retracted", 0),
            ("server_declined", 1),
            ("server_bypassed", 1),
        ])?;
        let stats = far.server.show_stats()?;
        let counted = [stats.counter("syn_held")?, stats.counter("syn_stripped")?];
        ensure!(counted == [2, 1], "at the far end {counted:?}");
        Ok(kernels_own()
            .own("mp_fastclose_tx", "the aggregation server is left")
            .own("backend_marked", "it has no room")
            .own("fallback_handshake", "the server itself has TCP alone")
            .own("no_connection", "the aggregation server joins what is over")
            .own("backend_probes_tx", "it is asked whether it is back")
            .allow("TcpOutRsts"))
    })
}

/// It says by its SYN/ACK what it has to, but where the server refuses. After that it is not believed any more.
fn converter_that_translates_is_believed_until_it_refuses() -> Result<()> {
    by_converter((lab_of(Family::V4, 100)?, Family::V4), "", |rig, far| {
        let content = far.serve(ServeOptions::tcp(PORT))?;
        far.run(&rig.lab, &Job::both(100_000))?;
        rig.ensure(&[("server_early", 1)])?;
        drop(content);
        for (kind, retracted) in [("ECONNRESET", 1), ("ECONNREFUSED", 1)] {
            let report = far.attempt(&rig.lab, &Job::both(1))?;
            ensure!(report.failure_kind() == kind, "{report:?}");
            rig.ensure(&[("server_retracted", retracted)])?;
        }
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        far.run(&rig.lab, &Job::both(100_000))?;
        rig.ensure(&[("server_granted", 3), ("server_refused", 1)])?;
        Ok(left(crate::aggregation::quiet())
            .own("rst_retracted", "the server has refused")
            .own(SERVER_RESET, "the client in the LAN was connected before"))
    })
}
