//! Another plan while packets flow: by difference, with a journal that is true at every moment.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use flexcp_io::{Diversion, Family, KernelTables, Plan, Tun};
use flexcp_translator::Prefix;

use crate::host::{
    DEVICE, Neighbours, assert_unchanged, assert_unchanged_but_device, ip, journal, plan,
    set_sysctl, snapshot, sysctl,
};
use crate::tables::{Other, say_installed};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("change_touches_only_what_differs", only_what_differs),
    ("change_of_family_and_back", family_and_back),
    ("changes_leave_nothing", changes_leave_nothing),
    ("refused_change_changes_nothing", refused_change),
    (
        "kill_in_the_midst_of_changes_leaves_what_can_be_undone",
        kill_in_the_midst,
    ),
];

/// The variable that makes this program change its plan until it is killed.
pub(crate) const CHANGING: &str = "FLEXCP_IO_CHANGING";

const PORTS: &str = "ipv4/ip_local_reserved_ports";

/// To another port of the servers.
fn to_port(port: u16) -> Diversion {
    let mut diversion = plan(PathBuf::new()).diversions[0].clone();
    diversion.destination_ports = Some(port..=port);
    diversion
}

/// What `ip` hears about rules while `change` is made.
fn heard(change: impl FnOnce()) -> Vec<String> {
    let mut monitor = Command::new("ip")
        .args(["-4", "monitor", "rule"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It says nothing when it listens.
    thread::sleep(Duration::from_millis(300));
    change();
    thread::sleep(Duration::from_millis(100));
    monitor.kill().unwrap();
    let mut text = String::new();
    let mut out = monitor.stdout.take().unwrap();
    out.read_to_string(&mut text).unwrap();
    monitor.wait().unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).collect()
}

fn only_what_differs() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let first = plan(journal());
    let mut tables = KernelTables::install(&first, &mut |_| {}).unwrap();
    let mut second = first.clone();
    // One goes and one comes, and the others stand in another order in the new plan.
    second.diversions.reverse();
    second
        .diversions
        .retain(|known| *known != first.diversions[1]);
    second.diversions.insert(0, to_port(443));
    let lines = heard(|| tables.change(&second, &mut |_| {}).unwrap());
    assert_eq!(
        lines,
        [
            "1: from all to 10.9.0.0/16 iif cli ipproto tcp dport 443 lookup 7300 proto 117",
            "Deleted 1: from 10.9.0.0/16 ipproto tcp sport 80 lookup 7300 proto 117",
        ]
    );
    let lines = heard(|| tables.change(&second, &mut |_| {}).unwrap());
    assert_eq!(lines, [""; 0]);
}

fn family_and_back() {
    let _neighbours = Neighbours::new();
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let both = plan(journal());
    let mut v6 = both.clone();
    v6.v4 = false;
    v6.diversions.retain(|known| known.family == Family::V6);
    let mut tables = KernelTables::install(&v6, &mut |_| {}).unwrap();
    let with_v6 = snapshot();
    assert_eq!(sysctl("ipv4/ip_forward"), "0");
    tables.change(&both, &mut |_| {}).unwrap();
    assert_eq!(sysctl("ipv4/ip_forward"), "1");
    assert!(ip("-4 rule").contains("to 10.1.0.1"));
    assert!(ip("-4 route show table 7300").contains("default dev flexcp0"));
    tables.change(&v6, &mut |_| {}).unwrap();
    assert_unchanged_but_device(&with_v6);
    tables.change(&both, &mut |_| {}).unwrap();
    tables.remove(&mut |_| {}).unwrap();
    drop(tun);
    assert_unchanged(&before);
}

/// Plans that differ in rules, families and ports.
fn plans(journal: PathBuf) -> [Plan; 3] {
    let mut first = plan(journal);
    first.reserved_ports = Some(50_000..=50_999);
    let mut second = first.clone();
    second.diversions.push(to_port(443));
    second.reserved_ports = Some(50_500..=51_999);
    let mut third = first.clone();
    third.v6 = false;
    third.reserved_ports = None;
    third.diversions = vec![to_port(8000)];
    [first, second, third]
}

fn changes_leave_nothing() {
    let _neighbours = Neighbours::new();
    set_sysctl(PORTS, "7,50001-50002");
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let journal = journal();
    let plans = plans(journal.clone());
    let mut tables = KernelTables::install(&plans[0], &mut |_| {}).unwrap();
    let ports = [
        "7,50000-50999",
        "7,50001-50002,50500-51999",
        "7,50001-50002",
    ];
    for at in [1, 2, 0, 2, 1, 0] {
        tables.change(&plans[at], &mut |_| {}).unwrap();
        assert_eq!(sysctl(PORTS), ports[at], "plan {at}");
        let noted = fs::read_to_string(&journal).unwrap();
        let of_ports = noted.matches("ip_local_reserved_ports").count();
        assert_eq!(of_ports, usize::from(at != 2), "{noted}");
    }
    tables.remove(&mut |_| {}).unwrap();
    assert!(!journal.exists());
    drop(tun);
    assert_unchanged(&before);
}

fn refused_change() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let journal = journal();
    let [first, mut second, v4] = plans(journal.clone());
    let mut tables = KernelTables::install(&v4, &mut |_| {}).unwrap();
    ip("-6 route add 2001:db8::/64 dev srv table 7300");
    let (before, noted) = (snapshot(), fs::read(&journal).unwrap());
    let mut refused = |plan: &Plan, words: &str| {
        let error = tables.change(plan, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_unchanged(&before);
        assert_eq!(fs::read(&journal).unwrap(), noted);
    };
    refused(&first, "there are ipv6 routes in routing table 7300");
    second.v6 = false;
    second.diversions.retain(|known| known.family == Family::V4);
    second.diversions[0].destination = Some(Prefix {
        addr: "fd09::".parse().unwrap(),
        len: 32,
    });
    refused(&second, "is no ipv4 prefix");
}

/// The child's part: changes its plan until it is killed.
pub(crate) fn change_and_change(journal: PathBuf) -> ! {
    let _tun = Tun::open(DEVICE).unwrap();
    let plans = plans(journal);
    let mut tables = KernelTables::install(&plans[0], &mut |_| {}).unwrap();
    say_installed();
    loop {
        for plan in &plans {
            tables.change(plan, &mut |_| {}).unwrap();
        }
    }
}

fn kill_in_the_midst() {
    let _neighbours = Neighbours::new();
    set_sysctl(PORTS, "7");
    let before = snapshot();
    for round in 0..12 {
        let journal = journal();
        let other = Other::start_as(CHANGING, &journal);
        // Each time elsewhere: a change takes some milliseconds.
        thread::sleep(Duration::from_micros(20_000 + 1_700 * round));
        other.kill();
        KernelTables::clean_up(&journal, &mut |_| {}).unwrap();
        assert_unchanged(&before);
    }
}
