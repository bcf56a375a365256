//! How a client names its server to a proxy: Convert (RFC 8803) and SOCKS5 (RFC 1928).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use flexcp_wire::{
    CONVERT_HEADER_LEN, CONVERT_MAX_LEN, Connect, ConvertMessage, ConvertTlv, ConvertWriter,
};

/// The server that a client asks for.
#[derive(Clone, Debug)]
pub(super) enum Named {
    /// By Convert, in the SYN.
    InSyn(SocketAddr),
    /// By Convert, once the client is connected.
    Late(SocketAddr),
    /// By SOCKS5: an address or a name, and a port.
    Socks5(String, u16),
}

impl Named {
    /// Asks for the server, as far as that has not been done, and waits until the client is connected with it.
    pub(super) fn ask(&self, stream: &mut TcpStream) -> io::Result<()> {
        match self {
            Self::InSyn(_) => take_answer(stream),
            Self::Late(server) => {
                stream.write_all(&connect_message(*server))?;
                take_answer(stream)
            }
            Self::Socks5(host, port) => ask_socks5(stream, host, *port),
        }
    }
}

/// Asks by SOCKS5, without saying who asks.
fn ask_socks5(stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
    stream.write_all(&[5, 1, 0])?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen)?;
    let mut request = vec![5, 1, 0];
    match host.parse() {
        Ok(IpAddr::V4(addr)) => {
            request.push(1);
            request.extend(addr.octets());
        }
        Ok(IpAddr::V6(addr)) => {
            request.push(4);
            request.extend(addr.octets());
        }
        Err(_) => {
            request.extend([
                3,
                u8::try_from(host.len()).map_err(|_| wrong("too long a name"))?,
            ]);
            request.extend(host.bytes());
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    let mut from = vec![0; if answer[3] == 4 { 18 } else { 6 }];
    stream.read_exact(&mut from)?;
    if (chosen, answer[1]) == ([5, 0], 0) {
        Ok(())
    } else {
        Err(wrong(&format!("SOCKS5: {chosen:?}, {answer:?}")))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What asks a converter for a connection with a server.
pub(crate) fn connect_message(server: SocketAddr) -> Vec<u8> {
    let mut message = vec![0; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut message);
    let connect = ConvertTlv::Connect(Connect {
        addr: server.ip(),
        port: server.port(),
        options: &[],
    });
    assert!(writer.push(&connect), "room for one TLV");
    let len = writer.finish();
    message.truncate(len);
    message
}

/// Reads what a converter answers whose server has answered.
fn take_answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut header = [0; CONVERT_HEADER_LEN];
    stream.read_exact(&mut header)?;
    let mut message = vec![0; usize::from(header[1]) * 4];
    let (front, rest) = message.split_at_mut(CONVERT_HEADER_LEN.min(usize::from(header[1]) * 4));
    front.copy_from_slice(&header[..front.len()]);
    stream.read_exact(rest)?;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let (said, _) = ConvertMessage::parse(&message).map_err(|fault| wrong(format!("{fault:?}")))?;
    match said.tlvs().find(|tlv| matches!(tlv, ConvertTlv::Error(_))) {
        Some(error) => Err(wrong(format!("{error:?}"))),
        None => Ok(()),
    }
}
