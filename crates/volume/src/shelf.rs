//! The directory of a storage server.
