//! What may stand at the far end of a box's uplinks: FlexCP on the path of servers without MPTCP, haproxy before them and nginx
//! under mptcpize. And what the wire shows of an opening (Figure 3 of T-MPTCP).

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::wirecheck::{Preamble, Taken, WireCheck, packets};
use flexcp_lab::{Beyond, Cut, Expect, Family, FarProgram, FlexCp, daemon};
use flexcp_wire::{CapableKeys, MpJoin, MptcpOption, TcpFlags};

use crate::aggregation::{PORT, Rig, boxed, boxed_with, lab, server};
use crate::errands;
use crate::wire::{Wire, captured};

crate::cases!("chains":
    flexcp_before_the_servers,
    haproxy_before_the_servers,
    nginx_as_the_server,
    opening_of_a_direct_connection,
    opening_by_a_converter,
    opening_by_socks5,
);

/// The lab's box over two uplinks of 50 Mbit/s to servers beyond its far end, on whose path a transparent FlexCP stands.
fn flexcp_before_the_servers() -> Result<()> {
    let lab = lab(50)?;
    let beyond = Beyond::build(&lab)?;
    lab.lead_beyond(Family::V4)?;
    let network = Beyond::NETWORKS[0];
    let service = format!(
        "[[service]]\nname = \"path\"\nmode = \"transparent\"\ninterfaces = [\"a1\", \"a2\"]\n\
         destinations = [{network:?}]\n"
    );
    let far = FlexCp::start_at_far_end(&lab, &service)?;
    let near = errands::config(&[], "");
    let outcome = boxed_with(lab, &near, |rig| {
        let _content = Server::start(beyond.namespace(), ServeOptions::tcp(PORT))?;
        let files = cut_under_transfers(rig)?;
        let [a1, a2, b0] = &files[..] else {
            bail!("captures of {files:?}");
        };
        one_dss_a_packet(&[a1, a2])?;
        let check = WireCheck {
            client: vec![a1.clone(), a2.clone()],
            server: vec![b0.clone()],
            offloads_off: false,
            offload: !daemon::offload_is_off(),
            aggregates: false,
            explicit: vec![],
        };
        let findings = check.run()?;
        findings.ok().context("at the far end")?;
        ensure!(findings.packets > 1000, "{findings}");
        rig.ensure(&[("mp_capable_synack_rx", 2), ("fallback_handshake", 0)])?;
        Ok(cut_expect())
    });
    outcome.with_context(|| format!("at the far end:\n{}", far.log()))
}

fn cut_expect() -> Expect {
    crate::aggregation::quiet().disturbed("an uplink is cut")
}

/// A download and an upload, and in the midst of each an uplink is lost without a word; what was captured at the far end.
fn cut_under_transfers(rig: &Rig) -> Result<Vec<PathBuf>> {
    let devices = ["a1", "a2", "b0"].map(String::from);
    let capture = rig.lab.capture_at(rig.lab.client(), "far", &devices)?;
    for (joins, job) in [(1, Job::down(15_000_000)), (2, Job::up(8_000_000))] {
        let client = Client::tcp(Beyond::socket(Family::V4, PORT));
        cut_meanwhile(rig, joins, || {
            let report = client.run_in(rig.lab.server(1), &job)?;
            report.ok().map(drop)
        })?;
    }
    capture.stop_whole()
}

/// Two FlexCPs in a row merge no mappings and split none: each packet with data has one DSS, and none has more.
fn one_dss_a_packet(files: &[&PathBuf]) -> Result<()> {
    let mut with_data = 0;
    for file in files {
        for packet in packets(file)? {
            let is_dss = |option: &&MptcpOption| matches!(option, MptcpOption::Dss(_));
            let all = packet.mptcp.iter().filter(is_dss).count();
            let keys = packet.mptcp.iter().any(|option| {
                matches!(option, MptcpOption::Capable(capable)
                    if matches!(capable.keys, CapableKeys::AckData { .. }))
            });
            let mapped = all + usize::from(keys);
            let fits = mapped == 1 || (packet.payload == 0 && mapped == 0);
            ensure!(fits, "{mapped} DSS in {packet:?}");
            with_data += usize::from(packet.payload > 0);
        }
    }
    ensure!(with_data > 500, "{with_data} packets with data");
    Ok(())
}

/// The far end is a proxy that takes MPTCP and ends it.
fn haproxy_before_the_servers() -> Result<()> {
    let lab = lab(50)?;
    let beyond = Beyond::build(&lab)?;
    let to = Beyond::socket(Family::V4, PORT);
    let _proxy = FarProgram::haproxy(&lab, server(Family::V4), to)?;
    boxed(lab, |rig| {
        let content = Server::start(beyond.namespace(), ServeOptions::tcp(PORT))?;
        for (joins, job) in [(1, Job::down(15_000_000)), (2, Job::up(8_000_000))] {
            cut_meanwhile(rig, joins, || rig.run(&job).map(drop))?;
        }
        ensure!(
            content.accepted() == 2,
            "{} connections",
            content.accepted()
        );
        rig.ensure(&[("mp_capable_synack_rx", 2), ("fallback_handshake", 0)])?;
        Ok(cut_expect().allow("MPCapableFallbackSYNACK"))
    })
}

/// nginx serves a file over MPTCP. As a stream proxy under mptcpize it stops in mid-transfer, without a box as well.
fn nginx_as_the_server() -> Result<()> {
    const BYTES: u64 = 15_000_000;
    let lab = lab(50)?;
    let at = server(Family::V4);
    let nginx = FarProgram::nginx(&lab, at, BYTES)?;
    boxed(lab, |rig| {
        let fetch = || {
            let mut curl = rig.lab.server(1).command("curl");
            curl.args(["-sS", "--max-time", "30", &format!("http://{at}/file")]);
            let got = curl.output().context("curl")?;
            ensure!(
                got.status.success(),
                "{}",
                String::from_utf8_lossy(&got.stderr)
            );
            ensure!(
                Some(&got.stdout) == nginx.file(),
                "{} other bytes",
                got.stdout.len()
            );
            Ok(())
        };
        cut_meanwhile(rig, 1, fetch)?;
        rig.ensure(&[("mp_capable_synack_rx", 1), ("fallback_handshake", 0)])?;
        Ok(cut_expect())
    })
}

/// The first uplink loses its packets in the midst of a transfer, once the second has joined.
fn cut_meanwhile(rig: &Rig, joins: u64, run: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    thread::scope(|scope| {
        let running = scope.spawn(run);
        rig.joined(joins)?;
        thread::sleep(Duration::from_millis(300));
        rig.lab.cut(1, Cut::Silent)?;
        running.join().expect("a client does not panic")?;
        rig.lab.restore(1)
    })
}

/// What a packet of an opening is, as Figure 3 names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The client's SYN in the LAN, without MPTCP.
    ClientSyn,
    /// The box's, with `MP_CAPABLE`; with the message of Convert.
    BoxSyn { tells: bool },
    /// The far end's SYN/ACK, with its key.
    Answer,
    /// Both keys; with the request of SOCKS5.
    Keys { tells: bool },
    /// The far end says something.
    Said,
    /// The client is answered.
    ClientAnswered,
    /// The client's first data, in the LAN.
    Request,
    /// The box asks for a join over another uplink.
    Join,
}

fn step(packet: &Taken, in_lan: bool) -> Option<Step> {
    let (syn, ack) = (
        packet.flags.contains(TcpFlags::SYN),
        packet.flags.contains(TcpFlags::ACK),
    );
    let keys = packet.mptcp.iter().find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(capable.keys),
        _ => None,
    });
    let joins = |option: &MptcpOption| matches!(option, MptcpOption::Join(MpJoin::Syn { .. }));
    let tells = packet.payload > 0;
    let from_box = packet.from.port() >= 61000;
    Some(match (in_lan, syn, ack, keys) {
        (true, true, false, None) if packet.mptcp.is_empty() => Step::ClientSyn,
        (true, true, true, None) if packet.mptcp.is_empty() => Step::ClientAnswered,
        (true, false, _, _) if tells && packet.to.port() == PORT => Step::Request,
        (false, true, false, Some(CapableKeys::Syn)) => Step::BoxSyn { tells },
        (false, true, true, Some(CapableKeys::SynAck { .. })) => Step::Answer,
        (false, true, false, _) if packet.mptcp.iter().any(joins) => Step::Join,
        (false, false, true, Some(CapableKeys::Ack { .. } | CapableKeys::AckData { .. })) => {
            Step::Keys { tells }
        }
        (false, false, true, None) if tells && !from_box => Step::Said,
        _ => return None,
    })
}

/// The steps of one connection's opening, whose captures break no rule of the wire, each as it comes first; without the join, which has to come behind the client's answer.
fn opening(rig: &Rig, wire: &Wire, run: impl FnOnce() -> Result<()>) -> Result<Vec<Step>> {
    let files = captured(&rig.lab, run)?;
    wire.judge(&rig.lab, &files)?.ok()?;
    let mut all = vec![];
    for file in files {
        let in_lan = file.to_string_lossy().contains("srv1");
        let steps = packets(&file)?;
        all.extend(
            steps
                .iter()
                .filter_map(|packet| Some((packet.time, step(packet, in_lan)?))),
        );
    }
    all.sort_by_key(|(time, _)| *time);
    let mut steps = vec![];
    for (_, step) in all {
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
    let place = |step| steps.iter().position(|known| *known == step);
    let behind = place(Step::ClientAnswered) < place(Step::Join);
    ensure!(place(Step::Join).is_some() && behind, "{steps:?}");
    // Whether it comes before the client's data or behind it is chance.
    steps.retain(|step| *step != Step::Join);
    Ok(steps)
}

fn opening_of_a_direct_connection() -> Result<()> {
    boxed(lab(100)?, |rig| {
        let _server = rig.serve(ServeOptions::mptcp(PORT))?;
        let steps = opening(rig, &Wire::default().of_box(&[]), || {
            rig.run(&Job::up(1_000_000)).map(drop)
        })?;
        // The client's ACK and its first data leave in one moment.
        let told = steps.iter();
        let told = told.filter(|step| !matches!(step, Step::Said | Step::Request));
        let told: Vec<_> = told.copied().collect();
        let begins = [
            Step::ClientSyn,
            Step::BoxSyn { tells: false },
            Step::Answer,
            Step::ClientAnswered,
            Step::Keys { tells: false },
            Step::Keys { tells: true },
        ];
        ensure!(told == begins, "{told:?}");
        Ok(crate::aggregation::quiet())
    })
}

/// The client is answered behind the aggregation server's answer, and the join comes from the box.
fn opening_by(mode: &str, (port, preamble): (u16, Preamble), expected: &[Step]) -> Result<()> {
    let server = errands::listen(Family::V4, port).parse()?;
    let wire = Wire::default().of_box(&[(server, preamble)]);
    errands::by_one(mode, port, |rig, far| {
        let _content = far.serve(ServeOptions::tcp(PORT))?;
        let steps = opening(rig, &wire, || far.run(&rig.lab, &Job::up(1_000_000)))?;
        ensure!(steps == expected, "{steps:?}");
        Ok(crate::aggregation::quiet())
    })
}

fn opening_by_a_converter() -> Result<()> {
    opening_by(
        "convert",
        (errands::CONVERT, Preamble::Convert),
        &[
            Step::ClientSyn,
            Step::BoxSyn { tells: true },
            Step::Answer,
            Step::Keys { tells: false },
            Step::Said,
            Step::ClientAnswered,
            Step::Request,
        ],
    )
}

fn opening_by_socks5() -> Result<()> {
    opening_by(
        "socks5",
        (errands::SOCKS5, Preamble::Socks5),
        &[
            Step::ClientSyn,
            Step::BoxSyn { tells: false },
            Step::Answer,
            Step::Keys { tells: true },
            Step::Said,
            Step::ClientAnswered,
            Step::Request,
        ],
    )
}
