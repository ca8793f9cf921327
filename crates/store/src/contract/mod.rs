//! The contract between the limiter and the stores: actions, outcomes, and the promises of a store.

mod action;
mod backup_error;
mod batch;
mod entry;
mod error;
mod exceptions;
pub mod listing;
mod outcomes;
mod store;
mod unit;

pub use self::action::Action;
pub use self::backup_error::BackupError;
pub use self::backup_error::MAX_BACKUP_NAME;
pub use self::batch::{Batch, ENTRY_WEIGHT, append_key};
pub use self::entry::generation;
pub use self::entry::{Change, Entry};
pub use self::error::StoreError;
pub use self::exceptions::EXCEPTIONS_PER_PAGE;
pub use self::exceptions::{
    Changed, Effect, Exception, ExceptionChange, ExceptionCursor, ExceptionKind, ExceptionPage, Repetition,
};
pub use self::listing::invalid_cursor;
pub use self::listing::{ListedBucket, Listing, Page, SHOW};
pub use self::outcomes::{Outcomes, outcome_at};
pub use self::store::Store;
pub use self::unit::Unit;
