//! Connections: how many are open, were accepted, were refused.

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
    /// There were too many already, in all or from one address.
    pub refused: IntCounter,
}

/// Counts as an open connection until it is dropped.
pub struct OpenConnection {
    open: IntGauge,
    open_here: IntGauge,
}

impl Connections {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            // The original's name, though it is a gauge.
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

    /// Open connections, all fronts together.
    pub fn open(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or_default()
    }

    /// `front` is a word of this crate.
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
    /// Counts a connection that is being served.
    pub fn opened(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        self.open_here.inc();
        OpenConnection { open: self.open.clone(), open_here: self.open_here.clone() }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
        self.open_here.dec();
    }
}
