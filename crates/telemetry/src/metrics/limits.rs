//! Bounds that clients exceeded. If a flag sets a bound, both have the same name.

use prometheus::{IntCounter, IntGauge};

use super::registry::Registry;

/// How often each limit was exceeded, and the use of the buffer memory that all connections share.
pub struct Bounds {
    reached: [IntCounter; Bound::ALL.len()],
    /// Buffer memory in use, at most `--max-buffer-memory` (bytes).
    pub buffer_memory: IntGauge,
}

/// A bound on what clients may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `--max-connections`
    Connections,
    /// `--max-connections-per-address`
    ConnectionsPerAddress,
    /// `--idle-timeout`
    IdleTimeout,
    /// The time to log in.
    AuthTimeout,
    /// The time for a TLS handshake.
    HandshakeTimeout,
    /// `--request-timeout`
    RequestTimeout,
    /// `--write-timeout`
    WriteTimeout,
    /// `--max-buffer-memory`
    BufferMemory,
    /// The length of a line.
    Line,
    /// The pairs of an operation.
    Pairs,
    /// The arguments of a RESP request.
    Arguments,
    /// The length of an argument.
    Argument,
    /// The length of a RESP request.
    Request,
    /// `--max-body`
    Body,
    /// The hits in a request to `/v1/hits`.
    Hits,
}

impl Bound {
    const ALL: [Self; 15] = [
        Self::Connections,
        Self::ConnectionsPerAddress,
        Self::IdleTimeout,
        Self::AuthTimeout,
        Self::HandshakeTimeout,
        Self::RequestTimeout,
        Self::WriteTimeout,
        Self::BufferMemory,
        Self::Line,
        Self::Pairs,
        Self::Arguments,
        Self::Argument,
        Self::Request,
        Self::Body,
        Self::Hits,
    ];

    /// Returns its name in the metric.
    fn name(self) -> &'static str {
        match self {
            Self::Connections => "max-connections",
            Self::ConnectionsPerAddress => "max-connections-per-address",
            Self::IdleTimeout => "idle-timeout",
            Self::AuthTimeout => "auth-timeout",
            Self::HandshakeTimeout => "tls-handshake-timeout",
            Self::RequestTimeout => "request-timeout",
            Self::WriteTimeout => "write-timeout",
            Self::BufferMemory => "max-buffer-memory",
            Self::Line => "max-line",
            Self::Pairs => "max-pairs",
            Self::Arguments => "max-arguments",
            Self::Argument => "max-argument",
            Self::Request => "max-request",
            Self::Body => "max-body",
            Self::Hits => "max-hits",
        }
    }
}

impl Bounds {
    pub(super) fn new(registry: &Registry) -> Self {
        let reached = registry.counters(
            "divvy_limits_reached_total",
            "Connections and requests that reached a limit, by its name.",
            &["limit"],
        );
        Self {
            reached: Bound::ALL.map(|limit| reached.with_label_values(&[limit.name()])),
            buffer_memory: registry.gauge("divvy_buffer_memory_bytes", "Bytes of --max-buffer-memory in use."),
        }
    }

    /// Counts a connection or request that exceeded `limit`.
    pub fn reached(&self, limit: Bound) {
        if let Some(counter) = self.reached.get(limit as usize) {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_counter() {
        let limits = Bounds::new(&Registry::new());
        for (place, limit) in Bound::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, place);
            limits.reached(limit);
        }
        assert!(limits.reached.iter().all(|counter| counter.get() == 1));
    }
}
