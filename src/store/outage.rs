//! The log of what fails again and again: one line when an outage begins and one when it is over, not one a failure.

use super::contract::StoreError;
use crate::logging::Escaped;

/// Something that is tried again and again, and may fail for a while.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    meanwhile: &'static str,
    lasts: bool,
}

impl Outage {
    /// `what` names, in the log, that which fails; `meanwhile` says what happens until it works again.
    pub fn of(what: &'static str, meanwhile: &'static str) -> Self {
        Self { what, meanwhile, lasts: false }
    }

    /// Whether the last try failed.
    #[cfg(test)]
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// Takes note of a try; logs when its result is unlike that of the one before.
    pub fn note(&mut self, result: &Result<(), StoreError>) {
        match result {
            Err(error) if !self.lasts => {
                // It may quote what the other side said.
                let error = error.to_string();
                tracing::error!(error = %Escaped::error(&error), "failing: {}; {}", self.what, self.meanwhile);
            }
            Ok(()) if self.lasts => tracing::info!("working again: {}", self.what),
            _ => {}
        }
        self.lasts = result.is_err();
    }
}
