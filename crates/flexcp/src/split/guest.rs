//! Split connections whose client names its server: what it says before its stream, and what it is answered, over the kernel's
//! sockets. Whom FlexCP lets in and where to is the translator's code ([`Admission`]).
//!
//! [`Admission`]: flexcp_translator::Admission

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flexcp_io::client_is_proved;
use flexcp_preamble::{Dialogue, Refusal, Turn, Wish};
use flexcp_translator::{Denial, PreambleRefused, ServiceId, Visitor, Wanted};
use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::carry;
use super::connections::Live;
use super::serve::Shared;
use super::servers;
use super::tally::count;
use crate::names;
use crate::worker::now;

/// A client has that long to show where it is and to say whom it wants, and a name to be resolved, as with a translated connection.
pub(super) const LATE: Duration = Duration::from_secs(10);
/// A server that a client has named has that long to answer.
const CALL: Duration = Duration::from_secs(20);
/// A client that was refused has that long to take the reason.
const LEAVING: Duration = Duration::from_secs(10);
/// Bytes that are taken of a client at once.
const PIECE: usize = 2048;
/// A client that has not shown where it is has one SYN sent for it: the kernel repeats one after a second.
pub(super) const ONE_SYN: Duration = Duration::from_millis(900);
/// From one look at whether a client has shown where it is to the next.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// Each pause is longer than the one before by a part of it: so much of the time that was waited is lost at most.
const LONGER: u32 = 32;

/// A client that is in, for as long as this lives.
pub(super) struct Visit {
    visitor: Visitor,
    shared: Rc<Shared>,
}

impl Visit {
    /// `None`: its client has too many connections.
    pub(super) fn begin(shared: &Rc<Shared>, service: ServiceId, live: &Live) -> Option<Self> {
        let known = shared.called.take_visit(live.ends_of_client());
        let visit = known.or_else(|| Self::enter(shared, service, live.client.ip()));
        if visit.is_none() {
            shared.deny(live, None, PreambleRefused::ClientLimit);
        }
        visit
    }

    /// The same of one that has not been accepted yet.
    pub(super) fn enter(shared: &Rc<Shared>, service: ServiceId, client: IpAddr) -> Option<Self> {
        let visitor = shared.admission.borrow_mut().enter(now(), service, client);
        Some(Self {
            visitor: visitor?,
            shared: Rc::clone(shared),
        })
    }

    /// Whether its client may be connected with a server.
    pub(super) fn may_be_connected(&self) -> bool {
        self.visitor.may_be_connected()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.shared.admission.borrow_mut().leave(&self.visitor);
    }
}

/// What has come of what a client has said.
pub(super) enum Heard {
    /// It is connected with its server, and has been told so; what it has said behind its preamble is the server's.
    Connected(TcpStream, SocketAddr, Vec<u8>),
    /// It has been told what it asked for, or that it gets nothing, and has gone.
    Told,
    /// It is to be reset.
    Reset,
}

/// One client's preamble.
pub(super) struct Guest<'a> {
    pub(super) visit: &'a Visit,
    pub(super) client: &'a TcpStream,
    pub(super) live: &'a Live,
    pub(super) service: ServiceId,
    pub(super) dialogue: Dialogue,
}

impl Guest<'_> {
    /// Hears the client out, and connects it.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn hear(mut self) -> io::Result<Heard> {
        let shared = &self.visit.shared;
        let Ok(said) = timeout(LATE, self.listen()).await else {
            shared.deny(self.live, None, PreambleRefused::Late);
            return Ok(Heard::Reset);
        };
        let (turn, rest) = said?;
        let wish = match turn {
            Turn::Connect(wish) => wish,
            Turn::Told => {
                shared.deny(self.live, None, PreambleRefused::Asked);
                return self.leave().await;
            }
            Turn::Close(fault) => {
                shared.deny(self.live, None, fault.into());
                return self.leave().await;
            }
            Turn::Reset(fault) => {
                shared.deny(self.live, None, fault.into());
                return Ok(Heard::Reset);
            }
            // One that has said nothing else is listened to.
            Turn::Listen => return Ok(Heard::Reset),
        };
        count(&shared.tally.preambles);
        let mut answer = Vec::new();
        match self.connect(&wish).await {
            Ok((server, addr)) => {
                let from = server.local_addr()?;
                self.dialogue.grant(from, &[], &mut answer);
                self.say(&answer).await?;
                Ok(Heard::Connected(server, addr, rest))
            }
            Err(why) => {
                self.dialogue.refuse(why, &mut answer);
                shared.deny(self.live, Some(wish), why.into());
                self.say(&answer).await?;
                self.leave().await
            }
        }
    }

    /// Until it is known what the client wants; beside it what it has said behind that.
    async fn listen(&mut self) -> io::Result<(Turn, Vec<u8>)> {
        loop {
            self.client.readable().await?;
            let mut answer = Vec::new();
            let said = match self.hear_some(&mut answer) {
                Ok(said) => said,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            self.say(&answer).await?;
            if said.0 != Turn::Listen {
                return Ok(said);
            }
        }
    }

    /// What has come of what is there. A client that is waited for takes no buffer.
    fn hear_some(&mut self, answer: &mut Vec<u8>) -> io::Result<(Turn, Vec<u8>)> {
        let mut bytes = [0; PIECE];
        let read = match self.client.try_read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        let admission = self.visit.shared.admission.borrow();
        let said = (&mut self.dialogue, &bytes[..read]);
        let (taken, turn) = admission.hear(now(), &self.visit.visitor, said, answer);
        Ok((turn, bytes[taken..read].to_vec()))
    }

    /// The server that the client wants, once it has answered.
    async fn connect(&self, wish: &Wish) -> Result<(TcpStream, SocketAddr), Refusal> {
        let wanted = {
            let admission = self.visit.shared.admission.borrow();
            admission.wanted(&self.visit.visitor, wish)
        };
        let addrs = match wanted {
            Wanted::Address(addr) => vec![addr],
            Wanted::Name(name, port) => {
                let lookups = &self.visit.shared.lookups;
                resolve(lookups, name, port).await?
            }
            Wanted::Refused(why) => return Err(why),
        };
        let mut why = Refusal::NotAllowed;
        for addr in addrs {
            if !self.allows(addr) {
                continue;
            }
            let called = &self.visit.shared.called;
            if let Some(server) = called.take(self.live.ends_of_client(), addr).await {
                return Ok((server, addr));
            }
            match self.call(addr).await {
                Ok(server) => return Ok((server, addr)),
                Err(error) => {
                    debug!("split: {}: server {addr}: {error}", self.live.client);
                    why = reason(&error, addr);
                }
            }
        }
        Err(why)
    }

    fn allows(&self, addr: SocketAddr) -> bool {
        let admission = self.visit.shared.admission.borrow();
        admission.allows(&self.visit.visitor, addr)
    }

    /// For a client that may be anybody one SYN is sent, and the others once it has shown where it is.
    async fn call(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        let source = self.visit.shared.source(self.service, addr);
        if !client_is_proved(self.client)? {
            match servers::connect((addr, source), ONE_SYN).await {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    proved(self.client).await?;
                }
                answer => return answer,
            }
        }
        servers::connect((addr, source), CALL).await
    }

    async fn say(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        proved(self.client).await?;
        carry::say(self.client, bytes).await
    }

    /// The client has been told everything: its connection is closed once it has taken that.
    async fn leave(&self) -> io::Result<Heard> {
        proved(self.client).await?;
        rustix::net::shutdown(self.client, Shutdown::Write)?;
        let gone = async {
            loop {
                self.client.readable().await?;
                match self.client.try_read(&mut [0; PIECE]) {
                    Ok(0) => return Ok(Heard::Told),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        };
        timeout(LEAVING, gone).await.unwrap_or(Ok(Heard::Reset))
    }
}

/// Until the client has shown where it is: before that, nothing goes there but the kernel's SYN/ACK.
///
/// # Errors
/// It never will, or has not in time.
pub(super) async fn proved(client: &TcpStream) -> io::Result<()> {
    let [mut pause, most] = LOOKS;
    let shown = async {
        while !client_is_proved(client)? {
            sleep(pause).await;
            pause = (pause + pause / LONGER).min(most);
        }
        Ok(())
    };
    let late = Err(io::ErrorKind::TimedOut.into());
    timeout(LATE, shown).await.unwrap_or(late)
}

/// Unknown is a name, too, that finds no room to wait: one that nobody waits for any more keeps its room until it has been resolved.
async fn resolve(
    lookups: &Arc<Semaphore>,
    name: Box<str>,
    port: u16,
) -> Result<Vec<SocketAddr>, Refusal> {
    let room = Arc::clone(lookups).try_acquire_owned();
    let room = room.map_err(|_| Refusal::NoName)?;
    let asked = tokio::task::spawn_blocking(move || {
        let addrs = names::addresses(&name);
        drop(room);
        addrs
    });
    let addrs = match timeout(LATE, asked).await {
        Ok(Ok(addrs)) if !addrs.is_empty() => addrs,
        _ => return Err(Refusal::NoName),
    };
    let server = |addr: IpAddr| SocketAddr::new(addr.to_canonical(), port);
    Ok(addrs.into_iter().map(server).collect())
}

/// What a client is told of a server that does not answer. The kernel does not say which ICMP error it has had, but for its family.
fn reason(error: &io::Error, addr: SocketAddr) -> Refusal {
    let is_v6 = addr.is_ipv6();
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Refusal::Reset,
        io::ErrorKind::TimedOut => Refusal::Expired,
        // RFC 792: a host; RFC 4443: an address.
        io::ErrorKind::HostUnreachable => Refusal::Unreachable {
            code: if is_v6 { 3 } else { 1 },
            is_v6,
        },
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => Refusal::NoRoom(0),
        _ => Refusal::NoNetwork,
    }
}

impl Shared {
    /// The client is refused.
    fn deny(&self, live: &Live, wish: Option<Wish>, cause: PreambleRefused) {
        count(&self.tally.refused_preamble);
        let denial = Denial {
            client: live.client,
            by: live.local,
            wish,
            cause,
        };
        self.denied.borrow_mut().tell_one(now(), &denial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_without_room_is_unknown_and_its_room_is_for_the_next() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let lookups = Arc::new(Semaphore::new(1));
        let ask = || runtime.block_on(resolve(&lookups, "192.0.2.1".into(), 80));
        let known = Ok(vec!["192.0.2.1:80".parse().unwrap()]);
        assert_eq!([ask(), ask()], [known.clone(), known.clone()]);
        let taken = Arc::clone(&lookups).try_acquire_owned().unwrap();
        assert_eq!(ask(), Err(Refusal::NoName));
        drop(taken);
        assert_eq!(ask(), known);
    }

    #[test]
    fn client_is_told_why_its_server_does_not_answer() {
        let v4 = "192.0.2.1:80".parse().unwrap();
        let v6 = "[2001:db8::1]:80".parse().unwrap();
        let of = |kind: io::ErrorKind, addr| reason(&kind.into(), addr);
        assert_eq!(of(io::ErrorKind::ConnectionRefused, v4), Refusal::Reset);
        assert_eq!(of(io::ErrorKind::TimedOut, v4), Refusal::Expired);
        let unreachable = |code, is_v6| Refusal::Unreachable { code, is_v6 };
        let gone = io::ErrorKind::HostUnreachable;
        assert_eq!(of(gone, v4), unreachable(1, false));
        assert_eq!(of(gone, v6), unreachable(3, true));
        assert_eq!(
            of(io::ErrorKind::NetworkUnreachable, v4),
            Refusal::NoNetwork
        );
        assert_eq!(of(io::ErrorKind::AddrNotAvailable, v4), Refusal::NoRoom(0));
    }
}
