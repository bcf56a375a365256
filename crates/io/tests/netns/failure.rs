//! What cannot be done is told clearly, and leaves nothing.

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;

use flexcp_io::{KernelError, KernelTables, Plan, Tun, TunError};
use flexcp_translator::Prefix;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::host::{
    DEVICE, Neighbours, TABLE, assert_unchanged, assert_unchanged_but_device, ip, journal, plan,
    set_sysctl, snapshot, sysctl,
};
use crate::tables::Other;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("device_that_does_not_exist", device_that_does_not_exist),
    ("name_that_is_taken", name_that_is_taken),
    ("two_with_one_journal", two_with_one_journal),
    ("two_with_two_journals", two_with_two_journals),
    (
        "journal_that_is_something_else",
        journal_that_is_something_else,
    ),
    (
        "journal_that_others_have_written",
        journal_that_others_have_written,
    ),
    (
        "journal_that_cannot_be_written",
        journal_that_cannot_be_written,
    ),
    ("rule_in_the_way", rule_in_the_way),
    ("table_in_use", table_in_use),
    ("table_of_the_kernel", table_of_the_kernel),
    (
        "error_in_the_midst_takes_everything_back",
        error_in_the_midst,
    ),
    (
        "port_the_kernel_has_no_rule_for",
        port_the_kernel_has_no_rule_for,
    ),
    ("prefix_of_the_other_family", prefix_of_the_other_family),
    ("ipv6_switched_off", ipv6_switched_off),
    ("no_capability", no_capability),
];

/// Installing `plan` fails, says all of `words`, and changes nothing.
fn refused(plan: &Plan, words: &[&str]) -> KernelError {
    let before = snapshot();
    let error = KernelTables::install(plan, &mut |_| {}).unwrap_err();
    let message = error.to_string();
    println!("{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert_unchanged_but_device(&before);
    error
}

fn device_that_does_not_exist() {
    let _neighbours = Neighbours::new();
    refused(&plan(journal()), &["no interface flexcp0"]);
}

fn name_that_is_taken() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let before = snapshot();
    for name in [DEVICE, "cli"] {
        let error = Tun::open(name).unwrap_err();
        assert!(matches!(error, TunError::NameBusy { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(&format!("interface {name} ")), "{message}");
        // It may be somebody's.
        assert!(!message.contains("delete"), "{message}");
    }
    assert_unchanged(&before);
}

fn two_with_one_journal() {
    let _neighbours = Neighbours::new();
    let _tuns = [Tun::open(DEVICE).unwrap(), Tun::open("flexcp1").unwrap()];
    let first = plan(journal());
    let _tables = KernelTables::install(&first, &mut |_| {}).unwrap();
    let second = Plan {
        device: "flexcp1".into(),
        table: TABLE + 1,
        ..first
    };
    let error = refused(&second, &["another FlexCP is running", "device flexcp0"]);
    assert!(matches!(error, KernelError::Journal(_)));
}

fn two_with_two_journals() {
    let _neighbours = Neighbours::new();
    let _tuns = [Tun::open(DEVICE).unwrap(), Tun::open("flexcp1").unwrap()];
    let first = plan(journal());
    let _tables = KernelTables::install(&first, &mut |_| {}).unwrap();
    let journal = journal();
    let second = Plan {
        device: "flexcp1".into(),
        table: TABLE + 1,
        journal: journal.clone(),
        ..first
    };
    let error = refused(&second, &["another FlexCP is running", "flexcp0"]);
    assert!(matches!(error, KernelError::OtherInstance { .. }));
    assert!(!journal.exists());
}

fn journal_that_is_something_else() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let journal = journal();
    fs::create_dir_all(journal.parent().unwrap()).unwrap();
    let bad = journal.with_extension("json.bad");
    for text in [
        "not a journal",
        "{}",
        "{\"version\": 2}",
        "{\"version\": 1, \"dev",
    ] {
        fs::write(&journal, text).unwrap();
        let mut lines = Vec::new();
        let tables = KernelTables::install(&plan(journal.clone()), &mut |line| {
            lines.push(line.to_owned());
        });
        tables.unwrap().remove(&mut |_| {}).unwrap();
        let said = format!("journal: {} can't be believed (", journal.display());
        assert!(lines[0].starts_with(&said), "{lines:#?}");
        assert!(lines[0].contains("flexcp_offload"), "{lines:#?}");
        assert_eq!(fs::read_to_string(&bad).unwrap(), text);
        assert!(!journal.exists());
    }
    fs::remove_file(&bad).unwrap();
}

/// A journal that would have FlexCP write wherever it says.
fn journal_that_others_have_written() {
    let _neighbours = Neighbours::new();
    let journal = journal();
    let bad = journal.with_extension("json.bad");
    Other::start(&journal).kill();
    let own = fs::read_to_string(&journal).unwrap();
    let elsewhere = journal.with_extension("elsewhere");
    let takes = |write: &dyn Fn()| {
        write();
        let mut lines = Vec::new();
        KernelTables::clean_up(&journal, &mut |line| lines.push(line.to_owned())).unwrap();
        assert!(!journal.exists());
        fs::remove_file(&bad).unwrap();
        lines.retain(|line| !line.starts_with("rule: "));
        lines
    };
    let forged = own.replace("net/ipv4/ip_forward", "net/ipv4/../ipv4/ip_forward");
    assert_ne!(forged, own);
    let written = |text: &str, mode: u32| {
        fs::write(&journal, text).unwrap();
        fs::set_permissions(&journal, fs::Permissions::from_mode(mode)).unwrap();
    };
    let cases: [(&str, &dyn Fn()); 4] = [
        ("ip_forward", &|| written(&forged, 0o600)),
        ("others may write it", &|| written(&own, 0o620)),
        ("it belongs to user 4711", &|| {
            written(&own, 0o600);
            std::os::unix::fs::chown(&journal, Some(4711), None).unwrap();
        }),
        ("it is no regular file", &|| {
            fs::write(&elsewhere, &own).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &journal).unwrap();
        }),
    ];
    for (reason, write) in cases {
        let lines = takes(write);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(reason), "{reason}: {lines:#?}");
        assert_eq!(sysctl("ipv4/ip_forward"), "1", "{reason}");
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), own);

    // As it was written it is believed, also by root when the daemon had a user and a directory of its own.
    written(&own, 0o600);
    let directory = journal.parent().unwrap();
    for path in [directory, &journal] {
        std::os::unix::fs::chown(path, Some(4711), None).unwrap();
    }
    KernelTables::clean_up(&journal, &mut |_| {}).unwrap();
    assert_eq!(sysctl("ipv4/ip_forward"), "0");
    std::os::unix::fs::chown(directory, Some(0), None).unwrap();
    fs::remove_file(&elsewhere).unwrap();
}

fn journal_that_cannot_be_written() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    refused(
        &plan("/proc/flexcp/flexcp0.json".into()),
        &["cannot open the journal /proc/flexcp"],
    );
    // It can be opened, and not be replaced: nothing has been changed by then.
    let journal = journal();
    let next = journal.with_extension("json.next");
    fs::create_dir_all(&next).unwrap();
    refused(&plan(journal.clone()), &["cannot write the journal "]);
    fs::remove_dir(&next).unwrap();
    assert!(!journal.exists());
}

fn rule_in_the_way() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    ip("-6 rule add preference 1 from fd01::/64 lookup 99");
    refused(
        &plan(journal()),
        &[
            "ipv6 routing rule at preference 1",
            "from fd01::/64 -> table 99",
        ],
    );
    ip("-6 rule delete preference 1");
    ip("rule add preference 0 fwmark 0x1 lookup 99");
    refused(
        &plan(journal()),
        &[
            "ipv4 routing rule at preference 0",
            "fwmark 0x1 -> table 99",
        ],
    );
}

fn table_in_use() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    ip("-6 route add fd55::/64 dev cli table 7300");
    refused(&plan(journal()), &["ipv6 routes in routing table 7300"]);
}

fn table_of_the_kernel() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    for table in [0, 253, 254, 255] {
        let plan = Plan {
            table,
            ..plan(journal())
        };
        refused(&plan, &["is the kernel's own"]);
    }
}

fn error_in_the_midst() {
    let _neighbours = Neighbours::new();
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let journal = journal();
    let mut lines = 0;
    // Everything of IPv4 is there when the device vanishes.
    let error = KernelTables::install(&plan(journal.clone()), &mut |line| {
        lines += 1;
        if line.starts_with("rule: ipv4 2") {
            ip("link delete flexcp0");
        }
    })
    .unwrap_err();
    assert!(
        error.to_string().starts_with("cannot add the ipv6 route"),
        "{error}"
    );
    assert!(lines > 10);
    assert!(!journal.exists());
    drop(tun);
    assert_unchanged(&before);
}

fn port_the_kernel_has_no_rule_for() {
    let _neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let mut plan = plan(journal());
    for ports in [
        1024..=65535,
        65535..=65535,
        0..=0,
        RangeInclusive::new(90, 80),
    ] {
        plan.diversions[0].destination_ports = Some(ports);
        refused(&plan, &["cannot divert the ports"]);
    }
    // All ports are no selector, and those of the kernel's own limits are taken.
    for ports in [0..=65535, 1..=65535, 0..=65534, 65534..=65534] {
        plan.diversions[0].destination_ports = Some(ports.clone());
        plan.diversions[2].source_ports = Some(ports);
        KernelTables::install(&plan, &mut |_| {})
            .unwrap()
            .remove(&mut |_| {})
            .unwrap();
    }
    drop(tun);
}

fn prefix_of_the_other_family() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let mut plan = plan(journal());
    plan.diversions[0].source = Some(Prefix {
        addr: "fd01::".parse().unwrap(),
        len: 64,
    });
    refused(&plan, &["fd01::/64 is no ipv4 prefix"]);
    plan.diversions[0].source = Some(Prefix {
        addr: "10.0.0.0".parse().unwrap(),
        len: 33,
    });
    refused(&plan, &["10.0.0.0/33 is no ipv4 prefix"]);
    // Anything is a prefix too, and bits behind its length do not matter.
    plan.diversions[0].source = Some(Prefix {
        addr: "0.0.0.0".parse().unwrap(),
        len: 0,
    });
    plan.diversions[0].destination = Some(Prefix {
        addr: "10.9.1.2".parse().unwrap(),
        len: 16,
    });
    KernelTables::install(&plan, &mut |_| {})
        .unwrap()
        .remove(&mut |_| {})
        .unwrap();
}

fn ipv6_switched_off() {
    let _neighbours = Neighbours::new();
    set_sysctl("ipv6/conf/all/disable_ipv6", "1");
    set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    let _tun = Tun::open(DEVICE).unwrap();
    refused(&plan(journal()), &["ipv6 is disabled"]);
    let plan = Plan {
        v6: false,
        ..plan(journal())
    };
    KernelTables::install(&plan, &mut |_| {})
        .unwrap()
        .remove(&mut |_| {})
        .unwrap();
}

fn no_capability() {
    let _neighbours = Neighbours::new();
    let _tun = Tun::open(DEVICE).unwrap();
    let before = snapshot();
    let all = capabilities(None).unwrap();
    let mut few = all;
    few.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, few).unwrap();
    let device = Tun::open("flexcp1");
    let journal = journal();
    let tables = KernelTables::install(&plan(journal.clone()), &mut |_| {});
    set_capabilities(None, all).unwrap();

    let error = device.unwrap_err();
    assert!(matches!(error, TunError::NoPermission), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"));
    let error = tables.unwrap_err();
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    assert_unchanged(&before);
    assert!(!journal.exists());
}
