//! The contract between the limiter and the stores: what a store is asked, what it answers, and what it promises.

mod action;
pub mod actor_limits;
pub mod backup_error;
mod batch;
mod entry;
pub mod error;
pub mod listing;
mod origin;
mod outcomes;
mod store;
mod unit;

pub use self::action::Action;
pub use self::actor_limits::{ActorLimit, LimitChange, LimitCursor, LimitPage};
pub use self::backup_error::BackupError;
pub use self::batch::{Batch, ENTRY_WEIGHT, append_key};
pub(in crate::store) use self::entry::generation;
pub use self::entry::{Change, Entry};
pub use self::error::StoreError;
pub use self::listing::{ListedBucket, Listing, Page};
pub use self::origin::Origin;
pub use self::outcomes::{Outcomes, outcome_at};
pub use self::store::Store;
pub(in crate::store) use self::unit::Unit;
