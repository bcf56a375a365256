//! Tokens, initial data sequence numbers and HMACs (RFC 8684 sections 3.1, 3.2 and 3.4.1), written from the RFC, apart
//! from the translator's own.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Token of a key: the first 32 bits of its hash.
#[must_use]
pub fn token(key: u64) -> u32 {
    let [a, b, c, d, ..] = hash(key);
    u32::from_be_bytes([a, b, c, d])
}

/// Initial data sequence number of a key: the last 64 bits of its hash. The first byte of data has the next number.
#[must_use]
pub fn idsn(key: u64) -> u64 {
    last_eight(hash(key))
}

/// HMAC of one side of a join: the sender's key and nonce come first.
#[must_use]
pub fn join_hmac(keys: (u64, u64), nonces: (u32, u32)) -> [u8; 32] {
    hmac(keys, &[&nonces.0.to_be_bytes(), &nonces.1.to_be_bytes()])
}

/// What the SYN/ACK of a join carries of its sender's HMAC: the leftmost 64 bits.
#[must_use]
pub fn join_syn_ack(keys: (u64, u64), nonces: (u32, u32)) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = join_hmac(keys, nonces);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What the third packet of a join carries of its sender's HMAC: the leftmost 160 bits.
#[must_use]
pub fn join_ack(keys: (u64, u64), nonces: (u32, u32)) -> [u8; 20] {
    let mut leftmost = [0; 20];
    leftmost.copy_from_slice(&join_hmac(keys, nonces)[..20]);
    leftmost
}

/// What an `ADD_ADDR` carries of its sender's HMAC: the rightmost 64 bits. The sender's key comes first; a port that is
/// not there counts as 0.
#[must_use]
pub fn add_addr(keys: (u64, u64), id: u8, addr: IpAddr, port: Option<u16>) -> u64 {
    let octets = match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let port = port.unwrap_or(0).to_be_bytes();
    last_eight(hmac(keys, &[&[id], &octets, &port]))
}

fn hash(key: u64) -> [u8; 32] {
    Sha256::digest(key.to_be_bytes()).into()
}

fn hmac(keys: (u64, u64), message: &[&[u8]]) -> [u8; 32] {
    let key = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("an HMAC takes a key of any length");
    message.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn last_eight(hash: [u8; 32]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured between two Linux 6.18 hosts (`crates/wire/tests/data/linux-6.18.hex`).
    const KEY_A: u64 = 0x0503_34cf_e246_2c44;
    const KEY_B: u64 = 0x557c_fc6f_9e8c_e594;
    const NONCES: (u32, u32) = (0xb1b1_e86c, 0xb420_2970);

    #[test]
    fn token_and_idsn_are_those_of_linux() {
        assert_eq!(
            (token(KEY_A), idsn(KEY_A)),
            (0xe4af_e0bd, 0x12a1_c7db_c061_cdea)
        );
        assert_eq!(
            (token(KEY_B), idsn(KEY_B)),
            (0xbf8d_dc39, 0x8811_e886_b334_e30d)
        );
    }

    #[test]
    fn join_hmacs_are_those_of_linux() {
        let answer = join_syn_ack((KEY_B, KEY_A), (NONCES.1, NONCES.0));
        assert_eq!(answer, 0x7f58_f50c_d900_3e98);
        let proof = join_ack((KEY_A, KEY_B), NONCES);
        let expected = [
            0xfb, 0x09, 0xe6, 0x95, 0xb5, 0x61, 0x95, 0x5a, 0x7a, 0x76, 0x78, 0x30, 0xc3, 0xd4,
            0x4e, 0x9c, 0xcf, 0x05, 0x83, 0xf9,
        ];
        assert_eq!(proof, expected);
    }

    #[test]
    fn add_addr_hmac_is_cut_from_the_right_and_covers_id_address_and_port() {
        let (v4, v6) = ([10, 0, 0, 1].into(), IpAddr::from([7; 16]));
        let base = add_addr((KEY_B, KEY_A), 1, v4, None);
        // Worked out with Python's hmac and hashlib.
        assert_eq!(base, ADD_ADDR_V4);
        assert_eq!(add_addr((KEY_A, KEY_B), 2, v6, Some(8080)), ADD_ADDR_V6);
        assert_eq!(add_addr((KEY_B, KEY_A), 1, v4, Some(0)), base);
    }

    const ADD_ADDR_V4: u64 = 0x380e_2eef_1d45_3f19;
    const ADD_ADDR_V6: u64 = 0x5742_9e43_d0c5_16a4;
}
