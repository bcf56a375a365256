//! The rules of the wire where FlexCP is an aggregation box, held against captures of its LAN and of its uplinks: with a server that
//! speaks MPTCP, and by aggregation servers that are told by Convert and by SOCKS5 whom the client has addressed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::wirecheck::{Preamble, Rule, Taken, packets};
use flexcp_lab::{
    Beyond, Cut, Direction, Expect, Families, Family, FarProgram, Lab, LabBuilder, RENEGED,
};

use crate::aggregation::{self, PORT, Rig, boxed, boxed_with, server};
use crate::errands;
use crate::wire::{Wire, captured};

crate::cases!("box_wire":
    rules_hold_both_ways,
    rules_hold_over_ipv6_without_offloads,
    rules_hold_for_many_at_once,
    rules_hold_when_an_uplink_is_cut,
    rules_hold_when_an_uplink_is_lost,
    rules_hold_under_loss,
    packets_that_were_changed_are_noticed,
    answer_to_the_client_before_the_converters_is_noticed,
);

/// Slow enough for the captures to keep up.
const RATE: u32 = 100;

/// How the box reaches servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Direct,
    Convert,
    Socks5,
    /// By a program that ends each connection.
    Danted,
}

const WAYS: [Way; 4] = [Way::Direct, Way::Convert, Way::Socks5, Way::Danted];

/// A box under which transfers are captured.
struct Scene<'a> {
    rig: &'a Rig,
    wire: Wire,
    to: SocketAddr,
}

impl Scene<'_> {
    fn run(&self, job: &Job) -> Result<()> {
        let report = Client::tcp(self.to).run_in(self.rig.lab.server(1), job)?;
        report.ok().with_context(|| format!("{job:?}"))?;
        Ok(())
    }

    fn judged(&self, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let findings = self.wire.judged(&self.rig.lab, run)?;
        findings.ok()?;
        let [uplinks, lan] = findings.flows;
        ensure!(lan >= 1 && uplinks > lan, "no joins: {findings}");
        Ok(())
    }
}

impl Way {
    fn protocol(self) -> Option<(&'static str, u16, Preamble)> {
        match self {
            Self::Direct => None,
            Self::Convert => Some(("convert", errands::CONVERT, Preamble::Convert)),
            Self::Socks5 | Self::Danted => Some(("socks5", errands::SOCKS5, Preamble::Socks5)),
        }
    }

    /// Nothing of note.
    fn quiet(self) -> Expect {
        let quiet = aggregation::quiet();
        if self == Self::Danted {
            // It asks servers for MPTCP as well.
            return quiet.allow("MPCapableFallbackSYNACK");
        }
        quiet
    }

    /// Does one case in a lab whose links are uplinks.
    fn serve(self, lab: Lab, case: impl FnOnce(&Scene<'_>) -> Result<Expect>) -> Result<()> {
        let (family, wire) = if lab.families() == Families::V6 {
            (Family::V6, Wire::without_offloads())
        } else {
            (Family::V4, Wire::default())
        };
        lab.turn_around()?;
        let Some((mode, port, preamble)) = self.protocol() else {
            return boxed(lab, |rig| {
                let _server = rig.serve(ServeOptions::mptcp(PORT))?;
                let (wire, to) = (wire.of_box(&[]), server(family));
                case(&Scene { rig, wire, to })
            });
        };
        let listen = errands::listen(family, port);
        let wire = wire.of_box(&[(listen.parse()?, preamble)]);
        let to = Beyond::socket(family, PORT);
        if self == Self::Danted {
            let beyond = Beyond::build(&lab)?;
            lab.lead_beyond(family)?;
            let _danted = FarProgram::danted(&lab, listen.parse()?, "b0")?;
            let config = errands::config(&[errands::server(mode, &listen, "")], "");
            return boxed_with(lab, &config, |rig| {
                let _content = Server::start(beyond.namespace(), ServeOptions::tcp(PORT))?;
                case(&Scene { rig, wire, to })
            });
        }
        errands::by_one_in((lab, family), mode, port, |rig, far| {
            let _content = far.serve(ServeOptions::tcp(PORT))?;
            case(&Scene { rig, wire, to })
        })
    }
}

fn lab() -> LabBuilder {
    Lab::builder().rate_mbit(1, RATE).rate_mbit(2, RATE)
}

/// A join lives before the last byte.
fn rules_hold_both_ways() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, |scene| {
            for job in [
                Job::down(4_000_000),
                Job::up(4_000_000),
                Job::both(2_000_000),
            ] {
                scene.judged(|| scene.run(&job))?;
            }
            Ok(way.quiet())
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// Lengths and checksums are judged, too.
fn rules_hold_over_ipv6_without_offloads() -> Result<()> {
    for way in [Way::Direct, Way::Convert, Way::Socks5] {
        let lab = lab().families(Families::V6).offloads(false).build()?;
        way.serve(lab, |scene| {
            scene.judged(|| scene.run(&Job::both(2_000_000)))?;
            Ok(way.quiet())
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// Their SYNs stand side by side in the captures.
fn rules_hold_for_many_at_once() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, |scene| {
            scene.judged(|| {
                let (client, lan) = (Client::tcp(scene.to), scene.rig.lab.server(1));
                let reports = client.run_many_in(lan, 20, &Job::both(100_000))?;
                reports.iter().try_for_each(|report| report.ok().map(drop))
            })?;
            Ok(way.quiet().disturbed("twenty fill the queues of the links"))
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// The first uplink goes in the midst of a transfer, and comes back behind it.
fn cut_meanwhile(scene: &Scene<'_>, cut: Cut, joins: u64, job: &Job) -> Result<()> {
    scene.judged(|| {
        thread::scope(|scope| {
            let run = scope.spawn(|| scene.run(job));
            scene.rig.joined(joins)?;
            thread::sleep(Duration::from_millis(200));
            scene.rig.lab.cut(1, cut)?;
            run.join().expect("a client does not panic")
        })
    })?;
    let hits = scene.rig.lab.fault_hits(1, Direction::Up)?
        + scene.rig.lab.fault_hits(1, Direction::Down)?;
    ensure!(hits > 0 || cut != Cut::Silent, "the cut hit nothing");
    scene.rig.lab.restore(1)
}

fn rules_hold_when_an_uplink_is_cut() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, |scene| {
            cut_meanwhile(scene, Cut::Silent, 1, &Job::down(12_000_000))?;
            cut_meanwhile(scene, Cut::Silent, 2, &Job::up(8_000_000))?;
            Ok(way.quiet().disturbed("an uplink is cut").allow_all(RENEGED))
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// The box is told, and withdraws the address.
fn rules_hold_when_an_uplink_is_lost() -> Result<()> {
    for way in [Way::Direct, Way::Convert] {
        way.serve(lab().build()?, |scene| {
            cut_meanwhile(scene, Cut::NoCarrier, 1, &Job::down(12_000_000))?;
            ensure!(scene.rig.counter("rm_addr_tx")? > 0, "nothing is withdrawn");
            Ok(way
                .quiet()
                .disturbed("an uplink is lost")
                .allow_all(RENEGED))
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

fn rules_hold_under_loss() -> Result<()> {
    const LOSSY: &str = "loss=1%,delay=2ms,rate=100mbit:200kb";
    for way in WAYS {
        let links = (1..=2).fold(Lab::builder(), |builder, link| {
            builder
                .faults(link, Direction::Up, LOSSY)
                .faults(link, Direction::Down, LOSSY)
        });
        way.serve(links.build()?, |scene| {
            scene.judged(|| scene.run(&Job::both(2_000_000)))?;
            Ok(way
                .quiet()
                .disturbed("the links lose packets")
                .allow_all(RENEGED))
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// What is done to a packet of a capture, where it was taken, and the rule that is broken then.
type Change = (&'static str, fn(&mut Record<'_>) -> bool, Rule);

/// Each of them in captures that break no rule as they are.
fn packets_that_were_changed_are_noticed() -> Result<()> {
    const CHANGES: [Change; 5] = [
        ("a1", move_mapping, Rule::SameBytes),
        ("a1", ack_more_to_the_server, Rule::AckToClient),
        ("srv1", ack_more_to_the_client, Rule::AckToServer),
        ("srv1", change_syn, Rule::Translation),
        ("a1", ask_without_mptcp, Rule::Plain),
    ];
    Way::Direct.serve(lab().build()?, |scene| {
        let files = captured(&scene.rig.lab, || scene.run(&Job::both(4_000_000)))?;
        scene.wire.judge(&scene.rig.lab, &files)?.ok()?;
        for (number, (device, change, rule)) in CHANGES.into_iter().enumerate() {
            noticed(scene, &files, (device, change, rule)).with_context(|| format!("{number}"))?;
        }
        Ok(Way::Direct.quiet())
    })
}

/// Figure 3 of T-MPTCP: the client hears nothing before the aggregation server has connected on.
fn answer_to_the_client_before_the_converters_is_noticed() -> Result<()> {
    for (way, rule) in [
        (Way::Direct, Rule::AckToServer),
        (Way::Convert, Rule::Preamble),
        (Way::Socks5, Rule::Preamble),
    ] {
        way.serve(lab().build()?, |scene| {
            let files = captured(&scene.rig.lab, || scene.run(&Job::both(1_000_000)))?;
            scene.wire.judge(&scene.rig.lab, &files)?.ok()?;
            noticed(scene, &files, ("srv1", answer_at_once, rule))?;
            Ok(way.quiet())
        })
        .with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

/// Whether the change is noticed in one of three packets, each by itself: what one says may be said by others, too, as of a mapping
/// that is repeated.
fn noticed(scene: &Scene<'_>, files: &[PathBuf], change: Change) -> Result<()> {
    let mut seen = noticed_in(scene, files, change, 0);
    for place in [3, 7] {
        seen = seen.or_else(|error| noticed_in(scene, files, change, place).context(error));
    }
    seen
}

/// Makes the change in the packet at a place among those that are meant, in copies of the captures, and has them judged.
fn noticed_in(
    scene: &Scene<'_>,
    files: &[PathBuf],
    (device, change, rule): Change,
    place: usize,
) -> Result<()> {
    let asked = asked_at(files)?;
    let mut changed = vec![];
    for file in files {
        let copy = file.with_extension("changed.pcap");
        fs::copy(file, &copy)?;
        if file.to_string_lossy().contains(&format!("-{device}.")) {
            edit(&copy, asked, (change, place))?;
        }
        changed.push(copy);
    }
    let findings = scene.wire.check(changed)?;
    let broken = findings.found.iter().map(|found| found.violation.rule);
    ensure!(broken.into_iter().any(|found| found == rule), "{findings}");
    Ok(())
}

/// When the first SYN left over an uplink, as captures have it.
fn asked_at(files: &[PathBuf]) -> Result<[u8; 8]> {
    let [uplink, ..] = files else {
        bail!("no captures");
    };
    let asked = packets(uplink)?.into_iter().find(Taken::is_syn);
    let asked = asked.context("no SYN over the first uplink")?.time;
    let (seconds, rest) = (asked / 1_000_000_000, asked % 1_000_000_000);
    let asked = u32::try_from(seconds)?.to_le_bytes().into_iter();
    let asked: Vec<_> = asked.chain(u32::try_from(rest)?.to_le_bytes()).collect();
    Ok(asked.try_into().expect("two numbers of four bytes"))
}

/// One packet of a capture.
struct Record<'a> {
    /// Seconds and nanoseconds, and the lengths.
    header: &'a mut [u8],
    /// Its TCP header, options, and what there is of its payload.
    tcp: &'a mut [u8],
    /// When the first SYN left over an uplink, as `header` begins.
    asked: [u8; 8],
    /// How many packets with data have been seen.
    with_data: usize,
}

impl Record<'_> {
    fn flags(&self) -> u8 {
        self.tcp[13] & 0x3f
    }

    fn sender(&self) -> u16 {
        u16::from_be_bytes([self.tcp[0], self.tcp[1]])
    }

    fn number(&mut self, at: usize) -> &mut [u8; 4] {
        let number = self.tcp.get_mut(at..at + 4);
        number
            .and_then(|bytes| bytes.try_into().ok())
            .expect("a TCP header")
    }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The first of the ports from which FlexCP asks; clients have lower ones.
const FLEXCP: u16 = 61000;
/// Packets with data before the midst of a transfer.
const MIDST: usize = 10;
/// Numbers by which an ACK is moved: more than any client has sent of late.
const FAR: u32 = 10_000_000;

/// FlexCP ACKs on an uplink, in the midst, what the client in the LAN has not.
fn ack_more_to_the_server(record: &mut Record<'_>) -> bool {
    record.sender() >= FLEXCP && ack_more(record)
}

/// The same in the LAN, where it speaks for the server.
fn ack_more_to_the_client(record: &mut Record<'_>) -> bool {
    record.sender() == PORT && ack_more(record)
}

fn ack_more(record: &mut Record<'_>) -> bool {
    if record.flags() & SYN != 0 || record.with_data < MIDST {
        return false;
    }
    let ack = record.number(8);
    *ack = u32::from_be_bytes(*ack).wrapping_add(FAR).to_be_bytes();
    true
}

/// The first SYN in the LAN has another number.
fn change_syn(record: &mut Record<'_>) -> bool {
    if record.flags() != SYN {
        return false;
    }
    record.number(4)[0] ^= 1;
    true
}

/// The first SYN over an uplink does not ask for MPTCP.
fn ask_without_mptcp(record: &mut Record<'_>) -> bool {
    record.flags() == SYN
        && options(
            record.tcp,
            |option| option[2] >> 4 == 0,
            |option| option.fill(1),
        )
}

/// FlexCP's answer to the client leaves as soon as it has asked for it.
fn answer_at_once(record: &mut Record<'_>) -> bool {
    if record.flags() != SYN | ACK {
        return false;
    }
    record.header[..8].copy_from_slice(&record.asked);
    true
}

/// A DSS of FlexCP's in the midst maps its payload one byte further.
fn move_mapping(record: &mut Record<'_>) -> bool {
    if record.sender() < FLEXCP || record.with_data < MIDST {
        return false;
    }
    // A data ACK of eight bytes, and a data number of eight behind it.
    let maps = |option: &[u8]| option[2] >> 4 == 2 && option[3] & 0x0f == 0x0f;
    options(record.tcp, maps, |option| option[19] ^= 1)
}

/// Changes the first option of MPTCP that is meant.
fn options(tcp: &mut [u8], meant: fn(&[u8]) -> bool, change: fn(&mut [u8])) -> bool {
    let end = usize::from(tcp[12] >> 4) * 4;
    let mut at = 20;
    while at + 1 < end {
        let len = match tcp[at] {
            0 => return false,
            1 => 1,
            _ => usize::from(tcp[at + 1]),
        };
        if tcp[at] == 30 && meant(&tcp[at..at + len]) {
            change(&mut tcp[at..at + len]);
            return true;
        }
        at += len;
    }
    false
}

/// Changes the packet at a place among those of a file that are meant: of IPv4 over Ethernet.
fn edit(
    file: &Path,
    asked: [u8; 8],
    (change, place): (fn(&mut Record<'_>) -> bool, usize),
) -> Result<()> {
    const FILE: usize = 24;
    const HEADER: usize = 16;
    const TCP: usize = 14 + 20;
    let mut bytes = fs::read(file)?;
    let (mut at, mut with_data, mut before) = (FILE, 0, place);
    while let Some(len) = bytes.get(at + 8..at + 12) {
        let len = u32::from_le_bytes(len.try_into()?) as usize;
        let (header, rest) = bytes[at..].split_at_mut(HEADER);
        let frame = &mut rest[..len];
        at += HEADER + len;
        let is_tcp = frame.len() >= TCP + 20 && frame[12..14] == [8, 0] && frame[23] == 6;
        if !is_tcp {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        with_data += usize::from(total > 20 + 60);
        let known = (header.to_vec(), frame.to_vec());
        let tcp = &mut frame[TCP..];
        if !change(&mut Record {
            header,
            tcp,
            asked,
            with_data,
        }) {
            continue;
        }
        if before == 0 {
            return Ok(fs::write(file, &bytes)?);
        }
        header.copy_from_slice(&known.0);
        frame.copy_from_slice(&known.1);
        before -= 1;
    }
    bail!("no packet of {} is meant", file.display())
}
