//! Limits, blocks and allows of single actors: the maximum number of them, and how a server keeps up with changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::limiter::{DEFAULT_MAX_ACTOR_LIMITS, DEFAULT_MAX_OVERRIDES, Limiter, StoreError};
use crate::logging::Escaped;
use crate::metrics::Task;
use crate::server::keep_running;
use crate::units;

/// Interval for reading changes from a store that other servers may also change.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of limits, and of blocks and allows, which take up to 400 bytes each.
const MAX_ACTOR_LIMITS: u64 = 100_000_000;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct ExceptionArgs {
    /// Maximum number of limits of single actors (`divvy limit`), about 250 bytes of memory each
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_ACTOR_LIMITS,
          value_parser = units::count::<usize>(0..=MAX_ACTOR_LIMITS))]
    max_actor_limits: usize,
    /// Maximum number of blocks and allows of single actors (`divvy block`, `divvy allow`), about 400 bytes of memory each; long ones count as several
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_OVERRIDES,
          value_parser = units::count::<usize>(0..=MAX_ACTOR_LIMITS))]
    max_blocks: usize,
}

impl ExceptionArgs {
    pub fn max(&self) -> usize {
        self.max_actor_limits
    }

    pub fn max_blocks(&self) -> usize {
        self.max_blocks
    }
}

/// Loads the limits, blocks and allows, and follows their changes in the store until `draining` is cancelled.
///
/// # Errors
/// The data directory cannot be read, or Redis has exceptions in a format of earlier builds. Redis may become available later: until then, the rules' limits apply.
pub async fn start(limiter: &Arc<Limiter>, draining: CancellationToken) -> anyhow::Result<()> {
    let loaded = limiter.follow_exceptions().await;
    let is_behind = loaded.is_err();
    match loaded {
        Err(error) if limiter.store().is_shared() && !matches!(error, StoreError::Outdated(_)) => {
            let error = error.to_string();
            tracing::warn!(
                error = %Escaped::error(&error),
                "cannot read the limits and blocks of actors; until they can be read, their rules' limits apply"
            );
        }
        loaded => loaded.context("cannot read the limits and blocks of actors")?,
    }
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move {
        tokio::select! {
            () = keep_running(Task::Limits, limiter.metrics(), || follow_changes(&limiter, is_behind)) => {}
            () = draining.cancelled() => {}
        }
    });
    Ok(())
}

async fn follow_changes(limiter: &Limiter, mut is_behind: bool) {
    let mut ticks = interval(FOLLOW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if limiter.store().is_shared() {
            let followed = limiter.follow_exceptions().await;
            match &followed {
                Ok(()) if is_behind => tracing::info!("the limits and blocks of actors are read from Redis again"),
                Err(error) if !is_behind => {
                    let error = error.to_string();
                    tracing::warn!(
                        error = %Escaped::error(&error),
                        "cannot read the limits and blocks of actors; the last known ones apply"
                    );
                }
                Ok(()) | Err(_) => {}
            }
            is_behind = followed.is_err();
        }
        if let Err(error) = limiter.drop_expired_exceptions().await {
            tracing::debug!(%error, "cannot remove expired limits and blocks of actors; the next start will");
        }
    }
}
