//! The probe protocol: datagrams between a box and a responder, and how they are proved.
//!
//! Each datagram has a header of 40 bytes, a body, zeros up to the length that it is to have, and a tag: the first 16 bytes of
//! HMAC-SHA-256 (RFC 2104) over all before it, with a key that both ends know. All numbers are big-endian.
//!
//! | bytes | header |
//! |---|---|
//! | 0..3 | `PLS` |
//! | 3 | version, 1 |
//! | 4 | kind of message |
//! | 5 | 0 |
//! | 6..8 | length of the datagram |
//! | 8..12 | which key |
//! | 12..16 | sequence number, counted by the box within a session; an answer has that of its question |
//! | 16..24 | session, a number that the box has not used before |
//! | 24..40 | cookie of the responder; zeros in a hello |
//!
//! What messages there are says [`Message`]; the codec makes sure of form and tag. Who may be answered is the
//! responder's matter.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::leg::Leg;
use crate::rate::Rate;
use crate::train::{Dispersion, Shape};

/// Most bytes of a datagram: what an Ethernet frame holds beside IPv4 and UDP headers.
pub const LONGEST: usize = 1472;
/// Bytes of a datagram without a body.
pub const SHORTEST: usize = HEADER + TAG;

const HEADER: usize = 40;
const TAG: usize = 16;
const MAGIC: [u8; 4] = *b"PLS\x01";
/// Fewest bytes of a secret that a key is made of.
const SECRET: usize = 16;

/// A key that both ends know.
#[derive(Clone)]
pub struct Key {
    /// Which key it is; no secret.
    id: u32,
    mac: Hmac<Sha256>,
}

/// A secret that is too short for a key: so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortSecret(pub usize);

/// What a responder gives to a box, to prove by it that it has the address that it sends from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cookie(pub [u8; 16]);

/// What all messages carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Chosen by the box for each hello.
    pub session: u64,
    /// The question's number within the session.
    pub sequence: u32,
    /// The responder's cookie; zeros in a hello.
    pub cookie: Cookie,
}

/// What a datagram says. Those of the box have odd numbers of kinds, a responder's answers even ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// 1: a session is to begin.
    Hello,
    /// 2: the answer, with the cookie in the header.
    Challenge {
        /// How long the cookie holds, in whole milliseconds.
        lifetime: Duration,
    },
    /// 3: to be answered at once.
    Echo,
    /// 4: the answer.
    EchoReply,
    /// 5: a packet of a train up.
    Up(Place),
    /// 7: the train up is over: its report, and a train down are asked for.
    Turn {
        /// The train's number.
        train: u16,
        /// Packets that are to come down.
        count: u16,
        /// Bytes of each of these datagrams.
        size: u16,
    },
    /// 8: how the train up arrived.
    Report {
        /// The train's number.
        train: u16,
        /// Packets of it that have arrived.
        received: u16,
        /// Packets of the train down: no more than what has been received pays for.
        coming: u16,
        /// What their dispersion says, if anything.
        seen: Option<Dispersion>,
    },
    /// 10: a packet of a train down; its sequence number is that of the turn.
    Down(Place),
    /// 11: the responder's own leg to this content server is asked for.
    Leg(SocketAddr),
    /// 12: the answer.
    LegReply(LegState),
}

/// Where a packet stands in its train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The train's number.
    pub train: u16,
    /// The packet's, from 0 on.
    pub index: u16,
    /// Packets of the train.
    pub count: u16,
}

/// What a responder says of its leg to a content server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LegState {
    /// Not measured yet: to be asked again.
    Pending,
    /// Measured.
    Known {
        /// What was measured.
        leg: Leg,
        /// How long ago, in whole milliseconds.
        age: Duration,
    },
    /// The responder does not measure legs to this content server.
    Refused,
}

/// Why a datagram is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Its length is not what it says, or no datagram has this one.
    Length(usize),
    /// It is of another protocol or version.
    Version,
    /// There is no such kind of message.
    Kind(u8),
    /// A field has a value that it cannot have.
    Body,
    /// It was made with another key.
    Key,
    /// Its tag is wrong.
    Tag,
}

impl Key {
    /// From a secret that both ends know, of at least 16 bytes.
    ///
    /// # Errors
    /// [`ShortSecret`] when it has fewer.
    pub fn new(secret: &[u8]) -> Result<Self, ShortSecret> {
        let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret) else {
            return Err(ShortSecret(secret.len()));
        };
        if secret.len() < SECRET {
            return Err(ShortSecret(secret.len()));
        }
        // No datagram begins so.
        let [a, b, c, d, ..] = digest(&mac, &[b"key id of PLS probes"]);
        let id = u32::from_be_bytes([a, b, c, d]);
        Ok(Self { id, mac })
    }

    /// Which key it is; no secret.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The first 16 bytes of the HMAC over these parts, one after the other.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG] {
        let mut tag = [0; TAG];
        tag.copy_from_slice(&digest(&self.mac, parts)[..TAG]);
        tag
    }
}

/// The key itself never reaches a log.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Message {
    /// The number of its kind.
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Challenge { .. } => 2,
            Self::Echo => 3,
            Self::EchoReply => 4,
            Self::Up(_) => 5,
            Self::Turn { .. } => 7,
            Self::Report { .. } => 8,
            Self::Down(_) => 10,
            Self::Leg(_) => 11,
            Self::LegReply(_) => 12,
        }
    }

    /// Fewest bytes of its datagram. A question is never shorter than its answer.
    #[must_use]
    pub const fn shortest(&self) -> usize {
        SHORTEST + body_of(self.kind())
    }

    /// Whether a box says it, and not a responder.
    #[must_use]
    pub const fn is_question(&self) -> bool {
        self.kind() % 2 == 1
    }
}

/// Bytes of a body.
const fn body_of(kind: u8) -> usize {
    match kind {
        1 | 2 => 4,
        5 | 10 => 6,
        7 | 8 => 16,
        11 | 12 => 20,
        _ => 0,
    }
}

/// Writes a datagram of `length` bytes, or of as many as the message needs, and says how many these are.
///
/// `None` when `out` or [`LONGEST`] is less than that.
pub fn seal(
    key: &Key,
    header: &Header,
    message: &Message,
    length: usize,
    out: &mut [u8],
) -> Option<usize> {
    let length = length.max(message.shortest());
    let stated = u16::try_from(length).ok().filter(|_| length <= LONGEST)?;
    let out = out.get_mut(..length)?;
    out.fill(0);
    out[..4].copy_from_slice(&MAGIC);
    out[4] = message.kind();
    out[6..8].copy_from_slice(&stated.to_be_bytes());
    out[8..12].copy_from_slice(&key.id.to_be_bytes());
    out[12..16].copy_from_slice(&header.sequence.to_be_bytes());
    out[16..24].copy_from_slice(&header.session.to_be_bytes());
    out[24..40].copy_from_slice(&header.cookie.0);
    write_body(message, &mut out[HEADER..]);
    let (said, tag) = out.split_at_mut(length - TAG);
    tag.copy_from_slice(&key.tag(&[said]));
    Some(length)
}

/// Which key a datagram says that it was made with.
///
/// # Errors
/// [`Malformed`] when it has not the form of one.
pub fn key_of(datagram: &[u8]) -> Result<u32, Malformed> {
    if !(SHORTEST..=LONGEST).contains(&datagram.len()) {
        return Err(Malformed::Length(datagram.len()));
    }
    if datagram[..4] != MAGIC || datagram[5] != 0 {
        return Err(Malformed::Version);
    }
    if usize::from(u16_at(datagram, 6)) != datagram.len() {
        return Err(Malformed::Length(datagram.len()));
    }
    Ok(u32_at(datagram, 8))
}

/// Reads a datagram, whose tag has to be right.
///
/// # Errors
/// [`Malformed`] when anything is wrong with it.
pub fn open(key: &Key, datagram: &[u8]) -> Result<(Header, Message), Malformed> {
    if key_of(datagram)? != key.id {
        return Err(Malformed::Key);
    }
    let (said, tag) = datagram.split_at(datagram.len() - TAG);
    // The time that this takes says nothing of how much of the tag is right.
    if !bool::from(key.tag(&[said]).ct_eq(tag)) {
        return Err(Malformed::Tag);
    }
    let mut cookie = Cookie::default();
    cookie.0.copy_from_slice(&said[24..40]);
    let header = Header {
        sequence: u32_at(said, 12),
        session: u64_at(said, 16),
        cookie,
    };
    let body = &said[HEADER..];
    if body.len() < body_of(said[4]) {
        return Err(Malformed::Length(datagram.len()));
    }
    Ok((header, read_body(said[4], body)?))
}

fn write_body(message: &Message, body: &mut [u8]) {
    match *message {
        Message::Hello | Message::Echo | Message::EchoReply => {}
        Message::Challenge { lifetime } => {
            body[..4].copy_from_slice(&millis(lifetime).to_be_bytes());
        }
        Message::Up(place) | Message::Down(place) => {
            put_words(body, &[place.train, place.index, place.count]);
        }
        Message::Turn { train, count, size } => put_words(body, &[train, count, size]),
        Message::Report {
            train,
            received,
            coming,
            seen,
        } => {
            put_words(body, &[train, received, coming]);
            let Some(seen) = seen else { return };
            body[6] = match seen.shape {
                Shape::Flat => 1,
                Shape::Knee => 2,
            };
            body[7] = seen.quarters;
            body[8..16].copy_from_slice(&seen.rate.0.to_be_bytes());
        }
        Message::Leg(to) => {
            put_words(body, &[to.port()]);
            match to.ip() {
                IpAddr::V4(ip) => {
                    body[2] = 4;
                    body[4..8].copy_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    body[2] = 6;
                    body[4..20].copy_from_slice(&ip.octets());
                }
            }
        }
        Message::LegReply(state) => write_leg(state, body),
    }
}

/// Byte 0 says what is known, byte 1 which of rate (1) and delay (2).
fn write_leg(state: LegState, body: &mut [u8]) {
    match state {
        LegState::Pending => body[0] = 1,
        LegState::Refused => body[0] = 3,
        LegState::Known { leg, age } => {
            body[0] = 2;
            body[1] = u8::from(leg.rate.is_some()) | u8::from(leg.delay.is_some()) << 1;
            body[4..8].copy_from_slice(&millis(age).to_be_bytes());
            body[8..16].copy_from_slice(&leg.rate.unwrap_or_default().0.to_be_bytes());
            let delay = leg.delay.unwrap_or_default().as_micros();
            let delay = u32::try_from(delay).unwrap_or(u32::MAX);
            body[16..20].copy_from_slice(&delay.to_be_bytes());
        }
    }
}

fn read_body(kind: u8, body: &[u8]) -> Result<Message, Malformed> {
    Ok(match kind {
        1 => Message::Hello,
        2 => Message::Challenge {
            lifetime: Duration::from_millis(u32_at(body, 0).into()),
        },
        3 => Message::Echo,
        4 => Message::EchoReply,
        5 => Message::Up(read_place(body)?),
        7 => Message::Turn {
            train: u16_at(body, 0),
            count: u16_at(body, 2),
            size: u16_at(body, 4),
        },
        8 => Message::Report {
            train: u16_at(body, 0),
            received: u16_at(body, 2),
            coming: u16_at(body, 4),
            seen: read_dispersion(body)?,
        },
        10 => Message::Down(read_place(body)?),
        11 => Message::Leg(read_target(body)?),
        12 => Message::LegReply(read_leg(body)?),
        other => return Err(Malformed::Kind(other)),
    })
}

fn read_place(body: &[u8]) -> Result<Place, Malformed> {
    let place = Place {
        train: u16_at(body, 0),
        index: u16_at(body, 2),
        count: u16_at(body, 4),
    };
    if place.index < place.count {
        Ok(place)
    } else {
        Err(Malformed::Body)
    }
}

fn read_dispersion(body: &[u8]) -> Result<Option<Dispersion>, Malformed> {
    let shape = match body[6] {
        0 => return Ok(None),
        1 => Shape::Flat,
        2 => Shape::Knee,
        _ => return Err(Malformed::Body),
    };
    if !(1..=3).contains(&body[7]) {
        return Err(Malformed::Body);
    }
    Ok(Some(Dispersion {
        rate: Rate(u64_at(body, 8)),
        shape,
        quarters: body[7],
    }))
}

fn read_target(body: &[u8]) -> Result<SocketAddr, Malformed> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&body[4..20]);
    let ip = match body[2] {
        4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return Err(Malformed::Body),
    };
    Ok(SocketAddr::new(ip, u16_at(body, 0)))
}

fn read_leg(body: &[u8]) -> Result<LegState, Malformed> {
    match body[0] {
        1 => Ok(LegState::Pending),
        3 => Ok(LegState::Refused),
        2 if body[1] < 4 => {
            let delay = Duration::from_micros(u32_at(body, 16).into());
            let leg = Leg {
                rate: (body[1] & 1 != 0).then_some(Rate(u64_at(body, 8))),
                delay: (body[1] & 2 != 0).then_some(delay),
            };
            let age = Duration::from_millis(u32_at(body, 4).into());
            Ok(LegState::Known { leg, age })
        }
        _ => Err(Malformed::Body),
    }
}

fn digest(mac: &Hmac<Sha256>, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = mac.clone();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn millis(of: Duration) -> u32 {
    u32::try_from(of.as_millis()).unwrap_or(u32::MAX)
}

fn put_words(body: &mut [u8], words: &[u16]) {
    for (place, word) in body.chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

impl fmt::Display for ShortSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a secret of {} bytes is too short for a key: take at least {SECRET} random bytes",
            self.0
        )
    }
}

impl core::error::Error for ShortSecret {}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a datagram of {length} bytes that says otherwise"),
            Self::Version => f.write_str("another protocol or version"),
            Self::Kind(kind) => write!(f, "a message of kind {kind}, which there is not"),
            Self::Body => f.write_str("a field with a value that it cannot have"),
            Self::Key => f.write_str("made with a key that is not known here"),
            Self::Tag => f.write_str("a tag that is wrong"),
        }
    }
}

impl core::error::Error for Malformed {}
