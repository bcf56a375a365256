//! Keys, tokens and HMACs as a client computes them (RFC 8684 sections 3.1, 3.2 and 3.4.1); written
//! from the RFC, apart from the translator's own.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Initial data sequence number of a key.
pub(crate) fn idsn(key: u64) -> u64 {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    let [.., a, b, c, d, e, f, g, h] = hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Token of a key.
pub(crate) fn token(key: u64) -> u32 {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    let [a, b, c, d, ..] = hash;
    u32::from_be_bytes([a, b, c, d])
}

/// HMAC of a client's third packet of a join.
pub(crate) fn join_ack(client: u64, proxy: u64, nonce_client: u32, nonce_proxy: u32) -> [u8; 20] {
    let message = [nonce_client.to_be_bytes(), nonce_proxy.to_be_bytes()].concat();
    let [mac @ .., _, _, _, _, _, _, _, _, _, _, _, _] = hmac(client, proxy, &message);
    mac
}

/// HMAC of an `ADD_ADDR`.
pub(crate) fn add_addr(sender: u64, receiver: u64, id: u8, addr: IpAddr, port: u16) -> u64 {
    let mut message = vec![id];
    match addr {
        IpAddr::V4(addr) => message.extend(addr.octets()),
        IpAddr::V6(addr) => message.extend(addr.octets()),
    }
    message.extend(port.to_be_bytes());
    let [.., a, b, c, d, e, f, g, h] = hmac(sender, receiver, &message);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn hmac(sender: u64, receiver: u64, message: &[u8]) -> [u8; 32] {
    let key = [sender.to_be_bytes(), receiver.to_be_bytes()].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("an HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}
