//! Whole exchanges over a socket in a temporary directory, with workers that are played.

mod answered;
mod document;
mod events;
mod listings;
mod orders;
mod scrape;
mod socket;
mod tcp;

mod ordering;
mod setting;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flexcp_io::Waker;
use flexcp_translator::{
    AccessId, ConnectionState, ConnectionView, Counters, Drops, Gauges, Order, PathQuality,
    ServiceId, SubflowView, Target,
};
use serde_json::json;
use tempfile::TempDir;

use self::answered::names;
use super::status::{InterfaceStatus, MarkedBackend, ServiceStatus, State, Status};
use super::view::Numbers;
use super::{
    Answer, Asked, BindError, Client, ClientError, Control, Floors, Named, Names, SocketFile,
    VERSION, Wanted, target, view,
};
use crate::config;
use crate::generation::Generation;
use crate::location::LocationHandle;
use crate::rulebook::Keeper;
use crate::watch::StatusHandle;
use crate::worker::{CarrierCounters, Request, Snapshot, WorkerHandle};

/// A worker that answers as if it had one connection.
fn played() -> WorkerHandle {
    let (handle, requests) = WorkerHandle::new(Arc::new(Waker::new().unwrap()));
    thread::spawn(move || {
        for request in requests {
            match request {
                Request::Ping(answer) => answer.send(()).unwrap(),
                Request::Stats(answer) => answer.send(snapshot()).unwrap(),
                Request::Backends(answer) => answer.send(answered::backends()).unwrap(),
                Request::AccessTotals(answer) => answer.send(answered::totals()).unwrap(),
                Request::Page(wanted) => wanted.play(&[connection()], 64),
                Request::Connection(id, answer) => {
                    answer
                        .send(Some(connection()).filter(|known| known.id == id))
                        .unwrap();
                }
                Request::Order(id, order, answer) => {
                    answer.send(answered::carried_out(id, &order)).unwrap()
                }
                Request::OrderAll(wanted) => drop(wanted.play()),
                Request::Stop => return,
                Request::Routes
                | Request::HostAddresses(_)
                | Request::Called(..)
                | Request::Offload(_)
                | Request::Keep(_)
                | Request::Rules(..)
                | Request::Configure(..)
                | Request::EndSome(..)
                | Request::ForgetStranded(..)
                | Request::Astray
                | Request::Drain
                | Request::Dependent(_)
                | Request::End(_)
                | Request::Resolved(..)
                | Request::PreferServers(..)
                | Request::Listen(_) => unreachable!("nobody on the socket asks for it"),
            }
        }
    });
    handle
}

fn snapshot() -> Snapshot {
    Snapshot {
        counters: Counters {
            packets_in: 10,
            connections_opened: 5,
            connections_closed: 4,
            ..Counters::default()
        },
        drops: Drops::default(),
        carrier: CarrierCounters {
            malformed_rx: 0,
            send_failed: 2,
            ..CarrierCounters::default()
        },
        gauges: Gauges {
            flows: 3,
            ..Gauges::default()
        },
        memory_budget: 5_000_000,
        kept: 0,
        claimed_flows: 1,
    }
}

const ID: &str = "deadbeef00000007";

fn connection() -> ConnectionView {
    let client = "10.0.1.2:40312".parse().unwrap();
    let server = "10.9.0.2:80".parse().unwrap();
    ConnectionView {
        id: ID.parse().unwrap(),
        service: ServiceId(0),
        rule: Some("video".into()),
        state: ConnectionState::Translating,
        client,
        server,
        source: client,
        backend: server,
        token: Some(0xdead_beef),
        age: Duration::from_secs(3),
        idle: Duration::from_millis(40),
        subflows: vec![SubflowView {
            subflow: 1,
            client: "[2001:db8::2]:51000".parse().unwrap(),
            local: "[2001:db8::1]:80".parse().unwrap(),
            address_id: 1,
            access: Some(AccessId(1)),
            active: true,
            backup: false,
            established: true,
            bytes_up: 78,
            bytes_down: 1 << 40,
            retransmitted_down: 0,
            quality: PathQuality {
                delivery_rate: 12_500_000,
                in_flight: 2_800,
                window: 64_000,
                ..PathQuality::default()
            },
        }],
    }
}

/// What the watcher says.
fn status() -> Status {
    let wan1 = InterfaceStatus {
        name: "wan1".into(),
        present: false,
        up: false,
    };
    Status {
        version: VERSION,
        release: "0.1.0".into(),
        generation: 3,
        draining: 2,
        drained: vec!["old".into()],
        split_on: vec![([10, 77, 0, 1], 443).into()],
        uptime_us: 7,
        state: State::Degraded,
        problems: vec!["interface wan1 is missing".into()],
        mended_times: 1,
        mended_ago_us: Some(3),
        mended: Numbers(vec![("rules".into(), 9)]),
        offload: vec!["by tcx, on wan0".into()],
        services: vec![ServiceStatus {
            name: "web".into(),
            mode: "transparent".into(),
            passes: true,
            interfaces: vec![wan1],
            marked_backends: vec![MarkedBackend {
                address: "10.0.0.11:443".parse().unwrap(),
                reason: "silent".into(),
                marked_us: 5,
                workers: 2,
            }],
        }],
    }
}

/// The configuration that is in force.
fn generation() -> Generation {
    let text = "[[service]]\nname = 'web'\nmode = 'transparent'\ndestinations = ['10.9.0.0/16']\n\
        [[service]]\nname = 'shop'\nmode = 'reverse'\nlisten = ['203.0.113.5:443']\n\
        backends = ['10.0.0.11:443', { address = '10.0.0.12:443', weight = 4 }]\n\
        [[access]]\nname = 'dsl'\nclients = ['10.1.0.0/16']\n[[access]]\nname = 'lte'\nclients = ['10.2.0.0/16']\n\
        [[rule]]\nname = 'video'\nservices = ['web']\nservers = ['10.9.1.0/24', '2001:db8::/32']\nports = [443, '8000-8999']\n\
        clients = ['10.1.0.0/16']\nmode = 'active-standby'\naccesses = ['lte', 'dsl']\nhold = '2s'\nfail_back = '1m'\n\
        [[rule]]\nname = 'rest'\nmode = 'smallest-delay'\n";
    let (config, found) = config::parse("f", text);
    assert!(!found.has_errors(), "{found}");
    Generation::first(config.unwrap(), vec![vec![], vec![]])
}

/// Asks on a connection of its own.
fn ask(path: &Path, target: &str) -> Result<Answer, ClientError> {
    Client::new(path).ask(target)
}

struct Served {
    directory: TempDir,
    file: SocketFile,
    /// Where TCP is listened on.
    tcp: Option<SocketAddr>,
}

impl Served {
    fn by(workers: Vec<WorkerHandle>) -> Self {
        Self::with(workers, None)
    }

    /// Over TCP, too, for who has the token.
    fn with(workers: Vec<WorkerHandle>, token: Option<&str>) -> Self {
        Self::beside(LocationHandle::idle(), workers, token)
    }

    /// Beside what chooses servers.
    fn beside(location: LocationHandle, workers: Vec<WorkerHandle>, token: Option<&str>) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("token");
        let listen = token.map(|token| {
            std::fs::write(&file, token).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            (([127, 0, 0, 1], 0).into(), file.as_path())
        });
        let socket = directory.path().join("made/flexcp.sock");
        let (control, file) = Control::bind(&socket, listen).unwrap();
        let tcp = control.tcp_address();
        let asked = Asked {
            workers,
            offload: None,
            split: crate::split::RelayHandle::idle(),
            location,
            watch: StatusHandle::played(status(), names(), generation()),
            keeper: Arc::new(Keeper::new(directory.path().join("rules.json"))),
            floors: Floors::default(),
        };
        thread::spawn(move || control.serve(Arc::new(asked)));
        Self {
            directory,
            file,
            tcp,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("made/flexcp.sock")
    }
}

/// Asks for `target` by `method`, and gives status, head and body of the answer.
fn exchanged(path: &Path, method: &str, target: &str) -> (u16, String, String) {
    let request =
        format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    parted(&raw(path, request.as_bytes()))
}

fn parted(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.into(), body.into())
}

/// Sends `request` and gives back all that is answered.
fn raw(path: &Path, request: &[u8]) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// The same of a request that is not read to its end.
fn raw_unread(path: &Path, request: &[u8]) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    let _ = socket.write_all(request);
    let mut answer = vec![];
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn connections_are_answered_with_raw_numbers() {
    let served = Served::by(vec![played()]);
    let answer = ask(&served.path(), target::CONNECTIONS).unwrap();
    assert_eq!(
        answer.read::<serde_json::Value>().unwrap(),
        json!({
            "version": 1,
            "connections": [{
                "id": ID,
                "service": "web",
                "mode": "transparent",
                "rule": "video",
                "state": "translating",
                "client": "10.0.1.2:40312",
                "server": "10.9.0.2:80",
                "source": "10.0.1.2:40312",
                "backend": "10.9.0.2:80",
                "token": 3_735_928_559_u32,
                "age_us": 3_000_000,
                "idle_us": 40_000,
                "subflows": [{
                    "subflow": 1,
                    "client": "[2001:db8::2]:51000",
                    "local": "[2001:db8::1]:80",
                    "address_id": 1,
                    "access": "lte",
                    "active": true,
                    "backup": false,
                    "established": true,
                    "bytes_up": 78,
                    "bytes_down": 1_099_511_627_776_u64,
                    "retransmitted_down": 0,
                    "rtt_us": null,
                    "rtt_variation_us": null,
                    "rtt_least_us": null,
                    "delivery_rate": 12_500_000,
                    "in_flight": 2_800,
                    "window": 64_000,
                }],
                "carrier": "splitless", "relayed": null,
            }],
        })
    );
    let read: view::Connections = answer.read().unwrap();
    assert_eq!(read.connections[0].subflows[0].rtt_us, None);
}

#[test]
fn stats_of_several_workers_are_summed() {
    let served = Served::by(vec![played(), played()]);
    let stats: view::Stats = ask(&served.path(), target::STATS).unwrap().read().unwrap();
    assert_eq!(stats.version, VERSION);
    assert_eq!(stats.counters.get("packets_in"), Some(20));
    // In the order of their declaration.
    let names: Vec<_> = stats
        .counters
        .0
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let declared: Vec<_> = Counters::default().iter().map(|(name, _)| name).collect();
    assert_eq!(names, declared);
    assert_eq!(stats.drops.0.len(), Drops::default().iter().count());
    // Grouped by decision: nothing has asked for MPTCP here.
    assert_eq!(stats.causes.len(), 9);
    let plain = stats.counters.get("plain_syn");
    assert_eq!(stats.causes["plain_syn"].get("no_option"), plain);
    assert_eq!(stats.carrier.get("send_failed"), Some(4));
    // Ten packets came to each translator, which says of none what became of it.
    assert_eq!(stats.unaccounted.get("translated"), Some(20));
    assert_eq!(stats.gauges.get("flows"), Some(6));
    assert_eq!(stats.gauges.get("claimed_flows"), Some(2));
    assert_eq!(stats.memory_budget, 10_000_000);
    assert_eq!(stats.gauges.get("in_rings"), Some(0));
    assert_eq!(stats.connections, 2);
    let answer = ask(&served.path(), target::CONNECTIONS).unwrap();
    assert_eq!(
        answer
            .read::<view::Connections>()
            .unwrap()
            .connections
            .len(),
        2
    );
}

#[test]
fn status_is_what_the_watcher_says() {
    let served = Served::by(vec![]);
    let answer = ask(&served.path(), target::STATUS).unwrap();
    assert_eq!(answer.read::<Status>().unwrap(), status());
    assert_eq!(
        answer.read::<serde_json::Value>().unwrap(),
        json!({
            "version": 1,
            "release": "0.1.0",
            "generation": 3,
            "draining": 2,
            "drained": ["old"],
            "split_on": ["10.77.0.1:443"],
            "uptime_us": 7,
            "state": "degraded",
            "problems": ["interface wan1 is missing"],
            "mended_times": 1,
            "mended_ago_us": 3,
            "mended": {"rules": 9},
            "offload": ["by tcx, on wan0"],
            "services": [{
                "name": "web",
                "mode": "transparent",
                "passes": true,
                "interfaces": [{"name": "wan1", "present": false, "up": false}],
                "marked_backends": [
                    {"address": "10.0.0.11:443", "reason": "silent", "marked_us": 5, "workers": 2},
                ],
            }],
        })
    );
    // How the offload runs, stats tell, too.
    let stats: view::Stats = ask(&served.path(), target::STATS).unwrap().read().unwrap();
    assert_eq!(stats.offload_notes, ["by tcx, on wan0"]);
}

#[test]
fn services_and_rules_are_those_of_the_configuration() {
    let served = Served::by(vec![]);
    let services = ask(&served.path(), "/v1/services").unwrap();
    let services: serde_json::Value = services.read().unwrap();
    assert_eq!(services["services"][0]["name"], "web");
    assert_eq!(services["generation"], 1);
    let rules = ask(&served.path(), "/v1/rules").unwrap();
    assert_eq!(
        rules.read::<serde_json::Value>().unwrap(),
        json!({
            "version": 1,
            "generation": 1,
            "source": "file",
            "rules": [
                {
                    "name": "video",
                    "services": ["web"],
                    "servers": ["10.9.1.0/24", "2001:db8::/32"],
                    "ports": ["443", "8000-8999"],
                    "clients": ["10.1.0.0/16"],
                    "mode": "active-standby",
                    "accesses": ["lte", "dsl"],
                    "hold_us": 2_000_000,
                    "fail_back_us": 60_000_000,
                    "weights": null, "max_rtt_us": null, "max_loss": null,
                    "client_backup": true, "carrier": null,
                },
                {
                    "name": "rest",
                    "services": [],
                    "servers": [],
                    "ports": [],
                    "clients": [],
                    "mode": "smallest-delay",
                    "accesses": [],
                    "hold_us": 1_000_000,
                    "fail_back_us": 5_000_000,
                    "weights": null, "max_rtt_us": null, "max_loss": null,
                    "client_backup": true, "carrier": null,
                },
            ],
        })
    );
}

#[test]
fn short_answer_is_one_line_of_known_length() {
    let served = Served::by(vec![played()]);
    let (status, head, body) = exchanged(&served.path(), "GET", "/v1/stats");
    assert_eq!(status, 200);
    assert!(
        body.starts_with("{\"version\":1,\"counters\":{\"packets_in\":10,"),
        "{body}"
    );
    assert_eq!(body.matches('\n').count(), 1);
    assert!(body.ends_with('\n'));
    for header in [
        "content-type: application/json".to_owned(),
        "cache-control: no-store".to_owned(),
        format!("content-length: {}", body.len()),
    ] {
        assert!(head.contains(&header), "{head}");
    }
}

#[test]
fn request_that_is_none_is_refused_with_what_where_and_how_else() {
    let served = Served::by(vec![played()]);
    for (method, target, status, place, what, fix) in [
        (
            "GET",
            "/",
            404,
            "path /",
            "there is nothing here",
            "`/openapi.json` says what there is",
        ),
        (
            "GET",
            "/v1/stats/",
            404,
            "path /v1/stats/",
            "there is nothing here",
            "`/openapi.json` says what there is",
        ),
        (
            "POST",
            "/v1/stats",
            405,
            "method POST",
            "this is only read",
            "use GET",
        ),
        (
            "DELETE",
            "/v1/connections",
            405,
            "method DELETE",
            "all connections are only read",
            "use GET, or POST to /v1/connections/close",
        ),
        (
            "GET",
            "/v1/stats?x=1",
            400,
            "parameter `x`",
            "there is no parameter `x` here",
            "leave it out, as this takes none",
        ),
        (
            "GET",
            "/v1/connections?clinet=10.0.0.1",
            400,
            "parameter `clinet`",
            "there is no parameter `clinet`",
            "did you mean `client`?",
        ),
    ] {
        let (answered, head, body) = exchanged(&served.path(), method, target);
        assert_eq!(answered, status, "{method} {target}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let error = json!({"what": what, "where": place, "fix": fix});
        assert_eq!(
            body,
            json!({"version": 1, "error": error}),
            "{method} {target}"
        );
        assert!(status != 405 || head.contains("allow: GET,HEAD"), "{head}");
    }
    for wrong in [
        "{\"command\":\"stats\"}\n\n",
        "GET\r\n\r\n",
        "GET /v1/stats HTTP/3.0\r\n\r\n",
    ] {
        let answer = raw(&served.path(), wrong.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{wrong}: {answer}");
    }
    let long = format!(
        "GET /v1/stats HTTP/1.1\r\nx: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let answer = raw_unread(&served.path(), long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // The next one is served all the same.
    ask(&served.path(), target::STATS).unwrap();
}

#[test]
fn several_questions_are_answered_on_one_connection() {
    let served = Served::by(vec![played()]);
    let mut client = Client::new(&served.path());
    let mut socket = None;
    for _ in 0..3 {
        for of in [target::STATS, target::STATUS, target::ACCESSES] {
            client.ask(of).unwrap();
        }
        let wanted = Wanted::default();
        let mut count = 0;
        client
            .connections(&wanted, |_: view::Connection| {
                count += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(count, 1);
        // It is the same one each time.
        let now = client.inode();
        assert!(now.is_some() && socket.is_none_or(|before| Some(before) == now));
        socket = now;
    }
    // A daemon that has hung up meanwhile is called again.
    thread::sleep(Duration::from_millis(2500));
    client.ask(target::STATS).unwrap();
    assert_ne!(client.inode(), socket);
}

/// A client that has nothing to say.
fn idle(path: &Path) -> UnixStream {
    UnixStream::connect(path).unwrap()
}

#[test]
fn idle_clients_delay_nobody() {
    let served = Served::by(vec![played()]);
    let _idle: Vec<_> = (0..17).map(|_| idle(&served.path())).collect();
    let began = Instant::now();
    ask(&served.path(), target::STATS).unwrap();
    ask(&served.path(), target::CONNECTIONS).unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn client_that_dribbles_is_cut_off_in_time() {
    let served = Served::by(vec![played()]);
    let mut client = idle(&served.path());
    let began = Instant::now();
    // Each byte alone comes soon.
    let cut = loop {
        if client.write_all(b"G").is_err() {
            break began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(10), "never cut off");
        thread::sleep(Duration::from_millis(20));
    };
    assert!(
        cut > Duration::from_millis(1900) && cut < Duration::from_secs(4),
        "{cut:?}"
    );
}

#[test]
fn client_that_does_not_take_short_answers_is_cut_off_in_time() {
    let served = Served::by(vec![played()]);
    let mut client = idle(&served.path());
    client
        .set_write_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let began = Instant::now();
    // One behind the other: the answers fill what lies between, and nothing is read from then on.
    let request = b"GET /v1/stats HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let error = loop {
        if let Err(error) = client.write_all(request) {
            break error;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "never cut off");
    };
    let cut = began.elapsed();
    assert!(
        cut > Duration::from_millis(1900) && cut < Duration::from_secs(6),
        "{cut:?}: {error}"
    );
    ask(&served.path(), target::STATS).unwrap();
}

#[test]
fn clients_beyond_the_bound_are_refused() {
    let served = Served::by(vec![played()]);
    let idle: Vec<_> = (0..64).map(|_| idle(&served.path())).collect();
    let error = ask(&served.path(), target::STATS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flexcp refuses: 64 clients are being served already; ask again later"
    );
    drop(idle);
    let began = Instant::now();
    while ask(&served.path(), target::STATS).is_err() {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn worker_that_is_gone_is_told() {
    let worker = played();
    worker.stop();
    let served = Served::by(vec![worker]);
    let error = ask(&served.path(), target::STATS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flexcp refuses: the worker does not answer; ask again, and if it stays so, look into the log"
    );
}

/// Says `text` to whoever connects to `path` first.
fn answering(path: &Path, text: String) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.read(&mut [0; 200]).unwrap();
        client.write_all(text.as_bytes()).unwrap();
    });
}

/// An answer of HTTP with this body.
fn http(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}
