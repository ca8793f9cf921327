//! The metrics for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::net::work_slots::{WorkSlot, WorkSlots};
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::Metric;

/// Timeout for the store to count its counters. A scrape without that number is better than none.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of scrapes at a time. They share no slots with other work, so that alerts fire while other work waits.
pub const MAX_SCRAPES: usize = 2;
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers in Prometheus's text format, version 0.0.4.
pub async fn scrape(State((limiter, slots)): State<(Arc<Limiter>, WorkSlots)>) -> Response {
    // A scrape takes a thread and memory, so it waits for a slot.
    let slot = slots.take().await;
    let counters = live_counters(&limiter, &slot).await;
    // RocksDB may have to read files.
    let render = tokio::task::spawn_blocking(move || {
        let mut metrics = limiter.store_metrics();
        metrics.extend(counters);
        limiter.metrics().render(metrics).map_err(|error| error.to_string())
    });
    let rendered = slot.run(render).await.and_then(|rendered| rendered);
    match rendered.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn live_counters(limiter: &Arc<Limiter>, slot: &WorkSlot) -> Option<Metric> {
    let counting = Arc::clone(limiter);
    let count = slot.run(async move { counting.approximate_len().await });
    let counted = tokio::time::timeout(STORE_TIMEOUT, count).await.ok()?.ok()?.ok()?;
    let help = "Counters that the store remembers, including expired ones until they are dropped.";
    Some(Metric::gauge("divvy_live_counters", help, counted))
}
