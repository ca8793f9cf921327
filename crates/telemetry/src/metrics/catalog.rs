//! The catalog of all metrics, and its text for Prometheus.

use std::fmt;
use std::sync::Arc;

use prometheus::TextEncoder;
use prometheus::proto::{MetricFamily, MetricType};

use super::background::{Audit, Config, RuleBlocks, Tasks};
use super::connections::{Access, Connections};
use super::hits::Hits;
use super::process::process_metrics;
use super::registry::{Metric, Registry};
use super::requests::{Batches, Bounds, Errors, Requests};

/// The handles of all metrics, one field per theme.
pub struct Metrics {
    registry: Registry,
    /// Wrong passwords and failed handshakes.
    pub access: Access,
    /// The state of the audit log.
    pub audit: Audit,
    /// Batches, and the store's time for them.
    pub batches: Batches,
    /// The rules in force, and their reloads.
    pub config: Config,
    /// Connections of all fronts.
    pub connections: Connections,
    /// Error replies, by code.
    pub errors: Errors,
    /// Hits, by rule and decision.
    pub hits: Hits,
    /// Bounds that clients exceeded.
    pub limits: Bounds,
    /// Requests, by front and kind.
    pub requests: Requests,
    /// Blocks of actors that rules set.
    pub rule_blocks: RuleBlocks,
    /// Restarts of background tasks.
    pub tasks: Tasks,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Creates all metrics, at 0.
    pub fn new() -> Arc<Self> {
        let registry = Registry::default();
        registry.read(process_metrics);
        let build = registry.gauges("divvy_build_info", "1, labeled with the running version.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Arc::new(Self {
            access: Access::new(&registry),
            audit: Audit::new(&registry),
            batches: Batches::new(&registry),
            config: Config::new(&registry),
            connections: Connections::new(&registry),
            errors: Errors::new(&registry),
            hits: Hits::new(&registry),
            limits: Bounds::new(&registry),
            requests: Requests::new(&registry),
            rule_blocks: RuleBlocks::new(&registry),
            tasks: Tasks::new(&registry),
            registry,
        })
    }

    /// Exposes a counter that another module keeps: `read` returns its value. Its name must end in `_total`, and can be
    /// exposed only once.
    pub fn show(&self, name: &'static str, help: &'static str, read: fn() -> u64) {
        self.registry.read(move || vec![Metric::counter(name, help, read())]);
    }

    /// Returns all counters and gauges, including `others`, with their names and labels as Prometheus writes them.
    /// Leaves out histograms.
    pub fn numbers(&self, others: Vec<Metric>) -> Vec<(String, f64)> {
        Self::numbers_of(self.registry.gather(), others)
    }

    /// Returns the numbers of [`Metrics::numbers`] that do not depend on the number of rules.
    pub fn server_numbers(&self, others: Vec<Metric>) -> Vec<(String, f64)> {
        Self::numbers_of(self.registry.gather_server(), others)
    }

    fn numbers_of(mut families: Vec<MetricFamily>, others: Vec<Metric>) -> Vec<(String, f64)> {
        families.extend(others.into_iter().map(Metric::into_family));
        let mut numbers = Vec::new();
        for family in &families {
            for metric in family.get_metric() {
                let value = match family.get_field_type() {
                    MetricType::COUNTER => metric.get_counter().get_value(),
                    MetricType::GAUGE => metric.get_gauge().get_value(),
                    _ => continue,
                };
                let labels: Vec<_> =
                    metric.get_label().iter().map(|label| format!("{}=\"{}\"", label.name(), label.value())).collect();
                let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                numbers.push((format!("{}{labels}", family.name()), value));
            }
        }
        numbers
    }

    /// Returns all metrics, including `others`, in Prometheus's text format.
    ///
    /// # Errors
    /// The format cannot represent a metric.
    pub fn render(&self, others: Vec<Metric>) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(others.into_iter().map(Metric::into_family));
        TextEncoder::new().encode_to_string(&families)
    }
}
