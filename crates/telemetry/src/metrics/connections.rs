//! Connections that are open, were accepted or were refused.

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
pub struct OpenConnection {
    open: IntGauge,
    open_here: IntGauge,
}

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
        OpenConnection { open: self.open.clone(), open_here: self.open_here.clone() }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
        self.open_here.dec();
    }
}
