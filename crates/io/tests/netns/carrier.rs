//! Packets through the TUN device.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use flexcp_io::{
    Diversion, Family, KernelTables, LinkHeader, PacketBuffer, Plan, Protocol, Tun, Waker,
    interface_exists, interfaces, local_addresses, route_source, tcp_listener_on, wait,
};
use flexcp_translator::Prefix;
use rustix::io::Errno;

use crate::host::{
    DEVICE, Host, Neighbours, TABLE, assert_unchanged, ip, journal, plan, set_sysctl, snapshot,
};
use crate::relay::{Relay, Reverse, Seen, socket};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("transparent_connection_passes_in_large_packets_v4", || {
        transparent(V4)
    }),
    ("transparent_connection_passes_in_large_packets_v6", || {
        transparent(V6)
    }),
    ("connection_to_own_address_is_diverted_v4", || reverse(V4)),
    ("connection_to_own_address_is_diverted_v6", || reverse(V6)),
    (
        "own_connections_are_not_diverted",
        own_connections_are_not_diverted,
    ),
    ("kernel_sends_nothing_of_its_own", || {
        kernel_sends_nothing(false)
    }),
    (
        "kernel_sends_nothing_of_its_own_when_forwarding_was_on",
        || kernel_sends_nothing(true),
    ),
    ("queues_of_one_device", queues_of_one_device),
    (
        "device_down_or_deleted_is_an_error",
        device_down_or_deleted_is_an_error,
    ),
    (
        "questions_about_the_namespace",
        questions_about_the_namespace,
    ),
];

/// Addresses of one family: client, proxy towards it, proxy towards the server, server.
type Addresses = [&'static str; 4];
const V4: Addresses = ["10.1.0.2", "10.1.0.1", "10.9.0.1", "10.9.0.2"];
const V6: Addresses = ["fd01::2", "fd01::1", "fd09::1", "fd09::2"];

fn transparent([_, _, _, server]: Addresses) {
    let neighbours = Neighbours::new();
    // As most distributions have it.
    set_sysctl("ipv4/conf/all/rp_filter", "2");
    let before = snapshot();
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan(journal()), &mut |line| println!("{line}")).unwrap();

    let relay = Relay::start(tun, None);
    exchange(&neighbours, socket(server, 80), socket(server, 80), None);
    check(&relay.seen);
    let packets = relay.seen.packets.load(Relaxed);
    // Another port passes by.
    exchange(&neighbours, socket(server, 81), socket(server, 81), None);
    assert_eq!(relay.seen.packets.load(Relaxed), packets);

    tables.remove(&mut |line| println!("{line}")).unwrap();
    drop(relay.stop());
    assert_unchanged(&before);
}

fn reverse([client, listen, source, server]: Addresses) {
    let neighbours = Neighbours::new();
    set_sysctl("ipv4/conf/all/rp_filter", "1");
    set_sysctl("ipv6/conf/all/forwarding", "1");
    let before = snapshot();
    let reverse = Reverse {
        client: socket(client, 40000),
        listen: socket(listen, 8080),
        source: socket(source, 50001),
        server: socket(server, 80),
    };
    let family = if reverse.client.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let host = |addr: SocketAddr| {
        Some(Prefix {
            addr: addr.ip(),
            len: if addr.is_ipv4() { 32 } else { 128 },
        })
    };
    let diversion = Diversion {
        protocol: Protocol::Tcp,
        interface: None,
        source: None,
        destination: None,
        source_ports: None,
        destination_ports: None,
        family,
    };
    let plan = Plan {
        device: DEVICE.into(),
        vrf: None,
        table: TABLE,
        diversions: vec![
            Diversion {
                destination: host(reverse.listen),
                destination_ports: Some(8080..=8080),
                ..diversion.clone()
            },
            Diversion {
                source: host(reverse.server),
                destination: host(reverse.source),
                source_ports: Some(80..=80),
                destination_ports: Some(50000..=59999),
                ..diversion
            },
        ],
        uplinks: vec![],
        v4: family == Family::V4,
        v6: family == Family::V6,
        mark: 0,
        reserved_ports: Some(50000..=59999),
        journal: journal(),
    };
    let tun = Tun::open(DEVICE).unwrap();
    let tables = KernelTables::install(&plan, &mut |line| println!("{line}")).unwrap();

    let relay = Relay::start(tun, Some(reverse));
    exchange(
        &neighbours,
        reverse.listen,
        reverse.server,
        Some(reverse.client),
    );
    check(&relay.seen);

    tables.remove(&mut |_| {}).unwrap();
    drop(relay.stop());
    assert_unchanged(&before);
}

fn check(seen: &Seen) {
    let [packets, large, largest, partial] =
        [&seen.packets, &seen.large, &seen.largest, &seen.partial]
            .map(|number| number.load(Relaxed));
    println!(
        "{packets} packets, {large} of several segments, largest {largest}, {partial} partial"
    );
    assert!(
        large > 10 && largest > 20_000 && partial >= large,
        "offloads do not work"
    );
}

/// Sends 20 MB each way at once, and compares them.
fn exchange(neighbours: &Neighbours, to: SocketAddr, server: SocketAddr, bind: Option<SocketAddr>) {
    let listener = neighbours
        .server
        .run(move || TcpListener::bind(server).unwrap());
    let server = std::thread::spawn(move || echo(&listener));
    neighbours.client.run(move || {
        let stream = match bind {
            None => TcpStream::connect_timeout(&to, LIMIT).unwrap(),
            Some(addr) => connect_from(addr, to),
        };
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            (0..BLOCKS).for_each(|block| writer.write_all(&pattern(block)).unwrap());
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let (mut reader, mut bytes) = (stream, vec![0; BLOCK]);
        for block in 0..BLOCKS {
            reader.read_exact(&mut bytes).unwrap();
            assert!(bytes == pattern(block), "block {block} is damaged");
        }
        assert_eq!(reader.read(&mut bytes).unwrap(), 0);
        sender.join().unwrap();
    });
    server.join().unwrap();
}

fn echo(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => return,
            len => stream.write_all(&bytes[..len]).unwrap(),
        }
    }
}

fn connect_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = socket(family, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Send, Some(LIMIT))
        .unwrap();
    bind(&fd, &from).unwrap();
    connect(&fd, &to).unwrap();
    fd.into()
}

fn pattern(block: usize) -> Vec<u8> {
    (0..BLOCK)
        .map(|at| u8::try_from((at / 7 + block * 31) % 251).unwrap())
        .collect()
}

/// Nor is what comes back to the host itself, although it comes from port 80 of a server.
fn own_connections_are_not_diverted() {
    let neighbours = Neighbours::new();
    let tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    for server in [socket("10.9.0.2", 80), socket("fd09::2", 80)] {
        let listener = neighbours
            .server
            .run(move || TcpListener::bind(server).unwrap());
        TcpStream::connect_timeout(&server, LIMIT).unwrap();
        drop(listener);
    }
    // To one of its own addresses, over the loopback device.
    let listener = TcpListener::bind(socket("10.1.0.1", 8080)).unwrap();
    TcpStream::connect_timeout(&listener.local_addr().unwrap(), LIMIT).unwrap();
    assert!(tun.receive(&mut PacketBuffer::new()).unwrap().is_none());
}

fn kernel_sends_nothing(forwarding: bool) {
    let _neighbours = Neighbours::new();
    if forwarding {
        set_sysctl("ipv4/ip_forward", "1");
        set_sysctl("ipv6/conf/all/forwarding", "1");
    }
    let tun = Tun::open(DEVICE).unwrap();
    let _tables = KernelTables::install(&plan(journal()), &mut |_| {}).unwrap();
    let (mut buffer, waker) = (PacketBuffer::new(), Waker::new().unwrap());
    let mut packets = Vec::new();
    while wait(&tun, &waker, Some(Duration::from_secs(2)))
        .unwrap()
        .packets
    {
        while let Some(frame) = tun.receive(&mut buffer).unwrap() {
            packets.push(frame.packet().to_vec());
        }
    }
    assert!(packets.is_empty() && tun.malformed() == 0, "{packets:x?}");
    assert_eq!(ip("-6 address show dev flexcp0"), "");
    assert!(ip("link show flexcp0").contains("mtu 65535"));
}

fn queues_of_one_device() {
    let tun = Tun::open(DEVICE).unwrap();
    assert_eq!(tun.name(), DEVICE);
    assert!(ip("-oneline link show flexcp0").starts_with(&format!("{}: flexcp0:", tun.index())));
    let second = tun.another_queue().unwrap();
    assert_eq!((second.name(), second.index()), (tun.name(), tun.index()));
    drop(tun);
    assert!(interface_exists(DEVICE));
    drop(second);
    assert!(!interface_exists(DEVICE));
}

fn device_down_or_deleted_is_an_error() {
    let tun = Tun::open(DEVICE).unwrap();
    let mut buffer = PacketBuffer::new();
    let syn = [0x45; 40];
    let offload = flexcp_wire::Offload::default();
    let error = tun.send_parts(&syn, 20, &[], &offload).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
    ip("link delete flexcp0");
    let error = tun.receive(&mut buffer).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::BADFD));
    assert!(
        wait(&tun, &Waker::new().unwrap(), Some(LIMIT))
            .unwrap()
            .packets
    );
}

fn questions_about_the_namespace() {
    let _neighbours = Neighbours::new();
    let addr = |ip: &str| ip.parse::<IpAddr>().unwrap();
    assert!(interface_exists("cli") && interface_exists("lo") && !interface_exists("eth0"));
    assert!(!interface_exists("a name that is too long"));
    let local = local_addresses();
    for (name, ip) in [
        ("lo", "127.0.0.1"),
        ("lo", "::1"),
        ("cli", "10.1.0.1"),
        ("srv", "fd09::1"),
    ] {
        assert!(
            local.contains(&(name.to_owned(), addr(ip))),
            "{ip} is missing in {local:?}"
        );
    }
    assert_eq!(route_source(addr("10.9.0.2"), None), Some(addr("10.9.0.1")));
    assert_eq!(route_source(addr("fd09::2"), None), Some(addr("fd09::1")));
    assert_eq!(route_source(addr("10.9.0.1"), None), Some(addr("10.9.0.1")));
    assert_eq!(route_source(addr("192.0.2.1"), None), None);
    assert_eq!(route_source(addr("2001:db8::1"), None), None);
    assert_eq!(route_source(addr("10.9.0.2"), Some("red")), None);
    ip("link add bridge type bridge");
    ip("link add port master bridge type veth peer name end");
    let ports = interfaces().unwrap().into_iter().filter(|one| one.is_port);
    assert_eq!(ports.map(|one| one.name).collect::<Vec<_>>(), ["port"]);
    ip("tuntap add tun mode tun");
    ip("tuntap add tap mode tap");
    let headers = ["tun", "tap", "port", "lo"].map(|name| {
        let all = interfaces().unwrap();
        all.iter().find(|one| one.name == name).unwrap().header
    });
    assert_eq!(
        headers,
        [
            LinkHeader::Nothing,
            LinkHeader::Ethernet,
            LinkHeader::Ethernet,
            LinkHeader::Other
        ]
    );

    assert_eq!(tcp_listener_on(socket("10.1.0.1", 8080)), None);
    let listener = TcpListener::bind(socket("10.1.0.1", 8080)).unwrap();
    assert_eq!(
        tcp_listener_on(socket("10.1.0.1", 8080)).as_deref(),
        Some("10.1.0.1:8080")
    );
    assert_eq!(tcp_listener_on(socket("10.9.0.1", 8080)), None);
    let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(tcp_listener_on(connection.local_addr().unwrap()), None);
    let _wildcard = TcpListener::bind(socket("::", 8081)).unwrap();
    assert_eq!(
        tcp_listener_on(socket("10.9.0.1", 8081)).as_deref(),
        Some("[::]:8081")
    );
    // The namespace of another host has nothing of that.
    assert_eq!(
        Host::new().run(|| tcp_listener_on(socket("::", 8081))),
        None
    );
}

const LIMIT: Duration = Duration::from_secs(10);
const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 20;
