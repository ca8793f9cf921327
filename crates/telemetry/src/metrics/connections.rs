//! Connections that are open, were accepted or were refused, refused clients, and the TLS certificate in use.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registry::Registry;

/// The connections of all fronts.
pub struct Connections {
    open: IntGauge,
    open_by_front: IntGaugeVec,
    accepted: IntCounterVec,
    refused: IntCounterVec,
}

/// The connections of one front.
#[derive(Clone)]
pub struct FrontConnections {
    open: IntGauge,
    open_here: IntGauge,
    accepted: IntCounter,
    /// Connections beyond the maximum, in total or from one address.
    pub refused: IntCounter,
}

/// An open connection in the counts, until it is dropped.
pub struct OpenConnection(FrontConnections);

impl Connections {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            // The gauge keeps the name that Button's Divvy gave it.
            open: registry.gauge("divvy_tcp_connections_total", "Open TCP connections of all fronts."),
            open_by_front: registry.gauges("divvy_connections", "Open connections.", &["front"]),
            accepted: registry.counters("divvy_connections_accepted_total", "Connections accepted.", &["front"]),
            refused: registry.counters(
                "divvy_connections_refused_total",
                "Connections refused because there were too many, in total or from one address.",
                &["front"],
            ),
        }
    }

    /// Returns the number of open connections of all fronts.
    pub fn open(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or_default()
    }

    /// Returns the handles of a front, whose name must be a constant of this crate.
    pub fn front(&self, front: &'static str) -> FrontConnections {
        FrontConnections {
            open: self.open.clone(),
            open_here: self.open_by_front.with_label_values(&[front]),
            accepted: self.accepted.with_label_values(&[front]),
            refused: self.refused.with_label_values(&[front]),
        }
    }
}

impl FrontConnections {
    /// Counts an accepted connection, which is open until the return value is dropped.
    pub fn opened(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        self.open_here.inc();
        OpenConnection(self.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.dec();
        self.0.open_here.dec();
    }
}

/// Wrong passwords, invalid tokens, forbidden requests, and the files of TLS and of users.
pub struct Access {
    by_front: [IntCounterVec; 4],
    /// Number of argon2id hashes that were computed for logins.
    pub password_hashes: IntCounter,
    /// Number of failed reloads of the access file and of the token key file.
    pub access_reloads_failed: IntCounter,
    /// Number of failed handshakes, on all fronts.
    pub tls_handshakes_failed: IntCounter,
    /// Number of failed reloads of the TLS files.
    pub tls_reloads_failed: IntCounter,
}

/// The clients that one front refused.
#[derive(Debug)]
pub struct FrontAccess {
    /// Wrong passwords.
    pub wrong_passwords: IntCounter,
    /// Logins that were not verified.
    pub logins_refused: IntCounter,
    /// Invalid tokens.
    pub invalid_tokens: IntCounter,
    /// Requests of users who lack the category.
    pub forbidden: IntCounter,
}

impl Access {
    pub(super) fn new(registry: &Registry) -> Self {
        let by_front = [
            ("divvy_wrong_passwords_total", "Wrong passwords."),
            ("divvy_logins_refused_total", "Logins that were not verified, because too many others waited for this."),
            (
                "divvy_invalid_tokens_total",
                "Tokens for one actor that were altered, expired, or made with an unknown key.",
            ),
            ("divvy_forbidden_requests_total", "Requests refused because the user lacks their category."),
        ];
        Self {
            by_front: by_front.map(|(name, help)| registry.counters(name, help, &["front"])),
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

    /// Returns the counters of a front, whose name must be a constant of this crate.
    pub fn front(&self, front: &'static str) -> FrontAccess {
        let [wrong_passwords, logins_refused, invalid_tokens, forbidden] =
            self.by_front.each_ref().map(|counters| counters.with_label_values(&[front]));
        FrontAccess { wrong_passwords, logins_refused, invalid_tokens, forbidden }
    }
}
