//! What became of a connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use super::job::Job;

/// How a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The system's name of the error (`ECONNRESET`), `timeout`, or `data`.
    pub kind: String,
    /// What was being done: `connect`, `read`, `write`, `check`.
    pub during: &'static str,
    /// In full.
    pub message: String,
}

/// A connection as the client saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Bytes sent, without the request.
    pub up: u64,
    /// Bytes received and found right, without banner and verdict.
    pub down: u64,
    /// Time to connect, in microseconds.
    pub connect_us: u64,
    /// From connected to closed, in microseconds.
    pub total_us: u64,
    /// Longest time without a byte read (or, when only sending, written), or until there was an error instead.
    pub longest_gap_us: u64,
    /// The server's longest time between two reads, if it told.
    pub server_gap_us: Option<u64>,
    /// From the moment the server was told to reset to the error, in microseconds.
    pub reset_us: Option<u64>,
    /// Our address.
    pub local: Option<SocketAddr>,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
}

impl Report {
    /// An error if anything went wrong.
    pub fn ok(&self) -> Result<&Self> {
        match &self.failure {
            None => Ok(self),
            Some(failure) => bail!(
                "{} ({}) after {} bytes up, {} bytes down, {:?}",
                failure.message,
                failure.during,
                self.up,
                self.down,
                Duration::from_micros(self.total_us)
            ),
        }
    }

    /// The kind of failure, `""` if there was none.
    pub fn failure_kind(&self) -> &str {
        self.failure.as_ref().map_or("", |failure| &failure.kind)
    }

    /// Longest stall the application saw.
    pub fn longest_gap(&self) -> Duration {
        Duration::from_micros(self.longest_gap_us)
    }
}

/// A connection as the server saw it.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// The address it came from.
    pub peer: SocketAddr,
    /// What was asked for; `None` if the client closed before asking.
    pub job: Option<Job>,
    /// Bytes received and found right.
    pub up: u64,
    /// Bytes handed to the kernel.
    pub down: u64,
    /// From accepted to closed, in microseconds.
    pub total_us: u64,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
}

impl ServerReport {
    /// The kind of failure, `""` if there was none.
    pub fn failure_kind(&self) -> &str {
        self.failure.as_ref().map_or("", |failure| &failure.kind)
    }
}

impl Failure {
    pub(crate) fn new(during: &'static str, error: &anyhow::Error) -> Self {
        let kind = match error.downcast_ref::<io::Error>() {
            Some(error) => io_kind(error),
            None => "data".to_owned(),
        };
        Self {
            kind,
            during,
            message: format!("{error:#}"),
        }
    }
}

fn io_kind(error: &io::Error) -> String {
    use rustix::io::Errno;
    let Some(code) = error.raw_os_error() else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "eof".to_owned(),
            io::ErrorKind::TimedOut => "timeout".to_owned(),
            kind => format!("{kind:?}"),
        };
    };
    let name = match Errno::from_raw_os_error(code) {
        // What a socket with SO_RCVTIMEO or SO_SNDTIMEO answers.
        Errno::AGAIN => "timeout",
        Errno::CONNRESET => "ECONNRESET",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::PIPE => "EPIPE",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::NOTCONN => "ENOTCONN",
        Errno::INPROGRESS => "timeout",
        _ => return format!("errno {code}"),
    };
    name.to_owned()
}
