//! Addresses that servers announce, and joins at those that may be joined.

use std::net::{IpAddr, SocketAddr};

use flexcp_testkit::keys;
use flexcp_translator::{Mode, Prefix, Uplink};
use flexcp_wire::{AddAddr, CapableFlags, CapableKeys, MptcpOption, RemoveAddr, TcpOption};

use crate::world::*;

/// Announced, and listed; it counts as the aggregation server's to [`World`].
const ADDR: &str = "203.0.113.5";
const V6: &str = "2001:db8:5::1";

fn prefix(addr: &str, len: u8) -> Prefix {
    Prefix {
        addr: addr.parse().expect("an address"),
        len,
    }
}

/// Established with a server that takes joins at its address or does not (flag C), by a box that joins at these prefixes.
fn established(joinable: bool, listed: &[Prefix]) -> World {
    let mut world = World::with(|config| {
        let Mode::Box { join, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        join.extend_from_slice(listed);
    });
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let mut flags = CapableFlags::HMAC_SHA256;
    if !joinable {
        flags = flags.with(CapableFlags::NO_JOIN_INITIAL);
    }
    let key = capable_with(flags, CapableKeys::SynAck { sender: SERVER_KEY });
    let answer = [offer(), vec![key]].concat();
    let _ = world.of_server(0, SYN | ACK, [0, 1], answer, &[]);
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    world
}

/// The server announces an address, with the right HMAC or another.
fn announce(world: &mut World, id: u8, port: Option<u16>, right: bool) -> Vec<Out> {
    announce_of(world, ADDR, (id, port, right))
}

fn announce_of(
    world: &mut World,
    addr: &str,
    (id, port, right): (u8, Option<u16>, bool),
) -> Vec<Out> {
    let addr: IpAddr = addr.parse().expect("an address");
    let hmac = keys::add_addr((SERVER_KEY, world.box_key()), id, addr, port);
    let add = MptcpOption::AddAddr(AddAddr {
        echo: false,
        id,
        addr,
        port,
        hmac: Some(if right { hmac } else { hmac ^ 1 }),
    });
    let data_ack = dss(world.idsn() + 1, None);
    let options = [data_ack, TcpOption::Mptcp(add)];
    world.of_server(0, ACK, [1, 1], options, &[]).1
}

/// Where the joins go that are due.
fn joins(world: &mut World) -> Vec<SocketAddr> {
    let out = world.timeout();
    let joins = out.iter().filter(|out| out.join().is_some());
    joins.map(|out| out.packet.ends().to).collect()
}

#[test]
fn listed_address_is_joined_where_the_server_takes_no_joins_at_its_own() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    assert!(joins(&mut world).is_empty());
    let echoed = announce(&mut world, 1, None, true);
    assert!(echoed[0].packet.view().add_addr.is_some_and(|add| add.echo));
    let end = SocketAddr::new(ADDR.parse().unwrap(), server().port());
    assert_eq!(joins(&mut world), [end], "at the port of the subflow");
    assert_eq!(world.subflows[1].ip(), uplinks()[1]);
}

#[test]
fn announced_port_is_joined() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, Some(8443), true);
    assert_eq!(joins(&mut world)[0].port(), 8443);
}

/// Otherwise whoever has a connection with the box has it send SYNs to anybody.
#[test]
fn address_that_is_not_listed_or_not_proved_is_not_joined() {
    let elsewhere = [prefix("198.51.100.0", 24)];
    let listed = [prefix("203.0.113.0", 24)];
    for (listed, right) in [(&elsewhere[..], true), (&[], true), (&listed[..], false)] {
        let mut world = established(false, listed);
        let echoed = announce(&mut world, 1, None, right);
        assert_eq!(echoed.is_empty(), !right);
        for _ in 0..20 {
            assert!(joins(&mut world).is_empty());
            world.pass(500);
        }
    }
}

#[test]
fn own_address_is_preferred_where_the_server_takes_joins_there() {
    let mut world = established(true, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, None, true);
    assert_eq!(joins(&mut world), [server()]);
}

/// An uplink that has IPv6 alone joins a server that began with IPv4, if that has announced the other.
#[test]
fn uplink_of_another_family_joins_an_announced_address() {
    let mut world = World::with(|config| {
        let Mode::Box { join, uplinks, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        join.extend([prefix("203.0.113.0", 24), prefix("2001:db8:5::", 48)]);
        // The second has no IPv4.
        uplinks[1] = Uplink::from("2001:db8::2".parse::<IpAddr>().unwrap());
    });
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let _ = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    let _ = announce(&mut world, 1, None, true);
    assert!(joins(&mut world).is_empty(), "it has no IPv4");
    let _ = announce_of(&mut world, V6, (2, None, true));
    assert_eq!(joins(&mut world), [end("[2001:db8:5::1]:80")]);
    assert_eq!(world.subflows[1].ip(), end("[2001:db8::2]:0").ip());
}

#[test]
fn address_that_is_removed_is_not_joined() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 3, None, true);
    let remove = TcpOption::Mptcp(MptcpOption::RemoveAddr(RemoveAddr::new(&[3])));
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack, remove], &[]);
    assert!(joins(&mut world).is_empty());
}

#[test]
fn address_without_a_port_that_can_be_is_not_joined() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, Some(0), true);
    assert!(joins(&mut world).is_empty());
}

#[test]
fn first_address_of_a_family_is_joined_where_it_is_by_now() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, Some(8001), true);
    let _ = announce(&mut world, 2, Some(8002), true);
    let _ = announce(&mut world, 1, Some(8003), true);
    assert_eq!(joins(&mut world)[0].port(), 8003);
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, Some(8001), true);
    let _ = announce(&mut world, 2, Some(8002), true);
    assert_eq!(joins(&mut world)[0].port(), 8001);
}

/// Nothing brings the connection back. A subflow that the server has closed in one direction still carries the other one, and a
/// server that takes joins is joined again.
#[test]
fn client_hears_at_once_that_a_server_without_joins_has_reset_the_only_subflow() {
    for (joinable, flags) in [(false, RST | ACK), (true, RST | ACK), (false, FIN | ACK)] {
        let mut world = established(joinable, &[]);
        let data_ack = dss(world.idsn() + 1, None);
        let (_, mut out) = world.of_server(0, flags, [1, 1], [data_ack], &[]);
        out.append(&mut world.timeout());
        let resets = out.iter().filter(|out| out.subflow.is_none());
        let resets = resets.filter(|out| out.packet.tcp.flags.contains(RST));
        let lost = !joinable && flags.contains(RST);
        assert_eq!(resets.count(), usize::from(lost), "{flags:?} {out:?}");
    }
}

/// An announced address is as good as the first one.
#[test]
fn announced_address_is_joined_when_the_only_subflow_is_reset() {
    let mut world = established(false, &[prefix("203.0.113.0", 24)]);
    let _ = announce(&mut world, 1, None, true);
    let (_, out) = world.of_server(0, RST | ACK, [1, 1], [], &[]);
    assert!(out.iter().all(|out| out.subflow.is_some()), "{out:?}");
    let end = SocketAddr::new(ADDR.parse().unwrap(), server().port());
    assert_eq!(joins(&mut world), [end]);
}
