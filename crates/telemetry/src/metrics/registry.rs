//! Creates metrics and registers them with the library, and metrics that other modules keep, which are read at each scrape.

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, proto};

use super::histogram::{Histogram, Unit};

/// Declares the values of a label, or other words that programs read: each with its text, and the list of all. The set is
/// closed, so nothing that a client sends becomes a label.
#[macro_export]
macro_rules! named_values {
    ($(#[$attribute:meta])* $label:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $label {
            $($(#[$doc])* $value,)+
        }

        impl $label {
            /// All values, in the order of declaration: `value as usize` is the place of a value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the value's text.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }
    };
}

pub use crate::named_values;

/// Reads metrics at each scrape.
type Read = Box<dyn Fn() -> Vec<Metric> + Send + Sync>;

/// The library's registries, and the metrics that are read at each scrape. Names, help texts and labels are constants of this
/// crate.
#[derive(Default)]
pub struct Registry {
    inner: prometheus::Registry,
    /// The metrics by rule. With thousands of rules, they take most of the time.
    by_rule: prometheus::Registry,
    read: Mutex<Vec<Read>>,
}

impl Registry {
    /// Returns all metrics but those by rule.
    pub fn gather_server(&self) -> Vec<proto::MetricFamily> {
        let mut families = self.inner.gather();
        families.extend(self.read.lock().iter().flat_map(|read| read()).map(Metric::into_family));
        families
    }

    /// Returns all metrics, by name.
    pub fn gather(&self) -> Vec<proto::MetricFamily> {
        let mut families = self.gather_server();
        families.extend(self.by_rule.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        families
    }

    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        register(&self.inner, IntCounter::new(name, help))
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        register(&self.inner, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Creates a counter for each of these values of a label.
    pub fn counter_of_each<const N: usize>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: [&str; N],
    ) -> [IntCounter; N] {
        let counters = self.counters(name, help, &[label]);
        values.map(|value| counters.with_label_values(&[value]))
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

    /// Creates a histogram. `bounds` are ascending, in the unit of the observed values: see [`Unit`].
    pub fn histogram(&self, name: &'static str, help: &'static str, unit: Unit, bounds: &[u64]) -> Histogram {
        let histogram = Histogram::new(unit, bounds);
        let shown = histogram.clone();
        self.read(move || vec![Metric::histogram(name, help, &shown)]);
        histogram
    }

    /// Adds metrics that `read` returns at each scrape.
    pub fn read(&self, read: impl Fn() -> Vec<Metric> + Send + Sync + 'static) {
        self.read.lock().push(Box::new(read));
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
pub struct Metric(proto::MetricFamily);

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
        let mut pair = proto::LabelPair::default();
        pair.set_name(label.to_owned());
        pair.set_value(value.to_owned());
        self.0.mut_metric().iter_mut().for_each(|metric| metric.set_label(vec![pair.clone()]));
        self
    }

    /// Returns the metric as the library has it.
    pub fn into_family(self) -> proto::MetricFamily {
        self.0
    }
}
