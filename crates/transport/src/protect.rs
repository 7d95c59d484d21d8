//! How payload is guarded on its way.

use serde::{Deserialize, Serialize};

/// What guards payload between the two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protect {
    /// Data is not encrypted; what was changed on the way is found.
    Integrity,
    /// TLS 1.3.
    #[default]
    Tls,
}
