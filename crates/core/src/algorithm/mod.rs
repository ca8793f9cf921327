//! Pure decisions: (limit, state, ask, time) → (outcome, new state).
//!
//! The algorithms are in `windows.rs`, `buckets.rs` and `counter.rs`, and `decide.rs` has the code that they share. The enums in
//! `limit.rs` list them. `set_aside.rs` adds credits that are set aside to each of them. `limit.rs` and
//! `reservation.rs` decide about a bucket together with a record next to it. There are no clocks, I/O, keys or rules here. Time
//! is a parameter and state is a value, so that property tests can check every promise of an algorithm.
//!
//! Every algorithm but a client's counter keeps these promises:
//! - An ask that is denied, or that takes nothing, changes nothing. There are two exceptions: a strict [`Ask::Drain`]
//!   or [`Ask::Replay`], and the correction of the time (see the next point).
//! - If time runs backwards by at most ten seconds, no time passes: a later ask has overtaken this one, which counts as
//!   made at the same time. If a bucket's time is further ahead, the clock was set back. The next ask then moves the
//!   state's times back to the present, and gives no credits back. The new time is remembered even if the ask is denied
//!   or takes nothing. So no client waits longer than the limit's own time. [`Ask::Replay`] is the exception.
//! - Decisions are made in integers, exact to the nanosecond. No number overflows: times past the year 2554, and times longer
//!   than 584 years, saturate.

mod buckets;
mod counter;
mod decide;
pub mod groups;
mod limit;
pub mod record;
pub mod reservation;
mod set_aside;
#[cfg(test)]
mod tests;
mod windows;

pub use buckets::{Concurrency, ConcurrencyState, LeakyBucket, LeakyBucketState, TokenBucket, TokenBucketState};
pub use counter::{Counter, Expiry};
pub use decide::{
    Ask, CountBasis, InvalidLimit, MAX_LOG_CREDITS, Outcome, OutcomeSource, Resolution, Run, SHORTEST_SHARE_NS,
};
pub use limit::{Decision, Kind, Limit, ReservedState, State};
pub use record::{Record, RecordChange};
pub use reservation::{ReservationAsk, run_of};
pub use windows::{
    CalendarId, CalendarWindow, FixedWindow, SlidingLog, SlidingLogState, SlidingWindow, SlidingWindowState,
    WindowState,
};
