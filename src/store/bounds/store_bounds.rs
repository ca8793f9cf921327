//! The bounds of a store, and its policy for new counters beyond them.

use super::RecordBudgets;

/// Default number of counters on disk.
pub const DEFAULT_MAX_COUNTERS: u64 = 100_000_000;
/// Default number of counters in memory: some 200 bytes each.
pub const DEFAULT_MAX_COUNTERS_IN_MEMORY: u64 = 1_000_000;
/// Default size of the counters on disk (bytes).
pub const DEFAULT_MAX_DISK: u64 = 16 << 30;
/// Default number of reservations: some 200 bytes of memory each.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;
/// Default number of idempotency keys: some 200 bytes of memory each.
pub const DEFAULT_MAX_IDEMPOTENCY_KEYS: u64 = 1_000_000;

/// Default share of the records of a kind that the clients of one address may have (percent).
pub const DEFAULT_MAX_ADDRESS_SHARE: u8 = 50;

/// The answer for a new counter when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// An error.
    #[default]
    Error,
    /// A denial, with nothing left, for a second.
    Deny,
    /// The answer of an unused counter. Nothing is counted.
    Allow,
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of counters.
    pub max_counters: u64,
    /// Maximum number of reservations.
    pub max_reservations: u64,
    /// Maximum number of idempotency keys.
    pub max_idempotency_keys: u64,
    /// Share of both that the clients of one address may have (percent).
    pub max_address_share: u8,
    /// Maximum size of the counters on disk (bytes).
    pub max_disk: u64,
    /// The answer to hits that need a new counter beyond the bounds.
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_counters: DEFAULT_MAX_COUNTERS,
            max_reservations: DEFAULT_MAX_RESERVATIONS,
            max_idempotency_keys: DEFAULT_MAX_IDEMPOTENCY_KEYS,
            max_address_share: DEFAULT_MAX_ADDRESS_SHARE,
            max_disk: DEFAULT_MAX_DISK,
            when_full: WhenFull::default(),
        }
    }
}

impl Bounds {
    /// Creates the budgets for records.
    pub fn records(&self) -> RecordBudgets {
        RecordBudgets::new(self.max_reservations, self.max_idempotency_keys, self.max_address_share)
    }
}
