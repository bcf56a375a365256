//! Who is who: addresses, initial numbers and keys of every peer, and the bytes of both streams.

use std::net::SocketAddr;

use flexcp_testkit::keys;

/// Flows of one connection: flow `10 * c + k` is subflow `k` of connection `c`.
pub(crate) const FLOWS_PER_CONNECTION: usize = 10;

/// Key with which the scenario's server answers when it speaks MPTCP itself.
pub(crate) const SERVER_KEY: u64 = 0x5e12_7e12_5e12_7e12;

/// One end of FlexCP's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leg {
    /// A client's flow, by its number.
    Client(usize),
    /// The server of a connection; in reverse mode, which back end.
    Server { connection: usize, backend: usize },
}

/// Everybody.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) reverse: bool,
    pub(crate) backends: Vec<SocketAddr>,
    pub(crate) connections: Vec<Connection>,
    /// The connection that the packet in hand belongs to.
    pub(crate) current: usize,
}

/// One connection's peers.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client_key: u64,
    /// Learned from the SYN/ACK.
    pub(crate) flexcp_key: Option<u64>,
    /// Of back end 0; each further one is 1,000,000 on.
    pub(crate) server_isn: u32,
    /// The back end whose SYN/ACK came through.
    pub(crate) backend: usize,
    /// What each back end sees as its client: learned from the SYN.
    pub(crate) sources: Vec<Option<SocketAddr>>,
    pub(crate) flows: Vec<Flow>,
}

/// One flow's.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) isn_client: u32,
    /// Learned from the SYN/ACK; for the initial flow it is the server's.
    pub(crate) isn_flexcp: u32,
    pub(crate) nonce_client: u32,
    pub(crate) nonce_flexcp: u32,
    pub(crate) id: u8,
    /// What the client has mapped, as (SSN, length, DSN), all relative.
    pub(crate) mapped: Vec<(u32, u32, u64)>,
    /// Window of the last line, for lines that name none.
    pub(crate) window: u16,
}

/// What relative numbers of a packet are relative to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bases {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) map: u64,
    pub(crate) data_ack: u64,
}

impl Net {
    pub(crate) fn connection(&self, leg: Leg) -> &Connection {
        &self.connections[connection_of(leg)]
    }

    pub(crate) fn connection_mut(&mut self, leg: Leg) -> &mut Connection {
        &mut self.connections[connection_of(leg)]
    }

    pub(crate) fn flow(&self, id: usize) -> &Flow {
        &self.connections[id / FLOWS_PER_CONNECTION].flows[id % FLOWS_PER_CONNECTION]
    }

    pub(crate) fn flow_mut(&mut self, id: usize) -> &mut Flow {
        &mut self.connections[id / FLOWS_PER_CONNECTION].flows[id % FLOWS_PER_CONNECTION]
    }

    /// Ends of a packet from this leg, as (source, destination).
    pub(crate) fn ends_from(&self, leg: Leg) -> (SocketAddr, SocketAddr) {
        match leg {
            Leg::Client(id) => (self.flow(id).client, self.flow(id).local),
            Leg::Server {
                connection,
                backend,
            } => {
                let source = self.connections[connection].sources[backend];
                let source = source.expect("a server that has not got a SYN");
                (self.backends[backend], source)
            }
        }
    }

    /// Whom a packet of FlexCP's goes to. A SYN, with this number, teaches what the server sees.
    pub(crate) fn leg_to(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        syn: Option<u32>,
    ) -> Option<Leg> {
        for connection in 0..self.connections.len() {
            for k in 0..FLOWS_PER_CONNECTION {
                let flow = &self.connections[connection].flows[k];
                if (flow.local, flow.client) == (from, to) {
                    return Some(Leg::Client(connection * FLOWS_PER_CONNECTION + k));
                }
            }
        }
        let backend = self.backends.iter().position(|&addr| addr == to)?;
        let known = |c: &Connection| c.sources[backend] == Some(from);
        let fits = |c: &Connection| {
            if self.reverse {
                syn.is_some() || known(c)
            } else {
                c.flows[0].client == from
            }
        };
        // In reverse mode a SYN belongs to the client that has its number, or has just been heard.
        let numbered = |c: &Connection| self.reverse && syn == Some(c.flows[0].isn_client);
        let numbered = self.connections.iter().position(numbered);
        let current = numbered.unwrap_or(self.current);
        let current = Some(current).filter(|&i| fits(&self.connections[i]));
        let connection = current.or_else(|| self.connections.iter().position(fits))?;
        self.connections[connection].sources[backend] = Some(from);
        Some(Leg::Server {
            connection,
            backend,
        })
    }

    /// Bases of a packet that this leg sends, or gets.
    pub(crate) fn bases(&self, leg: Leg, sends: bool) -> Bases {
        let connection = self.connection(leg);
        let client_idsn = keys::idsn(connection.client_key);
        let flexcp_idsn = connection.flexcp_key.map_or(0, keys::idsn);
        let (own, other) = match leg {
            Leg::Client(id) => (self.flow(id).isn_client, self.flow(id).isn_flexcp),
            Leg::Server { backend, .. } => (
                connection.server_isn_of(backend),
                connection.flows[0].isn_client,
            ),
        };
        match (leg, sends) {
            (Leg::Client(_), true) => Bases {
                seq: own,
                ack: other,
                map: client_idsn,
                data_ack: flexcp_idsn,
            },
            (Leg::Client(_), false) => Bases {
                seq: other,
                ack: own,
                map: flexcp_idsn,
                data_ack: client_idsn,
            },
            (Leg::Server { .. }, true) => Bases {
                seq: own,
                ack: other,
                map: 0,
                data_ack: 0,
            },
            (Leg::Server { .. }, false) => Bases {
                seq: other,
                ack: own,
                map: 0,
                data_ack: 0,
            },
        }
    }

    /// How the leg is called.
    pub(crate) fn name(&self, leg: Leg) -> String {
        match leg {
            Leg::Client(id) => format!("client{id}"),
            Leg::Server {
                connection,
                backend,
            } => {
                let number = if self.reverse {
                    backend.to_string()
                } else {
                    String::new()
                };
                let suffix = if connection > 0 {
                    format!("#{connection}")
                } else {
                    String::new()
                };
                format!("server{number}{suffix}")
            }
        }
    }
}

impl Connection {
    pub(crate) const fn server_isn_of(&self, backend: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a handful of back ends")]
        self.server_isn.wrapping_add(1_000_000 * backend as u32)
    }
}

impl Flow {
    /// The data at a relative SSN: what the client mapped there last, else as on an initial subflow.
    pub(crate) fn stream_offset(&self, ssn: u32) -> u32 {
        let covering = self
            .mapped
            .iter()
            .rev()
            .find(|(start, len, _)| ssn.wrapping_sub(*start) < *len);
        covering.map_or(ssn, |(start, _, dsn)| {
            low(dsn.wrapping_add(u64::from(ssn.wrapping_sub(*start))))
        })
    }
}

pub(crate) const fn connection_of(leg: Leg) -> usize {
    match leg {
        Leg::Client(id) => id / FLOWS_PER_CONNECTION,
        Leg::Server { connection, .. } => connection,
    }
}

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// `len` bytes of a stream from `offset` on; its first byte has offset 1.
pub(crate) fn stream(direction: Direction, offset: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| {
            let at = offset.wrapping_add(u32::try_from(i).expect("short payload"));
            let salt = if direction == Direction::Up {
                0
            } else {
                0x55_5555
            };
            (at.wrapping_add(salt).wrapping_mul(0x9e37_79b1) >> 24) as u8
        })
        .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(crate) const fn low(number: u64) -> u32 {
    number as u32
}
