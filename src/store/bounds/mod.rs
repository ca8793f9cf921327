//! Bounds on the content of a store, and the budgets that enforce them.

#[cfg_attr(
    not(any(feature = "rocksdb", test)),
    expect(dead_code, reason = "only the embedded store counts its counters when it is opened")
)]
mod counter_budget;
mod record_count;
mod records;
mod room_log;
mod shares;
mod store_bounds;

pub use self::counter_budget::CounterBudget;
pub use self::record_count::RecordCount;
pub use self::records::Records;
#[cfg(feature = "rocksdb")]
pub use self::records::was_set_back;
pub use self::room_log::RoomLog;
pub use self::shares::{RecordBudgets, Share, Shares};
pub use self::store_bounds::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS,
    DEFAULT_MAX_RESERVATIONS, WhenFull,
};
