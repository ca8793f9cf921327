//! All that is counted, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use crate::limiter::Limiter;
use crate::metrics::Figure;
use crate::store::{Backend, Store};

/// How long the store may take to count its counters: a scrape without that number is better than none.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prometheus's text format, version 0.0.4.
pub async fn scrape(State(limiter): State<Arc<Limiter>>) -> Response {
    // Whoever asks for many at once waits: a scrape takes a thread and some memory.
    let _turn = ONE_AT_A_TIME.acquire().await;
    let counters = live_counters(limiter.store()).await;
    // RocksDB may have to look at its files.
    let rendered = tokio::task::spawn_blocking(move || {
        let mut figures = limiter.store().figures();
        figures.extend(counters);
        limiter.metrics().render(figures).map_err(|error| error.to_string())
    });
    match rendered.await.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn live_counters(store: &Backend) -> Option<Figure> {
    let counted = tokio::time::timeout(STORE_TIMEOUT, store.approximate_len()).await.ok()?.ok()?;
    let help = "Counters that the store remembers; expired ones too, until they are dropped.";
    Some(Figure::gauge("divvy_live_counters", help, counted as f64))
}
