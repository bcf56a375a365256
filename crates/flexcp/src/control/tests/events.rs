//! Events of workers that are played, as clients are told them.

use std::io::{BufRead, BufReader};
use std::sync::mpsc;

use flexcp_translator::{
    ConnectionEnds, EndCause, Event, EventKind, Instant as At, MarkReason, Rst, SubflowEnds,
    SubflowSwitch, Switch,
};

use super::*;
use crate::location::{Chosen, LocationHandle};
use crate::worker::{Heard, Listener};

/// A worker that hands over whoever listens.
fn listened() -> (WorkerHandle, mpsc::Receiver<Listener>) {
    let (handle, requests) = WorkerHandle::new(Arc::new(Waker::new().unwrap()));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for request in requests {
            match request {
                Request::Listen(listener) => tell.send(listener).unwrap(),
                Request::Stop => return,
                Request::Stats(answer) => answer.send(snapshot()).unwrap(),
                _ => {}
            }
        }
    });
    (handle, told)
}

fn heard(kind: EventKind) -> Heard {
    Heard {
        at: At(flexcp_io::monotonic_micros()),
        worker: Some(3),
        event: Event {
            service: ServiceId(0),
            kind,
        },
    }
}

fn ends() -> ConnectionEnds {
    ConnectionEnds {
        id: ID.parse().unwrap(),
        client: "10.0.1.2:40312".parse().unwrap(),
        server: "10.9.0.2:80".parse().unwrap(),
        token: Some(7),
    }
}

fn back() -> Heard {
    let backend = "10.8.0.2:80".parse().unwrap();
    heard(EventKind::BackendBack { backend })
}

/// A client that listens, and its first line.
fn listening(path: &Path) -> (Chunks, String) {
    let mut client = idle(path);
    client
        .write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut client = Chunks::new(client);
    let head = std::iter::from_fn(|| Some(client.raw()).filter(|line| line != "\r\n"));
    let head: Vec<_> = head.collect();
    assert_eq!(head[0], "HTTP/1.1 200 OK\r\n");
    assert!(
        head.iter()
            .any(|line| line == "content-type: application/x-ndjson\r\n"),
        "{head:?}"
    );
    let line = client.line();
    (client, line)
}

/// A client of an answer in chunks.
struct Chunks {
    socket: BufReader<UnixStream>,
    /// Of the chunks that have been read.
    text: String,
}

impl Chunks {
    fn new(socket: UnixStream) -> Self {
        Self {
            socket: BufReader::new(socket),
            text: String::new(),
        }
    }

    fn raw(&mut self) -> String {
        let mut line = String::new();
        self.socket.read_line(&mut line).unwrap();
        line
    }

    /// The next line of the answer.
    fn line(&mut self) -> String {
        while !self.text.contains('\n') {
            let length = usize::from_str_radix(self.raw().trim(), 16).unwrap();
            let mut chunk = vec![0; length];
            self.socket.read_exact(&mut chunk).unwrap();
            self.text += std::str::from_utf8(&chunk).unwrap();
            assert_eq!(self.raw(), "\r\n");
        }
        let end = self.text.find('\n').unwrap() + 1;
        self.text.drain(..end).collect()
    }
}

/// The next line, without when it was.
fn next(client: &mut Chunks) -> serde_json::Value {
    let mut value: serde_json::Value = serde_json::from_str(&client.line()).unwrap();
    if let Some(time) = value.as_object_mut().and_then(|map| map.remove("time_us")) {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let age = u64::try_from(now.as_micros()).unwrap() - time.as_u64().unwrap();
        assert!(age < 10_000_000, "{age}");
    }
    value
}

fn chosen() -> Chosen {
    let addr = |host| ([203, 0, 113, host], 7124).into();
    Chosen {
        at: flexcp_location::Time(flexcp_io::monotonic_micros()),
        service: ServiceId(0),
        from: Some(("ams".into(), addr(6))),
        to: ("fra".into(), addr(5)),
        reason: "fra: 47.3 Mbit/s over dsl0".into(),
    }
}

/// One of each.
pub(super) fn all() -> Vec<view::Event> {
    let subflow = SubflowEnds {
        subflow: 1,
        access: Some(AccessId(1)),
        client: "[2001:db8::2]:51000".parse().unwrap(),
        local: "[2001:db8::1]:80".parse().unwrap(),
        address_id: 1,
    };
    let backend = "10.8.0.2:80".parse().unwrap();
    let (connection, cause) = (ends(), EndCause::Finished);
    let source = connection.client;
    let reason = MarkReason::Silent;
    let kinds = [
        EventKind::Opened {
            connection,
            source,
            backend,
        },
        EventKind::Joined {
            connection,
            subflow,
        },
        EventKind::Switched {
            connection,
            switch: Switch {
                from: subflow,
                to: subflow,
                cause: SubflowSwitch::Delay,
                rule: Some("video".into()),
            },
        },
        EventKind::SubflowClosed {
            connection,
            subflow,
            cause,
        },
        EventKind::Closed { connection, cause },
        EventKind::BackendMarked { backend, reason },
        EventKind::BackendMaintenance { backend, on: true },
        EventKind::BackendBack { backend },
    ];
    let events = kinds.map(|kind| view::Event::new(heard(kind), 0, &names()));
    let beside = [
        view::Event::chosen(chosen(), 0, &names()),
        view::Event::Listening { version: VERSION },
        view::Event::Lost { count: 7 },
    ];
    events.into_iter().chain(beside).collect()
}

#[test]
fn events_are_told_a_line_each() {
    let (worker, listeners) = listened();
    let served = Served::by(vec![worker]);
    let (mut client, first) = listening(&served.path());
    assert_eq!(first, "{\"event\":\"listening\",\"version\":1}\n");
    let mut listener = listeners.recv().unwrap();
    let subflow = SubflowEnds {
        subflow: 1,
        access: Some(AccessId(1)),
        client: "[2001:db8::2]:51000".parse().unwrap(),
        local: "[2001:db8::1]:80".parse().unwrap(),
        address_id: 1,
    };
    let backend = "10.8.0.2:80".parse().unwrap();
    let (connection, cause) = (ends(), EndCause::Finished);
    let which = json!({
        "worker": 3, "service": "web", "id": ID, "client": "10.0.1.2:40312", "server": "10.9.0.2:80", "token": 7,
    });
    let on = json!({
        "subflow": 1, "access": "lte", "client": "[2001:db8::2]:51000", "local": "[2001:db8::1]:80", "address_id": 1,
    });
    let with = |base: &serde_json::Value, more: serde_json::Value| {
        let mut all = base.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        serde_json::Value::Object(all)
    };
    let of_worker = json!({"worker": 3, "service": "web", "backend": "10.8.0.2:80"});
    for (kind, line) in [
        (
            EventKind::Opened {
                connection,
                source: connection.client,
                backend,
            },
            with(
                &which,
                json!({
                    "event": "opened", "mode": "transparent", "carrier": "splitless", "source": "10.0.1.2:40312",
                    "backend": "10.8.0.2:80",
                }),
            ),
        ),
        (
            EventKind::Joined {
                connection,
                subflow,
            },
            with(&which, json!({"event": "joined", "subflow": on})),
        ),
        (
            EventKind::Switched {
                connection,
                switch: Switch {
                    from: SubflowEnds {
                        access: None,
                        subflow: 0,
                        ..subflow
                    },
                    to: subflow,
                    cause: SubflowSwitch::Asked,
                    rule: None,
                },
            },
            with(
                &which,
                json!({
                    "event": "switched", "cause": "asked", "rule": null, "to": on,
                    "from": with(&on, json!({"subflow": 0, "access": null})),
                }),
            ),
        ),
        (
            EventKind::SubflowClosed {
                connection,
                subflow,
                cause,
            },
            with(
                &which,
                json!({"event": "subflow_closed", "subflow": on, "cause": "finished"}),
            ),
        ),
        (
            EventKind::Closed { connection, cause },
            with(&which, json!({"event": "closed", "cause": "finished"})),
        ),
        (
            EventKind::BackendMarked {
                backend,
                reason: MarkReason::Silent,
            },
            with(
                &of_worker,
                json!({"event": "backend_marked", "reason": "silent"}),
            ),
        ),
        (
            EventKind::BackendMaintenance { backend, on: false },
            with(
                &of_worker,
                json!({"event": "backend_maintenance", "on": false}),
            ),
        ),
        (
            EventKind::BackendBack { backend },
            with(&of_worker, json!({"event": "backend_back"})),
        ),
    ] {
        listener.tell(heard(kind));
        assert_eq!(next(&mut client), line);
    }
}

#[test]
fn events_of_the_relay_name_no_worker() {
    let (worker, listeners) = listened();
    let served = Served::by(vec![worker]);
    let (mut client, _) = listening(&served.path());
    let mut listener = listeners.recv().unwrap();
    let opened = EventKind::Opened {
        connection: ends(),
        source: "10.8.0.1:61000".parse().unwrap(),
        backend: "10.8.0.2:80".parse().unwrap(),
    };
    let closed = EventKind::Closed {
        connection: ends(),
        cause: EndCause::Rst(Rst::Asked),
    };
    let told = [opened, closed].map(|kind| {
        let worker = None;
        listener.tell(Heard {
            worker,
            ..heard(kind)
        });
        next(&mut client)
    });
    assert_eq!(told[0]["carrier"], "split");
    assert_eq!(told[1]["cause"], "asked");
    for line in told {
        assert_eq!(line["worker"], serde_json::Value::Null, "{line}");
    }
}

#[test]
fn choices_of_servers_are_told_and_counted_where_they_are_lost() {
    let (location, listeners) = LocationHandle::played();
    let (worker, _listeners) = listened();
    let served = Served::beside(location, vec![worker], None);
    let (mut client, _) = listening(&served.path());
    let mut listener = listeners.recv().unwrap();
    listener.tell(chosen());
    assert_eq!(
        next(&mut client),
        json!({
            "event": "server_switched", "worker": null, "service": "web",
            "from": {"name": "ams", "address": "203.0.113.6:7124"},
            "to": {"name": "fra", "address": "203.0.113.5:7124"},
            "reason": "fra: 47.3 Mbit/s over dsl0",
        })
    );
    (0..100_000).for_each(|_| listener.tell(chosen()));
    let lines = std::iter::from_fn(|| Some(next(&mut client)));
    let mut lost = lines.filter(|line| line["event"] == "lost");
    assert!(lost.next().unwrap()["count"].as_u64() > Some(0));
}

#[test]
fn client_that_does_not_read_loses_events_and_is_told_how_many() {
    let (worker, listeners) = listened();
    let served = Served::by(vec![worker]);
    let (mut client, _) = listening(&served.path());
    let mut listener = listeners.recv().unwrap();
    let began = Instant::now();
    (0..100_000).for_each(|_| listener.tell(back()));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it waits for nobody"
    );
    ask(&served.path(), target::STATS).unwrap();
    let (mut told, mut lost) = (0, 0);
    while told + lost < 100_000 {
        let line = next(&mut client);
        match line["event"].as_str() {
            Some("backend_back") => told += 1,
            Some("lost") => lost += line["count"].as_u64().unwrap(),
            _ => panic!("{line}"),
        }
    }
    assert_eq!(told + lost, 100_000);
    assert!(lost > 50_000, "{lost}");
    // What happens from here on is told again.
    listener.tell(heard(EventKind::Closed {
        connection: ends(),
        cause: EndCause::Reset,
    }));
    assert_eq!(next(&mut client)["cause"], "reset");
}

#[test]
fn listeners_beyond_the_bound_are_refused_until_one_has_gone() {
    let (worker, listeners) = listened();
    let served = Served::by(vec![worker]);
    let mut clients: Vec<_> = (0..8).map(|_| listening(&served.path()).0).collect();
    let refused = |path: &Path| Client::new(path).events(|_| ControlFlow::Break(()));
    assert_eq!(
        refused(&served.path()).unwrap_err().to_string(),
        "flexcp refuses: 8 clients are listening already; end one of them"
    );
    // Nothing happens, and yet its going is noticed.
    drop(clients.pop());
    let began = Instant::now();
    while refused(&served.path()).is_err() {
        assert!(began.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(10));
    }
    drop(listeners);
}

#[test]
fn end_of_the_daemon_is_told() {
    let (worker, listeners) = listened();
    let served = Served::by(vec![worker]);
    let mut lines = vec![];
    let ended = Client::new(&served.path()).events(|line| {
        lines.push(line.to_owned());
        // The worker's end, behind its last word.
        if lines.len() == 1 {
            let mut listener = listeners.recv().unwrap();
            listener.tell(back());
        }
        ControlFlow::Continue(())
    });
    let said = ended.unwrap_err().to_string();
    assert!(said.starts_with("the flexcp that listened on "), "{said}");
    assert!(said.ends_with(" has ended"), "{said}");
    assert_eq!(lines.len(), 2, "{lines:?}");
}
