//! Metrics and log, for operators: [`metrics`] are counters and timings, as Prometheus's text and statsd's packets, and [`logging`] is the
//! log with its queue, format, escaping and throttling. Neither decides or delays anything. All crates above report here.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unwrap_used,
        reason = "a test may panic"
    )
)]

pub mod logging;
pub mod metrics;
