//! Another plan while packets flow: what is new is there before what went goes, and what both plans have is not touched.
//!
//! Rules of one preference that divert packets may stand in any order, as all lead to the same table. So those that stay
//! keep their order, and new ones go behind them.

use std::mem;

use super::{
    Family, KernelError, KernelTables, Plan, UplinkWay, check, interface_index, link, mend, route,
    rules, sysctl, uplink,
};

impl Plan {
    /// The families that packets are diverted of.
    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        [(self.v4, Family::V4), (self.v6, Family::V6)]
            .into_iter()
            .filter_map(|(wanted, family)| wanted.then_some(family))
    }

    /// Diverts what `other` diverts, too. The uplinks stay those of this one.
    pub fn join(&mut self, other: &Self) {
        for diversion in &other.diversions {
            if !self.diversions.contains(diversion) {
                self.diversions.push(diversion.clone());
            }
        }
        self.v4 |= other.v4;
        self.v6 |= other.v6;
        let both = self.reserved_ports.iter().chain(&other.reserved_ports);
        self.reserved_ports = both
            .cloned()
            .reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()));
    }
}

impl KernelTables {
    /// Whether [`change`](Self::change) would find something in its way. Changes nothing.
    ///
    /// # Errors
    /// What that is, and what to do about it.
    pub fn check_change(&mut self, plan: &Plan) -> Result<(), KernelError> {
        let plan = self.following(plan);
        if interface_index(&plan.device).is_some() {
            check(&plan)?;
        }
        for family in plan.families() {
            let there = rules::dump(&mut self.netlink, family)?;
            let others: Vec<_> = there
                .into_iter()
                .filter(|rule| !rules::is_ours(rule))
                .collect();
            rules::arrange(&plan, family, &others)?;
            if !self.plan.families().any(|known| known == family) {
                route::check_unused(&mut self.netlink, family, plan.table)?;
            }
            uplink::check_unused(&mut self.netlink, &plan, family, &self.plan.uplinks)?;
        }
        if let Some((_, record)) = &self.undo {
            sysctl::between(&record.changes, &plan, &sysctl::read)?;
        }
        Ok(())
    }

    /// How packets from the addresses of uplinks leave, as it was told last.
    #[must_use]
    pub fn uplinks(&self) -> &[UplinkWay] {
        &self.plan.uplinks
    }

    /// Diverts what `plan` says from here on, with the device, its VRF, the table, the mark and the journal that there are.
    /// Each change of a switch is told to `report` in one line. What it takes to undo the change is in the journal before
    /// anything happens.
    ///
    /// # Errors
    /// Says which step failed; then everything is as it was, as far as the kernel lets it.
    pub fn change(&mut self, plan: &Plan, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        self.check_change(plan)?;
        let plan = self.following(plan);
        let Some((journal, record)) = &mut self.undo else {
            return Ok(());
        };
        let steps = sysctl::between(&record.changes, &plan, &sysctl::read)?;
        let known = mem::replace(&mut record.changes, steps.noted.clone());
        if record.changes != known {
            journal.write(record)?;
        }
        let before = mem::replace(&mut self.plan, plan);
        let done = self.carry_out(&before, &steps, report);
        if done.is_err() {
            // The first error is the one to tell.
            self.plan = before;
            let _ = mend::mend(self, true, &mut Vec::new());
            let _ = sysctl::restore(&steps.apply, report);
            self.note(known)?;
            return done;
        }
        self.note(steps.after)
    }

    /// From `before` to the plan.
    fn carry_out(
        &mut self,
        before: &Plan,
        steps: &sysctl::Steps,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), KernelError> {
        sysctl::apply(&steps.apply, report)?;
        if self.plan.v4 {
            link::set_ipv4_options(&mut self.netlink, self.index, &self.plan)?;
        }
        let mut problems = Vec::new();
        let changed = mend::mend(self, true, &mut problems)?;
        if changed.failed > 0 {
            let problem = problems.into_iter().next().unwrap_or_default();
            return Err(KernelError::Change { problem });
        }
        if !changed.is_empty() {
            report(&format!("changed: {changed}"));
        }
        let gone = Family::BOTH.into_iter().filter(|family| {
            let has = |plan: &Plan| plan.families().any(|known| known == *family);
            has(before) && !has(&self.plan)
        });
        let gone: Vec<_> = gone.collect();
        let Self {
            netlink,
            plan,
            index,
            ..
        } = self;
        for family in gone {
            rules::remove_of(netlink, family, report)?;
            route::remove_of(netlink, family, plan.table, *index, report)?;
            uplink::clear(netlink, plan, family, true)?;
        }
        if !before.uplinks.is_empty() && plan.uplinks.is_empty() {
            for family in plan.families() {
                uplink::clear(netlink, plan, family, true)?;
            }
        }
        sysctl::restore(&steps.restore, report)
    }

    fn note(&mut self, changes: Vec<sysctl::Change>) -> Result<(), KernelError> {
        let Some((journal, record)) = &mut self.undo else {
            return Ok(());
        };
        // What is on disk is true already, and whoever waits for a new address need not wait for the disk.
        if record.changes == changes {
            return Ok(());
        }
        record.changes = changes;
        Ok(journal.write(record)?)
    }

    /// The plan with what can't change, and with the diversions that are there already first, in their order.
    fn following(&self, plan: &Plan) -> Plan {
        let (there, wanted) = (&self.plan.diversions, &plan.diversions);
        let stay = there.iter().filter(|known| wanted.contains(known));
        let new = wanted.iter().filter(|new| !there.contains(new));
        Plan {
            diversions: stay.chain(new).cloned().collect(),
            v4: plan.v4,
            v6: plan.v6,
            reserved_ports: plan.reserved_ports.clone(),
            uplinks: plan.uplinks.clone(),
            ..self.plan.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::sysctl::tests::plan;

    #[test]
    fn joined_plan_diverts_what_both_do() {
        let (mut first, mut second) = (plan(true, false), plan(false, true));
        first.reserved_ports = Some(10..=20);
        second.reserved_ports = Some(15..=30);
        let mut other = first.diversions[0].clone();
        other.interface = None;
        second.diversions.push(other.clone());
        let expected = [first.diversions[0].clone(), other];
        first.join(&second);
        assert!(first.v4 && first.v6);
        assert_eq!(first.reserved_ports, Some(10..=30));
        assert_eq!(first.diversions, expected);
    }
}
