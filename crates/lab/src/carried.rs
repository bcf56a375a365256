//! Who carries a transfer's data: the programs in the kernel, or the workers.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexcp_testkit::Stats;
use serde::{Deserialize, Serialize};

use crate::daemon::{self, FlexCp};
use crate::topology::{Families, Family, Lab, require_root};
use crate::transfer::{Client, Job, ServeOptions, Server};
use crate::upper::Upper;

/// A transfer over two access links.
#[derive(Clone, Copy, Debug, Args)]
pub struct Transfer {
    /// IPv6 instead of IPv4
    #[arg(long)]
    pub v6: bool,
    /// From the client to the server, over one link
    #[arg(long)]
    pub up: bool,
    /// Over VLANs
    #[arg(long)]
    pub vlan: bool,
    /// How much
    #[arg(long, default_value_t = 150_000_000)]
    pub bytes: u64,
    /// Rate of each link in Mbit/s
    #[arg(long, default_value_t = 200)]
    pub rate_mbit: u32,
}

/// What became of a transfer's data packets. A packet of several segments counts once, for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets that came to the proxy from the data's sender, as the proxy's devices counted them.
    pub data: u64,
    /// Those that the programs in the kernel translated, by FlexCP's counters.
    pub in_kernel: u64,
    /// Times that a connection was installed in the programs.
    pub installed: u64,
}

impl Carried {
    /// The share in the kernel, of 100.
    #[allow(clippy::cast_precision_loss, reason = "a share for people")]
    pub fn percent(&self) -> f64 {
        self.in_kernel as f64 * 100.0 / self.data.max(1) as f64
    }
}

impl Transfer {
    /// Runs it through FlexCP, in a lab of its own.
    ///
    /// # Errors
    ///
    /// The transfer failed, or it did not go through FlexCP as MPTCP.
    pub fn run(self) -> Result<Carried> {
        require_root()?;
        let links = if self.up { 1 } else { 2 };
        let family = if self.v6 { Family::V6 } else { Family::V4 };
        let mut builder = Lab::builder().access_links(links).families(match family {
            Family::V4 => Families::V4,
            Family::V6 => Families::V6,
        });
        for link in 1..=links {
            builder = builder.rate_mbit(link, self.rate_mbit);
            if self.vlan {
                builder = builder.upper(link, Upper::Vlan);
            }
        }
        let lab = builder.build()?;
        let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
        let config = daemon::config(&lab, &daemon::transparent(&lab, &[]));
        let flexcp = FlexCp::start(&lab, &config)?;
        let carried = self.through(&lab, PORT, || flexcp.show_stats());
        let carried = carried.with_context(|| flexcp.log())?;
        eprint!("{}", flexcp.log());
        flexcp.stop()?;
        drop(server);
        Ok(carried)
    }

    /// Runs it in this lab, to its server at `port`, through the FlexCP whose counters `stats` gives.
    ///
    /// # Errors
    ///
    /// As [`Transfer::run`].
    pub(crate) fn through(
        self,
        lab: &Lab,
        port: u16,
        stats: impl Fn() -> Result<Stats>,
    ) -> Result<Carried> {
        let (before, arrived) = (given_back(&stats)?, self.arrived(lab)?);
        let family = if self.v6 { Family::V6 } else { Family::V4 };
        let client = Client::mptcp(lab.server_socket(1, family, port));
        let job = if self.up {
            Job::up(self.bytes)
        } else {
            Job::down(self.bytes)
        };
        let report = client.run_in(lab.client(), &job)?;
        report.ok().with_context(|| format!("{job:?}"))?;
        let data = self.arrived(lab)? - arrived;
        let after = given_back(&stats)?;
        let established = after.established - before.established;
        ensure!(established == 1, "{established} connections of MPTCP");
        let in_kernel = if self.up {
            after.up - before.up
        } else {
            after.down - before.down
        };
        Ok(Carried {
            data,
            in_kernel,
            installed: after.installed - before.installed,
        })
    }

    /// Runs it, and prints what was carried as a line of JSON.
    ///
    /// # Errors
    ///
    /// As [`Transfer::run`].
    pub fn print(self) -> Result<()> {
        println!("{}", serde_json::to_string(&self.run()?)?);
        Ok(())
    }

    /// Packets that the proxy has received from the side where the data comes from.
    fn arrived(self, lab: &Lab) -> Result<u64> {
        let side = if self.up { "a" } else { "srv" };
        let table = lab.proxy().proc_net("dev")?;
        Ok(received(&table, side))
    }
}

/// Packets that the proxy has received from all servers. One of several segments counts once.
///
/// # Errors
///
/// The counters can't be read.
pub fn from_servers(lab: &Lab) -> Result<u64> {
    Ok(received(&lab.proxy().proc_net("dev")?, "srv"))
}

/// Packets that the proxy has received by its access links. One of several segments counts once.
///
/// # Errors
///
/// The counters can't be read.
pub fn from_links(lab: &Lab) -> Result<u64> {
    Ok(received(&lab.proxy().proc_net("dev")?, "a"))
}

/// Packets of servers that the programs in the kernel have translated, once FlexCP has every connection back.
///
/// # Errors
///
/// FlexCP does not answer, or has not got them back in time.
pub fn down_in_kernel(flexcp: &FlexCp) -> Result<u64> {
    Ok(given_back(|| flexcp.show_stats())?.down)
}

/// The sum of the packets received by the devices whose name is `side` and a number, of `/proc/net/dev`.
fn received(table: &str, side: &str) -> u64 {
    let rows = table.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let number = name.trim().strip_prefix(side)?;
        number.parse::<u8>().ok()?;
        // Bytes, then packets.
        counts.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    rows.sum()
}

struct Counters {
    established: u64,
    installed: u64,
    evicted: u64,
    down: u64,
    up: u64,
}

/// FlexCP's counters once it has back what it installed: the packets are counted then.
fn given_back(stats: impl Fn() -> Result<Stats>) -> Result<Counters> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = stats()?;
        let counters = Counters {
            established: stats.counter("mp_capable_ack_rx")?,
            installed: stats.counter("offload_installed")?,
            evicted: stats.counter("offload_evicted")?,
            down: stats.counter("offload_packets_down")?,
            up: stats.counter("offload_packets_up")?,
        };
        if counters.installed == counters.evicted {
            return Ok(counters);
        }
        ensure!(
            Instant::now() < deadline,
            "installed and not evicted: {stats}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

const PORT: u16 = 5000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_are_packets_of_one_side() {
        let table = "Inter-| Receive\n face |bytes packets errs\n    lo: 5 6 0\n    a1: 100 20 0\n    a2: 50 7 0\n\
                     srv1:999999 3000 0\n  abc: 1 1 0\n";
        assert_eq!(received(table, "a"), 27);
        assert_eq!(received(table, "srv"), 3000);
    }

    #[test]
    fn percent_is_of_the_data() {
        let carried = Carried {
            data: 200,
            in_kernel: 190,
            installed: 1,
        };
        assert_eq!(carried.percent().to_bits(), 95.0_f64.to_bits());
        let nothing = Carried {
            data: 0,
            in_kernel: 0,
            installed: 0,
        };
        assert_eq!(nothing.percent().to_bits(), 0.0_f64.to_bits());
    }
}
