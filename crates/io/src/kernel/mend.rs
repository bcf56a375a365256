//! Puts back what others have taken away: compares what is there with what should be, and changes the difference.
//!
//! A rule goes behind its equals, so at each preference as much of what should be there as stands in its order stays, what
//! should follow is added behind, and what is too much is taken away after that: at no moment is there less than before. A `goto` whose target
//! goes is led to the next rule of that preference by the kernel, or waits for one: in the end it leads to the first
//! one there, which is the right one again.

use netlink_packet_route::rule::{RuleFlags, RuleMessage};

use super::netlink::Netlink;
use super::{Family, KernelError, KernelTables, Plan, interface_index, link, route, rules, uplink};

/// How much is not as it should be, or how much has been put back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mended {
    /// Rules to be added or taken away.
    pub rules: u32,
    /// Routes to be added, or to be taken away from the table of an uplink.
    pub routes: u32,
    /// The device's name, its VRF, or that it is up.
    pub device: u32,
    /// Kinds of these that could not be read or put back.
    pub failed: u32,
}

impl Mended {
    /// Whether everything is as it should be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for Mended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.rules, "routing rule"),
            (self.routes, "route"),
            (self.device, "setting of the device"),
        ];
        let words = counts.into_iter().filter(|(count, _)| *count > 0);
        let words = words.map(|(count, what)| match (count, what) {
            (1, what) => format!("1 {what}"),
            (count, "setting of the device") => format!("{count} settings of the device"),
            (count, what) => format!("{count} {what}s"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

/// Compares, and when `change` says so, puts back. What nobody may change from here, or what failed, goes to
/// `problems`, a line each.
pub(super) fn mend(
    tables: &mut KernelTables,
    change: bool,
    problems: &mut Vec<String>,
) -> Result<Mended, KernelError> {
    let mut mended = Mended::default();
    let KernelTables {
        netlink,
        index,
        plan,
        ..
    } = tables;
    let mut failed = Vec::new();
    let mut told = |done: Result<u32, KernelError>| {
        done.unwrap_or_else(|error| {
            failed.push(error.to_string());
            0
        })
    };
    match device(netlink, *index, plan, change, problems) {
        Err(error @ KernelError::DeviceGone { .. }) => return Err(error),
        done => mended.device = told(done),
    }
    for family in plan.families() {
        mended.routes += told(routes(netlink, *index, plan, family, change));
        // Tables of uplinks have their routes before they are looked up, and until then.
        mended.routes += told(uplink::fill(netlink, plan, family, change));
        mended.rules += told(listed(netlink, plan, family, change, problems));
        if !plan.uplinks.is_empty() {
            mended.routes += told(uplink::clear(netlink, plan, family, change));
        }
    }
    mended.failed = u32::try_from(failed.len()).unwrap_or(u32::MAX);
    problems.append(&mut failed);
    Ok(mended)
}

fn device(
    netlink: &mut Netlink,
    index: u32,
    plan: &Plan,
    change: bool,
    problems: &mut Vec<String>,
) -> Result<u32, KernelError> {
    let now = link::state(netlink, index)?.ok_or_else(|| KernelError::DeviceGone {
        device: plan.device.clone(),
    })?;
    let renamed = now.name != plan.device;
    if renamed && change {
        link::rename(netlink, index, &plan.device).map_err(|source| KernelError::Link {
            action: "give its name back to",
            source,
        })?;
    }
    let mut strayed = false;
    if let Some(vrf) = &plan.vrf {
        match interface_index(vrf) {
            None => problems.push(format!(
                "the VRF {vrf} is missing, so what FlexCP sends on is routed in none: make it anew (ip link add)"
            )),
            there => strayed = now.controller != there,
        }
        if strayed && change {
            link::enter_vrf(netlink, index, vrf)?;
        }
    }
    if !now.up && change {
        link::bring_up(netlink, index)?;
    }
    Ok(u32::from(renamed) + u32::from(strayed) + u32::from(!now.up))
}

fn routes(
    netlink: &mut Netlink,
    index: u32,
    plan: &Plan,
    family: Family,
    change: bool,
) -> Result<u32, KernelError> {
    if route::is_there(netlink, family, plan.table, index)? {
        return Ok(0);
    }
    if change {
        route::add_default(netlink, family, plan.table, index)?;
    }
    Ok(1)
}

/// The rules of one family.
fn listed(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
    change: bool,
    problems: &mut Vec<String>,
) -> Result<u32, KernelError> {
    let mut changes = 0;
    // Where equal rules stand twice, the kernel takes away the first, and it takes another turn.
    for _ in 0..TURNS {
        let mut there = rules::dump(netlink, family)?;
        let others: Vec<_> = there
            .iter()
            .filter(|rule| !rules::is_ours(rule))
            .cloned()
            .collect();
        let in_the_way = rules::arrange(plan, family, &others).err();
        let wanted =
            rules::arrange(plan, family, &usable(&others, rules::last(plan, family)))?.listed();
        // Of the others' that is `lookup local`, where it has to stand behind ours.
        there.retain(|rule| rules::is_ours(rule) || wanted.contains(rule));
        let difference = Difference::between(&wanted, &there);
        changes += difference.len();
        if difference.is_empty() || !change {
            problems.extend(in_the_way.map(|error| error.to_string()));
            return Ok(changes);
        }
        difference.apply(netlink)?;
    }
    Ok(changes)
}

/// Of the rules that are not ours, those that ours, up to the preference `last`, can be arranged with: not what stands in the
/// way.
fn usable(others: &[RuleMessage], last: u32) -> Vec<RuleMessage> {
    let local = others
        .iter()
        .find(|rule| rules::preference(rule) == 0 && rules::is_plain_local(rule));
    let behind = others.iter().filter(|rule| rules::preference(rule) > last);
    local.into_iter().chain(behind).cloned().collect()
}

/// What to add, and then to take away, in this order.
#[derive(PartialEq, Debug)]
struct Difference {
    add: Vec<RuleMessage>,
    delete: Vec<RuleMessage>,
}

impl Difference {
    /// Of lists in the kernel's order.
    fn between(wanted: &[RuleMessage], there: &[RuleMessage]) -> Self {
        let mut difference = Self {
            add: Vec::new(),
            delete: Vec::new(),
        };
        let mut preferences: Vec<_> = wanted.iter().chain(there).map(rules::preference).collect();
        preferences.sort_unstable();
        preferences.dedup();
        // What is gone to first: targets stand at higher preferences.
        for preference in preferences.into_iter().rev() {
            let at = |list: &[RuleMessage]| -> Vec<RuleMessage> {
                let at = list
                    .iter()
                    .filter(|rule| rules::preference(rule) == preference);
                at.cloned().collect()
            };
            let (wanted, there) = (at(wanted), at(there));
            let mut stay = 0;
            let too_much = there.into_iter().filter(|rule| {
                let stays = wanted.get(stay).is_some_and(|next| is_like(next, rule));
                stay += usize::from(stays);
                !stays
            });
            let too_much: Vec<_> = too_much.collect();
            difference.delete.extend(too_much.into_iter().rev());
            difference.add.extend_from_slice(&wanted[stay..]);
        }
        // What diverts packets before the exceptions from that, and these before what they go to.
        difference.delete.sort_by_key(rules::rank);
        difference
    }

    fn is_empty(&self) -> bool {
        self.add.is_empty() && self.delete.is_empty()
    }

    fn len(&self) -> u32 {
        u32::try_from(self.add.len() + self.delete.len()).unwrap_or(u32::MAX)
    }

    fn apply(self, netlink: &mut Netlink) -> Result<(), KernelError> {
        for rule in self.add {
            let words = rules::describe(&rule);
            rules::add(netlink, rule).map_err(|source| KernelError::AddRule {
                rule: words,
                source,
            })?;
        }
        self.delete
            .into_iter()
            .try_for_each(|rule| rules::delete(netlink, rule))
    }
}

/// Whether both are the same rule: the kernel lists the parts of a rule in its own order, and adds flags of its own.
fn is_like(a: &RuleMessage, b: &RuleMessage) -> bool {
    let parts = |rule: &RuleMessage| {
        let words = rules::describe(rule);
        let mut words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        words.sort_unstable();
        let inverted = rule.header.flags.contains(RuleFlags::Invert);
        (words, rules::is_ours(rule), inverted)
    };
    parts(a) == parts(b)
}

/// More than one turn only repairs what nobody has met.
const TURNS: u32 = 3;

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteProtocol;
    use netlink_packet_route::rule::{RuleAction, RuleAttribute};

    use super::*;
    use crate::kernel::PROTOCOL;

    /// A rule of ours, known by the table that it looks up.
    fn rule(preference: u32, table: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![
            RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)),
            RuleAttribute::Table(table),
            RuleAttribute::Priority(preference),
        ];
        rule
    }

    fn rules(list: &[(u32, u32)]) -> Vec<RuleMessage> {
        list.iter()
            .map(|&(preference, table)| rule(preference, table))
            .collect()
    }

    fn difference(wanted: &[(u32, u32)], there: &[(u32, u32)]) -> [Vec<(u32, u32)>; 2] {
        let Difference { add, delete } = Difference::between(&rules(wanted), &rules(there));
        [add, delete].map(|list| {
            let pair = |rule: &RuleMessage| {
                let table = rule
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        RuleAttribute::Table(table) => Some(*table),
                        _ => None,
                    });
                (rules::preference(rule), table.unwrap())
            };
            list.iter().map(pair).collect()
        })
    }

    #[test]
    fn targets_come_before_what_goes_there() {
        let wanted = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)];
        assert_eq!(
            difference(&wanted, &[]),
            [vec![(2, 5), (1, 3), (1, 4), (0, 1), (0, 2)], vec![]]
        );
        assert_eq!(difference(&wanted, &wanted), [vec![], vec![]]);
    }

    #[test]
    fn what_is_behind_a_gap_is_made_anew_behind_the_old() {
        let wanted = [(1, 1), (1, 2), (1, 3), (1, 4)];
        assert_eq!(
            difference(&wanted, &[(1, 1), (1, 3), (1, 4)]),
            [vec![(1, 2), (1, 3), (1, 4)], vec![(1, 4), (1, 3)]]
        );
        // One too many is taken away, and the others are not touched.
        assert_eq!(
            difference(&wanted, &[(1, 9), (1, 1), (1, 2), (1, 8), (1, 3), (1, 4)]),
            [vec![], vec![(1, 8), (1, 9)]]
        );
        assert_eq!(
            difference(&wanted, &[(1, 1), (1, 2), (1, 3), (1, 4), (1, 9)]),
            [vec![], vec![(1, 9)]]
        );
        assert_eq!(
            difference(&wanted, &[(1, 1), (1, 2), (1, 3)]),
            [vec![(1, 4)], vec![]]
        );
    }

    #[test]
    fn same_rule_in_the_kernels_words() {
        let mut listed = rule(1, 7);
        listed.attributes.reverse();
        listed.header.flags = RuleFlags::IifDetached;
        listed
            .attributes
            .push(RuleAttribute::SuppressPrefixLen(u32::MAX));
        assert!(is_like(&rule(1, 7), &listed));
        assert!(!is_like(&rule(1, 8), &listed));
        listed.attributes.push(RuleAttribute::FwMark(1));
        assert!(!is_like(&rule(1, 7), &listed));
    }

    #[test]
    fn counts_in_words() {
        let mended = |rules, routes, device| Mended {
            rules,
            routes,
            device,
            failed: 0,
        };
        assert_eq!(
            mended(1, 0, 1).to_string(),
            "1 routing rule, 1 setting of the device"
        );
        assert_eq!(mended(9, 2, 0).to_string(), "9 routing rules, 2 routes");
    }
}
