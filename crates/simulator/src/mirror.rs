//! Runs in mirror: FlexCP is an aggregation box. The end with TCP stands in the LAN and opens, the end with MPTCP answers, and
//! FlexCP asks that one for MPTCP, over one uplink for each link.
//!
//! A mirrored run is that of the same seed with its parts exchanged. What is beside is drawn apart, so that the runs that are not
//! mirrored are what they were before there was any of this.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use flexcp_testkit::Random;
use flexcp_translator::{Access, Counters, Mode, PlainSyn, Prefix, Uplink};

use crate::client::Action;
use crate::errand::{ErrandPlan, Reply};
use crate::steering::{Stage, keep_busy};
use crate::swarm::{Plan, link_prefixes, v6};

/// How an end answers the box.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AnswerPlan {
    pub(crate) greeting: Greeting,
    /// It takes no joins at its address (flag C).
    pub(crate) closed: bool,
    /// Of a million joins, those that come to nothing while there are faults.
    pub(crate) odd_joins: u64,
    /// Until then.
    pub(crate) odd_until: u64,
    /// The client in the LAN asks for MPTCP by itself, and passes.
    pub(crate) passes: bool,
    /// Who resets a handshake does not keep it from listening.
    pub(crate) listens_on: bool,
    /// It is an aggregation server, which connects on.
    pub(crate) errand: Option<ErrandPlan>,
}

/// What it says to a SYN that asks for MPTCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// It speaks MPTCP.
    Mptcp,
    /// The same, and wants checksums (flag A).
    Checksums,
    /// It does not speak MPTCP.
    Plain,
    /// Something on the way lets no SYN through that asks for MPTCP.
    Lost,
    /// The same takes the option out of the answer.
    Stripped,
    /// Nobody listens.
    Refuses,
}

/// What comes of a join that the box asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinAnswer {
    /// It comes about.
    Granted,
    /// A RST with `MP_TCPRST`.
    Refused,
    /// Nothing.
    Silent,
    /// A SYN/ACK with another HMAC.
    WrongHmac,
    /// A SYN/ACK without `MP_JOIN`.
    Stripped,
}

impl AnswerPlan {
    pub(crate) fn draw(random: &mut Random, calm: u64) -> Self {
        use Greeting::{Checksums, Lost, Mptcp, Plain, Refuses, Stripped};
        let greeting = if random.one_in(4) {
            random.pick(&[Checksums, Lost, Plain, Refuses, Stripped])
        } else {
            Mptcp
        };
        Self {
            greeting,
            closed: random.one_in(8),
            odd_joins: random.pick(&[0, 0, 300_000, 1_000_000]),
            odd_until: calm,
            passes: false,
            listens_on: false,
            errand: None,
        }
    }

    /// It answers as one could wish.
    pub(crate) const fn grant(&mut self) {
        self.greeting = Greeting::Mptcp;
        self.odd_joins = 0;
        self.passes = false;
        if let Some(errand) = &mut self.errand {
            errand.reply = Reply::Grants;
        }
    }

    /// Whether it does.
    pub(crate) fn is_granted(&self) -> bool {
        let grants = self.errand.as_ref().is_none_or(ErrandPlan::grants);
        self.greeting == Greeting::Mptcp && self.odd_joins == 0 && !self.passes && grants
    }

    /// What comes of a join.
    pub(crate) fn join(&self, now: u64, random: &mut Random) -> JoinAnswer {
        use JoinAnswer::{Granted, Refused, Silent, Stripped, WrongHmac};
        if now < self.odd_until && random.chance(self.odd_joins) {
            random.pick(&[Refused, Silent, WrongHmac, Stripped])
        } else {
            Granted
        }
    }
}

impl Plan {
    /// The plan of a seed, mirrored.
    #[must_use]
    pub(crate) fn mirrored(seed: u64) -> Self {
        let plan = Self::mirrored_unsteered(seed);
        let stages = Stage::of(&plan);
        let mut plan = Self { stages, ..plan };
        keep_busy(&mut plan);
        plan.leave_joins_to_the_box();
        plan
    }

    /// The same without what steers its connections.
    #[must_use]
    pub(crate) fn mirrored_unsteered(seed: u64) -> Self {
        let mut plan = Self::unsteered(seed);
        let mut random = Random::for_purpose(seed, 18);
        let mut passing = Random::for_purpose(seed, 19);
        plan.reverse = false;
        plan.announces = false;
        for connection in &mut plan.connections {
            let mut answers = AnswerPlan::draw(&mut random, plan.calm);
            answers.passes = passing.one_in(12);
            if answers.passes && answers.greeting == Greeting::Lost {
                // It would have to do without some time, and not pass then.
                answers.greeting = Greeting::Stripped;
            }
            if !connection.mptcp.enabled {
                answers.greeting = Greeting::Plain;
            }
            if answers.closed {
                // What the only subflow has ACKed and the end has dropped can't come again: it would take another.
                connection.mptcp.drops = 0;
            }
            connection.answers = Some(answers);
        }
        plan.draw_errands();
        plan.draw_uplink_changes();
        plan.leave_joins_to_the_box();
        plan
    }

    fn leave_joins_to_the_box(&mut self) {
        for connection in &mut self.connections {
            let actions = &mut connection.mptcp.actions;
            actions.retain(|(_, action)| !matches!(action, Action::Join { .. }));
        }
    }

    /// Who opens the n-th connection, and with whom.
    pub(crate) fn caller_and_called(&self, n: usize) -> (SocketAddr, SocketAddr) {
        if self.is_mirrored() {
            (self.server_address(n), self.remote(n))
        } else {
            (self.client_address(n, 0), self.server_address(n))
        }
    }

    /// An access of the clients of some links as one of FlexCP's own uplinks there.
    pub(crate) fn access_by_uplinks(&self, access: Access) -> Access {
        let links = 0..self.links.len();
        let of_access = |link: &usize| access.clients.contains(&link_prefixes(*link)[0]);
        let addresses = links.filter(of_access);
        let both = |link| [Self::uplink(link, false), Self::uplink(link, true)];
        Access {
            addresses: addresses.flat_map(both).collect(),
            clients: vec![],
            ..access
        }
    }

    /// Whether FlexCP is a box.
    pub(crate) fn is_mirrored(&self) -> bool {
        let mut connections = self.connections.iter();
        connections.any(|connection| connection.answers.is_some())
    }

    /// FlexCP's end on the uplink of a link.
    pub(crate) fn uplink(link: usize, of_v6: bool) -> IpAddr {
        let net = link as u8 + 1;
        if of_v6 {
            v6(net, 77)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, net, 0, 77))
        }
    }

    /// The mode of the n-th connection's service.
    pub(crate) fn box_mode(&self, n: usize) -> Mode {
        let server = self.remote(n);
        let of_v6 = self.connections[n].v6;
        let uplink = |link| match self.has_lost(link) {
            true => Uplink::default(),
            false => Self::uplink(link, of_v6).into(),
        };
        Mode::Box {
            destinations: vec![Prefix {
                addr: server.ip(),
                len: if of_v6 { 128 } else { 32 },
            }],
            ports: vec![server.port()..=server.port()],
            except: self.excepted_servers(n),
            servers: self.aggregation_servers(n),
            join: vec![],
            uplinks: (0..self.links.len()).map(uplink).collect(),
            source_ports: 20_000..=29_999,
        }
    }

    /// The n-th end that answers.
    pub(crate) fn answering(&self, n: usize) -> SocketAddr {
        let host = n as u8 + 1;
        let ip = if self.connections[n].v6 {
            v6(BEHIND, host)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, BEHIND, 0, host))
        };
        SocketAddr::new(ip, 10_000 + n as u16 * 1000)
    }
}

/// SYNs that FlexCP lets pass for a cause that there is none for.
pub(crate) fn failures(plan: &Plan, counters: &Counters) -> Option<String> {
    let mut answers = plan.connections.iter().filter_map(|it| it.answers.as_ref());
    let passes = answers.any(|answers| answers.passes);
    let leaves = plan.connections.iter().any(|it| it.excepted);
    let asking = counters.causes.get(PlainSyn::Mptcp);
    let excepted = counters.causes.get(PlainSyn::Excepted);
    let others = counters.plain_syn - asking - excepted;
    let needless = (asking > 0 && !passes) || (excepted > 0 && !leaves);
    let wrong = plan.is_mirrored() && (others > 0 || needless);
    wrong.then(|| {
        format!("{asking} SYNs with MPTCP pass, {excepted} to servers that are left alone, and {others} others")
    })
}

/// Ends that answer a box have this where others have the number of their link: they are to be reached over all of them.
pub(crate) const BEHIND: u8 = 240;
