//! What the relay counts.

use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::Meaning;

macro_rules! tally {
    ($($(#[doc = $meaning:literal])* $field:ident),* $(,)?) => {
        /// Counts of all split connections. Others read them while they change.
        #[derive(Default, Debug)]
        pub(crate) struct Tally {
            $($(#[doc = $meaning])* pub(super) $field: AtomicU64,)*
        }

        impl Tally {
            /// The name of each, and the lines that say what it means.
            pub(crate) const MEANINGS: &'static [Meaning] =
                &[$((stringify!($field), &[$($meaning),*])),*];

            /// Name and value of each, in their order.
            pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field.load(Ordering::Relaxed))),*].into_iter()
            }
        }
    };
}

tally! {
    /// Clients that the kernel's sockets have accepted.
    accepted,
    /// Of those, the ones that have come to their end.
    ended,
    /// Clients that were reset at once, as there were as many connections as `connections` in `[limits]` allows.
    refused_room,
    /// Clients that were reset because no back end answered.
    refused_server,
    /// Clients that have named their server.
    preambles,
    /// Clients that were refused what they asked for, or the server that they named, or were reset as they said nothing of the kind;
    /// the log says why.
    refused_preamble,
    /// Times that a back end refused or did not answer, so that another was tried.
    server_skipped,
    /// Connections that were reset: one end has done so, an error was as good, or an operator or the end of FlexCP has. The other
    /// end is reset, too.
    reset,
    /// Bytes from clients that back ends' sockets have taken.
    bytes_up,
    /// Bytes from back ends that clients' sockets have taken.
    bytes_down,
}

impl Tally {
    /// Connections that there are.
    pub(crate) fn open(&self) -> u64 {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // This one first: none ends before it was accepted.
        let ended = of(&self.ended);
        of(&self.accepted).saturating_sub(ended)
    }
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
