//! A box that chooses the nearest aggregation server: one is 40 ms further away than the other, and the configuration has it first.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Family, FlexCp, Graph, LinkEnd};
use serde_json::Value;

crate::cases!("nearest":
    nearest_server_is_used,
    nearest_server_is_used_by_each_worker_ipv6,
);

/// The servers in the order of the configuration, with the delay of each way.
const SERVERS: [(&str, &str); 2] = [("far", "delay=25ms"), ("near", "delay=5ms")];
const CONVERT: u16 = 7124;
const PROBE: u16 = 7125;
const CONTENT: u16 = 5000;
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A box with one uplink, both servers behind it, and a content server behind both.
struct Scene {
    box_: FlexCp,
    servers: Vec<FlexCp>,
    _content: Server,
    content: SocketAddr,
    graph: Graph,
}

/// An address of the scene: in this network, this host.
fn addr(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 50, net, host].into(),
        Family::V6 => [0xfd50, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
    }
}

impl Scene {
    fn build(family: Family, workers: u8) -> Result<Self> {
        let mut graph = Graph::build(&["lan", "box", "isp", "far", "near", "content"])?;
        lay_out(&mut graph, family)?;
        let content = SocketAddr::new(addr(family, 9, 1), CONTENT);
        let key = graph.dir().join("probe.key");
        fs::write(&key, KEY)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let mut servers = vec![];
        for ((name, _), number) in SERVERS.into_iter().zip(1..) {
            let [listen, probe] =
                [CONVERT, PROBE].map(|port| SocketAddr::new(addr(family, 8, number), port));
            let allow = content.ip();
            let services = format!(
                "[responder]\nlisten = [\"{probe}\"]\nkey_file = {key:?}\ncontent = [\"{allow}\"]\n\n\
                 [[service]]\nname = \"convert\"\nmode = \"convert\"\nlisten = [\"{listen}\"]\nallow = [\"{allow}\"]\n"
            );
            let host = graph.host(name)?;
            servers.push(FlexCp::start_on(
                host,
                (graph.dir(), name),
                ("", &services),
            )?);
        }
        let services = service(family, content, &key);
        let workers = format!("workers = {workers}");
        let place = (graph.dir(), "box");
        Ok(Self {
            box_: FlexCp::start_on(graph.host("box")?, place, (&workers, &services))?,
            servers,
            _content: Server::start(graph.host("content")?, ServeOptions::tcp(CONTENT))?,
            content,
            graph,
        })
    }

    /// The box's servers, in the order in which they are asked.
    fn told(&self) -> Result<Vec<Value>> {
        let told = self.box_.show_json("servers")?;
        let servers = told["boxes"][0]["servers"].as_array();
        Ok(servers.context("no servers")?.clone())
    }

    /// So many connections that stay open, each after some bytes.
    fn hold(&self, count: usize) -> Result<()> {
        let job = Job::ping_pong(2, 10_000).pause_ms(1500);
        let reports =
            Client::tcp(self.content).run_many_in(self.graph.host("lan")?, count, &job)?;
        reports.iter().try_for_each(|report| report.ok().map(drop))
    }

    fn story(&self) -> String {
        let logs = self.servers.iter().chain(iter::once(&self.box_));
        logs.map(FlexCp::log).collect()
    }
}

fn lay_out(graph: &mut Graph, family: Family) -> Result<()> {
    let (flag, plen, host) = match family {
        Family::V4 => ("-4", 24, 32),
        Family::V6 => ("-6", 64, 128),
    };
    let on = |net, number| format!("{}/{plen}", addr(family, net, number));
    let whole = |net, number| format!("{}/{host}", addr(family, net, number));
    let via = |graph: &Graph, at: &str, to: &str, net, number| {
        let via = addr(family, net, number);
        let line = format!("{flag} route add {to} via {via}");
        graph.host(at)?.ip(&line).map(drop)
    };
    graph.cable([
        LinkEnd::new("lan", "eth0", &on(1, 2)),
        LinkEnd::new("box", "lan0", &on(1, 1)),
    ])?;
    graph.cable([
        LinkEnd::new("box", "dsl0", &on(2, 2)),
        LinkEnd::new("isp", "box", &on(2, 1)),
    ])?;
    via(graph, "lan", "default", 1, 1)?;
    via(graph, "box", "default", 2, 1)?;
    let content = whole(9, 1);
    graph
        .host("content")?
        .ip(&format!("addr add {content} dev lo"))?;
    for ((name, delay), number) in SERVERS.into_iter().zip(1..) {
        let (up, out) = (10 + number, 20 + number);
        graph.link(
            [
                LinkEnd::new("isp", name, &on(up, 1)),
                LinkEnd::new(name, "isp", &on(up, 2)),
            ],
            [delay, delay],
        )?;
        graph.cable([
            LinkEnd::new(name, "out", &on(out, 1)),
            LinkEnd::new("content", name, &on(out, 2)),
        ])?;
        let own = whole(8, number);
        graph.host(name)?.ip(&format!("addr add {own} dev lo"))?;
        via(graph, name, "default", up, 1)?;
        via(graph, name, &content, out, 2)?;
        via(graph, "isp", &own, up, 2)?;
        via(graph, "content", &own, out, 1)?;
    }
    Ok(())
}

fn service(family: Family, content: SocketAddr, key: &Path) -> String {
    let servers = SERVERS.into_iter().zip(1..).map(|((name, _), number)| {
        let [address, probe] =
            [CONVERT, PROBE].map(|port| SocketAddr::new(addr(family, 8, number), port));
        format!(
            "{{ address = \"{address}\", mode = \"convert\", name = {name:?}, probe = \"{probe}\", key_file = {key:?} }}"
        )
    });
    let servers: Vec<_> = servers.collect();
    format!(
        "[timeouts]\nlinger = \"1s\"\n\n[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"lan0\"]\n\
         destinations = [\"{}\"]\nuplinks = [\"dsl0\"]\nservers = [{}]\nchoose = \"latency\"\n\
         content = \"{content}\"\nprobe_interval = \"10s\"\n",
        content.ip(),
        servers.join(", "),
    )
}

/// Waits until the near server is the first, and both have answered probes.
fn nearest(scene: &Scene) -> Result<Vec<Value>> {
    let begun = Instant::now();
    loop {
        let servers = scene.told()?;
        let answers = |server: &Value| server["probing"] == "answers";
        if servers[0]["name"] == "near" && servers.iter().all(answers) {
            return Ok(servers);
        }
        if begun.elapsed() > Duration::from_secs(15) {
            bail!("far is in use: {}", scene.box_.show("servers")?);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn choose(family: Family, workers: u8) -> Result<()> {
    let scene = Scene::build(family, workers)?;
    let case = || {
        ensure!(scene.told()?[0]["name"] == "far", "measured already");
        scene.hold(1)?;
        let servers = nearest(&scene)?;
        let rtt = |at: usize| servers[at]["uplinks"][0]["rtt_us"].as_u64();
        // The delays of both ways, and what a busy machine adds.
        let (near, far) = (rtt(0).context("no RTT")?, rtt(1).context("no RTT")?);
        ensure!(near >= 10_000 && far >= 50_000 && near < far, "{servers:?}");
        ensure!(servers[0]["own_rtt_us"].is_u64(), "{servers:?}");
        let reason = scene.box_.show("servers")?;
        ensure!(
            reason.contains("home chooses by latency: near: "),
            "{reason}"
        );
        thread::scope(|scope| {
            let held = scope.spawn(|| scene.hold(8));
            let all_by_near = || {
                let servers = scene.told()?;
                let open = |at: usize| servers[at]["connections"].as_u64();
                Ok(open(0) >= Some(8) && open(1) == Some(0))
            };
            let seen = crate::rig::until("eight connections by near", all_by_near);
            held.join().expect("a client does not panic")?;
            seen
        })
    };
    case().with_context(|| scene.story())?;
    for flexcp in scene.servers.into_iter().chain([scene.box_]) {
        flexcp.terminate()?;
    }
    Ok(())
}

fn nearest_server_is_used() -> Result<()> {
    choose(Family::V4, 1)
}

fn nearest_server_is_used_by_each_worker_ipv6() -> Result<()> {
    choose(Family::V6, 2)
}
