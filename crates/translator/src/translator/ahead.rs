//! Split connections whose clients name their servers in the SYN (0-RTT Convert): the server is called before the kernel's socket
//! gets the SYN. So that socket's SYN/ACK comes once the server has answered, as RFC 8803 section 4.1 has it, and what it ACKs of the
//! SYN says that.
//!
//! A server that does not answer in time, or refuses, lets the SYN go on without its data: its client says that again behind the
//! handshake, and is told.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use flexcp_preamble::Dialogue;
use flexcp_wire::{ChecksumState, Ends, IpHeader, MAX_HEADERS_LEN, Offload};

use super::Translator;
use super::explicit::server_of;
use crate::frame::{Payload, Transmit};
use crate::segment::Segment;
use crate::{Frame, Instant, Protocol, ServiceId, Verdict};

/// SYNs that wait at most: others go on without their data.
const MOST: usize = 256;
/// Where the checksum stands in a TCP header.
const CHECKSUM: usize = 16;

/// A server to be called before its client's SYN goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// The client's service.
    pub service: ServiceId,
    /// The client, and what it has addressed.
    pub ends: Ends,
    /// Whom it has named.
    pub server: SocketAddr,
}

/// SYNs that wait for their servers.
#[derive(Default, Debug)]
pub(crate) struct HeldSyns {
    held: Vec<HeldSyn>,
    /// Servers that nobody has been told to call yet.
    wanted: VecDeque<Ahead>,
}

/// A SYN as it has come.
#[derive(Debug)]
struct HeldSyn {
    ends: Ends,
    ip: IpHeader,
    packet: Transmit,
}

impl Translator {
    /// A server that is to be called before its client's SYN goes on; [`called_ahead`](Self::called_ahead) tells what has come of it.
    /// Asked for where [`poll_transmit`](Self::poll_transmit) is.
    pub fn poll_ahead(&mut self) -> Option<Ahead> {
        self.guests.held.wanted.pop_front()
    }

    /// The server of the SYN between these ends has answered, or has not (yet). The SYN waits in
    /// [`poll_transmit`](Self::poll_transmit) afterwards; nothing does if nobody waits for the answer any more.
    pub fn called_ahead(&mut self, ends: Ends, connected: bool) {
        let Some(syn) = self.guests.held.take(ends) else {
            return;
        };
        if connected {
            self.send_syn_on(syn.packet);
        } else {
            self.send_without_data(&syn);
        }
    }

    /// The SYN of a connection that is to be split, whose client names its server.
    pub(super) fn split_explicit(
        &mut self,
        now: Instant,
        service: ServiceId,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Verdict {
        let converts = self.services.protocol(service) == Some(Protocol::Convert);
        if segment.payload.is_empty() || !converts {
            return Verdict::Forward;
        }
        let Some(packet) = Transmit::of(frame.packet(), frame.offload) else {
            return Verdict::Forward;
        };
        let ends = segment.ends();
        let syn = HeldSyn {
            ends,
            ip: segment.ip,
            packet,
        };
        // One that comes again has waited long enough.
        let again = self.guests.held.take(ends).is_some();
        let is_room = self.guests.held.held.len() < MOST;
        match self.server_in_syn(now, service, segment, frame) {
            Some(server) if is_room && !again => {
                self.counters.syn_held += 1;
                self.guests.held.held.push(syn);
                self.guests.held.wanted.push_back(Ahead {
                    service,
                    ends,
                    server,
                });
            }
            _ => self.send_without_data(&syn),
        }
        Verdict::Consume
    }

    /// The server that the SYN names, if its client may be connected there.
    fn server_in_syn(
        &self,
        now: Instant,
        service: ServiceId,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Option<SocketAddr> {
        let client = segment.source().ip();
        let mut dialogue = Dialogue::new(self.services.protocol(service)?);
        let gate = self
            .services
            .gate((service, client), now, &self.guests.cookies);
        let said = frame.buffer(segment.payload.clone());
        let mut answer = Vec::new();
        let (_, turn) = dialogue.hear(said, &gate, &mut answer);
        let server = server_of(&turn).filter(|_| answer.is_empty())?;
        self.services
            .allows(service, server, client)
            .then_some(server)
    }

    /// What the client has said with its SYN it says again.
    fn send_without_data(&mut self, syn: &HeldSyn) {
        self.counters.syn_stripped += 1;
        self.send_syn_on(syn.without_data());
    }

    fn send_syn_on(&mut self, packet: Transmit) {
        self.counters.packets_made += 1;
        self.outbox.push_back(packet);
    }
}

impl HeldSyns {
    fn take(&mut self, ends: Ends) -> Option<HeldSyn> {
        let at = self.held.iter().position(|syn| syn.ends == ends)?;
        Some(self.held.swap_remove(at))
    }
}

impl HeldSyn {
    /// The same without its data. The carrier completes the checksum, which is known to have been right.
    fn without_data(&self) -> Transmit {
        let tcp = &self.packet.header()[self.packet.ip_header_len()..];
        let mut header = [0; MAX_HEADERS_LEN];
        let ip_len = self.ip.emit(tcp.len(), &mut header);
        let len = ip_len + tcp.len();
        header[ip_len..len].copy_from_slice(tcp);
        let sum = self.ip.pseudo_header_sum(tcp.len()).fold();
        header[ip_len + CHECKSUM..ip_len + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        let offload = Offload {
            checksum: ChecksumState::Partial,
            gso: None,
        };
        Transmit::new(header, len, ip_len, Payload::None, offload)
    }
}
