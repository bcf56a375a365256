//! Faults between client and proxy: cut links, stripped options, emulated links.
//!
//! All but a link that is set down are in the wire's namespace, so neither end
//! can see them, whatever it hooks on its own interfaces: nftables rules, or for
//! what those can't do an [`Emulator`] that carries the link's packets.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use flexcp_faults::Faults;
use serde_json::Value;

use crate::link::{Emulator, LinkCounters, LinkSpec};
use crate::process::text;
use crate::topology::{Lab, LabBuilder};

/// Ways to cut an access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every frame is lost, both ways; the interfaces stay up.
    Silent,
    /// Frames from the client are lost.
    SilentUp,
    /// Frames to the client are lost.
    SilentDown,
    /// The client's interface is set down: addresses and routes go away.
    LinkDown,
    /// Client and proxy lose their carrier; addresses stay.
    NoCarrier,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the proxy.
    Up,
    /// From the proxy to the client.
    Down,
}

impl Direction {
    /// The other way.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// Packets that lose their MPTCP option, on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// The client's SYN.
    Syn,
    /// The SYN/ACK that answers it.
    SynAck,
    /// The third ACK: MP_CAPABLE with both keys and without data.
    ThirdAck,
    /// Everything, one way, after that many bytes (from now) went this way.
    After(Direction, u64),
    /// Everything, both ways, after that many bytes (from now) went either way.
    AllAfter(u64),
    /// Data packets with a mapping, one way: what a broken ALG would do.
    Data(Direction),
}

/// The faults on one access link.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkFaults {
    cut: Option<Cut>,
    strips: Vec<Strip>,
    /// nft rule texts by direction.
    custom: Vec<(Direction, String)>,
    /// Number of changes so far: names the quota that both directions share.
    changes: u32,
}

impl Lab {
    /// Cuts a link.
    pub fn cut(&self, link: u8, how: Cut) -> Result<()> {
        self.change(link, |faults| faults.cut = Some(how))?;
        match how {
            Cut::Silent | Cut::SilentUp | Cut::SilentDown => Ok(()),
            Cut::LinkDown => self
                .client()
                .ip(&format!("link set a{link} down"))
                .map(drop),
            Cut::NoCarrier => self.set_carrier(link, "down"),
        }
    }

    /// Ends whatever [`Lab::cut`] did to a link.
    pub fn restore(&self, link: u8) -> Result<()> {
        let mut was = None;
        self.change(link, |faults| was = faults.cut.take())?;
        match was {
            Some(Cut::LinkDown) => {
                self.client().ip(&format!("link set a{link} up"))?;
                self.configure_client_link(link)
            }
            Some(Cut::NoCarrier) => self.set_carrier(link, "up"),
            Some(Cut::Silent | Cut::SilentUp | Cut::SilentDown) | None => Ok(()),
        }
    }

    /// Strips the MPTCP option from some packets of a link.
    pub fn strip(&self, link: u8, what: Strip) -> Result<()> {
        self.change(link, |faults| faults.strips.push(what))
    }

    /// Applies an nft rule (netdev family) to what passes a link one way, e.g.
    /// `tcp option timestamp exists reset tcp option timestamp`.
    pub fn rule(&self, link: u8, direction: Direction, rule: &str) -> Result<()> {
        self.change(link, |faults| {
            faults.custom.push((direction, rule.to_owned()))
        })
    }

    /// Removes all strips and rules from a link; a cut stays.
    pub fn heal(&self, link: u8) -> Result<()> {
        self.change(link, |faults| {
            faults.strips.clear();
            faults.custom.clear();
        })
    }

    /// How many packets the faults of a link have hit since they last changed.
    pub fn fault_hits(&self, link: u8, direction: Direction) -> Result<u64> {
        let chain = chain(link, direction);
        let mut command = self.wire()?.command("nft");
        let listing = text(command.args(["-j", "list", "chain", "netdev", "wire", &chain]))?;
        let listing: Value = serde_json::from_str(&listing).context("nft -j")?;
        let rules = listing["nftables"].as_array().into_iter().flatten();
        let statements = rules
            .filter_map(|item| item["rule"]["expr"].as_array())
            .flatten();
        Ok(statements
            .filter_map(|s| s["counter"]["packets"].as_u64())
            .sum())
    }

    /// Replaces the faults of an emulated link, one way (see [`LabBuilder::faults`]).
    pub fn set_faults(&self, link: u8, direction: Direction, faults: &str) -> Result<()> {
        self.emulator(link)?
            .set_faults(direction, parse_faults(faults)?)
    }

    /// What happened on an emulated link so far.
    pub fn link_counters(&self, link: u8) -> Result<LinkCounters> {
        self.emulator(link)?.counters()
    }

    fn emulator(&self, link: u8) -> Result<&Emulator> {
        let emulator = usize::from(link)
            .checked_sub(1)
            .and_then(|index| self.emulators.get(index)?.as_ref());
        emulator
            .with_context(|| format!("link {link} is not emulated: it was built without faults"))
    }

    /// One for each link that the description has faults for.
    pub(crate) fn start_emulators(&self, spec: &LabBuilder) -> Result<Vec<Option<Emulator>>> {
        let links = 1..=self.links();
        for (link, ..) in &spec.faults {
            ensure!(links.contains(link), "faults on link {link}: there is none");
        }
        links.map(|link| self.start_emulator(spec, link)).collect()
    }

    fn start_emulator(&self, spec: &LabBuilder, link: u8) -> Result<Option<Emulator>> {
        let mut given = LinkSpec {
            seed: spec.fault_seed.wrapping_add(u64::from(link) << 32),
            ..LinkSpec::default()
        };
        let mut emulated = false;
        for (_, direction, text) in spec.faults.iter().filter(|(on, ..)| *on == link) {
            emulated = true;
            let list = match direction {
                Direction::Up => &mut given.up,
                Direction::Down => &mut given.down,
            };
            list.0.extend(parse_faults(text)?.0);
        }
        if !emulated {
            return Ok(None);
        }
        let ends = [format!("c{link}"), format!("p{link}")];
        Emulator::start(self.wire()?, [&ends[0], &ends[1]], given).map(Some)
    }

    /// The rule's end by which the wire sends a frame on to the half `to` of a link.
    ///
    /// On a link with a rate it is a copy, which is nobody's. The frame itself is its sender's socket's, which would see
    /// what waits on the link as waiting at its own host, and send the less (TCP small queues): no network tells its hosts.
    pub(crate) fn carry_on(&self, link: u8, to: &str) -> String {
        let how = if self.has_rate(link) { "dup" } else { "fwd" };
        format!("{how} to \"{to}{link}\"")
    }

    /// Makes the wire forward frames between the two halves of every link.
    pub(crate) fn load_wire(&self) -> Result<()> {
        let Ok(wire) = self.wire() else { return Ok(()) };
        let mut rules = "table netdev wire {\n".to_owned();
        for (link, emulator) in (1..=self.links()).zip(&self.emulators) {
            for (from, to, chain) in [("c", "p", "up"), ("p", "c", "down")] {
                // What an emulator carries must not pass a second time: it sees frames before the
                // rules do.
                let forward = match emulator {
                    Some(_) => String::new(),
                    None => self.carry_on(link, to),
                };
                let _ = write!(
                    rules,
                    "chain {chain}{link} {{ }}\n\
                     chain {from}{link} {{\n\
                       type filter hook ingress device \"{from}{link}\" priority 0; policy drop;\n\
                       jump {chain}{link}\n\
                       {forward}\n\
                     }}\n"
                );
            }
        }
        rules.push('}');
        wire.nft(&rules)
    }

    /// Changes the faults of a link and loads its rules anew, in one transaction.
    fn change(&self, link: u8, change: impl FnOnce(&mut LinkFaults)) -> Result<()> {
        ensure!(
            (1..=self.links()).contains(&link),
            "there is no link {link}"
        );
        let mut faults = self
            .faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let faults = &mut faults[usize::from(link) - 1];
        let mut changed = faults.clone();
        change(&mut changed);
        changed.changes += 1;
        let by_rules = [Direction::Up, Direction::Down]
            .iter()
            .any(|direction| !changed.rules(*direction, "").is_empty());
        ensure!(
            !by_rules || self.emulator(link).is_err(),
            "link {link} is emulated: its packets pass no rules; use set_faults"
        );
        *faults = changed;
        let quota = format!("q{link}_{}", faults.changes);
        let mut rules = String::new();
        for strip in &faults.strips {
            if let Strip::AllAfter(bytes) = strip {
                let _ = writeln!(
                    rules,
                    "add quota netdev wire {quota} {{ over {bytes} bytes }}"
                );
            }
        }
        for direction in [Direction::Up, Direction::Down] {
            let chain = chain(link, direction);
            let _ = writeln!(rules, "flush chain netdev wire {chain}");
            for rule in faults.rules(direction, &quota) {
                let _ = writeln!(rules, "add rule netdev wire {chain} {rule}");
            }
        }
        self.wire()?.nft(&rules)
    }

    fn set_carrier(&self, link: u8, state: &str) -> Result<()> {
        self.wire()?.ip_batch(&format!(
            "link set c{link} {state}\nlink set p{link} {state}\n"
        ))
    }
}

impl LinkFaults {
    fn rules(&self, direction: Direction, quota: &str) -> Vec<String> {
        let mut rules = vec![];
        let cut = match self.cut {
            Some(Cut::Silent) => true,
            Some(Cut::SilentUp) => direction == Direction::Up,
            Some(Cut::SilentDown) => direction == Direction::Down,
            Some(Cut::LinkDown | Cut::NoCarrier) | None => false,
        };
        if cut {
            rules.push("counter drop".to_owned());
        }
        rules.extend(
            self.strips
                .iter()
                .filter_map(|strip| strip.rule(direction, quota)),
        );
        let custom = self.custom.iter().filter(|(way, _)| *way == direction);
        rules.extend(custom.map(|(_, rule)| rule.clone()));
        rules
    }
}

impl Strip {
    fn rule(self, direction: Direction, quota: &str) -> Option<String> {
        const STRIP: &str = "counter reset tcp option mptcp";
        let condition = match (self, direction) {
            (Self::Syn, Direction::Up) => "tcp flags syn / syn,ack".to_owned(),
            (Self::SynAck, Direction::Down) => "tcp flags syn,ack / syn,ack".to_owned(),
            // MP_CAPABLE with two keys is 20 bytes long; with data it is longer.
            (Self::ThirdAck, Direction::Up) => {
                "tcp flags ack / syn,ack tcp option mptcp subtype 0 tcp option mptcp length 20"
                    .to_owned()
            }
            (Self::After(way, bytes), _) if way == direction => {
                format!("meta l4proto tcp quota over {bytes} bytes")
            }
            (Self::AllAfter(_), _) => format!("meta l4proto tcp quota name {quota}"),
            // A DSS with a 64-bit mapping is 20 bytes or longer; a data ACK alone is at most 12.
            (Self::Data(way), _) if way == direction => {
                "tcp option mptcp subtype 2 tcp option mptcp length >= 16".to_owned()
            }
            _ => return None,
        };
        Some(format!("{condition} {STRIP}"))
    }
}

pub(crate) fn parse_faults(text: &str) -> Result<Faults> {
    text.parse()
        .with_context(|| format!("list of faults `{text}`"))
}

fn chain(link: u8, direction: Direction) -> String {
    match direction {
        Direction::Up => format!("up{link}"),
        Direction::Down => format!("down{link}"),
    }
}
