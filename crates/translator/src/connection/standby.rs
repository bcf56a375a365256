//! Paths that are for when others fail, as the client is told (RFC 8684 section 3.3.8): by the mode of the connection's rule, or
//! because somebody asked for it.

use flexcp_wire::{MpPrio, MptcpOption, TcpFlags, TcpOption};

use super::{Connection, Context};
use crate::config::Settings;
use crate::handle::{SubflowIndex, SubflowSet};

/// How often the client is told which paths are for when others fail.
const STANDBY_COPIES: u8 = 3;

/// Which paths the client is told to use only when others fail.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Standby {
    /// Those.
    pub(super) paths: SubflowSet,
    /// Those of them that are asked for, whatever the mode: neither end uses them while others are left.
    pub(super) asked: SubflowSet,
    /// Of which it is told again, as nobody confirms it.
    pub(super) changed: SubflowSet,
    /// Times that it was told of those.
    pub(super) copies: u8,
    /// It is told with the packet in hand.
    pub(super) due: bool,
}

impl Connection {
    /// It is asked that a path is for when others fail.
    pub(super) const fn is_asked_backup(&self, index: SubflowIndex) -> bool {
        self.mptcp.steered.standby.asked & (1 << index) != 0
    }

    /// Notes that a path is asked to be for when others fail, or no more. `false`: it was so before.
    pub(super) fn ask_backup(
        &mut self,
        config: &Settings,
        index: SubflowIndex,
        backup: bool,
    ) -> bool {
        let asked = &mut self.mptcp.steered.standby.asked;
        let before = *asked;
        *asked = (before & !(1 << index)) | u8::from(backup) << index;
        let changes = *asked != before;
        self.note_standby_of_rule(config);
        changes
    }

    /// Notes which paths are for when others fail, as its rule has it.
    pub(super) fn note_standby_of_rule(&mut self, config: &Settings) {
        let rule = self.rule_in_force(config);
        let standby = rule.is_some_and(|rule| rule.mode.tells_standby());
        self.note_standby(standby);
    }

    /// A path is about to join: notes whether the client is to use it only when others fail, for the answer to its SYN.
    pub(super) fn joins_as_standby(&mut self, ctx: &Context<'_>, index: SubflowIndex) {
        self.find_rule(ctx.config);
        let bit = 1 << index;
        let standby = &mut self.mptcp.steered.standby;
        standby.paths &= !bit;
        standby.changed &= !bit;
        standby.asked &= !bit;
        let rule = self.rule_in_force(ctx.config);
        let Some(rule) = rule.filter(|rule| rule.mode.tells_standby()) else {
            return;
        };
        let Some(mut paths) = self.steered_paths(ctx.now, ctx.config, ctx.ledger, rule) else {
            return;
        };
        // As if it were there, and no other beside the active one.
        paths.others[0] = self.steered_path(ctx.now, ctx.config, ctx.ledger, index);
        paths.count = 1;
        let standby = rule.mode.choose(&self.view_of(&paths)).is_none();
        self.mptcp.steered.standby.paths |= u8::from(standby) << index;
    }

    /// Whether the client is told to use a path only when others fail.
    pub(super) const fn is_standby(&self, index: SubflowIndex) -> bool {
        self.mptcp.steered.standby.paths & (1 << index) != 0
    }

    /// Notes which paths are for when others fail: those that are asked for, and all but the active one if `standby`.
    pub(super) fn note_standby(&mut self, standby: bool) {
        let active = self.mptcp.active;
        let carrying = self.carrying(|_| true);
        let carrying = carrying.fold(0, |set: SubflowSet, path| set | 1 << path.index);
        let wanted = if standby {
            carrying & !(1 << active)
        } else {
            0
        };
        let told = &mut self.mptcp.steered.standby;
        let wanted = wanted | (told.asked & carrying);
        let news = (told.paths ^ wanted) & carrying;
        if news != 0 {
            // What was told of a path that is still joining holds.
            told.paths = (told.paths & !carrying) | wanted;
            told.changed = (told.changed | news) & carrying;
            told.copies = 0;
        }
        told.due = told.changed != 0;
    }

    /// Tells the client which paths are for when others fail (`MP_PRIO`, RFC 8684 section 3.3.8). Call it when the packet in hand
    /// has been handled: what is made before its data has a place would come behind that, with a number that is old by then,
    /// and a client does not even read the options of such a packet.
    #[inline]
    pub(crate) fn tell_standby(&mut self, ctx: &mut Context<'_>) {
        if self.mptcp.steered.standby.due {
            self.send_standby(ctx);
        }
    }

    fn send_standby(&mut self, ctx: &mut Context<'_>) {
        let told = &mut self.mptcp.steered.standby;
        told.due = false;
        let (to, standby) = (told.changed, told.paths);
        told.copies += 1;
        if told.copies >= STANDBY_COPIES {
            told.changed = 0;
        }
        let carries = |&index: &SubflowIndex| self.subflow(index).carries();
        for index in self.indices().filter(carries) {
            if to & (1 << index) == 0 {
                continue;
            }
            let prio = MpPrio {
                backup: standby & (1 << index) != 0,
            };
            let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
            let option = TcpOption::Mptcp(MptcpOption::Prio(prio));
            outgoing.options.push(&option);
            self.push_dss(&mut outgoing, None, false);
            ctx.counters.mp_prio_tx += 1;
            ctx.send(outgoing.own());
        }
    }
}
