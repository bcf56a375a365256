//! Clients that name their server, by where they come from: how many connections each has, and how fast it opens more.
//!
//! A client is an IPv4 address, or the 64 bits of an IPv6 one that a network hands out (RFC 6177). What is known of one is kept
//! for as long as it has a connection or its pace counts, so there are never more of them than connections and what one second
//! brings.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use flexcp_preamble::Refusal;

use crate::config::Limits;
use crate::time::Instant;

/// Connections of one client that is beyond a limit, in which it is told so in its protocol's words; more are reset.
const TOLD: u32 = 16;
/// Clients that are looked at for what can be forgotten, at least.
const FIRST_SWEEP: usize = 1024;
/// Microseconds in which a client may open as many connections at once as its pace allows.
const BURST: u64 = 1_000_000;

/// How a connection counts for its client.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Standing {
    /// It does not: its server is not its client's choice.
    #[default]
    Uncounted,
    /// It may be connected.
    Guest,
    /// Its client is beyond a limit, and is told so.
    Beyond,
    /// It is not even told.
    TurnedAway,
}

impl Standing {
    /// Why a client that counts so does not get the server that it names.
    pub(crate) const fn refusal(self) -> Refusal {
        match self {
            Self::Beyond | Self::TurnedAway => Refusal::ClientLimit,
            Self::Uncounted | Self::Guest => Refusal::NotAllowed,
        }
    }
}

/// Clients by the front of their addresses.
#[derive(Default, Debug)]
pub(crate) struct Clients {
    known: BTreeMap<u128, Client>,
    /// Once so many are known, those that nothing depends on are forgotten.
    sweep: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Client {
    connections: u32,
    /// Those beside in which it is told that it is beyond a limit.
    told: u32,
    /// When its pace has caught up with what it has opened.
    even: Instant,
}

impl Clients {
    /// How another connection of the client's would count.
    pub(crate) fn judge(&self, now: Instant, client: IpAddr, limits: &Limits) -> Standing {
        let known = self.known.get(&front(client)).copied();
        let known = known.unwrap_or_default();
        let ahead = u64::try_from(known.even.since(now).as_micros()).unwrap_or(u64::MAX);
        let too_many = known.connections as usize >= limits.client_connections;
        if !too_many && ahead <= BURST.saturating_sub(pace(limits)) {
            Standing::Guest
        } else if known.told < TOLD {
            Standing::Beyond
        } else {
            Standing::TurnedAway
        }
    }

    /// A connection of the client's enters the table.
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        client: IpAddr,
        standing: Standing,
        limits: &Limits,
    ) {
        if self.known.len() >= self.sweep.max(FIRST_SWEEP) {
            self.known.retain(|_, client| client.matters(now));
            self.sweep = self.known.len() * 2;
        }
        let known = self.known.entry(front(client)).or_default();
        match standing {
            Standing::Guest => {
                known.connections += 1;
                known.even = Instant(known.even.max(now).0 + pace(limits));
            }
            Standing::Beyond => known.told += 1,
            Standing::Uncounted | Standing::TurnedAway => {}
        }
    }

    /// It has left.
    pub(crate) fn leave(&mut self, client: IpAddr, standing: Standing) {
        let Some(known) = self.known.get_mut(&front(client)) else {
            return;
        };
        match standing {
            Standing::Guest => known.connections = known.connections.saturating_sub(1),
            Standing::Beyond => known.told = known.told.saturating_sub(1),
            Standing::Uncounted | Standing::TurnedAway => {}
        }
    }
}

impl Client {
    fn matters(&self, now: Instant) -> bool {
        self.connections > 0 || self.told > 0 || self.even > now
    }
}

/// Microseconds from one connection to the next at a client's pace.
fn pace(limits: &Limits) -> u64 {
    let rate = u64::try_from(limits.client_rate).unwrap_or(u64::MAX);
    BURST / rate.clamp(1, BURST)
}

/// What a client is known by.
fn front(client: IpAddr) -> u128 {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits() & (u128::MAX << 64),
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const LIMITS: (usize, usize) = (3, 2);

    fn limits((client_connections, client_rate): (usize, usize)) -> Limits {
        Limits {
            client_connections,
            client_rate,
            ..Limits::default()
        }
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn open(clients: &mut Clients, now: Instant, client: &str) -> Standing {
        let limits = limits(LIMITS);
        let standing = clients.judge(now, addr(client), &limits);
        clients.enter(now, addr(client), standing, &limits);
        standing
    }

    #[test]
    fn client_has_so_many_connections_and_no_more() {
        let mut clients = Clients::default();
        let mut now = Instant::from_millis(5000);
        for _ in 0..3 {
            assert_eq!(open(&mut clients, now, "192.0.2.1"), Standing::Guest);
            now = now + Duration::from_secs(1);
        }
        for _ in 0..TOLD {
            assert_eq!(open(&mut clients, now, "192.0.2.1"), Standing::Beyond);
        }
        assert_eq!(open(&mut clients, now, "192.0.2.1"), Standing::TurnedAway);
        assert_eq!(open(&mut clients, now, "192.0.2.2"), Standing::Guest);
        clients.leave(addr("192.0.2.1"), Standing::Beyond);
        assert_eq!(open(&mut clients, now, "192.0.2.1"), Standing::Beyond);
        clients.leave(addr("192.0.2.1"), Standing::Guest);
        assert_eq!(open(&mut clients, now, "192.0.2.1"), Standing::Guest);
    }

    #[test]
    fn client_opens_no_more_in_a_second_than_its_pace() {
        let mut clients = Clients::default();
        let now = Instant::from_millis(5000);
        let standings = [0; 3].map(|_| open(&mut clients, now, "192.0.2.1"));
        assert_eq!(
            standings,
            [Standing::Guest, Standing::Guest, Standing::Beyond]
        );
        let later = now + Duration::from_millis(499);
        assert_eq!(open(&mut clients, later, "192.0.2.1"), Standing::Beyond);
        let later = now + Duration::from_millis(500);
        assert_eq!(open(&mut clients, later, "192.0.2.1"), Standing::Guest);
    }

    #[test]
    fn ipv6_client_is_its_network() {
        let mut clients = Clients::default();
        let now = Instant::from_millis(5000);
        for client in ["2001:db8::1", "2001:db8::2:1"] {
            assert_eq!(open(&mut clients, now, client), Standing::Guest);
        }
        assert_eq!(open(&mut clients, now, "2001:db8::3"), Standing::Beyond);
        assert_eq!(open(&mut clients, now, "2001:db8:0:1::1"), Standing::Guest);
    }

    #[test]
    fn clients_without_a_connection_are_forgotten() {
        let mut clients = Clients::default();
        for n in 0..100_000_u32 {
            let now = Instant::from_millis(u64::from(n) * 10);
            let client = alloc::format!("{}", core::net::Ipv4Addr::from_bits(n));
            let standing = open(&mut clients, now, &client);
            clients.leave(addr(&client), standing);
        }
        assert!(
            clients.known.len() <= FIRST_SWEEP,
            "{}",
            clients.known.len()
        );
    }
}
