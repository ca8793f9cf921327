//! The bounds of a store, and its policy for counters that would exceed them.

use super::RecordBudgets;

/// Default number of counters on disk.
pub const DEFAULT_MAX_COUNTERS: u64 = 100_000_000;
/// Default number of counters in memory, about 200 bytes each.
pub const DEFAULT_MAX_COUNTERS_IN_MEMORY: u64 = 1_000_000;
/// Default size of the counters on disk (bytes).
pub const DEFAULT_MAX_DISK: u64 = 16 << 30;
/// Default number of reservations, about 200 bytes of memory each.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;
/// Default number of idempotency keys, about 200 bytes of memory each.
pub const DEFAULT_MAX_IDEMPOTENCY_KEYS: u64 = 1_000_000;

/// The policy for a new counter that exceeds the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// An error.
    #[default]
    Error,
    /// A denial with nothing left, for a second.
    Deny,
    /// The answer of a fresh counter. Nothing is counted.
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
    /// Maximum size of the counters on disk (bytes).
    pub max_disk: u64,
    /// The answer to a hit that needs a new counter beyond the bounds.
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_counters: DEFAULT_MAX_COUNTERS,
            max_reservations: DEFAULT_MAX_RESERVATIONS,
            max_idempotency_keys: DEFAULT_MAX_IDEMPOTENCY_KEYS,
            max_disk: DEFAULT_MAX_DISK,
            when_full: WhenFull::default(),
        }
    }
}

impl Bounds {
    /// Creates the budgets for records.
    pub fn records(&self) -> RecordBudgets {
        RecordBudgets::new(self.max_reservations, self.max_idempotency_keys)
    }
}
