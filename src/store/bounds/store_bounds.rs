//! How much a store may remember, and what it answers beyond that.

use super::RecordBudgets;

/// Counters that a store remembers unless the operator says otherwise, where they are on disk and where they are in
/// memory (some 200 bytes each).
pub const DEFAULT_MAX_COUNTERS: u64 = 100_000_000;
pub const DEFAULT_MAX_COUNTERS_IN_MEMORY: u64 = 1_000_000;
/// Bytes of counters on disk unless the operator says otherwise.
pub const DEFAULT_MAX_DISK: u64 = 16 << 30;
/// Reservations that a store remembers unless the operator says otherwise: some 200 bytes each, in memory.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;
/// Asks that a store remembers to answer once: likewise.
pub const DEFAULT_MAX_IDEMPOTENCY_KEYS: u64 = 1_000_000;

/// How much of the records of one kind clients of one address may have, unless the operator says otherwise (percent).
pub const DEFAULT_MAX_ADDRESS_SHARE: u8 = 50;

/// How a counter is answered for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// With an error.
    #[default]
    Error,
    /// Denied, with nothing left, for a second.
    Deny,
    /// As a counter that was never asked before; nothing is counted.
    Allow,
}

/// The bounds, and what to do at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub max_counters: u64,
    /// Reservations that are remembered, at most.
    pub max_reservations: u64,
    /// Asks that are remembered to be answered once, at most.
    pub max_idempotency_keys: u64,
    /// How much of either clients of one address may have (percent).
    pub max_address_share: u8,
    /// Bytes of counters on disk; for a store that has one.
    pub max_disk: u64,
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
    pub fn records(&self) -> RecordBudgets {
        RecordBudgets::shared(self.max_reservations, self.max_idempotency_keys, self.max_address_share)
    }
}
