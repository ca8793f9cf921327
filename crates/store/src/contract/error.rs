//! Errors of stores.

use std::sync::Arc;

/// The reason why a store could not answer. It is cheap to clone, because one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store could not carry out the work, for this reason.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store cannot be reached, or refuses all clients.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// The store is too busy to do the work in time. As far as is known, it works.
    #[error("{0}")]
    Overloaded(Arc<str>),
    /// The store has data in a format of earlier builds, which would be lost if it were overlooked.
    #[error("{0}")]
    Outdated(Arc<str>),
    /// A mistake by the client: the store never issued a cursor that begins like this.
    #[error("{0:?} is not a cursor of this store, or the store has changed since; begin from the start")]
    InvalidCursor(String),
    /// A mistake by the client: stores of this kind do not support the request. Nothing was done.
    #[error("{0}")]
    Impossible(&'static str),
}

impl StoreError {
    /// Returns a failure with this reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }
}
