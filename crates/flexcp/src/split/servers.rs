//! Which back end a split connection goes to: as the translator chooses, by weights, and past those that have just failed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexcp_translator::Turns;
use flexcp_wire::{Ends, PROXY_HEADER_MAX_LEN, ProxyHeader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

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
    /// When each failed last.
    failed: Vec<Option<Instant>>,
}

impl Servers {
    /// Those of `service`, with what `old` knows of them.
    pub(super) fn new(service: &Relayed, old: Option<&Self>) -> Self {
        let failed = service.backends.iter().map(|addr| {
            let at = old?.addrs.iter().position(|known| known == addr)?;
            old?.failed[at]
        });
        Self {
            failed: failed.collect(),
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
            failed,
            ..
        } = self;
        let fits = |at: usize| !tried.contains(&addrs[at]);
        let lives = |at: usize| {
            let recently = failed[at].is_some_and(|then| now - then < PASSED_BY);
            fits(at) && !recently
        };
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

    /// Whether a back end answers, as it has turned out.
    pub(super) fn note(&mut self, addr: SocketAddr, failed: Option<Instant>) {
        if let Some(at) = self.addrs.iter().position(|known| *known == addr) {
            self.failed[at] = failed;
        }
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
        let now = Instant::now();
        let play = |servers: &mut Servers, at| -> Vec<u8> {
            let one = |_| servers.next(at, &[]).map_or(0, |(addr, _)| last(addr));
            (0..4).map(one).collect()
        };
        assert_eq!(play(&mut servers, now), [1, 2, 1, 1]);
        servers.note(([10, 9, 0, 1], 80).into(), Some(now));
        assert_eq!(play(&mut servers, now), [2, 2, 2, 2]);
        // What is known stays with a change of others.
        let mut servers = Servers::new(&service(&[1, 1, 1]), Some(&servers));
        assert_eq!(play(&mut servers, now), [2, 3, 2, 3]);
        let later = now + PASSED_BY;
        assert!(play(&mut servers, later).contains(&1), "it is tried again");
    }

    #[test]
    fn those_that_failed_are_tried_when_all_have_and_none_twice() {
        let mut servers = Servers::new(&service(&[1, 1]), None);
        let now = Instant::now();
        let all: Vec<SocketAddr> = vec![([10, 9, 0, 1], 80).into(), ([10, 9, 0, 2], 80).into()];
        for addr in &all {
            servers.note(*addr, Some(now));
        }
        let (first, source) = servers.next(now, &[]).unwrap();
        assert_eq!(source, Some([10, 8, 0, 1].into()));
        let (second, _) = servers.next(now, &[first]).unwrap();
        assert_ne!(first, second);
        assert_eq!(servers.next(now, &all), None);
    }
}
