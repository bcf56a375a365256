//! Conntrack zones: why and how the clients' leg of a connection has one of its own.
//!
//! A packet of a connection on the path passes this host twice, from the client's interface to the TUN device and from
//! there to the server's, with the same addresses and ports but other numbers of TCP. Conntrack would take the two legs
//! for one connection: it applies NAT to the first pass alone, and finds numbers outside the windows. With the clients'
//! leg in a zone, each leg is one connection.

use std::ffi::c_int;
use std::ops::RangeInclusive;

use flexcp_translator::Prefix;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::super::{Family, is_interface_name};
use super::message::Message;
use super::rule::{End, Rule, number};
use super::{Kernel, NetfilterError};

/// The table `inet flexcp`, whose rules put packets of the clients' legs in a conntrack zone. The kernel removes it when
/// this is dropped, and however the process ends.
#[derive(Debug)]
pub struct Zones {
    /// The owner of the table: nobody else can change it, and it goes with the socket.
    kernel: Kernel,
}

/// The packets between FlexCP and the clients of a service on the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientLeg {
    /// Where the clients' packets come in, by name, whether they are there or not; empty: any interface but `lo` and the TUN device.
    pub interfaces: Vec<String>,
    /// The servers; `None` is any.
    pub destination: Option<Prefix>,
    /// The servers' ports; `None` is any.
    pub ports: Option<RangeInclusive<u16>>,
    /// Clients' packets with any of these bits in their mark are left alone: the kernel forwards them, past FlexCP.
    /// 0: the mark says nothing.
    pub except_mark: u32,
    /// The family of the packets, which is also that of the servers.
    pub family: Family,
}

impl Zones {
    /// Puts the packets of `legs` in the zone `zone`; `device` is the TUN device, which sends those to the clients.
    ///
    /// # Errors
    /// When a leg cannot be, or the kernel refuses; then nothing has changed.
    pub fn install(zone: u16, device: &str, legs: &[ClientLeg]) -> Result<Self, NetfilterError> {
        let changes = table(zone, device, legs)?;
        let install = || {
            let mut kernel = Kernel::open(NETLINK_NETFILTER)?;
            kernel.change(changes)?;
            Ok(kernel)
        };
        let kernel = install().map_err(|source| NetfilterError::Zones { source })?;
        Ok(Self { kernel })
    }

    /// The same with other legs, at once: no packet meets neither or both.
    ///
    /// # Errors
    /// As of [`Zones::install`].
    pub fn replace(
        &mut self,
        zone: u16,
        device: &str,
        legs: &[ClientLeg],
    ) -> Result<(), NetfilterError> {
        let mut changes = vec![(about_table(libc::NFT_MSG_DELTABLE), 0)];
        changes.extend(table(zone, device, legs)?);
        self.kernel
            .change(changes)
            .map_err(|source| NetfilterError::Zones { source })
    }
}

/// What makes the whole table.
fn table(
    zone: u16,
    device: &str,
    legs: &[ClientLeg],
) -> Result<Vec<(Message, u16)>, NetfilterError> {
    let mut table = about_table(libc::NFT_MSG_NEWTABLE);
    table.put(NFTA_TABLE_FLAGS, &NFT_TABLE_F_OWNER.to_be_bytes());
    let mut changes = vec![
        (table, NLM_F_CREATE | NLM_F_EXCL),
        (chain(CHAIN, PRIORITY_RAW), NLM_F_CREATE | NLM_F_EXCL),
    ];
    check_name(device)?;
    for leg in legs {
        check(leg)?;
        for rule in rules(zone, device, leg) {
            changes.push((rule.message(TABLE, CHAIN), NLM_F_CREATE | NLM_F_APPEND));
        }
    }
    let mark = legs.iter().fold(0, |bits, leg| bits | leg.except_mark);
    if mark != 0 {
        changes.push((chain(MARKS, PRIORITY_MANGLE), NLM_F_CREATE | NLM_F_EXCL));
        for rule in mark_rules(device, mark) {
            changes.push((rule.message(TABLE, MARKS), NLM_F_CREATE | NLM_F_APPEND));
        }
    }
    Ok(changes)
}

fn check(leg: &ClientLeg) -> Result<(), NetfilterError> {
    if let Some(prefix) = leg.destination
        && !leg.family.is_of(&prefix)
    {
        return Err(NetfilterError::Prefix {
            family: leg.family,
            prefix,
        });
    }
    leg.interfaces.iter().try_for_each(|name| check_name(name))
}

fn check_name(name: &str) -> Result<(), NetfilterError> {
    if is_interface_name(name) {
        return Ok(());
    }
    Err(NetfilterError::InterfaceName {
        name: name.to_owned(),
    })
}

/// First those of packets to the clients, then those of packets from them.
fn rules(zone: u16, device: &str, leg: &ClientLeg) -> Vec<Rule> {
    let mut to_clients = Rule::new();
    to_clients.interface(device, true);
    finish(&mut to_clients, End::Source, zone, leg);

    let mut from_clients: Vec<Rule> = leg
        .interfaces
        .iter()
        .map(|interface| {
            let mut rule = Rule::new();
            rule.interface(interface, true);
            rule
        })
        .collect();
    if from_clients.is_empty() {
        let mut rule = Rule::new();
        rule.interface(device, false);
        rule.interface("lo", false);
        from_clients.push(rule);
    }
    for rule in &mut from_clients {
        if leg.except_mark != 0 {
            rule.mark_without(leg.except_mark);
        }
        finish(rule, End::Destination, zone, leg);
    }
    let mut rules = vec![to_clients];
    rules.append(&mut from_clients);
    rules
}

/// A connection whose packets are marked on their way up is marked, and so are the answers to it: behind NAT those come to
/// the host's own address, where FlexCP's programs do not know them.
fn mark_rules(device: &str, mark: u32) -> [Rule; 2] {
    let mut up = Rule::new();
    up.mark_with(mark);
    up.mark_connection(mark);
    let mut down = Rule::new();
    down.interface(device, false);
    down.answers_marked(mark);
    down.mark_packet(mark);
    [up, down]
}

/// Has the packets of the leg, whose server is at the end `server`, in the zone.
fn finish(rule: &mut Rule, server: End, zone: u16, leg: &ClientLeg) {
    rule.family(leg.family);
    if let Some(prefix) = leg.destination.filter(|prefix| prefix.len > 0) {
        rule.address(server, &prefix);
    }
    rule.tcp();
    if let Some(ports) = &leg.ports {
        rule.port(server, ports);
    }
    rule.set_zone(zone);
}

fn chain(name: &str, priority: c_int) -> Message {
    let mut chain = Message::netfilter(
        libc::NFNL_SUBSYS_NFTABLES,
        libc::NFT_MSG_NEWCHAIN,
        libc::NFPROTO_INET,
    );
    chain.put_words(NFTA_CHAIN_TABLE, TABLE);
    chain.put_words(NFTA_CHAIN_NAME, name);
    chain.nest(NFTA_CHAIN_HOOK, |hook| {
        hook.put(NFTA_HOOK_HOOKNUM, &number(libc::NF_INET_PRE_ROUTING));
        hook.put(NFTA_HOOK_PRIORITY, &number(priority));
    });
    chain.put(NFTA_CHAIN_POLICY, &number(libc::NF_ACCEPT));
    chain.put_words(NFTA_CHAIN_TYPE, "filter");
    chain
}

fn about_table(kind: c_int) -> Message {
    let mut table = Message::netfilter(libc::NFNL_SUBSYS_NFTABLES, kind, libc::NFPROTO_INET);
    table.put_words(NFTA_TABLE_NAME, TABLE);
    table
}

/// The name of the table, which is of the family `inet`.
pub(super) const TABLE: &str = "flexcp";
const CHAIN: &str = "zones";
const MARKS: &str = "marks";
/// Before conntrack, at -200, and behind the putting together of fragments, at -400.
const PRIORITY_RAW: c_int = -300;
/// Behind conntrack, and before routing.
const PRIORITY_MANGLE: c_int = -150;

const NFT_TABLE_F_OWNER: u32 = 2;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
