//! How requests reach storage: the settings that XDD's papers turn by hand, and the decisions about them.
//!
//! In: what storage did (issued, completed, how fast). Out: which request may start, and in which mode.
//! Reading order: the words here, then [`order`], [`slots`], [`choose`], [`together`].

use std::fmt;

pub mod choose;
pub mod order;
pub mod slots;
pub mod together;

/// Whether requests go through the page cache, as the user asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPolicy {
    /// Both are compared on the live transfer, and the faster one is kept.
    #[default]
    Auto,
    Direct,
    Buffered,
}

/// Whether one request goes through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoMode {
    #[default]
    Buffered,
    Direct,
}

/// In what order requests reach storage, as XDD's papers define it ("The Impact of Request Ordering", 2011).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OrderPolicy {
    /// Offsets are dealt round-robin to the threads; nothing else is synchronised.
    Strict,
    /// A request starts only when the one before it has completed.
    Serial,
    /// Requests are issued in order, and nothing waits for their completion.
    Loose,
    /// Whichever thread is free takes whichever request is next; nothing is promised.
    #[default]
    None,
}

impl IoPolicy {
    pub const ALL: [IoPolicy; 3] = [IoPolicy::Auto, IoPolicy::Direct, IoPolicy::Buffered];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            IoPolicy::Auto => "auto",
            IoPolicy::Direct => "direct",
            IoPolicy::Buffered => "buffered",
        }
    }
}

impl IoMode {
    pub const ALL: [IoMode; 2] = [IoMode::Buffered, IoMode::Direct];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            IoMode::Buffered => "buffered",
            IoMode::Direct => "direct",
        }
    }
}

impl OrderPolicy {
    pub const ALL: [OrderPolicy; 4] =
        [OrderPolicy::Strict, OrderPolicy::Serial, OrderPolicy::Loose, OrderPolicy::None];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            OrderPolicy::Strict => "strict",
            OrderPolicy::Serial => "serial",
            OrderPolicy::Loose => "loose",
            OrderPolicy::None => "none",
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for OrderPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
