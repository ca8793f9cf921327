//! Operators' requests about the rules, the counters and the exceptions for single actors. A scope refuses what it does not
//! cover, and keeps it out of listings.

mod address_blocks;
pub mod counters;
mod error;
pub mod exceptions;
mod names;
pub mod rules;
pub mod status;
pub mod top;
