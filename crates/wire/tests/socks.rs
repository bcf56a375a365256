//! Messages of SOCKS5 and the header of the PROXY protocol: what is read, what is refused and why, and what is written.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

use flexcp_wire::{
    Ends, PROXY_HEADER_MAX_LEN, ParseError, ProxyHeader, SOCKS_MAX_LEN, SocksAddr, SocksCommand,
    SocksCredentials, SocksFault, SocksGreeting, SocksReply, SocksRequest, parse_socks_judgement,
    parse_socks_method, socks_credentials_judged, socks_method, socks_method_chosen,
};
use proptest::prelude::*;

fn ip(text: &str) -> SocksAddr<'static> {
    SocksAddr::Ip(text.parse().unwrap())
}

/// What `emit` has written.
fn written(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut out = [0xaa; SOCKS_MAX_LEN];
    let len = emit(&mut out);
    out[..len].to_vec()
}

#[test]
fn dialogue_of_curl_is_understood() {
    // curl --socks5-hostname --proxy-user me:secret http://example.org/
    let greeting = [5, 3, 0, 1, 2];
    let (read, len) = SocksGreeting::parse(&greeting).unwrap();
    assert_eq!((read.methods, len), (&[0, 1, 2][..], 5));
    assert_eq!(socks_method_chosen(socks_method::PASSWORD), [5, 2]);
    let (read, len) = SocksCredentials::parse(b"\x01\x02me\x06secret").unwrap();
    assert_eq!(
        (read.user, read.password, len),
        (&b"me"[..], &b"secret"[..], 11)
    );
    assert!(
        !format!("{read:?}").contains("115"),
        "no byte of a password is shown"
    );
    assert_eq!(socks_credentials_judged(true), [1, 0]);
    let request = [&[5, 1, 0, 3, 11][..], b"example.org", &[0, 80, b'G']].concat();
    let (read, len) = SocksRequest::parse(&request).unwrap();
    let wanted = SocksRequest {
        command: SocksCommand::Connect,
        to: SocksAddr::Name(b"example.org"),
        port: 80,
    };
    assert_eq!((read, len), (wanted, 18), "what follows is left");
    let reply = written(|out| SocksReply::Succeeded.emit(ip("192.0.2.1"), 40_000, out));
    assert_eq!(reply, [5, 0, 0, 1, 192, 0, 2, 1, 0x9c, 0x40]);
}

#[test]
fn what_has_not_come_yet_is_waited_for() {
    let request = [&[5, 1, 0, 3, 3][..], b"a.b", &[0, 80]].concat();
    for len in 0..request.len() {
        match SocksRequest::parse(&request[..len]) {
            Err(SocksFault::Incomplete(more)) => assert!(more > len && more <= request.len()),
            other => panic!("{len}: {other:?}"),
        }
    }
    assert_eq!(
        SocksGreeting::parse(&[5, 2, 0]),
        Err(SocksFault::Incomplete(4))
    );
    assert_eq!(
        SocksCredentials::parse(&[1, 1, b'a']),
        Err(SocksFault::Incomplete(4))
    );
}

#[test]
fn what_is_no_such_message_is_told_apart() {
    assert_eq!(
        SocksGreeting::parse(&[4, 1, 0, 80]),
        Err(SocksFault::Version(4))
    );
    assert_eq!(
        SocksGreeting::parse(b"GET /"),
        Err(SocksFault::Version(b'G'))
    );
    assert_eq!(
        SocksCredentials::parse(&[5, 1, b'a', 0]),
        Err(SocksFault::Version(5))
    );
    assert_eq!(
        SocksCredentials::parse(&[1, 0, 1, b'a']),
        Err(SocksFault::Empty)
    );
    assert_eq!(
        SocksRequest::parse(&[5, 1, 0, 2, 0]),
        Err(SocksFault::AddressType(2))
    );
    assert_eq!(
        SocksRequest::parse(&[5, 1, 0, 3, 0, 0, 80]),
        Err(SocksFault::Empty)
    );
}

#[test]
fn commands_and_replies_have_the_codes_of_the_rfc() {
    for (command, code) in [
        (SocksCommand::Connect, 1),
        (SocksCommand::Bind, 2),
        (SocksCommand::UdpAssociate, 3),
        (SocksCommand::Unknown(9), 9),
    ] {
        let request = SocksRequest {
            command,
            to: ip("2001:db8::1"),
            port: 443,
        };
        let bytes = written(|out| request.emit(out));
        assert_eq!((bytes[1], bytes[3], bytes.len()), (code, 4, 22));
        assert_eq!(SocksRequest::parse(&bytes), Ok((request, 22)));
    }
    let replies = [
        SocksReply::Succeeded,
        SocksReply::Failure,
        SocksReply::NotAllowed,
        SocksReply::NetworkUnreachable,
        SocksReply::HostUnreachable,
        SocksReply::Refused,
        SocksReply::Expired,
        SocksReply::Command,
        SocksReply::AddressType,
        SocksReply::Unknown(9),
    ];
    for (code, reply) in (0..).zip(replies) {
        let bytes = written(|out| reply.emit(ip("0.0.0.0"), 0, out));
        assert_eq!((bytes[1], reply.code()), (code, code));
        assert_eq!(SocksReply::parse(&bytes), Ok((reply, ip("0.0.0.0"), 0, 10)));
    }
}

#[test]
fn short_answers_are_read_as_they_are_written() {
    for method in [
        socks_method::NONE,
        socks_method::PASSWORD,
        socks_method::UNACCEPTABLE,
    ] {
        let bytes = socks_method_chosen(method);
        assert_eq!(parse_socks_method(&bytes), Ok((method, 2)));
    }
    for right in [false, true] {
        let bytes = socks_credentials_judged(right);
        assert_eq!(parse_socks_judgement(&bytes), Ok((right, 2)));
    }
    assert_eq!(parse_socks_judgement(&[1]), Err(SocksFault::Incomplete(2)));
}

proptest! {
    #[test]
    fn what_is_written_is_read_the_same(
        user in prop::collection::vec(any::<u8>(), 1..=255),
        password in prop::collection::vec(any::<u8>(), 0..=255),
        addr in any::<IpAddr>(),
        port in any::<u16>(),
        by_name in any::<bool>(),
    ) {
        let credentials = SocksCredentials { user: &user, password: &password };
        let bytes = written(|out| credentials.emit(out));
        prop_assert_eq!(SocksCredentials::parse(&bytes), Ok((credentials, bytes.len())));
        let greeting = SocksGreeting { methods: &password };
        let bytes = written(|out| greeting.emit(out));
        prop_assert_eq!(SocksGreeting::parse(&bytes), Ok((greeting, bytes.len())));
        let to = if by_name { SocksAddr::Name(&user) } else { SocksAddr::Ip(addr) };
        let request = SocksRequest { command: SocksCommand::Connect, to, port };
        let bytes = written(|out| request.emit(out));
        prop_assert_eq!(SocksRequest::parse(&bytes), Ok((request, bytes.len())));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let faults = [
            SocksGreeting::parse(&bytes).err(),
            SocksCredentials::parse(&bytes).err(),
            SocksRequest::parse(&bytes).err(),
            SocksReply::parse(&bytes).err(),
        ];
        for fault in faults.into_iter().flatten() {
            if let SocksFault::Incomplete(len) = fault {
                prop_assert!(len > bytes.len());
            }
        }
        if let Ok((header, _)) = ProxyHeader::parse(&bytes) {
            prop_assert!(header.ends.from.is_ipv4() == header.ends.to.is_ipv4());
        }
    }

    #[test]
    fn proxy_header_is_read_as_it_is_written(from in any::<SocketAddr>(), to in any::<SocketAddr>()) {
        let header = ProxyHeader { ends: Ends { from, to } };
        let mut out = [0; PROXY_HEADER_MAX_LEN];
        let len = header.emit(&mut out);
        let read = ProxyHeader::parse(&out[..len]);
        let same = from.is_ipv4() == to.is_ipv4();
        let known = |addr: SocketAddr| if same { addr } else { mapped(addr) };
        // Scope and flow label of IPv6 have no place there.
        let plain = |addr: SocketAddr| SocketAddr::new(known(addr).ip(), addr.port());
        let ends = Ends { from: plain(from), to: plain(to) };
        prop_assert_eq!(read, Ok((ProxyHeader { ends }, len)));
        prop_assert_eq!(ProxyHeader::parse(&out[..len - 1]), Err(ParseError::Truncated));
    }
}

fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

#[test]
fn proxy_header_is_as_haproxy_writes_it() {
    let ends = Ends {
        from: "192.0.2.1:40000".parse().unwrap(),
        to: "198.51.100.2:443".parse().unwrap(),
    };
    let mut out = [0; PROXY_HEADER_MAX_LEN];
    let len = ProxyHeader { ends }.emit(&mut out);
    let expected =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\x9c\x40\x01\xbb";
    assert_eq!(&out[..len], expected);
    let mut with_tlv = expected.to_vec();
    with_tlv[15] += 4;
    with_tlv.extend([4, 0, 1, 0]);
    assert_eq!(
        ProxyHeader::parse(&with_tlv),
        Ok((ProxyHeader { ends }, 32))
    );
    for (at, byte) in [(0, b'P'), (12, 0x11), (12, 0x20), (13, 0x12), (15, 11)] {
        let mut other = expected.to_vec();
        other[at] = byte;
        assert_eq!(
            ProxyHeader::parse(&other),
            Err(ParseError::ProxyHeader),
            "{at}"
        );
    }
}
