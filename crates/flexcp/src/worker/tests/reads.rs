//! What others read of a worker meanwhile: pages of its connections, and events.

use std::collections::BTreeSet;

use flexcp_translator::{Cursor, EventKind, Filter};

use super::*;

/// A SYN from a client of this number goes in, and one comes out.
fn open(bench: &mut Bench, number: u16) {
    let asks = [TcpOption::Mss(1460), capable(CapableKeys::Syn)];
    let mut syn = packet(
        client(number),
        SERVER.into(),
        TcpFlags::SYN,
        (ISN_CLIENT, 0),
    );
    syn.options = &asks;
    bench.put(0, &syn.bytes());
}

/// A worker that keeps handshakes for long.
fn patient() -> Bench {
    Bench::with(1, |config| {
        config.timeouts.half_open = Duration::from_secs(60);
    })
}

#[test]
fn pages_are_bounded_and_packets_go_on_between_them() {
    let mut bench = patient();
    (0..1000).for_each(|number| open(&mut bench, number));
    bench.settled();
    let filter = Arc::new(Filter::default());
    let mut told = BTreeSet::new();
    let mut page = Page::default();
    let mut next = Some(Cursor::default());
    let (mut pages, mut count) = (0, 0);
    while let Some(from) = next {
        page = bench.handles[0].page(from, &filter, page).expect("a page");
        assert!(page.views.len() <= Translator::PAGE, "{}", page.views.len());
        next = page.next;
        pages += 1;
        count += page.views.len();
        told.extend(page.views.iter().map(|view| view.client.port()));
        // Between two pages a packet has its turn.
        let before = bench.settled()[0].carrier.device_rx;
        open(&mut bench, 2000 + pages);
        assert_eq!(bench.settled()[0].carrier.device_rx, before + 1);
    }
    assert_eq!(count, told.len(), "none twice");
    assert!((0..1000).all(|number| told.contains(&client(number).port())));
    assert!(pages > 15, "{pages}");
    assert_conserved(&mut bench);
}

#[test]
fn worker_takes_packets_however_many_pages_are_asked_for() {
    let mut bench = patient();
    (0..1000).for_each(|number| open(&mut bench, number));
    bench.settled();
    // Ten that list without a pause, so that a page is asked for at any time.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..10)
        .map(|_| {
            let (handle, stop) = (bench.handles[0].clone(), Arc::clone(&stop));
            thread::spawn(move || {
                let filter = Arc::new(Filter::default());
                let (mut page, mut lists) = (Page::default(), 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let from = page.next.unwrap_or_default();
                    page = handle.page(from, &filter, page).expect("a page");
                    lists += u32::from(page.next.is_none());
                }
                lists
            })
        })
        .collect();
    for number in 2000..2200 {
        open(&mut bench, number);
        let from = client(number);
        bench.next(|seen| seen.from == from && seen.tcp.flags == TcpFlags::SYN);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let lists = readers
        .into_iter()
        .map(|reader| reader.join().expect("a reader"));
    assert!(lists.sum::<u32>() > 10);
    assert_conserved(&mut bench);
}

#[test]
fn of_long_answers_one_is_given_between_two_batches() {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
    let (near, _far) = pair.expect("sockets");
    let alone = Share {
        worker: 0,
        workers: 1,
    };
    let queue = (
        Tun::over(near, "test").expect("a descriptor"),
        config(alone),
    );
    let made = Worker::all(vec![queue], (1, 2), [3; 32])
        .expect("a worker")
        .pop();
    let (mut worker, handle) = made.expect("a worker");
    let filter = Arc::new(Filter::default());
    let page = || {
        let (answer, answered) = mpsc::sync_channel(1);
        let wanted = page::PageWanted::new(Cursor::default(), &filter, Page::default(), answer);
        let sent = handle.requests.send(Request::Page(wanted));
        sent.expect("a worker that listens");
        answered
    };
    let stats = || {
        let (answer, answered) = mpsc::sync_channel(1);
        let sent = handle.requests.send(Request::Stats(answer));
        sent.expect("a worker that listens");
        answered
    };
    let (first, second, third, last) = (page(), stats(), page(), stats());
    // It is not asleep before the last has its answer.
    for expected in 1..=4 {
        assert!(worker.answer().is_continue());
        assert!(worker.unanswered);
        let pages = [&first, &third].map(|page| page.try_recv().is_ok());
        let stats = [&second, &last].map(|stats| stats.try_recv().is_ok());
        let now = [pages[0], stats[0], pages[1], stats[1]];
        let turn = [1, 2, 3, 4].map(|turn| turn == expected);
        assert_eq!(now, turn);
    }
    assert!(worker.answer().is_continue());
    assert!(!worker.unanswered);
}

/// Events of one kind each that have come, in words.
fn heard(ear: &mut Ear) -> Vec<String> {
    let events = std::iter::from_fn(|| ear.hear());
    let words = events.map(|heard| match heard.event.kind {
        EventKind::Opened { connection, .. } => format!("opened {}", connection.client.port()),
        EventKind::Closed { connection, cause } => {
            format!("closed {} {}", connection.client.port(), cause.name())
        }
        other => format!("{other:?}"),
    });
    words.collect()
}

#[test]
fn events_are_passed_on_to_all_who_listen_and_to_nobody_who_has_gone() {
    let mut bench = Bench::of(1);
    converse(&mut bench, 0, true);
    let mut ears = [(); 2].map(|()| bench.handles[0].listen(100));
    // It listens once it has answered the next question.
    bench.settled();
    converse(&mut bench, 1, true);
    bench.settled();
    let port = client(1).port();
    for ear in &mut ears {
        assert_eq!(heard(ear), [format!("opened {port}")]);
    }
    let [mut stays, goes] = ears;
    drop(goes);
    let at = (ISN_SERVER + 16_001, ISN_CLIENT + 101);
    let reset = packet(SERVER.into(), client(1), TcpFlags::RST, at);
    bench.put(0, &reset.bytes());
    bench.settled();
    assert_eq!(heard(&mut stays), [format!("closed {port} server_reset")]);
    assert!(!stays.is_over());
    // A ring that is full loses what comes, and the worker goes on.
    let mut narrow = bench.handles[0].listen(2);
    bench.settled();
    (2..10).for_each(|number| converse(&mut bench, number, true));
    assert_conserved(&mut bench);
    assert_eq!(heard(&mut stays).len(), 8);
    assert_eq!(heard(&mut narrow).len(), 2);
    assert_eq!(narrow.take_lost(), 6);
    drop(bench);
    assert!(stays.is_over());
}
