//! Blocks that rules set: counts the denials that lead to them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::metrics::Task;
use crate::server::keep_running;

/// Interval for counting the denials of the denial cache.
const COUNT_CACHED_EVERY: Duration = Duration::from_secs(1);

/// Counts denials until `draining` is cancelled.
pub fn start(limiter: &Arc<Limiter>, draining: CancellationToken) {
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move {
        tokio::select! {
            () = keep_running(Task::Penalties, limiter.metrics(), || count_denials(&limiter)) => {}
            () = draining.cancelled() => {}
        }
    });
}

async fn count_denials(limiter: &Limiter) {
    let mut ticks = interval(COUNT_CACHED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = limiter.wait_for_denials() => limiter.count_denials().await,
            _ = ticks.tick() => limiter.count_cached_denials().await,
        }
    }
}
