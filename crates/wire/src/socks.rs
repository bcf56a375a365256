//! SOCKS5 (RFC 1928) and its user name and password (RFC 1929): what a client and a server say before the stream.
//!
//! Each message is read at the front of a stream, of which more may follow, and says how many bytes it takes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer, length_byte};

/// Most bytes of any of these messages: user name and password, each as long as it can be.
pub const SOCKS_MAX_LEN: usize = 3 + 2 * 255;

/// Ways for a client to say who it is (RFC 1928 section 3).
pub mod socks_method {
    /// It need not.
    pub const NONE: u8 = 0;
    /// User name and password (RFC 1929).
    pub const PASSWORD: u8 = 2;
    /// The server takes none of those that the client has offered.
    pub const UNACCEPTABLE: u8 = 0xff;
}

/// Why the first bytes of a stream are no such message, or none yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocksFault {
    /// There have to be so many bytes at least before anything can be said.
    Incomplete(usize),
    /// Another version, of SOCKS or of the negotiation.
    Version(u8),
    /// A kind of address that there is not: [`SocksReply::AddressType`].
    AddressType(u8),
    /// A name, or a user's name, without a letter.
    Empty,
}

/// What a client says first: the methods that it offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocksGreeting<'a> {
    /// See [`socks_method`].
    pub methods: &'a [u8],
}

/// A user name and a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SocksCredentials<'a> {
    /// 1 to 255 bytes.
    pub user: &'a [u8],
    /// 0 to 255 bytes.
    pub password: &'a [u8],
}

/// What a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocksRequest<'a> {
    /// What is to be done.
    pub command: SocksCommand,
    /// With whom.
    pub to: SocksAddr<'a>,
    /// At which port.
    pub port: u16,
}

/// What is to be done (RFC 1928 section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocksCommand {
    /// A connection.
    Connect,
    /// A port that somebody else connects to.
    Bind,
    /// A port for datagrams.
    UdpAssociate,
    /// Anything else.
    Unknown(u8),
}

/// An address in a request or an answer (RFC 1928 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocksAddr<'a> {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// A name of 1 to 255 bytes, which the server resolves.
    Name(&'a [u8]),
}

/// How a request ends (RFC 1928 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocksReply {
    /// The connection is there.
    Succeeded,
    /// Something that has no code of its own.
    Failure,
    /// The client may not have that.
    NotAllowed,
    /// There is no way to the network.
    NetworkUnreachable,
    /// There is no way to the host, or its name is unknown.
    HostUnreachable,
    /// The server has answered with a reset.
    Refused,
    /// Time was over.
    Expired,
    /// Another command than the one to connect.
    Command,
    /// Another kind of address.
    AddressType,
    /// A code that RFC 1928 does not have.
    Unknown(u8),
}

impl<'a> SocksGreeting<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn parse(stream: &'a [u8]) -> Result<(Self, usize), SocksFault> {
        let mut fields = Fields::new(stream, VERSION)?;
        let methods = fields.counted()?;
        Ok((Self { methods }, fields.len))
    }

    /// Writes it; returns its length.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        writer.u8(VERSION);
        put_counted(&mut writer, self.methods);
        writer.len()
    }
}

impl<'a> SocksCredentials<'a> {
    /// Reads them.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn parse(stream: &'a [u8]) -> Result<(Self, usize), SocksFault> {
        let mut fields = Fields::new(stream, PASSWORD_VERSION)?;
        let user = fields.named()?;
        let password = fields.counted()?;
        Ok((Self { user, password }, fields.len))
    }

    /// Writes them; returns their length.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        writer.u8(PASSWORD_VERSION);
        put_counted(&mut writer, self.user);
        put_counted(&mut writer, self.password);
        writer.len()
    }
}

/// Nobody logs a password by mistake.
impl core::fmt::Debug for SocksCredentials<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut shown = f.debug_struct("SocksCredentials");
        shown.field("user", &self.user).finish_non_exhaustive()
    }
}

impl<'a> SocksRequest<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn parse(stream: &'a [u8]) -> Result<(Self, usize), SocksFault> {
        let mut fields = Fields::new(stream, VERSION)?;
        let command = SocksCommand::from_code(fields.byte()?);
        let (to, port) = fields.place()?;
        Ok((Self { command, to, port }, fields.len))
    }

    /// Writes it; returns its length.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        emit_place(self.command.code(), self.to, self.port, out)
    }
}

impl SocksCommand {
    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Connect,
            2 => Self::Bind,
            3 => Self::UdpAssociate,
            code => Self::Unknown(code),
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Connect => 1,
            Self::Bind => 2,
            Self::UdpAssociate => 3,
            Self::Unknown(code) => code,
        }
    }
}

impl SocksReply {
    /// Reads an answer to a request: how that ended, and the address and port that the server has connected from.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn parse(stream: &[u8]) -> Result<(Self, SocksAddr<'_>, u16, usize), SocksFault> {
        let mut fields = Fields::new(stream, VERSION)?;
        let reply = Self::from_code(fields.byte()?);
        let (from, port) = fields.place()?;
        Ok((reply, from, port, fields.len))
    }

    /// Writes such an answer; returns its length.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn emit(self, from: SocksAddr<'_>, port: u16, out: &mut [u8]) -> usize {
        emit_place(self.code(), from, port, out)
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Succeeded,
            1 => Self::Failure,
            2 => Self::NotAllowed,
            3 => Self::NetworkUnreachable,
            4 => Self::HostUnreachable,
            5 => Self::Refused,
            6 => Self::Expired,
            7 => Self::Command,
            8 => Self::AddressType,
            code => Self::Unknown(code),
        }
    }

    /// Its code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failure => 1,
            Self::NotAllowed => 2,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable => 4,
            Self::Refused => 5,
            Self::Expired => 6,
            Self::Command => 7,
            Self::AddressType => 8,
            Self::Unknown(code) => code,
        }
    }
}

/// The method that the server takes: the answer to a greeting (RFC 1928 section 3).
#[must_use]
pub const fn socks_method_chosen(method: u8) -> [u8; 2] {
    [VERSION, method]
}

/// Reads such an answer.
///
/// # Errors
/// With what is wrong.
pub fn parse_socks_method(stream: &[u8]) -> Result<(u8, usize), SocksFault> {
    let mut fields = Fields::new(stream, VERSION)?;
    Ok((fields.byte()?, fields.len))
}

/// Whether a user name and a password are right: the answer to them (RFC 1929 section 2).
#[must_use]
pub const fn socks_credentials_judged(right: bool) -> [u8; 2] {
    [PASSWORD_VERSION, if right { 0 } else { 1 }]
}

/// Reads such an answer.
///
/// # Errors
/// With what is wrong.
pub fn parse_socks_judgement(stream: &[u8]) -> Result<(bool, usize), SocksFault> {
    let mut fields = Fields::new(stream, PASSWORD_VERSION)?;
    Ok((fields.byte()? == 0, fields.len))
}

/// Fields behind a version, and how many bytes they took.
struct Fields<'a> {
    stream: &'a [u8],
    len: usize,
}

impl<'a> Fields<'a> {
    fn new(stream: &'a [u8], version: u8) -> Result<Self, SocksFault> {
        let mut fields = Self { stream, len: 0 };
        match fields.byte()? {
            known if known == version => Ok(fields),
            other => Err(SocksFault::Version(other)),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], SocksFault> {
        let end = self.len + len;
        let taken = self.stream.get(self.len..end);
        let taken = taken.ok_or(SocksFault::Incomplete(end))?;
        self.len = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SocksFault> {
        let taken = self.take(N)?;
        Reader::new(taken).array().ok_or(SocksFault::Incomplete(N))
    }

    fn byte(&mut self) -> Result<u8, SocksFault> {
        self.array().map(u8::from_be_bytes)
    }

    /// Bytes behind their number.
    fn counted(&mut self) -> Result<&'a [u8], SocksFault> {
        let len = self.byte()?;
        self.take(len.into())
    }

    /// The same, at least one.
    fn named(&mut self) -> Result<&'a [u8], SocksFault> {
        match self.counted()? {
            [] => Err(SocksFault::Empty),
            name => Ok(name),
        }
    }

    /// A reserved byte, an address and a port.
    fn place(&mut self) -> Result<(SocksAddr<'a>, u16), SocksFault> {
        self.byte()?;
        let addr = match self.byte()? {
            IPV4 => SocksAddr::Ip(Ipv4Addr::from(self.array::<4>()?).into()),
            NAME => SocksAddr::Name(self.named()?),
            IPV6 => SocksAddr::Ip(Ipv6Addr::from(self.array::<16>()?).into()),
            other => return Err(SocksFault::AddressType(other)),
        };
        Ok((addr, u16::from_be_bytes(self.array()?)))
    }
}

fn emit_place(code: u8, addr: SocksAddr<'_>, port: u16, out: &mut [u8]) -> usize {
    let mut writer = Writer::new(out);
    writer.put(&[VERSION, code, 0]);
    match addr {
        SocksAddr::Ip(IpAddr::V4(addr)) => {
            writer.u8(IPV4);
            writer.put(&addr.octets());
        }
        SocksAddr::Ip(IpAddr::V6(addr)) => {
            writer.u8(IPV6);
            writer.put(&addr.octets());
        }
        SocksAddr::Name(name) => {
            writer.u8(NAME);
            put_counted(&mut writer, name);
        }
    }
    writer.u16(port);
    writer.len()
}

/// As many bytes as a length byte can say.
fn put_counted(writer: &mut Writer<'_>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= 255, "{} bytes have no length", bytes.len());
    let len = length_byte(bytes.len());
    writer.u8(len);
    writer.put(&bytes[..len.into()]);
}

const VERSION: u8 = 5;
const PASSWORD_VERSION: u8 = 1;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
