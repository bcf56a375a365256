//! A connection does what it is asked by name: another path, a rule of its own, its end ([`order`](crate::order)).

use super::{Connection, Context, Phase, choice};
use crate::cause::{Rst, SubflowSwitch};
use crate::config::Settings;
use crate::handle::SubflowIndex;
use crate::order::{Order, Ordered, Refused};
use crate::steering::Target;

impl Connection {
    /// Does what it is asked, or says why not.
    pub(crate) fn carry_out(
        &mut self,
        ctx: &mut Context<'_>,
        order: &Order,
    ) -> Result<Ordered, Refused> {
        if let Order::Close = order {
            return self.close_as_asked(ctx);
        }
        if !self.phase.is_established() {
            return Err(Refused::NotTranslated);
        }
        let outcome = match order {
            Order::Move(target) => self.move_as_asked(ctx, *target)?,
            Order::Steer(Some(rule)) if rule.mode.shares() => return Err(Refused::Shares),
            Order::Steer(rule) => {
                self.steer_by_own(ctx, rule.clone());
                Ordered::Done
            }
            &Order::SetBackup { subflow, backup } => self.set_backup(ctx, subflow, backup)?,
            Order::Close => Ordered::Already,
        };
        // No packet is in hand whose place this could take.
        self.tell_standby(ctx);
        Ok(outcome)
    }

    fn move_as_asked(&mut self, ctx: &mut Context<'_>, target: Target) -> Result<Ordered, Refused> {
        self.find_rule(ctx.config);
        let to = self.asked_path(ctx.config, target)?;
        let outcome = if to == self.mptcp.active {
            Ordered::Already
        } else {
            self.move_to(ctx, to, SubflowSwitch::Asked);
            Ordered::Done
        };
        self.hold_here(ctx.now);
        self.note_standby_of_rule(ctx.config);
        Ok(outcome)
    }

    /// The path that is meant: the active one if it fits, else the first that nothing speaks against.
    fn asked_path(&self, config: &Settings, target: Target) -> Result<SubflowIndex, Refused> {
        let is_meant = |&index: &SubflowIndex| {
            let subflow = self.subflow(index);
            subflow.lives() && target.is(index, subflow.access(&config.accesses))
        };
        let meant = || self.indices().filter(is_meant);
        let judged = |index| self.against_move(index).map_or(Ok(index), Err);
        let active = meant().find(|&index| index == self.mptcp.active);
        if let Some(active) = active.filter(|&index| judged(index).is_ok()) {
            return Ok(active);
        }
        let first = meant().next().ok_or(Refused::NoSubflow)?;
        meant()
            .find_map(|index| judged(index).ok())
            .map_or_else(|| judged(first), Ok)
    }

    /// What speaks against new data on a path.
    fn against_move(&self, index: SubflowIndex) -> Option<Refused> {
        if !self.subflow(index).carries() {
            return Some(Refused::NotCarrying);
        }
        match choice::against(self.standing(index)) {
            Some(SubflowSwitch::Leaving) => Some(Refused::Leaving),
            Some(SubflowSwitch::Backup) => Some(Refused::Backup),
            Some(_) => Some(Refused::Failed),
            // Its own hole does not count where the data is already.
            None if self.has_hole(index) && index != self.mptcp.active => Some(Refused::Hole),
            None => None,
        }
    }

    fn set_backup(
        &mut self,
        ctx: &Context<'_>,
        index: SubflowIndex,
        backup: bool,
    ) -> Result<Ordered, Refused> {
        if !self.indices().contains(&index) || !self.subflow(index).lives() {
            return Err(Refused::NoSubflow);
        }
        if !self.subflow(index).carries() {
            return Err(Refused::NotCarrying);
        }
        self.find_rule(ctx.config);
        let changes = self.ask_backup(ctx.config, index, backup);
        Ok(if changes {
            Ordered::Done
        } else {
            Ordered::Already
        })
    }

    /// Tells both ends that it is over.
    fn close_as_asked(&mut self, ctx: &mut Context<'_>) -> Result<Ordered, Refused> {
        match self.phase {
            Phase::Closed(_) | Phase::Reset(_) => return Ok(Ordered::Already),
            Phase::Established { .. } => self.reset_both(ctx, Rst::Asked),
            _ if self.phase.relayed().passed_by => return Err(Refused::PassedBy),
            _ => self.reset_plain(ctx, Rst::Asked),
        }
        self.note_reset(ctx, Rst::Asked);
        Ok(Ordered::Done)
    }
}
