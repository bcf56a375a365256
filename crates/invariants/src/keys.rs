//! What keys give (RFC 8684 sections 3.1 and 3.2); written from the RFC, apart from the translator's own.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Token and initial data sequence number of a key.
pub(crate) fn derive(key: u64) -> (u32, u64) {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    let mut token = [0; 4];
    let mut idsn = [0; 8];
    token.copy_from_slice(&hash[..4]);
    idsn.copy_from_slice(&hash[24..]);
    (u32::from_be_bytes(token), u64::from_be_bytes(idsn))
}

/// HMAC of the third packet of a join, by the keys and nonces of its sender and its receiver.
pub(crate) fn join_ack(keys: (u64, u64), nonces: (u32, u32)) -> [u8; 20] {
    let key = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
    let mut leftmost = [0; 20];
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) {
        mac.update(&nonces.0.to_be_bytes());
        mac.update(&nonces.1.to_be_bytes());
        leftmost.copy_from_slice(&mac.finalize().into_bytes()[..20]);
    }
    leftmost
}
