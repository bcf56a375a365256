//! Transfers over real sockets, every byte checked on receipt.
//!
//! The client tells the server what to do in a fixed-size request at the start
//! of the connection; the payload is a function of a seed and the offset, so
//! neither side keeps a copy. What happened comes back as data, also when it
//! was an error: a reset is what some cases want to see.

mod client;
mod flow;
mod job;
mod named;
mod payload;
mod report;
mod serve;

pub use client::Client;
pub use job::{Job, Mode};
pub(crate) use named::connect_message;
pub use payload::{Mismatch, Payload};
pub use report::{Failure, Report, ServerReport};
pub use serve::{ServeOptions, Server};

/// Which protocol a socket is opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// Plain TCP
    #[default]
    Tcp,
    /// Multipath TCP
    Mptcp,
}

impl Proto {
    pub(crate) fn socket2(self) -> socket2::Protocol {
        match self {
            Self::Tcp => socket2::Protocol::TCP,
            Self::Mptcp => socket2::Protocol::MPTCP,
        }
    }
}

/// Raises the limit of open files to the hard limit, for thousands of sockets.
pub fn raise_file_limit() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(())
}
