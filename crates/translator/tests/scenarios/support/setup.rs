//! How scenarios start: what the peers support, and how far they have come.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{
    Access, Announce, Check, Config, Intake, Limits, Mode, Part, Prefix, Rule, Service, ServiceId,
    SteeringMode, Timeouts,
};

use super::net::{Connection, FLOWS_PER_CONNECTION, Flow, Net};
use super::{Outcome, Scenario};

/// What the peers of a scenario support.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) ts: bool,
    pub(crate) sack: bool,
    pub(crate) client_scale: Option<u8>,
    pub(crate) server_scale: Option<u8>,
    /// The first flow and the server are IPv6.
    pub(crate) v6: bool,
    /// Odd flows are of the other family.
    pub(crate) mixed: bool,
    pub(crate) backends: usize,
    /// Back ends of the other family.
    pub(crate) backends_v6: bool,
    pub(crate) end_to_end: bool,
    pub(crate) announce: Vec<Announce>,
    pub(crate) intake: Intake,
    pub(crate) accesses: Vec<Access>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) client_isn: u32,
    pub(crate) server_isn: u32,
    pub(crate) client_key: u64,
    pub(crate) seed: u64,
    pub(crate) ports: u16,
    pub(crate) connections: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            ts: false,
            sack: true,
            client_scale: Some(8),
            server_scale: Some(7),
            v6: false,
            mixed: false,
            backends: 0,
            backends_v6: false,
            end_to_end: false,
            announce: Vec::new(),
            intake: Intake::default(),
            accesses: Vec::new(),
            rules: Vec::new(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            client_isn: 0x1000_0000,
            server_isn: 0x2000_0000,
            client_key: 0x0503_34cf_e246_2c44,
            seed: 7,
            ports: 1000,
            connections: 1,
        }
    }
}

impl Setup {
    /// Everything but timestamps, which would stand in every line.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// With timestamps: the client's clock starts at 1000 (joined flows: at 900,000 times their number),
    /// the server's at 5000.
    pub(crate) const fn ts(mut self) -> Self {
        self.ts = true;
        self
    }

    pub(crate) const fn no_sack(mut self) -> Self {
        self.sack = false;
        self
    }

    pub(crate) const fn scales(mut self, client: Option<u8>, server: Option<u8>) -> Self {
        (self.client_scale, self.server_scale) = (client, server);
        self
    }

    pub(crate) const fn v6(mut self) -> Self {
        self.v6 = true;
        self
    }

    pub(crate) const fn mixed(mut self) -> Self {
        self.mixed = true;
        self
    }

    pub(crate) const fn backends(mut self, count: usize) -> Self {
        self.backends = count;
        self
    }

    /// A back end for each weight.
    pub(crate) fn weights(mut self, weights: &[u16]) -> Self {
        self.backends = weights.len();
        self.intake.parts = weights.iter().map(|&weight| Part::of(weight)).collect();
        self
    }

    /// Back ends are checked every two seconds, with one for the answer; three failures, or two answers, say something.
    pub(crate) const fn checked(mut self) -> Self {
        self.intake.check = Some(Check {
            every: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            fall: 3,
            rise: 2,
        });
        self
    }

    pub(crate) const fn backends_v6(mut self) -> Self {
        self.backends_v6 = true;
        self
    }

    pub(crate) const fn end_to_end(mut self) -> Self {
        self.end_to_end = true;
        self
    }

    /// Ports towards the back ends.
    pub(crate) const fn ports(mut self, count: u16) -> Self {
        self.ports = count;
        self
    }

    pub(crate) const fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    pub(crate) fn announce(mut self, addr: &str) -> Self {
        let announce = match addr.parse::<IpAddr>() {
            Ok(addr) => Announce { addr, port: None },
            Err(_) => {
                let addr: SocketAddr = addr.parse().expect("address and port");
                Announce {
                    addr: addr.ip(),
                    port: Some(addr.port()),
                }
            }
        };
        self.announce.push(announce);
        self
    }

    pub(crate) fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    pub(crate) fn timeouts(mut self, change: impl FnOnce(&mut Timeouts)) -> Self {
        change(&mut self.timeouts);
        self
    }

    /// Access n is that of flow n.
    pub(crate) fn accesses(mut self, count: u8) -> Self {
        let of = |flow: u8| Access {
            name: format!("access{flow}"),
            clients: vec![Prefix {
                addr: Ipv4Addr::new(10, 1, flow, 0).into(),
                len: 24,
            }],
            addresses: vec![],
            ways: vec![],
        };
        self.accesses = (0..count).map(of).collect();
        self
    }

    /// All connections are steered so.
    pub(crate) fn steered(mut self, mode: impl SteeringMode + 'static, times: [u64; 2]) -> Self {
        let [hold, fail_back] = times.map(Duration::from_millis);
        self.rules = vec![Rule {
            name: "all".into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode: Arc::new(mode),
            hold,
            fail_back,
            heeds_backup: true,
            carrier: None,
        }];
        self
    }

    /// Changes what the last of those says.
    pub(crate) fn change_rule(&mut self, change: impl FnOnce(&mut Rule)) {
        change(self.rules.last_mut().expect("a rule"));
    }

    /// Initial numbers of client and server.
    pub(crate) const fn isns(mut self, client: u32, server: u32) -> Self {
        (self.client_isn, self.server_isn) = (client, server);
        self
    }

    pub(crate) const fn keys(mut self, client: u64, seed: u64) -> Self {
        (self.client_key, self.seed) = (client, seed);
        self
    }

    /// Nothing has happened.
    pub(crate) fn start(self) -> Scenario {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&self.seed.to_be_bytes());
        Scenario::new(self.config(), seed, self.net())
    }

    /// What FlexCP does.
    pub(crate) fn config(&self) -> Config {
        Config {
            services: vec![self.service(0)],
            accesses: self.accesses.clone(),
            rules: self.rules.clone(),
            limits: self.limits,
            timeouts: self.timeouts,
            ..Config::default()
        }
    }

    /// What FlexCP does, as the service with this id.
    pub(crate) fn service(&self, id: u16) -> Service {
        Service {
            id: ServiceId(id),
            name: "test".into(),
            mode: self.mode(),
            announce: self.announce.clone(),
            intake: self.intake.clone(),
        }
    }

    /// The client's SYN has gone to the server.
    pub(crate) fn syn_sent(self) -> Scenario {
        let line = self.syn();
        let mut scenario = self.start();
        expect_one(&scenario.client(0, &line), "server");
        scenario.settled()
    }

    /// The server's SYN/ACK has gone to the client.
    pub(crate) fn syn_received(self) -> Scenario {
        let line = self.syn_ack();
        let mut scenario = self.syn_sent();
        let outcome = scenario.server(&line);
        expect_one(&outcome, "client0 S.");
        scenario.settled()
    }

    /// The client's third packet has come.
    pub(crate) fn established(self) -> Scenario {
        let line = self.third();
        let mut scenario = self.syn_received();
        let outcome = scenario.client(0, &line);
        expect_one(&outcome, "server");
        assert_eq!(scenario.state(), "translating");
        scenario.settled()
    }

    /// Flow 1 has joined.
    pub(crate) fn two_subflows(self) -> Scenario {
        let setup = self.clone();
        let mut scenario = self.established();
        setup.join(&mut scenario, 1);
        scenario.settled()
    }

    /// The client's SYN.
    pub(crate) fn syn(&self) -> String {
        format!(
            "S 0:0(0) win 65535 <{},capable>",
            self.syn_options("1000 0", self.client_scale)
        )
    }

    /// The server's SYN/ACK.
    pub(crate) fn syn_ack(&self) -> String {
        let scale = self.server_scale.filter(|_| self.client_scale.is_some());
        format!(
            "S. 0:0(0) ack 1 win 65160 <{}>",
            self.syn_options("5000 1000", scale)
        )
    }

    /// The client's third packet.
    pub(crate) fn third(&self) -> String {
        let ts = if self.ts { "ts 1000 5000," } else { "" };
        format!(". 1:1(0) ack 1 win 512 <{ts}capable>")
    }

    /// Flow `id` joins.
    pub(crate) fn join(&self, scenario: &mut Scenario, id: usize) {
        expect_one(
            &scenario.client(id, &self.join_syn(id)),
            &format!("client{id} S."),
        );
        let outcome = scenario.client(id, &self.join_third(id));
        expect_one(&outcome, &format!("client{id} ."));
    }

    /// SYN of a join on flow `id`.
    pub(crate) fn join_syn(&self, id: usize) -> String {
        let ts = format!("{} 0", 900_000 * id);
        format!(
            "S 0:0(0) win 65535 <{},join>",
            self.syn_options(&ts, self.client_scale)
        )
    }

    /// Third packet of a join on flow `id`.
    pub(crate) fn join_third(&self, id: usize) -> String {
        let ts = if self.ts {
            format!("ts {} 5000,", 900_000 * id)
        } else {
            String::new()
        };
        format!(". 1:1(0) ack 1 win 512 <{ts}join>")
    }

    fn syn_options(&self, ts: &str, scale: Option<u8>) -> String {
        let mut options = vec!["mss 1460".to_string()];
        options.extend(self.sack.then(|| "sackok".into()));
        options.extend(self.ts.then(|| format!("ts {ts}")));
        options.extend(scale.map(|scale| format!("ws {scale}")));
        options.join(",")
    }

    fn mode(&self) -> Mode {
        if self.backends > 0 {
            return Mode::Reverse {
                listen: vec![listen(false), listen(true)],
                backends: (0..self.backends).map(|n| self.backend(n)).collect(),
                source: vec![
                    IpAddr::from(Ipv4Addr::new(10, 8, 0, 100)),
                    IpAddr::from(Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, 100)),
                ],
                source_ports: 50_000..=49_999 + self.ports,
            };
        }
        Mode::Transparent {
            destinations: vec![
                Prefix {
                    addr: IpAddr::from(Ipv4Addr::new(10, 9, 0, 0)),
                    len: 24,
                },
                Prefix {
                    addr: IpAddr::from(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 0)),
                    len: 32,
                },
            ],
            ports: vec![80..=89],
            end_to_end: self.end_to_end,
        }
    }

    fn backend(&self, n: usize) -> SocketAddr {
        let last = u8::try_from(n + 1).expect("a few");
        if self.backends_v6 {
            (Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, last.into()), 8080).into()
        } else {
            (Ipv4Addr::new(10, 8, 0, last), 8080).into()
        }
    }

    fn net(&self) -> Net {
        let reverse = self.backends > 0;
        let backends = if reverse {
            (0..self.backends).map(|n| self.backend(n)).collect()
        } else {
            vec![listen(self.v6)]
        };
        let connections = (0..self.connections)
            .map(|c| self.connection(c, backends.len()))
            .collect();
        Net {
            reverse,
            backends,
            connections,
            current: 0,
        }
    }

    fn connection(&self, number: usize, backends: usize) -> Connection {
        let n = u32::try_from(number).expect("a few");
        let server_isn = self.server_isn.wrapping_add(n * 77_777);
        let flow = |k: usize| {
            let v6 = self.v6 != (self.mixed && k % 2 == 1);
            let (byte, port) = (u8::try_from(k).expect("a few"), 40_000 + n * 10);
            let port = u16::try_from(port).expect("a few") + u16::from(byte);
            let net = u8::try_from(number + 1).expect("a few");
            let client: IpAddr = if v6 {
                Ipv6Addr::new(0xfd00, 1, net.into(), byte.into(), 0, 0, 0, 2).into()
            } else {
                Ipv4Addr::new(10, net, byte, 2).into()
            };
            Flow {
                client: (client, port).into(),
                local: listen(v6),
                isn_client: self
                    .client_isn
                    .wrapping_add(u32::from(byte) * 0x0100_0000 + n * 999),
                isn_flexcp: if k == 0 { server_isn } else { 0 },
                nonce_client: 0xb1b1_e86c ^ u32::from(byte),
                nonce_flexcp: 0,
                id: byte,
                mapped: Vec::new(),
                window: 512,
            }
        };
        Connection {
            client_key: self.client_key.wrapping_add(n.into()),
            flexcp_key: None,
            server_isn,
            backend: 0,
            sources: vec![None; backends],
            flows: (0..FLOWS_PER_CONNECTION).map(flow).collect(),
        }
    }
}

impl Scenario {
    /// What has happened so far counts as given: neither counters nor the clock remember it.
    fn settled(mut self) -> Self {
        let _ = self.moved();
        self.asked = false;
        self
    }

    pub(crate) fn syn_sent() -> Self {
        Setup::new().syn_sent()
    }

    pub(crate) fn syn_received() -> Self {
        Setup::new().syn_received()
    }

    pub(crate) fn established() -> Self {
        Setup::new().established()
    }

    pub(crate) fn established_v6() -> Self {
        Setup::new().v6().established()
    }

    pub(crate) fn two_subflows() -> Self {
        Setup::new().two_subflows()
    }

    pub(crate) fn mixed() -> Self {
        Setup::new().mixed().two_subflows()
    }

    pub(crate) fn reverse(backends: usize) -> Self {
        Setup::new().backends(backends).established()
    }
}

/// Milliseconds.
pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn listen(v6: bool) -> SocketAddr {
    if v6 {
        (Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2), 80).into()
    } else {
        (Ipv4Addr::new(10, 9, 0, 2), 80).into()
    }
}

#[track_caller]
fn expect_one(outcome: &Outcome, start: &str) {
    let lines = outcome.lines();
    assert!(
        lines.len() == 1 && lines[0].starts_with(start),
        "{start}: {lines:?}"
    );
}
