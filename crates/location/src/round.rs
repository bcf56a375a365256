//! One round of probes over one path: a hello if there is no cookie, echoes, trains, and the question for the server's own
//! leg.
//!
//! A train is sent up, numbered; a turn ends it. The responder reports how it arrived, and sends as many packets down as it
//! pays for; their arrivals show the direction in which most data goes.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::ledger::Ledger;
use crate::leg::{self, Leg};
use crate::path::Number;
use crate::probe::{self, Header, Key, LegState, Message, Place};
use crate::rate::Rate;
use crate::time::Time;
use crate::train::{Arrival, Dispersion, Length, Shape, dispersion, most_packets};

/// What a round needs of what is around it.
pub(crate) struct Around<'a> {
    pub(crate) key: &'a Key,
    pub(crate) session: &'a mut Number,
    pub(crate) length: &'a mut Length,
    /// Bytes of all probes, and of those of this server.
    pub(crate) ledgers: [&'a mut Ledger; 2],
    /// Bytes of this round's trains beyond which none begins but the first: the path's part of the budget.
    pub(crate) part: u64,
    /// The path's round trip and the rate of its slower direction, if they are known.
    pub(crate) known: (Option<Duration>, Option<Rate>),
    /// Bytes of a datagram in a train, and of its headers.
    pub(crate) packet: usize,
    pub(crate) overhead: usize,
    /// Most packets of a train.
    pub(crate) train: u16,
    /// A number that no session has had.
    pub(crate) fresh: u64,
    pub(crate) now: Time,
}

/// What a round is to find out beside round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) trains: bool,
    pub(crate) leg: Option<SocketAddr>,
}

/// A round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    stage: Stage,
    /// When what was sent last is taken for lost; when to send, if nothing was.
    due: Time,
    wanted: Wanted,
    /// Attempts of the stage that are left.
    tries: u8,
    /// It has begun with a cookie of an earlier round, which the responder may have forgotten.
    is_old: bool,
    trains: u8,
    /// Bytes of its trains, both ways.
    spent: u64,
    found: Findings,
}

#[derive(Clone, Debug)]
enum Stage {
    Hello(Sent),
    Echo(Sent),
    /// Packets of a train that are still to be sent.
    Up(Place),
    /// The train is up.
    Turn(Place),
    Down(Down),
    Leg(Sent),
    Over,
}

/// The number of the question that is out, and since when.
type Sent = Option<(u32, Time)>;

#[derive(Clone, Debug)]
struct Down {
    place: Place,
    sequence: u32,
    /// Packets that were announced, once the report has come.
    coming: Option<u16>,
    arrivals: Vec<Arrival>,
    /// Which packets have come.
    seen: u128,
}

/// What a round has found.
#[derive(Clone, Default, Debug)]
pub(crate) struct Findings {
    delays: Vec<Duration>,
    /// What trains have shown, with the packets that each had.
    down: Vec<(u16, Dispersion)>,
    up: Vec<(u16, Dispersion)>,
    sent: u32,
    lost: u32,
    /// What the responder has said of its own leg, and how old that is.
    pub(crate) leg: Option<LegSaid>,
    /// The responder has answered.
    pub(crate) is_answered: bool,
    /// The budget had no room for a train.
    pub(crate) is_starved: bool,
}

/// What a responder has said of its own leg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LegSaid {
    Known(Leg, Duration),
    Refused,
}

const HELLOS: u8 = 3;
const ECHOES: u8 = 3;
const ASKS: u8 = 3;
/// Most trains of a round: four while they get longer, and two more that confirm the longest.
const TRAINS: u8 = 6;
/// Two trains that differ by more than so many thousandths have a third decide.
const AGREE: u32 = 100;
/// So long after its turn a train down is over if nothing comes, and after its last packet.
const SILENCE: Duration = Duration::from_secs(2);
const QUIET: Duration = Duration::from_millis(300);

impl Round {
    /// Bytes that a round takes at most without its trains.
    pub(crate) const SMALL: u64 = 2500;

    pub(crate) fn new(wanted: Wanted, is_open: bool, now: Time) -> Self {
        Self {
            stage: if is_open {
                Stage::Echo(None)
            } else {
                Stage::Hello(None)
            },
            due: now,
            wanted,
            tries: if is_open { ECHOES } else { HELLOS },
            is_old: is_open,
            trains: 0,
            spent: 0,
            found: Findings::default(),
        }
    }

    /// What was found, once it is over.
    pub(crate) const fn findings(&self) -> Option<&Findings> {
        match self.stage {
            Stage::Over => Some(&self.found),
            _ => None,
        }
    }

    /// When [`poll_transmit`](Self::poll_transmit) or [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(crate) const fn due(&self) -> Time {
        self.due
    }

    /// Writes what is to be sent next, and says how many bytes it has, and how many the answer has at most.
    pub(crate) fn poll_transmit(
        &mut self,
        around: &mut Around<'_>,
        out: &mut [u8],
    ) -> Option<(usize, usize)> {
        if around.now < self.due {
            return None;
        }
        let now = around.now;
        let (header, message, size, back) = match &mut self.stage {
            Stage::Hello(sent @ None) => {
                let header = around.session.begin(around.fresh);
                *sent = Some((header.sequence, now));
                let size = Message::Hello.shortest() + around.overhead;
                (header, Message::Hello, 0, size)
            }
            Stage::Echo(sent @ None) => {
                let header = around.session.next();
                *sent = Some((header.sequence, now));
                let size = Message::Echo.shortest() + around.overhead;
                (header, Message::Echo, 0, size)
            }
            Stage::Leg(sent @ None) => {
                let header = around.session.next();
                *sent = Some((header.sequence, now));
                let message = Message::Leg(self.wanted.leg?);
                (header, message, 0, message.shortest() + around.overhead)
            }
            Stage::Up(place) => {
                let message = Message::Up(*place);
                place.index += 1;
                let header = around.session.next();
                if place.index == place.count {
                    self.stage = Stage::Turn(*place);
                }
                let length = probe::seal(around.key, &header, &message, around.packet, out)?;
                return Some((length, 0));
            }
            Stage::Turn(place) => {
                let place = *place;
                return self.turn(place, around, out);
            }
            Stage::Hello(_) | Stage::Echo(_) | Stage::Leg(_) | Stage::Down(_) | Stage::Over => {
                return None;
            }
        };
        self.found.sent += 1;
        self.due = now + patience(around.known.0);
        let length = probe::seal(around.key, &header, &message, size, out)?;
        Some((length, back))
    }

    fn turn(
        &mut self,
        place: Place,
        around: &mut Around<'_>,
        out: &mut [u8],
    ) -> Option<(usize, usize)> {
        let header = around.session.next();
        let message = Message::Turn {
            train: place.train,
            count: place.count,
            size: u16::try_from(around.packet).unwrap_or(u16::MAX),
        };
        self.stage = Stage::Down(Down {
            place,
            sequence: header.sequence,
            coming: None,
            arrivals: Vec::with_capacity(place.count.into()),
            seen: 0,
        });
        self.due = around.now + SILENCE + patience(around.known.0);
        let length = probe::seal(around.key, &header, &message, 0, out)?;
        let one = around.packet + around.overhead;
        let back = length + around.overhead + usize::from(place.count) * one;
        Some((length, back))
    }

    /// Takes an answer, which has come at `at`. Says whether it was one to what is out.
    pub(crate) fn handle(
        &mut self,
        header: &Header,
        message: &Message,
        (at, length): (Time, usize),
        around: &mut Around<'_>,
    ) -> bool {
        let sequence = header.sequence;
        let is_out = |sent: &Sent| sent.filter(|&(out, _)| out == sequence);
        match (&mut self.stage, message) {
            (Stage::Hello(sent), Message::Challenge { lifetime }) => {
                let Some((_, sent)) = is_out(sent) else {
                    return false;
                };
                around.session.open(header.cookie, *lifetime, around.now);
                self.heard(at, sent, around.now);
                self.echo(ECHOES, around.now);
            }
            (Stage::Echo(sent), Message::EchoReply) => {
                let Some((_, sent)) = is_out(sent) else {
                    return false;
                };
                self.heard(at, sent, around.now);
                self.is_old = false;
                self.next_echo(around);
            }
            (Stage::Leg(sent), Message::LegReply(state)) => {
                if is_out(sent).is_none() {
                    return false;
                }
                self.leg_said(*state, around.now);
            }
            (Stage::Down(down), message) if down.sequence == sequence => {
                let bytes = u32::try_from(length + around.overhead).unwrap_or(u32::MAX);
                if !down.take(message, Arrival { at, bytes }, &mut self.found) {
                    return false;
                }
                self.due = at + QUIET.max(patience(around.known.0));
                if down.is_complete() {
                    self.judge(around);
                }
            }
            _ => return false,
        }
        self.found.is_answered = true;
        true
    }

    /// Takes a round trip. A stamp from before the question is of a clock that was set anew.
    fn heard(&mut self, at: Time, sent: Time, now: Time) {
        let at = if at > sent { at } else { now };
        self.found.delays.push(at.since(sent));
    }

    /// What was out is lost, if it is time.
    pub(crate) fn handle_timeout(&mut self, around: &mut Around<'_>) {
        if around.now < self.due {
            return;
        }
        match &self.stage {
            Stage::Hello(Some(_)) => {
                self.found.lost += 1;
                self.tries -= 1;
                self.stage = if self.tries == 0 {
                    Stage::Over
                } else {
                    Stage::Hello(None)
                };
            }
            // The responder may have been started anew, and forgotten what it knew.
            Stage::Echo(Some(_)) if self.is_old => {
                self.found.lost += 1;
                self.is_old = false;
                self.tries = HELLOS;
                self.stage = Stage::Hello(None);
            }
            Stage::Echo(Some(_)) => {
                self.found.lost += 1;
                self.next_echo(around);
            }
            Stage::Leg(Some(_)) => {
                self.found.lost += 1;
                self.leg_said(LegState::Pending, around.now);
            }
            Stage::Down(_) => self.judge(around),
            _ => {}
        }
    }

    fn echo(&mut self, tries: u8, now: Time) {
        self.stage = Stage::Echo(None);
        self.tries = tries;
        self.due = now;
    }

    fn next_echo(&mut self, around: &mut Around<'_>) {
        if self.tries > 1 {
            return self.echo(self.tries - 1, around.now);
        }
        // Without an echo there is nothing that a train could be measured against.
        if self.wanted.trains && !self.found.delays.is_empty() {
            self.train(around);
        } else {
            self.ask_leg(around.now);
        }
    }

    /// Begins a train, if there are bytes left for it.
    fn train(&mut self, around: &mut Around<'_>) {
        let one = (around.packet + around.overhead) as u64;
        let count = around.length.next(self.most(around));
        let bytes = u64::from(count) * one * 2 + 400;
        let now = around.now;
        let is_over_part = self.trains > 0 && self.spent + bytes > around.part;
        if is_over_part {
            return self.ask_leg(now);
        }
        if !around
            .ledgers
            .iter_mut()
            .all(|ledger| ledger.affords(bytes, now))
        {
            self.found.is_starved = true;
            return self.ask_leg(now);
        }
        self.spent += bytes;
        self.trains += 1;
        self.stage = Stage::Up(Place {
            train: self.trains.into(),
            index: 0,
            count,
        });
        self.due = now;
    }

    /// Most packets of a train, at the rates that are known by now.
    fn most(&self, around: &Around<'_>) -> u16 {
        let seen = self.found.down.iter().chain(&self.found.up);
        let slowest = seen.map(|(_, seen)| seen.rate).chain(around.known.1).min();
        most_packets(slowest, around.packet, around.train)
    }

    /// A train down is over.
    fn judge(&mut self, around: &mut Around<'_>) {
        let Stage::Down(down) = core::mem::replace(&mut self.stage, Stage::Over) else {
            return;
        };
        let count = down.place.count;
        let arrived = u32::try_from(down.arrivals.len()).unwrap_or(u32::MAX);
        let coming = u32::from(down.coming.unwrap_or(count));
        self.found.sent += coming;
        self.found.lost += coming.saturating_sub(arrived);
        let mut grows = false;
        if let Ok(seen) = dispersion(&down.arrivals) {
            self.found.down.push((count, seen));
            let most = self.most(around);
            around.length.learn(count, most, &seen);
            grows = around.length.next(most) > count;
        }
        let agree = match longest(&self.found.down).as_slice() {
            [first, second] => !first.rate.differs(second.rate, AGREE),
            trains => trains.len() > 2,
        };
        let is_enough = self.trains >= TRAINS || (agree && !grows);
        if is_enough {
            self.ask_leg(around.now);
        } else {
            self.train(around);
        }
    }

    fn ask_leg(&mut self, now: Time) {
        self.due = now;
        self.tries = ASKS;
        self.stage = if self.wanted.leg.is_some() && self.found.is_answered {
            Stage::Leg(None)
        } else {
            Stage::Over
        };
    }

    fn leg_said(&mut self, state: LegState, now: Time) {
        self.tries -= 1;
        self.due = now;
        self.stage = Stage::Over;
        let is_final = match state {
            // An old one is measured again because it was asked for.
            LegState::Known { leg, age } => {
                self.found.leg = Some(LegSaid::Known(leg, age));
                age <= leg::FRESH
            }
            LegState::Refused => {
                self.found.leg = Some(LegSaid::Refused);
                true
            }
            LegState::Pending => false,
        };
        if !is_final && self.tries > 0 {
            self.stage = Stage::Leg(None);
            self.due = now + Duration::from_secs(1);
        }
    }
}

impl Down {
    /// Whether the message belongs here, and is new.
    fn take(&mut self, message: &Message, arrival: Arrival, found: &mut Findings) -> bool {
        match *message {
            Message::Report {
                train,
                received,
                coming,
                seen,
            } if train == self.place.train && self.coming.is_none() => {
                let count = self.place.count;
                self.coming = Some(coming.min(count));
                found.sent += u32::from(count);
                found.lost += u32::from(count.saturating_sub(received));
                found.up.extend(seen.map(|seen| (count, seen)));
                true
            }
            Message::Down(place) if place.train == self.place.train => {
                let bit = 1_u128.checked_shl(place.index.into()).unwrap_or(0);
                let is_new = place.index < self.place.count && bit != 0 && self.seen & bit == 0;
                if is_new {
                    self.seen |= bit;
                    self.arrivals.push(arrival);
                }
                is_new
            }
            _ => false,
        }
    }

    fn is_complete(&self) -> bool {
        let arrived = self.arrivals.len();
        self.coming.is_some_and(|coming| arrived >= coming.into())
    }
}

impl Findings {
    /// The least round trip, which had the fewest queues.
    pub(crate) fn delay(&self) -> Option<Duration> {
        self.delays.iter().min().copied()
    }

    /// What the trains down say.
    pub(crate) fn down(&self) -> Option<(Rate, Shape)> {
        together(&self.down)
    }

    /// What the trains up say.
    pub(crate) fn up(&self) -> Option<(Rate, Shape)> {
        together(&self.up)
    }

    /// Probes that were lost, in thousandths.
    pub(crate) fn loss(&self) -> u32 {
        (self.lost * 1000).checked_div(self.sent).unwrap_or(0)
    }
}

/// The longest trains, and those that are almost as long: what shorter ones have met may be a bucket alone.
fn longest(trains: &[(u16, Dispersion)]) -> Vec<Dispersion> {
    let most = trains.iter().map(|&(count, _)| count).max().unwrap_or(0);
    let long = trains.iter().filter(|&&(count, _)| count >= most / 4 * 3);
    long.map(|&(_, train)| train).collect()
}

/// The median of the longest trains. Where one has shown a knee clearly, flat ones that were faster have met the bucket alone.
fn together(trains: &[(u16, Dispersion)]) -> Option<(Rate, Shape)> {
    let mut trains = longest(trains);
    let is_clear = |train: &&Dispersion| train.shape == Shape::Knee && train.quarters > 1;
    let bound = trains.iter().filter(is_clear).map(|train| train.rate).max();
    if let Some(bound) = bound {
        trains.retain(|train| train.rate <= bound.thousandths(1250));
    }
    trains.sort_unstable_by_key(|train| train.rate);
    let upper = trains.get(trains.len() / 2)?;
    let lower = &trains[(trains.len() - 1) / 2];
    Some((lower.rate.midway(upper.rate), lower.shape))
}

/// How long an answer may take.
fn patience(delay: Option<Duration>) -> Duration {
    let usual = delay.unwrap_or(Duration::from_millis(250)) * 4;
    usual.clamp(Duration::from_millis(300), Duration::from_secs(3))
}
