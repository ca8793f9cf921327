//! Blocks that rules set: counts the denials that lead to them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::metrics::Task;
use crate::server::keep_running;

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
    loop {
        limiter.wait_for_denials().await;
        limiter.count_denials().await;
    }
}
