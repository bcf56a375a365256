//! Where a server takes over from the responder: what its packets need to continue what the client has been told.
//!
//! The client knows the responder's numbers, its timestamps, its scale of windows, and whether it uses SACK and timestamps; the
//! server has its own. Each is a constant away from the other, so what passes is rewritten here and the rest of the translator
//! sees one server from beginning to end. The client's own numbers need nothing: the SYN to the server continued them.

use flexcp_wire::{OptionWriter, TcpOption, TcpOptions, TcpSeq, Timestamps};

use crate::counters::DropReason;
use crate::frame::Frame;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// What differs, each as it is added to the server's to get what the client sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seam {
    /// Its sequence numbers.
    pub(super) shift: u32,
    /// Number of its first byte, as the client sees it.
    pub(super) first: TcpSeq,
    pub(super) clock: Clock,
    pub(super) scales: Scales,
    /// Most bytes behind `first` that the server has been offered before the client had all that comes before it. A window is
    /// rounded where it is made, and once more here: the right edge would lie further left by both.
    pub(super) offered: u32,
    /// It takes SACK.
    pub(super) sack: bool,
}

/// The same as constants that a fast path can follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    seq_shift: u32,
    /// Added to the server's timestamps.
    pub(crate) ts_shift: u32,
    /// Shift of the windows that the server sends.
    pub(crate) sent_scale: u8,
    /// The server takes SACK.
    pub(crate) sack: bool,
}

/// Timestamps of both.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// Nobody uses them.
    None,
    /// Both do: this is added to its own, and nothing before `first` of its own is echoed to it.
    Both { shift: u32, first: u32 },
    /// The client alone does: it is told milliseconds from here on, and echoed `heard`, its latest that went to the server's side.
    Client { base: u32, heard: u32 },
}

/// The server's own timestamp that the client knows as `echo`; `None`: it is of before the server, whose first one is `first`.
const fn own_timestamp(echo: u32, shift: u32, first: u32) -> Option<u32> {
    let own = echo.wrapping_sub(shift);
    if own.wrapping_sub(first).cast_signed() < 0 {
        None
    } else {
        Some(own)
    }
}

/// Shifts of windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scales {
    /// The client's.
    pub(super) client: u8,
    /// What the server takes the client's for.
    pub(super) client_told: u8,
    /// The server's.
    pub(super) server: u8,
    /// What the client takes the server's for.
    pub(super) server_told: u8,
}

impl Clock {
    /// The client has been shown this just now, and has shown `heard`.
    pub(super) const fn client(shown: u32, heard: u32, now: Instant) -> Self {
        Self::Client {
            base: shown.wrapping_sub(millis(now)),
            heard,
        }
    }
}

impl Scales {
    /// Nobody scales.
    pub(super) const NONE: Self = Self {
        client: 0,
        client_told: 0,
        server: 0,
        server_told: 0,
    };

    /// The client's window in bytes.
    fn bytes_up(self, window: u16) -> u32 {
        u32::from(window) << self.client
    }

    fn up(self, bytes: u32) -> u16 {
        u16::try_from(bytes >> self.client_told).unwrap_or(u16::MAX)
    }

    pub(super) fn down(self, window: u16) -> u16 {
        rescaled(window, self.server, self.server_told)
    }
}

fn rescaled(window: u16, from: u8, to: u8) -> u16 {
    if from == to {
        return window;
    }
    let bytes = u64::from(window) << from;
    u16::try_from(bytes >> to).unwrap_or(u16::MAX)
}

impl Passage {
    /// Of a server that was there from the beginning.
    pub(crate) const fn straight(sent_scale: u8, sack: bool) -> Self {
        Self {
            seq_shift: 0,
            ts_shift: 0,
            sent_scale,
            sack,
        }
    }

    /// The number of the server's that the client knows as `seq`.
    pub(crate) const fn seq(self, seq: TcpSeq) -> TcpSeq {
        TcpSeq(seq.0.wrapping_sub(self.seq_shift))
    }
}

impl Seam {
    /// What of it a fast path can follow. `None`: the server has no clock of its own, or takes the client's windows for others, or
    /// the client still echoes the responder, as in `echo`.
    pub(super) fn passage(&self, echo: Option<u32>) -> Option<Passage> {
        let ts_shift = match (self.clock, echo) {
            (Clock::None, _) => 0,
            (Clock::Both { shift, first }, Some(echo)) => {
                own_timestamp(echo, shift, first)?;
                shift
            }
            (Clock::Both { .. } | Clock::Client { .. }, _) => return None,
        };
        (self.scales.client == self.scales.client_told).then_some(Passage {
            seq_shift: self.shift,
            ts_shift,
            sent_scale: self.scales.server,
            sack: self.sack,
        })
    }

    /// Rewrites a packet of the server's as one of the responder's.
    pub(crate) fn rewrite_down(
        &self,
        now: Instant,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Result<(), DropReason> {
        let mut options = OptionWriter::default();
        if let Clock::Client { base, heard } = self.clock {
            let val = base.wrapping_add(millis(now));
            options.push(&TcpOption::Timestamps(Timestamps { val, ecr: heard }));
        }
        for option in TcpOptions::new(segment.option_bytes(frame)).flatten() {
            match (option, self.clock) {
                (TcpOption::Timestamps(told), Clock::Both { shift, .. }) => {
                    let val = told.val.wrapping_add(shift);
                    options.push(&TcpOption::Timestamps(Timestamps { val, ..told }));
                }
                (TcpOption::Timestamps(_), _) => {}
                (TcpOption::Sack(mut blocks), Clock::Client { .. }) => {
                    blocks.truncate(SACK_BESIDE_TIMESTAMPS);
                    options.push(&TcpOption::Sack(blocks));
                }
                (option, _) => {
                    options.push(&option);
                }
            }
        }
        let outgoing = Outgoing {
            ends: segment.ends(),
            seq: segment.tcp.seq.wrapping_add(self.shift),
            ack: segment.tcp.ack,
            flags: segment.tcp.flags,
            window: self.scales.down(segment.tcp.window),
            urgent: segment.tcp.urgent,
            keep_ecn: true,
            flow_label: segment.ip.flow_label,
            options,
        };
        outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX)
    }

    /// Rewrites the header of a packet to the server, in place. `answered`: the client has all that comes before the server's
    /// first byte; until then the server is told of nothing that it has not sent. `header`: the TCP header and its options.
    /// What is to be added to the TCP checksum, if that is complete.
    pub(super) fn rewrite_up(&mut self, header: &mut [u8], answered: bool) {
        let Some(fixed) = header.first_chunk_mut::<20>() else {
            return;
        };
        let ack = TcpSeq(read(&fixed[8..12]));
        let overtakes = answered || !ack.before(self.first);
        let owed = if overtakes { 0 } else { self.first.since(ack) };
        if fixed[13] & 0x10 != 0 {
            fixed[8..12].copy_from_slice(&ack.add(owed).0.wrapping_sub(self.shift).to_be_bytes());
        }
        let mut window = self
            .scales
            .bytes_up(u16::from_be_bytes([fixed[14], fixed[15]]));
        if owed > 0 {
            // Its first bytes are for what the server does not send.
            self.offered = self.offered.max(window.saturating_sub(owed));
            window = self.offered;
        }
        fixed[14..16].copy_from_slice(&self.scales.up(window).to_be_bytes());
        self.rewrite_options(&mut header[20..], answered);
    }

    fn rewrite_options(&mut self, mut options: &mut [u8], answered: bool) {
        while let [kind, rest @ ..] = options {
            let len = match (*kind, rest.first()) {
                (0, _) => return,
                (1, _) => 1,
                (_, Some(&len)) => usize::from(len),
                (_, None) => return,
            };
            if len == 0 || len > options.len() {
                return;
            }
            let (option, behind) = options.split_at_mut(len);
            match option[0] {
                flexcp_wire::kind::TIMESTAMPS if len == 10 => self.rewrite_echo(option),
                flexcp_wire::kind::SACK if !self.sack || !answered => option.fill(NOP),
                flexcp_wire::kind::SACK => {
                    for number in option[2..].chunks_exact_mut(4) {
                        let seq = read(number).wrapping_sub(self.shift);
                        number.copy_from_slice(&seq.to_be_bytes());
                    }
                }
                _ => {}
            }
            options = behind;
        }
    }

    fn rewrite_echo(&mut self, option: &mut [u8]) {
        let Clock::Both { shift, first } = self.clock else {
            if let Clock::Client { heard, .. } = &mut self.clock {
                *heard = read(&option[2..6]);
            }
            option.fill(NOP);
            return;
        };
        // The client may still echo the responder.
        let echo = own_timestamp(read(&option[6..10]), shift, first).unwrap_or(first);
        option[6..10].copy_from_slice(&echo.to_be_bytes());
    }
}

/// Padding.
const NOP: u8 = 1;
/// SACK blocks that timestamps leave room for.
const SACK_BESIDE_TIMESTAMPS: usize = 3;

fn read(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk::<4>()
        .map_or(0, |&bytes| u32::from_be_bytes(bytes))
}

#[allow(clippy::cast_possible_truncation, reason = "timestamps wrap")]
const fn millis(now: Instant) -> u32 {
    (now.0 / 1000) as u32
}
