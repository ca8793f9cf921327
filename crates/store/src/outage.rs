//! The log of outages: one line when an outage begins, and one when it ends.

use super::contract::StoreError;
use divvy_telemetry::logging::Escaped;

/// An operation that is retried, and may fail for a while.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    effect: &'static str,
    lasts: bool,
}

impl Outage {
    /// Creates the log. `what` names the operation, and `effect` describes divvy's behavior during an outage.
    pub fn of(what: &'static str, effect: &'static str) -> Self {
        Self { what, effect, lasts: false }
    }

    /// Returns whether the last attempt failed.
    #[cfg(test)]
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// Records the result of an attempt. Logs it if an outage begins or ends.
    pub fn note(&mut self, result: &Result<(), StoreError>) {
        match result {
            Err(error) if !self.lasts => {
                // The error may quote the other side.
                let error = error.to_string();
                tracing::error!(error = %Escaped::error(&error), "failing: {}; {}", self.what, self.effect);
            }
            Ok(()) if self.lasts => tracing::info!("working again: {}", self.what),
            _ => {}
        }
        self.lasts = result.is_err();
    }
}
