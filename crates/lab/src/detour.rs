//! A detour: an emulator carries the packets of a link for a while, of which the kernel carries them otherwise.
//!
//! An emulator costs a wake-up for each packet, and two of them at some hundred Mbit/s are more than two processors have. A
//! link that is to be bad only now and then is the kernel's the rest of the time. Rate and queue are of the wire's devices and
//! stay what they are, with all that waits there.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::fault::Direction;
use crate::link::{Emulator, LinkSpec};
use crate::topology::Lab;

/// A link that is on a detour. Dropping it ends it at once: what is under way is lost.
#[derive(Debug)]
pub struct Detour<'a> {
    lab: &'a Lab,
    link: u8,
    emulator: Emulator,
    /// It has been ended in order.
    ended: bool,
}

impl Lab {
    /// Leads a link through faults, each way (see `flexcp_faults`). For some milliseconds packets pass twice, with the
    /// faults and without: none is lost.
    ///
    /// # Errors
    /// There is no such link, or no wire; the link is emulated all the time; such faults are not known.
    pub fn detour(&self, link: u8, up: &str, down: &str) -> Result<Detour<'_>> {
        let known = self.emulators.get(usize::from(link).wrapping_sub(1));
        ensure!(
            known.is_some_and(Option::is_none),
            "link {link} can't be led elsewhere: there is none, or it is emulated"
        );
        let spec = LinkSpec {
            up: up.parse()?,
            down: down.parse()?,
            seed: u64::from(link),
        };
        let ends = [format!("c{link}"), format!("p{link}")];
        let emulator = Emulator::start(self.wire()?, [&ends[0], &ends[1]], spec)?;
        self.forward(link, false)?;
        Ok(Detour {
            lab: self,
            link,
            emulator,
            ended: false,
        })
    }

    /// Whether the kernel forwards between the halves of a link; what it does not forward it drops.
    fn forward(&self, link: u8, on: bool) -> Result<()> {
        let mut rules = String::new();
        for (from, to, chain) in [("c", "p", "up"), ("p", "c", "down")] {
            let base = format!("netdev wire {from}{link}");
            let _ = writeln!(rules, "flush chain {base}");
            let _ = writeln!(rules, "add rule {base} jump {chain}{link}");
            if on {
                let _ = writeln!(rules, "add rule {base} fwd to \"{to}{link}\"");
            }
        }
        self.wire()?.nft(&rules)
    }
}

impl Detour<'_> {
    /// Replaces the faults of one direction.
    ///
    /// # Errors
    /// Such faults are not known, or the emulator has ended.
    pub fn set_faults(&self, direction: Direction, faults: &str) -> Result<()> {
        self.emulator.set_faults(direction, faults.parse()?)
    }

    /// Lets the kernel carry the link again, and what is under way come out: it waits so long for that. Packets that were
    /// sent later overtake it.
    ///
    /// # Errors
    /// The kernel does not take the rules, or the emulator has ended.
    pub fn end(mut self, under_way: Duration) -> Result<()> {
        self.ended = true;
        self.lab.forward(self.link, true)?;
        for direction in [Direction::Up, Direction::Down] {
            self.set_faults(direction, "loss=100%")?;
        }
        thread::sleep(under_way);
        Ok(())
    }
}

impl Drop for Detour<'_> {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.lab.forward(self.link, true)
        {
            eprintln!("lab: {error:#}");
        }
    }
}
