//! Metrics and log, for operators: [`metrics`] are counters and timings, as Prometheus's text and statsd's packets, and [`logging`] is the
//! log with its queue, format, escaping and throttling. Neither decides or delays anything. All crates above report here.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test may ask the clock"))]

pub mod logging;
pub mod metrics;
