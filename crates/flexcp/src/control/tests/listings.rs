//! Listings page by page: nothing waits for the last one, nobody for a slow reader, and no memory grows with their number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

/// Connections of a page.
const PAGE: usize = 64;

/// A worker with so many connections, which counts the pages that it is asked for and calls `before` before each.
fn many(
    count: u16,
    mut before: impl FnMut(usize) + Send + 'static,
) -> (WorkerHandle, Arc<AtomicUsize>) {
    let (handle, requests) = WorkerHandle::new(Arc::new(Waker::new().unwrap()));
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    let views: Vec<_> = (0..count).map(numbered).collect();
    thread::spawn(move || {
        for request in requests {
            match request {
                Request::Page(wanted) => {
                    before(counted.fetch_add(1, Ordering::Relaxed));
                    wanted.play(&views, PAGE);
                }
                Request::Stop => return,
                Request::Stats(answer) => answer.send(snapshot()).unwrap(),
                _ => {}
            }
        }
    });
    (handle, pages)
}

fn numbered(number: u16) -> ConnectionView {
    let mut view = connection();
    view.client.set_port(number);
    view
}

/// The numbers of the connections that a client is told, and what comes of the request.
fn listed(path: &Path) -> (Vec<u16>, Result<(), ClientError>) {
    let mut numbers = vec![];
    let result =
        Client::new(path).connections(&Wanted::default(), |connection: view::Connection| {
            numbers.push(connection.client.port());
            ControlFlow::Continue(())
        });
    (numbers, result)
}

/// A client that asks for the connections and takes only the first byte of the answer.
fn deaf(path: &Path) -> UnixStream {
    let mut client = idle(path);
    client
        .write_all(b"GET /v1/connections HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

/// What an answer in chunks says.
pub(super) fn unchunked(answer: &str) -> String {
    let (_, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    let mut text = String::new();
    loop {
        let (length, chunk) = rest.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return text;
        }
        text += &chunk[..length];
        rest = &chunk[length + 2..];
    }
}

#[test]
fn connections_of_several_workers_come_one_behind_the_other() {
    let (first, first_pages) = many(1000, |_| {});
    let (second, _) = many(0, |_| {});
    let (third, _) = many(65, |_| {});
    let served = Served::by(vec![first, second, third]);
    let (numbers, result) = listed(&served.path());
    result.unwrap();
    assert_eq!(numbers, (0..1000).chain(0..65).collect::<Vec<_>>());
    assert_eq!(
        first_pages.load(Ordering::Relaxed),
        1000_usize.div_ceil(PAGE)
    );
    // It is one line of JSON all the same.
    let answer = ask(&served.path(), target::CONNECTIONS).unwrap();
    assert!(!answer.line().contains('\n'));
    let read: view::Connections = answer.read().unwrap();
    assert_eq!((read.version, read.connections.len()), (VERSION, 1065));
}

#[test]
fn first_connections_are_told_before_the_last_are_known() {
    let (go_on, wait) = mpsc::channel::<()>();
    let (worker, _) = many(200, move |page| {
        if page == 3 {
            wait.recv().unwrap();
        }
    });
    let served = Served::by(vec![worker]);
    let mut count = 0;
    Client::new(&served.path())
        .connections(&Wanted::default(), |_: view::Connection| {
            count += 1;
            if count == 100 {
                go_on.send(()).unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, 200);
}

#[test]
fn client_that_does_not_read_holds_nothing_of_the_worker_and_nobody_up() {
    let (worker, pages) = many(60_000, |_| {});
    let served = Served::by(vec![worker]);
    let deaf = deaf(&served.path());
    // What fits into the socket is all that is asked for.
    let asked = |pages: &AtomicUsize| pages.load(Ordering::Relaxed);
    let mut before = usize::MAX;
    while asked(&pages) != before {
        before = asked(&pages);
        thread::sleep(Duration::from_millis(200));
    }
    assert!(before < 60, "{before} pages for nobody");
    ask(&served.path(), target::STATS).unwrap();
    let (numbers, result) = listed(&served.path());
    result.unwrap();
    assert_eq!(numbers.len(), 60_000);
    // It goes on where it was.
    let mut rest = String::from("H");
    (&deaf).read_to_string(&mut rest).unwrap();
    let read: view::Connections = serde_json::from_str(&unchunked(&rest)).unwrap();
    assert_eq!(read.connections.len(), 60_000);
}

#[test]
fn listings_beyond_the_bound_are_refused() {
    let (worker, _) = many(10_000, |_| {});
    let served = Served::by(vec![worker]);
    let mut all_deaf: Vec<_> = (0..8).map(|_| deaf(&served.path())).collect();
    let (_, result) = listed(&served.path());
    assert_eq!(
        result.unwrap_err().to_string(),
        "flexcp refuses: 8 clients are being told the connections already; ask again later"
    );
    all_deaf.pop();
    let (numbers, result) = listed(&served.path());
    result.unwrap();
    assert_eq!(numbers.len(), 10_000);
}

#[test]
fn worker_that_ends_meanwhile_is_told_behind_what_there_was() {
    let (first, _) = many(100, |_| {});
    let (gone, _) = many(100, |page| assert!(page == 0, "the worker ends"));
    let served = Served::by(vec![first, gone]);
    let (numbers, result) = listed(&served.path());
    assert_eq!(numbers.len(), 100 + PAGE);
    assert_eq!(
        result.unwrap_err().to_string(),
        "flexcp refuses: the worker does not answer; ask again, and if it stays so, look into the log"
    );
}

#[test]
fn client_that_has_enough_ends_without_an_error() {
    let (worker, _) = many(10_000, |_| {});
    let served = Served::by(vec![worker]);
    let mut count = 0;
    Client::new(&served.path())
        .connections(&Wanted::default(), |_: view::Connection| {
            count += 1;
            if count < 10 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .unwrap();
    assert_eq!(count, 10);
}

/// What a client of connections says to a daemon that answers with `text`.
fn answered_with(text: String) -> (Vec<u16>, String) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    answering(&path, text);
    let (numbers, result) = listed(&path);
    let said = result.unwrap_err().to_string();
    (numbers, said.replace(&path.display().to_string(), "PATH"))
}

#[test]
fn answers_that_break_off_and_foreign_ones_are_told() {
    assert_eq!(
        answered_with(http("{\"version\":2,\"connections\":[1]}\n")).1,
        "the running flexcp answers in version 2 of the API, and this is version 1; use the same version of both"
    );
    let (numbers, said) = answered_with(http(
        "{\"version\":1,\"connections\":[{\"id\":\"07\",\"service\":\"web\",\"mode\":\"m\",\"state\":\"plain\",\"client\":\"10.0.0.1:7\",\
         \"server\":\"10.0.0.2:1\",\"source\":\"10.0.0.1:7\",\"backend\":\"10.0.0.2:1\",\"token\":null,\"age_us\":1,\
         \"idle_us\":2,\"subflows\":[],\"later\":[{}]},{\"serv",
    ));
    assert_eq!(numbers, [7]);
    assert!(
        said.starts_with("no answer from flexcp on PATH: EOF while parsing"),
        "{said}"
    );
    assert_eq!(
        answered_with(http(
            "{\"version\":1,\"error\":{\"what\":\"no\",\"where\":\"here\",\"fix\":\"wait\"}}\n"
        ))
        .1,
        "flexcp refuses: no; wait"
    );
    assert!(
        answered_with(String::new())
            .1
            .starts_with("no answer from flexcp on PATH: ")
    );
}

#[test]
fn filter_goes_to_the_worker_and_what_is_no_filter_is_refused() {
    let (handle, requests) = WorkerHandle::new(Arc::new(Waker::new().unwrap()));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for request in requests {
            if let Request::Page(wanted) = request {
                tell.send(wanted.filter().clone()).unwrap();
                wanted.play(&[], PAGE);
            }
        }
    });
    let served = Served::by(vec![handle]);
    let wanted = Wanted {
        state: vec!["plain".into()],
        service: Some("web".into()),
        client: Some("10.0.0.0/8".into()),
        server: Some(":443".into()),
        access: Some("lte".into()),
        rule: Some("rest".into()),
    };
    Client::new(&served.path())
        .connections(&wanted, |_: view::Connection| ControlFlow::Continue(()))
        .unwrap();
    let filter = told.recv().unwrap();
    assert_eq!(filter.states, [ConnectionState::Plain]);
    assert_eq!(filter.service, Some(ServiceId(0)));
    assert_eq!(filter.client.and_then(|place| place.port), None);
    assert_eq!(filter.server.and_then(|place| place.port), Some(443));
    assert_eq!(filter.rule.as_deref(), Some("rest"));
    for (query, place, said) in [
        ("rule=best", "rule", "there is no rule `best`"),
        ("state=open", "state", "`open` is no state of a connection"),
        ("service=nobody", "service", "there is no service `nobody`"),
        ("client=10.0.0.1/8", "client", "bits set behind the prefix"),
        ("server=here", "server", "is not an address prefix"),
        ("access=5g", "access", "there is no access `5g`"),
    ] {
        let (status, _, body) =
            exchanged(&served.path(), "GET", &format!("/v1/connections?{query}"));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 400, "{query}");
        assert_eq!(body["error"]["where"], format!("parameter `{place}`"));
        assert!(
            body["error"]["what"].as_str().unwrap().contains(said),
            "{body}"
        );
    }
}
