//! The catalog of all metrics, and its text for Prometheus.

use std::fmt;
use std::sync::Arc;

use prometheus::TextEncoder;
use prometheus::proto::{MetricFamily, MetricType};

use super::access::Access;
use super::audit::Audit;
use super::batches::Batches;
use super::config::Config;
use super::connections::Connections;
use super::crowdsec::Crowdsec;
use super::errors::Errors;
use super::external_counter::ExternalCounter;
use super::hits::Hits;
use super::limits::Bounds;
use super::metric::Metric;
use super::process::Process;
use super::registry::Registry;
use super::requests::Requests;
use super::tasks::Tasks;

/// The handles of all metrics, one field per theme.
pub struct Metrics {
    registry: prometheus::Registry,
    /// The metrics by rule.
    by_rule: prometheus::Registry,
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
    /// Requests to a CrowdSec server.
    pub crowdsec: Crowdsec,
    /// Error replies, by code.
    pub errors: Errors,
    /// Hits, by rule and decision.
    pub hits: Hits,
    /// Bounds that clients exceeded.
    pub limits: Bounds,
    /// Requests, by front and kind.
    pub requests: Requests,
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
        let registry = Registry::new();
        registry.register(Process::new());
        let build = registry.gauges("divvy_build_info", "1, labeled with the running version.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let (access, audit, batches) = (Access::new(&registry), Audit::new(&registry), Batches::new(&registry));
        let (config, connections) = (Config::new(&registry), Connections::new(&registry));
        let (crowdsec, errors) = (Crowdsec::new(&registry), Errors::new(&registry));
        let (hits, limits) = (Hits::new(&registry), Bounds::new(&registry));
        let (requests, tasks) = (Requests::new(&registry), Tasks::new(&registry));
        let (registry, by_rule) = registry.into_parts();
        Arc::new(Self {
            registry,
            by_rule,
            access,
            audit,
            batches,
            config,
            connections,
            crowdsec,
            errors,
            hits,
            limits,
            requests,
            tasks,
        })
    }

    /// Exposes a counter that another module keeps: `read` returns its value. Its name must end in `_total`, and can be
    /// exposed only once.
    pub fn show(&self, name: &'static str, help: &'static str, read: fn() -> u64) {
        if let Err(error) = self.registry.register(Box::new(ExternalCounter::new(name, help, read))) {
            tracing::error!(%error, name, "cannot expose a metric");
        }
    }

    /// Returns all counters and gauges, including `others`, with their names and labels as Prometheus writes them.
    /// Leaves out histograms.
    pub fn numbers(&self, others: Vec<Metric>) -> Vec<(String, f64)> {
        Self::numbers_of(self.gather(), others)
    }

    /// Returns the numbers of [`Metrics::numbers`] that do not depend on the number of rules.
    pub fn server_numbers(&self, others: Vec<Metric>) -> Vec<(String, f64)> {
        Self::numbers_of(self.registry.gather(), others)
    }

    /// Returns all metrics of the registries, by name.
    fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.registry.gather();
        families.extend(self.by_rule.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        families
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
        let mut families = self.gather();
        families.extend(others.into_iter().map(Metric::into_family));
        TextEncoder::new().encode_to_string(&families)
    }
}
