//! How the programs get at the packets of a device, and let go of it.

use std::os::fd::AsFd;

use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};

use super::{Offload, OffloadError};
use crate::kernel::{KernelError, KernelTables, LinkHeader, interface_index};

/// How the programs get at the packets of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hook {
    /// A link of the process (Linux 6.6), before all classic filters. It ends with the process.
    #[default]
    Tcx,
    /// A classic filter under the qdisc `clsact`, behind all others. It outlives the process.
    Clsact,
}

impl Hook {
    /// The best that this kernel has.
    #[must_use]
    pub fn of_this_kernel() -> Self {
        match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
            Ok(_) => Self::Tcx,
            Err(_) => Self::Clsact,
        }
    }
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

impl Offload {
    /// From now on the programs see what comes in on `interface`, whatever it is called later, until this is dropped; by a
    /// filter, until `tables` are removed. `header`: what packets have there, for which a program has to be loaded.
    ///
    /// # Errors
    /// When there is no such interface or program, or the kernel refuses.
    pub fn attach(
        &mut self,
        (interface, header): (&str, LinkHeader),
        by: Hook,
        tables: &mut KernelTables,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), OffloadError> {
        let index = self.note(interface, header)?;
        let program = self.program(header)?;
        match by {
            Hook::Tcx => {
                let last = TcAttachOptions::TcxOrder(LinkOrder::default());
                let link = program.attach_with_options(interface, TcAttachType::Ingress, last)?;
                self.links.push((index, header, link));
            }
            Hook::Clsact => {
                let program = program.fd()?.as_fd();
                tables.add_filter(interface, program, report)?;
            }
        }
        Ok(())
    }

    /// Lets go of the interface with the index `index`; if it is gone, what was attached went with it.
    ///
    /// # Errors
    /// When that can't be noted in the journal.
    pub fn forget(&mut self, index: u32, tables: &mut KernelTables) -> Result<(), OffloadError> {
        let gone = |(of, ..): &mut (u32, _, _)| *of == index;
        let links: Vec<_> = self.links.extract_if(.., gone).collect();
        for (_, header, link) in links {
            // If the device is gone, the kernel has done so already, and what is left is a descriptor of ours.
            let _ = self.program(header)?.detach(link);
        }
        self.forget_bare(index);
        Ok(tables.forget_filter(index)?)
    }

    /// Attaches without tables to take anything back: where there is no tcx, the device has a qdisc `clsact` already. For
    /// tests.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses.
    pub fn attach_alone(
        &mut self,
        interface: &str,
        header: LinkHeader,
    ) -> Result<(), OffloadError> {
        self.note(interface, header)?;
        let program = self.program(header)?;
        program.attach(interface, TcAttachType::Ingress)?;
        Ok(())
    }

    /// The interface's index. The programs are told if its packets have no Ethernet header.
    fn note(&mut self, interface: &str, header: LinkHeader) -> Result<u32, OffloadError> {
        let index = interface_index(interface).ok_or_else(|| KernelError::NoInterface {
            name: interface.to_owned(),
        })?;
        if header == LinkHeader::Nothing {
            if self.program(header)?.fd().is_err() {
                return Err(OffloadError::Late);
            }
            self.note_bare(index)?;
        }
        Ok(index)
    }
}
