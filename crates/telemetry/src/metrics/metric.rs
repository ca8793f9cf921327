//! A metric that another module keeps, and that is read at each scrape.

use prometheus::proto;

use super::histogram::Histogram;

/// One metric: its name, its help text, and its current value.
#[derive(Debug, Clone)]
pub struct Metric {
    name: &'static str,
    help: &'static str,
    label: Option<(&'static str, &'static str)>,
    value: Value,
}

#[derive(Debug, Clone)]
enum Value {
    /// A value that never decreases.
    Counter(u64),
    Gauge(f64),
    Histogram(Histogram),
}

impl Metric {
    /// Returns a metric whose value never decreases. Its name must end in `_total`.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, label: None, value: Value::Counter(value) }
    }

    /// Returns a metric whose value may rise and fall.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::fraction(name, help, value as f64)
    }

    /// Returns a gauge for fractions, such as a time in seconds.
    pub fn fraction(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, label: None, value: Value::Gauge(value) }
    }

    /// Returns a metric with a copy of this histogram, as of now.
    pub fn histogram(name: &'static str, help: &'static str, value: &Histogram) -> Self {
        Self { name, help, label: None, value: Value::Histogram(value.clone()) }
    }

    /// Adds a label. Its value must be a constant of this crate.
    pub fn labelled(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }

    pub(super) fn into_family(self) -> proto::MetricFamily {
        let (kind, mut metric) = match self.value {
            Value::Counter(value) => {
                let mut counter = proto::Counter::default();
                counter.set_value(value as f64);
                let mut metric = proto::Metric::default();
                metric.set_counter(counter);
                (proto::MetricType::COUNTER, metric)
            }
            Value::Gauge(value) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                (proto::MetricType::GAUGE, proto::Metric::from_gauge(gauge))
            }
            Value::Histogram(histogram) => (proto::MetricType::HISTOGRAM, histogram.to_proto()),
        };
        if let Some((name, value)) = self.label {
            let mut label = proto::LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            metric.set_label(vec![label]);
        }
        let mut family = proto::MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(kind);
        family.set_metric(vec![metric]);
        family
    }
}
