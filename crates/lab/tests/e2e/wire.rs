//! The rules of the wire, held against captures of both sides of FlexCP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::Job;
use flexcp_lab::wirecheck::{Findings, Preamble, WireCheck};
use flexcp_lab::{Cut, Direction, End, Expect, Families, Family, Lab, RENEGED, daemon};

use crate::rig::transparent;

crate::cases!("wire":
    rules_hold_for_download_upload_and_both,
    rules_hold_over_ipv6_without_offloads,
    rules_hold_when_a_path_is_cut,
    rules_hold_under_loss,
    packet_that_is_missing_from_a_capture_is_noticed,
);

/// Slow enough for the captures to keep up.
const RATE: u32 = 100;

fn lab() -> flexcp_lab::LabBuilder {
    Lab::builder().rate_mbit(1, RATE).rate_mbit(2, RATE)
}

/// Two subflows.
fn joined() -> Expect {
    Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1)
}

fn rules_hold_for_download_upload_and_both() -> Result<()> {
    for job in [
        Job::down(4_000_000),
        Job::up(4_000_000),
        Job::both(2_000_000),
    ] {
        transparent(lab().build()?, |rig| {
            Wire::default()
                .judged(&rig.lab, || rig.run(Family::V4, &job).map(drop))?
                .ok()?;
            Ok(joined())
        })?;
    }
    Ok(())
}

/// Lengths and checksums are judged, too.
fn rules_hold_over_ipv6_without_offloads() -> Result<()> {
    let lab = lab().families(Families::V6).offloads(false).build()?;
    transparent(lab, |rig| {
        let run = || rig.run(Family::V6, &Job::both(2_000_000)).map(drop);
        Wire::without_offloads().judged(&rig.lab, run)?.ok()?;
        Ok(joined())
    })
}

fn rules_hold_when_a_path_is_cut() -> Result<()> {
    transparent(lab().build()?, |rig| {
        let cut = || {
            rig.run_while(Family::V4, &Job::down(6_000_000), || {
                rig.wait_for_a_join()?;
                thread::sleep(Duration::from_millis(150));
                rig.lab.cut(1, Cut::Silent)
            })
            .map(drop)
        };
        Wire::default().judged(&rig.lab, cut)?.ok()?;
        let hits =
            rig.lab.fault_hits(1, Direction::Up)? + rig.lab.fault_hits(1, Direction::Down)?;
        ensure!(hits > 0, "the cut hit nothing");
        rig.lab.restore(1)?;
        Ok(joined().disturbed("a link is cut").allow_all(RENEGED))
    })
}

fn rules_hold_under_loss() -> Result<()> {
    const LOSSY: &str = "loss=1%,delay=2ms,rate=100mbit:200kb";
    let links = (1..=2).fold(Lab::builder(), |builder, link| {
        builder
            .faults(link, Direction::Up, LOSSY)
            .faults(link, Direction::Down, LOSSY)
    });
    transparent(links.build()?, |rig| {
        let run = || rig.run(Family::V4, &Job::both(2_000_000)).map(drop);
        Wire::default().judged(&rig.lab, run)?.ok()?;
        Ok(Expect::clean()
            .disturbed("the links lose packets")
            .allow_all(RENEGED))
    })
}

/// Without the server's packets everything that FlexCP says on its behalf is unfounded.
fn packet_that_is_missing_from_a_capture_is_noticed() -> Result<()> {
    transparent(lab().build()?, |rig| {
        let files = captured(&rig.lab, || {
            rig.run(Family::V4, &Job::down(2_000_000)).map(drop)
        })?;
        let server = files.last().context("no capture of the server's side")?;
        cut_short(server)?;
        let findings = Wire::default().check(files)?;
        ensure!(findings.violations > 0, "nothing was found: {findings}");
        Ok(joined())
    })
}

/// Leaves the first packets of a file alone and drops the rest.
fn cut_short(file: &Path) -> Result<()> {
    const HEADER: usize = 24;
    const PACKETS: usize = 4;
    let bytes = fs::read(file)?;
    let mut end = HEADER;
    for _ in 0..PACKETS {
        let len = bytes.get(end + 8..end + 12).context("a short capture")?;
        end += 16 + u32::from_le_bytes(len.try_into()?) as usize;
    }
    Ok(fs::write(file, &bytes[..end])?)
}

/// How captures are judged.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    /// Lengths and checksums are those of the wire.
    offloads_off: bool,
    /// FlexCP is a box.
    aggregates: bool,
    /// Where clients name their server, or a box's aggregation servers.
    explicit: Vec<(SocketAddr, Preamble)>,
}

impl Wire {
    /// Lengths and checksums are judged, too.
    pub(crate) fn without_offloads() -> Self {
        Self {
            offloads_off: true,
            ..Self::default()
        }
    }

    /// Clients that connect there name their server in such a preamble.
    pub(crate) fn explicit(mut self, listen: SocketAddr, preamble: Preamble) -> Self {
        self.explicit.push((listen, preamble));
        self
    }

    /// FlexCP is a box, and asks these aggregation servers, each of which is spoken to so.
    pub(crate) fn of_box(mut self, servers: &[(SocketAddr, Preamble)]) -> Self {
        self.aggregates = true;
        self.explicit.extend(servers);
        self
    }

    /// What the captures of a transfer say.
    pub(crate) fn judged(
        &self,
        lab: &Lab,
        transfer: impl FnOnce() -> Result<()>,
    ) -> Result<Findings> {
        self.judge(lab, &captured(lab, transfer)?)
    }

    /// What these captures say. They are kept where a rule is broken.
    pub(crate) fn judge(&self, lab: &Lab, files: &[PathBuf]) -> Result<Findings> {
        let findings = self.check(files.to_vec())?;
        ensure!(findings.packets > 10, "{findings}");
        if findings.violations > 0 {
            let kept = keep(lab, files)?;
            return Err(findings
                .ok()
                .expect_err("there are violations")
                .context(format!("captures are in {}", kept.display())));
        }
        Ok(findings)
    }

    pub(crate) fn check(&self, mut files: Vec<PathBuf>) -> Result<Findings> {
        let server = files.pop().into_iter().collect();
        WireCheck {
            client: files,
            server,
            offloads_off: self.offloads_off,
            offload: !daemon::offload_is_off(),
            aggregates: self.aggregates,
            explicit: self.explicit.clone(),
        }
        .run()
    }
}

/// The captures of a transfer. They are kept where it fails.
pub(crate) fn captured(lab: &Lab, transfer: impl FnOnce() -> Result<()>) -> Result<Vec<PathBuf>> {
    let capture = lab.capture("wire")?;
    let outcome = transfer();
    let files = capture.stop_whole()?;
    match outcome {
        Ok(()) => Ok(files),
        Err(error) => {
            let kept = keep(lab, &files)?;
            Err(error.context(format!("captures are in {}", kept.display())))
        }
    }
}

/// Puts captures where they outlive the lab.
fn keep(lab: &Lab, files: &[PathBuf]) -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("flexcp-captures-{}", lab.prefix()));
    fs::create_dir_all(&directory)?;
    for file in files {
        let name = file.file_name().context("a capture without a name")?;
        fs::copy(file, directory.join(name))?;
    }
    Ok(directory)
}
