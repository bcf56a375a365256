//! Target `preamble`: what stands before a stream, as it comes byte by byte.

use std::fmt::Debug;

use flexcp_wire::{
    CONVERT_MAX_LEN, ConvertFault, ConvertMessage, ConvertWriter, PROXY_HEADER_MAX_LEN, ParseError,
    ProxyHeader, SOCKS_MAX_LEN, SocksCredentials, SocksFault, SocksGreeting, SocksReply,
    SocksRequest,
};

/// Target: the bytes as the front of a stream, for each of the protocols.
pub fn target(data: &[u8]) {
    convert(data);
    socks(data);
    proxy(data);
}

fn convert(data: &[u8]) {
    let waits = |fault: &ConvertFault| matches!(fault, ConvertFault::Incomplete(_));
    piecemeal(data, ConvertMessage::parse, waits);
    let Ok((message, len)) = ConvertMessage::parse(data) else {
        return;
    };
    let mut out = [0x55; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut out);
    for tlv in message.tlvs() {
        assert!(writer.push(&tlv), "{tlv:?} has stood in a message");
    }
    let again = writer.finish();
    assert_eq!(again, len, "{message:?}");
    let read = ConvertMessage::parse(&out[..len]).map(|(message, _)| message);
    let read = read.expect("it was written");
    assert!(read.tlvs().eq(message.tlvs()), "{read:?} {message:?}");
}

fn socks(data: &[u8]) {
    let waits = |fault: &SocksFault| matches!(fault, SocksFault::Incomplete(_));
    let mut out = [0x55; SOCKS_MAX_LEN];
    piecemeal(data, SocksGreeting::parse, waits);
    if let Ok((greeting, len)) = SocksGreeting::parse(data) {
        let written = greeting.emit(&mut out);
        assert_eq!(out[..written], data[..len]);
    }
    piecemeal(data, SocksCredentials::parse, waits);
    if let Ok((credentials, len)) = SocksCredentials::parse(data) {
        let written = credentials.emit(&mut out);
        assert_eq!(out[..written], data[..len]);
    }
    piecemeal(data, SocksRequest::parse, waits);
    if let Ok((request, len)) = SocksRequest::parse(data) {
        let written = request.emit(&mut out);
        assert_eq!(written, len);
        assert_eq!(SocksRequest::parse(&out[..len]), Ok((request, len)));
    }
    let reply = |stream| {
        SocksReply::parse(stream).map(|(reply, from, port, len)| ((reply, from, port), len))
    };
    piecemeal(data, reply, waits);
    if let Ok((reply, from, port, len)) = SocksReply::parse(data) {
        let written = reply.emit(from, port, &mut out);
        assert_eq!(written, len);
        assert_eq!(SocksReply::parse(&out[..len]), Ok((reply, from, port, len)));
    }
}

fn proxy(data: &[u8]) {
    let waits = |fault: &ParseError| *fault == ParseError::Truncated;
    piecemeal(data, ProxyHeader::parse, waits);
    if let Ok((header, _)) = ProxyHeader::parse(data) {
        let mut out = [0x55; PROXY_HEADER_MAX_LEN];
        let len = header.emit(&mut out);
        assert_eq!(ProxyHeader::parse(&out[..len]), Ok((header, len)));
    }
}

/// A stream that comes byte by byte is waited for until it says what it says as a whole, and says nothing else before.
fn piecemeal<'a, T, F>(
    data: &'a [u8],
    parse: impl Fn(&'a [u8]) -> Result<(T, usize), F>,
    waits: impl Fn(&F) -> bool,
) where
    T: PartialEq + Debug,
    F: PartialEq + Debug,
{
    let whole = parse(data);
    let longest = data.len().min(64);
    for len in 0..longest {
        let early = parse(&data[..len]);
        let waits = early.as_ref().err().is_some_and(&waits);
        assert!(
            waits || early == whole,
            "{early:?} of {len} bytes, then {whole:?}"
        );
    }
    if let Ok((_, len)) = whole {
        assert!(len <= data.len(), "{len} bytes of {}", data.len());
    }
}
