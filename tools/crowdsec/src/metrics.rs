//! The metrics, for `/metrics`.

use prometheus::{
    IntCounterVec, IntGauge, Registry, TextEncoder, register_int_counter_vec_with_registry,
    register_int_gauge_with_registry,
};

/// Requests to a CrowdSec server and their effects, and requests of bouncers.
pub struct Metrics {
    registry: Registry,
    /// Requests of bouncers, by status.
    pub bouncer_requests: IntCounterVec,
    /// Requests to CrowdSec and divvy: `ok` and `failed`.
    pub polls: IntCounterVec,
    /// 1 if the last of these failed.
    pub failing: IntGauge,
    /// Decisions by their effect: the block was `set` or `removed`, an operator's was `kept`, or there was no room (`full`). Other
    /// decisions are no bans of networks (`ignored`), or `malformed`.
    pub decisions: IntCounterVec,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// A name is used twice.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label, values: &[&str]| {
            let counters = register_int_counter_vec_with_registry!(name, help, &[label], registry)?;
            for value in values {
                counters.with_label_values(&[value]);
            }
            prometheus::Result::Ok(counters)
        };
        let effects = ["set", "removed", "kept", "full", "ignored", "malformed"];
        let polls = "Requests to CrowdSec and divvy, by result.";
        let decisions = "Decisions of CrowdSec, by their effect.";
        let requests = "Requests of bouncers, by status.";
        let failing = "1 if the last request to CrowdSec or divvy failed. Blocks stay in force until they end.";
        Ok(Self {
            polls: counters("divvy_crowdsec_polls_total", polls, "result", &["ok", "failed"])?,
            decisions: counters("divvy_crowdsec_decisions_total", decisions, "effect", &effects)?,
            bouncer_requests: counters("divvy_crowdsec_bouncer_requests_total", requests, "status", &[])?,
            failing: register_int_gauge_with_registry!("divvy_crowdsec_failing", failing, registry)?,
            registry,
        })
    }

    /// Returns the metrics in Prometheus's text format.
    ///
    /// # Errors
    /// The library's.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
