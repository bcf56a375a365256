//! Which back end a split connection goes to: as the translator chooses, by weights, and past those that have just failed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexcp_translator::{BackendView, ErrandCounts, Instant, Mark, MarkReason, ServiceId, Turns};
use flexcp_wire::{Ends, PROXY_HEADER_MAX_LEN, ProxyHeader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::Relayed;

/// What a back end has to answer a SYN. Two of its repetitions fit.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// So long one that has failed is passed by, unless all have.
const PASSED_BY: Duration = Duration::from_secs(5);

/// The back ends of a service as the relay knows them.
#[derive(Debug)]
pub(super) struct Servers {
    addrs: Vec<SocketAddr>,
    sources: Vec<IpAddr>,
    turns: Turns,
    tells_clients: bool,
    /// How each has answered.
    health: Vec<Answers>,
}

/// How a back end has answered.
#[derive(Clone, Copy, Default, Debug)]
struct Answers {
    /// It has not, the last time.
    is_down: bool,
    /// When it did not, and why.
    last: Option<Mark>,
}

impl Servers {
    /// Those of `service`, with what `old` knows of them.
    pub(super) fn new(service: &Relayed, old: Option<&Self>) -> Self {
        let known = |addr| {
            let at = old?.addrs.iter().position(|known| known == addr)?;
            Some(old?.health[at])
        };
        let health = service.backends.iter().map(known);
        Self {
            health: health.map(Option::unwrap_or_default).collect(),
            addrs: service.backends.clone(),
            sources: service.sources.clone(),
            tells_clients: service.tells_clients,
            turns: Turns::new(service.backends.len(), &service.parts, 0),
        }
    }

    /// The one whose turn it is, beside those that were `tried`, and the address towards it.
    pub(super) fn next(
        &mut self,
        now: Instant,
        tried: &[SocketAddr],
    ) -> Option<(SocketAddr, Option<IpAddr>)> {
        let Self {
            addrs,
            turns,
            health,
            ..
        } = self;
        let fits = |at: usize| !tried.contains(&addrs[at]);
        let lives = |at: usize| fits(at) && !health[at].passes_by(now);
        let living = turns.find(lives, Some);
        let addr = addrs[living.or_else(|| turns.find(fits, Some))?];
        Some((addr, self.source(addr)))
    }

    /// The address towards this one.
    pub(super) fn source(&self, addr: SocketAddr) -> Option<IpAddr> {
        let mut sources = self.sources.iter();
        let source = sources.find(|source| source.is_ipv4() == addr.is_ipv4());
        source.copied()
    }

    /// What a back end is told of a client that has connected to `local`, if anything.
    pub(super) fn header(&self, client: SocketAddr, local: SocketAddr) -> Option<Vec<u8>> {
        let ends = Ends {
            from: client,
            to: local,
        };
        let mut header = vec![0; PROXY_HEADER_MAX_LEN];
        let len = ProxyHeader { ends }.emit(&mut header);
        header.truncate(len);
        self.tells_clients.then_some(header)
    }

    /// Whether a back end answers, as it has turned out at a moment. `true`: that was not known before.
    pub(super) fn note(
        &mut self,
        addr: SocketAddr,
        failed: Option<MarkReason>,
        now: Instant,
    ) -> bool {
        let at = self.addrs.iter().position(|known| *known == addr);
        let Some(health) = at.map(|at| &mut self.health[at]) else {
            return false;
        };
        let is_new = health.is_down != failed.is_some();
        health.is_down = failed.is_some();
        if let Some(reason) = failed {
            health.last = Some(Mark { reason, since: now });
        }
        is_new
    }

    /// Each of them, without its connections.
    pub(super) fn views(&self, service: ServiceId) -> impl Iterator<Item = BackendView> {
        let each = self.addrs.iter().zip(&self.health);
        each.map(move |(&addr, health)| BackendView {
            service,
            addr,
            connections: 0,
            mark: health.last.filter(|_| health.is_down),
            last_mark: health.last,
            errands: ErrandCounts::default(),
        })
    }
}

impl Answers {
    /// For a while after it has failed.
    fn passes_by(&self, now: Instant) -> bool {
        let recently = |mark: Mark| now.since(mark.since) < PASSED_BY;
        self.is_down && self.last.is_some_and(recently)
    }
}

/// Why a back end is not called.
pub(super) fn reason(error: &io::Error) -> MarkReason {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => MarkReason::Refused,
        io::ErrorKind::TimedOut => MarkReason::Silent,
        _ => MarkReason::Unreachable,
    }
}

/// A connection with `addr`, from `source` if one is named. It has `patience` to answer.
pub(super) async fn connect(
    (addr, source): (SocketAddr, Option<IpAddr>),
    patience: Duration,
) -> io::Result<TcpStream> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    let connected = timeout(patience, socket.connect(addr)).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use flexcp_translator::{Part, ServiceId};

    use super::*;

    fn service(weights: &[u16]) -> Relayed {
        let backends = (1..).zip(weights).map(|(n, _)| ([10, 9, 0, n], 80).into());
        Relayed {
            id: ServiceId(0),
            name: "web".into(),
            listen: vec![],
            announced: vec![],
            backends: backends.collect(),
            parts: weights.iter().map(|&weight| Part::of(weight)).collect(),
            sources: vec![[10, 8, 0, 1].into()],
            tells_clients: false,
        }
    }

    fn last(of: SocketAddr) -> u8 {
        match of.ip() {
            IpAddr::V4(addr) => addr.octets()[3],
            IpAddr::V6(_) => 0,
        }
    }

    #[test]
    fn back_ends_take_their_parts_and_those_that_failed_none() {
        let mut servers = Servers::new(&service(&[3, 1, 0]), None);
        let now = Instant::from_millis(1_000_000);
        let play = |servers: &mut Servers, at| -> Vec<u8> {
            let one = |_| servers.next(at, &[]).map_or(0, |(addr, _)| last(addr));
            (0..4).map(one).collect()
        };
        assert_eq!(play(&mut servers, now), [1, 2, 1, 1]);
        let first = ([10, 9, 0, 1], 80).into();
        let refused = Some(MarkReason::Refused);
        assert!(servers.note(first, refused, now));
        assert!(!servers.note(first, refused, now), "that is known");
        assert_eq!(play(&mut servers, now), [2, 2, 2, 2]);
        // What is known stays with a change of others.
        let mut servers = Servers::new(&service(&[1, 1, 1]), Some(&servers));
        assert_eq!(play(&mut servers, now), [2, 3, 2, 3]);
        let later = now + PASSED_BY;
        assert!(play(&mut servers, later).contains(&1), "it is tried again");
    }

    #[test]
    fn what_was_found_is_told_until_they_answer() {
        let mut servers = Servers::new(&service(&[1, 1]), None);
        let first: SocketAddr = ([10, 9, 0, 1], 80).into();
        let now = Instant::from_millis(1_000_000);
        servers.note(first, Some(MarkReason::Silent), now);
        let marks = |servers: &Servers| -> Vec<_> {
            let views = servers.views(ServiceId(4));
            views.map(|view| (view.mark, view.last_mark)).collect()
        };
        let mark = Some(Mark {
            reason: MarkReason::Silent,
            since: now,
        });
        assert_eq!(marks(&servers), [(mark, mark), (None, None)]);
        assert!(servers.note(first, None, now + PASSED_BY), "that is news");
        assert_eq!(marks(&servers), [(None, mark), (None, None)]);
        assert!(!servers.note(([10, 9, 0, 9], 80).into(), None, now));
    }

    #[test]
    fn those_that_failed_are_tried_when_all_have_and_none_twice() {
        let mut servers = Servers::new(&service(&[1, 1]), None);
        let now = Instant::from_millis(1_000_000);
        let all: Vec<SocketAddr> = vec![([10, 9, 0, 1], 80).into(), ([10, 9, 0, 2], 80).into()];
        for addr in &all {
            servers.note(*addr, Some(MarkReason::Silent), now);
        }
        let (first, source) = servers.next(now, &[]).unwrap();
        assert_eq!(source, Some([10, 8, 0, 1].into()));
        let (second, _) = servers.next(now, &[first]).unwrap();
        assert_ne!(first, second);
        assert_eq!(servers.next(now, &all), None);
    }
}
