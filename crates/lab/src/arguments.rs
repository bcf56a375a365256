//! The command line of `lab`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use flexcp_faults::Faults;
use flexcp_lab::aggregation::Aggregation;
use flexcp_lab::attack::HostileMemory;
use flexcp_lab::endings::Endings;
use flexcp_lab::firewall::Firewall;
use flexcp_lab::location::Location;
use flexcp_lab::matrix::Side;
use flexcp_lab::reload::Reload;
use flexcp_lab::repeat::Repeat;
use flexcp_lab::split::Split;
use flexcp_lab::steering::{RuleChanges, Steering};
use flexcp_lab::transfer::{Mode, Proto};
use flexcp_lab::ttfb::Ttfb;
use flexcp_lab::uplinks::Uplinks;
use flexcp_lab::watch::Watch;
use flexcp_lab::{carried, kernels, seed};

/// Network namespaces, faults and transfers around FlexCP.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Fetch a file over two links, cut one on the way, and show what happened
    Demo(DemoArgs),
    /// Build a lab and leave it up
    Up(UpArgs),
    /// Build a lab, open a shell in its client, and remove it at the end
    Shell(UpArgs),
    /// Remove a lab that was left up, or all that no living process owns
    Clean {
        /// Its name, e.g. fxl1234
        prefix: Option<String>,
    },
    /// Carry packets between two interfaces of this network namespace, with faults
    ///
    /// Reads commands from standard input, one a line: `up FAULTS` and `down FAULTS` replace the
    /// faults of a direction, `show` prints the counters as JSON. Ends with the input.
    Link(LinkArgs),
    /// Measure how exact emulated links are, and how fast
    LinkSelftest {
        /// IPv6 instead of IPv4
        #[arg(long)]
        v6: bool,
    },
    /// Attack FlexCP beside honest traffic: floods, blind injection, a hostile client
    Attack(AttackArgs),
    /// Hold all the mappings that FlexCP lets hostile clients hold: its memory, and honest transfers beside them
    HostileMemory(HostileMemory),
    /// Run the fault matrix: small transfers through FlexCP over faulty links
    Faults(FaultsArgs),
    /// Measure FlexCP beside TCP and kernel-to-kernel MPTCP over the same links
    Compare(CompareArgs),
    /// Try FlexCP on every kernel that users run: Debian's under emulation, and the running one
    Kernels(kernels::Arguments),
    /// Try it on the running kernel alone: the items of `kernels`, a line of JSON each
    KernelItems(kernels::ItemArguments),
    /// Try the unit under Debian 12's own systemd, on its kernels under emulation
    UnitBoot(kernels::UnitBoot),
    /// Try it on this machine, which is changed by it: the items of `unit-boot`, a line of JSON each
    UnitItems(kernels::UnitItems),
    /// Run a transfer through FlexCP and say how much of its data the kernel carried, as JSON
    Carried(carried::Transfer),
    /// Many connections with much data over links that lose single segments
    Lossy(LossyArgs),
    /// Rules of netfilter on FlexCP's host: what they cost, what is taken for invalid, whether NAT is applied
    Firewall(Firewall),
    /// Stop FlexCP under transfers, or kill it and start it again: how long clients and servers wait to hear of it
    Endings(Endings),
    /// Reload FlexCP's configuration again and again under transfers: what services that stay lose, what broken files change
    Reload(Reload),
    /// Measure each steering mode by what the links carry: shares, gaps, spills, and how often connections move
    Steering(Steering),
    /// Change rules under downloads that they steer: what those lose, what wrong rules change, how often rules are saved
    RuleChanges(RuleChanges),
    /// Measure what one split download takes of two paths, and what it costs, beside haproxy
    Split(Split),
    /// Measure how long clients that name their server to a proxy wait for its first byte
    Ttfb(Ttfb),
    /// Lose an uplink of an aggregation box under downloads, and change its address again and again: how long they wait
    Uplinks(Uplinks),
    /// Measure downloads through an aggregation box over two uplinks of 4G, beside its peers: T-MPTCP's Figures 5a and 5b
    Box(Aggregation),
    /// Let a box choose among the five aggregation servers of T-MPTCP's Table 1, and hold its choice against downloads by each
    Location(Location),
    /// Take away rules, routes, links and addresses under live transfers: how soon they are back, or told
    Watch(Watch),
    /// Run the end-to-end tests many times, one attempt each, and say how often each case failed
    ///
    /// Goes on where a run of the same commit was broken off. Exit code 1 when more than one run failed.
    Repeat(Repeat),
    /// Hold captures from both sides of FlexCP against the rules of the wire
    ///
    /// Captures are those of tcpdump; 256 bytes of each packet are enough. They need the SYN of every
    /// connection that is to be judged. Exit code 1 when a rule was broken.
    Wirecheck(WirecheckArgs),
    /// Move checked bytes over real sockets
    #[command(subcommand)]
    Transfer(TransferCommand),
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Leave the lab up at the end and say how to enter it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Size of the file
    #[arg(long, default_value_t = 100_000_000)]
    pub(crate) bytes: u64,
    /// Rate of each link in Mbit/s
    #[arg(long, default_value_t = 200)]
    pub(crate) rate_mbit: u32,
    /// For comparison: no FlexCP, the server speaks MPTCP itself
    #[arg(long)]
    pub(crate) direct: bool,
}

#[derive(Args)]
pub(crate) struct UpArgs {
    /// Access links between client and proxy
    #[arg(long, default_value_t = 2)]
    pub(crate) links: u8,
    /// Servers
    #[arg(long, default_value_t = 1)]
    pub(crate) servers: u8,
    /// IP versions
    #[arg(long, value_enum, default_value_t = FamiliesArg::Both)]
    pub(crate) families: FamiliesArg,
    /// Rate of each link in Mbit/s
    #[arg(long)]
    pub(crate) rate_mbit: Option<u32>,
    /// Start FlexCP with this file; {dir} in it becomes the lab's directory
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FamiliesArg {
    V4,
    V6,
    Both,
}

#[derive(Args)]
pub(crate) struct FaultsArgs {
    /// What FlexCP is: the mirror is `--side box,converter`; `kernel` shows what kernels do without it
    #[arg(long = "side", value_delimiter = ',', default_value = "proxy")]
    pub(crate) sides: Vec<Side>,
    /// Cells whose name has this in it, e.g. loss-1/v4 or /down/4/ (may be given several times)
    #[arg(long = "cell")]
    pub(crate) cells: Vec<String>,
    /// That many cells, spread over the matrix
    #[arg(long)]
    pub(crate) sample: Option<usize>,
    /// Start no cell after that many minutes
    #[arg(long)]
    pub(crate) minutes: Option<u64>,
    /// Cells at once
    #[arg(long, default_value_t = 2)]
    pub(crate) jobs: usize,
    /// Chooses the luck of every packet: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    pub(crate) seed: u64,
    /// Hold captures of every cell against the rules of the wire, and leave those of failed cells here
    #[arg(long)]
    pub(crate) captures: Option<PathBuf>,
    /// List the cells and run nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Where faults.json and faults.md go, or faults-box.json and so on by the first side
    #[arg(long, default_value = "lab/results")]
    pub(crate) results: PathBuf,
}

#[derive(Args)]
pub(crate) struct AttackArgs {
    /// Attacks by name; all when there are none
    pub(crate) names: Vec<String>,
    /// List the attacks and run nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// How long each goes on, at least
    #[arg(long, default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Packets a second, instead of each attack's own
    #[arg(long)]
    pub(crate) rate: Option<u32>,
    /// FlexCP's bound on handshakes that are not complete, instead of its default
    #[arg(long)]
    pub(crate) half_open: Option<usize>,
    /// Chooses addresses and numbers of the attacker's: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    pub(crate) seed: u64,
    /// Print JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Where attack.json and attack.md go
    #[arg(long, default_value = "lab/results")]
    pub(crate) results: PathBuf,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Transfers of each kind over each link
    #[arg(long, default_value_t = 3)]
    pub(crate) runs: usize,
    /// Transfers of each kind with a path that is cut
    #[arg(long, default_value_t = 5)]
    pub(crate) cuts: usize,
    /// Congestion control of the servers, e.g. cubic (default: the kernel's)
    #[arg(long)]
    pub(crate) congestion: Option<String>,
    /// Where compare.json goes
    #[arg(long, default_value = "lab/results")]
    pub(crate) results: PathBuf,
}

#[derive(Args)]
pub(crate) struct LossyArgs {
    /// Loss in each direction of both links (may be given several times)
    #[arg(long = "loss", default_values = ["0.1%", "1%", "5%"])]
    pub(crate) losses: Vec<String>,
    /// Connections at once, of two subflows each
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: usize,
    /// Of all connections at all losses together, up and down together
    #[arg(long, default_value_t = 10_000_000_000)]
    pub(crate) bytes: u64,
    /// Chooses the luck of every packet: a number, or `fresh`
    #[arg(long, default_value = "1", value_parser = seed::parse)]
    pub(crate) seed: u64,
    /// Where lossy.json goes
    #[arg(long, default_value = "lab/results")]
    pub(crate) results: PathBuf,
}

#[derive(Args)]
pub(crate) struct WirecheckArgs {
    /// Captures from the clients' side, then one from the servers' side; with --box from the uplinks, then one from the LAN
    #[arg(num_args = 2.., required = true, value_name = "CLIENT.pcap... SERVER.pcap")]
    pub(crate) files: Vec<PathBuf>,
    /// Further captures from the servers' side, or from LANs
    #[arg(long, value_name = "PCAP")]
    pub(crate) server: Vec<PathBuf>,
    /// Segmentation and checksum offloads were off: judge lengths and checksums as well
    #[arg(long)]
    pub(crate) offloads_off: bool,
    /// FlexCP's programs in the kernel were off: all packets leave in one order
    #[arg(long)]
    pub(crate) without_programs: bool,
    /// FlexCP is an aggregation box: clients in the LAN have TCP, and it opens MPTCP for them over its uplinks
    #[arg(long = "box")]
    pub(crate) aggregates: bool,
    /// Clients that connect there name their server by Convert; with --box, an aggregation server that is told so
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) convert: Vec<SocketAddr>,
    /// With --box, an aggregation server that is told so by Convert, and takes that with the SYN once it has connected on
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) early: Vec<SocketAddr>,
    /// Clients that connect there name their server by SOCKS5; with --box, an aggregation server that is told so
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) socks5: Vec<SocketAddr>,
}

#[derive(Args)]
pub(crate) struct LinkArgs {
    /// The interface where the way up begins
    pub(crate) first: String,
    /// The interface where it ends
    pub(crate) second: String,
    /// Faults from the first interface to the second, e.g. loss=1%,delay=10ms
    #[arg(long, default_value = "")]
    pub(crate) up: Faults,
    /// Faults from the second interface to the first
    #[arg(long, default_value = "")]
    pub(crate) down: Faults,
    /// Decides the luck of every packet
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Subcommand)]
pub(crate) enum TransferCommand {
    /// Serve until killed; one line of JSON for every connection
    Serve {
        /// Port, on all addresses
        #[arg(long, default_value_t = 5000)]
        port: u16,
        /// Protocol of the listening socket
        #[arg(long, value_enum, default_value_t = Proto::Tcp)]
        proto: Proto,
        /// Bytes to send before the client has said anything
        #[arg(long, default_value_t = 0)]
        banner: u64,
    },
    /// Fetch bytes
    Get {
        /// Address and port of the server
        server: SocketAddr,
        /// How many
        bytes: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
    /// Send bytes
    Put {
        /// Address and port of the server
        server: SocketAddr,
        /// How many
        bytes: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
    /// Any other order of events
    Run {
        /// Address and port of the server
        server: SocketAddr,
        /// What happens
        #[arg(long, value_enum)]
        mode: Mode,
        /// Bytes to the server
        #[arg(long, default_value_t = 0)]
        up: u64,
        /// Bytes from the server
        #[arg(long, default_value_t = 0)]
        down: u64,
        /// Number of exchanges (ping-pong)
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// Pause between exchanges, or time to hold, in milliseconds
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
        #[command(flatten)]
        options: ClientArgs,
    },
}

#[derive(Args)]
pub(crate) struct ClientArgs {
    /// Protocol of the socket
    #[arg(long, value_enum, default_value_t = Proto::Mptcp)]
    pub(crate) proto: Proto,
    /// Connections at once
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: usize,
    /// Own address
    #[arg(long)]
    pub(crate) from: Option<IpAddr>,
    /// Bytes the server sends first
    #[arg(long, default_value_t = 0)]
    pub(crate) banner: u64,
    /// Read at most that many bytes a second
    #[arg(long)]
    pub(crate) read_rate: Option<u64>,
    /// Receive buffer in bytes (SO_RCVBUF; the kernel doubles it)
    #[arg(long)]
    pub(crate) receive_buffer: Option<usize>,
    /// Chooses the payload
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Give up after that many seconds without progress
    #[arg(long, default_value_t = 30)]
    pub(crate) patience: u64,
}
