//! Switches while the plan changes: the difference between what was set for the old one and what the new one needs.

use super::{Change, FORWARD_V4, FORWARD_V6, LIBERAL, undos, wanted};
use crate::kernel::{KernelError, Plan};

/// From the changes that have been made to those that another plan needs.
#[derive(Debug)]
pub(crate) struct Steps {
    /// What has to be in the journal meanwhile: whichever of them have been made, undoing these leads back.
    pub(crate) noted: Vec<Change>,
    /// To be made.
    pub(crate) apply: Vec<Change>,
    /// To be undone after that.
    pub(crate) restore: Vec<Change>,
    /// What has been made in the end.
    pub(crate) after: Vec<Change>,
}

/// What another plan needs, once `done` has been done: the same as if that had not been.
pub(crate) fn between(
    done: &[Change],
    plan: &Plan,
    read: &dyn Fn(&str) -> Result<Vec<String>, KernelError>,
) -> Result<Steps, KernelError> {
    let undos = undos(done);
    let undo = |key: &str| undos.iter().find(|undo| undo.key == key);
    let original = |key: &str| {
        let now = read(key)?;
        Ok(match (undo(key), now.as_slice()) {
            (Some(undo), [now]) if undo.is_ours(now) => vec![undo.before.to_owned()],
            _ => now,
        })
    };
    let mut wanted = wanted(plan, &original)?;
    // An interface that has come since has got its switches with the one that leads them.
    let led = |change: &Change| leader(&change.key).is_some_and(|key| undo(key).is_some());
    wanted.retain(|change| undo(&change.key).is_some() || !led(change));
    let is_made = |change: &Change| {
        let undo = undo(&change.key);
        undo.is_some_and(|undo| undo.afters.last() == Some(&change.after.as_str()))
    };
    let mut apply = Vec::new();
    for change in wanted.iter().filter(|change| !is_made(change)) {
        let before = read(&change.key)?.pop().unwrap_or_default();
        apply.push(Change {
            before,
            ..change.clone()
        });
    }
    let stays = |change: &Change| {
        change.key == LIBERAL || wanted.iter().any(|wanted| wanted.key == change.key)
    };
    let restore = done.iter().filter(|change| !stays(change)).cloned();
    let liberal = done.iter().filter(|change| change.key == LIBERAL);
    Ok(Steps {
        noted: done.iter().chain(&apply).cloned().collect(),
        restore: restore.collect(),
        after: wanted.iter().chain(liberal).cloned().collect(),
        apply,
    })
}

/// The switch that sets this one, too, if there is one.
fn leader(key: &str) -> Option<&'static str> {
    match key.split('/').collect::<Vec<_>>()[..] {
        ["net", "ipv4", "conf", _, "forwarding" | "accept_redirects"] => Some(FORWARD_V4),
        ["net", "ipv6", "conf", name, "forwarding"] if name != "all" => Some(FORWARD_V6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{host, plan};
    use super::*;

    fn change(key: &str, before: &str, after: &str) -> Change {
        let [key, before, after] = [key, before, after].map(str::to_owned);
        Change { key, before, after }
    }

    /// The host after `done`, which has begun with all at 0.
    fn after(done: &[Change]) -> impl Fn(&str) -> Result<Vec<String>, KernelError> + use<> {
        let set = done
            .iter()
            .map(|change| (&change.key["net/".len()..], &*change.after));
        host(&set.collect::<Vec<_>>())
    }

    fn reserving(ports: std::ops::RangeInclusive<u16>) -> Plan {
        Plan {
            reserved_ports: Some(ports),
            ..plan(false, false)
        }
    }

    #[test]
    fn same_plan_needs_nothing() {
        let done = wanted(&plan(true, true), &host(&[])).unwrap();
        let steps = between(&done, &plan(true, true), &after(&done)).unwrap();
        assert_eq!((steps.apply, steps.restore), (vec![], vec![]));
        assert_eq!(steps.after, done);
    }

    #[test]
    fn switches_of_a_family_come_and_go() {
        let v4 = wanted(&plan(true, false), &host(&[])).unwrap();
        let both = wanted(&plan(true, true), &host(&[])).unwrap();
        let steps = between(&v4, &plan(true, true), &after(&v4)).unwrap();
        assert_eq!(steps.apply, both[v4.len()..]);
        assert_eq!((&steps.noted, &steps.after), (&both, &both));
        let steps = between(&both, &plan(true, false), &after(&both)).unwrap();
        assert_eq!(steps.restore, both[v4.len()..]);
        assert_eq!((steps.apply, steps.after), (vec![], v4));
    }

    #[test]
    fn value_that_changes_is_undone_to_what_was_there_first() {
        let key = "net/ipv4/ip_local_reserved_ports";
        let first = change(key, "1", "1,50-60");
        let read = host(&[("ipv4/ip_local_reserved_ports", "1,50-60")]);
        let done = [first.clone()];
        let steps = between(&done, &reserving(50..=70), &read).unwrap();
        let second = change(key, "1,50-60", "1,50-70");
        assert_eq!(steps.apply, std::slice::from_ref(&second));
        assert_eq!(steps.noted, [first.clone(), second]);
        assert_eq!(steps.after, [change(key, "1", "1,50-70")]);
        let steps = between(&done, &plan(false, false), &read).unwrap();
        assert_eq!((steps.restore, steps.after), (done.to_vec(), vec![]));
    }

    #[test]
    fn interface_that_came_with_forwarding_on_is_not_noted() {
        let v4 = plan(true, false);
        let mut done = wanted(&v4, &host(&[])).unwrap();
        done.retain(|change| !change.key.contains("eth0"));
        let mut set = done.clone();
        set.push(change("net/ipv4/conf/eth0/forwarding", "1", "1"));
        let steps = between(&done, &v4, &after(&set)).unwrap();
        assert_eq!((steps.apply, steps.after), (vec![], done));
    }

    #[test]
    fn conntrack_stays_relaxed() {
        let done = [change(LIBERAL, "0", "1")];
        let steps = between(&done, &plan(false, false), &after(&done)).unwrap();
        assert_eq!((steps.restore, steps.after), (vec![], done.to_vec()));
    }
}
