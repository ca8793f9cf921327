//! Counters, gauges and timings of the server: typed handles to update them, and their text for Prometheus and statsd.
//!
//! Each theme has a struct of handles, and [`Metrics`] owns one of each. The code that counts calls a
//! method on a handle that was looked up before, so no update looks up a name. Label values are constants of this crate
//! or come from the rules file. Only ratelimit's statistics contain bytes from a client. A store keeps its own measurements, and returns
//! them as [`Metric`]s on request. Nothing here depends on rules, stores or protocols, and [`statsd`] has the only
//! socket.
//!
//! To add a theme, declare its `handles!`, which create its metrics through [`Registry`], and add a
//! field to [`Metrics`]. The values of its labels are [`named_values`].

mod clients;
mod ratelimit;
mod registry;
mod rules;
mod statsd;

use std::sync::Arc;
use std::{fmt, fs};

pub use prometheus::IntCounter as Counter;
use prometheus::TextEncoder;
use prometheus::proto::{MetricFamily, MetricType};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

pub use self::clients::{
    Access, Audit, Batches, Bound, Bounds, Connections, ErrorKind, FrontAccess, FrontConnections, FrontRequests,
    OpenConnection, RequestKind, RequestTally, Requests,
};
pub use self::ratelimit::{LimitCounts, LimitStatistic, Ratelimit, ServiceEvent, Tally};
pub use self::registry::{Counts, Histogram, Metric, named_values};
use self::registry::{Registry, handles};
pub use self::rules::{Config, Hits, RuleBlocks, RuleCount, RuleHits, Xds, XdsAnswer};
pub use self::statsd::{DEFAULT_STATSD_PORT, Statsd, StatsdOptions};
use divvy_core::clock::Clock;

named_values! {
    /// A task that runs as long as the process does.
    Task {
        /// Accepts connections. Each front has one.
        Accept = "accept",
        /// Reloads the users and the keys of tokens.
        Access = "access",
        /// Keeps the limits of single actors up to date.
        Limits = "limits",
        /// Samples the counts of the rules for the live page.
        Page = "page",
        /// Counts denials, and blocks actors that a rule keeps denying.
        Penalties = "penalties",
        /// Checks whether the store can answer hits.
        Probe = "probe",
        /// Reloads the rules.
        Rules = "rules",
        /// Keeps the key for reservation ids up to date.
        Seal = "seal",
        /// Gives back unused credits of shares.
        Shares = "shares",
        /// Reloads the TLS files.
        Tls = "tls",
        /// Follows the management server.
        Xds = "xds",
    }
}

handles! {
    /// The handles of all metrics, one field per theme.
    Metrics(registry) {
        registry: Registry = registry.clone(),
        /// Wrong passwords and failed handshakes.
        pub access: Access = Access::create(registry),
        /// The state of the audit log.
        pub audit: Audit = Audit::create(registry),
        /// Batches, and the store's time for them.
        pub batches: Batches = Batches::create(registry),
        /// The rules in force, and their reloads.
        pub config: Config = Config::create(registry),
        /// Connections of all fronts.
        pub connections: Connections = Connections::create(registry),
        /// Error replies of all fronts, by code.
        pub errors: Counts<ErrorKind> =
            registry.counts("divvy_errors_total", "Error replies, by their code.", "code", ErrorKind::ALL),
        /// Hits, by rule and decision.
        pub hits: Hits = Hits::create(registry),
        /// Bounds that clients exceeded.
        pub limits: Bounds = Bounds::create(registry),
        /// The statistics of ratelimit's domains.
        pub ratelimit: Arc<Ratelimit> = Ratelimit::create(registry),
        /// Requests, by front and kind.
        pub requests: Requests = Requests::create(registry),
        /// Blocks of actors that rules set.
        pub rule_blocks: RuleBlocks = RuleBlocks::create(registry),
        /// Restarts of background tasks.
        pub tasks: Counts<Task> = registry.counts(
            "divvy_task_restarts_total",
            "Restarts of background tasks after a bug in divvy.",
            "task",
            Task::ALL,
        ),
        /// Configurations from a management server.
        pub xds: Xds = Xds::create(registry),
    }
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
        let started_at = Clock::system().now().as_secs();
        registry.read(move || process_metrics(started_at));
        let build = registry.gauges("divvy_build_info", "1, labeled with the running version.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Arc::new(Self::create(&registry))
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
        families.extend(others.into_iter().map(|metric| metric.0));
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
        families.extend(others.into_iter().map(|metric| metric.0));
        TextEncoder::new().encode_to_string(&families)
    }
}

/// Returns the process's own metrics, by the names that Prometheus's client libraries give them. `started_at` is in seconds since
/// 1970. proc(5) describes the files. One that cannot be read leaves its metrics out.
fn process_metrics(started_at: u64) -> Vec<Metric> {
    let count = |directory| fs::read_dir(directory).ok().map(|entries| entries.count() as u64);
    // One of them is open for this directory.
    let open = count("/proc/self/fd").map(|files| files.saturating_sub(1));
    // The numbers of pages of virtual and of resident memory.
    let memory = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut bytes = memory.split(' ').map_while(|pages| Some(pages.parse::<u64>().ok()? * page_size() as u64));
    let gauges = [
        ("process_open_fds", "Number of open file descriptors.", open),
        ("process_max_fds", "Maximum number of open file descriptors.", getrlimit(Resource::Nofile).current),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", bytes.next()),
        ("process_resident_memory_bytes", "Resident memory size in bytes.", bytes.next()),
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", Some(started_at)),
        ("process_threads", "Number of OS threads in the process.", count("/proc/self/task")),
    ];
    let cpu = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or_default();
    let cpu = Metric::counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", cpu);
    let gauges = gauges.into_iter().filter_map(|(name, help, value)| Some(Metric::gauge(name, help, value?)));
    gauges.chain([cpu]).collect()
}

#[cfg(test)]
mod tests;
