//! Error replies. The metric's name and all codes but one are the original Divvy's.

use prometheus::IntCounter;

use super::registry::Registry;

/// The kind of an error reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command does not exist, in any protocol that has commands.
    UnknownCommand,
    /// The password is missing or wrong. Counted on the line protocol, HTTP and gRPC. The original has no passwords.
    Unauthenticated,
    /// Everything else.
    Unknown,
}

/// Error replies of all fronts, by code.
pub struct Errors([IntCounter; ErrorKind::ALL.len()]);

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::UnknownCommand, Self::Unauthenticated, Self::Unknown];

    /// Returns the code of the metric.
    pub fn code(self) -> &'static str {
        match self {
            Self::UnknownCommand => "unknown-command",
            Self::Unauthenticated => "unauthenticated",
            Self::Unknown => "unknown",
        }
    }
}

impl Errors {
    pub(super) fn new(registry: &Registry) -> Self {
        let by_code = registry.counters("divvy_errors_total", "Error replies, by their code.", &["code"]);
        Self(ErrorKind::ALL.map(|kind| by_code.with_label_values(&[kind.code()])))
    }

    /// Counts an error.
    pub fn count(&self, kind: ErrorKind) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.inc();
        }
    }

    /// Returns the number of errors with each code.
    pub fn counted(&self) -> [(&'static str, u64); 3] {
        ErrorKind::ALL.map(|kind| (kind.code(), self.0.get(kind as usize).map_or(0, IntCounter::get)))
    }
}
