//! Who may come in where clients name their server themselves.

use alloc::boxed::Box;
use core::net::IpAddr;

use flexcp_preamble::{Cookie, Gate};

use crate::cookies::Cookies;
use crate::time::Instant;

/// A user and its password (RFC 1929), each of 1 to 255 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: Box<[u8]>,
    /// Password.
    pub password: Box<[u8]>,
}

/// Passwords stay out of messages.
impl core::fmt::Debug for User {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("User").finish_non_exhaustive()
    }
}

/// The way in to a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entrance<'a> {
    pub(crate) users: &'a [User],
    /// What judges cookies, where they are asked for.
    pub(crate) cookies: Option<&'a Cookies>,
    pub(crate) client: IpAddr,
    pub(crate) now: Instant,
}

impl Gate for Entrance<'_> {
    fn asks_password(&self) -> bool {
        !self.users.is_empty()
    }

    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        // All of them, each in the same time: how far a guess is right nobody learns.
        let right = |known: &User| same(&known.name, user) & same(&known.password, password);
        self.users
            .iter()
            .fold(false, |known, user| known | right(user))
    }

    fn judge_cookie(&self, told: Option<&[u8]>) -> Cookie {
        let judge = |cookies: &Cookies| cookies.judge(self.now, self.client, told);
        self.cookies.map_or(Cookie::Right, judge)
    }
}

fn same(known: &[u8], told: &[u8]) -> bool {
    let differs = known.iter().zip(told).fold(0, |all, (a, b)| all | (a ^ b));
    differs == 0 && known.len() == told.len()
}
