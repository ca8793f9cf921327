//! Bounds on the content of a store, and the budgets that enforce them.

mod counter_budget;
mod record_count;
mod records;
mod room_log;
mod shares;
mod store_bounds;

pub use self::counter_budget::CounterBudget;
pub use self::record_count::RecordCount;
pub use self::records::Records;
pub use self::records::was_set_back;
pub use self::room_log::RoomLog;
pub use self::shares::{RecordBudgets, Share, Shares};
pub use self::store_bounds::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS,
    DEFAULT_MAX_RESERVATIONS, WhenFull,
};
