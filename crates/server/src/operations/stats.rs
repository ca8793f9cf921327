//! Statistics of the server, by sections.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::errors::{ERROR_LOG, LastError};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_limiter::Limiter;
use divvy_telemetry::logging::Escaped;

/// Returns all sections, or only the one with this name; null if there is no section with this name.
#[expect(clippy::disallowed_methods, reason = "the uptime")]
pub async fn show(limiter: &Arc<Limiter>, started: Instant, section: Option<&str>) -> Value {
    let numbers: Map<_, _> = numbers(limiter).await.into_iter().map(|(name, value)| (name, whole(value))).collect();
    let number = |name: &str| numbers.get(name).cloned().unwrap_or_default();
    let backend = limiter.store();
    let mut store = Map::from_iter([
        ("name".to_owned(), backend.name().into()),
        ("counters".to_owned(), limiter.approximate_len().await.ok().into()),
    ]);
    if let Some(rocks) = backend.on_disk() {
        store.insert("durability".to_owned(), format!("{:?}", rocks.durability()).to_lowercase().into());
        store.insert("diskBytes".to_owned(), number("divvy_rocksdb_disk_bytes"));
        store.insert("failing".to_owned(), (number("divvy_commits_failing").as_f64() > Some(0.0)).into());
    }
    let sections = json!({
        "server": {
            "version": env!("CARGO_PKG_VERSION"),
            "processId": std::process::id(),
            "uptime": started.elapsed().as_secs(),
            "rules": limiter.active_rules().map_or(0, |policy| policy.rules().rules().len()),
            "residentBytes": number("process_resident_memory_bytes"),
        },
        "store": store,
        "hits": { "accepted": hits(limiter, "accepted"), "rejected": hits(limiter, "rejected") },
        "errors": errors(limiter).map(|(front, code, text)| (format!("{front} {code}"), text.into())).collect::<Map<_, _>>(),
        "metrics": numbers,
    });
    match section {
        Some(name) => sections.get(name).map_or(Value::Null, |found| json!({ name: found })),
        None => sections,
    }
}

/// Returns the values of `/metrics` without histograms.
pub async fn numbers(limiter: &Arc<Limiter>) -> Vec<(String, f64)> {
    let limiter = Arc::clone(limiter);
    // Reading the store's values takes system calls.
    let numbers = tokio::task::spawn_blocking(move || limiter.metrics().numbers(limiter.store_metrics()));
    numbers.await.unwrap_or_default()
}

/// Returns a number without a fraction, if it has none.
fn whole(number: f64) -> Value {
    let is_whole = number.fract() == 0.0 && (0.0..9e15).contains(&number);
    if is_whole { (number as u64).into() } else { number.into() }
}

/// Returns the number of hits with this status.
pub fn hits(limiter: &Limiter, status: &str) -> u64 {
    let counted = limiter.metrics().hits.counted();
    counted.iter().filter(|counted| counted.status == status).map(|counted| counted.hits).sum()
}

/// Returns the last error of each kind on each front: its front and code, and its age, the client's address and user, and the
/// reason.
pub fn errors(limiter: &Limiter) -> impl Iterator<Item = (&'static str, &'static str, String)> {
    let now = limiter.now();
    ERROR_LOG.last().into_iter().map(move |LastError { front, kind, at, client, reason }| {
        let age = now.distance(at) / NANOS_PER_SECOND;
        (front, kind.name(), format!("{age} s ago, {client}: {}", Escaped::error(&reason)))
    })
}
