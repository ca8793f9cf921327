//! Operators' requests about the rules, the counters and the limits, blocks and allows of single actors. A scope refuses what it does not cover, and
//! keeps it out of listings.

mod actor_override;
pub mod address_blocks;
pub mod counters;
mod error;
pub mod limits;
pub mod overrides;
mod rule_name;
pub mod rules;
pub mod status;
pub mod top;
