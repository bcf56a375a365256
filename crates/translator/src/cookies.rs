//! Cookies of Convert (RFC 8803 section 6.2.7): what shows that a client gets what is sent to its address.
//!
//! A cookie is a MAC over the client's address under a key that follows from a secret and the time, so nothing is kept of one. It is
//! good in the hour in which it was handed out and in the next. Workers that share the secret and the clock take each other's.

use core::net::IpAddr;

use flexcp_preamble::Cookie;

use crate::auth::{cookie_mac, same_hmac};
use crate::time::Instant;

/// Microseconds for which one key hands out cookies.
const PERIOD: u64 = 3_600_000_000;
/// Bytes of a cookie: its TLV needs no padding.
const LEN: usize = 16;

/// What cookies are made with.
#[derive(Clone)]
pub(crate) struct Cookies {
    secret: [u8; 32],
}

/// The secret never reaches a log.
impl core::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cookies").finish_non_exhaustive()
    }
}

impl Cookies {
    pub(crate) const fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// What is to be done with a client that brings this cookie, or none.
    pub(crate) fn judge(&self, now: Instant, client: IpAddr, told: Option<&[u8]>) -> Cookie {
        let period = now.0 / PERIOD;
        let Some(told) = told else {
            return Cookie::Missing(self.make(period, client).into());
        };
        // Both, in the same time.
        let present = same_hmac(&self.make(period, client), told);
        let before = same_hmac(&self.make(period.wrapping_sub(1), client), told);
        if present | before {
            Cookie::Right
        } else {
            Cookie::Wrong
        }
    }

    fn make(&self, period: u64, client: IpAddr) -> [u8; LEN] {
        let client = match client.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mac = cookie_mac(&self.secret, period, client.octets());
        let mut cookie = [0; LEN];
        cookie.copy_from_slice(&mac[..LEN]);
        cookie
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn handed_out(cookies: &Cookies, now: Instant, client: IpAddr) -> alloc::boxed::Box<[u8]> {
        match cookies.judge(now, client, None) {
            Cookie::Missing(cookie) => cookie,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cookie_is_good_for_its_client_for_an_hour_and_not_for_two() {
        let cookies = Cookies::new([1; 32]);
        let client = IpAddr::from([192, 0, 2, 1]);
        let now = Instant(5 * PERIOD + PERIOD / 2);
        let cookie = handed_out(&cookies, now, client);
        assert_eq!(cookie.len(), LEN);
        let at = |after, who| cookies.judge(now + after, who, Some(&cookie));
        let hour = Duration::from_secs(3600);
        assert_eq!(at(Duration::ZERO, client), Cookie::Right);
        assert_eq!(at(hour, client), Cookie::Right);
        assert_eq!(at(hour * 2, client), Cookie::Wrong);
        let other = IpAddr::from([192, 0, 2, 2]);
        assert_eq!(at(Duration::ZERO, other), Cookie::Wrong);
    }

    #[test]
    fn cookies_that_nobody_has_handed_out_are_wrong() {
        let (cookies, others) = (Cookies::new([1; 32]), Cookies::new([2; 32]));
        let client = IpAddr::from([192, 0, 2, 1]);
        let now = Instant(5 * PERIOD);
        let cookie = handed_out(&cookies, now, client);
        for wrong in [&[][..], &cookie[..15], &handed_out(&others, now, client)] {
            assert_eq!(cookies.judge(now, client, Some(wrong)), Cookie::Wrong);
        }
    }
}
