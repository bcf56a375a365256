//! What can be asked of a running FlexCP.

use serde::{Deserialize, Serialize};

/// A request: one line, `{"command":"stats"}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Action {
    /// What has been done and dropped so far; answered by [`Stats`](super::view::Stats).
    Stats,
    /// The connections that there are; answered by [`Connections`](super::view::Connections), in pieces.
    Connections(Wanted),
    /// Whether packets get through, and what is in their way; answered by [`Status`](super::status::Status).
    Status,
    /// The accesses that there are, and what their subflows do; answered by [`Accesses`](super::view::Accesses).
    Accesses,
    /// What happens to connections from now on; answered by an [`Event`](super::view::Event) a line until the client goes,
    /// the first of which says that the daemon listens.
    Events,
}

/// Which connections are asked for: those that all of it fits. The default is all of them.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct Wanted {
    /// In one of these states; in any when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<String>,
    /// Of the service with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// From there: `192.0.2.1`, `192.0.2.0/24`, `192.0.2.1:40312`, `192.0.2.0/24:443` or `:443`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// To there: what the client connected to, or the back end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// With a subflow of the access with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// The answer to a request that can't be carried out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Refusal {
    /// [`VERSION`].
    pub version: u32,
    /// Why not.
    pub error: String,
}

/// Stands in every answer. It is raised when a field changes its meaning or goes away; new fields
/// may come at any time.
pub const VERSION: u32 = 1;
