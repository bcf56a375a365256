//! What carries connections.

/// What carries a connection. It is decided at its SYN, and stays.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Carrier {
    /// FlexCP translates its packets one by one: there is one connection from end to end.
    #[default]
    Splitless,
    /// The kernel's MPTCP has the client's end and its TCP the server's; a relay carries bytes between the two.
    Split,
    /// One or the other, by what the access of its SYN has been like of late.
    Auto,
}
