//! Limits of single actors: one actor's credits in place of its rule's.
//!
//! A store keeps the limits and reports changes. Hits find them in the memory of the [limiter](crate::limiter).

use crate::clock::Timestamp;

/// The credits that one actor has in place of its rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorLimit {
    /// Credits. 0 denies every hit.
    pub credits: u64,
    /// The limit's end. `None` if it lasts until it is removed.
    pub expires: Option<Timestamp>,
}

/// A change of an actor's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    /// The rule's label: letters, digits, `-` and `_`. The store uses it as a part of the limit's key.
    pub rule: String,
    /// The actor, in the form that hits give it.
    pub actor: String,
    /// The new limit. `None` if it was removed.
    pub limit: Option<ActorLimit>,
}

/// A position in the changes of a store's limits. A server has followed all changes before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LimitCursor {
    /// The server has read none.
    #[default]
    Nothing,
    /// The server has read all limits up to this key, in a store that reports them in the order of keys.
    Key(Box<[u8]>),
    /// The server has read all changes up to this one, in a store that other servers change, too.
    Change {
        /// Distinguishes one history of changes from another.
        born: u64,
        /// Number of the change in its history.
        number: u64,
        /// Actor and rule of the change.
        of: String,
    },
    /// The server has read all limits, in a store that no other server changes.
    All,
}

/// A page of changed limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitPage {
    /// The changed limits, at most [`LIMITS_PER_PAGE`].
    pub changes: Vec<LimitChange>,
    /// The cursor after this page.
    pub known: LimitCursor,
    /// Whether all limits are reported, from this page to the last. Limits in memory that are not reported no longer
    /// exist.
    pub starts_over: bool,
    /// Whether the server has read all limits after this page.
    pub is_last: bool,
}

impl LimitPage {
    /// Returns the last page, without changes.
    pub fn nothing(known: LimitCursor) -> Self {
        Self { changes: Vec::new(), known, starts_over: false, is_last: true }
    }
}

/// Maximum number of limits in a page.
pub const LIMITS_PER_PAGE: usize = 1_000;
