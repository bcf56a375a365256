//! Cases for what not every kernel has: those that the kernel of this machine can run, and which it can't.

use anyhow::Result;
use flexcp_lab::Feature;
use libtest_mimic::{Arguments, Trial};

use crate::trial;

/// A case for kernels that have this.
pub(crate) struct Case {
    pub(crate) feature: Feature,
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Result<()>,
}

/// The cases of all `groups` that the kernel can run, as far as they are asked for. Of the others a line each: they are no
/// trials, so that nobody takes them for passed.
pub(crate) fn that_apply(arguments: &Arguments, groups: &[&[Case]]) -> (Vec<Trial>, Vec<String>) {
    let mut tried: Vec<(Feature, bool)> = vec![];
    let (mut trials, mut not_had) = (vec![], vec![]);
    for case in groups.iter().copied().flatten() {
        let name = format!("{}::{}", case.group, case.name);
        let filter = arguments.filter.as_deref();
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let known = tried.iter().find(|(feature, _)| *feature == case.feature);
        let there = known.map_or_else(|| case.feature.is_there(), |(_, there)| *there);
        if known.is_none() {
            tried.push((case.feature, there));
        }
        if there {
            trials.push(trial(case.group, case.name, case.run));
        } else {
            not_had.push(format!(
                "{name}: not run, this kernel has no {}",
                case.feature
            ));
        }
    }
    (trials, not_had)
}

/// Lists functions as cases of a group, each behind what it needs.
macro_rules! cases_for {
    ($group:literal: $($feature:ident: $name:ident),+ $(,)?) => {
        pub(crate) const CASES: &[crate::features::Case] = &[$(crate::features::Case {
            feature: flexcp_lab::Feature::$feature,
            group: $group,
            name: stringify!($name),
            run: $name,
        }),+];
    };
}
pub(crate) use cases_for;
