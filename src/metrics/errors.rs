//! Errors that clients were answered with. Name and codes are the original Divvy's.

use prometheus::IntCounter;

use super::maker::Maker;

/// Error replies, on every front, by their code.
pub struct Errors {
    pub unknown_command: IntCounter,
    /// Everything else.
    pub unknown: IntCounter,
}

impl Errors {
    pub(super) fn new(maker: &Maker) -> Self {
        let by_code = maker.counters("divvy_errors_total", "Error replies, by their code.", &["code"]);
        Self {
            unknown_command: by_code.with_label_values(&["unknown-command"]),
            unknown: by_code.with_label_values(&["unknown"]),
        }
    }
}
