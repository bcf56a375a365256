//! What the played worker answers.

use flexcp_translator::{
    AccessId, AccessTotals, BackendView, ErrandCounts, Mark, MarkReason, Order, Ordered, Refused,
    ServiceId, StableId, Target,
};

use super::{Named, Names, connection};

/// What comes of an order to the one connection, whose only subflow has the number 1.
pub(super) fn carried_out(id: StableId, order: &Order) -> Result<Ordered, Refused> {
    match order {
        _ if id != connection().id => Err(Refused::Unknown),
        Order::Move(Target::Subflow(1) | Target::Access(AccessId(1))) => Ok(Ordered::Already),
        Order::Move(_) => Err(Refused::NoSubflow),
        _ => Ok(Ordered::Done),
    }
}

/// What has come over the accesses `dsl` and `lte`, and over none.
pub(super) fn totals() -> Vec<AccessTotals> {
    let none = AccessTotals::default();
    let lte = AccessTotals {
        opened: 8,
        stripped: 2,
        plain: 3,
        bytes_down: 4,
        ..none
    };
    vec![none, lte, none]
}

/// The first of the two has been marked.
pub(super) fn backends() -> Vec<BackendView> {
    let view = |last, connections, last_mark| BackendView {
        service: ServiceId(1),
        addr: ([10, 0, 0, last], 443).into(),
        connections,
        mark: None,
        last_mark,
        errands: ErrandCounts::default(),
    };
    let mark = Mark {
        reason: MarkReason::Refused,
        since: flexcp_translator::Instant(1),
    };
    vec![view(11, 5, Some(mark)), view(12, 7, None)]
}

/// Services and accesses by their names.
pub(super) fn names() -> Names {
    let named = |id, name: &str| Named {
        id: ServiceId(id),
        name: name.into(),
        mode: "transparent",
    };
    Names {
        services: vec![named(7, "other"), named(0, "web")],
        accesses: vec!["dsl".into(), "lte".into()],
    }
}
