//! Routing rules: which packets look up our table, and in what order.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;

use flexcp_translator::Prefix;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{
    RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange,
};
use netlink_packet_route::{IpProtocol, RouteNetlinkMessage};

use super::netlink::{Netlink, NetlinkError};
use super::{Diversion, Family, KernelError, PROTOCOL, Plan, Protocol};

/// The rules to install for one family.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) family: Family,
    rules: Vec<Rule>,
    /// The rule `lookup local` at preference 0, to be made anew behind ours; `None` when none of
    /// ours stands there, or when it does not (as with VRFs).
    local: Option<RuleMessage>,
}

/// One of our rules.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    family: Family,
    preference: u32,
    interface: Option<String>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    source_ports: Option<RangeInclusive<u16>>,
    destination_ports: Option<RangeInclusive<u16>>,
    protocol: Option<Protocol>,
    /// These bits in the packet's mark.
    mark: Option<u32>,
    action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Lookup(u32),
    Goto(u32),
    /// Nothing: a place to go to.
    Pass,
}

/// Refuses when a FlexCP with another device is alive: its rules are there, and its device.
pub(crate) fn refuse_other_instance(
    netlink: &mut Netlink,
    device: &str,
) -> Result<(), KernelError> {
    match live_device(netlink)? {
        Some(other) if other != device => Err(KernelError::OtherInstance { device: other }),
        _ => Ok(()),
    }
}

/// The device of the FlexCP that is alive here: its rules are there, and its device.
pub(crate) fn live_device(netlink: &mut Netlink) -> Result<Option<String>, KernelError> {
    for family in Family::BOTH {
        for rule in dump(netlink, family)? {
            let live = is_ours(&rule)
                && rule.header.action == RuleAction::Goto
                && !rule.header.flags.contains(RuleFlags::IifDetached);
            if let Some(interface) = interface(&rule).filter(|name| live && *name != LOOPBACK) {
                return Ok(Some(interface.to_owned()));
            }
        }
    }
    Ok(None)
}

/// What to install, after a look at what is there.
pub(crate) fn layout(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
) -> Result<Layout, KernelError> {
    arrange(plan, family, &dump(netlink, family)?)
}

/// Puts our rules before those that are there.
pub(super) fn arrange(
    plan: &Plan,
    family: Family,
    there: &[RuleMessage],
) -> Result<Layout, KernelError> {
    let (own, passing): (Vec<_>, Vec<_>) = plan
        .diversions
        .iter()
        .filter(|diversion| diversion.family == family)
        .partition(|diversion| has_one_destination(diversion));
    let mut layout = Layout {
        family,
        rules: Vec::new(),
        local: None,
    };
    if !own.is_empty() {
        layout.local = local_at_the_front(family, there)?;
        // Whoever skips the first group misses the table `local`, if it stands there.
        let action = if layout.local.is_some() {
            Action::Lookup(TABLE_LOCAL)
        } else {
            Action::Pass
        };
        layout.rules.push(plain(family, BEHIND_LOCAL, None, action));
        // Of what this host sends, that which is asked for: before the exceptions.
        let (sent, own): (Vec<_>, Vec<_>) = own.into_iter().partition(|own| is_sent(own));
        layout.add_diversions(plan, 0, &sent);
        layout.add_group(plan, 0, BEHIND_LOCAL, &own);
    }
    if !passing.is_empty() {
        layout
            .rules
            .push(plain(family, BEHIND_ALL, None, Action::Pass));
        layout.add_group(plan, BEHIND_LOCAL, BEHIND_ALL, &passing);
    }
    // No rule of others, nor of ours, comes between.
    for (source, table) in plan.addresses_of_uplinks(family) {
        layout.rules.push(Rule {
            source: Some(source),
            ..plain(family, UPLINKS, None, Action::Lookup(table))
        });
    }
    let ours = BEHIND_LOCAL..=last(plan, family);
    match there.iter().find(|rule| ours.contains(&preference(rule))) {
        Some(rule) if !layout.rules.is_empty() => Err(in_the_way(family, rule)),
        _ => Ok(layout),
    }
}

/// The last preference that is ours alone.
pub(super) fn last(plan: &Plan, family: Family) -> u32 {
    match plan.addresses_of_uplinks(family).next() {
        Some(_) => UPLINKS,
        None => BEHIND_ALL,
    }
}

/// Whether it may be about an address of this host. Others stand behind the table `local`: a packet
/// to one of this host's own sockets must not be diverted, because the kernel, which has found the
/// socket before it asks for a route, then drops it.
fn has_one_destination(diversion: &Diversion) -> bool {
    diversion
        .destination
        .is_some_and(|prefix| match diversion.family {
            Family::V4 => prefix.len == 32,
            Family::V6 => prefix.len == 128,
        })
}

/// Whether it is about packets that this host sends itself.
fn is_sent(diversion: &Diversion) -> bool {
    diversion.interface.as_deref() == Some(LOOPBACK)
}

/// The rule `lookup local` at preference 0, where nothing else may stand.
fn local_at_the_front(
    family: Family,
    there: &[RuleMessage],
) -> Result<Option<RuleMessage>, KernelError> {
    let mut first = there.iter().filter(|rule| preference(rule) == 0);
    let local = first.next();
    match local
        .filter(|rule| !is_plain_local(rule))
        .or_else(|| first.next())
    {
        Some(rule) => Err(in_the_way(family, rule)),
        None => Ok(local.cloned()),
    }
}

fn in_the_way(family: Family, rule: &RuleMessage) -> KernelError {
    KernelError::RuleInTheWay {
        family,
        preference: preference(rule),
        rule: describe(rule),
    }
}

/// Adds the rules, exceptions before what they are exceptions from.
pub(crate) fn install(
    netlink: &mut Netlink,
    layout: &Layout,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    for rule in &layout.rules {
        add(netlink, rule.message()).map_err(|source| KernelError::AddRule {
            rule: rule.to_string(),
            source,
        })?;
        report(&format!(
            "rule: {} {}: {rule}",
            rule.family, rule.preference
        ));
    }
    if let Some(local) = &layout.local {
        // There is a rule `lookup local` at every moment. Removing one takes the first that
        // matches, which is the old one.
        add(netlink, local.clone()).map_err(|source| KernelError::AddRule {
            rule: describe(local),
            source,
        })?;
        delete(netlink, local.clone())?;
    }
    Ok(())
}

/// Removes our rules of both families, and the second `lookup local` when [`install`] was
/// interrupted between its last two steps.
pub(crate) fn remove(
    netlink: &mut Netlink,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    for family in Family::BOTH {
        remove_of(netlink, family, report)?;
    }
    Ok(())
}

/// The same of one family.
pub(super) fn remove_of(
    netlink: &mut Netlink,
    family: Family,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let rules = dump(netlink, family)?;
    let mut ours: Vec<_> = rules.iter().filter(|rule| is_ours(rule)).collect();
    // Diversions before the exceptions from them, and these before what they go to.
    ours.sort_by_key(|rule| rank(rule));
    for rule in ours {
        delete(netlink, rule.clone())?;
        report(&format!(
            "rule: {family} {}: {} removed",
            preference(rule),
            describe(rule)
        ));
    }
    let locals = rules
        .iter()
        .filter(|rule| preference(rule) == 0 && is_plain_local(rule));
    for local in locals.skip(1) {
        delete(netlink, local.clone())?;
    }
    Ok(())
}

/// In which order rules are taken away: what diverts packets, the exceptions from that, what those go to.
pub(super) fn rank(rule: &RuleMessage) -> u8 {
    match rule.header.action {
        RuleAction::ToTable if table(rule) != TABLE_LOCAL => 0,
        RuleAction::Goto => 1,
        _ => 2,
    }
}

/// The kernel takes ranges within 1-65534; all ports need no selector.
pub(crate) fn check_ports(ports: &RangeInclusive<u16>) -> Result<(), KernelError> {
    match selector(ports) {
        Some(range) if range.is_empty() || *range.end() == u16::MAX => Err(KernelError::Ports {
            ports: ports.clone(),
        }),
        _ => Ok(()),
    }
}

fn selector(ports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    let start = (*ports.start()).max(1);
    (start > 1 || *ports.end() < u16::MAX).then_some(start..=*ports.end())
}

impl Layout {
    /// The rules as the kernel should list them, `lookup local` at preference 0 included where that has to be made anew.
    pub(super) fn listed(&self) -> Vec<RuleMessage> {
        let mut listed: Vec<_> = self.rules.iter().map(Rule::message).collect();
        listed.extend(self.local.clone());
        listed.sort_by_key(preference);
        listed
    }

    /// The diversions at `preference`, and before them the exceptions from them, which go on at
    /// `target`.
    fn add_group(&mut self, plan: &Plan, preference: u32, target: u32, group: &[&Diversion]) {
        for interface in [LOOPBACK, &plan.device] {
            let action = Action::Goto(target);
            self.rules
                .push(plain(self.family, preference, Some(interface), action));
        }
        if plan.mark != 0 {
            self.rules.push(Rule {
                mark: Some(plan.mark),
                ..plain(self.family, preference, None, Action::Goto(target))
            });
        }
        self.add_diversions(plan, preference, group);
    }

    fn add_diversions(&mut self, plan: &Plan, preference: u32, group: &[&Diversion]) {
        for diversion in group {
            self.rules.push(Rule {
                family: self.family,
                preference,
                interface: diversion.interface.clone(),
                source: diversion.source,
                destination: diversion.destination,
                source_ports: diversion.source_ports.as_ref().and_then(selector),
                destination_ports: diversion.destination_ports.as_ref().and_then(selector),
                protocol: Some(diversion.protocol),
                mark: None,
                action: Action::Lookup(plan.table),
            });
        }
    }
}

/// A rule for every packet, or for every packet of an interface.
fn plain(family: Family, preference: u32, interface: Option<&str>, action: Action) -> Rule {
    Rule {
        family,
        preference,
        interface: interface.map(str::to_owned),
        source: None,
        destination: None,
        source_ports: None,
        destination_ports: None,
        protocol: None,
        mark: None,
        action,
    }
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        let header = &mut message.header;
        header.family = self.family.netlink();
        header.src_len = self.source.map_or(0, |prefix| prefix.len);
        header.dst_len = self.destination.map_or(0, |prefix| prefix.len);
        header.action = match self.action {
            Action::Lookup(_) => RuleAction::ToTable,
            Action::Goto(_) => RuleAction::Goto,
            Action::Pass => RuleAction::Nop,
        };
        let range = |ports: &RangeInclusive<u16>| RulePortRange {
            start: *ports.start(),
            end: *ports.end(),
        };
        // A prefix of length 0 is no selector, and the kernel wants no address with it.
        let addr = |prefix: Option<Prefix>| prefix.filter(|p| p.len > 0).map(|p| p.addr);
        message.attributes = [
            Some(RuleAttribute::Priority(self.preference)),
            Some(RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL))),
            match self.action {
                Action::Lookup(table) => Some(RuleAttribute::Table(table)),
                Action::Goto(target) => Some(RuleAttribute::Goto(target)),
                Action::Pass => None,
            },
            self.interface.clone().map(RuleAttribute::Iifname),
            self.mark.map(RuleAttribute::FwMark),
            self.mark.map(RuleAttribute::FwMask),
            addr(self.source).map(RuleAttribute::Source),
            addr(self.destination).map(RuleAttribute::Destination),
            self.protocol
                .map(|protocol| RuleAttribute::IpProtocol(number(protocol, self.family))),
            self.source_ports
                .as_ref()
                .map(range)
                .map(RuleAttribute::SourcePortRange),
            self.destination_ports
                .as_ref()
                .map(range)
                .map(RuleAttribute::DestinationPortRange),
        ]
        .into_iter()
        .flatten()
        .collect();
        message
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.message()))
    }
}

/// The library has no name for it.
const ICMPV6: IpProtocol = IpProtocol::Other(58);

/// The protocol's number in the family's IP header.
const fn number(protocol: Protocol, family: Family) -> IpProtocol {
    match (protocol, family) {
        (Protocol::Tcp, _) => IpProtocol::Tcp,
        (Protocol::Icmp, Family::V4) => IpProtocol::Icmp,
        (Protocol::Icmp, Family::V6) => ICMPV6,
    }
}

pub(super) fn dump(netlink: &mut Netlink, family: Family) -> Result<Vec<RuleMessage>, KernelError> {
    let mut question = RuleMessage::default();
    question.header.family = family.netlink();
    let answers = match netlink.dump(RouteNetlinkMessage::GetRule(question)) {
        // Without IPv6 there are no rules of it.
        Err(error) if matches!(error.refusal(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => {
            return Ok(Vec::new());
        }
        answers => answers.map_err(|source| KernelError::ReadRules { family, source })?,
    };
    let rules = answers.into_iter().filter_map(|answer| match answer {
        // A kernel without the family answers for all that it has.
        RouteNetlinkMessage::NewRule(rule) if rule.header.family == family.netlink() => Some(rule),
        _ => None,
    });
    Ok(rules.collect())
}

/// Adds a rule, behind those of the same preference, even when there is one like it.
pub(super) fn add(netlink: &mut Netlink, rule: RuleMessage) -> Result<(), NetlinkError> {
    netlink.change(
        RouteNetlinkMessage::NewRule(with_preference(rule)),
        NLM_F_CREATE,
    )
}

/// Deletes the first rule like this one; that it is gone already is no error.
pub(super) fn delete(netlink: &mut Netlink, rule: RuleMessage) -> Result<(), KernelError> {
    let words = describe(&rule);
    match netlink.change(RouteNetlinkMessage::DelRule(with_preference(rule)), 0) {
        Err(error) if error.refusal() == Some(libc::ENOENT) => Ok(()),
        done => done.map_err(|source| KernelError::RemoveRule {
            rule: words,
            source,
        }),
    }
}

/// The kernel does not mention preference 0 when it lists a rule, and takes its absence for "any"
/// when it deletes one, and for "choose one" when it adds one. Flags are the kernel's to set.
fn with_preference(mut rule: RuleMessage) -> RuleMessage {
    let preference = preference(&rule);
    rule.attributes
        .retain(|attribute| !matches!(attribute, RuleAttribute::Priority(_)));
    rule.attributes.push(RuleAttribute::Priority(preference));
    rule.header.flags &= RuleFlags::Invert;
    rule
}

pub(super) fn preference(rule: &RuleMessage) -> u32 {
    let preference = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Priority(preference) => Some(*preference),
        _ => None,
    };
    rule.attributes.iter().find_map(preference).unwrap_or(0)
}

fn table(rule: &RuleMessage) -> u32 {
    let table = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    };
    rule.attributes
        .iter()
        .find_map(table)
        .unwrap_or_else(|| rule.header.table.into())
}

fn interface(rule: &RuleMessage) -> Option<&str> {
    rule.attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Iifname(name) => Some(name.as_str()),
            _ => None,
        })
}

pub(super) fn is_ours(rule: &RuleMessage) -> bool {
    rule.attributes
        .contains(&RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)))
}

/// Whether the rule sends every packet to the table `local`, like the kernel's own.
pub(super) fn is_plain_local(rule: &RuleMessage) -> bool {
    let header = &rule.header;
    let harmless = |attribute: &RuleAttribute| {
        matches!(
            attribute,
            RuleAttribute::Table(_)
                | RuleAttribute::Priority(_)
                | RuleAttribute::Protocol(_)
                | RuleAttribute::SuppressPrefixLen(u32::MAX)
                | RuleAttribute::SuppressIfGroup(u32::MAX)
        )
    };
    header.action == RuleAction::ToTable
        && table(rule) == TABLE_LOCAL
        && (header.src_len, header.dst_len, header.tos) == (0, 0, 0)
        && !header.flags.contains(RuleFlags::Invert)
        && !is_ours(rule)
        && rule.attributes.iter().all(harmless)
}

/// The prefix that all packets that a rule is about are from, if it is somebody else's, asks for nothing but that, and has a
/// table looked up, down to its default route.
pub(super) fn is_by_source(rule: &RuleMessage) -> Option<Prefix> {
    let header = &rule.header;
    let harmless = |attribute: &RuleAttribute| {
        matches!(
            attribute,
            RuleAttribute::Source(_)
                | RuleAttribute::Table(_)
                | RuleAttribute::Priority(_)
                | RuleAttribute::Protocol(_)
                | RuleAttribute::SuppressPrefixLen(u32::MAX)
                | RuleAttribute::SuppressIfGroup(u32::MAX)
        )
    };
    let source = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Source(addr) => Some(*addr),
        _ => None,
    };
    let all = header.action == RuleAction::ToTable
        && (header.dst_len, header.tos) == (0, 0)
        && !header.flags.contains(RuleFlags::Invert)
        && !is_ours(rule)
        && rule.attributes.iter().all(harmless);
    let addr = rule.attributes.iter().find_map(source).filter(|_| all)?;
    let len = header.src_len;
    Some(Prefix { addr, len })
}

/// Whether it is somebody else's, and looks at the mark of packets.
pub(super) fn is_marked(rule: &RuleMessage) -> bool {
    let marked = |attribute: &RuleAttribute| matches!(attribute, RuleAttribute::FwMark(_));
    !is_ours(rule) && rule.attributes.iter().any(marked)
}

/// The interface that packets of the rule come in by, if it is somebody else's and asks for one that is no loopback device.
pub(super) fn is_by_interface(rule: &RuleMessage) -> Option<&str> {
    let named = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Iifname(name) => Some(name.as_str()),
            _ => None,
        });
    named.filter(|name| *name != LOOPBACK && !is_ours(rule))
}

/// The rule in words close to those of `ip rule`.
pub(super) fn describe(rule: &RuleMessage) -> String {
    let header = &rule.header;
    let mut words = Vec::new();
    for attribute in &rule.attributes {
        let ports = |range: &RulePortRange| {
            if range.start == range.end {
                range.start.to_string()
            } else {
                format!("{}-{}", range.start, range.end)
            }
        };
        words.push(match attribute {
            RuleAttribute::Iifname(name) => format!("iif {name}"),
            RuleAttribute::Oifname(name) => format!("oif {name}"),
            RuleAttribute::Source(addr) => format!("from {addr}/{}", header.src_len),
            RuleAttribute::Destination(addr) => format!("to {addr}/{}", header.dst_len),
            RuleAttribute::FwMark(mark) => format!("fwmark {mark:#x}"),
            RuleAttribute::IpProtocol(IpProtocol::Tcp) => "tcp".to_owned(),
            RuleAttribute::IpProtocol(IpProtocol::Icmp | ICMPV6) => "icmp".to_owned(),
            RuleAttribute::IpProtocol(protocol) => format!("ipproto {}", u8::from(*protocol)),
            RuleAttribute::SourcePortRange(range) => format!("sport {}", ports(range)),
            RuleAttribute::DestinationPortRange(range) => format!("dport {}", ports(range)),
            _ => continue,
        });
    }
    if words.is_empty() {
        words.push("all".to_owned());
    }
    let goto = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Goto(target) => Some(*target),
            _ => None,
        });
    words.push(match (header.action, goto, table(rule)) {
        (RuleAction::Goto, Some(target), _) => format!("-> rule {target}"),
        (RuleAction::ToTable, _, TABLE_LOCAL) => "-> table local".to_owned(),
        (RuleAction::ToTable, _, table) => format!("-> table {table}"),
        (RuleAction::Nop, ..) => "-> next rule".to_owned(),
        (action, ..) => format!("-> {action:?}").to_lowercase(),
    });
    words.join(" ")
}

/// The first preference behind the kernel's own `lookup local`.
const BEHIND_LOCAL: u32 = 1;
/// The first preference behind our diversions.
const BEHIND_ALL: u32 = 2;
/// Where packets from uplinks' addresses are led to those.
const UPLINKS: u32 = 3;
const TABLE_LOCAL: u32 = 255;
const LOOPBACK: &str = "lo";
