//! The rows of the table, and the services that they are about.

use std::net::{IpAddr, SocketAddr};

use flexcp_lab::{Family, Lab, daemon};
use flexcp_wire::{ConvertTlv, ConvertWriter};

use crate::rig::PORT;

/// FlexCP's services, by what they allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// All servers there are, on any port.
    All,
    /// The networks that the lab is of, on one port.
    Lab,
    /// IPv6 prefixes that carry all of IPv4.
    Carrying,
    /// FlexCP's address towards the server and nothing else.
    Own,
    /// As [`Lab`](Self::Lab), for those who show who they are: a password, or a cookie.
    Proved,
}

/// What clients speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaks {
    Convert,
    Socks5,
}

/// What a client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Granted,
    /// The code of an error TLV, or that of a SOCKS5 reply.
    Code(u8),
    /// SOCKS5: the method that is chosen, where none is taken; the outcome of a password, where that is wrong.
    Method(u8),
    Password(u8),
    /// Convert: what there is, which was asked for.
    Info,
    Reset,
}

pub(super) use Speaks::{Convert, Socks5};

/// One question.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) at: At,
    pub(super) speaks: Speaks,
    pub(super) client: Family,
    pub(super) what: String,
    pub(super) says: Vec<u8>,
    pub(super) told: Told,
    /// The cause of `preamble_refused`; `None`: the client is connected.
    pub(super) cause: Option<&'static str>,
}

const ALL: [At; 5] = [At::All, At::Lab, At::Carrying, At::Own, At::Proved];
pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const NOT_ALLOWED: Option<&str> = Some("not_allowed");

pub(super) fn port(at: At, speaks: Speaks) -> u16 {
    let place = ALL.iter().position(|other| *other == at).unwrap_or(0);
    let first = if speaks == Convert { 1080 } else { 1180 };
    first + u16::try_from(place).expect("a handful")
}

/// `carrier`: a line that each has beside.
pub(super) fn services(lab: &Lab, carrier: &str) -> String {
    let mut services = String::new();
    for (number, at) in ALL.into_iter().enumerate() {
        for speaks in [Convert, Socks5] {
            let own = FAMILIES.map(|family| lab.proxy_addr_towards(1, family));
            let own = [format!("{}/32", own[0]), format!("{}/128", own[1])];
            let allow: &[&str] = match at {
                At::All => &["0.0.0.0/0", "::/0"],
                At::Lab | At::Proved => &["10.0.0.0/8", "fd00::/8"],
                At::Carrying => &["64:ff9b::/96", "2002::/16"],
                At::Own => &[&own[0], &own[1]],
            };
            let (mode, first, proof) = match speaks {
                Convert => ("convert", 61_000, "cookies = true\n"),
                Socks5 => ("socks5", 63_000, "users = [\"joe:secret\"]\n"),
            };
            let listen = FAMILIES.map(|family| {
                SocketAddr::new(lab.proxy_addr(1, family), port(at, speaks)).to_string()
            });
            let service = daemon::explicit(mode, &listen, allow);
            services += &service.replace("\"any\"", &format!("\"{mode}-{at:?}\""));
            let first = first + 200 * number;
            services += &format!("source_ports = \"{first}-{}\"\n", first + 199);
            if matches!(at, At::Lab | At::Proved) {
                services += &format!("ports = [{PORT}]\n");
            }
            if at == At::Proved {
                services += proof;
            }
            services += carrier;
            services += "\n";
        }
    }
    services
}

/// What asks for a server by its address, in each protocol.
pub(super) fn asks(speaks: Speaks, to: IpAddr, port: u16) -> Vec<u8> {
    match (speaks, to) {
        (Convert, _) => connect(to, port, None),
        (Socks5, IpAddr::V4(addr)) => request(1, 1, &addr.octets(), port),
        (Socks5, IpAddr::V6(addr)) => request(1, 4, &addr.octets(), port),
    }
}

/// Convert's, with a cookie if there is one. Written by hand, as nobody else would ask for some of these.
pub(super) fn connect(to: IpAddr, port: u16, cookie: Option<&[u8]>) -> Vec<u8> {
    let addr = match to {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    };
    let mut out = [0; 64];
    let mut writer = ConvertWriter::new(&mut out);
    if let Some(cookie) = cookie {
        assert!(
            writer.push(&ConvertTlv::Cookie(cookie)),
            "room for a cookie"
        );
    }
    let len = writer.finish();
    let tlv = [&[10, 5][..], &port.to_be_bytes(), &addr.octets()].concat();
    let mut message = [&out[..len], &tlv].concat();
    message[1] = u8::try_from(message.len() / 4).expect("short");
    message
}

/// A greeting without a password, and a request.
fn request(command: u8, kind: u8, host: &[u8], port: u16) -> Vec<u8> {
    [
        &[5, 1, 0, 5, command, 0, kind][..],
        host,
        &port.to_be_bytes(),
    ]
    .concat()
}

fn by_name(name: &str, port: u16) -> Vec<u8> {
    let len = u8::try_from(name.len()).expect("short");
    request(1, 3, &[&[len], name.as_bytes()].concat(), port)
}

/// Says who one is, then what one wants.
fn by_password(user: &str, password: &str, to: IpAddr) -> Vec<u8> {
    let len = |text: &str| u8::try_from(text.len()).expect("short");
    let [user, password] = [user, password].map(|text| [&[len(text)], text.as_bytes()].concat());
    let wish = &asks(Socks5, to, PORT)[3..];
    [&[5, 1, 2, 1][..], &user, &password, wish].concat()
}

/// The refusal of a server that may not be named.
fn refused(speaks: Speaks) -> Told {
    Told::Code(if speaks == Convert { 32 } else { 2 })
}

/// Rows that are the same for both protocols and for clients of both families.
fn for_all(
    at: At,
    target: &str,
    told: impl Fn(Speaks) -> (Told, Option<&'static str>),
) -> Vec<Row> {
    let to: SocketAddr = target.parse().expect("an end");
    let mut rows = vec![];
    for speaks in [Convert, Socks5] {
        for client in FAMILIES {
            let (told, cause) = told(speaks);
            rows.push(Row {
                at,
                speaks,
                client,
                what: target.into(),
                says: asks(speaks, to.ip(), to.port()),
                told,
                cause,
            });
        }
    }
    rows
}

/// Servers that Convert itself does not know (RFC 8803 section 6.2.5) are malformed there.
const NOBODY: [&str; 8] = [
    "127.0.0.1:80",
    "127.9.9.9:80",
    "0.0.0.0:80",
    "224.0.0.1:80",
    "255.255.255.255:80",
    "[::1]:80",
    "[::]:80",
    "[ff02::1]:80",
];

/// A wide prefix names none of these.
const APART: [&str; 20] = [
    "0.1.2.3:80",
    "10.9.1.2:80",
    "10.200.0.1:80",
    "100.64.0.1:80",
    "169.254.169.254:80",
    "172.16.0.1:80",
    "172.31.255.254:80",
    "192.0.0.8:80",
    "192.168.0.1:80",
    "198.18.0.1:80",
    "240.0.0.1:80",
    "[::127.0.0.1]:80",
    "[fe80::1]:80",
    "[fec0::1]:80",
    "[fc00::1]:80",
    "[fd09:1::2]:80",
    "[64:ff9b::192.0.2.1]:80",
    "[64:ff9b::127.0.0.1]:80",
    "[64:ff9b:1::1]:80",
    "[2002:a09:102::1]:80",
];

pub(super) fn targets(lab: &Lab) -> Vec<Row> {
    let no = |speaks| (refused(speaks), NOT_ALLOWED);
    let mut rows = vec![];
    for target in NOBODY {
        rows.extend(for_all(At::All, target, |speaks| match speaks {
            Convert => (Told::Code(1), Some("malformed")),
            Socks5 => no(speaks),
        }));
    }
    for target in APART {
        rows.extend(for_all(At::All, target, no));
    }
    for carried in ["10.9.1.2", "127.0.0.1", "169.254.169.254", "10.1.1.1"] {
        rows.extend(for_all(
            At::Carrying,
            &format!("[64:ff9b::{carried}]:80"),
            no,
        ));
    }
    for target in ["[2002:a09:102::1]:80", "[2002:7f00:1::1]:80", "10.9.1.2:80"] {
        rows.extend(for_all(At::Carrying, target, no));
    }
    for family in FAMILIES {
        let server = lab.server_socket(1, family, PORT);
        let yes = |_| (Told::Granted, None);
        rows.extend(for_all(At::Lab, &server.to_string(), yes));
        let other = SocketAddr::new(server.ip(), PORT + 1);
        rows.extend(for_all(At::Lab, &other.to_string(), no));
        // The host's own addresses, services' and clients' are no servers, unless by name.
        let own = lab.proxy_addr_towards(1, family);
        for addr in [own, lab.proxy_addr(1, family), lab.proxy_addr(2, family)] {
            rows.extend(for_all(
                At::Lab,
                &SocketAddr::new(addr, PORT).to_string(),
                no,
            ));
        }
        let client = SocketAddr::new(lab.client_addr(1, family), PORT).to_string();
        let mut own = for_all(At::Lab, &client, no);
        own.retain(|row| row.client == family);
        rows.extend(own);
        rows.extend(for_all(At::Own, &server.to_string(), no));
        let listener = SocketAddr::new(lab.proxy_addr(1, family), PORT).to_string();
        rows.extend(for_all(At::Own, &listener, no));
    }
    rows
}

/// What is said wrongly, for clients of both families.
pub(super) fn words(lab: &Lab) -> Vec<Row> {
    let server = lab.server_addr(1, Family::V4);
    let of_convert = |at: usize, to: u8| {
        let mut said = connect(server, PORT, None);
        said[at] = to;
        said
    };
    let IpAddr::V4(v4) = server else {
        unreachable!("of IPv4");
    };
    let host = v4.octets();
    let cases = [
        (
            Convert,
            "another version",
            of_convert(0, 9),
            Told::Code(0),
            "protocol",
        ),
        (
            Convert,
            "an unknown TLV",
            of_convert(4, 99),
            Told::Code(2),
            "unsupported",
        ),
        (
            Convert,
            "a TLV of a converter",
            of_convert(4, 21),
            Told::Code(1),
            "malformed",
        ),
        (
            Convert,
            "port 0",
            connect(server, 0, None),
            Told::Code(1),
            "malformed",
        ),
        (
            Convert,
            "what there is",
            vec![1, 2, 0x22, 0x63, 1, 1, 0, 0],
            Told::Info,
            "asked",
        ),
        (
            Convert,
            "HTTP",
            b"GET / HTTP/1.1\r\n".to_vec(),
            Told::Reset,
            "protocol",
        ),
        (
            Socks5,
            "SOCKS4",
            vec![4, 1, 0, 80, 10, 9, 1, 2, 0],
            Told::Reset,
            "protocol",
        ),
        (
            Socks5,
            "HTTP",
            b"GET / HTTP/1.1\r\n".to_vec(),
            Told::Reset,
            "protocol",
        ),
        (
            Socks5,
            "BIND",
            request(2, 1, &host, PORT),
            Told::Code(7),
            "unsupported",
        ),
        (
            Socks5,
            "UDP",
            request(3, 1, &host, PORT),
            Told::Code(7),
            "unsupported",
        ),
        (
            Socks5,
            "an address of no kind",
            request(1, 9, &host, PORT),
            Told::Code(8),
            "unsupported",
        ),
        (
            Socks5,
            "port 0",
            request(1, 1, &host, 0),
            Told::Code(1),
            "malformed",
        ),
        (
            Socks5,
            "an empty name",
            by_name("", PORT),
            Told::Code(1),
            "malformed",
        ),
        (
            Socks5,
            "no method in common",
            vec![5, 1, 2],
            Told::Method(0xff),
            "method",
        ),
    ];
    let mut rows = vec![];
    for (speaks, what, says, told, cause) in cases {
        for client in FAMILIES {
            rows.push(Row {
                at: At::Lab,
                speaks,
                client,
                what: what.into(),
                says: says.clone(),
                told: told.clone(),
                cause: Some(cause),
            });
        }
    }
    rows
}

/// Passwords, and cookies. `cookies`: those that FlexCP has handed out, to clients of each family.
pub(super) fn proofs(lab: &Lab, cookies: [&[u8]; 2]) -> Vec<Row> {
    let server = lab.server_addr(1, Family::V4);
    let mut rows = vec![];
    let mut add = |speaks, client, what: &str, says, told, cause| {
        rows.push(Row {
            at: At::Proved,
            speaks,
            client,
            what: what.into(),
            says,
            told,
            cause,
        });
    };
    for (client, (own, other)) in FAMILIES
        .into_iter()
        .zip([(cookies[0], cookies[1]), (cookies[1], cookies[0])])
    {
        let no = Some("credentials");
        let right = by_password("joe", "secret", server);
        add(
            Socks5,
            client,
            "the right password",
            right,
            Told::Granted,
            None,
        );
        for (user, password) in [
            ("joe", "Secret"),
            ("joe", "secre"),
            ("joe", "secret!"),
            ("jo", "secret"),
            ("jim", "secret"),
        ] {
            let said = by_password(user, password, server);
            add(
                Socks5,
                client,
                &format!("{user}:{password}"),
                said,
                Told::Password(1),
                no,
            );
        }
        let none = asks(Socks5, server, PORT);
        add(
            Socks5,
            client,
            "no password",
            none,
            Told::Method(0xff),
            Some("method"),
        );
        let with = |cookie: &[u8]| connect(server, PORT, Some(cookie));
        add(
            Convert,
            client,
            "its cookie",
            with(own),
            Told::Granted,
            None,
        );
        add(
            Convert,
            client,
            "another's cookie",
            with(other),
            Told::Code(32),
            no,
        );
        add(
            Convert,
            client,
            "half a cookie",
            with(&own[..8]),
            Told::Code(32),
            no,
        );
        add(
            Convert,
            client,
            "a made-up cookie",
            with(&[7; 16]),
            Told::Code(32),
            no,
        );
        let nobody = connect([10, 9, 1, 77].into(), 1, Some(own));
        add(
            Convert,
            client,
            "its cookie, for nobody",
            nobody,
            Told::Code(32),
            NOT_ALLOWED,
        );
    }
    rows
}

/// A name, what it resolves to, and who is asked for it; `true`: its client is connected.
type Named = (&'static str, Vec<IpAddr>, At, bool);

/// Names that the lab's server of names knows: all that they resolve to is looked at.
pub(super) fn names(lab: &Lab) -> Vec<Named> {
    let [v4, v6] = FAMILIES.map(|family| lab.server_addr(1, family));
    let own = lab.proxy_addr_towards(1, Family::V4);
    let addr = |text: &str| text.parse::<IpAddr>().expect("an address");
    let loopback = addr("127.0.0.1");
    let of_all = |name, addr| (name, vec![addr], At::All, false);
    vec![
        ("server.test", vec![v4], At::Lab, true),
        ("six.test", vec![v6], At::Lab, true),
        ("both.test", vec![addr("192.168.0.1"), v4], At::Lab, true),
        ("own.test", vec![own], At::Lab, false),
        of_all("loopback.test", loopback),
        of_all("six-loopback.test", addr("::1")),
        of_all("private.test", v4),
        of_all("six-private.test", v6),
        of_all("metadata.test", addr("169.254.169.254")),
        of_all("mapped.test", addr("::ffff:127.0.0.1")),
        ("each.test", vec![loopback, v4], At::All, false),
        (
            "carried.test",
            vec![addr("64:ff9b::10.9.1.2")],
            At::Carrying,
            false,
        ),
        ("unknown.test", vec![], At::Lab, false),
        ("not a name.test", vec![], At::Lab, false),
    ]
}

pub(super) fn by_names(lab: &Lab) -> Vec<Row> {
    let mut rows = vec![];
    for (name, addrs, at, connected) in names(lab) {
        let (told, cause) = match (connected, addrs.is_empty()) {
            (true, _) => (Told::Granted, None),
            (false, true) => (Told::Code(4), Some("no_name")),
            (false, false) => (refused(Socks5), NOT_ALLOWED),
        };
        for client in FAMILIES {
            rows.push(Row {
                at,
                speaks: Socks5,
                client,
                what: name.into(),
                says: by_name(name, PORT),
                told: told.clone(),
                cause,
            });
        }
    }
    rows
}
