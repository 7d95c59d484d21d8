//! Direct or buffered, by measurement on the live transfer.
