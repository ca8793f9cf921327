//! Why a store could not answer.

use std::sync::Arc;

/// Why a store could not answer. Cheap to clone: one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store cannot be reached, or refuses every client.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// More was asked of the store than it can do in time. It is well, as far as is known.
    #[error("{0}")]
    Overloaded(Arc<str>),
    /// The client's mistake, not the store's: the store never issued a cursor that begins so.
    #[error("{0:?} is not a cursor of this store, or the store has changed since; begin from the start")]
    InvalidCursor(String),
    /// The client's mistake, too: no store of this kind can do what was asked. Nothing was done.
    #[error("{0}")]
    Impossible(&'static str),
}

impl StoreError {
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }

    pub fn unreachable(reason: impl Into<Arc<str>>) -> Self {
        Self::Unreachable(reason.into())
    }

    pub fn overloaded(reason: impl Into<Arc<str>>) -> Self {
        Self::Overloaded(reason.into())
    }
}
