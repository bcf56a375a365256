//! The programs in the kernel, one packet at a time: what the cases of rules are tried on. Those of `tests/rules.rs` are
//! tried on the same programs compiled for this machine (`tests/rules/programs.rs`).

use flexcp_io::{KernelFastPath, Offload, Tried};
use flexcp_translator::FastPath;

use crate::host::ip;
use crate::offload::{Beside, DEVICE, network};

/// Programs with a network around them.
pub(crate) struct Programs {
    pub(crate) offload: Offload,
    path: KernelFastPath,
    beside: Beside,
}

impl Programs {
    pub(crate) fn new() -> Self {
        Self::of(|| Offload::load(DEVICE, 4).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The network, and around it programs as `load` loads them. The second client is behind a neighbour of its own, there
    /// is no way to 198.51.100.66, nor any for the traffic class 0x10.
    pub(crate) fn of(load: impl FnOnce() -> Offload) -> Self {
        network();
        ip("route add unreachable 198.51.100.66");
        ip("rule add tos 0x10 unreachable");
        ip("neigh add 192.0.2.3 lladdr 02:00:00:00:00:03 dev out");
        ip("route add 198.51.100.2 via 192.0.2.3");
        let mut offload = load();
        let path = offload.fast_path(4).unwrap();
        let beside = Beside::open();
        Self {
            offload,
            path,
            beside,
        }
    }

    /// What connections are installed in.
    pub(crate) fn path(&mut self) -> &mut dyn FastPath {
        &mut self.path
    }

    /// What was counted so far, by reason.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.offload.reasons().unwrap().counts()
    }

    /// Runs one frame, a segment whose checksum nobody has looked at.
    pub(crate) fn try_frame(&mut self, now: u64, frame: &[u8]) -> Tried {
        self.offload.try_packet(DEVICE, now, frame).unwrap()
    }

    /// What has left beside the frames that were tried.
    pub(crate) fn beside(&mut self) -> Vec<Vec<u8>> {
        self.beside.frames()
    }
}
