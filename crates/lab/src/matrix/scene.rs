//! What runs in the lab of a cell: FlexCP as its side has it, and both ends.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::cell::{Cell, Side};
use crate::beyond::{Beyond, FAR_END, FAR_NETWORKS};
use crate::complaint::Complaints;
use crate::conduct::Conduct;
use crate::counters::{End, Expect, Mib, Oracle};
use crate::daemon::{self, FlexCp};
use crate::topology::{Family, Lab};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};
use crate::wirecheck::Preamble;

/// Programs of a cell. The end with MPTCP is the lab's client, the one with TCP its server, in mirror as well.
pub(super) struct Scene {
    side: Side,
    client: Client,
    pub(super) server: Server,
    /// None where kernels are among themselves.
    flexcp: Option<FlexCp>,
    far: Option<Far>,
}

/// An aggregation server, and the host with the server behind it.
struct Far {
    flexcp: FlexCp,
    beyond: Beyond,
    before: Mib,
}

/// What FlexCP said of itself.
pub(super) struct Told {
    /// Nothing but zeros where there is none.
    pub(super) conduct: Conduct,
    /// At the far end, the aggregation server's.
    far: Option<Conduct>,
}

/// Joins as those tell them who see both ends of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// SYNs with `MP_JOIN` that were sent.
    pub(super) asked: u64,
    /// Subflows whose opener has proved itself to the other end.
    pub(super) joined: u64,
    /// The connection went past the aggregation server.
    pub(super) bypassed: bool,
    /// The first that the kernel's server heard after the handshake's SYN had no keys, so that it fell back to TCP.
    pub(super) keyless: bool,
}

/// The lab of a cell, with its ends in their places.
pub(super) fn lab(cell: &Cell, seed: u64) -> Result<Lab> {
    let lab = cell.lab(seed).build()?;
    if cell.side.is_mirrored() {
        lab.turn_around()?;
    }
    Ok(lab)
}

/// The aggregation servers that FlexCP asks, and how they are spoken to.
pub(super) fn aggregation_servers(cell: &Cell) -> Result<Vec<(SocketAddr, Preamble)>> {
    Ok(match cell.side {
        Side::Converter => vec![(far_end(cell.family, CONVERT)?, Preamble::Convert)],
        Side::Proxy | Side::Box | Side::Kernel => vec![],
    })
}

impl Scene {
    /// Starts everything in it.
    pub(super) fn start(cell: &Cell, lab: &Lab) -> Result<Self> {
        let serve = |options| ServeOptions {
            patience: PATIENCE,
            ..options
        };
        let (mptcp, tcp) = (
            serve(ServeOptions::mptcp(PORT)),
            serve(ServeOptions::tcp(PORT)),
        );
        let opposite = lab.server_socket(1, cell.family, PORT);
        let start = |service: &str| {
            FlexCp::start(lab, &daemon::config(lab, &format!("{TIMEOUTS}{service}"))).map(Some)
        };
        let (client, server, flexcp, far) = match cell.side {
            Side::Proxy => (
                Client::mptcp(opposite),
                Server::start(lab.server(1), tcp)?,
                start(&daemon::transparent(lab, &[]))?,
                None,
            ),
            Side::Kernel => (
                Client::mptcp(opposite),
                Server::start(lab.server(1), mptcp)?,
                None,
                None,
            ),
            Side::Box => (
                Client::tcp(far_end(cell.family, PORT)?).aborts(),
                Server::start(lab.client(), mptcp)?,
                start(&daemon::aggregation(lab, &FAR_NETWORKS, ""))?,
                None,
            ),
            Side::Converter => {
                let far = Far::start(cell, lab)?;
                let listen = far_end(cell.family, CONVERT)?;
                let servers = format!("{{ address = \"{listen}\", mode = \"convert\" }}");
                (
                    Client::tcp(Beyond::socket(cell.family, PORT)).aborts(),
                    Server::start(far.beyond.namespace(), tcp)?,
                    start(&daemon::aggregation(lab, &Beyond::NETWORKS, &servers))?,
                    Some(far),
                )
            }
        };
        Ok(Self {
            side: cell.side,
            client: client.patience(PATIENCE),
            server,
            flexcp,
            far,
        })
    }

    /// Does the job.
    pub(super) fn run(&self, lab: &Lab, job: &Job) -> Result<Report> {
        let host = if self.side.is_mirrored() {
            lab.server(1)
        } else {
            lab.client()
        };
        self.client.run_in(host, job)
    }

    /// What FlexCP says of itself; an error if it has ended.
    pub(super) fn told(&mut self) -> Result<Told> {
        let mut told = Told {
            conduct: Conduct::default(),
            far: None,
        };
        if let Some(flexcp) = &mut self.flexcp {
            flexcp.alive()?;
            told.conduct = Conduct::read(flexcp)?;
        }
        if let Some(far) = &mut self.far {
            far.flexcp.alive().context("at the far end")?;
            told.far = Some(Conduct::read(&far.flexcp)?);
        }
        Ok(told)
    }

    /// The counters of both ends, of the host behind an aggregation server, and FlexCP's own.
    pub(super) fn check(
        &self,
        oracle: &Oracle,
        lab: &Lab,
        expect: &Expect,
        told: &Told,
    ) -> Result<()> {
        match &self.flexcp {
            Some(_) => {
                oracle.check_with(lab, &told.conduct.explain(expect.clone())?, &told.conduct)?;
            }
            None => oracle.check(lab, expect)?,
        }
        let (Some(far), Some(conduct)) = (&self.far, &told.far) else {
            return Ok(());
        };
        let moved = Mib::read(far.beyond.namespace())?.since(&far.before);
        let expect = conduct.explain(expect.clone())?;
        let mut complaints = vec![];
        expect.judge(End::Servers, &moved, &mut complaints);
        conduct.judge(expect.allowances(), &mut complaints);
        Conduct::judge_resets(&moved, expect.allowances(), &mut complaints);
        Complaints::of(complaints, "at the far end").context("at the far end")
    }

    /// Waits until no FlexCP has a connection left.
    pub(super) fn forgets_everything(&self, lab: &Lab) -> Result<()> {
        let far = self.far.iter().map(|far| &far.flexcp);
        for flexcp in self.flexcp.iter().chain(far) {
            forgotten(lab, flexcp)?;
        }
        Ok(())
    }

    /// Ends everything; FlexCP has to have accounted for every packet.
    pub(super) fn end(self) -> Result<()> {
        drop(self.server);
        self.flexcp.map_or(Ok(()), FlexCp::stop)?;
        self.far.map_or(Ok(()), |far| far.flexcp.terminate())
    }
}

impl Far {
    fn start(cell: &Cell, lab: &Lab) -> Result<Self> {
        let beyond = Beyond::build(lab)?;
        lab.lead_beyond(cell.family)?;
        let listen = far_end(cell.family, CONVERT)?.to_string();
        let service = daemon::explicit("convert", &[listen], &Beyond::NETWORKS);
        Ok(Self {
            flexcp: FlexCp::start_at_far_end(lab, &service)?,
            before: Mib::read(beyond.namespace())?,
            beyond,
        })
    }
}

impl Told {
    /// The joins of a cell, by the counters of the end with MPTCP and of the other one.
    pub(super) fn joins(&self, side: Side, mptcp: &Mib, tcp: &Mib) -> Joined {
        let of = |mib: &Mib, name| u64::try_from(mib.get(name)).unwrap_or(0);
        let (asked, joined) = match side {
            Side::Proxy => (of(mptcp, "MPJoinSynTx"), self.conduct.get("mp_join_ack_rx")),
            Side::Kernel => (of(mptcp, "MPJoinSynTx"), of(tcp, "MPJoinAckRx")),
            Side::Box => (self.conduct.get("mp_join_syn_tx"), of(mptcp, "MPJoinAckRx")),
            Side::Converter => {
                let far = self.far.as_ref();
                (
                    self.conduct.get("mp_join_syn_tx"),
                    far.map_or(0, |far| far.get("mp_join_ack_rx")),
                )
            }
        };
        Joined {
            asked,
            joined,
            bypassed: self.conduct.get("server_bypassed") > 0,
            keyless: side == Side::Box && mptcp.get("MPCapableFallbackACK") > 0,
        }
    }
}

fn far_end(family: Family, port: u16) -> Result<SocketAddr> {
    let addr = FAR_END[usize::from(family == Family::V6)].parse()?;
    Ok(SocketAddr::new(addr, port))
}

/// Waits until it has no connection left.
fn forgotten(lab: &Lab, flexcp: &FlexCp) -> Result<()> {
    let deadline = Instant::now() + FORGET;
    loop {
        let view = flexcp.show_connections()?;
        let left = view["connections"].as_array().map_or(0, Vec::len);
        if left == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "FlexCP still has {left} connections after {FORGET:?} in {}: {view}",
            lab.prefix()
        );
        thread::sleep(Duration::from_millis(50));
    }
}

const PORT: u16 = 5000;

/// Where the aggregation server listens.
const CONVERT: u16 = 7124;

const TIMEOUTS: &str = "[timeouts]\nlinger = \"600ms\"\nhalf_open = \"3s\"\nrejoin = \"5s\"\n\n";

/// Without progress.
pub(super) const PATIENCE: Duration = Duration::from_secs(12);

/// How long after the end of a transfer a connection may be known.
const FORGET: Duration = Duration::from_secs(15);
