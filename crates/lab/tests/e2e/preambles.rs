//! The rules of the wire where clients name their server, held against captures of both sides of FlexCP: nothing of what they say
//! before their stream comes to that, and behind it, and behind what they are answered, all is as in the other modes.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions};
use flexcp_lab::wirecheck::Preamble;
use flexcp_lab::{Cut, Direction, End, Expect, Families, Family, Lab, LabBuilder, RENEGED, daemon};

use crate::rig::{PORT, Rig, short, with};
use crate::wire::{Wire, captured};

crate::cases!("preambles":
    rules_hold_for_download_upload_and_both,
    rules_hold_for_clients_without_mptcp,
    rules_hold_over_ipv6_without_offloads,
    rules_hold_for_servers_that_speak_first,
    rules_hold_when_a_path_is_cut,
    rules_hold_under_loss,
    rules_hold_for_many_at_once,
    preamble_that_is_not_expected_is_noticed,
);

const LISTEN: u16 = 1080;
const ALLOW: &[&str] = &["10.9.0.0/16", "fd09::/16"];
/// Slow enough for the captures to keep up.
const RATE: u32 = 100;

/// How a client names its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    ConvertInSyn,
    ConvertLate,
    Socks5,
}

const WAYS: [Way; 3] = [Way::ConvertInSyn, Way::ConvertLate, Way::Socks5];

impl Way {
    const fn preamble(self) -> Preamble {
        match self {
            Self::ConvertInSyn | Self::ConvertLate => Preamble::Convert,
            Self::Socks5 => Preamble::Socks5,
        }
    }

    fn through(self, rig: &Rig, client: fn(SocketAddr) -> Client, family: Family) -> Client {
        let server = rig.lab.server_socket(1, family, PORT);
        let client = client(listen(&rig.lab, family));
        match self {
            Self::ConvertInSyn => client.convert(server),
            Self::ConvertLate => client.convert_late(server),
            Self::Socks5 => client.socks5(&server.ip().to_string(), PORT),
        }
    }

    /// Does one case by a service of its kind.
    fn serve(
        self,
        lab: Lab,
        family: Family,
        server: ServeOptions,
        case: impl FnOnce(&Rig, &Wire) -> Result<Expect>,
    ) -> Result<()> {
        let listen = listen(&lab, family);
        let mode = match self.preamble() {
            Preamble::Convert | Preamble::Early => "convert",
            Preamble::Socks5 => "socks5",
        };
        let service = daemon::explicit(mode, &[listen.to_string()], ALLOW);
        let wire = if lab.families() == Families::V6 {
            Wire::without_offloads()
        } else {
            Wire::default()
        };
        let wire = wire.explicit(listen, self.preamble());
        with(lab, &service, server, |rig| case(rig, &wire))
    }
}

fn listen(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

/// Clients may send data in a SYN without having asked for a cookie.
fn lab() -> LabBuilder {
    let builder = Lab::builder().rate_mbit(1, RATE).rate_mbit(2, RATE);
    prepared(builder)
}

fn prepared(builder: LabBuilder) -> LabBuilder {
    builder
        .client_sysctl("net.ipv4.tcp_fastopen", "5")
        .client_sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")
}

fn tcp() -> ServeOptions {
    ServeOptions::tcp(PORT)
}

/// Two subflows.
fn joined() -> Expect {
    Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1)
}

fn rules_hold_for_download_upload_and_both() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, Family::V4, tcp(), |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V4);
            for job in [
                Job::down(4_000_000),
                Job::up(4_000_000),
                Job::both(2_000_000),
            ] {
                wire.judged(&rig.lab, || rig.run_client(&client, &job).map(drop))?
                    .ok()?;
            }
            Ok(joined())
        })?;
    }
    Ok(())
}

fn rules_hold_for_clients_without_mptcp() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, Family::V4, tcp(), |rig, wire| {
            let client = way.through(rig, Client::tcp, Family::V4);
            let run = || rig.run_client(&client, &Job::both(1_000_000)).map(drop);
            wire.judged(&rig.lab, run)?.ok()?;
            Ok(Expect::clean().own("plain_syn", "the client does without MPTCP"))
        })?;
    }
    Ok(())
}

/// Lengths and checksums are judged, too.
fn rules_hold_over_ipv6_without_offloads() -> Result<()> {
    for way in WAYS {
        let lab = lab().families(Families::V6).offloads(false).build()?;
        way.serve(lab, Family::V6, tcp(), |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V6);
            let run = || rig.run_client(&client, &Job::both(2_000_000)).map(drop);
            wire.judged(&rig.lab, run)?.ok()?;
            Ok(joined())
        })?;
    }
    Ok(())
}

fn rules_hold_for_servers_that_speak_first() -> Result<()> {
    const BANNER: u64 = 5000;
    for way in WAYS {
        let server = tcp().banner(BANNER);
        way.serve(lab().build()?, Family::V4, server, |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V4).banner(BANNER);
            let run = || rig.run_client(&client, &Job::both(100_000)).map(drop);
            wire.judged(&rig.lab, run)?.ok()?;
            Ok(short())
        })?;
    }
    Ok(())
}

fn rules_hold_when_a_path_is_cut() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, Family::V4, tcp(), |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V4);
            let cut = || {
                thread::scope(|scope| {
                    let run = scope.spawn(|| rig.run_client(&client, &Job::down(6_000_000)));
                    rig.wait_for_a_join()?;
                    thread::sleep(Duration::from_millis(150));
                    rig.lab.cut(1, Cut::Silent)?;
                    run.join().expect("a client does not panic").map(drop)
                })
            };
            wire.judged(&rig.lab, cut)?.ok()?;
            let hits =
                rig.lab.fault_hits(1, Direction::Up)? + rig.lab.fault_hits(1, Direction::Down)?;
            ensure!(hits > 0, "the cut hit nothing");
            rig.lab.restore(1)?;
            Ok(joined().disturbed("a link is cut").allow_all(RENEGED))
        })?;
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
        way.serve(prepared(links).build()?, Family::V4, tcp(), |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V4);
            let run = || rig.run_client(&client, &Job::both(2_000_000)).map(drop);
            wire.judged(&rig.lab, run)?.ok()?;
            Ok(Expect::clean()
                .disturbed("the links lose packets")
                .allow_all(RENEGED))
        })?;
    }
    Ok(())
}

fn rules_hold_for_many_at_once() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, Family::V4, tcp(), |rig, wire| {
            let client = way.through(rig, Client::mptcp, Family::V4);
            let run = || {
                let reports = client.run_many_in(rig.lab.client(), 20, &Job::both(100_000))?;
                reports.iter().try_for_each(|report| report.ok().map(drop))
            };
            wire.judged(&rig.lab, run)?.ok()?;
            Ok(short())
        })?;
    }
    Ok(())
}

/// A checker that knows of no preamble takes it for a part of the stream.
fn preamble_that_is_not_expected_is_noticed() -> Result<()> {
    for way in WAYS {
        way.serve(lab().build()?, Family::V4, tcp(), |rig, _| {
            let client = way.through(rig, Client::mptcp, Family::V4);
            let files = captured(&rig.lab, || {
                rig.run_client(&client, &Job::down(100_000)).map(drop)
            })?;
            let findings = Wire::default().check(files)?;
            ensure!(findings.violations > 0, "nothing was found: {findings}");
            Ok(short())
        })?;
    }
    Ok(())
}
