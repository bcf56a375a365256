//! The server's side: who is answered, and with how much.
//!
//! - Nothing goes to who does not have a key, nothing to a datagram that was seen before.
//! - A hello is answered with a cookie that is bound to its source address. All else has to carry it: whoever writes another
//!   address into his packets does not see the cookie, and what he has seen of others' is refused from his own.
//! - A session has one number for each of its datagrams, and a window for them. It is remembered as long as its cookie holds,
//!   and there is room for so many; who finds none is not answered.
//! - To each address at most as many bytes go as have come from there, headers counted. A train down is paid for by the train
//!   up before it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use crate::leg::{Allowed, Leg, Legs};
use crate::overhead;
use crate::probe::{self, Header, Key, LegState, Malformed, Message, Place};
use crate::session::{self, LIFETIME, Session};
use crate::time::{Time, stamp};
use crate::train::{Arrival, MOST, dispersion};

/// What a responder is to do.
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// Keys of boxes.
    pub keys: Vec<Key>,
    /// Most sessions at a time: one for each address of a box, for the ten minutes that a cookie holds.
    pub sessions: usize,
    /// Most bytes out in a second, over all boxes.
    pub bytes_per_second: u64,
    /// Most hellos that are answered in a second.
    pub hellos_per_second: u32,
    /// Content servers to which the own leg may be asked for.
    pub content: Vec<Allowed>,
}

/// What became of a datagram that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// [`Responder::poll_transmit`] has something to send.
    Yes,
    /// It is noted; nothing is to be sent.
    Noted,
}

/// Why a datagram is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its form, its key or its tag is wrong.
    Malformed(Malformed),
    /// It is an answer, and answers are for boxes.
    NotAQuestion,
    /// It was seen before.
    Replay,
    /// Its cookie is of another address, another session or another run, or too old.
    Cookie,
    /// There are as many sessions as there may be.
    NoRoom,
    /// More is asked than may be answered in this time.
    Limit,
    /// The bytes that have come do not pay for the answer.
    Unpaid,
}

/// What a responder has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResponderCounters {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Bytes that came in datagrams that were taken, with headers.
    pub bytes_in: u64,
    /// Bytes that were sent, with headers.
    pub bytes_out: u64,
    /// Refused: form, key or tag, or no question.
    pub malformed: u64,
    /// Refused: seen before.
    pub replays: u64,
    /// Refused: cookie.
    pub cookies: u64,
    /// Refused: no room for a session.
    pub no_room: u64,
    /// Refused: too much in this time.
    pub limited: u64,
    /// Refused: not paid for.
    pub unpaid: u64,
    /// Questions for a leg that is not measured.
    pub legs_refused: u64,
}

impl ResponderCounters {
    /// Datagrams that were refused, by reason: what it is called, and how many.
    #[must_use]
    pub const fn refusals(&self) -> [(&'static str, u64); 6] {
        [
            ("malformed", self.malformed),
            ("replay", self.replays),
            ("cookie", self.cookies),
            ("no_room", self.no_room),
            ("limit", self.limited),
            ("unpaid", self.unpaid),
        ]
    }
}

/// The server's side of the probes.
///
/// Each datagram goes to [`handle_datagram`](Self::handle_datagram); after that [`poll_transmit`](Self::poll_transmit) is called
/// until it has nothing more, and [`poll_leg`](Self::poll_leg) too. What a leg was found to be is told by
/// [`leg_measured`](Self::leg_measured). There are no timers.
#[derive(Clone, Debug)]
pub struct Responder {
    config: ResponderConfig,
    /// What cookies are made with.
    secret: Key,
    sessions: BTreeMap<SocketAddr, Session>,
    /// Hellos that were answered of late: key, session.
    hellos: VecDeque<(u32, u64)>,
    answers: VecDeque<Answer>,
    legs: Legs,
    bytes: Allowance,
    greetings: Allowance,
    counters: ResponderCounters,
}

/// Something that is to be sent, and is paid for.
#[derive(Clone, Copy, Debug)]
struct Answer {
    to: SocketAddr,
    key: usize,
    header: Header,
    message: Message,
    size: usize,
}

/// How many hellos are remembered.
const REMEMBERED: usize = 4096;
/// Most answers that wait to be sent; a train counts as one.
const WAITING: usize = 256;

impl Responder {
    /// Begins. `secret` is 32 random bytes that nobody else knows and no other run has: with each run all cookies of those before
    /// are void.
    #[must_use]
    pub fn new(config: ResponderConfig, secret: [u8; 32]) -> Self {
        let bytes = Allowance::new(config.bytes_per_second);
        let greetings = Allowance::new(config.hellos_per_second.into());
        Self {
            config,
            secret: Key::new(&secret).expect("32 bytes make a key"),
            sessions: BTreeMap::new(),
            hellos: VecDeque::new(),
            answers: VecDeque::new(),
            legs: Legs::default(),
            bytes,
            greetings,
            counters: ResponderCounters::default(),
        }
    }

    /// Takes a datagram that has come `from` there, at the time `at` by the kernel's stamp on the clock of `now`.
    ///
    /// # Errors
    /// [`Refusal`] when it is not answered; it is counted.
    pub fn handle_datagram(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        at: Time,
        now: Time,
    ) -> Result<Answered, Refusal> {
        self.counters.received += 1;
        let outcome = self.judge(from, datagram, stamp(at, now), now);
        let counters = &mut self.counters;
        match outcome {
            Ok(_) => counters.bytes_in += (datagram.len() + overhead(&from)) as u64,
            Err(Refusal::Malformed(_) | Refusal::NotAQuestion) => counters.malformed += 1,
            Err(Refusal::Replay) => counters.replays += 1,
            Err(Refusal::Cookie) => counters.cookies += 1,
            Err(Refusal::NoRoom) => counters.no_room += 1,
            Err(Refusal::Limit) => counters.limited += 1,
            Err(Refusal::Unpaid) => counters.unpaid += 1,
        }
        outcome
    }

    /// Writes the next datagram that is to be sent, and says to whom and how long it is. `out` has room for
    /// [`probe::LONGEST`] bytes.
    pub fn poll_transmit(&mut self, out: &mut [u8]) -> Option<(SocketAddr, usize)> {
        let answer = self.answers.front_mut()?;
        let (to, key) = (answer.to, answer.key);
        let (header, message, size) = (answer.header, answer.message, answer.size);
        match &mut answer.message {
            Message::Down(place) if place.index + 1 < place.count => place.index += 1,
            _ => drop(self.answers.pop_front()),
        }
        let length = probe::seal(self.config.keys.get(key)?, &header, &message, size, out)?;
        self.counters.sent += 1;
        self.counters.bytes_out += (length + overhead(&to)) as u64;
        Some((to, length))
    }

    /// A content server to which the host is to measure its own leg: the time of a TCP handshake with it, and the rate that
    /// transfers from there have had.
    pub fn poll_leg(&mut self, now: Time) -> Option<SocketAddr> {
        self.legs.poll(now)
    }

    /// Tells what was measured of the leg to a content server. A leg of which nothing is known is told as such.
    pub fn leg_measured(&mut self, content: SocketAddr, leg: Leg, now: Time) {
        self.legs.measured(content, leg, now);
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// Sessions that are remembered.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn judge(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        at: Time,
        now: Time,
    ) -> Result<Answered, Refusal> {
        let (key, header, message) = self.read(datagram)?;
        if !message.is_question() {
            return Err(Refusal::NotAQuestion);
        }
        if self.answers.len() >= WAITING {
            return Err(Refusal::Limit);
        }
        let bytes = datagram.len() + overhead(&from);
        if message == Message::Hello {
            return self.greet(key, &header, from, now);
        }
        self.enter(key, &header, from, now)?;
        if let Some(session) = self.sessions.get_mut(&from) {
            session.earn(bytes, now);
        }
        self.answer(key, header, message, from, (at, datagram.len()), now)
    }

    fn read(&self, datagram: &[u8]) -> Result<(usize, Header, Message), Refusal> {
        let id = probe::key_of(datagram).map_err(Refusal::Malformed)?;
        let keys = &self.config.keys;
        let at = keys.iter().position(|key| key.id() == id);
        let at = at.ok_or(Refusal::Malformed(Malformed::Key))?;
        let (header, message) = probe::open(&keys[at], datagram).map_err(Refusal::Malformed)?;
        Ok((at, header, message))
    }

    /// Answers a hello, once. Nothing is remembered of who sent it but that.
    fn greet(
        &mut self,
        key: usize,
        header: &Header,
        from: SocketAddr,
        now: Time,
    ) -> Result<Answered, Refusal> {
        let name = (self.config.keys[key].id(), header.session);
        if self.hellos.contains(&name) {
            return Err(Refusal::Replay);
        }
        if !self.greetings.take(1, now) {
            return Err(Refusal::Limit);
        }
        if self.hellos.len() >= REMEMBERED {
            self.hellos.pop_front();
        }
        self.hellos.push_back(name);
        let cookie = session::cookie(&self.secret, now, &from, (name.0, header.session));
        self.answers.push_back(Answer {
            to: from,
            key,
            header: Header { cookie, ..*header },
            message: Message::Challenge { lifetime: LIFETIME },
            size: 0,
        });
        Ok(Answered::Yes)
    }

    /// Lets a datagram into its session, whose first one it may be.
    fn enter(
        &mut self,
        key: usize,
        header: &Header,
        from: SocketAddr,
        now: Time,
    ) -> Result<(), Refusal> {
        let key = self.config.keys[key].id();
        let issued = session::issued(&self.secret, key, header, &from).ok_or(Refusal::Cookie)?;
        if issued > now || now.since(issued) > LIFETIME {
            return Err(Refusal::Cookie);
        }
        let known = self.sessions.get(&from);
        // A cookie that is older than the session at this address is of one that is over: nothing of that is remembered.
        let name = (issued, header.session);
        let is_newer = known.is_none_or(|known| (known.issued, known.number) < name);
        if known.is_some_and(|known| (known.issued, known.number) > name) {
            return Err(Refusal::Cookie);
        }
        if known.is_none() && !self.has_room(now) {
            return Err(Refusal::NoRoom);
        }
        if is_newer {
            self.sessions
                .insert(from, Session::new(header.session, issued, now));
        }
        let session = self.sessions.get_mut(&from).ok_or(Refusal::Cookie)?;
        if session.admit(header.sequence) {
            Ok(())
        } else {
            Err(Refusal::Replay)
        }
    }

    /// Sessions whose cookie holds no more make room.
    fn has_room(&mut self, now: Time) -> bool {
        if self.sessions.len() >= self.config.sessions {
            self.sessions
                .retain(|_, session| now.since(session.issued) <= LIFETIME);
        }
        self.sessions.len() < self.config.sessions
    }

    fn answer(
        &mut self,
        key: usize,
        header: Header,
        message: Message,
        from: SocketAddr,
        (at, length): (Time, usize),
        now: Time,
    ) -> Result<Answered, Refusal> {
        let header_of = overhead(&from);
        let message = match message {
            Message::Up(place) => {
                let bytes = u32::try_from(length + header_of).unwrap_or(u32::MAX);
                if let Some(session) = self.sessions.get_mut(&from) {
                    session.arrived(&place, Arrival { at, bytes });
                }
                return Ok(Answered::Noted);
            }
            Message::Turn { train, count, size } => {
                let answer = (key, header);
                return self.turn(answer, from, (train, count, size), now);
            }
            Message::Leg(to) if self.config.content.iter().any(|rule| rule.contains(&to)) => {
                Message::LegReply(self.legs.ask(to, now))
            }
            Message::Leg(_) => {
                self.counters.legs_refused += 1;
                Message::LegReply(LegState::Refused)
            }
            _ => Message::EchoReply,
        };
        let size = message.shortest();
        self.pay(from, size + header_of, now)?;
        self.answers.push_back(Answer {
            to: from,
            key,
            header,
            message,
            size,
        });
        Ok(Answered::Yes)
    }

    /// Reports a train up, and sends as much of one down as is paid for.
    fn turn(
        &mut self,
        (key, header): (usize, Header),
        from: SocketAddr,
        (train, count, size): (u16, u16, u16),
        now: Time,
    ) -> Result<Answered, Refusal> {
        let header_of = overhead(&from);
        let size = usize::from(size).clamp(probe::SHORTEST + 6, probe::LONGEST);
        let session = self.sessions.get_mut(&from).ok_or(Refusal::Cookie)?;
        let arrivals = session.take_train(train);
        let received = u16::try_from(arrivals.len()).unwrap_or(u16::MAX);
        let report = |coming| Message::Report {
            train,
            received,
            coming,
            seen: dispersion(&arrivals).ok(),
        };
        self.pay(from, report(0).shortest() + header_of, now)?;
        let session = self.sessions.get_mut(&from).ok_or(Refusal::Cookie)?;
        let mut coming = session.affords(size + header_of).min(count).min(MOST);
        if self
            .pay(from, usize::from(coming) * (size + header_of), now)
            .is_err()
        {
            coming = 0;
        }
        let answer = |message, size| Answer {
            to: from,
            key,
            header,
            message,
            size,
        };
        self.answers.push_back(answer(report(coming), 0));
        if coming > 0 {
            let place = Place {
                train,
                index: 0,
                count: coming,
            };
            self.answers.push_back(answer(Message::Down(place), size));
        }
        Ok(Answered::Yes)
    }

    fn pay(&mut self, from: SocketAddr, bytes: usize, now: Time) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&from).ok_or(Refusal::Cookie)?;
        if session.credit() < bytes {
            return Err(Refusal::Unpaid);
        }
        if !self.bytes.take(bytes as u64, now) {
            return Err(Refusal::Limit);
        }
        if session.pay(bytes) {
            Ok(())
        } else {
            Err(Refusal::Unpaid)
        }
    }
}

/// So much in each second, and two seconds' worth at once after a rest.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    per_second: u64,
    /// What there is, in millionths.
    left: u128,
    at: Time,
}

impl Allowance {
    const fn new(per_second: u64) -> Self {
        Self {
            per_second,
            left: per_second as u128 * 2_000_000,
            at: Time::ZERO,
        }
    }

    fn take(&mut self, amount: u64, now: Time) -> bool {
        let passed = u128::from(now.0.saturating_sub(self.at.0));
        let most = u128::from(self.per_second) * 2_000_000;
        self.left = (self.left + passed * u128::from(self.per_second)).min(most);
        self.at = self.at.max(now);
        let amount = u128::from(amount) * 1_000_000;
        let is_there = amount <= self.left;
        if is_there {
            self.left -= amount;
        }
        is_there
    }
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            sessions: 256,
            bytes_per_second: 2_000_000,
            hellos_per_second: 50,
            content: Vec::new(),
        }
    }
}

impl ResponderConfig {
    /// How long a session is remembered.
    pub const REMEMBERED_FOR: Duration = LIFETIME;
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => what.fmt(f),
            Self::NotAQuestion => f.write_str("an answer, which is for boxes"),
            Self::Replay => f.write_str("seen before"),
            Self::Cookie => {
                f.write_str("a cookie of another address, session or run, or an old one")
            }
            Self::NoRoom => f.write_str("as many sessions as there may be"),
            Self::Limit => f.write_str("more than may be answered in this time"),
            Self::Unpaid => f.write_str("more is asked for than has been received"),
        }
    }
}

impl core::error::Error for Refusal {}
