//! A laboratory for FlexCP: network namespaces with real kernels at both ends.
//!
//! A [`Lab`] is a client with n access links, a proxy and servers. Programs run
//! in it, links are cut, options are stripped, every byte is checked and the
//! kernel's own counters are the judge. Whatever happens to this process,
//! nothing stays behind.
//!
//! `make demo`, the end-to-end tests and the benchmark stand on it.

#![forbid(unsafe_code)]

pub mod aggregation;
pub mod aim;
pub mod attack;
mod beyond;
mod capture;
pub mod carried;
mod cleanup;
pub mod compare;
mod complaint;
mod conduct;
pub mod congestion;
mod counters;
pub mod cpu;
pub mod daemon;
pub mod demo;
mod detour;
mod dhcp;
pub mod endings;
mod far_program;
mod fault;
mod feature;
pub mod firewall;
mod kernel_log;
pub mod kernels;
mod ledger;
pub mod link;
pub mod location;
pub mod lossy;
mod manager;
pub mod matrix;
mod namespace;
mod nginx;
pub mod plot;
mod process;
pub mod reload;
pub mod repeat;
pub mod seed;
pub mod series;
mod sockstat;
pub mod split;
mod starvation;
pub mod statistics;
pub mod steering;
mod topology;
pub mod transfer;
pub mod ttfb;
pub mod uplinks;
mod upper;
pub mod watch;
pub mod wirecheck;

pub use beyond::{Beyond, FAR_END, FAR_NETWORKS};
pub use capture::Capture;
pub use cleanup::{Sweep, remove, sweep};
pub use complaint::{Complaint, Complaints};
pub use conduct::{Allowance, Conduct, MUST_STAY, SENT_AGAIN, SERVER_RESET};
pub use counters::{
    End, Expect, FALLBACKS, FORBIDDEN, InterfaceBytes, Mib, OVERTAKEN, Oracle, RENEGED,
    WINDOW_OVERRUN, interfaces,
};
pub use daemon::FlexCp;
pub use detour::Detour;
pub use dhcp::{DhcpClient, Modem};
pub use far_program::FarProgram;
pub use fault::{Cut, Direction, Strip};
pub use feature::Feature;
pub use kernel_log::KernelLog;
pub use manager::Manager;
pub use namespace::Namespace;
pub use nginx::{Nginx, TOLD, sha256_of};
pub use process::{Background, describe_exit, output, text};
pub use sockstat::{SocketLine, mptcp_connections, mptcp_subflows};
pub use starvation::Starvation;
pub use topology::{End as LinkEnd, Families, Family, Graph, Lab, LabBuilder, require_root};
pub use upper::Upper;
