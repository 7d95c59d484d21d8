//! The log of a gatherer on disk.
