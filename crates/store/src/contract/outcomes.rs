//! The outcomes of a batch's entries.

use super::StoreError;
use divvy_core::algorithm::Outcome;

/// The outcomes of a batch's entries, in their order.
pub type Outcomes = Vec<Result<Outcome, StoreError>>;

/// Returns the outcome of the entry with this index, or an error if no store has applied it.
#[inline]
pub fn outcome_at(outcomes: &Outcomes, index: usize) -> Result<Outcome, StoreError> {
    match outcomes.get(index) {
        Some(Ok(outcome)) => Ok(*outcome),
        Some(Err(error)) => Err(error.clone()),
        None => Err(StoreError::new("the store returned no answer")),
    }
}
