//! A box that chooses between aggregation servers by measurement: two of them at the far end of its uplinks, one address each, and what
//! each sends is shaped on its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Background, Beyond, Expect, Family, FlexCp, Lab};
use serde_json::Value;

use crate::aggregation::{PORT, Rig, boxed_with, lab_of};
use crate::reads;
use crate::rig::until;

crate::cases!("location":
    faster_server_is_used_and_left_when_it_gets_slow,
    without_the_key_nobody_is_answered,
);

/// The servers, in the order of the box's configuration.
const SERVERS: [(&str, &str); 2] = [("one", "10.200.0.1"), ("two", "10.200.0.2")];
const CONVERT: u16 = 7124;
const PROBE: u16 = 7125;
const INTERVAL: Duration = Duration::from_secs(10);
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The far end, which is both servers.
struct Far {
    beyond: Beyond,
    flexcp: FlexCp,
}

impl Far {
    fn build(lab: &Lab) -> Result<Self> {
        let beyond = Beyond::build(lab)?;
        let (proxy, client) = (lab.proxy(), lab.client());
        let via = |link| lab.client_addr(link, Family::V4);
        client.ip("addr add 10.200.0.2/32 dev lo")?;
        proxy.ip(&format!("route add 10.200.0.2 via {}", via(1)))?;
        for device in ["a1", "a2"] {
            client.tc(&format!(
                "qdisc replace dev {device} root handle 1: htb default 30"
            ))?;
            client.tc(&format!(
                "class add dev {device} parent 1: classid 1:30 htb rate 1gbit"
            ))?;
            for (number, (_, addr)) in (1..).zip(SERVERS) {
                let _: u8 = number;
                client.tc(&format!(
                    "class add dev {device} parent 1: classid 1:{number} htb rate 8mbit"
                ))?;
                client.tc(&format!(
                    "qdisc add dev {device} parent 1:{number} pfifo limit 200"
                ))?;
                client.tc(&format!(
                    "filter add dev {device} parent 1: protocol ip u32 match ip src {addr}/32 flowid 1:{number}"
                ))?;
            }
        }
        let listen = SERVERS.map(|(_, addr)| format!("{addr}:{CONVERT}"));
        let probe = SERVERS.map(|(_, addr)| format!("{addr}:{PROBE}"));
        let services = format!(
            "[responder]\nlisten = {probe:?}\nkey_file = {:?}\ncontent = [\"10.77.0.0/16\"]\n\n\
             [[service]]\nname = \"convert\"\nmode = \"convert\"\nlisten = {listen:?}\nallow = {:?}\n",
            key_file(lab, "far", KEY)?,
            Beyond::NETWORKS,
        );
        let flexcp = FlexCp::start_at_far_end(lab, &services)?;
        Ok(Self { beyond, flexcp })
    }

    /// What this server sends over each uplink is so fast from here on.
    fn shape(lab: &Lab, server: usize, mbit: u32) -> Result<()> {
        for device in ["a1", "a2"] {
            let number = server + 1;
            lab.client().tc(&format!(
                "class change dev {device} parent 1: classid 1:{number} htb rate {mbit}mbit"
            ))?;
        }
        Ok(())
    }
}

fn key_file(lab: &Lab, name: &str, key: &str) -> Result<PathBuf> {
    let file = lab.dir().join(format!("{name}.key"));
    fs::write(&file, key).with_context(|| format!("writing {file:?}"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

fn service(key: &std::path::Path) -> String {
    let servers = SERVERS.map(|(name, addr)| {
        format!(
            "{{ address = \"{addr}:{CONVERT}\", mode = \"convert\", name = {name:?}, \
             probe = \"{addr}:{PROBE}\", key_file = {key:?} }}"
        )
    });
    let content = Beyond::socket(Family::V4, PORT);
    format!(
        "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
         destinations = {:?}\nuplinks = [\"a1\", \"a2\"]\nservers = [{}]\nchoose = \"throughput\"\n\
         content = \"{content}\"\nprobe_interval = \"{}s\"\nprobe_bytes = \"4GB\"\n",
        Beyond::NETWORKS,
        servers.join(", "),
        INTERVAL.as_secs(),
    )
}

/// A lab of a box that has this key.
fn with_key(key: &str, case: impl FnOnce(&Rig, &Far) -> Result<Expect>) -> Result<()> {
    let lab = lab_of(Family::V4, 100)?;
    let far = Far::build(&lab)?;
    let service = service(&key_file(&lab, "box", key)?);
    boxed_with(lab, &service, |rig| case(rig, &far))
        .with_context(|| format!("at the far end:\n{}", far.flexcp.log()))
}

fn run(rig: &Rig, job: &Job) -> Result<()> {
    let client = Client::tcp(Beyond::socket(Family::V4, PORT));
    let report = client.run_in(rig.lab.server(1), job)?;
    report.ok().with_context(|| format!("{job:?}"))?;
    Ok(())
}

/// The box's servers, in the order in which they are asked.
fn servers(rig: &Rig) -> Result<Vec<Value>> {
    let told = rig.flexcp.show_json("servers")?;
    let servers = told["boxes"][0]["servers"].as_array();
    Ok(servers.context("no servers")?.clone())
}

/// Waits until this is so, and says how long that took.
fn within(
    most: Duration,
    what: &str,
    rig: &Rig,
    so: impl Fn(&[Value]) -> bool,
) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let now = servers(rig)?;
        if so(&now) {
            return Ok(begun.elapsed());
        }
        if begun.elapsed() > most {
            bail!(
                "{what}: not within {most:?}:\n{}",
                rig.flexcp.show("servers")?
            );
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn is_first(name: &'static str) -> impl Fn(&[Value]) -> bool {
    move |servers| servers[0]["name"] == name
}

/// Connections are opened, and one of them goes by the first server.
fn goes_by(rig: &Rig, name: &'static str) -> Result<()> {
    thread::scope(|scope| {
        let transfer = scope.spawn(|| run(rig, &Job::down(2_000_000)));
        let seen = within(Duration::from_secs(2), "a connection", rig, |servers| {
            let of = |server: &Value| server["connections"].as_u64();
            let (first, second) = (of(&servers[0]), of(&servers[1]));
            servers[0]["name"] == name && first > Some(0) && first > second
        });
        transfer.join().expect("a client does not panic")?;
        seen.map(drop)
    })
}

fn quiet() -> Expect {
    crate::aggregation::quiet().disturbed("probes fill the queue of a slow link")
}

fn faster_server_is_used_and_left_when_it_gets_slow() -> Result<()> {
    with_key(KEY, |rig, far| {
        let _content = Server::start(far.beyond.namespace(), ServeOptions::tcp(PORT))?;
        let events = rig.flexcp.asking(&["events", "--json"]);
        let events = Background::spawn(events, rig.lab.dir(), "events")?;
        until("it listens", || Ok(events.stdout().contains("listening")))?;
        Far::shape(&rig.lab, 1, 20)?;
        ensure!(is_first("one")(&servers(rig)?), "measured already");
        goes_by(rig, "one")?;
        let took = within(2 * INTERVAL, "the faster one", rig, is_first("two"))?;
        eprintln!("the faster one after {took:?}");
        goes_by(rig, "two")?;
        let told = rig.flexcp.show("servers")?;
        ensure!(told.contains("home chooses by throughput: two: "), "{told}");
        let first = &servers(rig)?[0];
        let rate = first["throughput"].as_u64().context("no rate")?;
        ensure!(
            (25_000_000..55_000_000).contains(&rate),
            "{rate} of 40 Mbit/s: {told}"
        );
        ensure!(
            first["probing"] == "answers" && first["own_rtt_us"].is_u64(),
            "{first}"
        );
        Far::shape(&rig.lab, 1, 3)?;
        let took = within(
            2 * INTERVAL,
            "the one that is faster by now",
            rig,
            is_first("one"),
        )?;
        eprintln!("the other one after {took:?}");
        goes_by(rig, "one")?;
        ensure!(
            rig.flexcp.log().contains("box home: by one: "),
            "no word in the log"
        );
        let told = reads::told(&events)?;
        let switches = told
            .iter()
            .filter(|event| event["event"] == "server_switched");
        let switches: Vec<_> = switches
            .filter_map(|event| {
                Some((
                    event["from"]["name"].as_str()?,
                    event["to"]["name"].as_str()?,
                    event,
                ))
            })
            .collect();
        let [("one", "two", first), ("two", "one", second)] = switches[..] else {
            bail!("{told:?}");
        };
        ensure!(
            first["service"] == "home" && first["to"]["address"] == "10.200.0.2:7124",
            "{first}"
        );
        let reason = second["reason"].as_str();
        ensure!(
            reason.is_some_and(|reason| reason.starts_with("one: ")),
            "{second}"
        );
        Ok(quiet())
    })
}

fn without_the_key_nobody_is_answered() -> Result<()> {
    with_key("another key of sufficient length", |rig, far| {
        let _content = Server::start(far.beyond.namespace(), ServeOptions::tcp(PORT))?;
        goes_by(rig, "one")?;
        let silent = |servers: &[Value]| {
            let is_silent =
                |server: &Value| server["probing"] == "silent" && server["reachable"] == true;
            servers.iter().all(is_silent)
        };
        within(2 * INTERVAL, "both are known by handshakes", rig, silent)?;
        let responder = far.flexcp.show_json("servers")?["responder"].clone();
        ensure!(responder["sent"] == 0, "{responder}");
        ensure!(
            responder["refusals"]["malformed"].as_u64() > Some(0),
            "{responder}"
        );
        let told = far.flexcp.show("servers")?;
        ensure!(told.contains(" malformed), 0 legs refused"), "{told}");
        let rtt = &servers(rig)?[0]["uplinks"][0]["rtt_us"];
        ensure!(rtt.is_u64(), "{rtt}");
        Ok(quiet())
    })
}
