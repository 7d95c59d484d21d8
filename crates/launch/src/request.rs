//! What the near end asks of an agent, as far as launching depends on it.

use haul_base::role::Role;
use haul_transport::Protect;
use haul_transport::path::Start;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What the near end asks of an agent. It goes to the far end as JSON, of which only [`Request::needs`] is
/// read here.
pub trait Request: Clone + Serialize + DeserializeOwned {
    /// What is to be answered before there are connections.
    type Question;

    /// What the connections depend on.
    fn needs(&self) -> Needs;

    /// What the far end shall answer first, if anything.
    fn question(&self) -> Option<&Self::Question>;

    /// Choices that exclude each other.
    ///
    /// # Errors
    /// Says which, in words for the user.
    fn check(&self) -> Result<(), &'static str>;
}

/// What the connections of a session depend on.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Of the agent.
    pub role: Role,
    pub protect: Protect,
    /// Bytes that each stream's buffers shall hold under way; `None`: the kernel's own growth.
    pub window: Option<u64>,
    /// Most payload bytes in memory at each end; `None`: chosen.
    pub memory: Option<u64>,
    /// Congestion control of the data streams; `None`: chosen.
    pub congestion: Option<String>,
    /// What is known of the network, for what the user left open.
    pub start: Option<Start>,
}
