//! Probes and checks: whether a back end that is marked answers again, and whether one answers at all, FlexCP asks with SYNs of
//! its own.

use core::net::SocketAddr;

use flexcp_wire::{ChecksumState, Ends, OptionWriter, TcpFlags, TcpOption, TcpSeq};

use super::Translator;
use crate::cause::Rst;
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::handle::ServiceId;
use crate::health::{AnswerTo, BackendState, BackendView, MarkReason, Sent};
use crate::segment::{Outgoing, Segment};
use crate::service::CheckStep;
use crate::table::Table;
use crate::{Frame, Instant, Verdict};

/// What an Ethernet frame holds; nothing is ever sent behind a probe.
const MSS_V4: u16 = 1460;
const MSS_V6: u16 = 1440;

impl Translator {
    /// A back end whose mark has come, changed or gone since the last call, as it is now. May change after
    /// [`handle_packet`](Self::handle_packet) and [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_backend(&mut self) -> Option<BackendState> {
        self.services.next_untold()
    }

    /// The back ends of the present services as they stand, in the order of the configuration. Costs nothing per connection.
    pub fn backends(&self) -> impl Iterator<Item = BackendView> {
        self.services.views()
    }

    /// When the next probe is due. Whoever is about to end asks nobody.
    pub(crate) fn probes_due(&self) -> Option<Instant> {
        self.services.probe_due().filter(|_| !self.drain.begun)
    }

    /// Sends the probes that are due.
    pub(crate) fn probe_backends(&mut self, now: Instant) {
        while self.probes_due().is_some_and(|due| due <= now) {
            let is_free = |backend: &Backend| is_free(&self.table, backend);
            let probe = self
                .services
                .next_probe(now, &mut self.keys.numbers, is_free);
            let Some((to, isn)) = probe else {
                return;
            };
            self.counters.backend_probes_tx += 1;
            self.counters.packets_made += 1;
            self.outbox.push_back(syn(to, isn).own());
        }
    }

    /// When a check is due, or the time for its answer is over. Whoever is about to end asks nobody.
    pub(crate) fn checks_due(&self) -> Option<Instant> {
        self.services.check_due().filter(|_| !self.drain.begun)
    }

    /// Sends the checks that are due, and judges those that have not been answered in time.
    pub(crate) fn check_backends(&mut self, now: Instant) {
        while self.checks_due().is_some_and(|due| due <= now) {
            let is_free = |backend: &Backend| is_free(&self.table, backend);
            let step = self
                .services
                .next_check(now, &mut self.keys.numbers, is_free);
            match step {
                None => return,
                Some(CheckStep::Send { to, isn }) => {
                    self.counters.backend_checks_tx += 1;
                    self.counters.packets_made += 1;
                    self.outbox.push_back(syn(to, isn).own());
                }
                Some(CheckStep::Failed { of, is_new }) => {
                    self.counters.backend_checks_failed += 1;
                    self.note_marked(of, MarkReason::Silent, is_new);
                }
            }
        }
    }

    /// The answer to a check: a SYN/ACK if `opens`, else a RST. One that comes late says nothing.
    fn handle_checked(
        &mut self,
        now: Instant,
        of: (ServiceId, SocketAddr),
        (opens, sent): (bool, Sent),
    ) {
        if !self.services.awaits_check(now, of) {
            return;
        }
        if opens {
            let rtt = sent.at.map(|at| now.since(at));
            let back = self.services.note_check_passed(now, of, rtt);
            self.note_back(of, back);
        } else {
            let reason = MarkReason::Refused;
            let is_new = self.services.note_check_failed(now, of, reason);
            self.counters.backend_checks_failed += 1;
            self.note_marked(of, reason, is_new);
        }
    }

    /// A packet that belongs to no connection may be a back end's answer: to a check, to a probe, or a late one to a
    /// connection that has left it. All ACK a number that nobody off the path knows. `None`: it is neither, or there is
    /// more to say to it.
    pub(crate) fn handle_probed(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Option<Verdict> {
        let opens = segment.has(TcpFlags::SYN);
        if !segment.has(TcpFlags::ACK) || opens == segment.has(TcpFlags::RST) {
            return None;
        }
        let ends = (segment.source(), segment.destination());
        let found = self.services.find_sent(ends, TcpSeq(segment.tcp.ack))?;
        let (service, to, sent) = found;
        let complete = frame.offload.checksum == ChecksumState::Complete;
        if complete && !segment.checksum_is_right(frame) {
            return Some(Verdict::Drop(DropReason::Checksum));
        }
        let of = (service, segment.source());
        if to == AnswerTo::Check {
            self.handle_checked(now, of, (opens, sent));
        } else if opens {
            let rtt = sent.at.map(|at| now.since(at));
            let back = self.services.note_answer(now, of, rtt);
            self.note_back(of, back);
        } else {
            let reason = MarkReason::Refused;
            self.services.note_refusal(now, of, reason);
        }
        if to == AnswerTo::Late {
            return None;
        }
        if opens {
            self.refuse(segment, Rst::Probed);
        }
        Some(Verdict::Consume)
    }
}

/// Whether no connection has these ends.
fn is_free(table: &Table, backend: &Backend) -> bool {
    let ends = Ends {
        from: backend.addr,
        to: backend.source,
    };
    table.find(ends).is_none()
}

/// The SYN of a probe.
fn syn(to: Backend, isn: TcpSeq) -> Outgoing {
    let mut options = OptionWriter::default();
    let mss = if to.addr.is_ipv4() { MSS_V4 } else { MSS_V6 };
    options.push(&TcpOption::Mss(mss));
    Outgoing {
        ends: Ends {
            from: to.source,
            to: to.addr,
        },
        seq: isn.0,
        ack: 0,
        flags: TcpFlags::SYN,
        window: u16::MAX,
        urgent: 0,
        keep_ecn: false,
        flow_label: 0,
        options,
    }
}
