//! What others take away is put back, in its order and within a second; what others do for themselves is left alone.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flexcp_io::{
    KernelError, KernelTables, Look, Mended, Tun, Waker, Watch, monotonic_micros, wait,
};

use crate::host::{DEVICE, Neighbours, assert_unchanged, ip, journal, plan, snapshot, sysctl};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("watch_rules_flushed", rules_flushed),
    ("watch_one_rule_deleted_each_in_turn", one_rule_each),
    ("watch_local_comes_before_ours", local_before_ours),
    ("watch_local_moved_as_by_a_vrf", local_moved),
    ("watch_routes_flushed", routes_flushed),
    ("watch_device_down", device_down),
    ("watch_device_renamed", device_renamed),
    ("watch_device_deleted", device_deleted),
    ("watch_foreign_rule_in_the_way", foreign_rule_in_the_way),
    ("watch_foreign_changes_change_nothing", foreign_changes),
    ("watch_too_often_waits_for_the_minute", too_often),
    ("watch_one_after_the_other", one_after_the_other),
    ("watch_events_lost", events_lost),
    ("watch_interface_missing_at_the_start", interface_missing),
];

/// FlexCP's tables as they are installed, and who watches them.
struct Watched {
    _neighbours: Neighbours,
    tun: Option<Tun>,
    tables: KernelTables,
    watch: Watch,
    waker: Waker,
}

impl Watched {
    fn new() -> Self {
        let neighbours = Neighbours::new();
        let tun = Tun::open(DEVICE).unwrap();
        let watch = Watch::open().unwrap();
        let mut watched = Self {
            _neighbours: neighbours,
            tun: Some(tun),
            tables: KernelTables::install(&plan(journal()), &mut |_| {}).unwrap(),
            watch,
            waker: Waker::new().unwrap(),
        };
        watched.rests();
        watched
    }

    /// Waits until a look is due, at most so long, and looks.
    fn look(&mut self, patience: Duration) -> Option<Result<Look, KernelError>> {
        let deadline = monotonic_micros() + u64::try_from(patience.as_micros()).unwrap();
        loop {
            let now = monotonic_micros();
            self.watch.note(now).unwrap();
            if self.watch.due().is_some_and(|due| due <= now) {
                return Some(self.watch.look(&mut self.tables, now));
            }
            if now >= deadline {
                return None;
            }
            let until = self.watch.due().unwrap_or(deadline).min(deadline);
            let timeout = Duration::from_micros(until - now);
            wait(&self.watch, &self.waker, Some(timeout)).unwrap();
        }
    }

    /// Looks until nothing happens any more: all is as it should be, and looking calls for no further look.
    fn rests(&mut self) -> Vec<Look> {
        let mut looks = Vec::new();
        while let Some(look) = self.look(Duration::from_millis(500)) {
            let look = look.unwrap();
            assert!(look.found.is_empty(), "{look:?}");
            looks.push(look);
            assert!(looks.len() < 20, "looks without end");
        }
        looks
    }

    /// Does `disturb`, and has all of it put back within a second.
    fn mends(&mut self, disturb: impl FnOnce()) -> Mended {
        let before = snapshot();
        disturb();
        assert_ne!(snapshot(), before);
        let began = Instant::now();
        let mut found = Mended::default();
        while found.is_empty() {
            let left = Duration::from_secs(1).saturating_sub(began.elapsed());
            let look = self.look(left).expect("nothing put back within a second");
            let look = look.unwrap();
            assert!(look.put_back && look.problems.is_empty(), "{look:?}");
            found = look.found;
        }
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_unchanged(&before);
        self.rests();
        found
    }

    fn ends(self) {
        self.tables.remove(&mut |_| {}).unwrap();
        drop(self.tun);
        assert!(!ip("rule").contains("117") && !ip("-6 rule").contains("117"));
    }
}

fn counts(rules: u32, routes: u32, device: u32) -> Mended {
    Mended {
        rules,
        routes,
        device,
        failed: 0,
    }
}

fn rules_flushed() {
    let mut watched = Watched::new();
    // It leaves those at preference 0, and gotos without a target.
    let mended = watched.mends(|| {
        ip("rule flush protocol 117");
        assert!(ip("rule").contains("[unresolved]"));
        ip("-6 rule flush protocol 117");
    });
    assert_eq!(mended, counts(11, 0, 0));
    let mended = watched.mends(|| {
        while ip("-details rule").contains("117") {
            ip("rule delete protocol 117");
        }
    });
    // `lookup local` too, which had come to the front, and is taken away there.
    assert_eq!(mended, counts(11, 0, 0));
    watched.ends();
}

/// Whatever is missing, all is in its order again, and gotos lead where they should.
fn one_rule_each() {
    let mut watched = Watched::new();
    let listener = TcpListener::bind("10.1.0.1:8080").unwrap();
    for family in ["-4", "-6"] {
        let rules = ip(&format!("{family} rule"));
        let ours = rules.lines().filter(|line| line.contains("proto 117"));
        let mut number = 0;
        for line in ours {
            let (preference, words) = line.split_once(':').unwrap();
            let rule = words.replace("from all", "").replace("nop", "type nop");
            // Not one that is like it at another preference.
            watched.mends(|| {
                ip(&format!(
                    "{family} rule delete preference {preference} {rule}"
                ));
            });
            // Ten times a minute are enough for a test of a minute, not for one of a second.
            watched.watch = Watch::open().unwrap();
            number += 1;
            // This host's own connections find its own addresses, although what they go to is diverted.
            let client =
                TcpStream::connect_timeout(&listener.local_addr().unwrap(), Duration::from_secs(1));
            client.unwrap_or_else(|error| panic!("without {line}: {error}"));
        }
        assert!(number >= 5, "{rules}");
    }
    watched.ends();
}

fn local_before_ours() {
    let mut watched = Watched::new();
    watched.mends(|| {
        let rule = ip("rule");
        assert!(rule.starts_with("0:\tfrom all iif lo goto 1"), "{rule}");
        for rule in ["iif lo goto 1", "iif flexcp0 goto 1"] {
            ip(&format!("rule delete preference 0 {rule}"));
            // Behind `lookup local`, where they are of no use.
            ip(&format!("rule add preference 0 {rule} protocol 117"));
        }
    });
    watched.ends();
}

/// `ip vrf` has `lookup local` behind the rule for VRFs: those that skip ours then find it there.
fn local_moved() {
    let mut watched = Watched::new();
    ip("rule add preference 32765 lookup local");
    ip("rule delete preference 0 lookup local");
    let look = watched.look(Duration::from_secs(1)).unwrap().unwrap();
    assert!(look.put_back && !look.found.is_empty(), "{look:?}");
    watched.rests();
    let rules = ip("rule");
    assert!(rules.contains("1:\tfrom all nop proto 117"), "{rules}");
    assert!(!rules.contains("1:\tfrom all lookup local"), "{rules}");
    watched.ends();
}

fn routes_flushed() {
    let mut watched = Watched::new();
    let mended = watched.mends(|| {
        ip("route flush table 7300");
        ip("-6 route flush table 7300");
    });
    assert_eq!(mended, counts(0, 2, 0));
    watched.ends();
}

fn device_down() {
    let mut watched = Watched::new();
    let mended = watched.mends(|| {
        ip("link set flexcp0 down");
    });
    assert_eq!(mended, counts(0, 2, 1));
    watched.ends();
}

fn device_renamed() {
    let mut watched = Watched::new();
    let mended = watched.mends(|| {
        ip("link set flexcp0 down");
        ip("link set flexcp0 name other0");
    });
    assert_eq!(mended, counts(0, 2, 2));
    watched.ends();
}

fn device_deleted() {
    let mut watched = Watched::new();
    ip("link delete flexcp0");
    let gone = watched.look(Duration::from_secs(1)).unwrap().unwrap_err();
    assert!(matches!(gone, KernelError::DeviceGone { .. }), "{gone}");
    assert!(gone.to_string().contains("flexcp0"), "{gone}");
    watched.ends();
}

/// It is told, and ours are put back around it all the same.
fn foreign_rule_in_the_way() {
    let mut watched = Watched::new();
    ip("rule add preference 1 fwmark 0x7 lookup 99");
    let look = watched.look(Duration::from_secs(1)).unwrap().unwrap();
    assert!(look.found.is_empty(), "{look:?}");
    assert_eq!(look.problems.len(), 1, "{look:?}");
    assert!(look.problems[0].contains("fwmark 0x7"), "{look:?}");
    let rules = ip("rule");
    ip("rule delete preference 1 iif lo goto 2");
    let look = watched.look(Duration::from_secs(1)).unwrap().unwrap();
    assert!(look.put_back && !look.found.is_empty(), "{look:?}");
    watched.rests();
    let ours = |rules: &str| -> Vec<String> {
        let ours = rules.lines().filter(|line| line.contains("117"));
        ours.map(str::to_owned).collect()
    };
    assert_eq!(ours(&ip("rule")), ours(&rules));
    ip("rule delete preference 1 fwmark 0x7");
    let looks = watched.rests();
    assert!(looks.last().unwrap().problems.is_empty(), "{looks:?}");
    watched.ends();
}

fn foreign_changes() {
    let mut watched = Watched::new();
    let rules = ip("rule");
    for arguments in [
        "rule add preference 1000 fwmark 0x7 lookup 99",
        "route add 192.0.2.0/24 via 10.9.0.2",
        "route add default via 10.9.0.2 table 99",
        "link add new0 type veth peer name new1",
        "address add 192.0.2.7/32 dev lo",
        "link set srv mtu 1400",
    ] {
        ip(arguments);
        // Each is noticed, and nothing is done about it.
        let looks = watched.rests();
        assert!(!looks.is_empty(), "{arguments}");
        assert!(looks.iter().all(|look| look.problems.is_empty()));
    }
    ip("rule delete preference 1000");
    assert_eq!(ip("rule"), rules);
    watched.rests();
    crate::host::set_sysctl("ipv4/ip_forward", "0");
    assert!(!watched.rests().is_empty(), "forwarding is not noticed");
    assert_eq!(sysctl("ipv4/ip_forward"), "0");
    watched.ends();
}

fn too_often() {
    const MINUTE: u64 = 60_000_000;
    let mut watched = Watched::new();
    let now = monotonic_micros();
    let flush = || ip("rule flush protocol 117");
    for time in 0..10 {
        flush();
        let look = watched.watch.look(&mut watched.tables, now + time).unwrap();
        assert!(look.put_back && !look.found.is_empty(), "{time}: {look:?}");
        assert!(look.problems.is_empty(), "{look:?}");
    }
    let right = ip("rule");
    flush();
    let flushed = ip("rule");
    for time in [now + 10, now + MINUTE / 2] {
        let look = watched.watch.look(&mut watched.tables, time).unwrap();
        assert!(!look.put_back && !look.found.is_empty(), "{look:?}");
        assert!(look.problems[0].contains("more than 10 times"), "{look:?}");
        assert_eq!(ip("rule"), flushed);
        assert_eq!(watched.watch.due(), Some(now + MINUTE));
    }
    let look = watched
        .watch
        .look(&mut watched.tables, now + MINUTE)
        .unwrap();
    assert!(look.put_back && look.problems.is_empty(), "{look:?}");
    assert_eq!(ip("rule"), right);
    watched.ends();
}

/// Who takes away one after the other, more slowly than they are put back, comes to an end before that is too often.
fn one_after_the_other() {
    let mut watched = Watched::new();
    let before = ip("rule");
    let mut times = 0;
    let mut look = |watched: &mut Watched, patience| {
        while let Some(look) = watched.look(patience) {
            let look = look.unwrap();
            assert!(look.problems.is_empty(), "{times}: {look:?}");
            times += u32::from(!look.found.is_empty());
        }
    };
    // Where `ip` takes long, as under emulation, fewer: it would be too often in the end.
    let began = Instant::now();
    for _ in 0..40 {
        if began.elapsed() > Duration::from_secs(1) {
            break;
        }
        if ip("rule").contains("117") {
            ip("rule delete protocol 117");
        }
        look(&mut watched, Duration::from_millis(5));
    }
    look(&mut watched, Duration::from_secs(1));
    assert_eq!(ip("rule"), before);
    assert!(times > 1, "{times}");
    watched.ends();
}

/// More than the socket holds: the kernel drops, and everything is looked at.
fn events_lost() {
    let mut watched = Watched::new();
    let mut batch = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = String::new();
    for number in 0..2000 {
        let (high, low) = (number / 250, number % 250);
        lines += &format!("route add 172.16.{high}.{low}/32 via 10.9.0.2\n");
    }
    lines += "rule delete preference 2 type nop\n";
    batch
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    assert!(batch.wait().unwrap().success());
    assert!(drops() > 0, "no event got lost");
    let look = watched.look(Duration::from_secs(1)).unwrap().unwrap();
    assert!(look.put_back && look.found == counts(1, 0, 0), "{look:?}");
    watched.rests();
    watched.ends();
}

/// Messages that the namespace's netlink sockets have lost.
fn drops() -> u64 {
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let mut lines = sockets.lines();
    let column = lines.next().unwrap().split_whitespace();
    let column = column.clone().position(|word| word == "Drops").unwrap();
    lines
        .map(|line| line.split_whitespace().nth(column).unwrap())
        .map(|drops| drops.parse::<u64>().unwrap())
        .sum()
}

/// The rules are there by name, and work as soon as there is an interface of that name.
fn interface_missing() {
    let neighbours = Neighbours::new();
    // Then the interfaces that the plan names are looked at one by one.
    crate::host::set_sysctl("ipv4/ip_forward", "1");
    ip("link set cli down");
    ip("link set cli name gone");
    let _tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    assert!(ip("rule").contains("iif cli [detached]"));
    ip("link set gone name cli");
    ip("link set cli up");
    assert!(!ip("rule").contains("[detached]"));
    tables.remove(&mut |_| {}).unwrap();
    drop(neighbours);
}
