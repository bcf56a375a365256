//! Whether packets get through, as `flexcp show status` shows it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::view::Numbers;

/// The answer to `/v1/status`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Status {
    /// The version of the API: 1.
    pub version: u32,
    /// FlexCP's own version.
    pub release: String,
    /// Number of the configuration in force: 1 at the start, and one more for each reload that took effect.
    #[serde(default)]
    pub generation: u64,
    /// Earlier configurations whose connections may still go on: those of services that are gone or have changed.
    #[serde(default)]
    pub draining: u64,
    /// The services that are gone of those.
    #[serde(default)]
    pub drained: Vec<String>,
    /// Since the start, in microseconds.
    pub uptime_us: u64,
    /// Whether packets get through.
    pub state: State,
    /// What is in their way and not changed from here, a line each.
    pub problems: Vec<String>,
    /// How often something that others had taken away was put back.
    pub mended_times: u64,
    /// Since then, in microseconds; null if never.
    pub mended_ago_us: Option<u64>,
    /// What was put back: `rules`, `routes`, settings of the `device`; `offload`, devices that came later and got it.
    pub mended: Numbers,
    /// How the offload runs, what of it the kernel refuses and why, a line each; empty when it is not wanted.
    pub offload: Vec<String>,
    /// Where the relay of split connections listens.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub split_on: Vec<SocketAddr>,
    /// In the order of the configuration.
    pub services: Vec<ServiceStatus>,
}

/// Whether packets get through.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Those of all services, on all their interfaces.
    Ready,
    /// Some.
    Degraded,
    /// None at all, until something changes.
    Waiting,
}

/// A service as far as the host lets it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// "transparent", "reverse", "convert", "socks5" or "box".
    pub mode: String,
    /// Whether packets of it get through.
    pub passes: bool,
    /// Where its clients come in; empty: everywhere.
    pub interfaces: Vec<InterfaceStatus>,
    /// Back ends that new connections pass by while others are left; a worker that has not marked one takes it in turn.
    #[serde(default)]
    pub marked_backends: Vec<MarkedBackend>,
}

/// A back end that refuses or does not answer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct MarkedBackend {
    /// Its address and port.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub address: SocketAddr,
    /// "refused", "silent" or "unreachable".
    pub reason: String,
    /// How long the first of the workers has it marked, in microseconds.
    pub marked_us: u64,
    /// How many workers have marked it.
    pub workers: u64,
}

/// An interface that a service names.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Whether there is one of that name.
    pub present: bool,
    /// Whether somebody has taken it up.
    pub up: bool,
}

impl State {
    /// As it is in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Waiting => "waiting",
        }
    }
}
