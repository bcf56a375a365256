//! What a client says before its stream, and what it is answered: Convert (RFC 8803) and SOCKS5 (RFC 1928, RFC 1929).
//!
//! A [`Dialogue`] takes the bytes of one client in their order, however they are cut, and says what goes back; a [`Requester`] is the
//! other side. It knows no socket,
//! no clock and no packet: the translator feeds it from subflows, a relay from its sockets. It keeps no more than one message that
//! is not complete. Whom the client may be connected with, and how that went, others decide and tell it.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

extern crate alloc;

mod convert;
mod requester;
mod socks;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

pub use self::requester::{Heard, Identity, Requester, convert_request, request};

/// What a listener speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// 0-RTT TCP Convert (RFC 8803).
    Convert,
    /// SOCKS5 (RFC 1928).
    Socks5,
}

/// Who may come in, by what a client says of itself.
pub trait Gate {
    /// Whether a user name and a password are asked for (SOCKS5).
    fn asks_password(&self) -> bool;

    /// Whether these are right.
    fn knows(&self, user: &[u8], password: &[u8]) -> bool;

    /// What is to be done with a client that brings this cookie, or none (RFC 8803 section 6.2.7).
    fn judge_cookie(&self, cookie: Option<&[u8]>) -> Cookie;
}

/// What a cookie is worth.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cookie {
    /// It is right, or none is asked for.
    Right,
    /// It is wrong, or one is missing and none is handed out.
    Wrong,
    /// One is missing: this one is for the next attempt.
    Missing(Box<[u8]>),
}

/// Whom a client wants to be connected with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// The server.
    pub to: Target,
    /// Its port; not 0.
    pub port: u16,
}

/// A server, as a client names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// By its address.
    Ip(IpAddr),
    /// By a name of 1 to 255 bytes, which has to be resolved.
    Name(Box<[u8]>),
}

/// What follows from the bytes that a client has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// There is more to come.
    Listen,
    /// A connection is wanted. Its outcome is to be told with [`Dialogue::grant`] or [`Dialogue::refuse`].
    Connect(Wish),
    /// The client has been told what it asked for, and wants nothing else: its connection is closed once that has arrived.
    Told,
    /// The client is refused, and has been told so: its connection is closed once that has arrived.
    Close(Fault),
    /// The client is refused without a word.
    Reset(Fault),
}

/// What was wrong with what a client said, or not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The protocol is another, or a version of it that there is not.
    Protocol,
    /// A message has a wrong form, or names an address that nobody can connect to.
    Malformed,
    /// Something that is not done: a command, a kind of address, a message, a TCP option.
    Unsupported,
    /// No method to say who one is that is taken here.
    Method,
    /// A user name, a password or a cookie is wrong, or missing.
    Credentials,
}

/// Why a wish is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The client may not be connected there.
    NotAllowed,
    /// The client has as many connections as it may have.
    ClientLimit,
    /// The name is unknown.
    NoName,
    /// The server has answered with a reset.
    Reset,
    /// A "destination unreachable" has come instead of an answer.
    Unreachable {
        /// Its code.
        code: u8,
        /// It is ICMPv6.
        is_v6: bool,
    },
    /// Nothing has come in time.
    Expired,
    /// There is no room for the connection; seconds to wait, 0 for at least 30.
    NoRoom(u8),
    /// There is no way to the network of the server.
    NoNetwork,
}

impl Refusal {
    /// Whether that is what the server, or a router on the way there, has said. Otherwise another proxy may connect there.
    #[must_use]
    pub const fn is_of_server(self) -> bool {
        matches!(self, Self::Reset | Self::Unreachable { .. } | Self::Expired)
    }
}

/// One client's preamble.
#[derive(Clone, PartialEq, Eq)]
pub struct Dialogue {
    stage: Stage,
    /// The front of a message that is not complete.
    kept: Vec<u8>,
}

/// What is to come next, or has been said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Convert: the message.
    Message,
    /// SOCKS5: the methods that the client offers.
    Greeting,
    /// A user name and a password.
    Credentials,
    /// What is wanted.
    Request,
    /// Everything has been said; what the answer to a granted wish has to have.
    Wished(Answer),
    /// The client is refused.
    Over,
}

/// What an answer consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Convert {
        /// The client asked which TCP extensions are converted.
        informs: bool,
        /// It asked for TCP options, and is told the server's.
        tells_options: bool,
    },
    Socks,
}

/// What a stage makes of the bytes: how many it takes, and what follows.
struct Step {
    taken: usize,
    next: Next,
}

enum Next {
    /// The message is not complete.
    More,
    Stage(Stage),
    Wish(Answer, Wish),
    Told,
    Close(Fault),
    Reset(Fault),
}

impl Dialogue {
    /// With a client that has said nothing yet.
    #[must_use]
    pub const fn new(protocol: Protocol) -> Self {
        let stage = match protocol {
            Protocol::Convert => Stage::Message,
            Protocol::Socks5 => Stage::Greeting,
        };
        Self {
            stage,
            kept: Vec::new(),
        }
    }

    /// Takes the next bytes of the client, and puts what it is answered behind `say`. Says how many of the bytes are of the
    /// preamble, and what follows: the rest is the stream's. Once that is more than to listen, nothing more is of the preamble.
    pub fn hear(&mut self, bytes: &[u8], gate: &dyn Gate, say: &mut Vec<u8>) -> (usize, Turn) {
        let mut taken = 0;
        if matches!(self.stage, Stage::Wished(_) | Stage::Over) {
            return (taken, Turn::Listen);
        }
        loop {
            let step = if self.kept.is_empty() {
                self.step(&bytes[taken..], gate, say)
            } else {
                // What stands before is part of the message, and has been taken.
                let mut message = core::mem::take(&mut self.kept);
                let before = message.len();
                message.extend_from_slice(&bytes[taken..]);
                let step = self.step(&message, gate, say);
                message.truncate(before);
                self.kept = message;
                Step {
                    taken: step.taken.saturating_sub(before),
                    ..step
                }
            };
            if let Next::More = step.next {
                self.kept.extend_from_slice(&bytes[taken..]);
                return (bytes.len(), Turn::Listen);
            }
            self.kept = Vec::new();
            taken += step.taken;
            match step.next {
                Next::More => {}
                Next::Stage(stage) => self.stage = stage,
                Next::Wish(answer, wish) => {
                    self.stage = Stage::Wished(answer);
                    return (taken, Turn::Connect(wish));
                }
                Next::Told => return self.end(taken, Turn::Told),
                Next::Close(fault) => return self.end(taken, Turn::Close(fault)),
                Next::Reset(fault) => return self.end(taken, Turn::Reset(fault)),
            }
        }
    }

    fn end(&mut self, taken: usize, turn: Turn) -> (usize, Turn) {
        self.stage = Stage::Over;
        (taken, turn)
    }

    /// What the stage makes of the bytes from its first message on.
    fn step(&self, bytes: &[u8], gate: &dyn Gate, say: &mut Vec<u8>) -> Step {
        match self.stage {
            Stage::Message => convert::message(bytes, gate, say),
            Stage::Greeting => socks::greeting(bytes, gate, say),
            Stage::Credentials => socks::credentials(bytes, gate, say),
            Stage::Request => socks::request(bytes, say),
            Stage::Wished(_) | Stage::Over => Step {
                taken: 0,
                next: Next::Reset(Fault::Protocol),
            },
        }
    }

    /// The client is connected: puts the answer behind `say`. `from` is where the server sees the connection come from, `options`
    /// are the TCP options of its SYN/ACK. Nothing is put there unless a wish was heard.
    pub fn grant(&self, from: SocketAddr, options: &[u8], say: &mut Vec<u8>) {
        match self.stage {
            Stage::Wished(Answer::Convert {
                informs,
                tells_options,
            }) => convert::granted(informs, tells_options.then_some(options), say),
            Stage::Wished(Answer::Socks) => socks::granted(from, say),
            _ => {}
        }
    }

    /// The client is not connected: puts the answer behind `say`. Nothing is put there unless a wish was heard.
    pub fn refuse(&mut self, why: Refusal, say: &mut Vec<u8>) {
        match self.stage {
            Stage::Wished(Answer::Convert { .. }) => convert::refused(why, say),
            Stage::Wished(Answer::Socks) => socks::refused(why, say),
            _ => return,
        }
        self.stage = Stage::Over;
    }

    /// Bytes that it has allocated: never more than one message.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.kept.capacity()
    }
}

/// What is kept may be half of a password.
impl fmt::Debug for Dialogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Dialogue");
        shown.field("stage", &self.stage);
        shown.field("kept", &self.kept.len()).finish()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol => "another protocol or version",
            Self::Malformed => "a malformed message",
            Self::Unsupported => "something that is not supported",
            Self::Method => "no method of authentication in common",
            Self::Credentials => "wrong or missing credentials",
        })
    }
}
