//! The key for reservation ids, which servers on one Redis share: how a server learns it and keeps knowing it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::logging::Escaped;
use crate::metrics::Task;
use crate::server::keep_running;

/// How often Redis is asked for the key, which it may have lost.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Learns the key, and follows it until `draining` is cancelled. Redis may come later: until then, reservations are refused.
pub async fn start(limiter: &Arc<Limiter>, draining: CancellationToken) {
    if !limiter.store().is_shared() {
        return;
    }
    let limiter = Arc::clone(limiter);
    let is_behind = !follow(&limiter, false).await;
    tokio::spawn(async move {
        tokio::select! {
            () = keep_running(Task::Seal, limiter.metrics(), || keep_known(&limiter, is_behind)) => {}
            () = draining.cancelled() => {}
        }
    });
}

async fn keep_known(limiter: &Limiter, mut is_behind: bool) {
    let mut ticks = interval(FOLLOW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        is_behind = !follow(limiter, is_behind).await;
    }
}

/// Asks for the key once. Returns whether it is known now, and logs if that has changed.
async fn follow(limiter: &Limiter, was_behind: bool) -> bool {
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
