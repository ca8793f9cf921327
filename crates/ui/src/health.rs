//! The event `health`: what the server uses, with the bounds, and what is wrong.
//!
//! One sample serves all pages. It is taken every few seconds while a page is open, on a thread that may wait for the disk.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Ui;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_server::http::page::{ERROR_LOG, LastError, count_counters, hide_paths};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two looks at whether a page is open.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The state of a value that is not near its bound.
const OK: &str = "ok";

impl Ui {
    /// Samples the health of the server for all pages, forever.
    pub(crate) async fn sample_health(self: &Arc<Self>) {
        loop {
            let is_open = self.health_event.receiver_count() > 0;
            // The next page must not see the state of long ago.
            let event = if is_open { self.health().await } else { None };
            self.health_event.send_replace(event.map(|event| event.to_string().into()));
            sleep(if is_open { INTERVAL } else { IDLE_INTERVAL }).await;
        }
    }

    async fn health(self: &Arc<Self>) -> Option<Value> {
        let slot = self.slots.take().await;
        let counters = count_counters(&self.limiter, &slot).await;
        let ui = Arc::clone(self);
        slot.run(spawn_blocking(move || ui.describe_health(counters))).await.ok()?.ok()
    }

    fn describe_health(&self, counters: Option<u64>) -> Value {
        let numbers = Numbers(self.limiter.metrics().server_numbers(self.limiter.store_metrics()));
        let state = self.health.state();
        let not_ready = state.as_ref().err().map(hide_paths);
        let now = self.limiter.now();
        let last_error = |LastError { front, kind, at, client, reason }| {
            let age = now.distance(at) / NANOS_PER_SECOND;
            let (peer, user) = (client.peer.map(|peer| peer.to_string()), client.user.as_deref());
            json!({"front": front, "kind": kind.name(), "age": age, "peer": peer, "user": user, "reason": reason})
        };
        json!({
            "ready": state.is_ok(),
            "problems": not_ready.into_iter().chain(numbers.problems()).collect::<Vec<_>>(),
            "values": self.values(&numbers, counters),
            "durability": self.settings.durability,
            "store": self.limiter.store().name(),
            "errors": numbers.errors(),
            // The last error of each kind on each front.
            "last_errors": ERROR_LOG.last().into_iter().map(last_error).collect::<Vec<_>>(),
        })
    }

    /// Returns the values that the metrics contain, with their bounds. `counters` is the number of counters in the store.
    fn values(&self, numbers: &Numbers, counters: Option<u64>) -> Vec<Value> {
        let find = |name: &str| numbers.find(name).map(|value| value as u64);
        let (settings, limits) = (&self.settings, &self.limits);
        let (buffers, connections) = (limits.max_buffer_memory as u64, limits.max_connections as u64);
        // A cache and a journal are meant to be full. Requests fail if anything else is.
        let harmless = |_, _| OK;
        type Row<'a> = (&'a str, &'a str, Option<u64>, Option<u64>, fn(u64, u64) -> &'static str);
        let rows: [Row<'_>; 11] = [
            ("Counters", "count", counters, find("divvy_max_counters"), judge),
            ("Disk", "bytes", find("divvy_rocksdb_disk_bytes"), settings.max_disk, judge),
            ("Journal", "bytes", find("divvy_journal_bytes"), settings.max_journal, harmless),
            ("Hot table", "bytes", find("divvy_hot_table_bytes"), settings.cache_memory, harmless),
            ("Resident memory", "bytes", find("process_resident_memory_bytes"), None, judge),
            ("Buffer memory of connections", "bytes", find("divvy_buffer_memory_bytes"), Some(buffers), judge),
            ("Connections", "count", find("divvy_tcp_connections_total"), Some(connections), judge),
            ("Open files", "count", find("process_open_fds"), find("process_max_fds"), judge),
            ("Reservations", "count", find("divvy_reservations"), find("divvy_max_reservations"), judge),
            ("Idempotency keys", "count", find("divvy_idempotency_keys"), find("divvy_max_idempotency_keys"), judge),
            ("Limits of single actors", "count", find("divvy_actor_limits"), Some(settings.max_actor_limits), judge),
        ];
        let describe = |(text, unit, used, bound, judge): Row<'_>| {
            let used = used?;
            let state = bound.map_or(OK, |bound| judge(used, bound));
            Some(json!({"text": text, "used": used, "bound": bound, "unit": unit, "state": state}))
        };
        rows.into_iter().filter_map(describe).collect()
    }
}

/// Judges a value that must not reach its bound. A bound of 0 switches something off, and nothing uses it.
fn judge(used: u64, bound: u64) -> &'static str {
    match used as f64 / bound as f64 {
        0.95.. => "bad",
        0.8.. => "warning",
        _ => OK,
    }
}

/// Gauges that are not 0 while something is wrong.
const PROBLEMS: [(&str, &str); 7] = [
    ("divvy_commits_failing", "commits to the disk fail"),
    ("divvy_full", "the store has no room for a new counter"),
    ("divvy_rocksdb_writes_stopped", "RocksDB accepts no writes, because its compactions are behind"),
    ("divvy_rocksdb_delayed_write_bytes_per_second", "RocksDB slows down writes, because its compactions are behind"),
    ("divvy_redis_outage", "Redis fails; --on-store-error decides"),
    ("divvy_actor_limits_orphaned", "limits of single actors belong to rules that are gone"),
    ("divvy_blocks_orphaned", "blocks or allows of single actors belong to rules that are gone"),
];

/// Counters of errors, and the text in front of the label's value. Without a label, the text is the kind.
const ERRORS: [(&str, &str); 11] = [
    ("divvy_store_errors_total", "store"),
    ("divvy_redis_failures_total", "redis"),
    ("divvy_counters_refused_total", "counters refused"),
    ("divvy_reservations_refused_total", "reservations refused"),
    ("divvy_idempotency_keys_refused_total", "idempotency keys refused"),
    ("divvy_failed_reads_total", "failed reads"),
    ("divvy_errors_total{code=", ""),
    ("divvy_limits_reached_total{limit=", "--"),
    ("divvy_wrong_passwords_total{front=", "wrong passwords: "),
    ("divvy_forbidden_requests_total{front=", "forbidden: "),
    ("divvy_task_restarts_total{task=", "restarts: "),
];

/// Metrics by name, as Prometheus writes them.
struct Numbers(Vec<(String, f64)>);

impl Numbers {
    fn find(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Returns what is wrong.
    fn problems(&self) -> Vec<String> {
        let is_set = |name| self.find(name).is_some_and(|value| value > 0.0);
        let is_refused = self.find("divvy_config_last_load_successful") == Some(0.0) && is_set("divvy_config_version");
        let refused = "the last reload of the rules failed; the previous rules are in force";
        let problems = PROBLEMS.map(|(name, text)| is_set(name).then_some(text));
        problems.into_iter().chain([is_refused.then_some(refused)]).flatten().map(str::to_owned).collect()
    }

    /// Returns the kinds of errors that have occurred, and how often.
    fn errors(&self) -> Vec<Value> {
        let describe = |(name, value): &(String, f64)| {
            let (label, text) = ERRORS.iter().find_map(|(known, text)| Some((name.strip_prefix(known)?, text)))?;
            let kind = format!("{text}{}", label.trim_matches(['"', '}']));
            (*value > 0.0).then(|| json!({"kind": kind, "count": *value as u64}))
        };
        self.0.iter().filter_map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_near_its_bound_is_marked() {
        let states = [79, 80, 94, 95, 200].map(|used| judge(used, 100));
        assert_eq!(states, ["ok", "warning", "warning", "bad", "bad"]);
        assert_eq!(judge(0, 0), "ok");
    }

    #[test]
    fn only_present_problems_and_errors_are_listed() {
        let pairs = [
            ("divvy_commits_failing", 1.0),
            ("divvy_full", 0.0),
            ("divvy_config_last_load_successful", 0.0),
            ("divvy_config_version", 2.0),
            ("divvy_store_errors_total", 3.0),
            ("divvy_errors_total{code=\"unknown\"}", 4.0),
            ("divvy_errors_total{code=\"unauthenticated\"}", 0.0),
            ("divvy_limits_reached_total{limit=\"max-body\"}", 5.0),
            ("divvy_hits_total{status=\"accepted\",rule_label=\"default\"}", 6.0),
        ];
        let numbers = Numbers(pairs.map(|(name, value)| (name.to_owned(), value)).into());
        assert_eq!(numbers.problems().len(), 2, "{:?}", numbers.problems());
        let expected = [("store", 3), ("unknown", 4), ("--max-body", 5)];
        assert_eq!(numbers.errors(), expected.map(|(kind, count)| json!({"kind": kind, "count": count})));
    }
}
