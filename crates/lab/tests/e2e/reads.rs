//! What operators read of a running FlexCP: lists and events, while packets flow.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Job, Mode, ServeOptions};
use flexcp_lab::{Background, Direction, End, Expect, Family, Lab, SERVER_RESET, daemon};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{PORT, Rig, short, transparent, until, with};

crate::cases!("reads":
    lists_are_complete_while_connections_come_and_go,
    list_is_filtered,
    what_is_shown_is_shown_again,
    paths_are_told_by_access_with_what_is_measured,
    events_of_connections_are_told,
    events_that_nobody_reads_are_lost_and_counted,
);

fn lab() -> Result<Lab> {
    Lab::builder().build()
}

/// How often each client stands in a list.
fn clients(view: &Value) -> Result<BTreeMap<SocketAddr, usize>> {
    let mut clients = BTreeMap::new();
    for connection in view["connections"].as_array().context("no list")? {
        let client = connection["client"].as_str().context("no client")?;
        *clients.entry(client.parse()?).or_default() += 1;
    }
    Ok(clients)
}

/// Connections that stay, of which each list has to tell each once.
const STAY: usize = 600;

/// Exchanges of each of them, and the pause between two, in milliseconds.
const ROUNDS: u32 = 8;
const PAUSE: u64 = 700;

fn lists_are_complete_while_connections_come_and_go() -> Result<()> {
    transparent(lab()?, |rig| {
        let job = Job::ping_pong(ROUNDS, 500).pause_ms(PAUSE);
        let client = rig.client(Family::V4);
        let (lists, unread, stayed) = thread::scope(|scope| {
            let stay = scope.spawn(|| client.run_many_in(rig.lab.client(), STAY, &job));
            let lists = all_the_time(rig);
            let stayed = stay.join().expect("clients do not panic")?;
            let (lists, unread) = lists?;
            anyhow::Ok((lists, unread, stayed))
        })?;
        ensure!(lists.len() >= 5, "only {} lists", lists.len());
        for (number, list) in lists.iter().chain([&unread]).enumerate() {
            let told = clients(list).with_context(|| format!("list {number}"))?;
            let twice = told.iter().find(|(_, count)| **count > 1);
            ensure!(twice.is_none(), "list {number}: {twice:?} more than once");
            for report in &stayed {
                report.ok()?;
                let local = report.local.context("no address")?;
                let stands = told.contains_key(&local);
                ensure!(stands, "list {number} does not tell {local}");
            }
        }
        Ok(short())
    })
}

/// Lists while all that stay are there and others come and go; and one that is asked for before and not read until then.
fn all_the_time(rig: &Rig) -> Result<(Vec<Value>, Value)> {
    until("all that stay are there", || {
        let view = rig.flexcp.show_connections()?;
        Ok(clients(&view)?.len() >= STAY && rig.counter("mp_capable_ack_rx")? >= STAY as u64)
    })?;
    let mut slow = UnixStream::connect(rig.flexcp.socket())?;
    // Without chunks, and with the end of the connection for its own.
    slow.write_all(b"GET /v1/connections HTTP/1.0\r\n\r\n")?;
    let mut lists = vec![];
    let mut come_and_gone = 0;
    let began = Instant::now();
    // Well before those that stay have done their job.
    while began.elapsed() < Duration::from_millis(PAUSE * u64::from(ROUNDS - 4)) {
        for _ in 0..20 {
            rig.run(Family::V4, &Job::down(1000))?;
            come_and_gone += 1;
        }
        lists.push(rig.flexcp.show_connections()?);
    }
    ensure!(come_and_gone >= 100, "only {come_and_gone} came and went");
    let mut text = String::new();
    slow.read_to_string(&mut text)?;
    ensure!(
        text.len() > 250_000,
        "it fits into the socket: {}",
        text.len()
    );
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    ensure!(head.contains(" 200 OK"), "{head}");
    Ok((lists, serde_json::from_str(body)?))
}

fn list_is_filtered() -> Result<()> {
    transparent(lab()?, |rig| {
        let list = |filter: &[&str]| -> Result<Value> {
            let words = [&["show", "connections", "--json"], filter].concat();
            let output = flexcp_lab::output(&mut rig.flexcp.asking(&words))?;
            Ok(serde_json::from_slice(&output.stdout)?)
        };
        let count = |filter: &[&str]| Ok::<_, anyhow::Error>(clients(&list(filter)?)?.len());
        rig.run_while(Family::V4, &Job::hold(1500), || {
            until("the connection is there", || {
                Ok(count(&["--state", "translating"])? == 1)
            })?;
            rig.wait_for_a_join()?;
            let [first, second] =
                [1, 2].map(|link| rig.lab.client_addr(link, Family::V4).to_string());
            let server = rig.lab.server_socket(1, Family::V4, PORT).to_string();
            for (filter, expected) in [
                (vec!["--state", "plain,fallback"], 0),
                (vec!["--state", "plain", "--state", "translating"], 1),
                (vec!["--client", &first], 1),
                // The subflow that has joined.
                (vec!["--client", &second], 1),
                (vec!["--client", "10.77.0.0/16"], 0),
                (vec!["--server", &server, "--client", &first], 1),
                (vec!["--server", ":1"], 0),
            ] {
                let told = count(&filter)?;
                ensure!(told == expected, "{filter:?}: {told}");
            }
            let mut command = rig
                .flexcp
                .asking(&["show", "connections", "--service", "nobody"]);
            let refused = command.output()?;
            let said = String::from_utf8_lossy(&refused.stderr);
            ensure!(
                !refused.status.success() && said.contains("there is no service `nobody`"),
                "{said}"
            );
            Ok(())
        })?;
        Ok(Expect::clean())
    })
}

/// A line of JSON every time, in which the packets become more, until its reader goes.
fn what_is_shown_is_shown_again() -> Result<()> {
    transparent(lab()?, |rig| {
        let watch = |what| {
            let mut command = rig
                .flexcp
                .asking(&["show", what, "--json", "--watch", "0.1"]);
            command.stdout(Stdio::piped()).spawn()
        };
        let job = Job::ping_pong(40, 500).pause_ms(50);
        rig.run_while(Family::V4, &job, || {
            for what in ["stats", "status", "connections"] {
                let mut child = watch(what)?;
                let began = Instant::now();
                let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
                let mut packets = vec![];
                for line in lines.take(4) {
                    let shown: Value = serde_json::from_str(&line?)?;
                    ensure!(shown["version"] == 1, "{what}: {shown}");
                    packets.extend(shown["counters"]["packets_in"].as_u64());
                }
                let took = began.elapsed();
                ensure!(took >= Duration::from_millis(300), "{what}: 4 in {took:?}");
                ensure!(
                    what != "stats" || (packets.is_sorted() && packets[0] < packets[3]),
                    "{packets:?}"
                );
                let ended = child.wait()?;
                ensure!(ended.success(), "{what}: {ended} without a reader");
            }
            Ok(())
        })?;
        let refused = rig
            .flexcp
            .asking(&["show", "stats", "--watch", "0"])
            .output()?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure!(said.contains("seconds from 0.01 to 86400"), "{said}");
        Ok(Expect::clean())
    })
}

/// Both paths have a round trip, though one has carried nothing.
fn paths_are_told_by_access_with_what_is_measured() -> Result<()> {
    const NEAR: &str = "delay=5ms,rate=50mbit:200kb";
    const FAR: &str = "delay=40ms";
    let mut builder = Lab::builder();
    for (link, faults) in [(1, NEAR), (2, FAR)] {
        builder = builder
            .faults(link, Direction::Up, faults)
            .faults(link, Direction::Down, faults);
    }
    let lab = builder.build()?;
    let access = |name, link| {
        let client = lab.client_addr(link, Family::V4);
        format!("[[access]]\nname = \"{name}\"\nclients = [\"{client}/32\"]\n")
    };
    let config = access("near", 1) + &access("far", 2) + &daemon::transparent(&lab, &[]);
    with(lab, &config, ServeOptions::tcp(PORT), |rig| {
        let list = |filter: &[&str]| -> Result<Value> {
            let words = [&["show", "connections", "--json"], filter].concat();
            let output = flexcp_lab::output(&mut rig.flexcp.asking(&words))?;
            Ok(serde_json::from_slice(&output.stdout)?)
        };
        rig.run_while(Family::V4, &Job::down(10_000_000), || {
            rig.wait_for_a_join()?;
            thread::sleep(Duration::from_millis(700));
            let shown = list(&["--access", "far"])?;
            let subflows = shown["connections"][0]["subflows"].as_array();
            let subflows = subflows.with_context(|| format!("{shown}"))?;
            for (name, least_rtt, rates) in
                [("near", 10_000, 4e6..6.5e6), ("far", 80_000, 0.0..1.0)]
            {
                let mut of = subflows.iter().filter(|subflow| subflow["access"] == name);
                let path = of.next().with_context(|| format!("no {name}: {shown}"))?;
                let rtt = path["rtt_least_us"]
                    .as_u64()
                    .with_context(|| format!("{path}"))?;
                ensure!((least_rtt..least_rtt * 2).contains(&rtt), "{name}: {path}");
                let rate = path["delivery_rate"].as_f64().context("no rate")?;
                ensure!(rates.contains(&rate), "{name}: {path}");
            }
            let sums = rig.flexcp.show_json("accesses")?;
            let [near, far] = [0, 1].map(|at| &sums["accesses"][at]);
            ensure!(near["name"] == "near" && near["active"] == 1, "{sums}");
            ensure!(far["subflows"] == 1 && far["active"] == 0, "{sums}");
            ensure!(near["bytes_down"].as_u64() > Some(1_000_000), "{sums}");
            ensure!(far["rtt_us"].as_u64() >= Some(80_000), "{sums}");
            Ok(())
        })?;
        let mut nobody = rig
            .flexcp
            .asking(&["show", "connections", "--access", "5g"]);
        let said = nobody.output()?.stderr;
        let said = String::from_utf8_lossy(&said);
        ensure!(
            said.contains("there is no access `5g`; there are near, far"),
            "{said}"
        );
        Ok(Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// A `flexcp events` that listens already.
pub(crate) fn listening(rig: &Rig, name: &str, words: &[&str]) -> Result<Background> {
    let mut command = rig.flexcp.asking(&[&["events"], words].concat());
    command.env("RUST_BACKTRACE", "0");
    let listener = Background::spawn(command, rig.lab.dir(), name)?;
    if words.contains(&"--json") {
        until("it listens", || {
            Ok(listener.stdout().contains("\"listening\""))
        })?;
    }
    Ok(listener)
}

/// The events that it has told, but for the first line.
pub(crate) fn told(listener: &Background) -> Result<Vec<Value>> {
    let text = listener.stdout();
    let lines = text.lines().skip(1);
    lines
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

/// Waits for so many connections that have closed.
pub(crate) fn closed(listener: &Background, count: usize) -> Result<()> {
    until("all have closed", || {
        Ok(listener.stdout().matches("\"closed\"").count() >= count)
    })
}

fn events_of_connections_are_told() -> Result<()> {
    transparent(lab()?, |rig| {
        // That listens by the time of what is told to the other one.
        let people = listening(rig, "people", &[])?;
        let listener = listening(rig, "events", &["--json"])?;
        // It stays until its second subflow has joined.
        let hold = Job::hold(2000);
        let report = rig.run_while(Family::V4, &hold, || rig.wait_for_a_join())?;
        closed(&listener, 1)?;
        let abort = Job::new(Mode::ClientAbort, 1_000_000, 1_000_000_000);
        rig.run(Family::V4, &abort)?;
        closed(&listener, 2)?;
        let events = told(&listener)?;
        let client = report.local.context("no address")?.to_string();
        let of_first = |event: &&Value| event["client"] == client.as_str();
        let kinds = |first: bool| -> Vec<&str> {
            let those = events.iter().filter(|event| of_first(event) == first);
            those.filter_map(|event| event["event"].as_str()).collect()
        };
        ensure!(kinds(true) == ["opened", "joined", "closed"], "{events:?}");
        let second = kinds(false);
        ensure!(
            second.first() == Some(&"opened") && second.last() == Some(&"closed"),
            "{events:?}"
        );
        let causes: Vec<_> = events.iter().filter(|e| e["event"] == "closed").collect();
        ensure!(
            causes[0]["cause"] == "finished" && causes[1]["cause"] == "fast_close",
            "{events:?}"
        );
        let server = rig.lab.server_socket(1, Family::V4, PORT).to_string();
        let token = &events[0]["token"];
        for event in events.iter().filter(of_first) {
            ensure!(
                event["server"] == server.as_str()
                    && event["token"] == *token
                    && token.is_u64()
                    && event["service"] == "web",
                "{event}"
            );
        }
        let joined = &events[1]["subflow"]["client"];
        let second = rig.lab.client_addr(2, Family::V4).to_string();
        ensure!(
            joined
                .as_str()
                .is_some_and(|addr| addr.starts_with(&second)),
            "{joined}"
        );
        until("people are told, too", || {
            Ok(people.stdout().contains("closed: fast_close"))
        })?;
        ensure!(
            people.stdout().contains(" opened, transparent, token "),
            "{}",
            people.stdout()
        );
        Ok(short()
            .own(
                SERVER_RESET,
                "the client gives up, and FlexCP tells the server",
            )
            .own(
                "no_connection",
                "what is under way when a connection is aborted",
            )
            .own(
                "blind_reset",
                "what is under way when a connection is aborted",
            )
            .allow("MPFastcloseTx"))
    })
}

/// More than wait in a socket and a ring: each has two events at least.
const MANY: usize = 6000;

fn events_that_nobody_reads_are_lost_and_counted() -> Result<()> {
    transparent(lab()?, |rig| {
        let listener = listening(rig, "events", &["--json"])?;
        listener.signal(Signal::STOP)?;
        let client = rig.client(Family::V4);
        for _ in 0..MANY / 200 {
            let reports = client.run_many_in(rig.lab.client(), 200, &Job::down(100))?;
            reports
                .iter()
                .try_for_each(|report| report.ok().map(drop))?;
        }
        listener.signal(Signal::CONT)?;
        until("losses are told", || {
            Ok(listener.stdout().contains("\"lost\""))
        })?;
        let opened = rig.counter("connections_opened")?;
        // All is told, or counted as lost: of each connection that it opened and closed.
        until("all is told or counted", || {
            let events = told(&listener).unwrap_or_default();
            let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
            let lost = events.iter().filter_map(|event| event["count"].as_u64());
            let lost: u64 = lost.sum();
            let all = u64::try_from(of("opened") + of("closed"))? + lost;
            // Joins are among the lost.
            Ok(lost > 0 && all >= 2 * opened)
        })?;
        // What happens now is told again.
        let before = told(&listener)?.len();
        rig.run(Family::V4, &Job::down(100))?;
        until("it goes on", || Ok(told(&listener)?.len() >= before + 2))?;
        Ok(short())
    })
}
