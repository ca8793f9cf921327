//! The bounds on what a store remembers, and the accounts that keep them.

#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store recounts its counters"))]
pub mod counter_budget;
pub mod record_count;
pub mod records;
pub mod room_log;
pub mod shares;
pub mod store_bounds;
