//! The key for reservation ids. All servers on one Redis use the same key. Each server reads it at the start, and
//! follows changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::logging::Escaped;
use crate::metrics::Task;
use crate::server::keep_running;

/// Interval for reading the key from Redis, which may lose it.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Reads the key, and follows it until `draining` is cancelled. Redis may become available later: until then,
/// reservations are refused.
pub async fn start(limiter: &Arc<Limiter>, draining: CancellationToken) {
    if !limiter.store().is_shared() {
        return;
    }
    let limiter = Arc::clone(limiter);
    let is_behind = !read_key(&limiter, false).await;
    tokio::spawn(async move {
        tokio::select! {
            () = keep_running(Task::Seal, limiter.metrics(), || follow_changes(&limiter, is_behind)) => {}
            () = draining.cancelled() => {}
        }
    });
}

async fn follow_changes(limiter: &Limiter, mut is_behind: bool) {
    let mut ticks = interval(FOLLOW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        is_behind = !read_key(limiter, is_behind).await;
    }
}

/// Reads the key once. Returns whether that succeeded. Logs the result if it has changed.
async fn read_key(limiter: &Limiter, was_behind: bool) -> bool {
    let followed = limiter.follow_seal().await;
    match &followed {
        Ok(()) if was_behind => tracing::info!("the key for reservation ids is read from Redis again"),
        Err(error) if !was_behind => {
            let error = error.to_string();
            tracing::warn!(
                error = %Escaped::error(&error),
                "cannot read the key for reservation ids; the last known one applies, and without one reservations are refused"
            );
        }
        Ok(()) | Err(_) => {}
    }
    followed.is_ok()
}
