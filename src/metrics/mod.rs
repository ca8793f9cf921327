//! What the server counts and times: typed handles for those who count, and all of it as text for those who watch.
//!
//! One file a theme, each a struct of handles that [`Metrics`] owns: what is counted is a method call on a handle that
//! was looked up before, never a look-up by name. Label values are words of this crate or of the operator's rules
//! file; a client's bytes never become one. What a store measures about itself it keeps, and hands over as
//! [`Metric`]s when it is asked. Nothing here knows a rule, a store or a protocol, and the only socket is [`statsd`]'s.
//!
//! A new theme: a file with a struct that makes its metrics through [`Registry`] in `new`, and a field of [`Metrics`].

mod access;
mod batches;
mod config;
mod connections;
mod errors;
mod histogram;
mod hits;
mod limits;
mod metric;
mod pulled;
mod registry;
mod requests;
mod shard;
mod statsd;
mod tasks;

use std::sync::Arc;

pub use prometheus::IntCounter as Counter;
use prometheus::TextEncoder;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricType;

pub use self::access::Access;
pub use self::batches::Batches;
pub use self::config::Config;
pub use self::connections::{Connections, FrontConnections, OpenConnection};
pub use self::errors::Errors;
pub use self::histogram::{Histogram, Unit};
pub use self::hits::{Hits, RuleHits};
pub use self::limits::{Limit, Limits};
pub use self::metric::Metric;
use self::pulled::Pulled;
use self::registry::Registry;
pub use self::requests::{FrontRequests, RequestKind, RequestTally, Requests};
pub use self::statsd::{Statsd, StatsdOptions, Transport};
pub use self::tasks::{Task, Tasks};

/// All that is counted, one field a theme. Made once and shared by everybody.
pub struct Metrics {
    registry: prometheus::Registry,
    pub access: Access,
    pub batches: Batches,
    pub config: Config,
    pub connections: Connections,
    pub errors: Errors,
    pub hits: Hits,
    pub limits: Limits,
    pub requests: Requests,
    pub tasks: Tasks,
}

impl Metrics {
    /// Everything at 0.
    pub fn new() -> Arc<Self> {
        let registry = Registry::new();
        registry.register(ProcessCollector::for_self());
        let build = registry.gauges("divvy_build_info", "1, with the version that is running.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Arc::new(Self {
            access: Access::new(&registry),
            batches: Batches::new(&registry),
            config: Config::new(&registry),
            connections: Connections::new(&registry),
            errors: Errors::new(&registry),
            hits: Hits::new(&registry),
            limits: Limits::new(&registry),
            requests: Requests::new(&registry),
            tasks: Tasks::new(&registry),
            registry: registry.into_inner(),
        })
    }

    /// Shows a counter that `read` knows, one that a room beside this one keeps. Its name ends in `_total`; once a name.
    pub fn show(&self, name: &'static str, help: &'static str, read: fn() -> u64) {
        if let Err(error) = self.registry.register(Box::new(Pulled::new(name, help, read))) {
            tracing::error!(%error, name, "cannot expose a metric");
        }
    }

    /// Every count and gauge, `others` beside them, under its name and labels as Prometheus writes them. Histograms
    /// are left out.
    pub fn numbers(&self, others: Vec<Metric>) -> Vec<(String, f64)> {
        let mut families = self.registry.gather();
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

    /// Everything in Prometheus's text format, with `others` beside it.
    ///
    /// # Errors
    /// When a metric is none that the format can hold.
    pub fn render(&self, others: Vec<Metric>) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(others.into_iter().map(Metric::into_family));
        TextEncoder::new().encode_to_string(&families)
    }
}

#[cfg(test)]
mod tests;
