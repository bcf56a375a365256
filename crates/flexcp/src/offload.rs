//! The kernel's programs as the configuration wants them: loads and attaches the offload, and says in a line each what
//! works, what is left out, and why. What the kernel can't is never the whole where it need not be.

use std::fmt::Write as _;
use std::net::IpAddr;

use flexcp_io::{
    Hook, Interface, KernelFastPath, KernelTables, LeftOut, LinkHeader, Offload, OffloadError,
    OwnEnds, PlacementError, PlacementProgram, Reasons, Refusal, Target, interfaces,
};
use flexcp_translator::FastPath as _;
use tracing::{info, warn};

use crate::config::file::Mode;
use crate::config::live::own_addresses;
use crate::config::{Config, file, plan};
use crate::worker::WorkerHandle;

/// The offload as it runs; what is not attached to the kernel's tables ends when it is dropped.
#[derive(Debug, Default)]
pub struct Running {
    offload: Option<Offload>,
    /// Of the workers, in their order, until they have them.
    paths: Vec<KernelFastPath>,
    /// Connections that it has room for.
    slots: u32,
    by: Hook,
    /// FlexCP's own device, by its index: what the workers send comes in there.
    own: u32,
    /// The devices that the programs can be at.
    devices: Vec<Device>,
    /// Why there is none, or what is left out of it.
    miss: Option<String>,
    /// Why it is at no device without Ethernet headers.
    no_bare: Option<String>,
    /// Which services it is not for, and why.
    kept: Vec<String>,
    /// Why no connection can be split.
    unsplit: Option<String>,
}

/// A device with Ethernet headers or none, as it was found.
#[derive(Debug)]
struct Device {
    index: u32,
    name: String,
    /// Why the offload is not attached to it.
    refused: Option<OffloadError>,
}

/// Loads the programs and attaches them to all devices with Ethernet headers or none but FlexCP's own. That takes half a second, or a whole one, in
/// which the workers translate everything, as they go on doing until [`Running::install`]. `device`: the index of FlexCP's own. Nothing is done when the
/// configuration says so. Also gives what the programs count.
pub fn start(
    config: &Config,
    device: u32,
    workers: &[WorkerHandle],
    tables: &mut KernelTables,
) -> (Running, Option<Reasons>) {
    if !config.offload.enabled.value {
        return Default::default();
    }
    match load(config, device, workers, tables) {
        Ok((running, reasons)) => (running, Some(reasons)),
        Err(error) => {
            warn!("no offload: {error}; every packet goes through the workers");
            let running = Running {
                miss: Some(format!("none: {error}")),
                ..Running::default()
            };
            (running, None)
        }
    }
}

fn load(
    config: &Config,
    device: u32,
    workers: &[WorkerHandle],
    tables: &mut KernelTables,
) -> Result<(Running, Reasons), OffloadError> {
    let connections = u32::try_from(config.offload.connections.value).unwrap_or(1);
    let share = connections.div_ceil(u32::try_from(workers.len()).unwrap_or(1));
    let slots = share * u32::try_from(workers.len()).unwrap_or(1);
    let mut offload = Offload::load(device, slots)?;
    offload.mark(plan::mark(config))?;
    let there = interfaces().unwrap_or_default();
    let no_bare = match wants_bare(config, device, &there) {
        true => offload.load_bare().err().map(|error| not_bare(&error)),
        false => None,
    };
    let own = plan::own_backends(config, &own_addresses());
    let paths = workers.iter().map(|_| {
        let mut path = offload.fast_path(share)?;
        path.leave_out(&own);
        Ok(path)
    });
    let paths = paths.collect::<Result<Vec<_>, OffloadError>>()?;
    let reasons = offload.reasons()?;
    let miss = offload.left_out().map(ToString::to_string);
    let mut running = Running {
        offload: Some(offload),
        paths,
        slots,
        by: hook(config),
        own: device,
        devices: Vec::new(),
        miss,
        no_bare,
        kept: Vec::new(),
        unsplit: None,
    };
    running.follow(&there, tables);
    if running.on().next().is_none()
        && let Some(error) = running.devices.pop().and_then(|device| device.refused)
    {
        return Err(error);
    }
    if let Some(left_out) = &running.miss {
        warn!("offload: {left_out}; {FULL_TEXT}");
    }
    if let Some(no_bare) = &running.no_bare {
        warn!("offload: {no_bare}");
    }
    Ok((running, reasons))
}

impl Running {
    /// Attaches to the devices among `interfaces` that have Ethernet headers or none and that it does not know yet, or whose
    /// filter somebody has taken away, and lets go of those that are gone.
    /// Gives the names of the new ones that take it; one that does not is noted. A device that is renamed is the same.
    ///
    /// Ports of bridges and bonds are left out, and FlexCP's own device: the programs would see, and count, packets twice.
    pub fn follow(&mut self, interfaces: &[Interface], tables: &mut KernelTables) -> Vec<String> {
        let Some(offload) = &mut self.offload else {
            return Vec::new();
        };
        let fit: Vec<_> = interfaces
            .iter()
            .filter(|interface| is_fit(interface, self.own, self.no_bare.is_none()))
            .collect();
        let gone = |device: &mut Device| !fit.iter().any(|now| now.index == device.index);
        for device in self.devices.extract_if(.., gone) {
            if let Err(error) = offload.forget(device.index, tables) {
                warn!("offload: off {}: {error}", device.name);
            }
        }
        let lost = tables.lost_filters();
        for device in self
            .devices
            .extract_if(.., |device| lost.contains(&device.index))
        {
            warn!("offload: its filter at {} was taken away", device.name);
        }
        let mut new = Vec::new();
        for interface in fit {
            let known = self
                .devices
                .iter_mut()
                .find(|device| device.index == interface.index);
            if let Some(device) = known {
                device.name.clone_from(&interface.name);
                continue;
            }
            let report = &mut |change: &str| info!("kernel: {change}");
            let refused = offload
                .attach((&interface.name, interface.header), self.by, tables, report)
                .err();
            match &refused {
                Some(error) => warn!("offload: not on {}: {error}", interface.name),
                None => new.push(interface.name.clone()),
            }
            self.devices.push(Device {
                index: interface.index,
                name: interface.name.clone(),
                refused,
            });
        }
        new
    }

    /// Gives each worker its share. What they must not install, they have to have been told before; and the programs are
    /// attached, so that nothing is installed in vain.
    pub fn install(&mut self, workers: &[WorkerHandle]) {
        for (worker, path) in workers.iter().zip(self.paths.drain(..)) {
            worker.offload(Box::new(path));
        }
        if self.offload.is_some() {
            info!("offload: up to {} connections, {}", self.slots, self.how());
        }
    }

    /// Conntrack is in use, and the clients' legs of services on the path are in its zone `zone`.
    pub fn beside_conntrack(&self, zone: u16) {
        if let Some(offload) = &self.offload {
            offload.beside_conntrack(zone);
        }
    }

    /// Hands ICMPv6 errors about packets from these ends to FlexCP's device.
    pub fn take_errors(&mut self, ends: &[OwnEnds]) {
        if let Some(offload) = &mut self.offload
            && let Err(error) = offload.take_errors(ends)
        {
            warn!("offload: ICMPv6 errors stay with the kernel: {error}");
        }
    }

    /// Packets of split connections go to the kernel's sockets from here on; what stands in the way is noted.
    pub fn leave_to_sockets(&mut self) {
        let Some(offload) = &mut self.offload else {
            return;
        };
        self.unsplit = match offload.leave_to_sockets() {
            Ok(why) => why.map(str::to_owned),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = &self.unsplit {
            warn!("split: {why}; connections are translated");
        }
    }

    /// Notes which services it is not for, and why, a line each.
    pub fn keep(&mut self, notes: Vec<String>) {
        self.kept = notes;
    }

    /// How it runs, what is left out and why, a line each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.offload.is_some() {
            notes.push(self.how());
        }
        notes.extend(self.devices.iter().filter_map(|device| {
            let error = device.refused.as_ref()?;
            Some(format!("not on {}: {error}", device.name))
        }));
        notes.extend(self.miss.clone());
        notes.extend(self.no_bare.clone());
        let unsplit = self.unsplit.iter();
        notes.extend(unsplit.map(|why| format!("connections are not split: {why}")));
        if self.offload.is_some() {
            notes.extend_from_slice(&self.kept);
        }
        notes
    }

    fn how(&self) -> String {
        let on: Vec<_> = self.on().collect();
        let on = if on.is_empty() {
            "no device".to_owned()
        } else {
            on.join(", ")
        };
        format!("by {}, on {on}", self.by)
    }

    fn on(&self) -> impl Iterator<Item = &str> {
        let attached = self
            .devices
            .iter()
            .filter(|device| device.refused.is_none());
        attached.map(|device| device.name.as_str())
    }
}

/// Whether the programs can be at a device. `bare`: they can be at those without Ethernet headers.
fn is_fit(interface: &Interface, own: u32, bare: bool) -> bool {
    let known = match interface.header {
        LinkHeader::Ethernet => true,
        LinkHeader::Nothing => bare && interface.index != own,
        LinkHeader::Other => false,
    };
    known && !interface.is_port
}

/// Whether devices without Ethernet headers are there, but FlexCP's own, or may come: one that the configuration names is not there
/// yet. The program for them takes as long to load as the other one.
fn wants_bare(config: &Config, own: u32, there: &[Interface]) -> bool {
    let is_bare = |one: &Interface| one.header == LinkHeader::Nothing && one.index != own;
    let named = config.services.iter().flat_map(|service| {
        let uplinks = match &service.mode {
            Mode::Box { uplinks, .. } => &uplinks[..],
            _ => &[],
        };
        service.interfaces.iter().chain(uplinks)
    });
    let mut absent = named.filter(|name| !there.iter().any(|one| one.name == name.value));
    there.iter().any(is_bare) || absent.next().is_some()
}

fn not_bare(error: &OffloadError) -> String {
    format!("not on devices without Ethernet headers: {error}")
}

fn hook(config: &Config) -> Hook {
    match config.offload.attach.value {
        file::Attach::Auto => Hook::of_this_kernel(),
        file::Attach::Clsact => Hook::Clsact,
    }
}

/// What came of loading the programs for a try.
#[derive(Default, Debug)]
pub struct Tried {
    /// What works.
    pub works: Option<String>,
    /// What does not, a line each.
    pub misses: Vec<String>,
    /// All that the verifier says about what it refuses.
    pub log: String,
}

impl Tried {
    fn refused(&mut self, program: &str, refusal: &Refusal) {
        let _ = writeln!(self.log, "{program}:\n{}", refusal.log().trim_end());
    }
}

/// Loads the programs that the configuration wants, and lets go of them: nothing is attached. `sources` as
/// [`live::check`](crate::config::live::check) gives them.
#[must_use]
pub fn try_loading(config: &Config, sources: &[Vec<IpAddr>]) -> Tried {
    let mut tried = Tried::default();
    if config.offload.enabled.value {
        // Packets would be routed as from the loopback device.
        match Offload::load(1, 1) {
            Ok(mut offload) => {
                tried.works = Some(format!("the kernel takes it, by {}", hook(config)));
                if let Some(left_out) = offload.left_out() {
                    tried.misses.push(format!("offload: {left_out}"));
                    tried.refused("offload", left_out.refusal());
                }
                if let Err(error) = offload.load_bare() {
                    tried.misses.push(format!("offload: {}", not_bare(&error)));
                    if let OffloadError::Refused(refusal) = &error {
                        tried.refused("offload without Ethernet headers", refusal);
                    }
                }
            }
            Err(error) => {
                tried.misses.push(format!("no offload: {error}"));
                if let OffloadError::Refused(refusal) = &error {
                    tried.refused("offload", refusal);
                }
            }
        }
    }
    if plan::workers(config) > 1 && config.device.placement.value == file::Placement::Owner {
        let ids = plan::first_ids(config);
        let rules = plan::translator(config, sources, &ids, 0).placement((0, 0));
        if let Err(error) = PlacementProgram::load(&rules, Target::Owner, 1) {
            tried.misses.push(format!("no placement: {error}"));
            if let PlacementError::Refused(refusal) = &error {
                tried.refused("placement", refusal);
            }
        }
    }
    tried
}

const FULL_TEXT: &str = LeftOut::FULL_TEXT;

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, header: LinkHeader, is_port: bool) -> Interface {
        Interface {
            index,
            name: "ppp0".into(),
            header,
            up: true,
            carrier: true,
            is_vrf: false,
            vrf: None,
            is_port,
        }
    }

    #[test]
    fn program_for_devices_without_headers_is_loaded_where_they_are_or_may_come() {
        let text = "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"lan0\"]\n\
                    destinations = [\"0.0.0.0/0\"]\nuplinks = [\"dsl0\", \"ppp0\"]\n";
        let config = crate::config::parse("box.toml", text)
            .0
            .expect("a configuration");
        let of = |index, name: &str, header| Interface {
            name: name.into(),
            ..interface(index, header, false)
        };
        let own = of(9, "flexcp0", LinkHeader::Nothing);
        let [lan, dsl] =
            [(1, "lan0"), (2, "dsl0")].map(|(at, name)| of(at, name, LinkHeader::Ethernet));
        let ppp = |header| of(3, "ppp0", header);
        let there = [own, lan, dsl];
        assert!(wants_bare(&config, 9, &there), "one is to come");
        let with = |header| [&there[..], &[ppp(header)]].concat();
        assert!(wants_bare(&config, 9, &with(LinkHeader::Nothing)));
        assert!(
            !wants_bare(&config, 9, &with(LinkHeader::Ethernet)),
            "FlexCP's own alone"
        );
    }

    #[test]
    fn programs_are_where_a_packet_is_seen_once_and_its_header_is_known() {
        use LinkHeader::{Ethernet, Nothing, Other};

        let fit = |header, is_port| is_fit(&interface(2, header, is_port), 3, true);
        assert_eq!(
            [Ethernet, Nothing, Other].map(|header| fit(header, false)),
            [true, true, false]
        );
        assert!(!fit(Ethernet, true) && !fit(Nothing, true));
        let tun = interface(2, Nothing, false);
        assert!(!is_fit(&tun, 2, true), "FlexCP's own");
        assert!(!is_fit(&tun, 3, false), "no program for it");
    }
}
