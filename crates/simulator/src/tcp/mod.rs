//! TCP as its ends do it (RFC 9293), without numbers of the wire: positions are unwrapped, the first
//! byte of data stands at 0. The same parts make up a server's socket, a plain client's, and each
//! subflow of an MPTCP client.

mod receiver;
mod rtt;
mod sender;

pub(crate) use receiver::Receiver;
pub(crate) use rtt::Rtt;
pub(crate) use sender::{Chunk, Sender, Tuning};

/// The position of a number on the wire: the one nearest to `reference`.
#[must_use]
pub(crate) const fn unwrap(number: u32, isn: u32, reference: u64) -> i64 {
    let relative = number.wrapping_sub(isn).wrapping_sub(1);
    let distance = relative.wrapping_sub(reference as u32).cast_signed();
    reference.cast_signed() + distance as i64
}

/// The number on the wire of a position.
#[must_use]
pub(crate) const fn number(position: u64, isn: u32) -> u32 {
    isn.wrapping_add(1).wrapping_add(position as u32)
}
