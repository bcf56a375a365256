//! A twin of the translator under test, without a fast path: it gets the same packets at the same times, and what
//! the fast path did has to be what the translator would have done.

use std::net::IpAddr;

use flexcp_invariants::Payload as Seen;
use flexcp_translator::{
    Config, Cursor, Frame, HEADROOM, Instant, Payload, StableId, SubflowSwitch, Translator, Verdict,
};
use flexcp_wire::{Gso, IpHeader, Offload, PacketLine, TcpHeader};

use crate::proxy::{ENDLESS, MAX_PACKET};

/// A packet, and how it is to be cut into segments.
type Sent = (Vec<u8>, Option<Gso>);

/// The other translator, and what the one under test has sent for the packet in hand.
#[derive(Debug)]
pub(crate) struct Twin {
    translator: Translator,
    frame: Vec<u8>,
    /// What the one under test sent.
    sent: Vec<Sent>,
    /// The first difference.
    pub(crate) difference: Option<String>,
    /// It has filled a hole that the one under test does not know of, or asked a mode when the other did not; from there on
    /// they are two.
    pub(crate) parted: bool,
    /// Rules are there.
    steers: bool,
}

/// What a translator has done as modes wanted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Steered {
    switches: [u64; 7],
    told: u64,
    probes: u64,
    copied: u64,
    /// Subflows that were left as they were silent.
    failed: u64,
}

impl Steered {
    fn of(translator: &Translator) -> Self {
        use SubflowSwitch::{Backup, Balance, Congested, Dealt, Delay, Failed, Lagging, Preferred};
        let counters = translator.counters();
        // A rule that heeds backup subflows leaves one as a mode would.
        let causes = [Preferred, Delay, Balance, Congested, Dealt, Lagging, Backup];
        Self {
            switches: causes.map(|cause| counters.causes.get(cause)),
            told: counters.mp_prio_tx,
            probes: counters.path_probe_tx,
            copied: counters.copied_down_bytes,
            failed: counters.causes.get(Failed),
        }
    }
}

impl Twin {
    pub(crate) fn new(config: Config, seed: [u8; 32]) -> Self {
        Self {
            steers: !config.rules.is_empty(),
            translator: Translator::new(config, seed),
            frame: vec![0; HEADROOM + MAX_PACKET],
            sent: vec![],
            difference: None,
            parted: false,
        }
    }

    /// From now on this configuration holds.
    pub(crate) fn configure(&mut self, config: Config, stage: usize) {
        self.steers |= !config.rules.is_empty();
        self.translator.configure(config, stage as u64);
    }

    /// The one under test sends a packet.
    pub(crate) fn sends(
        &mut self,
        header: &[u8],
        payload: &Seen<'_>,
        len: usize,
        gso: Option<Gso>,
    ) {
        let mut packet = header.to_vec();
        match payload {
            Seen::Bytes(bytes) => packet.extend_from_slice(bytes),
            Seen::Zeros => packet.resize(header.len() + len, 0),
        }
        self.sent.push((packet, gso));
    }

    /// The packet that the one under test has handled comes in here, too.
    pub(crate) fn packet(
        &mut self,
        now: u64,
        packet: &[u8],
        offload: Offload,
        by_kernel: bool,
        under_test: &Translator,
    ) {
        let mut buffer = std::mem::take(&mut self.frame);
        let range = HEADROOM..HEADROOM + packet.len();
        buffer[range.clone()].copy_from_slice(packet);
        let mut frame = Frame::new(&mut buffer, range, offload);
        let verdict = self
            .translator
            .handle_packet(Instant(now), &mut frame)
            .verdict;
        let mut out = vec![];
        if verdict == Verdict::Forward {
            out.push((frame.packet().to_vec(), frame.offload.gso));
        }
        self.transmit(Some(&frame), &mut out);
        self.frame = buffer;
        self.part(under_test);
        self.compare(now, &out, by_kernel);
    }

    /// A name has been resolved.
    pub(crate) fn resolved(
        &mut self,
        now: u64,
        id: StableId,
        addrs: &[IpAddr],
        under_test: &Translator,
    ) {
        while self.translator.poll_lookup().is_some() {}
        self.translator.resolved(Instant(now), id, addrs);
        let mut out = vec![];
        self.transmit(None, &mut out);
        self.part(under_test);
        self.compare(now, &out, false);
    }

    /// Uplinks have been lost, or are back.
    pub(crate) fn follow_uplinks(
        &mut self,
        now: u64,
        (config, stage): (Config, usize),
        under_test: &Translator,
    ) {
        self.configure(config, stage);
        let mut from = Some(Cursor::default());
        while let Some(at) = from {
            from = self.translator.follow_uplinks(Instant(now), at, 64);
        }
        let mut out = vec![];
        self.transmit(None, &mut out);
        self.part(under_test);
        self.compare(now, &out, false);
    }

    /// When its timers are due.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.translator.poll_timeout().map(|at| at.0)
    }

    /// Its timers.
    pub(crate) fn timeout(&mut self, now: u64, under_test: &Translator) {
        self.translator.handle_timeout(Instant(now));
        let mut out = vec![];
        self.transmit(None, &mut out);
        // A data ACK on another subflow has overtaken the active one's ACK. The translator takes that for a hole that it may
        // have to fill; the fast path does not watch for holes. As a rule none is there: what an installed connection has
        // outstanding went down on the active subflow.
        self.parted |= self.sent.is_empty() && !out.is_empty() && out.iter().all(is_filler);
        self.part(under_test);
        self.compare(now, &out, false);
    }

    /// A mode is asked of what the fast path carries every two seconds, and here ten times in one: where it wants something, the
    /// two do that at different times.
    fn part(&mut self, under_test: &Translator) {
        let (mut here, there) = (Steered::of(&self.translator), Steered::of(under_test));
        if !self.steers {
            // Without a mode nothing tells how long a silent path is waited for, but what was seen on it.
            here.failed = there.failed;
        }
        self.parted |= here != there;
    }

    fn transmit(&mut self, frame: Option<&Frame<'_>>, out: &mut Vec<Sent>) {
        while let Some(transmit) = self.translator.poll_transmit() {
            assert!(out.len() < ENDLESS, "FlexCP sends without an end");
            let mut packet = transmit.header().to_vec();
            match (&transmit.payload, frame) {
                (Payload::Frame(range), Some(frame)) => {
                    packet.extend_from_slice(frame.buffer(range.clone()));
                }
                (Payload::Bytes(bytes), _) => packet.extend_from_slice(bytes),
                (Payload::Zeros(len), _) => packet.resize(packet.len() + len, 0),
                _ => {}
            }
            out.push((packet, transmit.offload.gso));
        }
    }

    fn compare(&mut self, now: u64, out: &[Sent], by_kernel: bool) {
        let sent = std::mem::take(&mut self.sent);
        let same = if by_kernel {
            let pairs = sent.iter().zip(out);
            sent.len() == out.len()
                && pairs.into_iter().all(|((a, a_gso), (b, b_gso))| {
                    // Options of GSO packets stand in an order that suits the kernel (bpf/order.h).
                    let any_order = a_gso.is_some();
                    said(a, any_order) == said(b, any_order) && a_gso == b_gso
                })
        } else {
            sent == out
        };
        if !same && self.difference.is_none() && !self.parted {
            let lines = |packets: &[Sent]| {
                let line = |(packet, gso): &Sent| {
                    let size =
                        gso.map_or(String::new(), |gso| format!(" in segments of {}", gso.size));
                    format!("\n    {}{size}", PacketLine(packet))
                };
                packets.iter().map(line).collect::<String>()
            };
            let who = if by_kernel {
                "the kernel's fast path"
            } else {
                "the translator"
            };
            self.difference = Some(format!(
                "{who} sends at {}.{:06}{}\n  where it sends without a fast path{}",
                now / 1_000_000,
                now % 1_000_000,
                lines(&sent),
                lines(out)
            ));
        }
    }
}

/// Whether a packet carries bytes of no meaning.
fn is_filler((packet, _): &Sent) -> bool {
    said(packet, false)
        .is_some_and(|said| !said.payload.is_empty() && said.payload.iter().all(|&b| b == 0))
}

/// All that a packet says: hops, which are the router's to count, padding and checksums, which follow from the
/// rest, are left out.
#[derive(PartialEq, Eq, Debug)]
struct Said<'a> {
    ip: IpHeader,
    tcp: TcpHeader,
    options: Vec<String>,
    payload: &'a [u8],
}

fn said(packet: &[u8], any_order: bool) -> Option<Said<'_>> {
    let mut ip = IpHeader::parse(packet).ok()?;
    let segment = packet.get(ip.header_len..ip.total_len)?;
    let (mut tcp, options) = TcpHeader::parse(segment).ok()?;
    let payload = &segment[tcp.header_len..];
    (ip.ttl, ip.total_len, tcp.header_len, tcp.checksum) = (0, 0, 0, 0);
    let mut options = flexcp_testkit::said(options);
    if any_order {
        options.sort_unstable();
    }
    Some(Said {
        ip,
        tcp,
        options,
        payload,
    })
}
