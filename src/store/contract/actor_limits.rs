//! Limits of single actors, as stores keep them: one limit in place of a rule's, and how a server follows what is changed.
//!
//! Stores keep them and tell of changes; all of them are in the memory of the [limiter](crate::limiter), which is where hits
//! look. Nothing here knows a rule.

use crate::clock::Timestamp;

/// The credits that one actor has in place of its rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorLimit {
    /// 0 denies everything.
    pub credits: u64,
    /// `None`: it stays until it is removed.
    pub expires: Option<Timestamp>,
}

/// What has become of an actor's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    /// The rule's label: letters, digits, `-` and `_`.
    pub rule: String,
    pub actor: String,
    /// `None`: it was removed.
    pub limit: Option<ActorLimit>,
}

/// How far a server knows the limits in a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Followed {
    /// Nothing is known yet.
    #[default]
    Nothing,
    /// All up to the one with this key, of a store that tells them in the order of keys.
    Key(Box<[u8]>),
    /// All changes up to this one, of a store that others change too: since when that has any (a number of its own), the
    /// change's number, and whose limit it was.
    Change { born: u64, number: u64, of: String },
    /// All, of a store that nobody else changes.
    All,
}

/// Limits, a page at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitPage {
    pub changes: Vec<LimitChange>,
    pub known: Followed,
    /// From this page to the last all limits are told, and whatever was known and is not told is gone.
    pub starts_over: bool,
    pub is_last: bool,
}

impl LimitPage {
    /// There is nothing more to know.
    pub fn nothing(known: Followed) -> Self {
        Self { changes: Vec::new(), known, starts_over: false, is_last: true }
    }
}

/// Limits in a page.
pub const PAGE: usize = 1_000;
