//! Split connections among the others: which of them a client of the API means.

use flexcp_translator::{Filter, Order, Ordered, Refused, StableId};

use super::server::Asked;
use crate::split::View;

/// Those that fit. They have no subflows that anybody knows, and so no access, rule or state of a translated one.
pub(super) fn wanted(asked: &Asked, filter: &Filter) -> Vec<View> {
    if filter.access.is_some() || filter.rule.is_some() || !filter.states.is_empty() {
        return vec![];
    }
    let mut views = asked.split.list();
    views.retain(|view| fits(view, filter));
    views
}

fn fits(view: &View, filter: &Filter) -> bool {
    let of_server = |place: flexcp_translator::Place| {
        let backend = view.server.is_some_and(|server| place.contains(server));
        place.contains(view.local) || backend
    };
    filter
        .service
        .is_none_or(|service| view.service == Some(service))
        && filter
            .client
            .is_none_or(|place| place.contains(view.client))
        && filter.server.is_none_or(of_server)
}

/// The split connection with this id. No translated one has a token of 0, but for one in four billion.
pub(super) fn find(asked: &Asked, id: StableId) -> Option<View> {
    let number = id.number()?;
    let mut views = asked.split.list().into_iter();
    views.find(|view| view.id == number)
}

/// Has it do something. `None`: there is none with this id.
pub(super) fn carry_out(
    asked: &Asked,
    id: StableId,
    order: &Order,
) -> Option<Result<Ordered, Refused>> {
    let view = find(asked, id)?;
    Some(ordered(asked, &view, order))
}

/// Its ends can be told that it is over, and nothing else.
pub(super) fn ordered(asked: &Asked, view: &View, order: &Order) -> Result<Ordered, Refused> {
    match order {
        Order::Close if asked.split.close(view.id) => Ok(Ordered::Done),
        Order::Close => Err(Refused::Unknown),
        _ => Err(Refused::NotTranslated),
    }
}
