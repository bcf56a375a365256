//! What FlexCP does in a server's place: it answers a client whose server is not known, calls the server, and hands the client over.
//!
//! The three follow each other. A [`Responder`] is the server while the preamble comes. A [`Call`] is the SYN to the server that
//! the client has named. A [`Seam`] makes the server's packets those of the responder from then on.

mod responder;
mod seam;

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use flexcp_preamble::{Dialogue, Refusal, Target, Wish};
use flexcp_wire::{
    Dsn, Ends, OptionWriter, Sum, TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOption, TcpOptions,
    TcpSeq, Timestamps, update_checksum,
};

pub(crate) use self::responder::{Responder, Then};
use self::seam::{Clock, Scales};
pub(crate) use self::seam::{Passage, Seam};
use crate::endpoint::Backend;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// A client has to say whom it wants within this time, and to go once it is refused.
const PATIENCE: Duration = Duration::from_secs(10);
/// A server has to answer within this time (RFC 9293 section 3.8.3 asks for more, but a client waits).
const CALL: Duration = Duration::from_secs(20);
/// The SYN to the server goes again after that, then after twice as long each time (RFC 6298).
const PAUSE: Duration = Duration::from_secs(1);

/// Addresses that no packet has (RFC 6890): a responder's, and its client's side of the TCP leg.
const RESPONDER: IpAddr = IpAddr::V4(Ipv4Addr::new(0, 2, 0, 1));

/// What stands in a server's place.
#[derive(Debug)]
pub(crate) struct Hosted {
    responder: Option<Responder>,
    call: Option<Call>,
    seam: Option<Seam>,
    /// The client's first byte that is for the server. A data number, as a TCP number comes again after 4 GB.
    stream_start: Option<Dsn>,
    /// What ACKs the server's SYN/ACK, once it has taken over: as the client would say it to the responder.
    acknowledgment: Option<Outgoing>,
    /// Whom the client wants who has not shown yet where it is.
    wanted: Option<SocketAddr>,
    /// The same as it has said it.
    wish: Option<Wish>,
    /// It is refused, and that is counted.
    denied: bool,
    /// A name is being resolved for it, of a server with this port.
    resolves: Option<u16>,
    /// Other addresses of the same server, the next one last.
    others: Vec<SocketAddr>,
    /// When the client has to have said whom it wants, or to have gone; or the name to be resolved.
    until: Option<Instant>,
}

/// A SYN to the server that a client has named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) backend: Backend,
    /// When it goes again.
    due: Instant,
    copies: u8,
    /// When the server has to have answered.
    until: Instant,
}

/// The ends of the TCP leg of a connection whose server is a responder: its token tells them apart.
pub(crate) fn responder_ends(token: u32) -> Backend {
    let [a, b, c, d] = token.to_be_bytes();
    Backend {
        source: SocketAddr::new(Ipv4Addr::new(0, 1, a, b).into(), u16::from_be_bytes([c, d])),
        addr: SocketAddr::new(RESPONDER, 1),
    }
}

/// Whether a packet to there is a responder's.
pub(crate) fn is_responder(to: IpAddr) -> bool {
    to == RESPONDER
}

impl Hosted {
    /// A client whose dialogue has come this far.
    pub(crate) fn new(now: Instant, responder: Responder, wanted: Option<SocketAddr>) -> Self {
        Self {
            responder: Some(responder),
            call: None,
            seam: None,
            stream_start: None,
            acknowledgment: None,
            wanted,
            wish: wanted.map(wish_for),
            denied: false,
            resolves: None,
            others: Vec::new(),
            until: Some(now + PATIENCE),
        }
    }

    /// The responder, until the client has all that it has said.
    pub(crate) const fn responder(&mut self) -> Option<&mut Responder> {
        self.responder.as_mut()
    }

    /// The SYN that has gone to a server.
    pub(crate) const fn call(&self) -> Option<Call> {
        self.call
    }

    /// Whether a server has taken over.
    pub(crate) const fn seam(&self) -> Option<&Seam> {
        self.seam.as_ref()
    }

    /// The client's next number, while a responder hears it.
    pub(crate) fn next(&self) -> Option<TcpSeq> {
        self.responder.as_ref().map(Responder::next)
    }

    /// The client's first byte that is for the server, once that has taken over: what comes before it is the responder's.
    pub(crate) const fn stream_start(&self) -> Option<Dsn> {
        self.stream_start
    }

    /// It is this one.
    pub(crate) const fn set_stream_start(&mut self, first: Dsn) {
        self.stream_start = Some(first);
    }

    /// How packets pass once the client has all that the responder has said; `None`: a fast path cannot follow. `echo`: the latest
    /// of the client's.
    pub(crate) fn passage(&self, echo: Option<u32>) -> Option<Passage> {
        let seam = self.seam.as_ref().filter(|_| self.responder.is_none());
        seam?.passage(echo)
    }

    /// What ACKs the server's SYN/ACK.
    pub(crate) fn acknowledgment(&self) -> Option<Outgoing> {
        self.acknowledgment.clone()
    }

    /// Whom the client wants, once it has shown where it is.
    pub(crate) fn take_wanted(&mut self) -> Option<SocketAddr> {
        let open = self.responder.as_ref().is_some_and(Responder::is_open);
        self.wanted.take_if(|_| open)
    }

    /// The client has said whom it wants.
    pub(crate) fn note_wish(&mut self, wish: Wish) {
        self.wish = Some(wish);
    }

    /// The client's refusal is told: whom it wants.
    pub(crate) const fn deny(&mut self) -> Option<Wish> {
        self.denied = true;
        self.wish.take()
    }

    /// Whether its refusal was told.
    pub(crate) const fn is_denied(&self) -> bool {
        self.denied
    }

    /// Bytes that it has allocated.
    pub(crate) fn memory(&self) -> usize {
        let name = match self.wish.as_ref().map(|wish| &wish.to) {
            Some(Target::Name(name)) => name.len(),
            _ => 0,
        };
        name + size_of::<Self>()
            + self.responder.as_ref().map_or(0, Responder::memory)
            + self.others.capacity() * size_of::<SocketAddr>()
    }

    /// Whether it is the client's turn.
    fn waits(&self) -> bool {
        let open = self.responder.as_ref().is_some_and(Responder::is_open);
        open && self.call.is_none() && self.seam.is_none()
    }

    /// When something is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let call = self.call.map(|call| call.due.min(call.until));
        let repeat = self.responder.as_ref().and_then(Responder::due);
        let until = self.until.filter(|_| self.waits());
        [call, repeat, until].into_iter().flatten().min()
    }

    /// A name has to be resolved for it, of a server with this port.
    pub(crate) fn begin_lookup(&mut self, now: Instant, port: u16) {
        self.resolves = Some(port);
        self.until = Some(now + PATIENCE);
    }

    /// The name has been resolved: the server's port; `None`: nobody waits for it.
    pub(crate) const fn end_lookup(&mut self) -> Option<u16> {
        self.resolves.take()
    }

    /// The server's addresses, the one to be tried first last.
    pub(crate) fn set_addresses(&mut self, addrs: Vec<SocketAddr>) {
        self.others = addrs;
    }

    /// The next address of the server.
    pub(crate) fn next_address(&mut self) -> Option<SocketAddr> {
        self.others.pop()
    }

    /// Whether it waits for a name.
    pub(crate) const fn resolves(&self) -> bool {
        self.resolves.is_some()
    }

    /// The time is over in which the client has to speak, or a name to be resolved.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.waits() && self.until.is_some_and(|until| until <= now)
    }

    /// The server's time is over.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.call.is_some_and(|call| call.until <= now)
    }

    /// A SYN is about to go to a server.
    pub(crate) fn begin_call(&mut self, now: Instant, backend: Backend) {
        self.call = Some(Call {
            backend,
            due: now + PAUSE,
            copies: 0,
            until: now + CALL,
        });
    }

    /// The same once more; `false`: it is not time.
    pub(crate) fn calls_again(&mut self, now: Instant) -> bool {
        let Some(call) = self.call.as_mut().filter(|call| call.due <= now) else {
            return false;
        };
        call.copies += 1;
        call.due = now + PAUSE * (1 << call.copies.min(6));
        true
    }

    /// The SYN to the server, from where the client's preamble ends.
    pub(crate) fn syn(&self) -> Option<Outgoing> {
        let (call, responder) = (self.call?, self.responder.as_ref()?);
        Some(Outgoing {
            ends: Ends {
                from: call.backend.source,
                to: call.backend.addr,
            },
            seq: responder.next().sub(1).0,
            ack: 0,
            flags: TcpFlags::SYN,
            window: u16::MAX,
            urgent: 0,
            keep_ecn: false,
            flow_label: 0,
            options: responder.call_options(),
        })
    }

    /// Whether a packet of the server's ACKs the SYN.
    pub(crate) fn is_answer(&self, segment: &Segment) -> bool {
        segment.has(TcpFlags::ACK) && self.next() == Some(TcpSeq(segment.tcp.ack))
    }

    /// The client is refused, in its protocol's words.
    pub(crate) fn refuse(&mut self, now: Instant, why: Refusal) {
        self.call = None;
        self.resolves = None;
        self.until = Some(now + PATIENCE);
        if let Some(responder) = &mut self.responder {
            responder.refuse(why);
        }
    }

    /// The server has answered with this SYN/ACK, whose option bytes are `options`: it takes over behind what the responder says
    /// now.
    pub(crate) fn hand_over(
        &mut self,
        now: Instant,
        answer: &Segment,
        options: &[u8],
    ) -> Option<Call> {
        let call = self.call.take()?;
        let responder = self.responder.as_mut()?;
        responder.grant(call.backend.source, options);
        let first = responder.end();
        let server_scale = answer.options.window_scale;
        let scales = match (responder.scales(), server_scale) {
            (None, _) => Scales::NONE,
            (Some((client, told)), server) => Scales {
                client,
                client_told: server.map_or(0, |_| client),
                server: server.unwrap_or(0),
                server_told: told,
            },
        };
        let clock = match (responder.clock_now(now), answer.options.timestamps) {
            (None, _) => Clock::None,
            (Some(shown), None) => Clock::client(shown, responder.clock_heard(), now),
            (Some(shown), Some(of_server)) => Clock::Both {
                shift: shown.wrapping_sub(of_server.val),
                first: of_server.val,
            },
        };
        self.seam = Some(Seam {
            shift: first.0.wrapping_sub(answer.tcp.seq.wrapping_add(1)),
            first,
            clock,
            scales,
            offered: 0,
            sack: answer.options.sack_permitted,
        });
        responder.stand_for(call.backend.flow());
        self.acknowledgment = Some(responder.acknowledgment());
        // The window of a SYN is not scaled.
        responder.offer(answer.tcp.window.into());
        (self.until, self.wish) = (None, None);
        Some(call)
    }

    /// The server that has taken over, if one has, has ACKed this of the client's and offers this window.
    pub(crate) fn follow_server(&mut self, acked: TcpSeq, window: u16) {
        if let Some(responder) = self.responder.as_mut().filter(|_| self.seam.is_some()) {
            responder.follow_server(acked, window);
        }
    }

    /// The server that was called is not waited for any more.
    pub(crate) const fn drop_call(&mut self) {
        self.call = None;
    }

    /// Makes a packet to the server out of one to the responder, once the one has taken over from the other. `packet`: from the
    /// TCP header on. `partial`: nobody has computed its checksum yet. `true`: the responder is let go of, and its memory with it.
    pub(crate) fn cross_header(&mut self, packet: &mut [u8], partial: bool) -> bool {
        let Some(seam) = &mut self.seam else {
            return false;
        };
        let Ok((tcp, _)) = TcpHeader::parse(packet) else {
            return false;
        };
        if let Some(last) = &mut self.acknowledgment
            && tcp.flags.contains(TcpFlags::ACK)
            && !TcpSeq(tcp.ack).before(TcpSeq(last.ack))
        {
            // A server that repeats its SYN/ACK hears what the client has said since, by the same clock (RFC 7323 section 5.3
            // drops what has an older one).
            (last.ack, last.window) = (tcp.ack, tcp.window);
            let said = timestamps_of(&packet[TCP_HEADER_LEN..tcp.header_len]);
            set_clock(last, said);
        }
        if tcp.flags.contains(TcpFlags::ACK)
            && let Some(responder) = &mut self.responder
        {
            responder.note_ack(TcpSeq(tcp.ack));
        }
        let heard = self.responder.take_if(|responder| responder.is_heard());
        let header = &mut packet[..tcp.header_len];
        let before = Sum::of(header);
        seam.rewrite_up(header, self.responder.is_none());
        if !partial {
            let sum = update_checksum(tcp.checksum, before, Sum::of(header));
            header[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        heard.is_some()
    }
}

fn timestamps_of(options: &[u8]) -> Option<Timestamps> {
    TcpOptions::new(options)
        .flatten()
        .find_map(|option| match option {
            TcpOption::Timestamps(timestamps) => Some(timestamps),
            _ => None,
        })
}

/// These timestamps stand in the packet, if they are no older than what stands there.
fn set_clock(packet: &mut Outgoing, said: Option<Timestamps>) {
    let known = timestamps_of(packet.options.finish());
    if let (Some(said), Some(known)) = (said, known)
        && said.val.wrapping_sub(known.val).cast_signed() >= 0
    {
        packet.options = OptionWriter::default();
        packet.options.push(&TcpOption::Timestamps(said));
    }
}

/// The wish for a server whose address is known.
pub(crate) const fn wish_for(server: SocketAddr) -> Wish {
    Wish {
        to: Target::Ip(server.ip()),
        port: server.port(),
    }
}

/// A responder for a client of this family whose dialogue has come this far; `secret` is not to be guessed.
pub(crate) fn responder(
    dialogue: Dialogue,
    backend: Backend,
    secret: u64,
    is_v6: bool,
) -> Responder {
    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    let numbers = (secret as u32, (secret >> 32) as u32);
    let mss = if is_v6 { 1440 } else { 1460 };
    Responder::new(dialogue, backend.flow(), numbers, mss)
}
