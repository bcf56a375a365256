//! Takes over what a run that was killed has left, when its device is still there: nothing is taken away that is wanted,
//! so that packets reach the device at every moment.

use super::journal::{Journal, Record};
use super::netlink::Netlink;
use super::{
    Family, KernelError, KernelTables, Plan, link, mend, remove_filters, rules, sysctl, uplink,
};

/// Whether the device of the plan is up: one just made is not.
pub(super) fn is_kept(netlink: &mut Netlink, index: u32) -> Result<bool, KernelError> {
    Ok(link::state(netlink, index)?.is_some_and(|device| device.up))
}

/// Before anything is changed: others' rules and routes that stand where ours have to.
fn check_room(netlink: &mut Netlink, plan: &Plan) -> Result<(), KernelError> {
    for family in plan.families() {
        let there = rules::dump(netlink, family)?;
        let others = there.into_iter().filter(|rule| !rules::is_ours(rule));
        rules::arrange(plan, family, &others.collect::<Vec<_>>())?;
        uplink::check_unused(netlink, plan, family, &[])?;
    }
    Ok(())
}

/// Brings what is there in line with the plan. `left`: what that run has written down.
pub(super) fn take_over(
    mut netlink: Netlink,
    mut journal: Journal,
    left: Option<Record>,
    plan: &Plan,
    index: u32,
    report: &mut dyn FnMut(&str),
) -> Result<KernelTables, KernelError> {
    check_room(&mut netlink, plan)?;
    let left = left.filter(Record::is_of_this_namespace);
    let mut before = Vec::new();
    if let Some(left) = left {
        // Their programs have ended, or go on with connections that nobody has.
        remove_filters(&left, report)?;
        before = left.changes;
    }
    let changes = sysctl::wanted(plan, &sysctl::read)?;
    // What that run has changed is what has to be set back in the end.
    let known = before
        .iter()
        .map(|change| change.key.clone())
        .collect::<Vec<_>>();
    before.extend(
        changes
            .iter()
            .filter(|change| !known.contains(&change.key))
            .cloned(),
    );
    let record = Record::new(plan, &before);
    journal.write(&record)?;

    let mut tables = KernelTables {
        netlink,
        undo: Some((journal, record)),
        index,
        plan: plan.clone(),
    };
    sysctl::apply(&changes, report)?;
    let mut problems = Vec::new();
    let mended = mend::mend(&mut tables, true, &mut problems)?;
    if let Some(problem) = problems.into_iter().next() {
        return Err(KernelError::TakeOver { problem });
    }
    for family in Family::BOTH {
        if !plan.families().any(|wanted| wanted == family) {
            rules::remove_of(&mut tables.netlink, family, report)?;
        }
        uplink::clear(&mut tables.netlink, plan, family, true)?;
    }
    if mended.is_empty() {
        report("taken over as it was");
    } else {
        report(&format!("taken over; changed: {mended}"));
    }
    Ok(tables)
}
