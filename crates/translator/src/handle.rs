//! What connections and subflows are called inside a translator, and outside.

use core::fmt;
use core::str::FromStr;

use crate::time::Instant;

/// A connection while it is in the table.
pub(crate) type ConnectionId = u32;

/// What names a service for as long as it, or a connection of its own, is there: its place in the configuration may
/// change. Small numbers, as there is a slot for each up to the largest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ServiceId(pub u16);

/// Index of a subflow in its connection; the initial one is 0.
pub(crate) type SubflowIndex = u8;

/// Set of subflows, by index: bit n is subflow n.
pub(crate) type SubflowSet = u8;

/// The initial subflow.
pub(crate) const INITIAL: SubflowIndex = 0;

/// What names a connection outside the translator: for as long as it lives, and no other afterwards. It is the proxy's
/// token (RFC 8684 section 3.1), which no other connection has meanwhile, and the time when the connection was opened, as
/// one that comes later may get the token again. Plain TCP has one, too. Written, and read, as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StableId {
    token: u32,
    /// In units of 1,024 microseconds, round and round in 50 days.
    opened: u32,
}

impl StableId {
    #[allow(clippy::cast_possible_truncation, reason = "it goes round")]
    pub(crate) const fn new(token: u32, opened: Instant) -> Self {
        Self {
            token,
            opened: (opened.0 >> 10) as u32,
        }
    }

    /// That of a connection which no translator has, such as a split one: by a number, and without a token.
    #[must_use]
    pub const fn of_number(number: u32) -> Self {
        Self {
            token: 0,
            opened: number,
        }
    }

    /// The number that it was made of; `None`: it has a token.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        match self.token {
            0 => Some(self.opened),
            _ => None,
        }
    }

    /// The token, which says which worker has the connection.
    #[must_use]
    pub const fn token(self) -> u32 {
        self.token
    }
}

impl fmt::Display for StableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:08x}", self.token, self.opened)
    }
}

/// A text is no connection's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnId;

impl fmt::Display for NotAnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the id of a connection, which has 16 hexadecimal digits")
    }
}

impl core::error::Error for NotAnId {}

impl FromStr for StableId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (token, opened) = text.split_at_checked(8).filter(|_| is_hex).ok_or(NotAnId)?;
        let read = |digits| u32::from_str_radix(digits, 16).map_err(|_| NotAnId);
        Ok(Self {
            token: read(token)?,
            opened: read(opened)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn id_of_a_number_has_no_token() {
        let id = StableId::of_number(0x2a);
        assert_eq!(id.to_string(), "000000000000002a");
        assert_eq!((id.token(), id.number()), (0, Some(0x2a)));
        assert_eq!(StableId::new(7, Instant(0)).number(), None);
    }

    #[test]
    fn id_is_read_as_it_is_written() {
        let id = StableId::new(0x0012_abcd, Instant(5 << 10));
        assert_eq!(id.to_string(), "0012abcd00000005");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("0012ABCD00000005".parse(), Ok(id));
        let short = &id.to_string()[1..];
        for text in [
            "",
            short,
            "0012abcd000000055",
            "+012abcd+0000005",
            "0012abcd0000000g",
        ] {
            assert_eq!(text.parse::<StableId>(), Err(NotAnId), "{text}");
        }
    }

    #[test]
    fn same_token_at_another_time_is_another_id() {
        let at = |ms| StableId::new(7, Instant::from_millis(ms));
        assert_ne!(at(1000), at(1002));
        assert_eq!(at(1000), at(1000));
    }
}
