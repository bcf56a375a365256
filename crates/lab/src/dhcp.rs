//! Uplinks whose address comes by DHCP: a modem (dnsmasq) at the far end of a link, and the box's client (udhcpc).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::process::Background;
use crate::topology::{Family, Lab};

const PATIENCE: Duration = Duration::from_secs(10);

/// dnsmasq on the client's end of a link. It gives the one address that it was told, and is the default route.
#[derive(Debug)]
pub struct Modem {
    dnsmasq: Background,
    /// Who gets which address.
    hosts: PathBuf,
    /// Of the box's interface.
    mac: String,
}

impl Modem {
    /// Starts it on a link, with the address that the box is to have. The link has that of [`Lab::client_addr`], a /24.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start(lab: &Lab, link: u8, addr: &str) -> Result<Self> {
        let mac = mac(lab, link)?;
        let dir = lab.dir();
        let hosts = dir.join(format!("dhcp-hosts-{link}"));
        let leases = dir.join(format!("dhcp-leases-{link}"));
        fs::write(&hosts, format!("{mac},{addr}\n"))?;
        let gateway = lab.client_addr(link, Family::V4);
        let mut command = lab.client().command("dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file",
            "--user=root",
            "--port=0",
            "--log-dhcp",
            "--log-facility=-",
            "--bind-interfaces",
            "--dhcp-authoritative",
            "--no-ping",
        ]);
        command.arg(format!("--interface=a{link}"));
        command.arg(format!("--dhcp-range={gateway},static,255.255.255.0,2m"));
        command.arg(format!("--dhcp-hostsfile={}", hosts.display()));
        command.arg(format!("--dhcp-leasefile={}", leases.display()));
        let dnsmasq = Background::spawn(command, dir, &format!("dnsmasq-{link}"))?;
        let modem = Self {
            dnsmasq,
            hosts,
            mac,
        };
        modem.wait_for("started, version", 0)?;
        Ok(modem)
    }

    /// Gives another address from here on. Who asks for the one that it has is refused, as after a reconnection.
    ///
    /// # Errors
    ///
    /// It does not take it.
    pub fn give(&self, addr: &str) -> Result<()> {
        let read = self.dnsmasq.stderr_len()?;
        fs::write(&self.hosts, format!("{},{addr}\n", self.mac))?;
        self.dnsmasq.signal(Signal::HUP)?;
        let file = self.hosts.display().to_string();
        self.wait_for(&file, read)
    }

    fn wait_for(&self, words: &str, from: u64) -> Result<()> {
        let began = Instant::now();
        while !self.dnsmasq.stderr_from(from)?.contains(words) {
            let log = || format!("dnsmasq: {}", self.dnsmasq.stderr());
            ensure!(began.elapsed() < PATIENCE, log());
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

fn mac(lab: &Lab, link: u8) -> Result<String> {
    let told = lab.proxy().ip(&format!("-o link show dev a{link}"))?;
    let mut words = told
        .split_whitespace()
        .skip_while(|word| *word != "link/ether");
    Ok(words.nth(1).context("no address of Ethernet")?.to_owned())
}

/// What udhcpc does with a lease, in the order of Debian's script; names are left as they are.
const SCRIPT: &str = "#!/bin/sh
case $1 in
    bound|renew)
        busybox ifconfig $interface $ip netmask $subnet
        ip -4 route flush exact 0.0.0.0/0 dev $interface
        ip -4 route add default via $router dev $interface metric 200 ;;
    deconfig)
        ip -4 addr flush dev $interface ;;
esac
";

/// udhcpc on the box's end of a link.
#[derive(Debug)]
pub struct DhcpClient {
    udhcpc: Background,
    link: u8,
}

impl DhcpClient {
    /// Starts it in place of the address that the interface has.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start(lab: &Lab, link: u8) -> Result<Self> {
        let script = lab.dir().join("udhcpc.sh");
        fs::write(&script, SCRIPT)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let device = format!("a{link}");
        lab.proxy().ip(&format!("addr flush dev {device}"))?;
        let mut command = lab.proxy().command("udhcpc");
        command.args(["-f", "-i", &device, "-t", "10", "-T", "1", "-s"]);
        command.arg(script);
        let udhcpc = Background::spawn(command, lab.dir(), &format!("udhcpc-{link}"))?;
        Ok(Self { udhcpc, link })
    }

    /// Asks for the same address once more, or for one if it has none.
    ///
    /// # Errors
    ///
    /// It is there no more.
    pub fn renew(&self) -> Result<()> {
        self.udhcpc.signal(Signal::USR1)
    }

    /// Gives its address back, and rests.
    ///
    /// # Errors
    ///
    /// It is there no more.
    pub fn release(&self) -> Result<()> {
        self.udhcpc.signal(Signal::USR2)
    }

    /// Waits until the interface has that address, and its default route.
    ///
    /// # Errors
    ///
    /// It does not get it in ten seconds.
    pub fn wait_for_lease(&self, lab: &Lab, addr: &str) -> Result<()> {
        let device = format!("dev a{}", self.link);
        let address = format!("inet {addr}/");
        self.wait(lab, &device, |routes, addresses| {
            routes.contains("via") && addresses.contains(&address)
        })
    }

    /// Waits until the interface has no address.
    ///
    /// # Errors
    ///
    /// It keeps one for ten seconds.
    pub fn wait_for_none(&self, lab: &Lab) -> Result<()> {
        let device = format!("dev a{}", self.link);
        self.wait(lab, &device, |_, addresses| !addresses.contains("inet "))
    }

    fn wait(&self, lab: &Lab, device: &str, is_so: impl Fn(&str, &str) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let routes = lab.proxy().ip(&format!("-4 route show default {device}"))?;
            let addresses = lab.proxy().ip(&format!("-4 addr show {device}"))?;
            if is_so(&routes, &addresses) {
                return Ok(());
            }
            let log = || format!("{addresses}{routes}udhcpc: {}", self.udhcpc.stderr());
            ensure!(began.elapsed() < PATIENCE, log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
