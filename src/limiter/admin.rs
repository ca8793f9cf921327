//! Operators' requests about the counters and the limits of single actors.

pub mod counters;
mod error;
pub mod limits;
mod rule_name;
pub mod status;
