//! Bounded reading and writing of integers, byte strings and lists. STUB: being written.
pub(crate) struct Reader;
pub(crate) struct Writer;
