//! Errors of stores.

use std::sync::Arc;

/// The reason why a store could not answer. It is cheap to clone, because one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store could not carry out the work, for this reason.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store cannot be reached, or refuses every client.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// The store cannot do all that it is asked in time. As far as is known, it works.
    #[error("{0}")]
    Overloaded(Arc<str>),
    /// The client's mistake: the store never issued a cursor with this beginning.
    #[error("{0:?} is not a cursor of this store, or the store has changed since; begin from the start")]
    InvalidCursor(String),
    /// The client's mistake: no store of this kind can do this. Nothing was done.
    #[error("{0}")]
    Impossible(&'static str),
}

impl StoreError {
    /// Returns a failure with this reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }
}
