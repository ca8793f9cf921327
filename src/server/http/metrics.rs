//! All that is counted, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::limiter::Limiter;
use crate::metrics::Metric;
use crate::server::turns::{Turn, Turns};

/// How long the store may take to count its counters: a scrape without that number is better than none.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prometheus's text format, version 0.0.4.
pub async fn scrape(State((limiter, turns)): State<(Arc<Limiter>, Turns)>) -> Response {
    // A scrape takes a thread and some memory: many at once wait.
    let turn = turns.take().await;
    let counters = live_counters(&limiter, &turn).await;
    // RocksDB may have to look at its files.
    let render = tokio::task::spawn_blocking(move || {
        let mut metrics = limiter.store_metrics();
        metrics.extend(counters);
        limiter.metrics().render(metrics).map_err(|error| error.to_string())
    });
    let rendered = turn.run(render).await.and_then(|rendered| rendered);
    match rendered.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn live_counters(limiter: &Arc<Limiter>, turn: &Turn) -> Option<Metric> {
    let counting = Arc::clone(limiter);
    let count = turn.run(async move { counting.approximate_len().await });
    let counted = tokio::time::timeout(STORE_TIMEOUT, count).await.ok()?.ok()?.ok()?;
    let help = "Counters that the store remembers, including expired ones until they are dropped.";
    Some(Metric::gauge("divvy_live_counters", help, counted as f64))
}
