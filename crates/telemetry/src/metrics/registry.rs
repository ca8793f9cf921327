//! Creates metrics and registers them with the library, and metrics that other modules keep, which are read at each scrape.
//! A histogram here records many equal observations with two atomic additions.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, proto};

pub use divvy_core::named_values;

/// Declares the handles of a theme, each with the call that creates it, and `create`, which creates them all in a registry.
macro_rules! handles {
    (
        $(#[$about:meta])*
        $theme:ident($registry:ident) {
            $($(#[$doc:meta])* $seen:vis $field:ident: $handle:ty = $created:expr,)*
        }
    ) => {
        $(#[$about])*
        pub struct $theme {
            $($(#[$doc])* $seen $field: $handle,)*
        }

        impl $theme {
            pub(super) fn create($registry: &Registry) -> Self {
                Self { $($field: $created,)* }
            }
        }
    };
}

pub(super) use handles;

/// Labels with their values.
pub type Labels = Vec<(&'static str, String)>;

/// Reads metrics at each scrape.
type Read = Box<dyn Fn() -> Vec<Metric> + Send + Sync>;

/// The library's registries, and the metrics that are read at each scrape. Names, help texts and labels are constants of this
/// crate.
#[derive(Clone, Default)]
pub struct Registry {
    inner: prometheus::Registry,
    /// The metrics by rule. With thousands of rules, they take most of the time.
    by_rule: prometheus::Registry,
    read_by_rule: Arc<Mutex<Vec<Read>>>,
    read: Arc<Mutex<Vec<Read>>>,
}

impl Registry {
    /// Returns all metrics but those by rule.
    pub fn gather_server(&self) -> Vec<proto::MetricFamily> {
        let mut families = self.inner.gather();
        families.extend(self.read.lock().iter().flat_map(|read| read()).map(|metric| metric.0));
        families
    }

    /// Returns all metrics, by name.
    pub fn gather(&self) -> Vec<proto::MetricFamily> {
        let mut families = self.gather_server();
        families.extend(self.by_rule.gather());
        families.extend(self.read_by_rule.lock().iter().flat_map(|read| read()).map(|metric| metric.0));
        families.sort_by(|a, b| a.name().cmp(b.name()));
        families
    }

    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        register(&self.inner, IntCounter::new(name, help))
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        register(&self.inner, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Creates a counter for each of these values of a label, with the text that `name_of` returns.
    pub fn counts<V: Copy + Eq + Hash + Display, const N: usize>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: [V; N],
    ) -> Counts<V> {
        let counters = self.counters(name, help, &[label]);
        Counts(values.map(|value| (value, counters.with_label_values(&[value.to_string()]))).into())
    }

    /// Creates counters with a label for the rule.
    pub fn counters_by_rule(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        register(&self.by_rule, IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        register(&self.inner, IntGauge::new(name, help))
    }

    /// Creates a gauge for fractions, such as a time in seconds.
    pub fn fraction(&self, name: &str, help: &str) -> Gauge {
        register(&self.inner, Gauge::new(name, help))
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        register(&self.inner, IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Creates a histogram: see [`Histogram::new`].
    pub fn histogram(&self, name: &'static str, help: &'static str, per_unit: u64, bounds: &[u64]) -> Histogram {
        let histogram = Histogram::new(per_unit, bounds);
        let shown = histogram.clone();
        self.read(move || vec![Metric::histogram(name, help, &shown)]);
        histogram
    }

    /// Adds metrics that `read` returns at each scrape.
    pub fn read(&self, read: impl Fn() -> Vec<Metric> + Send + Sync + 'static) {
        self.read.lock().push(Box::new(read));
    }

    /// Adds metrics by rule that `read` returns at each scrape.
    pub fn read_by_rule(&self, read: impl Fn() -> Vec<Metric> + Send + Sync + 'static) {
        self.read_by_rule.lock().push(Box::new(read));
    }
}

/// A counter for each value of a label.
pub struct Counts<V>(HashMap<V, IntCounter>);

impl<V: Eq + Hash> Counts<V> {
    /// Counts one event with this value.
    pub fn count(&self, value: V) {
        if let Some(counter) = self.0.get(&value) {
            counter.inc();
        }
    }

    /// Returns the number of events with this value.
    pub fn counted(&self, value: V) -> u64 {
        self.0.get(&value).map_or(0, IntCounter::get)
    }
}

#[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
fn register<M: Collector + Clone + 'static>(registry: &prometheus::Registry, made: prometheus::Result<M>) -> M {
    let metric = made.expect("a valid name, help and labels");
    registry.register(Box::new(metric.clone())).expect("a name that no other metric has");
    metric
}

/// One metric: its name, its help text, and its current value.
#[derive(Debug, Clone)]
pub struct Metric(pub proto::MetricFamily);

impl Metric {
    fn new(name: &str, help: &str, kind: proto::MetricType, metric: proto::Metric) -> Self {
        let mut family = proto::MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(vec![metric]);
        Self(family)
    }

    /// Returns a metric whose value never decreases. Its name must end in `_total`.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        let (mut counter, mut metric) = (proto::Counter::default(), proto::Metric::default());
        counter.set_value(value as f64);
        metric.set_counter(counter);
        Self::new(name, help, proto::MetricType::COUNTER, metric)
    }

    /// Returns a metric with a counter for each of at least one combination of labels.
    pub(super) fn counters(name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) -> Self {
        let metric = |(labels, value): (Labels, u64)| {
            let Self(mut family) = Self::counter("", "", value);
            let mut metric = family.take_metric().pop().unwrap_or_default();
            metric.set_label(labels.iter().map(|(name, value)| pair(name, value)).collect());
            metric
        };
        let mut family = Self::new(name, help, proto::MetricType::COUNTER, proto::Metric::default());
        family.0.set_metric(values.into_iter().map(metric).collect());
        family
    }

    /// Returns a metric whose value may rise and fall.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::fraction(name, help, value as f64)
    }

    /// Returns a gauge for fractions, such as a time in seconds.
    pub fn fraction(name: &'static str, help: &'static str, value: f64) -> Self {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(value);
        Self::new(name, help, proto::MetricType::GAUGE, proto::Metric::from_gauge(gauge))
    }

    /// Returns a metric with a copy of this histogram, as of now.
    pub fn histogram(name: &'static str, help: &'static str, value: &Histogram) -> Self {
        Self::new(name, help, proto::MetricType::HISTOGRAM, value.to_proto())
    }

    /// Adds a label. Its value must be a constant of this crate.
    pub fn labelled(mut self, label: &'static str, value: &'static str) -> Self {
        self.0.mut_metric().iter_mut().for_each(|metric| metric.set_label(vec![pair(label, value)]));
        self
    }
}

fn pair(name: &str, value: &str) -> proto::LabelPair {
    let mut pair = proto::LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// Observations in buckets. Clones share them.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Core>);

#[derive(Debug)]
struct Core {
    per_unit: u64,
    bounds: Box<[u64]>,
    /// Buckets, shard by shard. Each shard has one bucket more than there are bounds, for values beyond the last bound.
    buckets: Box<[Bucket]>,
}

/// A bucket, in its own cache line, so that no two threads write to the same line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    observations: AtomicU64,
    /// Sum of the values. It takes years of heavy load to overflow, and then Prometheus sees a counter that was reset.
    sum: AtomicU64,
}

/// A bucket's contents at one moment: the number of observations, and the sum of their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketContents {
    pub observations: u64,
    pub sum: u64,
}

impl Histogram {
    /// Creates a histogram. `bounds` are the largest value of each bucket, ascending. A value of `per_unit` is shown as 1, so that
    /// nanoseconds can be shown as seconds.
    pub fn new(per_unit: u64, bounds: &[u64]) -> Self {
        let buckets = (0..SHARDS * (bounds.len() + 1)).map(|_| Bucket::default()).collect();
        Self(Arc::new(Core { per_unit, bounds: bounds.into(), buckets }))
    }

    /// Records `times` observations of `value`.
    pub fn observe(&self, value: u64, times: u64) {
        let index = self.0.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.0.buckets.get(own() * self.0.shard_len() + index) {
            bucket.observations.fetch_add(times, Relaxed);
            bucket.sum.fetch_add(value.wrapping_mul(times), Relaxed);
        }
    }

    /// Returns the contents of all buckets in the order of their bounds. The last bucket has no bound.
    pub fn observed(&self) -> Vec<BucketContents> {
        let mut observed = vec![BucketContents::default(); self.0.shard_len()];
        for shard in self.0.buckets.chunks(self.0.shard_len()) {
            for (observed, bucket) in observed.iter_mut().zip(shard) {
                observed.observations += bucket.observations.load(Relaxed);
                observed.sum = observed.sum.wrapping_add(bucket.sum.load(Relaxed));
            }
        }
        observed
    }

    pub(super) fn to_proto(&self) -> proto::Metric {
        let shown = |value: u64| value as f64 / self.0.per_unit as f64;
        let (mut count, mut sum) = (0, 0u64);
        let mut buckets = Vec::with_capacity(self.0.bounds.len());
        let mut bounds = self.0.bounds.iter();
        for observed in self.observed() {
            count += observed.observations;
            sum = sum.wrapping_add(observed.sum);
            if let Some(bound) = bounds.next() {
                let mut bucket = proto::Bucket::default();
                bucket.set_cumulative_count(count);
                bucket.set_upper_bound(shown(*bound));
                buckets.push(bucket);
            }
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(count);
        histogram.set_sample_sum(shown(sum));
        histogram.set_bucket(buckets);
        let mut metric = proto::Metric::default();
        metric.set_histogram(histogram);
        metric
    }
}

impl Core {
    /// Returns the number of buckets in a shard.
    fn shard_len(&self) -> usize {
        self.bounds.len() + 1
    }
}

/// Number of shards. If there are more threads, some share one.
pub const SHARDS: usize = 16;

thread_local! {
    static OWN: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARDS
    };
}

/// Returns this thread's shard, below [`SHARDS`].
pub fn own() -> usize {
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_one_shard_and_neighbors_have_different_ones() {
        let places: Vec<_> = (0..2 * SHARDS).map(|_| std::thread::spawn(|| (own(), own())).join().unwrap()).collect();
        assert!(places.iter().all(|(one, again)| one == again && *one < SHARDS));
        assert!(places.iter().any(|(place, _)| *place != places[0].0));
    }
}
