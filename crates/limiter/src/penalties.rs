//! The blocks that rules set: how long they are, and how many there were.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy_core::rules::Jitter;
use divvy_telemetry::metrics::Metric;

/// The blocks that rules set.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    pub jitter: Jitter,
    /// Number of blocks that were set.
    pub blocked: AtomicU64,
    /// Number of blocks that could not be set.
    pub failed: AtomicU64,
}

impl Penalties {
    /// Returns the metrics. `lost` is the number of denials that did not count.
    pub fn metrics(&self, lost: u64) -> [Metric; 3] {
        [
            Metric::counter("divvy_rule_blocks_total", "Blocks of actors that rules set.", self.blocked.load(Relaxed)),
            Metric::counter(
                "divvy_rule_blocks_failed_total",
                "Blocks of actors that rules could not set: --max-blocks was reached, or the store failed.",
                self.failed.load(Relaxed),
            ),
            Metric::counter(
                "divvy_rule_blocks_lost_denials_total",
                "Denials that did not count for blocks: too many other actors were denied at the time, or the store failed.",
                lost,
            ),
        ]
    }
}
