//! The contract between the limiter and the stores: actions, outcomes, and the promises of a store.

mod batch;
mod entry;
mod error;
mod exceptions;
mod store;

pub use self::batch::*;
pub use self::entry::*;
pub use self::error::*;
pub use self::exceptions::*;
pub use self::store::*;
