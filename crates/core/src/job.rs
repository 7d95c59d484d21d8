//! What a job decides, whoever moves its bytes.

pub(crate) mod dirs;
