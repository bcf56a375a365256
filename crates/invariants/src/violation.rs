//! What is held against the proxy.

use std::fmt;
use std::net::SocketAddr;

use crate::packet::Point;

/// A rule of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// I1: the same data sequence number stands for the same bytes.
    SameBytes,
    /// I2: a subflow number never changes its data number, and a mapping's bounds are repeated exactly.
    StableMapping,
    /// I3: the TCP sequence number is the data sequence number and a constant.
    Translation,
    /// I4: nothing is acknowledged to the server that no data ACK of the client's covers.
    AckToServer,
    /// I5: nothing is acknowledged to the client that the server has not acknowledged, and nothing on a
    /// subflow that the client has not sent there. On a subflow, not at data level, what overran the server's window or
    /// came three times in vain may be: the client keeps it until the data ACK (RFC 8684 section 3.3.6), and Linux
    /// sends nothing anew while it stands there (docs/linux.md).
    AckToClient,
    /// I6: the right edge of a window never moves left, and never beyond what the receiver offered.
    Window,
    /// I7: options fit, segments are not longer than the receiver said, the packet can be parsed.
    Size,
    /// I8: checksums are those of the packet; a wrong one stays wrong.
    Checksum,
    /// I9: few packets come out for one that went in, and never more payload, but for the server's data that goes over more
    /// than one path: once in the time that counts as silence.
    Amplification,
    /// I10: timestamps never go back, and echo what that peer sent.
    Timestamps,
    /// I11: SACK blocks lie behind the ACK, inside what was sent, and hold what the receiver has.
    Sack,
    /// I12: what is over gives its place back (judged by who runs the proxy).
    Freed,
    /// I13: the same input gives the same output (judged by who runs the proxy twice).
    Determinism,
    /// I14: a RST has a cause that can be seen on the wire.
    Reset,
    /// I15: a SYN that asks for MPTCP that can be translated is answered with it.
    Plain,
    /// I16: a join that there is room for is answered and taken.
    Join,
    /// I17: new data goes down where the data before it went, until that subflow gives a reason to leave it.
    Switch,
    /// I18: an address is announced until it is echoed, with pauses that double, and one at a time; one is withdrawn that is lost.
    Announcement,
    /// I19: of a client that names its server, nothing of what it says before its stream goes to that, and the server's stream
    /// comes to it behind an answer, which it gets once that server has answered. The same the other way round where the proxy has an
    /// aggregation server connect on: it is told whom the end with TCP has addressed, that one hears nothing before the answer and
    /// nothing of it, and another is asked for a cause.
    Preamble,
}

impl Rule {
    /// The rule's number in the project's list of wire invariants.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{} {self:?}", self.number())
    }
}

/// A rule that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When, in microseconds.
    pub time: u64,
    /// Which rule.
    pub rule: Rule,
    /// Where the packet was seen.
    pub point: Point,
    /// The connection, by its client's first address.
    pub client: Option<SocketAddr>,
    /// What is wrong.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.time / 1_000_000, self.time % 1_000_000);
        write!(
            f,
            "{seconds}.{micros:06} {} {:?}: {}",
            self.rule, self.point, self.text
        )?;
        self.client
            .map_or(Ok(()), |client| write!(f, " [client {client}]"))
    }
}
