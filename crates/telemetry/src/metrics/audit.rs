//! The state of the audit log.

use prometheus::{IntCounter, IntGauge};

use super::registry::Registry;

/// Lines that could not be written, and whether that is so now.
pub struct Audit {
    /// Number of lines that are not in the file.
    pub lines_lost: IntCounter,
    failing: IntGauge,
}

impl Audit {
    pub(super) fn new(registry: &Registry) -> Self {
        let help = "1 if the audit log could not be written the last time.";
        Self {
            lines_lost: registry
                .counter("divvy_audit_lines_lost_total", "Lines that could not be written to the audit log."),
            failing: registry.gauge("divvy_audit_log_failing", help),
        }
    }

    /// Records whether the log could be written.
    pub fn set_failing(&self, is_failing: bool) {
        self.failing.set(is_failing.into());
    }
}
