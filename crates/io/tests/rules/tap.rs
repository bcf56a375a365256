//! The programs compiled for this machine between two devices, as `tests/netns/tap.rs` has them in the kernel.

use flexcp_io::LinkHeader;
use flexcp_native::{self as native, ANYWHERE, Programs, Way};
use flexcp_translator::FastPath;
use flexcp_wire::Offload;

use crate::programs::counts;

/// What became of a packet.
#[derive(Debug)]
pub(crate) enum Passed {
    /// These frames have left, in this order.
    Translated(Vec<(Vec<u8>, Offload)>),
    /// It is the translator's.
    Up,
    /// It is nobody's.
    Dropped,
}

/// The programs between two devices.
#[derive(Debug)]
pub(crate) struct Line {
    native: Programs,
    /// Packets come without an Ethernet header.
    bare: bool,
    /// What the last packet was counted as.
    pub(crate) counted: Vec<&'static str>,
}

impl Line {
    /// Packets come from a device with that header, and leave with Ethernet's. `segments`: they would leave cut into segments, which
    /// only the kernel does.
    pub(crate) fn between([from, to]: [LinkHeader; 2], _slots: u32, segments: bool) -> Self {
        assert_eq!(to, LinkHeader::Ethernet);
        assert!(!segments, "nobody is there to cut packets into segments");
        let native = Programs::default();
        native.add_ways(&[Way {
            mtu: 1_500,
            ..ANYWHERE
        }]);
        Self {
            native,
            bare: from == LinkHeader::Nothing,
            counted: Vec::new(),
        }
    }

    pub(crate) fn fast_path(&mut self, _slots: u32) -> impl FastPath + use<> {
        self.native.clone()
    }

    /// Sends an IP packet through at a time in microseconds.
    pub(crate) fn pass(&mut self, now: u64, packet: &[u8], offload: Offload) -> Passed {
        let before = counts(&self.native);
        let passed = match self.bare {
            true => self.native.pass_bare(now, packet, offload),
            false => self.native.pass(now, packet, offload),
        };
        let moved = counts(&self.native).into_iter().zip(before);
        let moved = moved.filter(|(after, before)| after.1 != before.1);
        self.counted = moved.map(|(after, _)| after.0).collect();
        match passed {
            native::Passed::Translated(sent) => {
                let frames = sent.into_iter().map(|sent| (sent.frame, sent.offload));
                Passed::Translated(frames.collect())
            }
            native::Passed::Up => Passed::Up,
            native::Passed::Dropped => Passed::Dropped,
        }
    }
}
