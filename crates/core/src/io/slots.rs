//! How many requests may be in flight, at each target and in all.
//!
//! In: requests that start and end, and the time. Out: whether another may start at a target, and which are
//! past their deadline. Such a request no longer counts at its target, so that others of that target and
//! of the rest go on; but the stuck ones together are bounded, for each holds a buffer and perhaps a thread.
//!
//! Invariant: no target holds more than `depth`, all targets together at most `2 * depth` that are not stuck
//! (so none more than half), and at most `stuck_max` are stuck at a time before their targets rest.
