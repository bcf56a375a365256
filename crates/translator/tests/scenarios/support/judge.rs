//! What must hold for every packet that FlexCP sends, whatever the test is about. A violation is a line
//! of its own among the outputs, so that no test can overlook it.

use std::collections::HashMap;

use flexcp_testkit::Options;
use flexcp_wire::{DataNumber, TcpFlags};

use super::net::{Direction, FLOWS_PER_CONNECTION, Leg, Net, connection_of, low, stream};
use super::show::Seen;

/// What the peers have agreed on and seen.
#[derive(Default, Debug)]
pub(crate) struct Judge {
    flows: HashMap<usize, FlowFacts>,
    connections: HashMap<usize, ConnectionFacts>,
}

#[derive(Default, Debug)]
struct FlowFacts {
    mss: Option<u16>,
    /// Flow label of the first packet to it.
    label: Option<u32>,
    /// Mappings that the client was told, as (SSN, DSN, length): relative SSN, absolute DSN.
    declared: Vec<(u32, u64, u32)>,
    /// Latest TSval of the client.
    sent: Option<u32>,
}

#[derive(Default, Debug)]
struct ConnectionFacts {
    server_mss: Option<u16>,
    /// Flow label of the first packet to the server.
    label: Option<u32>,
    client_scale: Option<u8>,
    server_scale: Option<u8>,
    /// Latest TSval of the server, and latest one that it was sent.
    server_sent: Option<u32>,
    server_heard: Option<u32>,
    /// Highest ACK and right window edge that the server was told.
    acked: Option<u32>,
    edge: Option<u32>,
}

fn later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn latest(known: &mut Option<u32>, value: u32) {
    if known.is_none_or(|known| later(value, known)) {
        *known = Some(value);
    }
}

impl Judge {
    /// A connection or flow starts anew.
    pub(crate) fn forget(&mut self, flow: usize, connection: Option<usize>) {
        self.flows.remove(&flow);
        if let Some(connection) = connection {
            self.connections.remove(&connection);
        }
    }

    /// Takes note of a packet that goes in.
    pub(crate) fn sent(&mut self, leg: Leg, flags: TcpFlags, options: &[u8]) {
        let syn = flags.contains(TcpFlags::SYN);
        let connection = self.connections.entry(connection_of(leg)).or_default();
        let view = Options::read(options);
        let clock = view.timestamps.map(|timestamps| timestamps.val);
        match leg {
            Leg::Client(id) => {
                let flow = self.flows.entry(id).or_default();
                flow.mss = view.mss.or(flow.mss);
                if syn && id.is_multiple_of(FLOWS_PER_CONNECTION) {
                    connection.client_scale = view.window_scale.or(connection.client_scale);
                }
                clock.inspect(|val| latest(&mut flow.sent, *val));
            }
            Leg::Server { .. } => {
                connection.server_mss = view.mss.or(connection.server_mss);
                connection.server_scale = view.window_scale.or(connection.server_scale);
                clock.inspect(|val| latest(&mut connection.server_sent, *val));
            }
        }
    }

    /// What is wrong with a packet of FlexCP's.
    pub(crate) fn violations(
        &mut self,
        net: &Net,
        seen: &Seen,
        segment_len: usize,
        translating: bool,
        filler: bool,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        self.check_label(seen, translating, &mut wrong);
        match seen.leg {
            Leg::Client(id) => {
                self.check_mapping(net, id, seen, filler, &mut wrong);
                let facts = self.flows.entry(id).or_default();
                if let (Some(ts), Some(sent)) = (seen.timestamps(), facts.sent)
                    && later(ts.ecr, sent)
                    && seen.tcp.flags.contains(TcpFlags::ACK)
                {
                    wrong.push(format!("! echo {} of what was never sent", ts.ecr));
                }
                let room = facts.mss.map_or(usize::MAX, usize::from);
                if translating && segment_len > 0 && segment_len + seen.options.len() > room {
                    wrong.push(format!(
                        "! segment of {segment_len} beyond the client's MSS"
                    ));
                }
            }
            Leg::Server { connection, .. } => {
                self.check_to_server(connection, seen, segment_len, translating, &mut wrong);
            }
        }
        if !filler {
            self.check_payload(net, seen, &mut wrong);
        }
        wrong
    }

    /// RFC 6437 section 2: all packets of a flow carry the same label, or they overtake each other where
    /// flows are told apart by it.
    fn check_label(&mut self, seen: &Seen, translating: bool, wrong: &mut Vec<String>) {
        let known = match seen.leg {
            Leg::Client(id) => &mut self.flows.entry(id).or_default().label,
            Leg::Server { .. } => {
                let connection = connection_of(seen.leg);
                &mut self.connections.entry(connection).or_default().label
            }
        };
        let label = seen.ip.flow_label;
        if *known.get_or_insert(label) != label && translating {
            wrong.push(format!("! flow label {label:x} in a flow of {known:x?}"));
        }
    }

    /// RFC 8684 section 3.3.1: a mapping never changes; section 3.3.2 and Linux: it holds the payload.
    fn check_mapping(
        &mut self,
        net: &Net,
        id: usize,
        seen: &Seen,
        filler: bool,
        wrong: &mut Vec<String>,
    ) {
        let facts = self.flows.entry(id).or_default();
        if seen.tcp.flags.contains(TcpFlags::SYN) {
            facts.declared.clear();
        }
        let Some(dss) = seen.dss() else { return };
        if dss.data_ack.is_none() {
            wrong.push("! dss without a data ACK".into());
        }
        let Some(mapping) = dss.mapping else { return };
        let len = u32::from(mapping.len).saturating_sub(u32::from(dss.data_fin));
        let DataNumber::Long(dsn) = mapping.dsn else {
            wrong.push("! short DSN".into());
            return;
        };
        let bases = net.bases(seen.leg, false);
        let at = seen.tcp.seq.wrapping_sub(bases.seq);
        let payload = u32::try_from(seen.payload.len()).expect("short");
        if len == 0 {
            if payload > 0 {
                wrong.push("! payload under an empty mapping".into());
            }
            return;
        }
        let offset = at.wrapping_sub(mapping.ssn);
        if offset >= len || payload > len - offset || payload == 0 {
            wrong.push("! payload not inside its mapping".into());
        }
        for &(ssn, other, length) in &facts.declared {
            let same = (ssn, other, length) == (mapping.ssn, dsn, len);
            let apart = ssn.wrapping_sub(mapping.ssn).cast_signed() >= len.cast_signed()
                || mapping.ssn.wrapping_sub(ssn).cast_signed() >= length.cast_signed();
            if !same && !apart {
                let from = other.wrapping_sub(bases.map);
                wrong.push(format!(
                    "! mapping changed, was {from}:{}@{ssn}",
                    from.wrapping_add(length.into())
                ));
            }
        }
        if !facts.declared.contains(&(mapping.ssn, dsn, len)) {
            facts.declared.push((mapping.ssn, dsn, len));
        }
        if filler {
            return;
        }
        let expected = stream(
            Direction::Down,
            low(dsn.wrapping_sub(bases.map)).wrapping_add(offset),
            seen.payload.len(),
        );
        if expected != seen.payload {
            wrong.push("! mapped data is not the server's".into());
        }
    }

    fn check_to_server(
        &mut self,
        connection: usize,
        seen: &Seen,
        segment_len: usize,
        translating: bool,
        wrong: &mut Vec<String>,
    ) {
        let facts = self.connections.entry(connection).or_default();
        let (tcp, syn) = (&seen.tcp, seen.tcp.flags.contains(TcpFlags::SYN));
        if let Some(ts) = seen.timestamps() {
            if facts.server_heard.is_some_and(|heard| later(heard, ts.val)) && !syn {
                wrong.push(format!("! TSval {} goes back", ts.val));
            }
            latest(&mut facts.server_heard, ts.val);
            if facts.server_sent.is_some_and(|sent| later(ts.ecr, sent)) {
                wrong.push(format!("! echo {} of what was never sent", ts.ecr));
            }
        }
        if !translating || tcp.flags.contains(TcpFlags::RST) {
            return;
        }
        // Below that a claim is not taken at its word.
        let room = facts
            .server_mss
            .map_or(usize::MAX, |mss| mss.max(48).into());
        if segment_len > 0 && segment_len + seen.options.len() > room {
            wrong.push(format!(
                "! segment of {segment_len} beyond the server's MSS"
            ));
        }
        if seen.dss().is_some() {
            wrong.push("! dss to the server".into());
        }
        if facts.acked.is_some_and(|acked| later(acked, tcp.ack)) {
            wrong.push("! ACK goes back".into());
        }
        latest(&mut facts.acked, tcp.ack);
        let scale = facts
            .server_scale
            .and(facts.client_scale)
            .unwrap_or(0)
            .min(14);
        let edge = tcp.ack.wrapping_add(u32::from(tcp.window) << scale);
        // What scaling rounds off may come off (RFC 7323 section 2.4).
        let rounding = (1 << scale) - 1;
        if facts
            .edge
            .is_some_and(|known| later(known, edge.wrapping_add(rounding)))
        {
            wrong.push("! window shrinks".into());
        }
        latest(&mut facts.edge, edge);
    }

    /// Every byte stands where its sender put it.
    fn check_payload(&self, net: &Net, seen: &Seen, wrong: &mut Vec<String>) {
        let syn = u32::from(seen.tcp.flags.contains(TcpFlags::SYN));
        let at = seen
            .tcp
            .seq
            .wrapping_add(syn)
            .wrapping_sub(net.bases(seen.leg, false).seq);
        let len = seen.payload.len();
        let expected = match seen.leg {
            Leg::Server { .. } => stream(Direction::Up, at, len),
            Leg::Client(_) if seen.dss().is_some_and(|dss| dss.mapping.is_some()) => return,
            Leg::Client(_) => stream(Direction::Down, at, len),
        };
        if expected != seen.payload {
            wrong.push("! payload is not what belongs there".into());
        }
    }
}
