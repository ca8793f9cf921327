//! Refused clients, and the TLS certificate in use.

use prometheus::{IntCounter, IntCounterVec};

use super::registry::Registry;

/// Wrong passwords, invalid tokens, forbidden requests, and the files of TLS and of users.
pub struct Access {
    wrong_passwords: IntCounterVec,
    logins_refused: IntCounterVec,
    invalid_tokens: IntCounterVec,
    forbidden: IntCounterVec,
    /// Number of argon2id hashes that were computed for logins.
    pub password_hashes: IntCounter,
    /// Number of failed reloads of the access file and of the token key file.
    pub access_reloads_failed: IntCounter,
    /// Number of failed handshakes, on all fronts.
    pub tls_handshakes_failed: IntCounter,
    /// Number of failed reloads of the TLS files.
    pub tls_reloads_failed: IntCounter,
}

impl Access {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            wrong_passwords: registry.counters("divvy_wrong_passwords_total", "Wrong passwords.", &["front"]),
            logins_refused: registry.counters(
                "divvy_logins_refused_total",
                "Logins that were not verified, because too many others waited for this.",
                &["front"],
            ),
            invalid_tokens: registry.counters(
                "divvy_invalid_tokens_total",
                "Tokens for one actor that were altered, expired, or made with an unknown key.",
                &["front"],
            ),
            forbidden: registry.counters(
                "divvy_forbidden_requests_total",
                "Requests refused because the user lacks their category.",
                &["front"],
            ),
            password_hashes: registry.counter(
                "divvy_password_hashes_total",
                "argon2id hashes computed for logins. Each takes milliseconds of a processor.",
            ),
            access_reloads_failed: registry.counter(
                "divvy_access_reloads_failed_total",
                "Reloads of the access file or the token key file that failed; the previous users or keys stayed in force.",
            ),
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

    /// Returns the counter of logins of a front that were not verified. The front's name must be a word of this crate.
    pub fn logins_refused(&self, front: &'static str) -> IntCounter {
        self.logins_refused.with_label_values(&[front])
    }

    /// Returns the counter of invalid tokens of a front, whose name must be a word of this crate.
    pub fn invalid_tokens(&self, front: &'static str) -> IntCounter {
        self.invalid_tokens.with_label_values(&[front])
    }

    /// Returns the counter of refused requests of a front, whose name must be a word of this crate.
    pub fn forbidden(&self, front: &'static str) -> IntCounter {
        self.forbidden.with_label_values(&[front])
    }
}
