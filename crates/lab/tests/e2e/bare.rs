//! A box whose only uplink is a link without Ethernet headers: bytes both ways, and what the kernel's programs carry of them.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Job, ServeOptions};
use flexcp_lab::{Background, Families, Family, Lab, Namespace, Starvation, output, text};

use crate::aggregation::{PORT, Rig, SERVICE, boxed_with, quiet};
use crate::features::cases_for;
use crate::offload::in_kernel;
use crate::rig::{until, until_after};

crate::cases!("bare":
    tun_uplink,
    tun_uplink_ipv6,
    tun_uplink_that_takes_segments_whole,
    tun_uplink_that_takes_segments_whole_ipv6,
);

cases_for!("bare":
    Ppp: ppp_uplink,
    Ppp: ppp_uplink_ipv6,
    WireGuard: wireguard_uplink,
    WireGuard: wireguard_uplink_ipv6,
);

/// Both ends of a point-to-point link, two TUN devices of the same name, and what copies packets from one to the other: with the
/// virtio-net header that says what several segments are, or one segment at a time.
const WIRE: &str = "
import ctypes, fcntl, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
device, whole, names = sys.argv[1].encode(), sys.argv[2] == 'whole', sys.argv[3:]
ends = []
for name in names:
    with open('/run/netns/' + name) as namespace:
        assert libc.setns(namespace.fileno(), 0x40000000) == 0
    end = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(end, 0x400454ca, struct.pack('16sH22x', device, 0x5001 if whole else 0x1001))
    if whole:
        fcntl.ioctl(end, 0x400454d0, 0x7)
    ends.append(end)
print('there', flush=True)
while True:
    for end in select.select(ends, [], [])[0]:
        packet = os.read(end, 70000)
        try:
            os.write(ends[ends[0] == end], packet)
        except OSError:
            pass
";

/// What a TUN device takes of packets of several segments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segments {
    /// They are cut before it.
    Single,
    /// It takes them as they are, and checksums that are still to be completed.
    Whole,
}

/// Makes a link of TUN devices called `device`, between the box and the far end; it is there as long as the program runs.
pub(crate) fn tun_link(lab: &Lab, device: &str, segments: Segments) -> Result<Background> {
    let whole = match segments {
        Segments::Single => "single",
        Segments::Whole => "whole",
    };
    let mut command = Command::new("python3");
    command.args(["-c", WIRE, device, whole]);
    command.args([lab.proxy().name(), lab.client().name()]);
    let wire = Background::spawn(command, lab.dir(), "wire")?;
    let there = until("the link is there", || Ok(wire.stdout().contains("there")));
    there.with_context(|| wire.stderr())?;
    Ok(wire)
}

/// The box's address on the link, and the far end's.
pub(crate) const fn ends(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["10.64.0.5", "10.64.0.1"],
        Family::V6 => ["fd64::5", "fd64::1"],
    }
}

/// A lab whose access link the box makes no use of by itself: its uplink is another device.
fn lab(family: Family) -> Result<Lab> {
    let families = match family {
        Family::V4 => Families::V4,
        Family::V6 => Families::V6,
    };
    let lab = Lab::builder().access_links(1).families(families).build()?;
    lab.turn_around()?;
    Ok(lab)
}

/// Gives both ends of the link their addresses and a rate, and the box its default route.
fn set_up(lab: &Lab, device: &str, family: Family, mbit: u32) -> Result<()> {
    let [near, far] = ends(family);
    let flag = match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    for (end, own, peer) in [(lab.proxy(), near, far), (lab.client(), far, near)] {
        // Of a device that is down, IPv6 routes to no peer.
        end.ip(&format!("link set {device} up txqueuelen 1000"))?;
        let nodad = if family == Family::V6 { "nodad" } else { "" };
        end.ip(&format!(
            "{flag} addr replace {own} peer {peer} dev {device} {nodad}"
        ))?;
        limit(end, device, mbit)?;
    }
    let route = format!("{flag} route add default dev {device} metric 50");
    lab.proxy().ip(&route)?;
    Ok(())
}

/// What is beyond the rate waits before the device, long enough that nothing is lost: what repairs losses is the translator's.
fn limit(end: &Namespace, device: &str, mbit: u32) -> Result<()> {
    end.tc(&format!(
        "qdisc replace dev {device} root tbf rate {mbit}mbit burst 100kb latency 500ms"
    ))?;
    Ok(())
}

/// A download and an upload over that uplink alone, which the kernel has to carry most of.
fn both_ways(lab: Lab, device: &str, bytes: u64) -> Result<()> {
    let service = SERVICE.replace("\"a1\", \"a2\"", &format!("{device:?}"));
    ensure!(service.contains(device), "{service}");
    boxed_with(lab, &service, |rig| {
        let starvation = Starvation::measure()?;
        let server = rig.serve(ServeOptions::mptcp(PORT))?;
        for (way, job) in [Job::down(bytes), Job::up(bytes)].iter().enumerate() {
            let before = passed(rig, device)?;
            in_kernel(&rig.flexcp, &starvation, || rig.run(job).map(drop))
                .with_context(|| format!("{job:?}"))?;
            let over = passed(rig, device)?[way] - before[way];
            ensure!(over > bytes, "{over} bytes over {device}: {job:?}");
        }
        rig.ensure(&[
            ("mp_capable_synack_rx", 2),
            ("fallback_handshake", 0),
            ("fallback_established", 0),
        ])?;
        ensure!(server.accepted() == 2, "{}", server.accepted());
        Ok(quiet())
    })
}

/// Bytes that have come in by a device of the box, and that have left by it.
fn passed(rig: &Rig, device: &str) -> Result<[u64; 2]> {
    let table = rig.lab.proxy().proc_net("dev")?;
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, counts) = lines
        .find(|(name, _)| name.trim() == device)
        .context("no such device")?;
    let counts: Vec<u64> = counts
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok([counts[0], counts[8]])
}

fn over_tun(family: Family, segments: Segments) -> Result<()> {
    const DEVICE: &str = "tun0";
    let lab = lab(family)?;
    let wire = tun_link(&lab, DEVICE, segments)?;
    // Of several segments in one piece there are fewer packets, and those before a connection is installed weigh more.
    let (mbit, bytes) = match segments {
        Segments::Single => (100, 15_000_000),
        Segments::Whole => (200, 40_000_000),
    };
    set_up(&lab, DEVICE, family, mbit)?;
    both_ways(lab, DEVICE, bytes)?;
    drop(wire);
    Ok(())
}

fn tun_uplink() -> Result<()> {
    over_tun(Family::V4, Segments::Single)
}

fn tun_uplink_ipv6() -> Result<()> {
    over_tun(Family::V6, Segments::Single)
}

fn tun_uplink_that_takes_segments_whole() -> Result<()> {
    over_tun(Family::V4, Segments::Whole)
}

fn tun_uplink_that_takes_segments_whole_ipv6() -> Result<()> {
    over_tun(Family::V6, Segments::Whole)
}

/// What LCP, IPCP and IPV6CP may take on an emulated machine.
const NEGOTIATED: Duration = Duration::from_secs(40);

/// The two ends of a session of PPPoE over the access link, which the kernel's `pppoe` carries: pppd at
/// either end negotiates the link and the addresses. What finds the other end is left out, both are told of it.
fn ppp_link(lab: &Lab, device: &str) -> Result<[Background; 2]> {
    let [near, far] = ends(Family::V4);
    let mut running = vec![];
    for (end, other, name, addresses) in [
        (
            lab.proxy(),
            lab.client(),
            "pppd-near",
            format!("{near}:{far}"),
        ),
        (
            lab.client(),
            lab.proxy(),
            "pppd-far",
            format!("{far}:{near}"),
        ),
    ] {
        let mut command = end.command("pppd");
        command.args(["plugin", "pppoe.so", "rp_pppoe_sess"]);
        command.args([format!("7:{}", ethernet_address(other)?), "nic-a1".into()]);
        command.args([
            "ifname", device, "+ipv6", "noauth", "nodetach", "logfd", "2",
        ]);
        command.arg(addresses);
        running.push(Background::spawn(command, lab.dir(), name)?);
    }
    let said = || running.iter().map(Background::stderr).collect::<String>();
    let up = until_after(NEGOTIATED, "both ends are up", || {
        Ok(running.iter().all(|one| {
            let log = one.stderr();
            log.contains("remote IP address") && log.contains("remote LL address")
        }))
    });
    up.with_context(said)?;
    Ok(running.try_into().expect("two ends"))
}

fn ethernet_address(end: &Namespace) -> Result<String> {
    let told = end.ip("-brief link show dev a1")?;
    let address = told.split_whitespace().find(|word| word.len() == 17);
    Ok(address.context("no address")?.to_owned())
}

/// As fast as an emulated machine is.
fn over_ppp(family: Family) -> Result<()> {
    const DEVICE: &str = "ppp0";
    let lab = lab(family)?;
    let ends = ppp_link(&lab, DEVICE)?;
    set_up(&lab, DEVICE, family, 10)?;
    both_ways(lab, DEVICE, 6_000_000)?;
    drop(ends);
    Ok(())
}

fn ppp_uplink() -> Result<()> {
    over_ppp(Family::V4)
}

fn ppp_uplink_ipv6() -> Result<()> {
    over_ppp(Family::V6)
}

/// A tunnel of WireGuard over the access link.
fn wireguard_link(lab: &Lab, device: &str, family: Family) -> Result<()> {
    let key = || -> Result<[String; 2]> {
        let private = text(Command::new("wg").arg("genkey"))?.trim().to_owned();
        let mut public = Command::new("sh");
        public.args(["-ec", "echo \"$1\" | wg pubkey", "key", &private]);
        let public = text(&mut public)?.trim().to_owned();
        Ok([private, public])
    };
    let [near, far] = [key()?, key()?];
    let [at_near, at_far] = [lab.proxy_addr(1, family), lab.client_addr(1, family)]
        .map(|addr| SocketAddr::new(addr, 51820).to_string());
    for (end, [own, _], [_, other], at) in [
        (lab.proxy(), &near, &far, at_far),
        (lab.client(), &far, &near, at_near),
    ] {
        let file = lab.dir().join(format!("{}.key", end.name()));
        std::fs::write(&file, own)?;
        end.ip(&format!("link add {device} type wireguard"))?;
        let mut set = end.command("wg");
        set.args(["set", device, "listen-port", "51820", "private-key"]);
        set.arg(&file).args(["peer", other, "endpoint", &at]);
        output(set.args(["allowed-ips", "0.0.0.0/0,::/0"]))?;
    }
    Ok(())
}

fn over_wireguard(family: Family) -> Result<()> {
    const DEVICE: &str = "wg0";
    let lab = lab(family)?;
    wireguard_link(&lab, DEVICE, family)?;
    set_up(&lab, DEVICE, family, 10)?;
    both_ways(lab, DEVICE, 6_000_000)
}

fn wireguard_uplink() -> Result<()> {
    over_wireguard(Family::V4)
}

fn wireguard_uplink_ipv6() -> Result<()> {
    over_wireguard(Family::V6)
}
