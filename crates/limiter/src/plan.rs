//! A plan: the actions of a batch of requests on the store, and the source of each answer.
//!
//! The [builder](PlanBuilder) makes it, [`Limiter::apply`](super::Limiter::apply) passes it to the store, and the
//! [report](super::report) reads the answers. Once built, a plan does not change.

mod builder;
mod contents;
mod entries;
mod idempotency;
mod reservation;
mod reservation_id;
mod rules;
pub mod table;

pub use self::builder::PlanBuilder;
pub use self::contents::Plan;
pub(super) use self::contents::{Block, Group, Member, Purpose, REQUEST_WEIGHT, Request, Source};
pub use self::entries::Together;
pub use self::idempotency::Payload;
pub use self::reservation::{DEFAULT_MAX_RESERVATION_TTL, Reserve};
#[cfg(test)]
pub(crate) use self::reservation_id::NamedRecord;
pub use self::reservation_id::ReservationId;
