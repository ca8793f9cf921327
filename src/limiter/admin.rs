//! Operators list and forget counters, and set limits of single actors.

pub mod counters;
pub mod limits;
