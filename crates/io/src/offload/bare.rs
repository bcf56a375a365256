//! Devices whose packets have no Ethernet header: a program of their own is at them, and the programs are told which they are.
//! Nobody on such a link has an address to be found, so that nothing has to be known of a neighbour there.

use aya::maps::HashMap;

use super::refusal::Refusal;
use super::{Offload, OffloadError};
use crate::kernel::LinkHeader;

/// Their program.
pub(super) const PROGRAM: &str = "flexcp_bare";

impl Offload {
    /// Loads the program for devices whose packets have no Ethernet header, with the parts that the other one has. Without it
    /// the programs are at Ethernet devices alone. It takes what loading takes: who has given that up can't do it any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_bare(&mut self) -> Result<(), OffloadError> {
        let program = self.program(LinkHeader::Nothing)?;
        match program.load().map_err(Refusal::of) {
            Ok(()) => Ok(()),
            Err(Ok(refusal)) => Err(OffloadError::Refused(refusal)),
            Err(Err(other)) => Err(other.into()),
        }
    }

    /// Packets may leave by the device with the index `index` without a neighbour.
    pub(super) fn note_bare(&mut self, index: u32) -> Result<(), OffloadError> {
        self.bare()?.insert(index, 1, 0)?;
        Ok(())
    }

    /// They may not any more, if they might.
    pub(super) fn forget_bare(&mut self, index: u32) {
        if let Ok(mut bare) = self.bare() {
            let _ = bare.remove(&index);
        }
    }

    fn bare(&mut self) -> Result<HashMap<&mut aya::maps::MapData, u32, u32>, OffloadError> {
        let map = self.ebpf.map_mut("bare");
        let map = map.ok_or(OffloadError::Missing(
            "map of devices without Ethernet headers",
        ))?;
        Ok(HashMap::try_from(map)?)
    }
}
