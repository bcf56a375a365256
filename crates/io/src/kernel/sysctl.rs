//! Switches of the whole namespace: forwarding, reverse path filter, reserved ports.
//!
//! Each change is planned with the value before and after, so that it can be written down before
//! anything happens, and taken back exactly. Switches that change along with another one, when it
//! is set or when it is set back, are in the plan too (`ip_forward` sets one of every interface),
//! even if they are as they should be. A switch that somebody else has set to another value meanwhile is left
//! alone.

mod steps;

use std::ops::RangeInclusive;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::address::is_interface_name;
use super::{KernelError, Plan};

pub(crate) use self::steps::{Steps, between};

/// One switch to set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// Path below `/proc/sys`; not with dots, which names of interfaces may have too.
    pub(crate) key: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Change {
    /// Whether FlexCP can have made it: its key is one that the planner sets, and its values are of the kind that the
    /// kernel gives and takes there.
    pub(crate) fn is_plausible(&self) -> bool {
        let values = [&self.before, &self.after];
        let numbers = || values.iter().all(|value| value.parse::<i32>().is_ok());
        match self.key.split('/').collect::<Vec<_>>()[..] {
            ["net", "ipv4", "ip_forward"]
            | ["net", "ipv4", "conf", "all", "accept_redirects"]
            | ["net", "ipv6", "conf", "all", "forwarding"] => numbers(),
            ["net", "ipv4", "conf", interface, "forwarding" | "rp_filter"]
            | ["net", "ipv6", "conf", interface, "forwarding" | "accept_ra"] => {
                is_interface_name(interface) && numbers()
            }
            ["net", "netfilter", "nf_conntrack_tcp_be_liberal"] => numbers(),
            ["net", "ipv4", "ip_local_reserved_ports"] => {
                values.iter().all(|list| is_port_list(list))
            }
            _ => false,
        }
    }
}

/// Reads a switch, or lists the interfaces when given a directory: the part of the system that the
/// planning depends on.
pub(crate) fn read(key: &str) -> Result<Vec<String>, KernelError> {
    let path = format!("{ROOT}{key}");
    let read = || {
        if !key.ends_with('/') {
            return Ok(vec![fs::read_to_string(&path)?.trim().to_owned()]);
        }
        let names = fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let mut names = names
            .filter_map(Result::transpose)
            .collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    };
    read().map_err(|source| KernelError::ReadSysctl {
        key: key.to_owned(),
        source,
    })
}

/// The changes that the plan needs, in the order to make them.
pub(crate) fn wanted(
    plan: &Plan,
    read: &dyn Fn(&str) -> Result<Vec<String>, KernelError>,
) -> Result<Vec<Change>, KernelError> {
    let mut planner = Planner {
        read,
        changes: Vec::new(),
    };
    if plan.v4 {
        planner.forward_v4(plan)?;
        planner.admit_v4(plan)?;
    }
    if plan.v6 {
        planner.forward_v6(plan)?;
    }
    if let Some(ports) = &plan.reserved_ports {
        planner.reserve(ports)?;
    }
    Ok(planner.changes)
}

/// A switch that has been changed, once or several times in a row.
struct Undo<'a> {
    key: &'a str,
    before: &'a str,
    afters: Vec<&'a str>,
}

impl Undo<'_> {
    /// Whether the value is one that it was given from here.
    fn is_ours(&self, value: &str) -> bool {
        self.afters.contains(&value)
    }
}

/// What to set each switch back to.
fn undos(changes: &[Change]) -> Vec<Undo<'_>> {
    let mut undos: Vec<Undo<'_>> = Vec::new();
    for change in changes {
        match undos.iter_mut().find(|undo| undo.key == change.key) {
            Some(undo) => undo.afters.push(&change.after),
            None => undos.push(Undo {
                key: &change.key,
                before: &change.before,
                afters: vec![&change.after],
            }),
        }
    }
    undos
}

/// What keeps conntrack from judging windows: packets that the kernel's programs translate pass it by, so the next that it
/// sees of their connection are beyond what it knows. `None`: it does not judge them, or is not there.
pub(crate) fn relaxed(read: &dyn Fn(&str) -> Result<Vec<String>, KernelError>) -> Option<Change> {
    let before = read(LIBERAL).ok()?.into_iter().next()?;
    (before == "0").then(|| Change {
        key: LIBERAL.to_owned(),
        before,
        after: "1".to_owned(),
    })
}

struct Planner<'a> {
    read: &'a dyn Fn(&str) -> Result<Vec<String>, KernelError>,
    changes: Vec<Change>,
}

impl Planner<'_> {
    /// Forwarding, for all interfaces when it is off, else for those the plan names.
    fn forward_v4(&mut self, plan: &Plan) -> Result<(), KernelError> {
        if self.value(FORWARD_V4)? != "0" {
            // One that is not there has no switch; `default` is what it gets when it comes.
            let there = self.interfaces("net/ipv4/conf/", &plan.device)?;
            let named = plan
                .diversions
                .iter()
                .filter_map(|d| d.interface.as_deref())
                .filter(|name| *name != "lo");
            for interface in named.filter(|name| there.iter().any(|there| there == name)) {
                self.set(&format!("net/ipv4/conf/{interface}/forwarding"), "1")?;
            }
            return Ok(());
        }
        self.set(FORWARD_V4, "1")?;
        // What the kernel does along with that (inet_forward_change).
        for interface in self.interfaces("net/ipv4/conf/", &plan.device)? {
            self.set_along(&format!("net/ipv4/conf/{interface}/forwarding"), "1")?;
        }
        self.set_along("net/ipv4/conf/all/accept_redirects", "0")
    }

    /// No reverse path filter on the TUN device. The kernel applies the stricter of the device's
    /// and that of `all`; so that of `all` moves to each of the other devices, where it does what
    /// it did before.
    fn admit_v4(&mut self, plan: &Plan) -> Result<(), KernelError> {
        let number = |value: &str| value.parse().unwrap_or(0_u32);
        let all = self.value("net/ipv4/conf/all/rp_filter")?;
        if all == "0" {
            return Ok(());
        }
        for interface in self.interfaces("net/ipv4/conf/", &plan.device)? {
            let key = format!("net/ipv4/conf/{interface}/rp_filter");
            if number(&self.value(&key)?) < number(&all) {
                self.set(&key, &all)?;
            }
        }
        self.set("net/ipv4/conf/all/rp_filter", "0")
    }

    /// Forwarding. It turns off the router advertisements that this host itself lives on, unless
    /// `accept_ra` is 2; that comes first, because the switch also forgets the routes they brought.
    fn forward_v6(&mut self, plan: &Plan) -> Result<(), KernelError> {
        if self.value(&format!("net/ipv6/conf/{}/disable_ipv6", plan.device))? != "0" {
            return Err(KernelError::Ipv6Disabled);
        }
        if self.value(FORWARD_V6)? != "0" {
            return Ok(());
        }
        let interfaces = self.interfaces("net/ipv6/conf/", &plan.device)?;
        for interface in interfaces.iter().filter(|interface| *interface != "lo") {
            let key = format!("net/ipv6/conf/{interface}/accept_ra");
            if self.value(&key)? == "1" {
                self.set(&key, "2")?;
            }
        }
        self.set(FORWARD_V6, "1")?;
        // What the kernel does along with that (addrconf_fixup_forwarding).
        for interface in interfaces {
            self.set_along(&format!("net/ipv6/conf/{interface}/forwarding"), "1")?;
        }
        Ok(())
    }

    fn reserve(&mut self, ports: &RangeInclusive<u16>) -> Result<(), KernelError> {
        const KEY: &str = "net/ipv4/ip_local_reserved_ports";
        let before = self.value(KEY)?;
        self.set(KEY, &with_ports(&before, ports))
    }

    fn value(&self, key: &str) -> Result<String, KernelError> {
        Ok((self.read)(key)?.pop().unwrap_or_default())
    }

    /// The interfaces, and `default` for those to come; without `all` and our own.
    fn interfaces(&self, directory: &str, device: &str) -> Result<Vec<String>, KernelError> {
        let mut names = (self.read)(directory)?;
        names.retain(|name| name != "all" && name != device);
        Ok(names)
    }

    fn set(&mut self, key: &str, after: &str) -> Result<(), KernelError> {
        if self.value(key)? == after {
            return Ok(());
        }
        self.set_along(key, after)
    }

    /// A switch that is set along with another one, and set back along with it.
    fn set_along(&mut self, key: &str, after: &str) -> Result<(), KernelError> {
        let before = self.value(key)?;
        self.changes.push(Change {
            key: key.to_owned(),
            before,
            after: after.to_owned(),
        });
        Ok(())
    }
}

/// Makes the changes; a switch that a side effect has set already is not touched again.
pub(crate) fn apply(changes: &[Change], report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
    for change in changes {
        if value_of(&change.key).as_ref() != Some(&change.after) {
            write(&change.key, &change.after)?;
        }
        if change.before != change.after {
            report(&format!(
                "sysctl: {} = {} (was {})",
                change.key, change.after, change.before
            ));
        }
    }
    Ok(())
}

/// Takes the changes back, as far as nobody else has changed the switch since. All of them are
/// tried; the first error is returned.
pub(crate) fn restore(changes: &[Change], report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
    // Looked at before anything is written, because of the side effects.
    let (mut ours, others): (Vec<_>, Vec<_>) = undos(changes)
        .into_iter()
        .partition(|change| value_of(change.key).is_some_and(|now| change.is_ours(&now)));
    for change in others {
        match value_of(change.key) {
            Some(value) if value != change.before => report(&format!(
                "sysctl: {} left at {value}, which is not from here",
                change.key
            )),
            _ => {}
        }
    }
    // First those with side effects on the others.
    ours.sort_by_key(|change| !is_global(change.key));
    let mut result = Ok(());
    for change in ours {
        match value_of(change.key) {
            // An interface that vanished took its switches along.
            None => continue,
            Some(value) if value == change.before => {}
            Some(_) => {
                if let Err(error) = write(change.key, change.before) {
                    result = result.and(Err(error));
                    continue;
                }
            }
        }
        if change.afters.iter().any(|after| *after != change.before) {
            report(&format!("sysctl: {} = {} again", change.key, change.before));
        }
    }
    result
}

fn is_global(key: &str) -> bool {
    key == FORWARD_V4 || key == FORWARD_V6
}

fn value_of(key: &str) -> Option<String> {
    read(key).ok()?.pop()
}

fn write(key: &str, value: &str) -> Result<(), KernelError> {
    // With a line end, because writing nothing at all changes nothing.
    fs::write(format!("{ROOT}{key}"), format!("{value}\n")).map_err(|source| {
        KernelError::WriteSysctl {
            key: key.to_owned(),
            value: value.to_owned(),
            source,
        }
    })
}

/// What to do about a switch that cannot be set.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": run as root or with the capability CAP_NET_ADMIN",
        io::ErrorKind::ReadOnlyFilesystem => {
            ": set it from outside of this container, or mount /proc/sys writable"
        }
        _ => "",
    }
}

/// Whether it is nothing or a list of ports and ranges of them, as the kernel writes it.
fn is_port_list(list: &str) -> bool {
    let port = |text: &str| text.parse::<u16>().is_ok();
    list.is_empty()
        || list.split(',').all(|range| {
            let (start, end) = range.split_once('-').unwrap_or((range, range));
            port(start) && port(end)
        })
}

/// A list of port ranges with one more in it, in the kernel's way to write it.
fn with_ports(list: &str, ports: &RangeInclusive<u16>) -> String {
    let mut ranges: Vec<_> = list
        .split(',')
        .filter_map(|range| {
            let (start, end) = range.split_once('-').unwrap_or((range, range));
            Some((
                start.trim().parse::<u32>().ok()?,
                end.trim().parse::<u32>().ok()?,
            ))
        })
        .chain([(u32::from(*ports.start()), u32::from(*ports.end()))])
        .filter(|(start, end)| start <= end)
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, range| {
        let touches = next.0 <= range.1 + 1;
        if touches {
            range.1 = range.1.max(next.1);
        }
        touches
    });
    let words = ranges.into_iter().map(|(start, end)| {
        if start == end {
            start.to_string()
        } else {
            format!("{start}-{end}")
        }
    });
    words.collect::<Vec<_>>().join(",")
}

const FORWARD_V4: &str = "net/ipv4/ip_forward";
const FORWARD_V6: &str = "net/ipv6/conf/all/forwarding";
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
const ROOT: &str = "/proc/sys/";

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::super::{Diversion, Family, Protocol};
    use super::*;

    /// A host with the interfaces `lo`, `eth0` and the TUN device, and nothing unusual but for
    /// `unusual`.
    pub(super) fn host(
        unusual: &[(&str, &str)],
    ) -> impl Fn(&str) -> Result<Vec<String>, KernelError> + use<> {
        let unusual: Vec<_> = unusual
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        move |key| {
            if key.ends_with('/') {
                let names = ["all", "default", "eth0", "flexcp0", "lo"];
                return Ok(names.map(str::to_owned).into());
            }
            let own = unusual
                .iter()
                .find(|(name, _)| format!("net/{name}") == key);
            let usual = match key.rsplit('/').next().unwrap() {
                "accept_redirects" | "accept_ra" => "1",
                "ip_local_reserved_ports" => "",
                _ => "0",
            };
            Ok(vec![own.map_or(usual, |(_, value)| value).to_owned()])
        }
    }

    pub(in crate::kernel) fn plan(v4: bool, v6: bool) -> Plan {
        Plan {
            device: "flexcp0".into(),
            vrf: None,
            table: 7300,
            diversions: vec![Diversion {
                protocol: Protocol::Tcp,
                interface: Some("eth0".into()),
                source: None,
                destination: None,
                source_ports: None,
                destination_ports: None,
                family: Family::V4,
            }],
            v4,
            v6,
            mark: 0,
            reserved_ports: None,
            uplinks: vec![],
            journal: PathBuf::new(),
        }
    }

    fn changes(plan: &Plan, unusual: &[(&str, &str)]) -> Vec<String> {
        let changes = wanted(plan, &host(unusual)).unwrap();
        let words = |change: &Change| {
            let key = change.key.strip_prefix("net/").unwrap();
            format!("{key} {} -> {}", change.before, change.after)
        };
        changes.iter().map(words).collect()
    }

    #[test]
    fn forwarding_off_v4() {
        assert_eq!(
            changes(&plan(true, false), &[("ipv4/conf/lo/forwarding", "1")]),
            [
                "ipv4/ip_forward 0 -> 1",
                "ipv4/conf/default/forwarding 0 -> 1",
                "ipv4/conf/eth0/forwarding 0 -> 1",
                // Setting ip_forward back would set it to 0.
                "ipv4/conf/lo/forwarding 1 -> 1",
                "ipv4/conf/all/accept_redirects 1 -> 0",
            ]
        );
    }

    #[test]
    fn forwarding_on_v4() {
        let on = ("ipv4/ip_forward", "1");
        assert_eq!(
            changes(&plan(true, false), &[on]),
            ["ipv4/conf/eth0/forwarding 0 -> 1"]
        );
        let both = [on, ("ipv4/conf/eth0/forwarding", "1")];
        assert_eq!(changes(&plan(true, false), &both), [""; 0]);
    }

    #[test]
    fn reverse_path_filter_of_all_moves_to_each() {
        let unusual = [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/eth0/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "1"),
            ("ipv4/conf/eth0/rp_filter", "2"),
        ];
        assert_eq!(
            changes(&plan(true, false), &unusual),
            [
                "ipv4/conf/default/rp_filter 0 -> 1",
                "ipv4/conf/lo/rp_filter 0 -> 1",
                "ipv4/conf/all/rp_filter 1 -> 0",
            ]
        );
    }

    #[test]
    fn forwarding_off_v6_keeps_router_advertisements() {
        assert_eq!(
            changes(&plan(false, true), &[("ipv6/conf/default/accept_ra", "0")]),
            [
                "ipv6/conf/eth0/accept_ra 1 -> 2",
                "ipv6/conf/all/forwarding 0 -> 1",
                "ipv6/conf/default/forwarding 0 -> 1",
                "ipv6/conf/eth0/forwarding 0 -> 1",
                "ipv6/conf/lo/forwarding 0 -> 1",
            ]
        );
        assert_eq!(
            changes(&plan(false, true), &[("ipv6/conf/all/forwarding", "1")]),
            [""; 0]
        );
    }

    #[test]
    fn device_without_ipv6() {
        let off = host(&[("ipv6/conf/flexcp0/disable_ipv6", "1")]);
        assert!(matches!(
            wanted(&plan(false, true), &off),
            Err(KernelError::Ipv6Disabled)
        ));
        assert!(wanted(&plan(true, false), &off).is_ok());
    }

    #[test]
    fn changes_that_flexcp_can_have_made_and_others() {
        let plausible = |key: &str, before: &str, after: &str| {
            let [key, before, after] = [key, before, after].map(str::to_owned);
            Change { key, before, after }.is_plausible()
        };
        // Whatever is planned is believed.
        let mut all = plan(true, true);
        all.reserved_ports = Some(50..=60);
        let unusual = [("ipv4/conf/all/rp_filter", "1")];
        let mut planned = wanted(&all, &host(&unusual)).unwrap();
        all.diversions[0].interface = Some("a.b-7@0".into());
        planned.extend(wanted(&all, &host(&[("ipv4/ip_forward", "1")])).unwrap());
        assert!(planned.len() > 10);
        for change in planned {
            assert!(change.is_plausible(), "{change:?}");
        }
        assert!(plausible(
            "net/ipv4/ip_local_reserved_ports",
            "",
            "1,3-4,65535"
        ));
        let there = |_: &str| Ok(vec!["0".to_owned()]);
        let change = relaxed(&there).unwrap();
        assert_eq!((change.after.as_str(), change.is_plausible()), ("1", true));
        assert_eq!(relaxed(&|_| Ok(vec!["1".to_owned()])), None);
        for key in [
            "kernel/core_pattern",
            "net/ipv4/conf/all/../../../../kernel/modprobe",
            "net/ipv4/conf/../forwarding",
            "net/ipv4/conf//forwarding",
            "net/ipv4/conf/sixteen_letters_/forwarding",
            "net/ipv4/conf/eth0/accept_local",
            "net/ipv4/conf/eth0/accept_redirects",
            "net/ipv6/conf/eth0/rp_filter",
            "/net/ipv4/ip_forward",
            "net/ipv4/ip_forward/",
        ] {
            assert!(!plausible(key, "0", "1"), "{key}");
        }
        for value in ["", "|/bin/sh", "1\n1", "0x1", "1 "] {
            assert!(!plausible("net/ipv4/ip_forward", value, "1"), "{value:?}");
            assert!(!plausible("net/ipv4/ip_forward", "0", value), "{value:?}");
        }
        for list in ["65536", "1,", "1-2-3", "a", "1\n"] {
            assert!(
                !plausible("net/ipv4/ip_local_reserved_ports", list, "1"),
                "{list:?}"
            );
        }
    }

    #[test]
    fn switch_that_was_changed_twice_is_set_back_to_what_was_there_first() {
        let change = |before: &str, after: &str| Change {
            key: LIBERAL.into(),
            before: before.into(),
            after: after.into(),
        };
        let changes = [change("1", "2"), change("2", "3")];
        let undos = undos(&changes);
        assert_eq!((undos.len(), undos[0].before), (1, "1"));
        let ours = ["1", "2", "3", "4"].map(|value| undos[0].is_ours(value));
        assert_eq!(ours, [false, true, true, false]);
    }

    #[test]
    fn reserved_ports_join_those_that_are_there() {
        for (list, expected) in [
            ("", "50-60"),
            ("1,3-4", "1,3-4,50-60"),
            ("40-49,61", "40-61"),
            ("55", "50-60"),
            ("40-70", "40-70"),
            ("100,1-2", "1-2,50-60,100"),
            ("65535", "50-60,65535"),
        ] {
            assert_eq!(with_ports(list, &(50..=60)), expected, "{list}");
        }
        assert_eq!(with_ports("1", &(65535..=65535)), "1,65535");
        let mut plan = plan(false, false);
        plan.reserved_ports = Some(50..=60);
        assert_eq!(
            changes(&plan, &[("ipv4/ip_local_reserved_ports", "40-70")]),
            [""; 0]
        );
        assert_eq!(
            changes(&plan, &[]),
            ["ipv4/ip_local_reserved_ports  -> 50-60"]
        );
    }
}
