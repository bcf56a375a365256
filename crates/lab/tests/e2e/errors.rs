//! ICMPv6 errors about what FlexCP sends from addresses of its host: the offload's programs bring them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{End, Expect, Families, Family, Lab, daemon};
use libtest_mimic::Trial;

use crate::rig::{PORT, Rig, short, with};

crate::cases!("errors":
    unreachable_server_is_told_at_once,
    smaller_mtu_behind_a_named_server,
);

/// Where the offload is off they stay with the kernel.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    if daemon::offload_is_off() {
        return vec![];
    }
    cases()
}

fn by_socks5(lab: Lab, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let listen = [proxy(&lab).to_string()];
    let service = daemon::explicit("socks5", &listen, &["fd09::/16"]);
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

fn proxy(lab: &Lab) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, Family::V6), 1080)
}

/// The call to the server is answered by an error: the client hears of it by the code for it, and not when the call has timed out.
fn unreachable_server_is_told_at_once() -> Result<()> {
    let lab = Lab::builder().families(Families::V6).build()?;
    by_socks5(lab, |rig| {
        let server = rig.lab.server_addr(1, Family::V6).to_string();
        for (why, code) in [("port-unreachable", 5), ("addr-unreachable", 4)] {
            rig.lab.server(1).nft(&format!(
                "table inet mute {{ chain input {{ type filter hook input priority 0; \
                 tcp dport 5001 reject with icmpv6 type {why}; }}; }}"
            ))?;
            for client in [Client::mptcp, Client::tcp] {
                let began = Instant::now();
                let client = client(proxy(&rig.lab)).socks5(&server, PORT + 1);
                let told = format!("{:?}", rig.attempt(&client, &Job::down(1000))?);
                ensure!(
                    told.contains(&format!("[5, 0], [5, {code}, 0, 1]")),
                    "{why}: {told}"
                );
                let took = began.elapsed();
                ensure!(took < Duration::from_secs(5), "{why}: told after {took:?}");
            }
            rig.lab.server(1).nft("delete table inet mute")?;
        }
        Ok(Expect::clean()
            .between(End::Client, "MPRstTx", 0..=4)
            .own("plain_syn", "a client does without MPTCP"))
    })
}

/// An address of the second server's is behind the first one, and the way there takes 1,300 bytes, whatever both ends say.
fn lead_beyond(lab: &Lab) -> Result<()> {
    let (router, end) = (lab.server(1), lab.server(2));
    router.sysctl(&[("net.ipv6.conf.all.forwarding", "1")])?;
    let veth = format!(
        "link add narrow type veth peer name wide netns {}",
        end.name()
    );
    router.ip(&veth)?;
    router.ip("addr add fd09:ff::1/64 dev narrow nodad")?;
    router.ip("link set narrow up")?;
    end.ip("addr add fd09:ff::2/64 dev wide nodad")?;
    end.ip("link set wide up")?;
    router.ip("-6 route add fd09:ff::2/128 dev narrow mtu lock 1300")?;
    let by = lab.server_addr(1, Family::V6);
    lab.proxy()
        .ip(&format!("-6 route add fd09:ff::/64 via {by}"))?;
    Ok(())
}

/// The way to the server leads over a router whose next link takes 1,300 bytes: uploads get through all the same.
fn smaller_mtu_behind_a_named_server() -> Result<()> {
    let lab = Lab::builder().families(Families::V6).servers(2).build()?;
    lead_beyond(&lab)?;
    by_socks5(lab, |rig| {
        let far = Server::start(rig.lab.server(2), ServeOptions::tcp(PORT))?;
        for client in [Client::mptcp, Client::tcp] {
            let client = client(proxy(&rig.lab)).socks5("fd09:ff::2", PORT);
            rig.run_client(&client, &Job::up(3_000_000))?;
        }
        ensure!(far.accepted() == 2);
        let lowered = rig.counter("path_mtu_lowered")? + rig.counter("icmp_translated")?;
        ensure!(lowered > 0, "nobody has heard of the MTU");
        Ok(short()
            .disturbed("packets are too big for the way")
            .own("path_mtu_lowered", "the way takes less")
            .own("plain_syn", "a client does without MPTCP"))
    })
}
