//! Error replies. The metric's name and all codes but one are the original Divvy's.

use prometheus::IntCounter;

use super::registry::Registry;

/// Error replies of all fronts, by code.
pub struct Errors {
    /// The command does not exist, in any protocol that has commands.
    pub unknown_command: IntCounter,
    /// The password is missing or wrong. Counted on the line protocol, HTTP and gRPC. The original has no passwords.
    pub unauthenticated: IntCounter,
    /// Everything else.
    pub unknown: IntCounter,
}

impl Errors {
    pub(super) fn new(registry: &Registry) -> Self {
        let by_code = registry.counters("divvy_errors_total", "Error replies, by their code.", &["code"]);
        Self {
            unknown_command: by_code.with_label_values(&["unknown-command"]),
            unauthenticated: by_code.with_label_values(&["unauthenticated"]),
            unknown: by_code.with_label_values(&["unknown"]),
        }
    }

    /// Returns the number of errors with each code.
    pub fn counted(&self) -> [(&'static str, u64); 3] {
        [
            ("unknown-command", self.unknown_command.get()),
            ("unauthenticated", self.unauthenticated.get()),
            ("unknown", self.unknown.get()),
        ]
    }
}
