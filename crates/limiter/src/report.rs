//! The answers to a plan's requests, derived from the store's outcomes. Nothing here changes the plan or the outcomes.

mod answers;
mod denials;
mod metrics;
mod reservations;
mod standing;
mod top;

pub use self::answers::{Applied, Report};
pub use self::reservations::{Reserved, Settled, lasting_seconds};
pub use self::standing::Standing;

#[cfg(test)]
mod tests;
