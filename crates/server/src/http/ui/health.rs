//! The event `health`: what the server uses, with the bounds, and what is wrong.
//!
//! One sample serves all pages. It is taken every few seconds while a page is open, on a thread that may wait for the disk.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::values::{StoreBounds, Value, describe_problems, describe_values, list_errors};
use crate::Limits;
use crate::errors::{self, LastError};
use crate::health::Health;
use crate::health::keep_running;
use crate::net::work::WorkSlots;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::Task;

/// Interval for checking whether a page is open.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of intervals between two samples.
const INTERVALS: u32 = 5;
/// Timeout for the store to count its counters. Health without that number is better than none.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Samples the health of the server for all pages.
pub struct PageHealth {
    limiter: Arc<Limiter>,
    health: Arc<Health>,
    durability: &'static str,
    bounds: StoreBounds,
    limits: Limits,
    slots: WorkSlots,
    /// The data of the last event; `None` while no page is open.
    latest: watch::Sender<Option<Arc<str>>>,
}

#[derive(Debug, Serialize)]
struct HealthEvent<'a> {
    ready: bool,
    problems: Vec<String>,
    values: Vec<Value>,
    durability: &'a str,
    store: &'a str,
    errors: Vec<ErrorEvent>,
    /// The last error of each kind on each front.
    last_errors: Vec<LastErrorEvent>,
}

#[derive(Debug, Serialize)]
struct LastErrorEvent {
    front: &'static str,
    kind: &'static str,
    /// Seconds.
    age: u64,
    peer: Option<String>,
    user: Option<String>,
    reason: String,
}

#[derive(Debug, Serialize)]
struct ErrorEvent {
    kind: String,
    count: u64,
}

impl PageHealth {
    /// Creates the sampler.
    pub fn new(
        limiter: Arc<Limiter>,
        health: Arc<Health>,
        durability: &'static str,
        bounds: StoreBounds,
        limits: Limits,
        slots: WorkSlots,
    ) -> Arc<Self> {
        Arc::new(Self { limiter, health, durability, bounds, limits, slots, latest: watch::Sender::default() })
    }

    /// Samples until `stopping` is cancelled.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let metrics = Arc::clone(self.limiter.metrics());
        tokio::select! {
            () = keep_running(Task::Page, &metrics, || self.sample_forever()) => {}
            () = stopping.cancelled() => {}
        }
    }

    async fn sample_forever(self: &Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut age = INTERVALS;
        loop {
            ticks.tick().await;
            if self.latest.receiver_count() == 0 {
                // The next page must not see the state of long ago.
                self.latest.send_replace(None);
                age = INTERVALS;
            } else if age >= INTERVALS {
                age = 1;
                if let Some(data) = self.sample().await {
                    self.latest.send_replace(Some(data));
                }
            } else {
                age += 1;
            }
        }
    }

    /// Returns the events of a new stream.
    pub fn follow(&self) -> watch::Receiver<Option<Arc<str>>> {
        let mut events = self.latest.subscribe();
        events.mark_changed();
        events
    }

    async fn sample(self: &Arc<Self>) -> Option<Arc<str>> {
        let slot = self.slots.take().await;
        let limiter = Arc::clone(&self.limiter);
        let count = slot.run(async move { limiter.approximate_len().await });
        let counters = timeout(STORE_TIMEOUT, count).await.ok().and_then(|counted| counted.ok()?.ok());
        let page = Arc::clone(self);
        slot.run(spawn_blocking(move || page.write(counters))).await.ok()?.ok()?
    }

    fn write(&self, counters: Option<u64>) -> Option<Arc<str>> {
        let metrics = self.limiter.metrics();
        let numbers = metrics.server_numbers(self.limiter.store_metrics());
        let state = self.health.state();
        let not_ready = state.as_ref().err().map(errors::hide_paths);
        let errors = list_errors(&numbers).into_iter();
        let event = HealthEvent {
            ready: state.is_ok(),
            problems: not_ready.into_iter().chain(describe_problems(&numbers)).collect(),
            values: describe_values(&numbers, counters, &self.bounds, &self.limits),
            durability: self.durability,
            store: self.limiter.store().name(),
            errors: errors.map(|(kind, count)| ErrorEvent { kind, count }).collect(),
            last_errors: errors::last().into_iter().map(|last| self.describe(last)).collect(),
        };
        serde_json::to_string(&event).ok().map(Arc::from)
    }

    fn describe(&self, LastError { front, kind, at, client, reason }: LastError) -> LastErrorEvent {
        let age = self.limiter.now().distance(at) / NANOS_PER_SECOND;
        let peer = client.peer.map(|peer| peer.to_string());
        LastErrorEvent { front, kind: kind.name(), age, peer, user: client.user.map(|user| user.to_string()), reason }
    }
}
