//! The aggregation servers of boxes, as they are told.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Numbers;

/// The answer to `/v1/servers`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Servers {
    /// Of the API.
    pub version: u32,
    /// The configuration that they are of.
    pub generation: u64,
    /// The boxes, in the order of the configuration.
    pub boxes: Vec<BoxServers>,
    /// What answers the probes of boxes here; null: nothing does.
    pub responder: Option<ResponderStatus>,
}

/// A box and its aggregation servers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct BoxServers {
    /// The service's name.
    pub service: String,
    /// By what servers are ordered: "fixed", "throughput" or "latency".
    pub choose: String,
    /// Why the first one is in use, in a sentence; null where nothing is measured.
    pub reason: Option<String>,
    /// Bytes that probes have cost in the last hour, both ways; 0 where nothing is measured.
    pub probe_bytes: u64,
    /// What they may be in any hour.
    pub probe_bytes_limit: u64,
    /// Rounds of probes so far.
    pub probe_rounds: u64,
    /// How often another server was taken.
    pub switches: u64,
    /// The servers, in the order in which connections ask them.
    pub servers: Vec<ServerStatus>,
}

/// An aggregation server as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct ServerStatus {
    /// Its name, or its address.
    pub name: String,
    /// Its address and port.
    #[schema(value_type = String, examples(json!("203.0.113.5:7124")))]
    pub address: SocketAddr,
    /// What it speaks: "convert" or "socks5".
    pub mode: String,
    /// Its place in the order, from 1.
    pub place: u64,
    /// Whether any worker has found that it does not answer, so that connections pass it by.
    pub marked: bool,
    /// Connections that go by it, those that are over and linger among them.
    pub connections: u64,
    /// How often it has connected on as it was asked to.
    pub granted: u64,
    /// How often it would not, or could not.
    pub declined: u64,
    /// Whether it answers probes.
    pub probing: ServerProbing,
    /// Whether it was found to be reachable; null: that was not tried.
    pub reachable: Option<bool>,
    /// What it carries, in bits per second: the sum over the uplinks, or its own leg if that carries less; null: not known.
    pub throughput: Option<u64>,
    /// What its own leg to the content server carries, in bits per second; null: not known, and bounds nothing.
    pub own_rate: Option<u64>,
    /// The round trip on its own leg; null: not known.
    pub own_rtt_us: Option<u64>,
    /// What is known over each uplink, in the order of the configuration; none where nothing is measured.
    pub uplinks: Vec<ServerOverUplink>,
}

/// Whether an aggregation server answers probes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum ServerProbing {
    /// It does.
    Answers,
    /// It does not: it is known by handshakes and transfers alone.
    Silent,
    /// It has no `probe` or no key: it is known by handshakes and transfers alone.
    Keyless,
    /// It was not probed yet.
    Unknown,
    /// The order is fixed, and nothing is measured.
    Off,
}

/// What is known of a server over one uplink.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct ServerOverUplink {
    /// The uplink's interface.
    pub uplink: String,
    /// Whether the uplink is there, with an address of the server's family.
    pub usable: bool,
    /// Whether the server has answered over it of late; null: it was not tried.
    pub answers: Option<bool>,
    /// Round trip; null: not known.
    pub rtt_us: Option<u64>,
    /// Towards the box; null: not known.
    pub down: Option<ServerRate>,
    /// Towards the server; null: not known.
    pub up: Option<ServerRate>,
}

/// A rate, and what it was judged by.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct ServerRate {
    /// Bits per second, of IP packets.
    pub rate: u64,
    /// What it was judged by.
    pub basis: RateBasis,
    /// Since then, in microseconds.
    pub ago_us: u64,
}

/// What a rate was judged by.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum RateBasis {
    /// Trains of probes, behind what a token bucket let through at once.
    Train,
    /// Trains of probes in which no token bucket was seen: it may be less.
    AtMost,
    /// Real transfers that the path held up.
    Transfers,
    /// Real transfers that may have been slower than the path: it may be more.
    AtLeast,
}

/// What answers the probes of boxes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct ResponderStatus {
    /// Boxes' addresses that are known now.
    pub sessions: u64,
    /// Datagrams that came, whatever became of them.
    pub received: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Bytes of datagrams that were taken, with headers.
    pub bytes_in: u64,
    /// Bytes that were sent, with headers; never more than those.
    pub bytes_out: u64,
    /// Datagrams that were refused, whatever the reason.
    pub refused: u64,
    /// Of these, those of each reason: "malformed" (form, key or tag, or no question), "replay" (seen before), "cookie" (of another
    /// address, session or run, or an old one), "no_room" (for a session), "limit" (too much in this time), "unpaid" (the bytes that
    /// came do not pay for the answer).
    pub refusals: Numbers,
    /// Questions for the leg to a content server that is not allowed, which were answered so.
    pub legs_refused: u64,
}

#[cfg(test)]
impl Servers {
    /// Two servers of one box: one that answers probes, and one that connections pass by.
    pub(crate) fn sample() -> Self {
        let over = |uplink: &str, rate: u64, basis| ServerOverUplink {
            uplink: uplink.into(),
            usable: true,
            answers: Some(true),
            rtt_us: Some(12_300),
            down: Some(ServerRate {
                rate,
                basis,
                ago_us: 1,
            }),
            up: None,
        };
        let fra = ServerStatus {
            name: "fra".into(),
            address: "203.0.113.5:7124".parse().unwrap(),
            mode: "convert".into(),
            place: 1,
            marked: false,
            connections: 3,
            granted: 1204,
            declined: 2,
            probing: ServerProbing::Answers,
            reachable: Some(true),
            throughput: Some(47_300_000),
            own_rate: Some(100_000_000),
            own_rtt_us: Some(4100),
            uplinks: vec![
                over("dsl0", 30_000_000, RateBasis::Train),
                over("lte0", 17_300_000, RateBasis::AtMost),
            ],
        };
        let gone = ServerOverUplink {
            usable: false,
            answers: None,
            rtt_us: None,
            down: None,
            ..over("dsl0", 0, RateBasis::Train)
        };
        let ams = ServerStatus {
            name: "[2001:db8::1]:1080".into(),
            address: "[2001:db8::1]:1080".parse().unwrap(),
            mode: "socks5".into(),
            place: 2,
            marked: true,
            connections: 0,
            granted: 0,
            declined: 17,
            probing: ServerProbing::Keyless,
            reachable: Some(false),
            throughput: None,
            own_rate: None,
            own_rtt_us: None,
            uplinks: vec![gone],
        };
        Self {
            version: crate::control::VERSION,
            generation: 1,
            boxes: vec![BoxServers {
                service: "home".into(),
                choose: "throughput".into(),
                reason: Some("fra: 47.3 Mbit/s over dsl0+lte0".into()),
                probe_bytes: 1_500_000,
                probe_bytes_limit: 67_108_864,
                probe_rounds: 4,
                switches: 1,
                servers: vec![fra, ams],
            }],
            responder: None,
        }
    }
}
