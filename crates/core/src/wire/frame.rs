//! Byte layout of a frame. STUB: being written.
