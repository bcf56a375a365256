//! What this program does as a helper of itself, in a process of its own.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use clap::Subcommand;
use flexcp_lab::transfer::Proto;

use crate::{hold, micro};

/// Commands that the benchmark gives itself.
#[derive(Clone, Debug, Subcommand)]
pub enum Helping {
    /// Take connections and uploads until the end of standard input
    #[command(hide = true)]
    Sink {
        /// Protocol of the sockets
        #[arg(value_enum)]
        proto: Proto,
        /// Port, on all addresses
        port: u16,
    },
    /// Hold connections until the end of standard input
    #[command(hide = true)]
    Hold {
        /// Protocol of the sockets
        #[arg(value_enum)]
        proto: Proto,
        /// Own address
        from: IpAddr,
        /// The other end
        to: SocketAddr,
        /// How many
        count: usize,
    },
    /// Repeat one operation, for valgrind to count its instructions
    #[command(hide = true)]
    Micro {
        /// Its name
        name: String,
        /// How often
        count: u32,
    },
}

impl Helping {
    /// Does it.
    ///
    /// # Errors
    /// When it can't.
    pub fn run(self) -> Result<()> {
        match self {
            Self::Sink { proto, port } => hold::serve(proto, port),
            Self::Hold {
                proto,
                from,
                to,
                count,
            } => hold::hold(proto, from, to, count),
            Self::Micro { name, count } => micro::repeat(&name, count),
        }
    }
}
