//! Objects through the lanes: modes, sizes and errors.
