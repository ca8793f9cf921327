//! Errors that clients were answered with. The name is the original Divvy's, and so are the codes but one.

use prometheus::IntCounter;

use super::registry::Registry;

/// Error replies, on every front, by their code.
pub struct Errors {
    pub unknown_command: IntCounter,
    /// The password is missing or wrong, on the line protocol, over HTTP and gRPC; Divvy knows none.
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

    /// How many with each code.
    pub fn counted(&self) -> [(&'static str, u64); 3] {
        [
            ("unknown-command", self.unknown_command.get()),
            ("unauthenticated", self.unauthenticated.get()),
            ("unknown", self.unknown.get()),
        ]
    }
}
