//! What is read from the rules of others: `nft` makes them, or the legacy `iptables`' system call.

use std::io;
use std::os::fd::AsRawFd as _;

use flexcp_io::{ClientLeg, Family, Zones, conntrack_is_active, marks_may_be_set};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::host::{DEVICE, Host, ip, sysctl};
use crate::netfilter::nft;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("conntrack_is_active_by_nothing", active_by_nothing),
    ("conntrack_is_active_by_a_rule", active_by_a_rule),
    ("conntrack_is_active_by_a_nat_chain", active_by_a_nat_chain),
    (
        "conntrack_is_active_by_a_set's_elements",
        active_by_elements,
    ),
    ("conntrack_is_active_by_an_object", active_by_an_object),
    ("conntrack_is_active_not_by_our_table", active_not_by_ours),
    (
        "conntrack_is_active_by_legacy_tables",
        active_by_legacy_tables,
    ),
    (
        "conntrack_is_active_by_its_connections",
        active_by_connections,
    ),
    ("marks_may_be_set_by_a_rule", marks_by_a_rule),
    ("marks_may_be_set_by_legacy_tables", marks_by_legacy_tables),
];

fn active_by_nothing() {
    assert!(!conntrack_is_active());
    nft(
        "table inet filter { chain forward { type filter hook forward priority 0; policy drop; \
         ip saddr 192.0.2.0/24 meta mark set 1 counter accept; }; }",
    );
    assert!(!conntrack_is_active());
}

fn active_by_a_rule() {
    // Whatever else there is, before it and behind it.
    for table in ["a", "z"] {
        nft(&format!(
            "table ip {table} {{ chain c {{ ip saddr 192.0.2.1 counter; tcp dport 80 accept; }}; }}"
        ));
    }
    assert!(!conntrack_is_active());
    for rule in [
        "ct state established",
        "ct mark 7",
        "ct zone set 3",
        "ct count over 9",
    ] {
        nft(&format!(
            "table ip m {{ chain c {{ tcp dport 80 {rule}; }}; }}"
        ));
        assert!(conntrack_is_active(), "{rule}");
        nft("delete table ip m");
        assert!(!conntrack_is_active());
    }
}

fn active_by_a_nat_chain() {
    nft("table ip6 nat { chain p { type nat hook postrouting priority 100; }; }");
    assert!(conntrack_is_active());
    nft("flush ruleset");
    assert!(!conntrack_is_active());
    nft(
        "table ip nat { chain p { type nat hook postrouting priority 100; oifname eth0 masquerade; }; }",
    );
    assert!(conntrack_is_active());
}

fn active_by_elements() {
    nft(
        "table ip t { set s { type ipv4_addr; size 99; flags dynamic; }; \
         chain c { tcp dport 80 add @s { ip saddr ct count over 3 } drop; }; }",
    );
    assert!(conntrack_is_active());
    nft("flush ruleset");
    nft(
        "table ip t { set s { type ipv4_addr; size 99; flags dynamic; }; \
         chain c { tcp dport 80 add @s { ip saddr limit rate 3/second } drop; }; }",
    );
    assert!(!conntrack_is_active());
}

fn active_by_an_object() {
    let counter = "counter x { }";
    let helper = "ct helper x { type \"ftp\" protocol tcp; }";
    for (object, rule, active) in [
        (counter, "counter name x", false),
        (helper, "ct helper set \"x\"", true),
    ] {
        nft(&format!(
            "table ip t {{ {object}; chain c {{ tcp dport 21 {rule}; }}; }}"
        ));
        assert_eq!(conntrack_is_active(), active, "{rule}");
        nft("flush ruleset");
    }
}

fn active_not_by_ours() {
    let zones = Zones::install(7, DEVICE, &[leg()]).unwrap();
    assert!(!conntrack_is_active());
    nft("table ip t { chain c { ct state established; }; }");
    assert!(conntrack_is_active());
    drop(zones);
    // One of the same name in another family is none of ours.
    nft("flush ruleset");
    nft("table ip flexcp { chain c { ct state established; }; }");
    assert!(conntrack_is_active());
}

fn active_by_legacy_tables() {
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        Host::new().run(move || {
            // Asking for a table makes it; a kernel may be without the legacy `iptables`.
            let _ = make_legacy_table(family, b"filter");
            assert!(!conntrack_is_active());
            let made = make_legacy_table(family, b"nat");
            assert_eq!(conntrack_is_active(), made.is_ok(), "{made:?}");
        });
    }
}

fn active_by_connections() {
    let count = || sysctl("netfilter/nf_conntrack_count");
    nft("table ip t { chain c { type filter hook output priority 0; ct state new; }; }");
    ip("address add 192.0.2.1 dev lo");
    let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    assert_ne!(count(), "0");
    nft("flush ruleset");
    assert_ne!(count(), "0");
    assert!(conntrack_is_active());
    // They may be there because of our table.
    let _zones = Zones::install(7, DEVICE, &[leg()]).unwrap();
    assert!(!conntrack_is_active());
}

fn marks_by_a_rule() {
    assert!(!marks_may_be_set().unwrap());
    for (rule, may) in [
        ("meta mark 7 accept", false),
        ("meta nftrace set 1", false),
        ("ct mark set meta mark", false),
        ("meta mark set 7", true),
        ("ip saddr 192.0.2.1 meta mark set ct mark counter", true),
        ("meta mark set ip daddr map { 192.0.2.1 : 1 }", true),
    ] {
        nft(&format!(
            "table ip m {{ chain c {{ type filter hook prerouting priority -150; {rule}; }}; }}"
        ));
        assert_eq!(marks_may_be_set().unwrap(), may, "{rule}");
        nft("flush ruleset");
    }
    // Our own table looks at marks and sets none.
    let marked = ClientLeg {
        except_mark: 3,
        ..leg()
    };
    let _zones = Zones::install(7, DEVICE, &[marked]).unwrap();
    assert!(!marks_may_be_set().unwrap());
}

fn marks_by_legacy_tables() {
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        Host::new().run(move || {
            let _ = make_legacy_table(family, b"filter");
            assert!(!marks_may_be_set().unwrap());
            let made = make_legacy_table(family, b"mangle");
            assert_eq!(marks_may_be_set().unwrap(), made.is_ok(), "{made:?}");
        });
    }
}

fn leg() -> ClientLeg {
    ClientLeg {
        interfaces: Vec::new(),
        destination: None,
        ports: None,
        except_mark: 0,
        family: Family::V4,
    }
}

/// Makes a table of the legacy `iptables` in this namespace, as a look at it does.
fn make_legacy_table(family: AddressFamily, name: &[u8]) -> io::Result<()> {
    const SO_GET_INFO: libc::c_int = 64;
    /// Of `struct ipt_getinfo`, which begins with the name.
    const INFO_LEN: usize = 32 + 4 * 13;
    let socket = socket_with(
        family,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(ipproto::RAW),
    )?;
    let level = match family {
        AddressFamily::INET => libc::IPPROTO_IP,
        _ => libc::IPPROTO_IPV6,
    };
    let mut info = [0_u8; INFO_LEN];
    info[..name.len()].copy_from_slice(name);
    let mut len = libc::socklen_t::try_from(INFO_LEN).unwrap();
    // SAFETY: `info` is `len` bytes long, which is all that the kernel writes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            SO_GET_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
