//! The bounds on what a store remembers, and the accounts that keep them.

#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store recounts its counters"))]
pub mod counter_budget;
pub mod record_count;
pub mod records;
pub mod room_log;
pub mod shares;
mod store_bounds;

pub use self::counter_budget::CounterBudget;
pub use self::record_count::RecordCount;
pub use self::records::Records;
pub use self::room_log::RoomLog;
pub use self::shares::{RecordBudgets, Share, Shares};
pub use self::store_bounds::{
    Bounds, DEFAULT_MAX_ADDRESS_SHARE, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK,
    DEFAULT_MAX_IDEMPOTENCY_KEYS, DEFAULT_MAX_RESERVATIONS, WhenFull,
};
