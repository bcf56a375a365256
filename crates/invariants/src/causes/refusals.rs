//! Whether the wire shows a cause for what a client is refused: RSTs, SYNs answered without MPTCP, joins (I14 to I16).

use super::{BARE, Bounds, FILLERS, MIN_MSS, STUCK};
use crate::Rule;
use crate::connection::{Connection, Mode, Report};
use crate::packet::View;
use crate::subflow::Subflow;

impl Connection {
    /// I14: a RST on subflow `index`, in answer to a packet of other than TCP if `foreign`.
    pub(crate) fn judge_rst_down(&self, index: usize, foreign: bool, report: &mut Report<'_>) {
        let Some(bounds) = report.bounds.filter(|_| self.is_judged(report)) else {
            return;
        };
        let now = report.time;
        let subflow = &self.subflows[index];
        let signs = &subflow.signs;
        // A refused join has a rule of its own.
        let join = index > 0 && subflow.isn_proxy.is_none();
        let known = join
            || bounds.ending
            || self.is_not_served()
            || self.may_be_gone(now, bounds.half_open, bounds.idle)
            || self.is_left(now, foreign)
            || self.is_retracted()
            || subflow.lost
            || subflow.reset
            || subflow.refused
            || (subflow.client_fin.is_some() && signs.fin_out);
        let pending = index > 0 && !(subflow.established && subflow.spoken);
        let late = now.saturating_sub(signs.answered) >= bounds.half_open / 4;
        let evicted = self.joins > subflow.turn;
        let in_vain = signs.unproved || late || evicted || self.mode == Mode::Plain;
        let of_join = subflow.given_up || (pending && in_vain);
        // ICMP says that the server can't be reached, there is no room for the connection, or nobody serves the address
        // that a hostile client connects to.
        let unserved = self.hostile && self.server.is_none();
        let opening = self.mode != Mode::Translated && index == 0;
        let of_syn = opening && (foreign || bounds.turns_away() || unserved);
        let offends = signs.offence
            || (signs.bare >= BARE && !self.is_identity())
            || subflow.up.len() > bounds.mappings
            || (bounds.short_of_memory && subflow.up.len() + subflow.down.len() > 0)
            || signs.fillers >= FILLERS;
        let stuck = self.course.stuck.is_some_and(|since| now - since >= STUCK);
        let left = now.saturating_sub(self.course.heard) >= bounds.rejoin;
        let cause = known || of_join || of_syn || offends || stuck || left;
        report.expect(cause, Rule::Reset, || {
            format!("a RST on subflow {index} without cause")
        });
    }

    /// I14: a RST to the server, in answer to a client's if `relayed`.
    pub(crate) fn judge_rst_up(&self, relayed: bool, report: &mut Report<'_>) {
        let Some(bounds) = report.bounds.filter(|_| self.is_judged(report)) else {
            return;
        };
        let now = report.time;
        let opening = self.mode != Mode::Translated;
        let relays = (opening || self.may_fall_back) && !self.has_open_errand();
        let left = now.saturating_sub(self.course.heard) >= bounds.rejoin;
        let cause = self.may_be_gone(now, bounds.half_open, bounds.idle)
            || bounds.ending
            || self.course.replaced
            || self.is_not_served()
            || self.is_refused_by_answer()
            || self.is_retracted()
            || (relays && relayed)
            || (opening && bounds.turns_away())
            || (!opening && (left || self.is_cut_off()));
        report.expect(cause, Rule::Reset, || {
            "a RST to the server without cause".into()
        });
    }

    /// I15: the SYN/ACK to a client that asks for MPTCP.
    pub(crate) fn judge_answer(&self, packet: &View<'_>, report: &mut Report<'_>) {
        let turns_away = |bounds: Bounds| bounds.turns_away() || bounds.ending;
        let crowded = report.bounds.is_none_or(turns_away);
        // What its client has reset before it was translated may be forgotten.
        let lives = self.mode == Mode::Handshake && !self.subflows[0].reset;
        let owed = self.course.asks && lives && !crowded;
        let kept = packet.options.capable.is_some() || !owed || !self.is_judged(report);
        report.expect(kept, Rule::Plain, || {
            "a SYN that asks for MPTCP is answered without".into()
        });
    }

    /// I16: the SYN of subflow `index`, a join, has not been answered with a SYN/ACK.
    pub(crate) fn judge_refusal(&self, index: usize, report: &mut Report<'_>) {
        let Some(bounds) = report.bounds.filter(|_| self.is_judged(report)) else {
            return;
        };
        let now = report.time;
        let subflow = &self.subflows[index];
        let others = || {
            self.subflows
                .iter()
                .enumerate()
                .filter(|&(n, _)| n != index)
        };
        let living = others().filter(|(_, other)| other.may_live()).count();
        let pending = |other: &Subflow| other.may_live() && !(other.established && other.spoken);
        let joining = others().skip(1).filter(|(_, other)| pending(other)).count();
        let small = subflow.mss < u64::from(MIN_MSS);
        let gone = self.may_be_gone(now, bounds.half_open, bounds.idle)
            || now.saturating_sub(self.course.heard) >= bounds.rejoin;
        let cause = gone
            || self.mode != Mode::Translated
            || small
            || !self.server_sack
            || living >= bounds.subflows
            || joining >= bounds.joins
            || bounds.short_of_memory;
        report.expect(cause, Rule::Join, || {
            format!("the join of subflow {index} is refused without cause")
        });
    }

    /// I16: the client has proved its keys on subflow `index`, and hears nothing.
    pub(crate) fn judge_proof(&self, index: usize, report: &mut Report<'_>) {
        let Some(bounds) = report.bounds.filter(|_| self.is_judged(report)) else {
            return;
        };
        let now = report.time;
        let subflow = &self.subflows[index];
        let late = now.saturating_sub(subflow.signs.answered) >= bounds.half_open / 4;
        let gone = self.may_be_gone(now, bounds.half_open, bounds.idle)
            || now.saturating_sub(self.course.heard) >= bounds.rejoin;
        let evicted = self.joins > subflow.turn;
        let known = subflow.spoken || subflow.refused || subflow.reset || subflow.signs.unproved;
        let known = known || subflow.lost;
        let cause = known || late || gone || evicted || self.mode != Mode::Translated;
        report.expect(cause, Rule::Join, || {
            format!("the proof of subflow {index} is not answered")
        });
    }
}
