//! The hostile client: it proves its keys as any other would, then maps single bytes in reverse order, so
//! that no two mappings can be merged and none can ever be acknowledged.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use flexcp_testkit::{Packet, keys};
use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MptcpOption, TcpFlags,
    TcpOption,
};

use super::forge::{Dice, Forged};
use super::tap::{Muzzle, Watch};

/// A connection of the hostile client's.
pub(super) struct Bomb {
    from: SocketAddr,
    to: SocketAddr,
    /// Its first data byte's, and the ACK of the server's SYN.
    numbers: (u32, u32),
    /// Data sequence number of the first byte.
    first: u64,
    /// Offset of the next byte to map; counts down.
    at: u32,
}

impl Bomb {
    /// Connects; an error if FlexCP does not answer with its key.
    pub(super) fn connect(
        muzzle: &Muzzle,
        watch: &Watch,
        to: SocketAddr,
        dice: &mut Dice,
    ) -> Result<Self> {
        let from = dice.stranger();
        {
            let mut seen = watch.seen();
            seen.keep_to = Some(from);
            seen.kept.clear();
        }
        let isn = dice.word();
        let key = dice.next();
        let syn = Forged::new(from, to, TcpFlags::SYN)
            .numbers(isn, 0)
            .option(&TcpOption::Mss(1460))
            .option(&capable(CapableKeys::Syn));
        muzzle.send(&syn.bytes());
        let (ack, remote) = answer(watch)?;
        let keys = CapableKeys::Ack {
            sender: key,
            receiver: remote,
        };
        let numbers = (isn.wrapping_add(1), ack);
        let third = Forged::new(from, to, TcpFlags::ACK)
            .numbers(numbers.0, numbers.1)
            .option(&capable(keys));
        muzzle.send(&third.bytes());
        Ok(Self {
            from,
            to,
            numbers,
            first: keys::idsn(key).wrapping_add(1),
            at: SPREAD,
        })
    }

    /// The next one-byte mapping, with its byte, or `None` when there is no room for more.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.next_with(b"x")
    }

    /// The same without the byte: nobody but FlexCP has any work with it.
    pub(super) fn next_bare(&mut self) -> Option<Vec<u8>> {
        self.next_with(b"")
    }

    fn next_with(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        self.at = self.at.checked_sub(2).filter(|at| *at > 0)?;
        let dss = Dss {
            data_ack: None,
            mapping: Some(DssMapping {
                dsn: DataNumber::Long(self.first.wrapping_add(u64::from(self.at))),
                ssn: 1 + self.at,
                len: 1,
                checksum: None,
            }),
            data_fin: false,
        };
        let seq = self.numbers.0.wrapping_add(self.at);
        let packet = Forged::new(self.from, self.to, TcpFlags::ACK)
            .numbers(seq, self.numbers.1)
            .option(&TcpOption::Mptcp(MptcpOption::Dss(dss)))
            .payload(payload);
        Some(packet.bytes())
    }

    /// Whether FlexCP has reset it.
    pub(super) fn is_reset(&self, watch: &Watch) -> bool {
        let seen = watch.seen();
        seen.kept
            .iter()
            .filter_map(|packet| Packet::parse(packet))
            .any(|packet| packet.tcp.flags.contains(TcpFlags::RST))
    }
}

/// Waits for the SYN/ACK: what acknowledges it, and FlexCP's key.
fn answer(watch: &Watch) -> Result<(u32, u64)> {
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        let found = watch.seen().kept.iter().find_map(|packet| {
            let packet = Packet::parse(packet)?;
            let is_answer = packet.tcp.flags.contains(TcpFlags::SYN | TcpFlags::ACK);
            let key = packet.view().key().filter(|_| is_answer)?;
            Some((packet.tcp.seq.wrapping_add(1), key))
        });
        if let Some(found) = found {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(1));
    }
    None.context("FlexCP does not answer the hostile client's MP_CAPABLE")
}

fn capable(keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }))
}

/// Bytes of the stream over which the mappings are spread: inside the window that a server's SYN offers.
const SPREAD: u32 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_go_backwards_and_never_touch() {
        let mut bomb = Bomb {
            from: "198.18.0.1:1024".parse().unwrap(),
            to: "10.9.1.2:5000".parse().unwrap(),
            numbers: (100, 200),
            first: 7,
            at: SPREAD,
        };
        let mut last = u32::MAX;
        let mut count = 0;
        while let Some(packet) = bomb.next() {
            let seq = Packet::read(&packet).tcp.seq;
            assert!(seq.wrapping_add(2) <= last && seq > 100);
            last = seq;
            count += 1;
        }
        assert!(count > 4096 * 2, "{count} mappings");
    }
}
