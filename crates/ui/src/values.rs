//! The values, problems and errors that the page shows of the server's metrics.

use serde::Serialize;

use divvy_server::Limits;

/// Part of a bound beyond which a value is a warning.
const WARNING: f64 = 0.8;
/// Part of a bound beyond which a value is bad.
const BAD: f64 = 0.95;

/// Bounds of the store that its metrics do not show.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreBounds {
    /// Maximum size of the data directory (bytes).
    pub disk: Option<u64>,
    /// Maximum size of the journal (bytes).
    pub journal: Option<u64>,
    /// Maximum memory of the hot table (bytes).
    pub hot_table: Option<u64>,
    /// Maximum number of limits of single actors.
    pub actor_limits: u64,
}

/// A value with its bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Value {
    pub name: &'static str,
    pub text: &'static str,
    pub used: u64,
    pub bound: Option<u64>,
    pub unit: &'static str,
    pub state: State,
}

/// How a value is to be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    Warning,
    Bad,
}

/// The effect of a value that comes close to its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Requests fail.
    Harmful,
    /// None: a cache or a journal, which is meant to be full.
    Harmless,
}

/// Metrics by name, as Prometheus writes them.
pub type Numbers = [(String, f64)];

/// Returns the values that these metrics contain. `counters` is the number of counters in the store, if it is known.
pub fn describe_values(numbers: &Numbers, counters: Option<u64>, bounds: &StoreBounds, limits: &Limits) -> Vec<Value> {
    let find = |name: &str| find(numbers, name).map(|value| value as u64);
    let count = |limit: usize| Some(limit as u64);
    let harmful = |name, text, unit, used: Option<u64>, bound| value(name, text, unit, used, bound, Fill::Harmful);
    let harmless = |name, text, unit, used: Option<u64>, bound| value(name, text, unit, used, bound, Fill::Harmless);
    [
        harmful("counters", "Counters", "count", counters, find("divvy_max_counters")),
        harmful("disk", "Disk", "bytes", find("divvy_rocksdb_disk_bytes"), bounds.disk),
        harmless("journal", "Journal", "bytes", find("divvy_journal_bytes"), bounds.journal),
        harmless("hotTable", "Hot table", "bytes", find("divvy_hot_table_bytes"), bounds.hot_table),
        harmful("resident", "Resident memory", "bytes", find("process_resident_memory_bytes"), None),
        harmful(
            "buffers",
            "Buffer memory of connections",
            "bytes",
            find("divvy_buffer_memory_bytes"),
            count(limits.max_buffer_memory),
        ),
        harmful(
            "connections",
            "Connections",
            "count",
            find("divvy_tcp_connections_total"),
            count(limits.max_connections),
        ),
        harmful("files", "Open files", "count", find("process_open_fds"), find("process_max_fds")),
        harmful("reservations", "Reservations", "count", find("divvy_reservations"), find("divvy_max_reservations")),
        harmful(
            "idempotencyKeys",
            "Idempotency keys",
            "count",
            find("divvy_idempotency_keys"),
            find("divvy_max_idempotency_keys"),
        ),
        harmful(
            "actorLimits",
            "Limits of single actors",
            "count",
            find("divvy_actor_limits"),
            Some(bounds.actor_limits),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn value(
    name: &'static str,
    text: &'static str,
    unit: &'static str,
    used: Option<u64>,
    bound: Option<u64>,
    fill: Fill,
) -> Option<Value> {
    let used = used?;
    let state = match bound {
        Some(bound) if fill == Fill::Harmful => judge(used, bound),
        _ => State::Ok,
    };
    Some(Value { name, text, used, bound, unit, state })
}

fn judge(used: u64, bound: u64) -> State {
    let part = used as f64 / bound as f64;
    // A bound of 0 switches something off, and nothing uses it.
    if part >= BAD {
        State::Bad
    } else if part >= WARNING {
        State::Warning
    } else {
        State::Ok
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

/// Returns what is wrong.
pub fn describe_problems(numbers: &Numbers) -> Vec<String> {
    let is_set = |name| find(numbers, name).is_some_and(|value| value > 0.0);
    let problems = PROBLEMS.iter().filter(|(name, _)| is_set(name)).map(|(_, text)| (*text).to_owned());
    let is_disconnected = find(numbers, "divvy_redis_connected") == Some(0.0);
    let disconnected = is_disconnected.then(|| "there is no connection to Redis".to_owned());
    let is_refused = find(numbers, "divvy_config_last_load_successful") == Some(0.0)
        && find(numbers, "divvy_config_version").is_some_and(|version| version > 0.0);
    let refused = is_refused.then(|| "the last reload of the rules failed; the previous rules are in force".to_owned());
    problems.chain(disconnected).chain(refused).collect()
}

/// Counters of errors without a label, and their kinds.
const ERRORS: [(&str, &str); 6] = [
    ("divvy_store_errors_total", "store"),
    ("divvy_redis_failures_total", "redis"),
    ("divvy_counters_refused_total", "counters refused"),
    ("divvy_reservations_refused_total", "reservations refused"),
    ("divvy_idempotency_keys_refused_total", "idempotency keys refused"),
    ("divvy_failed_reads_total", "failed reads"),
];
/// Counters of errors with a label, and the text in front of its value.
const LABELLED_ERRORS: [(&str, &str); 5] = [
    ("divvy_errors_total{code=", ""),
    ("divvy_limits_reached_total{limit=", "--"),
    ("divvy_wrong_passwords_total{front=", "wrong passwords: "),
    ("divvy_forbidden_requests_total{front=", "forbidden: "),
    ("divvy_task_restarts_total{task=", "restarts: "),
];

/// Returns the kinds of errors that have occurred, and how often.
pub fn list_errors(numbers: &Numbers) -> Vec<(String, u64)> {
    let has_occurred = |(_, value): &&(String, f64)| *value > 0.0;
    let kind = |(name, value): &(String, f64)| {
        let plain = ERRORS.iter().find(|(known, _)| known == name).map(|(_, kind)| (*kind).to_owned());
        let labelled = || {
            LABELLED_ERRORS.iter().find_map(|(known, prefix)| {
                let label = name.strip_prefix(known)?.trim_matches(['"', '}']);
                Some(format!("{prefix}{label}"))
            })
        };
        Some((plain.or_else(labelled)?, *value as u64))
    };
    numbers.iter().filter(has_occurred).filter_map(kind).collect()
}

fn find(numbers: &Numbers, name: &str) -> Option<f64> {
    numbers.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn value_near_its_bound_is_marked_unless_it_may_be_full() {
        for (used, state) in
            [(79, State::Ok), (80, State::Warning), (94, State::Warning), (95, State::Bad), (200, State::Bad)]
        {
            assert_eq!(judge(used, 100), state, "{used}");
        }
        assert_eq!(judge(0, 0), State::Ok);
        let full = |fill| value("n", "N", "bytes", Some(10), Some(10), fill).unwrap().state;
        assert_eq!((full(Fill::Harmful), full(Fill::Harmless)), (State::Bad, State::Ok));
        assert_eq!(value("n", "N", "bytes", None, Some(10), Fill::Harmful), None);
    }

    #[test]
    fn only_present_problems_and_errors_are_listed() {
        let numbers = numbers(&[
            ("divvy_commits_failing", 1.0),
            ("divvy_full", 0.0),
            ("divvy_redis_connected", 0.0),
            ("divvy_config_last_load_successful", 0.0),
            ("divvy_config_version", 2.0),
            ("divvy_store_errors_total", 3.0),
            ("divvy_errors_total{code=\"unknown\"}", 4.0),
            ("divvy_errors_total{code=\"unauthenticated\"}", 0.0),
            ("divvy_limits_reached_total{limit=\"max-body\"}", 5.0),
            ("divvy_hits_total{status=\"accepted\",rule_label=\"default\"}", 6.0),
        ]);
        let problems = describe_problems(&numbers);
        assert_eq!(problems.len(), 3, "{problems:?}");
        let errors = list_errors(&numbers);
        let expected = [("store", 3), ("unknown", 4), ("--max-body", 5)];
        assert_eq!(errors, expected.map(|(kind, count)| (kind.to_owned(), count)));
    }
}
