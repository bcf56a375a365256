//! Keys, tokens and HMACs (RFC 8684 sections 3.1, 3.2 and 3.4.1), written anew for the models.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::random::Random;

/// Token and initial data sequence number of a key.
#[must_use]
pub(crate) fn derive(key: u64) -> (u32, u64) {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    let word = |at: usize| -> [u8; 4] { [hash[at], hash[at + 1], hash[at + 2], hash[at + 3]] };
    let token = u32::from_be_bytes(word(0));
    let high = u64::from(u32::from_be_bytes(word(24)));
    (token, high << 32 | u64::from(u32::from_be_bytes(word(28))))
}

/// HMAC of a join: the sender's key and nonce come first.
#[must_use]
pub(crate) fn join_hmac(
    sender: u64,
    receiver: u64,
    nonce_sent: u32,
    nonce_received: u32,
) -> [u8; 32] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&sender.to_be_bytes());
    key[8..].copy_from_slice(&receiver.to_be_bytes());
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else {
        return [0; 32];
    };
    mac.update(&nonce_sent.to_be_bytes());
    mac.update(&nonce_received.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// A key; if `near_wrap`, one whose low 32 bits of the initial data sequence number are about to wrap.
#[must_use]
pub(crate) fn find_key(random: &mut Random, near_wrap: bool) -> u64 {
    for _ in 0..4096 {
        let key = random.next();
        let (_, idsn) = derive(key);
        if !near_wrap || idsn as u32 > 0xffc0_0000 {
            return key;
        }
    }
    random.next()
}
