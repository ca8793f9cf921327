//! Refused clients, and the TLS certificate in use.

use prometheus::{IntCounter, IntCounterVec};

use super::registry::Registry;

/// Wrong passwords, and the TLS files.
pub struct Access {
    wrong_passwords: IntCounterVec,
    /// Number of failed handshakes, on all fronts.
    pub tls_handshakes_failed: IntCounter,
    /// Number of failed reloads of the TLS files.
    pub tls_reloads_failed: IntCounter,
}

impl Access {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            wrong_passwords: registry.counters("divvy_wrong_passwords_total", "Wrong passwords.", &["front"]),
            tls_handshakes_failed: registry.counter("divvy_tls_handshakes_failed_total", "TLS handshakes that failed."),
            tls_reloads_failed: registry.counter(
                "divvy_tls_reloads_failed_total",
                "Reloads of the TLS files that failed; the old files stayed in use.",
            ),
        }
    }

    /// Returns the counter of a front, whose name must be a constant of this crate.
    pub fn wrong_passwords(&self, front: &'static str) -> IntCounter {
        self.wrong_passwords.with_label_values(&[front])
    }
}
