//! What the points say.
