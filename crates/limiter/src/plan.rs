//! A plan: the actions of a batch of requests on the store, and the source of each answer.
//!
//! The [builder](PlanBuilder) makes it, [`Limiter::apply`](super::Limiter::apply) passes it to the store, and the
//! [report](super::report) reads the answers. Once built, a plan does not change.

mod bounds;
mod builder;
mod contents;
mod entries;
mod fixed_actors;
mod group;
mod idempotency;
mod idempotency_key;
mod reservation;
mod reservation_id;
mod rules;
mod settlement;
pub mod table;
mod terms;

pub use self::bounds::{DEFAULT_MAX_RESERVATION_TTL, MAX_CLIENT_ID, MAX_IDEMPOTENCY_KEY, MAX_TOGETHER};
pub use self::builder::PlanBuilder;
pub use self::contents::Plan;
pub(super) use self::contents::{Block, Group, Member, Purpose, REQUEST_WEIGHT, Request, Source};
pub use self::entries::Together;
pub use self::idempotency::Payload;
pub use self::reservation::Reserve;
#[cfg(test)]
pub(crate) use self::reservation_id::NamedRecord;
pub use self::reservation_id::{BadReservationId, MAX_ID_TEXT, ReservationId};
