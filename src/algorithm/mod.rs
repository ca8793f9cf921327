//! Pure decisions: (limit, state, ask, time) → (outcome, new state).
//!
//! Each algorithm has its file, and `decide.rs` has what they share. `limit.rs` and `state.rs` have the closed set of them.
//! `reservation.rs` and `idempotency.rs` decide about a bucket together with a record next to it. No clock, no I/O, no keys and
//! no rules live here: time is a parameter and state is a value, so that every promise of an algorithm can be tested by
//! properties.
//!
//! Every algorithm keeps these promises:
//! - An ask that is denied, or that takes nothing, changes nothing. Two exceptions: a strict [`Ask::Drain`] or
//!   [`Ask::Replay`], and the repair of the next point.
//! - Time that runs backwards counts as no time passed: if a later ask overtook this one, it counts as made at that one's
//!   time. When a bucket's time is more than ten seconds ahead, the clock was set back: the next ask pulls the state back to
//!   the present and gives nothing back. The new time is remembered even if the ask is denied or takes nothing. So no client
//!   waits longer than the limit's own time. The exception is an [`Ask::Replay`].
//! - Decisions are made in integers, exact to the nanosecond. No number overflows: times past the year 2554, and times longer
//!   than 584 years, saturate.

mod ask;
pub mod calendar_window;
pub mod concurrency;
mod count_basis;
mod decide;
pub mod fixed_window;
pub mod idempotency;
mod invalid;
mod kind;
pub mod leaky_bucket;
mod limit;
pub mod record;
pub mod reservation;
pub mod sliding_log;
pub mod sliding_window;
mod state;
#[cfg(test)]
mod tests;
pub mod token_bucket;
mod window;

pub use ask::{Ask, Outcome, Resolution};
pub use calendar_window::{CalendarId, CalendarWindow};
pub use concurrency::Concurrency;
pub use count_basis::CountBasis;
pub use fixed_window::FixedWindow;
pub use invalid::{InvalidLimit, MAX_LOG_CREDITS};
pub use kind::Kind;
pub use leaky_bucket::LeakyBucket;
pub use limit::Limit;
pub use record::{Record, RecordChange};
pub use reservation::ReservationAsk;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use state::{Decision, ReservedState, State};
pub use token_bucket::TokenBucket;
