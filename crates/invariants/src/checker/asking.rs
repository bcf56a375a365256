//! Ends with TCP that open, and what the proxy asks of the others for them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use flexcp_testkit::keys;
use flexcp_wire::{MpJoin, TcpFlags};

use super::{Checker, Ends};
use crate::Rule;
use crate::asking::{Asking, Offer};
use crate::connection::{Connection, Report};
use crate::errand::leaves_room;
use crate::packet::View;
use crate::preamble::Preamble;
use crate::subflow::Subflow;

/// Whom the proxy asks, and for whom.
#[derive(Default)]
pub(super) struct Asked {
    /// Its aggregation servers, and how they are spoken to.
    pub(super) errands: HashMap<SocketAddr, Preamble>,
    /// Those that a connection has been taken away from.
    pub(super) left: HashSet<SocketAddr>,
    /// Servers that it leaves alone.
    excepted: HashSet<SocketAddr>,
    /// When its uplinks have changed.
    pub(super) uplinks: Option<u64>,
    /// The last SYN on each flow of the ends with TCP, and when it came: in a capture other packets may come before what the proxy
    /// makes of it.
    offers: HashMap<Ends, (u64, Offer)>,
}

impl Asked {
    /// Forgets the SYNs that came at such times.
    pub(super) fn forget(&mut self, old: impl Fn(u64) -> bool) {
        self.offers.retain(|_, (seen, _)| !old(*seen));
    }
}

impl Checker {
    /// The proxy asks these aggregation servers to connect on, each as it is spoken to. Call it before it asks the first.
    pub fn expect_errands(&mut self, servers: impl IntoIterator<Item = (SocketAddr, Preamble)>) {
        self.asked.errands.extend(servers);
    }

    /// The proxy leaves connections with this server alone. Call it before the first of them.
    pub fn expect_to_pass(&mut self, server: SocketAddr) {
        self.asked.excepted.insert(server);
    }

    /// The SYN of an end with TCP: what comes of it the proxy will show.
    pub(super) fn note_offer(&mut self, time: u64, ends: Ends, packet: &View<'_>) {
        let mut offer = Offer::new(packet);
        offer.passes |= self.asked.excepted.contains(&ends.0);
        self.input.offer = Some((ends, offer));
        if !self.options.causal {
            self.asked.offers.insert(ends, (time, offer));
        }
    }

    /// A SYN of the proxy's towards the MPTCP side: of a connection, of a join, or one of them again; or the end's own, which
    /// passes. `true`: there is no more to be judged of it.
    pub(super) fn syn_to_client(&mut self, time: u64, ends: Ends, packet: &View<'_>) -> bool {
        let known = self.flows.get(&ends).is_some_and(|&(id, index)| {
            let connection = &self.connections[id];
            let subflow = &connection.subflows[index];
            // The proxy has left that peer, or has told its end, which has not heard of it, or has let go of a connection that lost
            // its uplink before the answer: it may begin anew from the same port.
            let asking = connection.asking.as_ref();
            let left = asking.is_some_and(|it| it.left || it.told);
            let forgotten = index == 0 && (left || subflow.lost && !subflow.replied);
            subflow.isn_proxy == Some(packet.tcp.seq) && !forgotten
        });
        if let Some(MpJoin::Syn { token, .. }) = packet.options.join {
            if !known {
                self.join_to_client(time, ends, token, packet);
            }
            return false;
        }
        if let Some(offer) = self.offer_that_passes(ends) {
            let crowded = self.options.bounds.is_none_or(|bounds| bounds.turns_away());
            if !offer.passes && !crowded {
                let text = "a SYN that could ask for MPTCP passes as it is".into();
                self.found.push((Rule::Plain, text));
            }
            return false;
        }
        if known {
            return false;
        }
        // A probe's number may by chance be one that leaves room for the message of an end.
        let asked = self.asked_for(time, ends, packet);
        let errand = self.asked.errands.contains_key(&ends.0);
        let asked = asked.filter(|_| !errand || !self.is_probe(ends, packet));
        let Some((from, offer, before)) = asked else {
            return self.judge_probe(ends, packet);
        };
        if self.asked.excepted.contains(&from.0) {
            let text = "a server is asked for MPTCP that is to be left alone".into();
            self.found.push((Rule::Plain, text));
        }
        let tried = before.map_or(vec![], |id| self.leave(time, id, ends.0));
        let mut connection = Connection::new(time, Subflow::asked(packet));
        connection.note_offer(offer, tried);
        // A SYN that was asked for before may be answered yet.
        let begun = |&id: &usize| {
            let asking = self.connections[id].asking.as_ref();
            asking.is_some_and(|asking| asking.offer().isn == offer.isn)
        };
        let earlier = before.or_else(|| self.servers.get(&from).copied().filter(begun));
        if let Some(earlier) = earlier {
            connection.server_clock = self.connections[earlier].server_clock.clone();
        }
        if let Some(&preamble) = self.asked.errands.get(&ends.0) {
            connection.begin_errand(time, (preamble, from.0), packet);
        }
        connection.course.told = self.options.told.then_some(0);
        connection.server = Some(from);
        let id = self.add(connection);
        self.flows.insert(ends, (id, 0));
        self.servers.insert(from, id);
        self.last = [None; 2];
        false
    }

    /// For whom the proxy asks with this SYN, and the connection that it has had for it so far: whose SYN has come in, whose peer has
    /// said something, or whose peer says nothing.
    fn asked_for(
        &self,
        time: u64,
        ends: Ends,
        packet: &View<'_>,
    ) -> Option<(Ends, Offer, Option<usize>)> {
        let errand = self.asked.errands.contains_key(&ends.0);
        let causal = self.options.causal;
        let fits = |offer: &Offer| match errand {
            true => leaves_room(offer.isn, packet.tcp.seq),
            false => offer.isn == packet.tcp.seq,
        };
        let asking = |id: usize| {
            let connection = &self.connections[id];
            let from = connection.server?;
            let offer = connection.asking.as_ref()?.offer();
            // Of an answer that comes in another order the proxy hears less than is on the wire.
            let current = self.servers.get(&from) == Some(&id) && connection.is_unanswered();
            (current && fits(&offer)).then_some((from, offer, Some(id)))
        };
        let seen = || self.offer_in_capture(ends, fits);
        if let Some((from, offer)) = self.input.offer.filter(|_| causal).or_else(seen) {
            let before = self.servers.get(&from).copied();
            // What has been told to the end with TCP is over, and begins anew.
            let same = |id: &usize| {
                let connection = &self.connections[*id];
                let asking = connection.asking.as_ref();
                let same = |asking: &Asking| asking.offer().isn == offer.isn && !asking.told;
                connection.has_errand() && asking.is_some_and(same)
            };
            return Some((from, offer, before.filter(same)));
        }
        if !causal {
            return None;
        }
        let heard = self.input.ends.and_then(|ends| self.flows.get(&ends));
        let heard = heard.and_then(|&(id, _)| asking(id));
        // When nothing is in hand the numbers of several may fit: it goes for one that offers the same, and has a cause to leave.
        let foreign = self.input.foreign;
        let likely = |&id: &usize| {
            let connection = &self.connections[id];
            let leaves = connection.may_be_left(time, foreign);
            (connection.offers_the_same(packet), leaves)
        };
        let all = (0..self.connections.len()).filter(|id| asking(*id).is_some());
        heard.or_else(|| all.max_by_key(likely).and_then(asking))
    }

    /// A connection goes by another peer from here on. Returns those that have been asked for it.
    fn leave(&mut self, time: u64, id: usize, peer: SocketAddr) -> Vec<SocketAddr> {
        let foreign = self.input.foreign;
        let connection = &mut self.connections[id];
        let before = connection.client;
        let mut report = Report {
            found: &mut self.found,
            oracle: None,
            exact_echo: false,
            time,
            bounds: self.options.bounds,
        };
        self.asked.left.insert(before);
        let silent = time.saturating_sub(connection.last_packet);
        if connection.subflows[0].lost
            || (self.options.bounds).is_some_and(|bounds| silent >= bounds.half_open)
        {
            // The proxy has let go of it, and begins anew.
            return vec![];
        }
        connection.judge_leaving(time, foreign, &mut report);
        let Some(asking) = &mut connection.asking else {
            return vec![];
        };
        asking.left = true;
        let mut tried = std::mem::take(&mut asking.tried);
        tried.push(before);
        let again = self.asked.errands.contains_key(&peer) && tried.contains(&peer);
        report.expect(!again, Rule::Preamble, || {
            format!("{peer} is asked a second time")
        });
        tried
    }

    /// The SYN of an end with TCP that goes out on this flow as it is.
    fn offer_that_passes(&self, ends: Ends) -> Option<Offer> {
        if !self.options.causal {
            return self.asked.offers.get(&ends).map(|(_, offer)| *offer);
        }
        let passes = |(from, _): &(Ends, Offer)| ends.1 == from.1;
        self.input.offer.filter(passes).map(|(_, offer)| offer)
    }

    /// In a capture, the latest SYN of an end with TCP that the proxy may ask this peer for: the numbers tell.
    fn offer_in_capture(&self, ends: Ends, fits: impl Fn(&Offer) -> bool) -> Option<(Ends, Offer)> {
        let errand = self.asked.errands.contains_key(&ends.0);
        let asks = |from: &Ends, offer: &Offer| {
            !offer.passes && fits(offer) && (errand || from.0 == ends.0)
        };
        let offers = self.asked.offers.iter();
        let offers = offers.filter(|(from, (_, offer))| asks(from, offer));
        let (from, (_, offer)) = offers.max_by_key(|(_, (seen, _))| *seen)?;
        Some((*from, *offer))
    }

    /// A SYN that asks for nobody: whether an aggregation server that was left answers again. `true`: it is one, or in a capture
    /// perhaps, where the host's own packets are, too, and those of ends that do without the proxy.
    fn judge_probe(&mut self, ends: Ends, packet: &View<'_>) -> bool {
        let probes = self.is_probe(ends, packet);
        if !probes {
            let text = "a SYN that no end has asked for".into();
            self.found.push((Rule::Translation, text));
        }
        probes
    }

    /// Whether a SYN has nothing that a client's would have, and goes to an aggregation server that was left; in a capture nobody tells
    /// which those are.
    fn is_probe(&self, ends: Ends, packet: &View<'_>) -> bool {
        let options = &packet.options;
        let bare = !options.mptcp && options.timestamps.is_none() && packet.payload_len == 0;
        bare && (!self.options.causal || self.asked.left.contains(&ends.0))
    }

    /// A client's SYN/ACK may bring the key that joins of the proxy's are known by.
    pub(super) fn learn_token(&mut self, id: usize, packet: &View<'_>) {
        let asks = self.options.asks && packet.has(TcpFlags::SYN);
        if let Some(key) = self.connections[id].client_key.filter(|_| asks) {
            self.tokens.insert(keys::token(key), id);
        }
    }

    fn join_to_client(&mut self, time: u64, ends: Ends, token: u32, packet: &View<'_>) {
        let Some(&id) = self.tokens.get(&token) else {
            let text = "a join with a token that no end has told".into();
            self.found.push((Rule::Join, text));
            return;
        };
        let of_uplink = |(known, found): (&Ends, &(usize, usize))| {
            (found.0 == id && known.1.ip() == ends.1.ip()).then_some(found.1)
        };
        let before: Vec<usize> = self.flows.iter().filter_map(of_uplink).collect();
        let connection = &mut self.connections[id];
        let mut report = Report {
            found: &mut self.found,
            oracle: None,
            exact_echo: false,
            time,
            bounds: self.options.bounds,
        };
        for index in before {
            let asked = connection.subflows[index].asked_at();
            // Those that rest are tried at once when an uplink has come or gone.
            let anew = self.asked.uplinks.is_some_and(|changed| asked <= changed);
            connection.judge_join_again(index, (asked, anew), &mut report);
        }
        connection.note_join();
        connection.subflows.push(Subflow::asked(packet));
        let index = connection.subflows.len() - 1;
        connection.note_answered(time, index);
        self.flows.insert(ends, (id, index));
        self.last = [None; 2];
    }
}
