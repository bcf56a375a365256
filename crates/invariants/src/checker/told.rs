//! What the proxy tells, or is told, beside its packets.

use std::net::{IpAddr, SocketAddr};

use super::Checker;
use crate::Point;

impl Checker {
    /// The proxy tells that new data goes down this subflow from here on: as its rule wants it, or because something speaks
    /// against the one before. Call it before what comes out with that, with the time in microseconds.
    pub fn observe_switch(&mut self, time: u64, subflow: (SocketAddr, SocketAddr), as_ruled: bool) {
        let Some((id, index)) = self.find(Point::ToClient, subflow) else {
            return;
        };
        let connection = &mut self.connections[id];
        if let Some(bounds) = self.options.bounds {
            connection.note_own_answer(time, bounds.silence);
        }
        connection.note_switch(index, as_ruled);
    }

    /// The proxy is told that uplinks have come or gone, with the time in microseconds; `lost`: its addresses that are gone. Call it
    /// before what comes of that.
    pub fn observe_uplinks(&mut self, time: u64, lost: &[IpAddr]) {
        self.asked.uplinks = Some(time);
        for (&(_, own), &(id, index)) in &self.flows {
            if lost.contains(&own.ip()) {
                self.connections[id].subflows[index].lost = true;
            }
        }
    }

    /// The proxy is told that it has to end.
    pub const fn observe_end(&mut self) {
        if let Some(bounds) = &mut self.options.bounds {
            bounds.ending = true;
        }
    }
}
