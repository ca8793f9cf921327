//! The contract between the limiter and the stores: what a store is asked, what it answers, and what it promises.

pub mod action;
pub mod actor_limits;
pub mod backup_error;
pub mod batch;
pub mod entry;
pub mod error;
pub mod listing;
pub mod origin;
pub mod outcomes;
pub mod store;
pub mod unit;

pub use self::action::Action;
pub use self::batch::Batch;
pub(in crate::store) use self::entry::generation;
pub use self::entry::{Change, Entry};
pub use self::outcomes::{Outcomes, outcome_at};
pub use self::store::Store;
pub(in crate::store) use self::unit::Unit;
