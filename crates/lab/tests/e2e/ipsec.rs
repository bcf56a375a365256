//! IPsec on FlexCP's host, in tunnels that end there: what a policy covers goes out encrypted and no other way, from the
//! start on or from the moment on that the policy comes.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, ServeOptions, Server};
use flexcp_lab::{Background, End, Expect, Families, Family, Lab, LabBuilder, Namespace, daemon};
use rustix::process::Signal;

use crate::beside::logged;
use crate::features::cases_for;
use crate::rig::{PORT, Rig, config, transparent, with_config};

cases_for!("ipsec":
    Esp: to_the_server,
    Esp: to_the_server_from_the_middle_of_a_transfer,
    Esp: to_the_server_over_ipv6_is_told_to_fail,
    Esp: to_the_server_by_an_xfrm_interface,
    Esp: to_the_clients,
    Esp: to_the_clients_from_the_middle_of_a_transfer,
);

fn lab() -> LabBuilder {
    Lab::builder().rate_mbit(1, 10).rate_mbit(2, 10)
}

/// A tunnel between two hosts, and which packets it is for: those between these prefixes, the near one's first.
struct Tunnel<'a> {
    near: (&'a Namespace, String, &'a str),
    far: (&'a Namespace, String, &'a str),
    /// Of the near host's interface that it is for, if one.
    if_id: Option<u32>,
    spi: u32,
}

impl<'a> Tunnel<'a> {
    /// Between the proxy and its first server.
    fn to_the_server(lab: &'a Lab, family: Family) -> Self {
        let [clients, servers] = match family {
            Family::V4 => ["10.1.0.0/16", "10.9.1.0/24"],
            Family::V6 => ["fd01::/16", "fd09:1::/32"],
        };
        Self {
            near: (
                lab.proxy(),
                lab.proxy_addr_towards(1, family).to_string(),
                clients,
            ),
            far: (
                lab.server(1),
                lab.server_addr(1, family).to_string(),
                servers,
            ),
            if_id: None,
            spi: 0x100,
        }
    }

    /// Between the proxy and the client, for its address on a link.
    fn to_the_client(lab: &'a Lab, link: u8) -> Self {
        let prefix = ["10.1.1.0/24", "10.1.2.0/24"][usize::from(link) - 1];
        let family = Family::V4;
        Self {
            near: (
                lab.proxy(),
                lab.proxy_addr(link, family).to_string(),
                "10.9.0.0/16",
            ),
            far: (
                lab.client(),
                lab.client_addr(link, family).to_string(),
                prefix,
            ),
            if_id: None,
            spi: 0x200 * u32::from(link),
        }
    }

    /// The keys, at both ends; nothing goes through it yet.
    fn key(&self) -> Result<()> {
        let both = |if_id: &str| {
            let state = |(_, from, _): &Ends<'_>, (_, to, _): &Ends<'_>, spi: u32| {
                format!(
                    "xfrm state add src {from} dst {to} proto esp spi {spi:#x} mode tunnel aead rfc4106(gcm(aes)) {KEY} 128 \
                     {if_id}\n"
                )
            };
            state(&self.near, &self.far, self.spi) + &state(&self.far, &self.near, self.spi + 1)
        };
        self.near.0.ip_batch(&both(&self.if_id()))?;
        self.far.0.ip_batch(&both(""))
    }

    /// The policies, the far end's first: from then on neither end takes such packets in the clear.
    fn open(&self) -> Result<()> {
        let policy = |direction: &str, from: &Ends<'_>, to: &Ends<'_>, if_id: &str| {
            format!(
                "xfrm policy add src {} dst {} dir {direction} {if_id} tmpl src {} dst {} proto esp mode tunnel\n",
                from.2, to.2, from.1, to.1
            )
        };
        let (near, far, if_id) = (&self.near, &self.far, self.if_id());
        let of_far = policy("out", far, near, "") + &policy("in", near, far, "");
        far.0.ip_batch(&of_far)?;
        let of_near = policy("out", near, far, &if_id)
            + &policy("fwd", far, near, &if_id)
            + &policy("in", far, near, &if_id);
        near.0.ip_batch(&of_near)
    }

    fn if_id(&self) -> String {
        self.if_id.map_or(String::new(), |id| format!("if_id {id}"))
    }
}

type Ends<'a> = (&'a Namespace, String, &'a str);

/// Of AES-GCM, with its salt.
const KEY: &str = "0x000102030405060708090a0b0c0d0e0f10111213";

/// Leaves room for ESP in the packets of both ends: the host would tell each of them about packets that have another form
/// when they come to FlexCP.
fn leave_room(lab: &Lab) -> Result<()> {
    let routes = |namespace: &Namespace, family: &str| -> Result<()> {
        let tables = namespace.ip(&format!("{family} route show table all default"))?;
        let routes = tables.lines().filter(|line| line.contains(" via "));
        for route in routes {
            // What it says that it can't be told.
            let route = route.replace("pref medium", "");
            namespace.ip(&format!("{family} route change {route} advmss 1300"))?;
        }
        Ok(())
    };
    for (family, name) in [(Family::V4, "-4"), (Family::V6, "-6")] {
        if lab.families().has(family) {
            routes(lab.client(), name)?;
            routes(lab.server(1), name)?;
        }
    }
    Ok(())
}

/// What leaves a device of the proxy: ESP, and TCP as it is.
struct Tap(Background);

impl Tap {
    fn at(lab: &Lab, device: &str) -> Result<Self> {
        let mut command = lab.proxy().command("tcpdump");
        command.args([
            "-l",
            "-n",
            "-tt",
            "--immediate-mode",
            "-Z",
            "root",
            "-Q",
            "out",
            "-i",
            device,
        ]);
        command.args(["esp", "or", "tcp", "or", "ip6", "proto", "50"]);
        let tap = Background::spawn(command, lab.dir(), &format!("tap-{device}"))?;
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !tap.stderr().contains("listening on") {
            ensure!(
                std::time::Instant::now() < deadline,
                "tcpdump: {}",
                tap.stderr()
            );
            sleep(Duration::from_millis(5));
        }
        Ok(Self(tap))
    }

    /// Ends it. How many packets of ESP have left since that moment, in seconds since 1970, and what has left in the clear.
    fn left_since(mut self, since: f64) -> Result<(usize, Vec<String>)> {
        sleep(Duration::from_millis(200));
        self.0.signal(Signal::INT)?;
        ensure!(
            self.0.wait(Duration::from_secs(10))?.is_some(),
            "tcpdump does not stop"
        );
        let said = self.0.stdout();
        let (mut encrypted, mut clear) = (0, vec![]);
        for line in said.lines().filter(|line| !line.trim().is_empty()) {
            let (time, packet) = line.split_once(' ').unwrap_or_default();
            let time: f64 = time
                .parse()
                .with_context(|| format!("no time in {line:?}"))?;
            if time < since {
                continue;
            }
            if packet.contains("ESP(") {
                encrypted += 1;
            } else {
                clear.push(format!("{:.3} s after: {packet}", time - since));
            }
        }
        Ok((encrypted, clear))
    }

    /// An error unless there was ESP, as of a transfer, and nothing else.
    fn only_esp_since(self, since: f64) -> Result<()> {
        let (encrypted, clear) = self.left_since(since)?;
        let few: Vec<_> = clear.iter().take(5).map(String::as_str).collect();
        ensure!(
            clear.is_empty(),
            "{} packets in the clear, {encrypted} of ESP:\n{}",
            clear.len(),
            few.join("\n")
        );
        ensure!(encrypted > 20, "only {encrypted} packets of ESP");
        Ok(())
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The offload is off for the service, and says why.
fn is_kept(rig: &Rig) -> Result<()> {
    if daemon::offload_is_off() {
        return Ok(());
    }
    logged(
        rig,
        "offload: not for service web: an IPsec policy covers its packets",
    )?;
    let stats = rig.flexcp.show("stats")?;
    ensure!(
        stats.contains("not for service web: an IPsec policy"),
        "{stats}"
    );
    Ok(())
}

/// From the start on.
fn before_the_start(
    lab: Lab,
    family: Family,
    tunnels: fn(&Lab) -> Vec<Tunnel<'_>>,
    device: &str,
) -> Result<()> {
    leave_room(&lab)?;
    for tunnel in tunnels(&lab) {
        tunnel.key()?;
        tunnel.open()?;
    }
    transparent(lab, |rig| {
        is_kept(rig)?;
        let tap = Tap::at(&rig.lab, device)?;
        rig.run(family, &Job::both(2_000_000))?;
        tap.only_esp_since(0.0)?;
        ensure!(rig.counter("offload_installed")? == 0, "it was installed");
        Ok(Expect::clean()
            .disturbed(SLOW)
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// From the middle of a transfer on, which the kernel carries until then. `device`: on the way that it takes.
fn under_a_transfer(lab: Lab, tunnels: fn(&Lab) -> Vec<Tunnel<'_>>, device: &str) -> Result<()> {
    leave_room(&lab)?;
    for tunnel in tunnels(&lab) {
        tunnel.key()?;
    }
    transparent(lab, |rig| {
        let tap = Tap::at(&rig.lab, device)?;
        let mut since = 0.0;
        rig.run_while(Family::V4, &Job::both(10_000_000), || {
            rig.wait_for_a_join()?;
            sleep(Duration::from_millis(1500));
            if !daemon::offload_is_off() {
                ensure!(
                    rig.counter("offload_installed")? > 0,
                    "it was not installed"
                );
            }
            for tunnel in tunnels(&rig.lab) {
                tunnel.open()?;
            }
            since = now() + HEEDED.as_secs_f64();
            is_kept(rig)
        })?;
        ensure!(now() > since + 1.0, "the transfer was over too soon");
        tap.only_esp_since(since)?;
        Ok(Expect::clean().disturbed("both ends begin to encrypt"))
    })
}

/// Who emulates processors and encrypts on them lets acknowledgements wait; bytes are judged, not pace.
const SLOW: &str = "encryption on emulated processors";

/// So soon after the policies nothing leaves in the clear any more: FlexCP looks at them once a second.
const HEEDED: Duration = Duration::from_secs(2);

/// The service of the first server alone; that of the second is another.
fn two_services(lab: &Lab) -> String {
    let service = |name: &str, destination: &str| {
        format!(
            "[[service]]\nname = {name:?}\nmode = \"transparent\"\ninterfaces = [\"a1\", \"a2\"]\n\
             destinations = [{destination:?}]\nports = [{PORT}]\n\n"
        )
    };
    config(
        lab,
        &(service("web", "10.9.1.0/24") + &service("other", "10.9.2.0/24")),
    )
}

/// The policy is for the first of two servers: what goes to the second is installed.
fn to_the_server() -> Result<()> {
    let lab = lab().servers(2).build()?;
    leave_room(&lab)?;
    let tunnel = Tunnel::to_the_server(&lab, Family::V4);
    tunnel.key()?;
    tunnel.open()?;
    let told = two_services(&lab);
    with_config(lab, &told, ServeOptions::tcp(PORT), |rig| {
        is_kept(rig)?;
        let tap = Tap::at(&rig.lab, "srv1")?;
        rig.run(Family::V4, &Job::both(2_000_000))?;
        tap.only_esp_since(0.0)?;
        ensure!(rig.counter("offload_installed")? == 0, "it was installed");
        let _other = Server::start(rig.lab.server(2), ServeOptions::tcp(PORT))?;
        let client = Client::mptcp(rig.lab.server_socket(2, Family::V4, PORT));
        rig.run_client(&client, &Job::down(4_000_000))?;
        if !daemon::offload_is_off() {
            ensure!(
                rig.counter("offload_installed")? > 0,
                "the other was not installed"
            );
        }
        Ok(Expect::clean()
            .disturbed(SLOW)
            .exactly(End::Client, "MPJoinSynAckRx", 2))
    })
}

fn to_the_server_from_the_middle_of_a_transfer() -> Result<()> {
    under_a_transfer(
        lab().build()?,
        |lab| vec![Tunnel::to_the_server(lab, Family::V4)],
        "srv1",
    )
}

/// IPv6 has no switches that keep policies from what goes to FlexCP and comes from it: nothing gets through, and it says so.
fn to_the_server_over_ipv6_is_told_to_fail() -> Result<()> {
    let lab = lab().families(Families::V6).build()?;
    leave_room(&lab)?;
    let tunnel = Tunnel::to_the_server(&lab, Family::V6);
    tunnel.key()?;
    tunnel.open()?;
    transparent(lab, |rig| {
        is_kept(rig)?;
        logged(rig, "service web: IPv6 packets meet the IPsec policy")?;
        let tap = Tap::at(&rig.lab, "srv1")?;
        let client = rig.client(Family::V6).patience(Duration::from_secs(4));
        let report = rig.attempt(&client, &Job::both(1000))?;
        ensure!(
            report.ok().is_err(),
            "it gets through, other than FlexCP says"
        );
        let (encrypted, clear) = tap.left_since(0.0)?;
        ensure!(clear.is_empty(), "in the clear: {clear:?}");
        ensure!(encrypted > 0, "no packet has left");
        Ok(Expect::clean().disturbed("the answers to SYNs are dropped"))
    })
}

/// Packets meet the policies of an interface when they are routed to it, which is once.
fn to_the_server_by_an_xfrm_interface() -> Result<()> {
    const BEHIND: &str = "fd09:8::2";
    let lab = lab().families(Families::V6).build()?;
    lab.server(1)
        .ip(&format!("addr add {BEHIND}/128 dev lo nodad"))?;
    lab.proxy().ip_batch(
        "link add xfrm0 type xfrm dev srv1 if_id 7\nlink set xfrm0 up\nroute add fd09:8::/32 dev xfrm0\n",
    )?;
    leave_room(&lab)?;
    let mut tunnel = Tunnel::to_the_server(&lab, Family::V6);
    tunnel.far.2 = "fd09:8::/32";
    tunnel.if_id = Some(7);
    tunnel.key()?;
    tunnel.open()?;
    transparent(lab, |rig| {
        let tap = Tap::at(&rig.lab, "srv1")?;
        let client = Client::mptcp(SocketAddr::new(BEHIND.parse()?, PORT));
        rig.run_client(&client, &Job::both(2_000_000))?;
        tap.only_esp_since(0.0)?;
        Ok(Expect::clean()
            .disturbed(SLOW)
            .exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn to_both_addresses(lab: &Lab) -> Vec<Tunnel<'_>> {
    vec![Tunnel::to_the_client(lab, 1), Tunnel::to_the_client(lab, 2)]
}

fn to_the_clients() -> Result<()> {
    before_the_start(lab().build()?, Family::V4, to_both_addresses, "a1")
}

fn to_the_clients_from_the_middle_of_a_transfer() -> Result<()> {
    under_a_transfer(lab().build()?, to_both_addresses, "a1")
}
