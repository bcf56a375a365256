//! The numbers of all workers, and their connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexcp_translator::{Causes, ConnectionView, Cursor, Filter};

use super::VERSION;
use super::server::Asked;
use super::view::{Connection, Connections, Numbers, Stats};
use crate::worker::{Page, Unaccounted};

/// What has been done so far.
pub(crate) fn stats(asked: &Asked) -> Result<Stats, String> {
    let [mut counters, mut drops, mut carrier, mut offload] = [const { Numbers(Vec::new()) }; 4];
    let [mut unaccounted, mut gauges] = [const { Numbers(Vec::new()) }; 2];
    let mut causes = BTreeMap::new();
    let mut memory_budget = 0;
    for worker in &asked.workers {
        let snapshot = worker.stats().map_err(|gone| gone.to_string())?;
        counters.add(snapshot.counters.iter());
        drops.add(snapshot.drops.iter());
        add_causes(&mut causes, &snapshot.counters.causes);
        carrier.add(snapshot.carrier.iter());
        unaccounted.add(Unaccounted::of(&snapshot).iter());
        gauges.add(snapshot.gauges.iter());
        memory_budget += snapshot.memory_budget;
        let beside = [
            ("kept", snapshot.kept),
            ("claimed_flows", snapshot.claimed_flows),
        ];
        gauges.add(beside.into_iter());
    }
    let count = |numbers: &Numbers, name| numbers.get(name).unwrap_or_default();
    let in_rings = count(&carrier, "handed_over").saturating_sub(count(&carrier, "taken_over"));
    gauges.add([("in_rings", in_rings)].into_iter());
    if let Some(reasons) = &asked.offload {
        offload.add(reasons.counts().into_iter());
        gauges.add(reasons.held().into_iter());
    }
    let connections = count(&counters, "connections_opened")
        .saturating_sub(count(&counters, "connections_closed"))
        + asked.split.tally.open();
    let mut split = Numbers(Vec::new());
    split.add(asked.split.tally.iter());
    Ok(Stats {
        version: VERSION,
        counters,
        drops,
        causes,
        carrier,
        offload,
        split,
        unaccounted,
        gauges,
        memory_budget,
        // While all is taken back the watcher is gone.
        offload_notes: asked
            .watch
            .status()
            .map_or_else(|_| Vec::new(), |status| status.offload),
        connections,
    })
}

/// Adds one worker's decisions, grouped.
fn add_causes(groups: &mut BTreeMap<String, Numbers>, causes: &Causes) {
    for (decision, cause, count) in causes.iter() {
        let group = groups.entry(decision.into());
        let group = group.or_insert_with(|| Numbers(Vec::new()));
        group.add([(cause, count)].into_iter());
    }
}

/// The connections that there are, all at once.
pub(crate) fn all_connections(asked: &Asked) -> Result<Connections, String> {
    let names = asked.watch.names().map_err(|gone| gone.to_string())?;
    let mut connections = Vec::new();
    each_connection(asked, |view| {
        connections.push(Connection::new(view, &names));
    })?;
    let views = asked.split.list();
    let views = views.iter().map(|view| Connection::of_split(view, &names));
    connections.extend(views);
    Ok(Connections {
        version: VERSION,
        connections,
        error: None,
    })
}

/// Goes through the connections of all workers, a page at a time.
pub(super) fn each_connection(
    asked: &Asked,
    mut each: impl FnMut(ConnectionView),
) -> Result<(), String> {
    let filter = Arc::new(Filter::default());
    let mut page = Page::default();
    for worker in &asked.workers {
        page.next = Some(Cursor::default());
        while let Some(from) = page.next {
            let answer = worker.page(from, &filter, page);
            page = answer.map_err(|gone| gone.to_string())?;
            page.views.drain(..).for_each(&mut each);
        }
    }
    Ok(())
}
