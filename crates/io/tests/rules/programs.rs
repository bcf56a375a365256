//! The programs compiled for this machine, one packet at a time, as `tests/netns/programs.rs` has them in the kernel.

use flexcp_io::{Reasons, Tried};
use flexcp_native::{self as native, ANYWHERE, Passed, Way};
use flexcp_translator::FastPath;
use flexcp_wire::Offload;

use crate::offload_packets::addr;

/// A way for IPv4 packets (`AF_INET`).
const WAY: Way = Way {
    family: 2,
    ..ANYWHERE
};

/// The programs, with the ways that the kernel's have.
#[derive(Debug)]
pub(crate) struct Programs {
    native: native::Programs,
    beside: Vec<Vec<u8>>,
}

impl Programs {
    pub(crate) fn new() -> Self {
        let native = native::Programs::default();
        native.add_ways(&[
            Way {
                tos: 0x10,
                neighbour: 0,
                ..WAY
            },
            Way {
                to: addr([198, 51, 100, 66]),
                neighbour: 0,
                ..WAY
            },
            Way {
                to: addr([198, 51, 100, 2]),
                neighbour: 3,
                ..WAY
            },
        ]);
        Self {
            native,
            beside: Vec::new(),
        }
    }

    /// What connections are installed in.
    pub(crate) fn path(&mut self) -> &mut dyn FastPath {
        &mut self.native
    }

    /// What was counted so far, by reason.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        counts(&self.native)
    }

    /// Runs one frame, a segment whose checksum nobody has looked at.
    pub(crate) fn try_frame(&mut self, now: u64, frame: &[u8]) -> Tried {
        let (link, packet) = frame.split_at(14);
        let offload = Offload::default();
        let passed = if link[0] == 0 {
            self.native.pass(now, packet, offload)
        } else {
            self.native.overhear(now, packet, offload)
        };
        match passed {
            Passed::Translated(mut sent) => {
                let last = sent.pop().expect("a frame");
                self.beside.extend(sent.into_iter().map(|sent| sent.frame));
                Tried::Translated(last.frame)
            }
            Passed::Up => Tried::Passed,
            Passed::Dropped => Tried::Dropped,
        }
    }

    /// What has left beside the frames that were tried.
    pub(crate) fn beside(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.beside)
    }
}

/// With the names that the kernel's counts have.
pub(crate) fn counts(native: &native::Programs) -> Vec<(&'static str, u64)> {
    let names = Reasons::meanings().iter().map(|(name, _)| *name);
    names.zip(native.reasons()).collect()
}
