//! FlexCP under test: its configuration, its process, what it reports.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_testkit::Stats;
use rustix::process::Signal;
use serde_json::Value;

use crate::ledger::{self, DevicePackets};
use crate::manager::Manager;
use crate::namespace::Namespace;
use crate::process::{Background, describe_exit, output};
use crate::topology::{Families, Family, Lab};

/// A running `flexcp run` in the proxy's namespace of a lab.
///
/// Killed when dropped; [`FlexCp::stop`] ends it in the way it is meant to end.
#[derive(Debug)]
pub struct FlexCp {
    process: Background,
    binary: PathBuf,
    socket: PathBuf,
    namespace: Namespace,
}

impl FlexCp {
    /// Starts it with this configuration and waits until it answers.
    pub fn start(lab: &Lab, config: &str) -> Result<Self> {
        let mut flexcp = Self::spawn(lab, Self::command(lab, config)?)?;
        flexcp.wait_until_ready()?;
        Ok(flexcp)
    }

    /// The same as a service of this manager.
    pub fn start_as_service(lab: &Lab, config: &str, manager: &mut Manager) -> Result<Self> {
        let command = manager.of_service(&Self::command(lab, config)?)?;
        let flexcp = Self::spawn(lab, command);
        manager.started()?;
        let mut flexcp = flexcp?;
        flexcp.wait_until_ready()?;
        Ok(flexcp)
    }

    /// Starts an example of the crate `flexcp` in its place, which runs a proxy with this configuration: the file is the first
    /// of its arguments, `words` are the others.
    pub fn start_example(lab: &Lab, config: &str, name: &str, words: &[&str]) -> Result<Self> {
        let file = lab.dir().join("flexcp.toml");
        fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
        let mut command = lab.proxy().command(example(name)?);
        command.arg(file).args(words);
        let mut flexcp = Self::spawn(lab, command)?;
        flexcp.wait_until_ready()?;
        Ok(flexcp)
    }

    fn spawn(lab: &Lab, command: Command) -> Result<Self> {
        let binary = binary()?;
        let process = Background::spawn(command, lab.dir(), "flexcp")?;
        Ok(Self {
            process,
            binary,
            socket: socket(lab),
            namespace: lab.proxy().clone(),
        })
    }

    /// The same of a command in another namespace, with its own socket; its output is under `name`.
    pub(crate) fn spawn_at(
        (namespace, name): (&Namespace, &str),
        (command, socket, dir): (Command, PathBuf, &Path),
    ) -> Result<Self> {
        let mut flexcp = Self {
            process: Background::spawn(command, dir, name)?,
            binary: binary()?,
            socket,
            namespace: namespace.clone(),
        };
        flexcp.wait_until_ready()?;
        Ok(flexcp)
    }

    /// The command `flexcp run` on this configuration, in the proxy's namespace.
    pub fn command(lab: &Lab, config: &str) -> Result<Command> {
        let file = lab.dir().join("flexcp.toml");
        fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
        let resolver = lab.dir().join(RESOLVER);
        let mut command = if resolver.exists() {
            let mut command = lab.proxy().command("unshare");
            command.args(["--mount", "sh", "-c", ITS_RESOLVER]);
            command.arg(resolver).arg(binary()?);
            command
        } else {
            lab.proxy().command(binary()?)
        };
        command.args(["run", "--config"]).arg(file);
        Ok(command)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged: standard error, then standard output.
    pub fn log(&self) -> String {
        self.process.stderr() + &self.process.stdout()
    }

    /// `flexcp show connections --json`
    pub fn show_connections(&self) -> Result<Value> {
        self.show_json("connections")
    }

    /// `flexcp show stats --json`
    pub fn show_stats(&self) -> Result<Stats> {
        let output = output(self.show_command("stats").arg("--json"))?;
        Stats::parse(&output.stdout).context("flexcp show stats --json")
    }

    /// `flexcp show WHAT` as a human reads it.
    pub fn show(&self, what: &str) -> Result<String> {
        let output = output(&mut self.show_command(what))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `flexcp WORDS`: tells it something. Gives what that prints.
    pub fn tell(&self, words: &[&str]) -> Result<String> {
        let output = output(&mut self.asking(words))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// An error if it has ended.
    pub fn alive(&mut self) -> Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("flexcp: {}\n{}", describe_exit(status), self.log()),
        }
    }

    /// An error unless every packet is accounted for: in FlexCP's own counters, and in those of its device. Waits for a
    /// moment without a packet.
    pub fn accounts_for_all(&self) -> Result<()> {
        let deadline = Instant::now() + QUIET;
        loop {
            let before = DevicePackets::read(&self.namespace, DEVICE)?;
            let stats = self.show_stats()?;
            let after = DevicePackets::read(&self.namespace, DEVICE)?;
            let judged = ledger::judge(&stats, after);
            if judged.is_ok() || (before == after && Instant::now() > deadline) {
                return judged;
            }
            ensure!(
                Instant::now() < deadline + QUIET,
                "packets pass FlexCP's device without end: {before:?}, {after:?}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes another configuration, sends SIGHUP, and waits for what comes of it.
    pub fn reload(&mut self, lab: &Lab, config: &str) -> Result<Reloaded> {
        let file = lab.dir().join("flexcp.toml");
        fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
        let start = self.process.stderr_len()?;
        let began = Instant::now();
        self.process.signal(Signal::HUP)?;
        loop {
            let log = self.process.stderr_from(start)?;
            let in_force = log.contains("is in force, after");
            if in_force || log.contains("stays in force") {
                return Ok(Reloaded {
                    in_force,
                    took: began.elapsed(),
                    log,
                });
            }
            self.alive()?;
            ensure!(
                began.elapsed() < RELOADED,
                "no reload within {RELOADED:?}\n{log}"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends SIGTERM; it must exit with code 0 and in time, and have accounted for every packet before that.
    pub fn stop(mut self) -> Result<()> {
        self.alive()?;
        self.accounts_for_all().with_context(|| {
            format!("{}\n{}", self.show("stats").unwrap_or_default(), self.log())
        })?;
        self.terminate()
    }

    /// Sends SIGTERM, and does not wait.
    pub fn begin_to_stop(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Sends SIGTERM, whatever is under way; it must exit with code 0 and in time.
    pub fn terminate(mut self) -> Result<()> {
        self.alive()?;
        self.begin_to_stop()?;
        self.ended()
    }

    /// Waits for its end; it must exit with code 0 and in time.
    pub fn ended(mut self) -> Result<()> {
        let Some(status) = self.process.wait(STOPPED)? else {
            bail!(
                "flexcp does not end within {STOPPED:?} of SIGTERM\n{}",
                self.log()
            );
        };
        // With checks on, one thread may panic and the others go on.
        ensure!(!self.log().contains("panicked at"), "{}", self.log());
        ensure!(
            status.success(),
            "flexcp: {}\n{}",
            describe_exit(status),
            self.log()
        );
        Ok(())
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(Duration::from_secs(2))?;
        Ok(())
    }

    /// Leaves it running when this value is dropped.
    pub fn detach(mut self) {
        self.process.detach();
    }

    /// The command that asks this daemon, for humans to copy.
    pub fn show_command_line(&self) -> String {
        format!(
            "{} show connections --socket {}",
            self.binary.display(),
            self.socket.display()
        )
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The command `flexcp WORDS`, which asks this daemon.
    pub fn asking(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).arg("--socket").arg(&self.socket);
        command
    }

    fn show_command(&self, what: &str) -> Command {
        self.asking(&["show", what])
    }

    /// `flexcp show WHAT --json`
    pub fn show_json(&self, what: &str) -> Result<Value> {
        let output = output(self.show_command(what).arg("--json"))?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("flexcp show {what} --json"))
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            self.alive()?;
            let answer = self.show_stats();
            if answer.is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                answer.with_context(|| format!("flexcp does not answer\n{}", self.log()))?;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A file in a lab's directory which FlexCP sees in place of the host's /etc/resolv.conf, if it is there when FlexCP starts.
pub const RESOLVER: &str = "resolv.conf";

/// Runs a command with another file there.
const ITS_RESOLVER: &str = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";

/// What came of a reload.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The new configuration is in force; otherwise the one before.
    pub in_force: bool,
    /// From the signal to the line in the log.
    pub took: Duration,
    /// What was logged since the signal.
    pub log: String,
}

/// Runs `flexcp check` on a configuration; its output, whatever the exit code.
pub fn check(lab: &Lab, config: &str) -> Result<Output> {
    checked(lab, config, &[])
}

/// The same, also against the host.
pub fn check_live(lab: &Lab, config: &str) -> Result<Output> {
    checked(lab, config, &["--live"])
}

fn checked(lab: &Lab, config: &str, flags: &[&str]) -> Result<Output> {
    let file = lab.dir().join("flexcp-check.toml");
    fs::write(&file, config)?;
    let mut command = lab.proxy().command(binary()?);
    command
        .arg("check")
        .args(flags)
        .arg("--config")
        .arg(file)
        .output()
        .context("flexcp check")
}

/// A configuration for a lab: the common tables, then `services` as they are.
pub fn config(lab: &Lab, services: &str) -> String {
    config_of_workers(lab, 1, services)
}

/// The same for several workers.
pub fn config_of_workers(lab: &Lab, workers: u16, services: &str) -> String {
    config_of_device(lab, &format!("workers = {workers}"), services)
}

/// Whether the environment turns the offload off (`FLEXCP_OFFLOAD=off`).
pub fn offload_is_off() -> bool {
    env::var_os("FLEXCP_OFFLOAD").is_some_and(|value| value == "off")
}

/// The same with further lines of its `[device]` section.
///
/// The offload is on, as it is by default, unless the environment turns it off.
pub fn config_of_device(lab: &Lab, lines: &str, services: &str) -> String {
    let offload = if offload_is_off() {
        "[offload]\nenabled = false\n\n"
    } else {
        ""
    };
    format!(
        "[device]\nname = {DEVICE:?}\ntable = 7300\n{lines}\n\n{offload}\
         [control]\nsocket = {:?}\nstate_dir = {:?}\n\n{services}",
        socket(lab),
        lab.dir()
    )
}

/// A transparent service for everything that goes to the lab's servers.
///
/// `announce` are addresses of the proxy that clients are told to join.
pub fn transparent(lab: &Lab, announce: &[String]) -> String {
    let interfaces: Vec<_> = (1..=lab.links()).map(|link| format!("a{link}")).collect();
    let destinations: &[&str] = match lab.families() {
        Families::V4 => &["10.9.0.0/16"],
        Families::V6 => &["fd09::/16"],
        Families::Both => &["10.9.0.0/16", "fd09::/16"],
        Families::Neither => &[],
    };
    let mut service = "[[service]]\nname = \"web\"\nmode = \"transparent\"\n".to_owned();
    let _ = writeln!(service, "interfaces = {interfaces:?}");
    let _ = writeln!(service, "destinations = {destinations:?}");
    let _ = writeln!(service, "ports = [80, \"4000-5999\"]");
    let _ = writeln!(service, "announce = {announce:?}");
    service
}

/// An aggregation box whose uplinks are the lab's links, for clients in the LAN of server 1; `servers` are aggregation servers as in the
/// configuration.
pub fn aggregation(lab: &Lab, destinations: &[&str], servers: &str) -> String {
    let uplinks: Vec<_> = (1..=lab.links()).map(|link| format!("a{link}")).collect();
    format!(
        "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
         destinations = {destinations:?}\nuplinks = {uplinks:?}\nservers = [{servers}]\n"
    )
}

/// An access for each link, by where clients come from on it: `a` for link 1, `b` for link 2, and so on.
pub fn accesses(lab: &Lab) -> String {
    let mut accesses = String::new();
    for (link, name) in (1..=lab.links()).zip('a'..) {
        let _ = write!(accesses, "[[access]]\nname = \"{name}\"\nclients = [");
        let families = [(Family::V4, 24), (Family::V6, 64)].into_iter();
        for (family, len) in families.filter(|(family, _)| lab.families().has(*family)) {
            let _ = write!(
                accesses,
                "\"{}/{len}\", ",
                network(lab.client_addr(link, family))
            );
        }
        accesses.push_str("]\n\n");
    }
    accesses
}

/// The network that a host on a link of the lab is in.
pub(crate) fn network(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !0xff).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// A reverse service.
pub fn reverse(name: &str, listen: &[String], backends: &[String], announce: &[String]) -> String {
    format!(
        "[[service]]\nname = {name:?}\nmode = \"reverse\"\nlisten = {listen:?}\n\
         backends = {backends:?}\nannounce = {announce:?}\n"
    )
}

/// A service whose clients name their server: `mode` is "convert" or "socks5".
pub fn explicit(mode: &str, listen: &[String], allow: &[&str]) -> String {
    format!(
        "[[service]]\nname = \"any\"\nmode = {mode:?}\nlisten = {listen:?}\nallow = {allow:?}\n"
    )
}

/// Where FlexCP's program is: `FLEXCP_BIN`, or beside the running program, so that it is of the same profile. One of
/// another profile, or an older one elsewhere, would be another program than the one that was asked to be tested.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("FLEXCP_BIN") {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "FLEXCP_BIN={} is not a file",
            path.display()
        );
        return Ok(path);
    }
    let this = env::current_exe()?;
    beside(&this).with_context(|| {
        format!(
            "no flexcp program beside {}: build it (cargo build -p flexcp, with the --profile of this program) or set \
             FLEXCP_BIN",
            this.display()
        )
    })
}

/// An example of the crate `flexcp`, beside its program.
fn example(name: &str) -> Result<PathBuf> {
    let path = binary()?.with_file_name("examples").join(name);
    ensure!(
        path.is_file(),
        "no example {}: build it (cargo build -p flexcp --examples, with the --profile of flexcp)",
        path.display()
    );
    Ok(path)
}

/// Tests run from target/<profile>/deps, programs from target/<profile>.
fn beside(this: &Path) -> Option<PathBuf> {
    let near = this.ancestors().skip(1).take(2);
    near.map(|dir| dir.join("flexcp"))
        .find(|path| path.is_file())
}

/// FlexCP's device in every lab.
const DEVICE: &str = "flexcp0";

/// How long FlexCP may take to end: as long as it lets connections end by themselves, unless told otherwise, and two
/// seconds.
const STOPPED: Duration = Duration::from_secs(7);

/// How long a reload may take.
const RELOADED: Duration = Duration::from_secs(20);

/// How long packets may go on passing when a transfer is over.
const QUIET: Duration = Duration::from_secs(3);

fn socket(lab: &Lab) -> PathBuf {
    lab.dir().join("flexcp.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_the_one_of_the_same_profile() {
        let target = env::temp_dir().join(format!("flexcp-beside-{}", std::process::id()));
        for profile in ["release", "checked"] {
            fs::create_dir_all(target.join(profile).join("deps")).expect("writable");
        }
        fs::write(target.join("release/flexcp"), "").expect("writable");
        let test = target.join("checked/deps/e2e-1234");
        assert_eq!(beside(&test), None);
        fs::write(target.join("checked/flexcp"), "").expect("writable");
        assert_eq!(beside(&test), Some(target.join("checked/flexcp")));
        assert_eq!(
            beside(&target.join("release/bench")),
            Some(target.join("release/flexcp"))
        );
        fs::remove_dir_all(&target).expect("there");
    }
}
