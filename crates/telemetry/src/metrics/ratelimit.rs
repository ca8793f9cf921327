//! The statistics of envoyproxy/ratelimit: six numbers for each limit, and the events of its service.
//!
//! The name of a limit's statistics may contain values of requests, and the name of an unknown domain comes from a client. So the number
//! of such names is bounded.
//!
//! Sources: `src/stats/manager_impl.go`, `src/stats/prom/default_mapper.yaml`, `src/limiter/base_limiter.go` and
//! `src/utils/utilities.go` of <https://github.com/envoyproxy/ratelimit>.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::registry::{Histogram, Labels, Metric, Registry, SHARDS, named_values};
use divvy_core::clock::NANOS_PER_SECOND;

/// Maximum number of names that contain something of a request. Names of operators do not count. With [`MAX_NAME`], they take at most
/// 5 MB. All further ones count as `other`.
pub const MAX_REQUEST_NAMES: usize = 10_000;

/// Maximum length of a name that contains something of a request (bytes). Longer ones count as `other`.
pub const MAX_NAME: usize = 256;

/// The name in place of the values of further requests.
const OTHER: &str = "other";

/// The beginning of the names of limits in statsd.
pub(super) const RATE_LIMIT: &str = "ratelimit.service.rate_limit.";

/// The name of the times of calls in statsd.
pub(super) const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// Upper bounds in microseconds. From 5 ms on, they are Prometheus's defaults, as in ratelimit.
const DURATIONS: [u64; 14] = [
    100, 500, 1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

named_values! {
    /// A statistic of a limit. The last one is of an unknown domain.
    LimitStatistic {
        /// All hits.
        TotalHits = "total_hits",
        /// Hits beyond the limit.
        OverLimit = "over_limit",
        /// Hits that the limit allows, but only just.
        NearLimit = "near_limit",
        /// Allowed hits.
        WithinLimit = "within_limit",
        /// Hits beyond a limit that never denies.
        ShadowMode = "shadow_mode",
        /// Descriptors of a domain that has no configuration.
        DomainNotFound = "domain_not_found",
    }
}

named_values! {
    /// A countable event of the service, by its name in statsd.
    ServiceEvent {
        /// The configuration was loaded.
        ConfigLoadSuccess = "ratelimit.service.config_load_success",
        /// The configuration was refused.
        ConfigLoadError = "ratelimit.service.config_load_error",
        /// A denied call was allowed, because the server denies nothing.
        GlobalShadowMode = "ratelimit.service.global_shadow_mode",
        /// The store failed.
        RedisError = "ratelimit.service.call.should_rate_limit.redis_error",
        /// A call was refused.
        ServiceError = "ratelimit.service.call.should_rate_limit.service_error",
        /// A call.
        TotalRequests = "ratelimit_server.ShouldRateLimit.total_requests",
    }
}

impl ServiceEvent {
    /// Returns the name in Prometheus, and the label.
    fn mapped(self) -> (&'static str, Option<(&'static str, &'static str)>) {
        match self {
            Self::ConfigLoadSuccess => ("ratelimit_service_config_load_success", None),
            Self::ConfigLoadError => ("ratelimit_service_config_load_error", None),
            Self::GlobalShadowMode => ("ratelimit_service_global_shadow_mode", None),
            Self::RedisError => ("ratelimit_service_should_rate_limit_error", Some(("err_type", "redis_error"))),
            Self::ServiceError => ("ratelimit_service_should_rate_limit_error", Some(("err_type", "service_error"))),
            Self::TotalRequests => ("ratelimit_service_total_requests", Some(("grpc_method", "ShouldRateLimit"))),
        }
    }
}

/// The numbers of a limit, in the order of [`LimitStatistic`].
pub(super) type LimitTotals = [u64; LimitStatistic::ALL.len()];

/// The statistics with one name.
#[derive(Debug, Default)]
pub struct LimitCounts([AtomicU64; LimitStatistic::ALL.len()]);

/// A hit that a limit counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// The cost.
    pub cost: u64,
    /// The credits that the limit allows.
    pub limit: u64,
    /// The credits that are used now; `None` if the store did not answer.
    pub used: Option<u64>,
    /// The share of the limit beyond which hits are near it.
    pub near_limit_ratio: f32,
    /// Whether the limit never denies.
    pub is_shadow: bool,
}

impl LimitCounts {
    /// Counts a hit.
    pub fn count(&self, Tally { cost, limit, used, near_limit_ratio, is_shadow }: Tally) {
        self.add(LimitStatistic::TotalHits, cost);
        let Some(used) = used else { return };
        let before = used.saturating_sub(cost);
        // ratelimit computes with 32 bits, too.
        let near = (limit as f32 * near_limit_ratio) as u64;
        if used > limit {
            let over = if before >= limit { cost } else { used - limit };
            self.add(LimitStatistic::OverLimit, over);
            self.add(LimitStatistic::NearLimit, limit.saturating_sub(near.max(before)));
            self.add(LimitStatistic::ShadowMode, if is_shadow { over } else { 0 });
        } else {
            self.add(LimitStatistic::WithinLimit, cost);
            self.add(LimitStatistic::NearLimit, used.saturating_sub(near).min(cost));
        }
    }

    #[expect(clippy::indexing_slicing, reason = "there is a place for every statistic")]
    fn add(&self, statistic: LimitStatistic, hits: u64) {
        self.0[statistic as usize].fetch_add(hits, Relaxed);
    }

    fn totals(&self) -> LimitTotals {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
}

/// The statistics of some names.
type Shard = Mutex<HashMap<Arc<str>, Arc<LimitCounts>>>;

/// All statistics. None appear before they have counted something.
#[derive(Debug)]
pub struct Ratelimit {
    shards: [Shard; SHARDS],
    hasher: RandomState,
    /// Number of names that contain something of a request.
    request_names: AtomicUsize,
    events: [AtomicU64; ServiceEvent::ALL.len()],
    /// The times of calls.
    pub response_time: Histogram,
}

impl Ratelimit {
    pub(super) fn create(registry: &Registry) -> Arc<Self> {
        let ratelimit = Arc::new(Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            request_names: AtomicUsize::new(0),
            events: Default::default(),
            response_time: Histogram::new(NANOS_PER_SECOND, &DURATIONS.map(|micros| 1_000 * micros)),
        });
        let [service, limits] = [Arc::clone(&ratelimit), Arc::clone(&ratelimit)];
        registry.read(move || service.service_metrics());
        registry.read_by_rule(move || limits.limit_metrics());
        ratelimit
    }

    /// Counts an event.
    #[expect(clippy::indexing_slicing, reason = "there is a place for every event")]
    pub fn event(&self, event: ServiceEvent) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// Returns how often an event happened.
    #[expect(clippy::indexing_slicing, reason = "there is a place for every event")]
    pub(super) fn counted(&self, event: ServiceEvent) -> u64 {
        self.events[event as usize].load(Relaxed)
    }

    /// Counts a load of the configuration.
    pub fn config_loaded(&self, is_valid: bool) {
        self.event(if is_valid { ServiceEvent::ConfigLoadSuccess } else { ServiceEvent::ConfigLoadError });
    }

    /// Counts descriptors of a domain that has no configuration.
    pub fn domain_not_found(&self, domain: &str, descriptors: usize) {
        self.of_request(domain, || OTHER.to_owned()).add(LimitStatistic::DomainNotFound, descriptors as u64);
    }

    /// Returns the statistics of a configured limit. It continues the counts of an earlier limit with its name.
    pub fn configured(&self, name: &str) -> Arc<LimitCounts> {
        let name = sanitized(name);
        Arc::clone(self.shard(&name).lock().entry(name.into()).or_default())
    }

    /// Returns the statistics of a limit of `domain` whose name contains values of a request.
    pub fn limit_of_request(&self, name: &str, domain: &str) -> Arc<LimitCounts> {
        self.of_request(name, || format!("{domain}.{OTHER}"))
    }

    fn of_request(&self, name: &str, other: impl FnOnce() -> String) -> Arc<LimitCounts> {
        if name.len() <= MAX_NAME {
            let name = sanitized(name);
            let mut known = self.shard(&name).lock();
            if let Some(counts) = known.get(name.as_str()) {
                return Arc::clone(counts);
            }
            let add = |names: usize| (names < MAX_REQUEST_NAMES).then_some(names + 1);
            if self.request_names.fetch_update(Relaxed, Relaxed, add).is_ok() {
                return Arc::clone(known.entry(name.into()).or_default());
            }
        }
        self.configured(&other())
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is a shard")]
    fn shard(&self, name: &str) -> &Shard {
        &self.shards[self.hasher.hash_one(name) as usize % SHARDS]
    }

    /// Returns the numbers of all limits by their names.
    pub(super) fn limits(&self) -> Vec<(Arc<str>, LimitTotals)> {
        let mut limits = Vec::new();
        for shard in &self.shards {
            limits.extend(shard.lock().iter().map(|(name, counts)| (Arc::clone(name), counts.totals())));
        }
        limits
    }

    fn service_metrics(&self) -> Vec<Metric> {
        let mut metrics = Families::default();
        for event in ServiceEvent::ALL {
            let (name, label) = event.mapped();
            let labels = label.map(|(name, value)| (name, value.to_owned()));
            metrics.add(name.to_owned(), labels.into_iter().collect(), self.counted(event));
        }
        let mut metrics = metrics.finish();
        if self.response_time.observed().iter().any(|bucket| bucket.observations > 0) {
            let times = Metric::histogram("ratelimit_service_response_time_seconds", HELP, &self.response_time);
            metrics.push(times.labelled("grpc_method", "ShouldRateLimit"));
        }
        metrics
    }

    fn limit_metrics(&self) -> Vec<Metric> {
        let mut metrics = Families::default();
        for (limit, totals) in self.limits() {
            for (statistic, total) in LimitStatistic::ALL.into_iter().zip(totals) {
                if statistic == LimitStatistic::DomainNotFound {
                    // The mapping has no labels for it.
                    let domain: String =
                        limit.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '_' }).collect();
                    metrics.add(format!("{FAMILY}{domain}_{statistic}"), Vec::new(), total);
                } else {
                    let parts = limit.split('.').map(str::to_owned);
                    let labels = ["domain", "key1", "key2"].into_iter().zip(parts).collect();
                    metrics.add(format!("{FAMILY}{statistic}"), labels, total);
                }
            }
        }
        metrics.finish()
    }
}

/// The beginning of the names of limits' statistics in Prometheus.
const FAMILY: &str = "ratelimit_service_rate_limit_";

/// The help text of all metrics.
const HELP: &str = "A statistic of envoyproxy/ratelimit.";

/// Sums by names and labels.
#[derive(Default)]
struct Families(BTreeMap<String, BTreeMap<Labels, u64>>);

impl Families {
    /// Adds a number that is not 0.
    fn add(&mut self, name: String, labels: Labels, number: u64) {
        if number > 0 {
            *self.0.entry(name).or_default().entry(labels).or_default() += number;
        }
    }

    fn finish(self) -> Vec<Metric> {
        self.0.into_iter().map(|(name, numbers)| Metric::counters(&name, HELP, numbers)).collect()
    }
}

/// Returns a name as ratelimit sends it to statsd: with `_` for the characters that separate the parts of a line, and for the dots of
/// IPv4 addresses. Control characters, which could begin another line, become `_`, too.
fn sanitized(name: &str) -> String {
    let mut sanitized = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        let length = ipv4_length(rest.as_bytes()).unwrap_or(char.len_utf8());
        let (part, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        let is_address = length > char.len_utf8();
        let is_special = |char: char| matches!(char, ':' | '|') || char.is_control() || (is_address && char == '.');
        sanitized.extend(part.chars().map(|char| if is_special(char) { '_' } else { char }));
        rest = after;
    }
    sanitized
}

/// Returns the length of the IPv4 address at the beginning of `text`: four times one to three digits.
fn ipv4_length(text: &[u8]) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        let rest = text.get(length..)?;
        let rest = if part > 0 { rest.strip_prefix(b".")? } else { rest };
        let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        length += digits + usize::from(part > 0);
        if digits == 0 {
            return None;
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    /// Counts a hit on a limit at a ratio of 0.8. Returns all statistics but the last.
    fn counted(limit: u64, used: u64, cost: u64, is_shadow: bool) -> [u64; 5] {
        let counts = LimitCounts::default();
        counts.count(Tally { cost, limit, used: Some(used), near_limit_ratio: 0.8, is_shadow });
        let [total, over, near, within, shadow, 0] = counts.totals() else { panic!() };
        [total, over, near, within, shadow]
    }

    #[test]
    fn hits_near_and_beyond_the_limit_count_in_part() {
        for (limit, used, cost, expected) in [
            (15, 11, 1, [1, 0, 0, 1, 0]),
            (15, 13, 1, [1, 0, 1, 1, 0]),
            (15, 16, 1, [1, 1, 0, 0, 0]),
            (20, 5, 3, [3, 0, 0, 3, 0]),
            (8, 7, 2, [2, 0, 1, 2, 0]),
            (20, 19, 3, [3, 0, 3, 3, 0]),
            (20, 22, 3, [3, 2, 1, 0, 0]),
            (20, 22, 7, [7, 2, 4, 0, 0]),
            (10, 30, 3, [3, 3, 0, 0, 0]),
            // A limit of 0, and a hit that costs nothing.
            (0, 3, 3, [3, 3, 0, 0, 0]),
            (10, 10, 0, [0; 5]),
            (10, 11, 0, [0; 5]),
        ] {
            assert_eq!(counted(limit, used, cost, false), expected, "{limit} {used} {cost}");
            let [total, over, near, within, _] = expected;
            assert_eq!(counted(limit, used, cost, true), [total, over, near, within, over], "{limit} {used} {cost}");
        }
    }

    #[test]
    fn hits_without_an_answer_of_the_store_count_only_in_total() {
        let counts = LimitCounts::default();
        counts.count(Tally { cost: 2, limit: 0, used: None, near_limit_ratio: 0.8, is_shadow: true });
        assert_eq!(counts.totals(), [2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn names_are_sanitized_as_by_ratelimit() {
        for (name, expected) in [
            ("d.k_a:b|c", "d.k_a_b_c"),
            ("d.ip_10.0.0.5.x", "d.ip_10_0_0_5.x"),
            ("1.2.3.4.5.6.7.8.9", "1_2_3_4.5_6_7_8.9"),
            ("1234.5.6.7890", "1234_5_6_7890"),
            ("1.2.3", "1.2.3"),
            (
                "ä
1.2.3.x1.1.1.1",
                "ä_1.2.3.x1_1_1_1",
            ),
            ("", ""),
        ] {
            assert_eq!(sanitized(name), expected);
        }
    }

    #[test]
    fn names_from_requests_are_bounded() {
        let metrics = Metrics::new();
        let ratelimit = &metrics.ratelimit;
        let tally = Tally { cost: 1, limit: 5, used: Some(1), near_limit_ratio: 0.8, is_shadow: false };
        ratelimit.configured("d.k").count(tally);
        for number in 0..20_000 {
            ratelimit.limit_of_request(&format!("d.k_{number}"), "d").count(tally);
        }
        ratelimit.domain_not_found("unknown", 2);
        ratelimit.limit_of_request(&format!("d.{}", "k".repeat(MAX_NAME)), "d").count(tally);
        // Known names do not need room.
        ratelimit.limit_of_request("d.k_7", "d").count(tally);
        let limits: HashMap<_, _> = ratelimit.limits().into_iter().collect();
        assert_eq!(limits.len(), MAX_REQUEST_NAMES + 3);
        for (name, expected) in
            [("d.k", [1, 0, 0, 1, 0, 0]), ("d.k_7", [2, 0, 0, 2, 0, 0]), ("other", [0, 0, 0, 0, 0, 2])]
        {
            assert_eq!(limits.get(name), Some(&expected), "{name}");
        }
        assert_eq!(limits.get("d.other"), Some(&[10_001, 0, 0, 10_001, 0, 0]));
        // A configured limit has its name even then, and continues its counts.
        ratelimit.configured("d.new").count(tally);
        ratelimit.configured("d.k").count(tally);
        let limits: HashMap<_, _> = ratelimit.limits().into_iter().collect();
        assert_eq!((limits.len(), limits["d.k"][0], limits["d.new"][0]), (MAX_REQUEST_NAMES + 4, 2, 1));
    }

    #[test]
    fn prometheus_has_the_labels_of_the_mapping() {
        let metrics = Metrics::new();
        let text = || {
            let text = metrics.render(Vec::new()).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("ratelimit"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(text().is_empty());
        let tally = Tally { cost: 2, limit: 2, used: Some(3), near_limit_ratio: 0.5, is_shadow: false };
        for name in ["d.k", "d.k.l_1", "d.k.l_1.m", "d.k.l_1.n.o", "a.b.c.d"] {
            metrics.ratelimit.configured(name).count(tally);
        }
        metrics.ratelimit.configured("d.unused");
        metrics.ratelimit.domain_not_found("un-known.x", 3);
        metrics.ratelimit.config_loaded(true);
        metrics.ratelimit.event(ServiceEvent::RedisError);
        metrics.ratelimit.event(ServiceEvent::TotalRequests);
        metrics.ratelimit.event(ServiceEvent::GlobalShadowMode);
        metrics.ratelimit.response_time.observe(2_000_000, 1);
        let text = text();
        for expected in [
            r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 2"#,
            r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="l_1"} 6"#,
            r#"ratelimit_service_rate_limit_over_limit{domain="a",key1="b",key2="c"} 1"#,
            r#"ratelimit_service_rate_limit_near_limit{domain="d",key1="k",key2="l_1"} 3"#,
            "ratelimit_service_rate_limit_un_known_x_domain_not_found 3",
            "ratelimit_service_config_load_success 1",
            "ratelimit_service_global_shadow_mode 1",
            r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1"#,
            r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 1"#,
            r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 1"#,
        ] {
            assert!(
                text.iter().any(|line| line == expected),
                "{expected}
{text:#?}"
            );
        }
        // Nothing is shown that is 0: three statistics with three label sets each, and five numbers.
        assert_eq!(text.iter().filter(|line| !line.contains("response_time")).count(), 3 * 3 + 5);
    }
}
