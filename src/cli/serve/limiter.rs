//! Flags of the limiter, and the tasks that keep it up to date: limits, blocks and allows of single actors, the key for
//! reservation ids, and blocks that rules set.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use divvy_core::algorithm::reservation::LONGEST_SECONDS;
use divvy_core::units::{self, Bytes, Time};
use divvy_limiter::{
    DEFAULT_MAX_ACTOR_LIMITS, DEFAULT_MAX_OVERRIDES, DEFAULT_MAX_RESERVATION_TTL, DEFAULT_TOP_MEMORY, Limiter,
    StoreError, store::SHARE_TICK_NS,
};
use divvy_server::keep_running;
use divvy_telemetry::logging::Escaped;
use divvy_telemetry::metrics::Task;

/// Interval for reading changes from a store that other servers may also change, and that may lose the key for reservation
/// ids, and for counting the denials of the denial cache.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of limits, and of blocks and allows, which take up to 400 bytes each.
const MAX_ACTOR_LIMITS: u64 = 100_000_000;
/// Upper bound for the memory that ranks actors, more than any machine has.
const MAX_TOP_MEMORY: u64 = 1 << 50;

#[derive(clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct LimiterArgs {
    /// Maximum number of limits of single actors (`divvy limit`), about 250 bytes of memory each
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_ACTOR_LIMITS,
          value_parser = units::count::<usize>(0..=MAX_ACTOR_LIMITS))]
    pub max_actor_limits: usize,
    /// Maximum number of blocks and allows, about 400 bytes of memory each; long ones count as several
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_OVERRIDES,
          value_parser = units::count::<usize>(0..=MAX_ACTOR_LIMITS))]
    max_blocks: usize,
    /// Maximum duration of a reservation, in whole seconds
    #[arg(long, value_name = "SECONDS",
          default_value_t = Time(Duration::from_secs(DEFAULT_MAX_RESERVATION_TTL.into())),
          value_parser = units::whole_seconds(1..=LONGEST_SECONDS.into()))]
    max_reservation_ttl: Time,
    /// Memory for ranking actors by denials and by credits (`divvy top`). Rules that are hit after it is spent are not
    /// ranked. 0: none are
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(DEFAULT_TOP_MEMORY as u64),
          value_parser = units::bytes(0..=MAX_TOP_MEMORY))]
    top_memory: Bytes,
}

impl LimiterArgs {
    /// Returns the limiter with the bounds that the flags set.
    pub fn bound(&self, limiter: Limiter) -> Limiter {
        let max_ttl = u32::try_from(self.max_reservation_ttl.0.as_secs()).unwrap_or(u32::MAX);
        limiter
            .with_max_actor_limits(self.max_actor_limits)
            .with_max_overrides(self.max_blocks)
            .with_max_reservation_ttl(max_ttl)
            .with_top_memory(self.top_memory.in_memory())
    }
}

/// Starts the tasks, which run until `draining` is cancelled. Redis may become available later: until then, the rules' limits
/// apply, and reservations are refused.
///
/// # Errors
/// The data directory cannot be read, or Redis answers, and its settings are not what the flags require.
pub async fn start(limiter: &Arc<Limiter>, draining: &CancellationToken) -> anyhow::Result<()> {
    limiter.store().check_settings().await?;
    let is_shared = limiter.store().is_shared();
    let loaded = limiter.follow_exceptions().await;
    let is_behind = loaded.is_err();
    match loaded {
        Err(error) if is_shared => warn_of_error(
            &error,
            "cannot read the limits and blocks of actors; until they can be read, their rules' limits apply",
        ),
        loaded => loaded.context("cannot read the limits and blocks of actors")?,
    }
    spawn(Task::Limits, limiter, draining, move |limiter| follow_exceptions(limiter, is_behind));
    spawn(Task::Penalties, limiter, draining, count_denials);
    if is_shared {
        let is_behind = read_seal(limiter, false).await;
        spawn(Task::Seal, limiter, draining, move |limiter| follow_seal(limiter, is_behind));
        spawn(Task::Shares, limiter, draining, tend_shares);
    }
    Ok(())
}

fn spawn<F: Future<Output = ()> + Send>(
    task: Task,
    limiter: &Arc<Limiter>,
    draining: &CancellationToken,
    run: impl Fn(Arc<Limiter>) -> F + Send + Sync + 'static,
) {
    let (limiter, draining) = (Arc::clone(limiter), draining.clone());
    tokio::spawn(async move {
        let running = keep_running(task, limiter.metrics(), || run(Arc::clone(&limiter)));
        draining.run_until_cancelled(running).await;
    });
}

/// Returns ticks at this interval. After one that is late, the next comes a whole interval later.
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Follows changes of the limits, blocks and allows in the store, and drops those that have expired.
async fn follow_exceptions(limiter: Arc<Limiter>, mut is_behind: bool) {
    let mut ticks = ticks(FOLLOW_EVERY);
    loop {
        ticks.tick().await;
        if limiter.store().is_shared() {
            let followed = limiter.follow_exceptions().await;
            let failed = "cannot read the limits and blocks of actors; the last known ones apply";
            is_behind = log_if_changed(&followed, is_behind, "the limits and blocks of actors are", failed);
        }
        if let Err(error) = limiter.drop_expired().await {
            tracing::debug!(%error, "cannot remove expired limits and blocks of actors; the next start will");
        }
    }
}

/// Counts the denials that lead to the blocks that rules set.
async fn count_denials(limiter: Arc<Limiter>) {
    let mut ticks = ticks(FOLLOW_EVERY);
    loop {
        tokio::select! {
            () = limiter.wait_for_denials() => limiter.count_denials(false).await,
            _ = ticks.tick() => limiter.count_denials(true).await,
        }
    }
}

/// Gives back what this server's shares do not need.
async fn tend_shares(limiter: Arc<Limiter>) {
    let mut ticks = ticks(Duration::from_nanos(SHARE_TICK_NS));
    loop {
        ticks.tick().await;
        limiter.store().tend_shares().await;
    }
}

/// Follows the key for reservation ids, which all servers on one Redis share.
async fn follow_seal(limiter: Arc<Limiter>, mut is_behind: bool) {
    let mut ticks = ticks(FOLLOW_EVERY);
    loop {
        ticks.tick().await;
        is_behind = read_seal(&limiter, is_behind).await;
    }
}

/// Reads the key once. Returns whether that failed.
async fn read_seal(limiter: &Limiter, was_behind: bool) -> bool {
    let failed =
        "cannot read the key for reservation ids; the last known one applies, and without one reservations are refused";
    log_if_changed(&limiter.store().follow_seal().await, was_behind, "the key for reservation ids is", failed)
}

/// Logs the result of reading something from Redis if the one before was another. Returns whether it failed.
fn log_if_changed(followed: &Result<(), StoreError>, was_behind: bool, subject: &str, failed: &str) -> bool {
    match followed {
        Ok(()) if was_behind => tracing::info!("{subject} read from Redis again"),
        Err(error) if !was_behind => warn_of_error(error, failed),
        Ok(()) | Err(_) => {}
    }
    followed.is_err()
}

fn warn_of_error(error: &StoreError, message: &str) {
    let error = error.to_string();
    tracing::warn!(error = %Escaped::error(&error), "{message}");
}
