//! Batches: their size, and the store's time for them.

use prometheus::IntCounter;

use super::histogram::{Histogram, Unit};
use super::registry::Registry;

/// Upper bounds. A front puts at most 512 requests into a batch, but a transaction may be larger.
const SIZES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Upper bounds in nanoseconds, for a hot table, a disk, a network and a timeout.
const DURATIONS: [u64; 12] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    25_000_000,
    100_000_000,
    500_000_000,
];

/// Sizes of batches, and the store's part in their time.
pub struct Batches {
    /// Requests in a batch.
    pub requests: Histogram,
    /// The store's time for a batch.
    pub store_duration: Histogram,
    /// Actions that the store answered with an error.
    pub store_errors: IntCounter,
}

impl Batches {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.histogram(
                "divvy_batch_requests",
                "Requests answered together in one batch.",
                Unit::Things,
                &SIZES,
            ),
            store_duration: registry.histogram(
                "divvy_store_duration_seconds",
                "Time the store took to apply a batch.",
                Unit::Seconds,
                &DURATIONS,
            ),
            store_errors: registry
                .counter("divvy_store_errors_total", "Actions on counters that were answered with the store's error."),
        }
    }
}
