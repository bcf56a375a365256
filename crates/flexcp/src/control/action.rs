//! What can be asked of a running FlexCP.

use serde::{Deserialize, Serialize};

/// A request: one line, `{"command":"stats"}`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Action {
    /// What has been done and dropped so far; answered by [`Stats`](super::view::Stats).
    Stats,
    /// The connections that there are; answered by [`Connections`](super::view::Connections).
    Connections,
    /// Whether packets get through, and what is in their way; answered by [`Status`](super::status::Status).
    Status,
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
