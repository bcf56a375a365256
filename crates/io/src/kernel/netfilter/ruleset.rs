//! What the rules of this network namespace ask for, whoever has made them: nf_tables, also where `iptables` writes its
//! rules there, and the tables of the legacy `iptables`.

use std::ffi::c_int;
use std::fs;
use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::super::netlink::NetlinkError;
use super::message::{Message, attribute, attributes};
use super::rule::number;
use super::zones::TABLE;
use super::{Kernel, NetfilterError};

/// Whether connections are tracked in this network namespace: rules of nf_tables or `iptables` match on conntrack or
/// translate addresses, or there are connections in its table. The table that [`Zones`](super::Zones) makes does not
/// count; while it is there, neither do the connections, for they may be its doing.
///
/// What cannot be told counts as if it were so: when the kernel refuses to list the rules, and when the legacy
/// `iptables` is loaded, but the list of its tables is readable by root alone and nothing says that there is none
/// for NAT.
#[must_use]
pub fn conntrack_is_active() -> bool {
    is_legacy_table(&["nat"]) || rules_track().unwrap_or(true)
}

/// Whether something in netfilter of this network namespace can set the mark of packets before they are routed: rules of
/// nf_tables or `iptables`, or the legacy `iptables`, of which it only looks for the tables
/// `mangle`, `raw` and `nat`, as [`conntrack_is_active`] does for the last.
///
/// # Errors
/// When the kernel refuses to list the rules.
pub fn marks_may_be_set() -> Result<bool, NetfilterError> {
    if is_legacy_table(&["mangle", "raw", "nat"]) {
        return Ok(true);
    }
    let rules_mark = || match Kernel::open(NETLINK_NETFILTER) {
        Err(error) if is_absent(&error) => Ok(false),
        kernel => kernel?.has_rule_with(marks),
    };
    rules_mark().map_err(|source| NetfilterError::Refused {
        action: "list netfilter's rules",
        source,
    })
}

fn rules_track() -> Result<bool, NetlinkError> {
    let mut kernel = match Kernel::open(NETLINK_NETFILTER) {
        Err(error) if is_absent(&error) => return Ok(connections() > 0),
        kernel => kernel?,
    };
    let chains = kernel.list(libc::NFT_MSG_GETCHAIN, Chain::of)?;
    if chains.contains(&Chain::Nat) {
        return Ok(true);
    }
    if !chains.contains(&Chain::OfFlexCp) && connections() > 0 {
        return Ok(true);
    }
    kernel.has_rule_with(tracks)
}

impl Kernel {
    /// What `read` makes of each of nf_tables' things of a kind; nothing if there is no nf_tables.
    fn list<T>(
        &mut self,
        kind: c_int,
        read: impl Fn(&Message) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let all = Message::netfilter(libc::NFNL_SUBSYS_NFTABLES, kind, libc::NFPROTO_UNSPEC);
        match self.dump(&all, read) {
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            list => list,
        }
    }

    fn has_rule_with(&mut self, is: fn(&Expression<'_>) -> bool) -> Result<bool, NetlinkError> {
        let found = self.list(libc::NFT_MSG_GETRULE, |rule| {
            let body = rule.body(NFGENMSG_LEN);
            let of_others = !is_of_flexcp(rule);
            (of_others && any(attribute(body, NFTA_RULE_EXPRESSIONS), is)).then_some(())
        })?;
        Ok(!found.is_empty())
    }
}

/// What matters about a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Chain {
    OfFlexCp,
    Nat,
}

impl Chain {
    fn of(message: &Message) -> Option<Self> {
        if is_of_flexcp(message) {
            return Some(Self::OfFlexCp);
        }
        let kind = attribute(message.body(NFGENMSG_LEN), NFTA_CHAIN_TYPE);
        (words(kind) == b"nat").then_some(Self::Nat)
    }
}

/// A chain or a rule; both name their table in the same attribute.
fn is_of_flexcp(message: &Message) -> bool {
    message.family() == libc::NFPROTO_INET
        && words(attribute(message.body(NFGENMSG_LEN), NFTA_TABLE)) == TABLE.as_bytes()
}

/// A step of a rule.
#[derive(Debug)]
struct Expression<'a> {
    name: &'a [u8],
    data: &'a [u8],
}

impl<'a> Expression<'a> {
    fn of(element: &'a [u8]) -> Self {
        Self {
            name: words(attribute(element, NFTA_EXPR_NAME)),
            data: attribute(element, NFTA_EXPR_DATA),
        }
    }

    /// The name of the extension of `iptables`, if it is one.
    fn extension(&self) -> &'a [u8] {
        words(attribute(self.data, NFTA_TARGET_NAME))
    }
}

/// Whether it has connections tracked.
fn tracks(expression: &Expression<'_>) -> bool {
    match expression.name {
        b"ct" | b"nat" | b"masq" | b"redir" | b"connlimit" | b"flow_offload" | b"synproxy" => true,
        b"objref" => {
            let kind = attribute(expression.data, NFTA_OBJREF_IMM_TYPE);
            kind.try_into()
                .is_ok_and(|kind| TRACKING_OBJECTS.contains(&u32::from_be_bytes(kind)))
        }
        b"match" => TRACKING_MATCHES.contains(&expression.extension()),
        b"target" => TRACKING_TARGETS.contains(&expression.extension()),
        _ => false,
    }
}

/// Whether it sets the mark of packets.
fn marks(expression: &Expression<'_>) -> bool {
    match expression.name {
        b"meta" => {
            let data = expression.data;
            let key = attribute(data, NFTA_META_KEY);
            !attribute(data, NFTA_META_SREG).is_empty() && key == number(libc::NFT_META_MARK)
        }
        b"target" => MARKING_TARGETS.contains(&expression.extension()),
        _ => false,
    }
}

/// Whether one of a list of expressions is so, or one that makes elements of sets has such a one for each.
fn any(list: &[u8], is: fn(&Expression<'_>) -> bool) -> bool {
    attributes(list).any(|(_, element)| {
        let expression = Expression::of(element);
        let of_elements = || {
            let one = attribute(expression.data, NFTA_DYNSET_EXPR);
            is(&Expression::of(one)) || any(attribute(expression.data, NFTA_DYNSET_EXPRESSIONS), is)
        };
        is(&expression) || (expression.name == b"dynset" && of_elements())
    })
}

/// Up to the zero at the end.
fn words(value: &[u8]) -> &[u8] {
    value.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// The kernel is without it: nfnetlink itself, or nf_tables, for which it says EINVAL.
fn is_absent(error: &NetlinkError) -> bool {
    matches!(
        super::number(error),
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL)
    )
}

/// How many connections conntrack knows in this namespace.
fn connections() -> u64 {
    fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")
        .ok()
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Whether the legacy `iptables` or `ip6tables` has one of these tables in this namespace, or may have.
fn is_legacy_table(tables: &[&str]) -> bool {
    [
        ("ip_tables_names", "ip_tables", "iptable_"),
        ("ip6_tables_names", "ip6_tables", "ip6table_"),
    ]
    .into_iter()
    .any(|(file, base, module)| {
        // Of this thread, whose namespace need not be that of the process.
        let names = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        let modules = || fs::read_to_string("/proc/modules");
        tables
            .iter()
            .any(|table| may_be_there(&names, modules, table, base, &format!("{module}{table}")))
    })
}

/// `base` is the module that `module`, with the table `table`, builds upon.
fn may_be_there(
    names: &io::Result<String>,
    modules: impl FnOnce() -> io::Result<String>,
    table: &str,
    base: &str,
    module: &str,
) -> bool {
    match names {
        Ok(names) => names.lines().any(|name| name == table),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        // For root alone. What builds upon a module is no fixed part of the kernel, so it is in the list, or not there.
        Err(_) => {
            let modules = modules().unwrap_or_default();
            let loaded = |name| {
                modules
                    .lines()
                    .any(|line| line.split(' ').next() == Some(name))
            };
            !loaded(base) || loaded(module)
        }
    }
}

/// Of `iptables`.
const TRACKING_MATCHES: [&[u8]; 8] = [
    b"conntrack",
    b"state",
    b"connbytes",
    b"connlimit",
    b"connmark",
    b"connlabel",
    b"cluster",
    b"helper",
];
const TRACKING_TARGETS: [&[u8]; 9] = [
    b"MASQUERADE",
    b"SNAT",
    b"DNAT",
    b"REDIRECT",
    b"NETMAP",
    b"CT",
    b"CONNMARK",
    b"CONNSECMARK",
    b"SYNPROXY",
];
const MARKING_TARGETS: [&[u8]; 5] = [b"MARK", b"CONNMARK", b"HMARK", b"TPROXY", b"SET"];
/// Helpers, limits of connections, time-outs, expectations, and proxies for SYNs.
const TRACKING_OBJECTS: [u32; 5] = [3, 5, 7, 9, 10];

/// What precedes the attributes of nfnetlink's messages.
const NFGENMSG_LEN: usize = 4;
/// `NFTA_CHAIN_TABLE` and `NFTA_RULE_TABLE`.
const NFTA_TABLE: u16 = 1;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
/// `NFTA_MATCH_NAME` as well.
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
const NFTA_DYNSET_EXPR: u16 = 7;
const NFTA_DYNSET_EXPRESSIONS: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(is: fn(&Expression<'_>) -> bool, name: &str, kind: u16, value: &[u8]) -> bool {
        let mut list = Message::new(0, &[]);
        list.nest(1, |element| {
            element.put_words(NFTA_EXPR_NAME, name);
            element.nest(NFTA_EXPR_DATA, |data| data.put(kind, value));
        });
        any(list.body(0), is)
    }

    fn is_tracking(name: &str, kind: u16, value: &[u8]) -> bool {
        holds(tracks, name, kind, value)
    }

    #[test]
    fn extensions_of_iptables_that_mark() {
        assert!(holds(marks, "target", 1, b"MARK\0"));
        assert!(holds(marks, "target", 1, b"CONNMARK\0"));
        assert!(holds(marks, "target", 1, b"TPROXY\0"));
        assert!(!holds(marks, "target", 1, b"MASQUERADE\0"));
        assert!(!holds(marks, "match", 1, b"mark\0"));
        assert!(!holds(marks, "match", 1, b"MARK\0"));
    }

    #[test]
    fn extensions_of_iptables() {
        assert!(is_tracking("match", 1, b"conntrack\0"));
        assert!(is_tracking("match", 1, b"state\0"));
        assert!(is_tracking("target", 1, b"MASQUERADE\0"));
        assert!(is_tracking("target", 1, b"CT\0"));
        // What a target may be called a match is not.
        assert!(!is_tracking("match", 1, b"CT\0"));
        assert!(!is_tracking("target", 1, b"conntrack\0"));
        assert!(!is_tracking("match", 1, b"multiport\0"));
        assert!(!is_tracking("target", 1, b"LOG\0"));
    }

    #[test]
    fn objects() {
        const HELPER: [u8; 4] = [0, 0, 0, 3];
        const COUNTER: [u8; 4] = [0, 0, 0, 1];
        assert!(is_tracking("objref", NFTA_OBJREF_IMM_TYPE, &HELPER));
        assert!(!is_tracking("objref", NFTA_OBJREF_IMM_TYPE, &COUNTER));
        assert!(!is_tracking("objref", NFTA_OBJREF_IMM_TYPE, b""));
    }

    #[test]
    fn legacy_tables() {
        let may_be_there = |names: Result<&str, io::ErrorKind>, modules: Option<&str>| {
            let modules = || {
                modules
                    .map(str::to_owned)
                    .ok_or_else(|| io::ErrorKind::NotFound.into())
            };
            let names = names.map(str::to_owned).map_err(io::Error::from);
            may_be_there(&names, modules, "nat", "ip_tables", "iptable_nat")
        };
        assert!(may_be_there(Ok("filter\nnat\n"), None));
        assert!(!may_be_there(Ok("filter\n"), None));
        assert!(!may_be_there(Err(io::ErrorKind::NotFound), None));
        const UNREADABLE: Result<&str, io::ErrorKind> = Err(io::ErrorKind::PermissionDenied);
        assert!(may_be_there(
            UNREADABLE,
            Some("ip_tables 36864 1 iptable_nat\niptable_nat 16384 1\n")
        ));
        assert!(!may_be_there(
            UNREADABLE,
            Some("ip_tables 36864 1 iptable_filter\n")
        ));
        // Fixed parts of the kernel are in no list.
        assert!(may_be_there(UNREADABLE, Some("veth 40960 0\n")));
        assert!(may_be_there(UNREADABLE, None));
    }
}
