//! What a path did to its packets.

/// Defines the struct and its list of names together.
macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counts of packets, except where it says bytes.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters!(
    /// Packets that went in.
    packets_in,
    /// Packets that came out.
    packets_out,
    /// IP bytes that went in.
    bytes_in,
    /// IP bytes that came out.
    bytes_out,
    /// Lost by `loss`.
    lost_loss,
    /// Lost by `burst`.
    lost_burst,
    /// Lost by `drop`.
    lost_drop,
    /// Lost by `rate`: the queue was full.
    lost_queue,
    /// Lost by `blackhole`.
    lost_blackhole,
    /// Lost by `flap`.
    lost_flap,
    /// Lost by `nat`: the mapping they came back to had been rebound.
    lost_nat,
    /// Held back by `reorder`.
    reordered,
    /// Copies made by `duplicate`.
    duplicated,
    /// Changed by `corrupt`.
    corrupted,
    /// Options overwritten by `strip`.
    stripped,
    /// Changed by `wscale`, `mss`, `shift-ts` or `double`.
    rewritten,
    /// Cut in two by `resegment`.
    split,
    /// Joined to the packet before them by `coalesce`.
    joined,
    /// Address or port changed by `nat`, either way.
    translated,
    /// Numbers shifted by `isn`, either way.
    shifted,
    /// Marked by `ce`.
    marked,
);

impl Counters {
    /// Packets lost, whatever the cause.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost_loss
            + self.lost_burst
            + self.lost_drop
            + self.lost_queue
            + self.lost_blackhole
            + self.lost_flap
            + self.lost_nat
    }
}
