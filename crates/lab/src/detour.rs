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
use crate::topology::{Lab, keep_order};

/// Every frame of a link fits the way to its emulator.
const MTU: u16 = 9000;

/// The device by which frames that come in at an end of a link go to the emulator.
fn way(end: &str, link: u8) -> String {
    format!("way-{end}{link}")
}

/// The device where the emulator takes them in.
fn inlet(end: &str, link: u8) -> String {
    format!("in-{end}{link}")
}

/// A detour of a link. Dropping it ends it at once: what is under way is lost.
#[derive(Debug)]
pub struct Detour<'a> {
    lab: &'a Lab,
    link: u8,
    emulator: Emulator,
    /// The link's packets take it.
    taken: bool,
}

impl Lab {
    /// Prepares to lead a link through faults, each way (see `flexcp_faults`).
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
        let wire = self.wire()?;
        for end in ["c", "p"] {
            let (way, inlet) = (way(end, link), inlet(end, link));
            wire.ip_batch(&format!(
                "link add {way} mtu {MTU} type veth peer name {inlet} mtu {MTU}\n\
                 link set {way} addrgenmode none up\n\
                 link set {inlet} addrgenmode none up\n"
            ))?;
        }
        keep_order(wire)?;
        let inlets = ["c", "p"].map(|end| inlet(end, link));
        let outlets = ["c", "p"].map(|end| format!("{end}{link}"));
        let inlets = inlets.each_ref().map(String::as_str);
        let outlets = outlets.each_ref().map(String::as_str);
        Ok(Detour {
            lab: self,
            link,
            emulator: Emulator::start_from(wire, inlets, outlets, spec)?,
            taken: false,
        })
    }

    /// Whether the kernel forwards between the halves of a link, or hands everything to the emulator.
    fn forward(&self, link: u8, on: bool) -> Result<()> {
        let mut rules = String::new();
        for (from, to, chain) in [("c", "p", "up"), ("p", "c", "down")] {
            let base = format!("netdev wire {from}{link}");
            let _ = writeln!(rules, "flush chain {base}");
            let _ = writeln!(rules, "add rule {base} jump {chain}{link}");
            let carry = if on {
                self.carry_on(link, to)
            } else {
                format!("fwd to \"{}\"", way(from, link))
            };
            let _ = writeln!(rules, "add rule {base} {carry}");
        }
        self.wire()?.nft(&rules)
    }
}

impl Detour<'_> {
    /// From here on the link's packets take it: none passes twice, and none is lost.
    ///
    /// # Errors
    /// The kernel does not take the rules.
    pub fn begin(&mut self) -> Result<()> {
        self.taken = true;
        self.lab.forward(self.link, false)
    }

    /// Replaces the faults of one direction.
    ///
    /// # Errors
    /// Such faults are not known, or the emulator has ended.
    pub fn set_faults(&self, direction: Direction, faults: &str) -> Result<()> {
        self.emulator.set_faults(direction, faults.parse()?)
    }

    /// Removes the way to the emulator.
    fn take_away(&self) -> Result<()> {
        let ways = ["c", "p"].map(|end| format!("link del {}\n", way(end, self.link)));
        self.lab.wire()?.ip_batch(&ways.concat())
    }

    /// Lets the kernel carry the link again, and what is under way come out: it waits so long for that. Packets that were
    /// sent later overtake it.
    ///
    /// # Errors
    /// The kernel does not take the rules, or the emulator has ended.
    pub fn end(mut self, under_way: Duration) -> Result<()> {
        self.lab.forward(self.link, true)?;
        self.taken = false;
        thread::sleep(under_way);
        Ok(())
    }
}

impl Drop for Detour<'_> {
    fn drop(&mut self) {
        let back = || {
            if self.taken {
                self.lab.forward(self.link, true)?;
            }
            self.take_away()
        };
        if let Err(error) = back() {
            eprintln!("lab: {error:#}");
        }
    }
}
