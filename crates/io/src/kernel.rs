//! The kernel's tables that bring packets to the TUN device and take back what it writes: a
//! routing table, one for each uplink of a box, routing rules, a handful of sysctls, and filters for the offload's programs. All of it is undone at the end, and what a
//! crashed run left is undone at the next start.
//!
//! The order of the rules of one family, ours marked with `*` (they carry protocol [`PROTOCOL`]):
//!
//! ```text
//! * 0: to 192.0.2.1 iif lo ..  lookup 7300
//! * 0: iif lo      goto 1       what else this host sends itself is never diverted,
//! * 0: iif flexcp0 goto 1       nor what FlexCP has written
//! * 0: fwmark M/M   goto 1       nor plain TCP on the path, which the programs have marked
//! * 0: to 192.0.2.1 [iif ..] [from ..] ipproto tcp [sport ..] [dport ..] lookup 7300
//!   0: lookup local             as before; made anew, because a new rule goes behind its equals
//! * 1: lookup local             for those that skipped the rules above
//! * 1: iif lo      goto 2
//! * 1: iif flexcp0 goto 2
//! * 1: fwmark M/M   goto 2
//! * 1: [to ..] [iif ..] [from ..] ipproto tcp [sport ..] [dport ..] lookup 7300
//! * 2: nop
//! * 3: from <address of an uplink> lookup 7301    its default route (`uplink.rs`)
//!   32766: lookup main          as before
//! ```
//!
//! So a diversion with one destination address comes before the table `local` and catches packets
//! to the host's own addresses too (reverse mode); any other one comes behind it, and leaves the
//! host's own connections alone. Of either kind only what is needed is there.
//!
//! When the process dies, the TUN device and the routes through it go with it; the rules that stay
//! then look up an empty table, which changes nothing.

mod address;
mod change;
mod filter;
mod journal;
mod link;
mod listener;
mod mend;
mod netfilter;
mod netlink;
mod others;
mod route;
mod rules;
mod sysctl;
mod takeover;
mod uplink;
mod watch;
mod way;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use flexcp_translator::Prefix;
use netlink_packet_route::AddressFamily;

pub use self::address::{
    Interface, LinkHeader, interface_exists, interfaces, local_addresses, route_source, switch,
};
pub(crate) use self::address::{interface_index, is_interface_name};
use self::filter::Filter;
pub use self::journal::JournalError;
use self::journal::{Journal, Record};
pub(crate) use self::journal::{boot, namespace};
pub use self::listener::tcp_listener_on;
pub use self::mend::Mended;
pub use self::netfilter::{
    Changes, ClientLeg, Conntrack, IpsecDirection, IpsecPolicy, NetfilterError, Zones,
    conntrack_is_active, ipsec_policies, marks_may_be_set,
};
use self::netlink::Netlink;
pub use self::netlink::NetlinkError;
pub use self::others::{InterfaceRule, diverting_device, rules_by_interface, rules_by_mark};
pub use self::uplink::{Copies, FoundWays, UplinkWay, uplink_ways};
pub use self::watch::{Look, Watch};
pub use self::way::RoutedWays;

/// What is to be diverted, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The TUN device, which is open already.
    pub device: String,
    /// The VRF to put it into: what comes out of it is routed there. `None`: it stays where it is, which is none.
    pub vrf: Option<String>,
    /// The routing table to use, which has to be empty.
    pub table: u32,
    /// What goes to the device.
    pub diversions: Vec<Diversion>,
    /// Whether IPv4 packets are diverted and forwarded.
    pub v4: bool,
    /// Whether IPv6 packets are diverted and forwarded.
    pub v6: bool,
    /// Packets with these bits in their mark are not diverted; 0: the mark says nothing.
    pub mark: u32,
    /// Uplinks whose addresses' packets leave by them.
    pub uplinks: Vec<UplinkWay>,
    /// Ports that the kernel shall not give to its own connections.
    pub reserved_ports: Option<RangeInclusive<u16>>,
    /// Where it is written down what has to be undone, such as `/run/flexcp/flexcp0.json`.
    pub journal: PathBuf,
}

/// Packets that match go to the TUN device; `None` is any. What this host sends itself matches only where the interface is
/// `lo` and the destination one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diversion {
    /// What they are.
    pub protocol: Protocol,
    /// The interface they come in, by name: whichever has it, as soon as there is one.
    pub interface: Option<String>,
    /// Their source address.
    pub source: Option<Prefix>,
    /// Their destination address. An address of this host has to be given in full length: only
    /// then its packets are diverted.
    pub destination: Option<Prefix>,
    /// Their source port. The kernel's rules know no port 65535, except in the range of all ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Their destination port, likewise.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// Their family, which is also that of the addresses.
    pub family: Family,
}

/// What a [`Diversion`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// ICMP, or ICMPv6 in a diversion of IPv6. It has no ports.
    Icmp,
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The diversion as it is installed; taken back by [`KernelTables::remove`], or when dropped.
#[derive(Debug)]
pub struct KernelTables {
    netlink: Netlink,
    /// What to set back, and where that is written down; `None` when everything has been taken back.
    undo: Option<(Journal, Record)>,
    index: u32,
    plan: Plan,
}

impl KernelTables {
    /// Takes back what a crashed run left, then installs `plan`. If the device is up already, as it has outlived that
    /// run, what is there is brought in line with the plan instead. Each change is told to `report` in one line.
    ///
    /// # Errors
    /// Says which step failed and what to do about it. Everything installed until then has been
    /// taken back.
    pub fn install(plan: &Plan, report: &mut dyn FnMut(&str)) -> Result<Self, KernelError> {
        let index = check(plan)?;
        let (mut journal, left) = Journal::claim(&plan.journal, report)?;
        let mut netlink = Netlink::open()?;
        rules::refuse_other_instance(&mut netlink, &plan.device)?;
        if takeover::is_kept(&mut netlink, index)? {
            return takeover::take_over(netlink, journal, left, plan, index, report);
        }
        take_back_leftover(&mut netlink, &mut journal, left, report)?;

        let mut layouts = Vec::new();
        for family in plan.families() {
            layouts.push(rules::layout(&mut netlink, plan, family)?);
            route::check_unused(&mut netlink, family, plan.table)?;
            uplink::check_unused(&mut netlink, plan, family, &[])?;
        }
        let changes = sysctl::wanted(plan, &sysctl::read)?;
        let record = Record::new(plan, &changes);
        journal.write(&record)?;

        // From here on an error takes back what is there by dropping this.
        let mut tables = Self {
            netlink,
            undo: Some((journal, record)),
            index,
            plan: plan.clone(),
        };
        link::prepare(&mut tables.netlink, index, plan)?;
        sysctl::apply(&changes, report)?;
        if let Some(vrf) = &plan.vrf {
            link::enter_vrf(&mut tables.netlink, index, vrf)?;
            report(&format!("link: {} in the VRF {vrf}", plan.device));
        }
        link::bring_up(&mut tables.netlink, index)?;
        report(&format!("link: {} up, mtu {}", plan.device, link::MTU));
        for layout in &layouts {
            route::add_default(&mut tables.netlink, layout.family, plan.table, index)?;
            report(&format!(
                "route: {} default via {} in table {}",
                layout.family, plan.device, plan.table
            ));
            let copies = uplink::fill(&mut tables.netlink, plan, layout.family, true)?;
            if copies > 0 {
                report(&format!(
                    "route: {} copied to uplinks' tables: {copies}",
                    layout.family
                ));
            }
            rules::install(&mut tables.netlink, layout, report)?;
        }
        Ok(tables)
    }

    /// Has `program`, a classifier that decides by itself (`direct-action`), see what comes in on `interface`, by a filter
    /// behind all others there. For kernels without tcx. It takes the place of one that was made before, and that somebody
    /// has taken away.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses; then nothing of it is left.
    pub fn add_filter(
        &mut self,
        interface: &str,
        program: BorrowedFd<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), KernelError> {
        let Some((journal, record)) = &mut self.undo else {
            return Ok(());
        };
        let index = interface_index(interface).ok_or_else(|| KernelError::NoInterface {
            name: interface.to_owned(),
        })?;
        let former = record.filters.extract_if(.., |known| known.index == index);
        let former: Vec<_> = former.collect();
        let made_before = former.iter().any(|known| known.made_qdisc);
        // Noted as if the qdisc were ours: if a crash comes before we know, it goes, but only if nobody uses it.
        record.filters.push(Filter {
            interface: interface.to_owned(),
            index,
            made_qdisc: true,
        });
        let done = filter_noted(journal, record, program, made_before, report);
        if done.is_err()
            && let Some(filter) = record.filters.pop()
        {
            let _ = filter.remove(&mut |_| {});
            journal.write(record)?;
        }
        done
    }

    /// Has conntrack take packets for valid whatever the windows that it has seen, once, if it does not yet: what the
    /// kernel's programs translate passes it by. `false`: nothing was changed.
    ///
    /// # Errors
    /// When the switch cannot be set, or not be noted.
    pub fn relax_conntrack(&mut self, report: &mut dyn FnMut(&str)) -> Result<bool, KernelError> {
        let Some((journal, record)) = &mut self.undo else {
            return Ok(false);
        };
        let Some(change) = sysctl::relaxed(&sysctl::read) else {
            return Ok(false);
        };
        // Somebody wants it so.
        if record.changes.iter().any(|known| known.key == change.key) {
            return Ok(false);
        }
        record.changes.push(change.clone());
        journal.write(record)?;
        sysctl::apply(&[change], report)?;
        Ok(true)
    }

    /// The indexes of the devices whose filter somebody has taken away; the filters of devices that are gone went with them.
    #[must_use]
    pub fn lost_filters(&self) -> Vec<u32> {
        let noted = self.undo.iter().flat_map(|(_, record)| &record.filters);
        let lost = noted.filter(|filter| filter.is_lost());
        lost.map(|filter| filter.index).collect()
    }

    /// Takes back the filters at the device with the index `index`, or forgets them if it is gone.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn forget_filter(&mut self, index: u32) -> Result<(), KernelError> {
        let Some((journal, record)) = &mut self.undo else {
            return Ok(());
        };
        let of_it = |filter: &mut Filter| filter.index == index;
        let taken: Vec<_> = record.filters.extract_if(.., of_it).collect();
        if taken.is_empty() {
            return Ok(());
        }
        for filter in taken {
            // With a device that is gone it went, too.
            let _ = filter.remove(&mut |_| {});
        }
        Ok(journal.write(record)?)
    }

    /// Takes everything back, each change told to `report` in one line.
    ///
    /// # Errors
    /// The first step that failed; the others have been done nevertheless.
    pub fn remove(mut self, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        self.take_back(report)
    }

    /// Takes back what a crashed run left, if anything, also its routes; each change is told to `report` in one line.
    /// [`KernelTables::install`] does it too.
    ///
    /// # Errors
    /// Says which step failed and what to do about it; in particular when the run is still alive.
    pub fn clean_up(journal: &Path, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        let mut netlink = Netlink::open()?;
        // No directory is made just to find nothing in it.
        let there = journal.parent().is_none_or(Path::is_dir);
        let claimed = there.then(|| Journal::claim(journal, report)).transpose()?;
        // That run is over, as nobody holds its journal; the service manager may have kept its device.
        let left = claimed.as_ref().and_then(|(_, left)| left.as_ref());
        let left = left.filter(|record| record.is_of_this_namespace());
        let device = left.map_or("", |record| &record.device);
        rules::refuse_other_instance(&mut netlink, device)?;
        match claimed {
            Some((mut journal, left)) => {
                take_back_leftover(&mut netlink, &mut journal, left, report)?;
            }
            None => rules::remove(&mut netlink, report)?,
        }
        route::remove_ours(&mut netlink, report)
    }

    fn take_back(&mut self, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        let Some((mut journal, record)) = self.undo.take() else {
            return Ok(());
        };
        let filters = remove_filters(&record, report);
        let rules = rules::remove(&mut self.netlink, report);
        let routes = route::remove(&mut self.netlink, self.plan.table, self.index);
        let routes = routes.and_then(|()| match self.plan.uplinks.is_empty() {
            true => Ok(()),
            false => route::remove_ours(&mut self.netlink, report),
        });
        let sysctls = sysctl::restore(&record.changes, report).and_then(|()| {
            // What stays at a device is for the next start.
            filters?;
            Ok(journal.settle()?)
        });
        let link = link::take_down(&mut self.netlink, self.index);
        rules.and(routes).and(sysctls).and(link)
    }
}

impl Drop for KernelTables {
    fn drop(&mut self) {
        // Whoever wants to know about errors calls `remove`.
        let _ = self.take_back(&mut |_| {});
    }
}

impl Family {
    const BOTH: [Self; 2] = [Self::V4, Self::V6];

    const fn netlink(self) -> AddressFamily {
        match self {
            Self::V4 => AddressFamily::Inet,
            Self::V6 => AddressFamily::Inet6,
        }
    }

    const fn of(addr: std::net::IpAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Of an address, in bits.
    const fn address_len(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    const fn is_of(self, prefix: &Prefix) -> bool {
        match self {
            Self::V4 => prefix.addr.is_ipv4() && prefix.len <= 32,
            Self::V6 => prefix.addr.is_ipv6() && prefix.len <= 128,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        })
    }
}

/// Checks what can be checked without touching anything; returns the device's index. Interfaces of diversions need not be
/// there: the kernel applies their rules when they are.
fn check(plan: &Plan) -> Result<u32, KernelError> {
    let index = interface_index(&plan.device).ok_or_else(|| KernelError::NoInterface {
        name: plan.device.clone(),
    })?;
    let tables = plan.uplinks.iter().map(|way| way.table);
    for table in tables.chain([plan.table]) {
        if RESERVED_TABLES.contains(&table) {
            return Err(KernelError::ReservedTable { table });
        }
    }
    for diversion in &plan.diversions {
        for prefix in [diversion.source, diversion.destination]
            .into_iter()
            .flatten()
        {
            if !diversion.family.is_of(&prefix) {
                return Err(KernelError::Prefix {
                    family: diversion.family,
                    prefix,
                });
            }
        }
        for ports in [&diversion.source_ports, &diversion.destination_ports]
            .into_iter()
            .flatten()
        {
            rules::check_ports(ports)?;
        }
    }
    Ok(index)
}

/// Makes the last filter of `record`, which is written down before anything happens. `made_before`: the qdisc was ours
/// already.
fn filter_noted(
    journal: &mut Journal,
    record: &mut Record,
    program: BorrowedFd<'_>,
    made_before: bool,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    journal.write(record)?;
    let Some(filter) = record.filters.last_mut() else {
        return Ok(());
    };
    filter.made_qdisc = filter.make_qdisc()? || made_before;
    filter.attach(program)?;
    report(&format!(
        "filter: {} ingress priority {} handle {:#x}{}",
        filter.interface,
        filter::PRIORITY,
        filter::HANDLE,
        if filter.made_qdisc {
            ", qdisc clsact made"
        } else {
            ""
        }
    ));
    Ok(journal.write(record)?)
}

/// Takes back all filters of `record`; the first error, after the others have been tried.
fn remove_filters(record: &Record, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
    let removed = record.filters.iter().map(|filter| filter.remove(report));
    removed.fold(Ok(()), Result::and)
}

fn take_back_leftover(
    netlink: &mut Netlink,
    journal: &mut Journal,
    left: Option<Record>,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    rules::remove(netlink, report)?;
    route::remove_ours(netlink, report)?;
    match left {
        None => {}
        Some(record) if record.is_of_this_namespace() => {
            remove_filters(&record, report)?;
            sysctl::restore(&record.changes, report)?;
            journal.settle()?;
        }
        Some(record) => {
            report(&format!(
                "journal: of network namespace {} or an earlier boot, nothing restored",
                record.namespace
            ));
            journal.settle()?;
        }
    }
    Ok(())
}

/// Why packets are not diverted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An interface of the plan does not exist.
    #[error("there is no interface {name}: check the name (ip link)")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// An address of the plan is not of the family it should be.
    #[error("{}/{} is no {family} prefix", prefix.addr, prefix.len)]
    Prefix {
        /// The diversion's family.
        family: Family,
        /// The prefix.
        prefix: Prefix,
    },
    /// The kernel's rules cannot express the range.
    #[error(
        "routing rules cannot divert the ports {}-{}: give a range within 1-65534, or all ports",
        ports.start(), ports.end()
    )]
    Ports {
        /// The range.
        ports: RangeInclusive<u16>,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel does not talk about its tables.
    #[error("cannot talk to the kernel about routing: {source}")]
    Netlink {
        /// What the kernel says.
        #[from]
        source: NetlinkError,
    },
    /// Another FlexCP diverts packets in this namespace.
    #[error(
        "another FlexCP is running in this network namespace, with the device {device}: stop it, \
         or give one of the two a network namespace of its own"
    )]
    OtherInstance {
        /// Its device.
        device: String,
    },
    /// A rule that is not ours stands where ours have to stand.
    #[error(
        "the {family} routing rule at preference {preference} ({rule}) is in the way: move it to a \
         higher preference (ip rule)"
    )]
    RuleInTheWay {
        /// Of which family it is.
        family: Family,
        /// Where it stands.
        preference: u32,
        /// What it says, as far as we understand it.
        rule: String,
    },
    /// The rules cannot be read.
    #[error("cannot read the {family} routing rules: {source}")]
    ReadRules {
        /// The family.
        family: Family,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// A rule cannot be added.
    #[error("cannot add the routing rule \"{rule}\": {source}")]
    AddRule {
        /// The rule.
        rule: String,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// A rule cannot be removed.
    #[error("cannot remove the routing rule \"{rule}\": {source}")]
    RemoveRule {
        /// The rule.
        rule: String,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// The routing table is not ours alone.
    #[error("there are {family} routes in routing table {table} already: configure another table")]
    TableInUse {
        /// The family.
        family: Family,
        /// The table.
        table: u32,
    },
    /// What a killed run has left, with its device, cannot be brought in line with the configuration.
    #[error("cannot take over what an earlier run has left: {problem}")]
    TakeOver {
        /// What stands in the way.
        problem: String,
    },
    /// Another plan cannot be carried out.
    #[error("cannot change what is diverted: {problem}")]
    Change {
        /// What stands in the way.
        problem: String,
    },
    /// The routing table is one that the kernel uses itself.
    #[error("the routing table {table} is the kernel's own: configure another, such as 7300")]
    ReservedTable {
        /// The table.
        table: u32,
    },
    /// The table's route cannot be read, added or removed.
    #[error("cannot {action} the {family} route of table {table}: {source}")]
    Route {
        /// Which of these.
        action: &'static str,
        /// The family.
        family: Family,
        /// The table.
        table: u32,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// The device cannot be taken up or down.
    #[error("cannot {action} the TUN device: {source}")]
    Link {
        /// What failed.
        action: &'static str,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// The TUN device is not there any more.
    #[error("the device can't be read any more: somebody has deleted {device}; start flexcp anew")]
    DeviceGone {
        /// Its name.
        device: String,
    },
    /// The TUN device was made without IPv6.
    #[error(
        "ipv6 is disabled for new interfaces: enable it (sysctl net.ipv6.conf.default.disable_ipv6), \
         or configure no ipv6 addresses"
    )]
    Ipv6Disabled,
    /// The offload's filter at a device, or the qdisc that it needs, cannot be made or removed.
    #[error("cannot {action} {interface}: {source}{}", filter::advice(source))]
    Filter {
        /// What failed.
        action: &'static str,
        /// The device.
        interface: String,
        /// What the kernel says.
        source: NetlinkError,
    },
    /// A sysctl cannot be read.
    #[error("cannot read the sysctl {key}: {source}")]
    ReadSysctl {
        /// Its name.
        key: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// A sysctl cannot be set.
    #[error(
        "cannot set the sysctl {key} to {value}: {source}{}",
        sysctl::advice(source)
    )]
    WriteSysctl {
        /// Its name.
        key: String,
        /// The value it should have.
        value: String,
        /// What the kernel says.
        source: io::Error,
    },
}

/// Marks our rules and routes (`proto` in the output of `ip`).
pub const PROTOCOL: u8 = 117;
/// Unspecified, `default`, `main` and `local`.
const RESERVED_TABLES: [u32; 4] = [0, 253, 254, 255];
