//! Keys of ends with MPTCP.

use flexcp_testkit::{Random, keys};

/// A key; if `near_wrap`, one whose low 32 bits of the initial data sequence number are about to wrap.
pub(crate) fn find_key(random: &mut Random, near_wrap: bool) -> u64 {
    for _ in 0..4096 {
        let key = random.next();
        if !near_wrap || wraps_soon(key) {
            return key;
        }
    }
    random.next()
}

/// Whether it is such a key.
pub(crate) fn wraps_soon(key: u64) -> bool {
    keys::idsn(key) as u32 > 0xffc0_0000
}
