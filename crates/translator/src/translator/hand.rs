//! A packet of a connection that is known: one look-up, and then everything that is done with the connection.
//!
//! The order is the same for both legs: evict what is installed, handle the packet, settle, and see whether the connection
//! can be installed, or be passed by. What opens a connection, or may end in another back end or none, needs the tables: that goes
//! by `opening` and `room`.

use alloc::boxed::Box;

use flexcp_wire::TcpFlags;

use super::install::{Course, Installer, LOOK};
use super::{FURTHEST_TIMER, Translator, context, lost};
use crate::budget::Budget;
use crate::cause::Rst;
use crate::connection::{Connection, Context, Phase, SubflowState};
use crate::counters::DropReason;
use crate::handle::{INITIAL, SubflowIndex};
use crate::record::Registry;
use crate::rst::refuse;
use crate::segment::Segment;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Install, Instant, Step, Verdict};

/// A connection, and what it may use beside the tables.
pub(crate) struct Hand<'a> {
    pub(super) id: ConnectionId,
    pub(super) connection: &'a mut Connection,
    pub(super) ctx: Context<'a>,
    pub(super) budget: &'a mut Budget,
    pub(super) installer: Option<&'a mut Installer>,
    pub(super) registry: Option<&'a mut Box<dyn Registry>>,
}

/// What a settled connection changes in the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    /// It enters the queue of handshakes that are not complete, or leaves it.
    pub(super) half_open_changes: bool,
    /// It enters the timer queue for this time.
    pub(super) arm: Option<Instant>,
}

impl Translator {
    /// The connection, with all that it may use.
    pub(super) fn hand(&mut self, now: Instant, id: ConnectionId) -> Option<Hand<'_>> {
        let connection = self.table.get_mut(id)?;
        Some(Hand {
            id,
            connection,
            ctx: context!(self, now),
            budget: &mut self.budget,
            installer: self.installer.as_mut(),
            registry: self.records.registry.as_mut(),
        })
    }

    /// A packet of a connection that is known.
    pub(super) fn handle_known(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Step {
        if let Some(verdict) = self.handle_promised(now, flow, (segment, frame)) {
            return verdict.into();
        }
        let bare = segment.payload.is_empty();
        let Some(mut hand) = self.hand(now, flow.id) else {
            return lost().into();
        };
        hand.evict();
        let (verdict, mut hand) = match hand.handle(flow.leg, segment, frame) {
            Some(verdict) => (verdict, hand),
            None => {
                let verdict = self.handle_opening(now, flow, segment, frame);
                match self.hand(now, flow.id) {
                    Some(hand) => (verdict, hand),
                    // The packet was the end of it.
                    None => return verdict.into(),
                }
            }
        };
        hand.connection.tell_standby(&mut hand.ctx);
        let settled = hand.settle(now);
        let course = hand.note_course(verdict, bare);
        self.note_settled(flow.id, settled);
        if self.budget.is_short() {
            self.collect(now, flow.id);
            self.reclaim(now);
        }
        let install = match course {
            Course::Goes => Install::No,
            Course::Due { before_sent: true } => Install::BeforeSent,
            Course::Due { before_sent: false } => Install::WhenSent,
            Course::Eager => {
                self.install(now, flow.id);
                Install::No
            }
        };
        Step { verdict, install }
    }
}

impl Hand<'_> {
    /// The packet goes to the connection; `None`: the connection is opening, which takes more than the connection itself.
    fn handle(&mut self, leg: Leg, segment: &Segment, frame: &mut Frame<'_>) -> Option<Verdict> {
        if let Leg::Subflow(INITIAL) = leg {
            self.connection.earn(segment);
        }
        match (self.connection.phase, leg) {
            // Those go elsewhere.
            (_, Leg::Called) => Some(lost()),
            (Phase::SynSent | Phase::SynReceived, _) => None,
            (Phase::Plain(_), _) if !self.connection.tcp.syn.answered => None,
            // Numbers of SYNs are FlexCP's own before a preamble.
            (Phase::Plain(relayed), _)
                if segment.has(TcpFlags::SYN)
                    && !relayed.proved
                    && self.connection.has_preamble()
                    && !self.connection.has_granted_errand() =>
            {
                None
            }
            (Phase::Established { .. } | Phase::Closed(_), Leg::Subflow(index)) => {
                Some(self.handle_on_subflow(index, segment, frame))
            }
            (Phase::Established { .. } | Phase::Closed(_), Leg::Server) => {
                self.allow_hold();
                Some(
                    self.connection
                        .handle_to_mptcp(&mut self.ctx, segment, frame),
                )
            }
            // None can be there, as a join ends `NumberMap::identity`; it would not be the server's.
            (Phase::Fallback(_), Leg::Subflow(index)) if index != INITIAL => {
                Some(Verdict::Drop(DropReason::Unexpected))
            }
            (Phase::Plain(_) | Phase::Fallback(_), Leg::Subflow(_)) => {
                Some(self.connection.relay_to_tcp(&mut self.ctx, segment, frame))
            }
            (Phase::Plain(_) | Phase::Fallback(_), Leg::Server) => Some(
                self.connection
                    .relay_to_mptcp(&mut self.ctx, segment, frame),
            ),
            (Phase::Reset(_), Leg::Subflow(index)) => Some(self.connection.answer_reset_client(
                &mut self.ctx,
                index,
                segment,
            )),
            (Phase::Reset(_), Leg::Server) => {
                Some(self.connection.answer_reset_server(&mut self.ctx, segment))
            }
        }
    }

    /// A packet on a subflow of a connection that is translated.
    fn handle_on_subflow(
        &mut self,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Self {
            connection, ctx, ..
        } = self;
        match connection.subflow(index).state {
            SubflowState::Joining => connection.handle_joining(ctx, index, segment, frame),
            SubflowState::Established | SubflowState::Closing => {
                connection.handle_to_tcp(ctx, index, segment, frame)
            }
            // A RST says nothing new there, and never has an answer.
            SubflowState::Closed if segment.has(TcpFlags::RST) => Verdict::Consume,
            SubflowState::Closed => {
                if connection.answer_closed(ctx, index, segment) {
                    return Verdict::Consume;
                }
                let cause = Rst::SubflowClosed;
                refuse(ctx.counters, ctx.outbox, segment, cause, cause.reason());
                Verdict::Drop(DropReason::NoSubflow)
            }
        }
    }

    /// What the connection has come to after a packet or a timer. `overdue` stands for a deadline that is not ahead.
    pub(super) fn settle(&mut self, overdue: Instant) -> Settled {
        self.register();
        let now = self.ctx.now;
        let mut deadline = self.connection.deadline(self.ctx.config);
        if self.connection.installation.waits_with_slot() {
            deadline = deadline.min(now + LOOK);
        }
        // A far deadline is looked at again before: most are put off, and those must not fill the queue.
        let deadline = deadline.min(now + FURTHEST_TIMER);
        let deadline = if deadline > now { deadline } else { overdue };
        self.charge();
        let links = &self.connection.links;
        Settled {
            half_open_changes: links.half_open.queued != self.connection.is_half_open(),
            arm: Some(deadline).filter(|&at| links.armed.is_none_or(|armed| at < armed)),
        }
    }

    /// Notes what the connection has allocated.
    pub(super) fn charge(&mut self) {
        let memory = self.connection.memory();
        let charged = &mut self.connection.links.charged;
        self.budget.charge(charged, memory);
    }
}
