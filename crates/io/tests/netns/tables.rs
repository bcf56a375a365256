//! What is installed, and that nothing of it stays.

use std::fs::DirEntry;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use flexcp_io::{KernelError, KernelTables, Plan, Tun};

use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open,
    set_parent_process_death_signal,
};

use crate::host::{
    CRASH, DEVICE, Neighbours, assert_unchanged, assert_unchanged_but_device, ip, journal, plan,
    set_sysctl, snapshot, sysctl,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("rules_stand_in_order", rules_stand_in_order),
    (
        "removal_leaves_everything_as_it_was",
        removal_leaves_everything_as_it_was,
    ),
    (
        "drop_leaves_everything_as_it_was",
        drop_leaves_everything_as_it_was,
    ),
    (
        "install_after_a_crash_takes_back_what_it_left",
        install_after_a_crash,
    ),
    (
        "clean_up_after_a_crash_takes_back_what_it_left",
        clean_up_after_a_crash,
    ),
    (
        "clean_up_takes_back_what_leads_to_a_device_that_was_kept",
        clean_up_of_a_kept_device,
    ),
    (
        "clean_up_after_nothing_changes_nothing",
        clean_up_after_nothing,
    ),
    (
        "journal_of_another_namespace_is_not_restored",
        journal_of_another_namespace,
    ),
    (
        "switch_changed_by_others_is_left_alone",
        switch_changed_by_others,
    ),
    (
        "rules_where_local_does_not_come_first",
        rules_where_local_does_not_come_first,
    ),
    (
        "interface_that_comes_and_goes",
        interface_that_comes_and_goes,
    ),
];

fn rules_stand_in_order() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let mut lines = Vec::new();
    let tables =
        KernelTables::install(&plan(journal()), &mut |line| lines.push(line.to_owned())).unwrap();
    let rules = |family| {
        ip(&format!("{family} -details rule"))
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        rules("-4"),
        [
            "0: from all iif lo goto 1 proto 117",
            "0: from all iif flexcp0 goto 1 proto 117",
            "0: from all to 10.1.0.1 ipproto tcp dport 8080-8081 lookup 7300 proto 117",
            "0: from all lookup local proto kernel",
            "1: from all lookup local proto 117",
            "1: from all iif lo goto 2 proto 117",
            "1: from all iif flexcp0 goto 2 proto 117",
            "1: from all to 10.9.0.0/16 iif cli ipproto tcp dport 80 lookup 7300 proto 117",
            "1: from 10.9.0.0/16 ipproto tcp sport 80 lookup 7300 proto 117",
            "2: from all nop proto 117",
            "32766: from all lookup main proto kernel",
            "32767: from all lookup default proto kernel",
        ]
    );
    assert_eq!(
        rules("-6"),
        [
            "0: from all lookup local proto kernel",
            "1: from all iif lo goto 2 proto 117",
            "1: from all iif flexcp0 goto 2 proto 117",
            "1: from all to fd09::/32 iif cli ipproto tcp dport 80 lookup 7300 proto 117",
            "1: from fd09::/32 ipproto tcp sport 80 lookup 7300 proto 117",
            "2: from all nop proto 117",
            "32766: from all lookup main proto kernel",
        ]
    );
    assert_eq!(
        ip("-4 route show table 7300").trim(),
        "default dev flexcp0 proto 117 scope link"
    );
    assert!(
        ip("-6 route show table 7300").starts_with("default dev flexcp0 proto 117 metric 1024")
    );
    for expected in [
        "sysctl: net/ipv4/ip_forward = 1 (was 0)",
        "link: flexcp0 up, mtu 65535",
        "route: ipv4 default via flexcp0 in table 7300",
        "rule: ipv4 0: iif lo -> rule 1",
        "rule: ipv4 0: to 10.1.0.1/32 tcp dport 8080-8081 -> table 7300",
        "rule: ipv4 1: iif cli to 10.9.0.0/16 tcp dport 80 -> table 7300",
        "rule: ipv6 2: all -> next rule",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected:?} not in {lines:#?}"
        );
    }
    tables.remove(&mut |_| {}).unwrap();
}

/// Switches as they may be on a real host: each has another value than FlexCP wants.
fn unusual_switches() {
    for (key, value) in [
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv4/conf/cli/rp_filter", "2"),
        ("ipv4/conf/srv/forwarding", "1"),
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv6/conf/srv/forwarding", "1"),
        ("ipv6/conf/srv/accept_ra", "0"),
        ("ipv4/ip_local_reserved_ports", "1000,50001-50002,65535"),
    ] {
        set_sysctl(key, value);
    }
}

fn reserving(mut plan: Plan) -> Plan {
    plan.reserved_ports = Some(50000..=50999);
    plan
}

fn removal_leaves_everything_as_it_was() {
    let _neighbours = Neighbours::new();
    unusual_switches();
    let before = snapshot();
    let journal = journal();
    let tun = Tun::open(DEVICE).unwrap();
    let with_device = snapshot();
    let tables = KernelTables::install(&reserving(plan(journal.clone())), &mut |_| {}).unwrap();
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/cli/rp_filter", "2"),
        ("ipv4/conf/srv/rp_filter", "1"),
        ("ipv4/conf/default/rp_filter", "1"),
        ("ipv4/conf/flexcp0/rp_filter", "0"),
        ("ipv4/conf/flexcp0/accept_local", "1"),
        ("ipv4/conf/flexcp0/disable_xfrm", "1"),
        ("ipv4/conf/flexcp0/disable_policy", "1"),
        ("ipv4/conf/flexcp0/forwarding", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/cli/accept_ra", "2"),
        ("ipv6/conf/srv/accept_ra", "0"),
        ("ipv6/conf/default/accept_ra", "2"),
        ("ipv4/ip_local_reserved_ports", "1000,50000-50999,65535"),
    ] {
        assert_eq!(sysctl(key), value, "{key}");
    }
    assert!(
        fs::read_to_string(&journal)
            .unwrap()
            .contains("net/ipv4/ip_forward")
    );
    tables.remove(&mut |line| println!("{line}")).unwrap();
    assert!(!journal.exists());
    assert_unchanged_but_device(&with_device);
    drop(tun);
    assert_unchanged(&before);
}

fn drop_leaves_everything_as_it_was() {
    let _neighbours = Neighbours::new();
    unusual_switches();
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&reserving(plan(journal())), &mut |_| {}).unwrap();
    // The device first: the routes go with it.
    drop(tun);
    drop(tables);
    assert_unchanged(&before);
}

/// The child's part: installs, tells so, and waits to be killed.
pub(crate) fn install_and_hang(journal: PathBuf) -> ! {
    let _tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&reserving(plan(journal)), &mut |_| {}).unwrap();
    hang()
}

/// Tells the parent that all is installed, and waits to be killed.
pub(crate) fn hang() -> ! {
    say_installed();
    loop {
        thread::sleep(Duration::MAX);
    }
}

/// Tells the parent that all is installed; the end of the parent is the end of this.
pub(crate) fn say_installed() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    println!("installed");
    std::io::stdout().flush().unwrap();
}

/// A process in this namespace that has installed everything.
pub(crate) struct Other(Child);

impl Other {
    pub(crate) fn start(journal: &PathBuf) -> Self {
        Self::start_as(CRASH, journal)
    }

    /// `part`: the variable that tells the child what it is.
    pub(crate) fn start_as(part: &str, journal: &PathBuf) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(part, journal)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = [0; 10];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut told)
            .unwrap();
        assert_eq!(&told, b"installed\n");
        Self(child)
    }

    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Its queue of the device, for this process to have, too.
    fn queue(&self) -> OwnedFd {
        let directory = format!("/proc/{}/fd", self.0.id());
        let mut files = fs::read_dir(directory).unwrap().flatten();
        let is_queue = |file: &DirEntry| {
            fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == "/dev/net/tun")
        };
        let queue = files.find(is_queue).unwrap().file_name();
        let number = queue.to_str().unwrap().parse().unwrap();
        let process = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap();
        pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn install_after_a_crash() {
    let _neighbours = Neighbours::new();
    unusual_switches();
    let before = snapshot();
    let journal = journal();
    Other::start(&journal).kill();
    assert!(journal.exists() && ip("rule").contains("7300"));

    let mut lines = Vec::new();
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan(journal.clone()), &mut |line| {
        lines.push(line.to_owned())
    })
    .unwrap();
    assert!(lines[0].ends_with("removed"), "{lines:#?}");
    assert!(
        lines.contains(&"sysctl: net/ipv4/ip_forward = 0 again".to_owned()),
        "{lines:#?}"
    );
    // This run reserves no ports.
    assert_eq!(
        sysctl("ipv4/ip_local_reserved_ports"),
        "1000,50001-50002,65535"
    );
    tables.remove(&mut |_| {}).unwrap();
    drop(tun);
    assert_unchanged(&before);
    assert!(!journal.exists());
}

fn clean_up_after_a_crash() {
    let _neighbours = Neighbours::new();
    unusual_switches();
    let before = snapshot();
    let journal = journal();
    let other = Other::start(&journal);
    let during = snapshot();
    let error = KernelTables::clean_up(&journal, &mut |_| {}).unwrap_err();
    assert!(
        error.to_string().contains("another FlexCP is running"),
        "{error}"
    );
    let elsewhere = journal.with_extension("elsewhere");
    let error = KernelTables::clean_up(&elsewhere, &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, KernelError::OtherInstance { .. }),
        "{error}"
    );
    assert_unchanged(&during);
    other.kill();
    ip("route add default dev cli table 7300 proto 117");
    let mut lines = Vec::new();
    KernelTables::clean_up(&journal, &mut |line| lines.push(line.to_owned())).unwrap();
    assert_unchanged(&before);
    assert!(!journal.exists());
    for expected in [
        "sysctl: net/ipv4/ip_forward = 0 again",
        "rule: ipv4 1: iif lo -> rule 2 removed",
        "route: ipv4 of table 7300 removed",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:#?}"
        );
    }
}

fn clean_up_of_a_kept_device() {
    let _neighbours = Neighbours::new();
    let before = snapshot();
    let journal = journal();
    let other = Other::start(&journal);
    // The device outlives the process, as it does when the service manager has it.
    let kept = other.queue();
    other.kill();
    assert!(ip("rule").contains(&format!("iif {DEVICE} ")));
    KernelTables::clean_up(&journal, &mut |_| {}).unwrap();
    assert!(!journal.exists());
    drop(kept);
    assert_unchanged(&before);
}

fn clean_up_after_nothing() {
    let _neighbours = Neighbours::new();
    let before = snapshot();
    let journal = journal();
    KernelTables::clean_up(&journal, &mut |line| panic!("{line}")).unwrap();
    let nowhere = journal.with_extension("d").join("flexcp0.json");
    KernelTables::clean_up(&nowhere, &mut |line| panic!("{line}")).unwrap();
    assert_unchanged(&before);
    assert!(!journal.exists() && !nowhere.parent().unwrap().exists());
}

fn journal_of_another_namespace() {
    let neighbours = Neighbours::new();
    let journal = journal();
    Other::start(&journal).kill();
    neighbours.client.run(move || {
        set_sysctl("ipv4/ip_forward", "1");
        let before = snapshot();
        let mut lines = Vec::new();
        KernelTables::clean_up(&journal, &mut |line| lines.push(line.to_owned())).unwrap();
        assert!(lines.len() == 1 && lines[0].starts_with("journal: of network namespace net:["));
        assert_unchanged(&before);
    });
}

fn switch_changed_by_others() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&reserving(plan(journal())), &mut |_| {}).unwrap();
    set_sysctl("ipv4/ip_local_reserved_ports", "7");
    let mut lines = Vec::new();
    tables
        .remove(&mut |line| lines.push(line.to_owned()))
        .unwrap();
    assert_eq!(sysctl("ipv4/ip_local_reserved_ports"), "7");
    assert_eq!(sysctl("ipv4/ip_forward"), "0");
    assert!(
        lines.iter().any(|line| line.contains("left at 7")),
        "{lines:#?}"
    );
}

/// As hosts with VRFs have it.
fn rules_where_local_does_not_come_first() {
    let _neighbours = Neighbours::new();
    for family in ["-4", "-6"] {
        ip(&format!("{family} rule add preference 32765 lookup local"));
        ip(&format!("{family} rule delete preference 0"));
        ip(&format!(
            "{family} rule add preference 900 from all fwmark 0x77 lookup 99"
        ));
    }
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    let rules = ip("rule");
    assert!(rules.contains("0:	from all iif lo goto 1 "), "{rules}");
    assert!(rules.contains("1:	from all nop"), "{rules}");
    assert!(!rules.contains("0:	from all lookup local"), "{rules}");
    tables.remove(&mut |_| {}).unwrap();
    drop(tun);
    assert_unchanged(&before);
}

fn interface_that_comes_and_goes() {
    let neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    ip("link add new0 type veth peer name new1");
    ip("link delete cli");
    drop(neighbours);
    let mut lines = Vec::new();
    tables
        .remove(&mut |line| lines.push(line.to_owned()))
        .unwrap();
    drop(tun);
    assert_eq!(sysctl("ipv4/ip_forward"), "0");
    assert_eq!(sysctl("ipv4/conf/new0/forwarding"), "0");
    assert!(!ip("rule").contains("117"));
}
