//! The two ends of a transfer.

use serde::{Deserialize, Serialize};

/// Which end of the transfer a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Source,
    Sink,
}

impl Role {
    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Source => "source",
            Role::Sink => "sink",
        }
    }

    /// The other one.
    pub fn other(self) -> Role {
        match self {
            Role::Source => Role::Sink,
            Role::Sink => Role::Source,
        }
    }
}
