//! Whole exchanges over a socket in a temporary directory, with workers that are played.

mod events;
mod listings;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flexcp_io::Waker;
use flexcp_translator::{
    AccessId, ConnectionState, ConnectionView, Counters, Drops, Gauges, PathQuality, ServiceId,
    SubflowView,
};
use serde_json::json;
use tempfile::TempDir;

use super::status::{InterfaceStatus, MarkedBackend, ServiceStatus, State, Status};
use super::view::Numbers;
use super::{
    Action, Asked, BindError, ClientError, Control, Named, Names, SocketFile, VERSION, Wanted, ask,
    view,
};
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
                Request::Page(wanted) => wanted.play(&[connection()], 64),
                Request::Stop => return,
                Request::Offload(_)
                | Request::Keep(_)
                | Request::Rules(..)
                | Request::Configure(..)
                | Request::EndStranded(..)
                | Request::ForgetStranded(..)
                | Request::Astray
                | Request::Drain
                | Request::Dependent(_)
                | Request::End(_)
                | Request::Listen(_) => {
                    unreachable!("nobody on the socket asks for it")
                }
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

fn connection() -> ConnectionView {
    let client = "10.0.1.2:40312".parse().unwrap();
    let server = "10.9.0.2:80".parse().unwrap();
    ConnectionView {
        service: ServiceId(0),
        state: ConnectionState::Translating,
        client,
        server,
        source: client,
        backend: server,
        token: Some(0xdead_beef),
        age: Duration::from_secs(3),
        idle: Duration::from_millis(40),
        subflows: vec![SubflowView {
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

/// The request for all connections.
fn all() -> Action {
    Action::Connections(Wanted::default())
}

struct Served {
    directory: TempDir,
    file: SocketFile,
}

fn names() -> Names {
    let named = |id, name: &str| Named {
        id: ServiceId(id),
        name: name.into(),
        mode: "transparent",
    };
    Names {
        services: vec![named(7, "other"), named(0, "web")],
        accesses: vec!["dsl".into(), "lte".into()],
    }
}

impl Served {
    fn by(workers: Vec<WorkerHandle>) -> Self {
        let directory = TempDir::new().unwrap();
        let (control, file) = Control::bind(&directory.path().join("made/flexcp.sock")).unwrap();
        let asked = Asked {
            workers,
            offload: None,
            watch: StatusHandle::played(status(), names()),
        };
        thread::spawn(move || control.serve(&asked));
        Self { directory, file }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("made/flexcp.sock")
    }
}

/// Sends `request` and gives back all that is answered.
fn raw(path: &Path, request: &[u8]) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn connections_are_answered_with_raw_numbers() {
    let served = Served::by(vec![played()]);
    let answer = ask(&served.path(), &all()).unwrap();
    assert_eq!(
        answer.read::<serde_json::Value>().unwrap(),
        json!({
            "version": 1,
            "connections": [{
                "service": "web",
                "mode": "transparent",
                "state": "translating",
                "client": "10.0.1.2:40312",
                "server": "10.9.0.2:80",
                "source": "10.0.1.2:40312",
                "backend": "10.9.0.2:80",
                "token": 3_735_928_559_u32,
                "age_us": 3_000_000,
                "idle_us": 40_000,
                "subflows": [{
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
            }],
        })
    );
    let read: view::Connections = answer.read().unwrap();
    assert_eq!(read.connections[0].subflows[0].rtt_us, None);
}

#[test]
fn stats_of_several_workers_are_summed() {
    let served = Served::by(vec![played(), played()]);
    let stats: view::Stats = ask(&served.path(), &Action::Stats).unwrap().read().unwrap();
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
    assert_eq!(stats.causes.len(), 8);
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
    let answer = ask(&served.path(), &all()).unwrap();
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
    let answer = ask(&served.path(), &Action::Status).unwrap();
    assert_eq!(answer.read::<Status>().unwrap(), status());
    assert_eq!(
        answer.read::<serde_json::Value>().unwrap(),
        json!({
            "version": 1,
            "release": "0.1.0",
            "generation": 3,
            "draining": 2,
            "drained": ["old"],
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
    let stats: view::Stats = ask(&served.path(), &Action::Stats).unwrap().read().unwrap();
    assert_eq!(stats.offload_notes, ["by tcx, on wan0"]);
}

#[test]
fn one_request_line_gets_one_answer_line() {
    let served = Served::by(vec![played()]);
    let answer = raw(&served.path(), b"{\"command\":\"stats\"}\n");
    assert!(
        answer.starts_with("{\"version\":1,\"counters\":{\"packets_in\":10,"),
        "{answer}"
    );
    assert_eq!(answer.matches('\n').count(), 1);
    assert!(answer.ends_with('\n'));
}

#[test]
fn request_that_is_none_is_refused() {
    let served = Served::by(vec![played()]);
    let answer = raw(&served.path(), b"{\"command\":\"reboot\"}\n");
    assert_eq!(
        answer,
        "{\"version\":1,\"error\":\"not a request: unknown variant `reboot`, expected one of `stats`, `connections`, \
         `status`, `accesses`, `events` at line 1 column 19\"}\n"
    );
    let answer = raw(&served.path(), b"GET / HTTP/1.1\n");
    assert!(
        answer.starts_with("{\"version\":1,\"error\":\"not a request: "),
        "{answer}"
    );
    // The next one is served all the same.
    ask(&served.path(), &Action::Stats).unwrap();
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
    ask(&served.path(), &Action::Stats).unwrap();
    ask(&served.path(), &all()).unwrap();
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
        if client.write_all(b" ").is_err() {
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
fn clients_beyond_the_bound_are_refused() {
    let served = Served::by(vec![played()]);
    let idle: Vec<_> = (0..64).map(|_| idle(&served.path())).collect();
    let error = ask(&served.path(), &Action::Stats).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flexcp refuses: 64 clients are being served already; ask again later"
    );
    drop(idle);
    let began = Instant::now();
    while ask(&served.path(), &Action::Stats).is_err() {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn worker_that_is_gone_is_told() {
    let worker = played();
    worker.stop();
    let served = Served::by(vec![worker]);
    let error = ask(&served.path(), &Action::Stats).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flexcp refuses: the worker does not answer"
    );
}

#[test]
fn socket_is_for_its_owner_only_and_goes_away() {
    let served = Served::by(vec![played()]);
    let path = served.path();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(served.file);
    assert!(!path.exists());
}

#[test]
fn second_daemon_on_the_same_socket_is_refused() {
    let served = Served::by(vec![played()]);
    let path = served.path();
    let error = Control::bind(&path).unwrap_err();
    assert!(matches!(error, BindError::Busy { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "another flexcp is running: it answers on the control socket {}; stop it, or give this \
             one a network namespace and a [control] section of its own",
            path.display()
        )
    );
    // The first one's is still there.
    ask(&path, &Action::Stats).unwrap();
}

#[test]
fn socket_that_a_crash_left_is_taken_over() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    Control::bind(&path).unwrap();
}

#[test]
fn file_in_the_sockets_place_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(
        Control::bind(&path),
        Err(BindError::NotASocket { .. })
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn daemon_that_is_not_there() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    let not_running = |path: &Path| {
        let error = ask(path, &Action::Stats).unwrap_err();
        assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    };
    not_running(&path);
    drop(UnixListener::bind(&path).unwrap());
    not_running(&path);
}

#[test]
fn daemon_of_another_version() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.read(&mut [0; 100]).unwrap();
        client.write_all(b"{\"version\":2}\n").unwrap();
    });
    let error = ask(&path, &Action::Stats).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the running flexcp answers in version 2 of the protocol, and this is version 1; \
         use the same version of both"
    );
}
