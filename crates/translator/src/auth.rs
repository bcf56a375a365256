//! Keys, tokens and HMACs (RFC 8684 sections 3.1 and 3.2), and the stream of unpredictable numbers
//! they come from.

use flexcp_wire::Dsn;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

type HmacSha256 = Hmac<Sha256>;

/// A key and what follows from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) key: u64,
    /// Most significant 32 bits of its SHA-256.
    pub(crate) token: u32,
    /// Least significant 64 bits of its SHA-256: the initial data sequence number.
    pub(crate) idsn: Dsn,
}

impl core::fmt::Debug for Key {
    /// The key itself never reaches a log.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Key {
    pub(crate) fn new(key: u64) -> Self {
        let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
        let [t0, t1, t2, t3, .., d0, d1, d2, d3, d4, d5, d6, d7] = hash;
        Self {
            key,
            token: u32::from_be_bytes([t0, t1, t2, t3]),
            idsn: Dsn(u64::from_be_bytes([d0, d1, d2, d3, d4, d5, d6, d7])),
        }
    }
}

/// HMAC of one side of an `MP_JOIN` handshake (RFC 8684 section 3.2): the sender's key and nonce come
/// first.
pub(crate) fn join_hmac(
    sender_key: u64,
    receiver_key: u64,
    sender_nonce: u32,
    receiver_nonce: u32,
) -> [u8; 32] {
    let mut mac = keyed(sender_key, receiver_key);
    mac.update(&sender_nonce.to_be_bytes());
    mac.update(&receiver_nonce.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// HMAC of an `ADD_ADDR` (RFC 8684 section 3.4.1), already cut to its rightmost 64 bits. A port that
/// the option does not carry counts as 0.
pub(crate) fn add_addr_hmac(
    sender_key: u64,
    receiver_key: u64,
    id: u8,
    addr: core::net::IpAddr,
    port: u16,
) -> u64 {
    let mut mac = keyed(sender_key, receiver_key);
    mac.update(&[id]);
    match addr {
        core::net::IpAddr::V4(addr) => mac.update(&addr.octets()),
        core::net::IpAddr::V6(addr) => mac.update(&addr.octets()),
    }
    mac.update(&port.to_be_bytes());
    let [.., a, b, c, d, e, f, g, h] = <[u8; 32]>::from(mac.finalize().into_bytes());
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What a cookie of Convert consists of: a MAC over the time and the client's address.
pub(crate) fn cookie_mac(secret: &[u8; 32], period: u64, client: [u8; 16]) -> [u8; 32] {
    let mut mac = HmacSha256::new_from_slice(secret).expect("an HMAC takes a key of any length");
    // Nothing else that is made with the secret begins so.
    mac.update(b"Convert cookie");
    mac.update(&period.to_be_bytes());
    mac.update(&client);
    mac.finalize().into_bytes().into()
}

/// Compares without telling by its time how much was equal.
pub(crate) fn same_hmac(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// The same for keys.
pub(crate) fn same_key(a: u64, b: u64) -> bool {
    a.ct_eq(&b).into()
}

fn keyed(sender_key: u64, receiver_key: u64) -> HmacSha256 {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&sender_key.to_be_bytes());
    key[8..].copy_from_slice(&receiver_key.to_be_bytes());
    HmacSha256::new_from_slice(&key).expect("an HMAC takes a key of any length")
}

/// Unpredictable numbers from one seed: HMAC-SHA-256 in counter mode. The seed is the caller's
/// randomness, so the same seed gives the same run.
#[derive(Clone)]
pub(crate) struct SecretStream {
    seed: [u8; 32],
    counter: u64,
    block: [u8; 32],
    used: usize,
}

impl core::fmt::Debug for SecretStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SecretStream").finish_non_exhaustive()
    }
}

impl SecretStream {
    pub(crate) const fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            counter: 0,
            block: [0; 32],
            used: 32,
        }
    }

    /// Another stream, as unpredictable, that takes nothing from this one later on.
    pub(crate) fn branch(&mut self) -> Self {
        let mut seed = [0; 32];
        for part in seed.chunks_exact_mut(8) {
            part.copy_from_slice(&self.next_u64().to_be_bytes());
        }
        Self::new(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        if self.used == self.block.len() {
            let mut mac =
                HmacSha256::new_from_slice(&self.seed).expect("an HMAC takes a key of any length");
            mac.update(&self.counter.to_be_bytes());
            self.block = mac.finalize().into_bytes().into();
            self.counter += 1;
            self.used = 0;
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.block[self.used..self.used + 8]);
        self.used += 8;
        u64::from_be_bytes(bytes)
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half is as good as the high one"
    )]
    pub(crate) fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured between two Linux 6.18 hosts.
    const KEY_A: u64 = 0x0503_34cf_e246_2c44;
    const KEY_B: u64 = 0x557c_fc6f_9e8c_e594;
    const NONCE_A: u32 = 0xb1b1_e86c;
    const NONCE_B: u32 = 0xb420_2970;

    #[test]
    fn token_and_idsn_are_those_of_linux() {
        let a = Key::new(KEY_A);
        let b = Key::new(KEY_B);
        assert_eq!((a.token, a.idsn), (0xe4af_e0bd, Dsn(0x12a1_c7db_c061_cdea)));
        assert_eq!((b.token, b.idsn), (0xbf8d_dc39, Dsn(0x8811_e886_b334_e30d)));
    }

    #[test]
    fn join_hmacs_are_those_of_linux() {
        let b = join_hmac(KEY_B, KEY_A, NONCE_B, NONCE_A);
        assert_eq!(b[..8], 0x7f58_f50c_d900_3e98_u64.to_be_bytes());
        let a = join_hmac(KEY_A, KEY_B, NONCE_A, NONCE_B);
        assert_eq!(
            a[..20],
            [
                0xfb, 0x09, 0xe6, 0x95, 0xb5, 0x61, 0x95, 0x5a, 0x7a, 0x76, 0x78, 0x30, 0xc3, 0xd4,
                0x4e, 0x9c, 0xcf, 0x05, 0x83, 0xf9
            ]
        );
    }

    #[test]
    fn add_addr_hmac_covers_id_address_and_port() {
        let addr = core::net::IpAddr::from([10, 0, 0, 1]);
        let base = add_addr_hmac(KEY_B, KEY_A, 1, addr, 0);
        assert_ne!(base, add_addr_hmac(KEY_A, KEY_B, 1, addr, 0));
        assert_ne!(base, add_addr_hmac(KEY_B, KEY_A, 2, addr, 0));
        assert_ne!(base, add_addr_hmac(KEY_B, KEY_A, 1, addr, 80));
        let other = core::net::IpAddr::from([10, 0, 0, 2]);
        assert_ne!(base, add_addr_hmac(KEY_B, KEY_A, 1, other, 0));
    }

    #[test]
    fn comparison_sees_one_bit() {
        assert!(same_hmac(&[1, 2, 3], &[1, 2, 3]));
        assert!(!same_hmac(&[1, 2, 3], &[1, 2, 2]));
        assert!(same_key(KEY_A, KEY_A));
        assert!(!same_key(KEY_A, KEY_A ^ 1));
    }

    #[test]
    fn one_seed_gives_one_stream() {
        let mut a = SecretStream::new([7; 32]);
        let mut b = SecretStream::new([7; 32]);
        let mut c = SecretStream::new([8; 32]);
        let first: [u64; 9] = core::array::from_fn(|_| a.next_u64());
        assert_eq!(first, core::array::from_fn(|_| b.next_u64()));
        assert_ne!(first, core::array::from_fn(|_| c.next_u64()));
        assert!((1..9).all(|i| first[i] != first[i - 1]));
    }
}
