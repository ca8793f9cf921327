//! Pages for monitoring: the health checks `/healthz`, `/readyz` and `/healthcheck`, and the metrics for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};

use super::response::{empty, of_type, text};
use super::transport::bodies::Reply;
use crate::errors;
use crate::health::Health;
use crate::net::work::{WorkSlot, WorkSlots};
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::Metric;

/// Reports whether hits can be answered: the store responds, the rules are there, and the server is not draining.
pub fn ready(health: &Health) -> Response<Reply> {
    match health.state() {
        Ok(()) => text(StatusCode::OK, "ready\n"),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", errors::hide_paths(&reason))),
    }
}

/// Reports the same as envoyproxy/ratelimit does.
pub fn check_health(health: &Health) -> Response<Reply> {
    match health.state() {
        Ok(()) => text(StatusCode::OK, "OK"),
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Timeout for the store to count its counters. A scrape without that number is better than none.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of scrapes at a time. They share no slots with other work, so that alerts fire while other work waits.
pub const MAX_SCRAPES: usize = 2;
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers in Prometheus's text format, version 0.0.4.
pub async fn scrape(limiter: Arc<Limiter>, slots: &WorkSlots) -> Response<Reply> {
    // A scrape takes a thread and memory, so it waits for a slot.
    let slot = slots.take().await;
    let counters = count_counters(&limiter, &slot).await;
    // RocksDB may have to read files.
    let render = tokio::task::spawn_blocking(move || {
        let mut metrics = limiter.store_metrics();
        let help = "Counters that the store remembers, including expired ones until they are dropped.";
        metrics.extend(counters.map(|counted| Metric::gauge("divvy_live_counters", help, counted)));
        limiter.metrics().render(metrics).map_err(|error| error.to_string())
    });
    let rendered = slot.run(render).await.and_then(|rendered| rendered);
    match rendered.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => of_type(TEXT_FORMAT, Reply::Whole(text.into())),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")),
    }
}

/// Returns the number of counters in the store; `None` if the store is too slow or fails.
pub async fn count_counters(limiter: &Arc<Limiter>, slot: &WorkSlot) -> Option<u64> {
    let counting = Arc::clone(limiter);
    let count = slot.run(async move { counting.approximate_len().await });
    tokio::time::timeout(STORE_TIMEOUT, count).await.ok()?.ok()?.ok()
}

/// Default path of the metrics.
pub const DEFAULT_METRICS_PATH: &str = "/metrics";
/// Paths of the front's other pages.
const TAKEN: [&str; 6] = ["/healthz", "/readyz", "/openapi.json", "/healthcheck", "/json", "/rlconfig"];
/// Beginning of the API's paths.
const API: &str = "/v1";

/// The metrics cannot have a path: clients might escape it, or another page of the front has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "choose a path such as {DEFAULT_METRICS_PATH}: one slash, then letters, digits, slashes, and . _ ~ -, and no other page's path, \
     such as {API} and {}", TAKEN.join(", ")
)]
pub struct InvalidMetricsPath;

/// Checks a path for the metrics.
///
/// # Errors
/// The metrics cannot have this path.
pub fn check_metrics_path(path: &str) -> Result<(), InvalidMetricsPath> {
    let is_plain = path.starts_with('/')
        && !path.starts_with("//")
        && path.chars().all(|c| c.is_ascii_alphanumeric() || "/._~-".contains(c));
    let is_api = path.strip_prefix(API).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_plain && !is_api && !TAKEN.contains(&path) { Ok(()) } else { Err(InvalidMetricsPath) }
}
