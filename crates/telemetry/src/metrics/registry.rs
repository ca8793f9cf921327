//! Creates metrics and registers them with the library.

use prometheus::core::Collector;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use super::histogram::{Histogram, RegisteredHistogram, Unit};

/// The library's registries. Names, help texts and labels are constants of this crate.
pub struct Registry {
    inner: prometheus::Registry,
    by_rule: prometheus::Registry,
}

impl Registry {
    pub fn new() -> Self {
        Self { inner: prometheus::Registry::new(), by_rule: prometheus::Registry::new() }
    }

    /// Returns the registry of all metrics but those by rule, and the registry of the latter. With thousands of rules, they
    /// take most of the time.
    pub fn into_parts(self) -> (prometheus::Registry, prometheus::Registry) {
        (self.inner, self.by_rule)
    }

    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.registered(IntCounter::new(name, help))
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Creates counters with a label for the rule.
    #[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
    pub fn counters_by_rule(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let counters = IntCounterVec::new(Opts::new(name, help), labels).expect("a valid name, help and labels");
        self.by_rule.register(Box::new(counters.clone())).expect("a name that no other metric has");
        counters
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    /// Creates a gauge for fractions, such as a time in seconds.
    pub fn fraction(&self, name: &str, help: &str) -> Gauge {
        self.registered(Gauge::new(name, help))
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Creates a histogram. `bounds` are ascending, in the unit of the observed values: see [`Unit`].
    pub fn histogram(&self, name: &'static str, help: &'static str, unit: Unit, bounds: &[u64]) -> Histogram {
        let histogram = Histogram::new(unit, bounds);
        self.register(RegisteredHistogram::new(name, help, histogram.clone()));
        histogram
    }

    #[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
    pub fn register(&self, metric: impl Collector + 'static) {
        self.inner.register(Box::new(metric)).expect("a name that no other metric has");
    }

    #[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
    fn registered<M: Collector + Clone + 'static>(&self, made: prometheus::Result<M>) -> M {
        let metric = made.expect("a valid name, help and labels");
        self.register(metric.clone());
        metric
    }
}
