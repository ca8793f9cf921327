//! Listings of a rule's buckets, a page at a time.
//!
//! Fresh buckets are not listed. The cursor in this module is for stores that keep their keys in order.

use super::{Action, Entry, StoreError};
use divvy_core::algorithm::{Ask, Limit, Outcome, State};
use divvy_core::clock::Timestamp;

/// Maximum number of buckets that a page examines. It skips expired buckets, which may be many.
const MAX_LOOKED_AT: usize = 10_000;
/// First character of a cursor. It distinguishes the actor with an empty name from the start.
const AFTER: char = '=';

/// A request for a page of buckets.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The [`Prefix`](crate::key::Prefix) of their keys.
    pub prefix: Box<[u8]>,
    /// The limit of these buckets.
    pub limit: Limit,
    /// The end of the previous page. `None` for the first page.
    pub cursor: Option<String>,
    /// Approximate number of buckets in the page. A page may have fewer, or even none, and in Redis a few more.
    pub count: usize,
    /// The time of the list. It leaves out buckets that are fresh at this time.
    pub now: Timestamp,
}

/// A page of buckets.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The buckets of the page.
    pub buckets: Vec<ListedBucket>,
    /// The cursor of the next page. `None` on the last page.
    pub next: Option<String>,
}

/// A bucket of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedBucket {
    /// The part of its key after the prefix.
    pub actor: Vec<u8>,
    /// The outcome of [`SHOW`].
    pub outcome: Outcome,
}

/// The action that shows a bucket without changing it. Only the store answers it.
pub const SHOW: Action = Action::Ask(Ask::Show);

impl Listing {
    /// Returns the key after which the page begins. `None` if it begins at the prefix.
    ///
    /// # Errors
    /// The cursor is not from [`Page::add`].
    pub fn start_after(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let actor = cursor.strip_prefix(AFTER).ok_or_else(|| invalid_cursor(cursor))?;
        Ok(Some([&self.prefix, actor.as_bytes()].concat()))
    }
}

impl Page {
    /// Adds a bucket, unless it is fresh. It is number `looked_at` of the buckets that this page examines. Returns
    /// false if the page is full, and then ends the page at this actor.
    pub fn add(&mut self, listing: &Listing, actor: &[u8], state: Option<&State>, looked_at: usize) -> bool {
        if let Some(state) = state.filter(|state| listing.limit.lifetime_ns(state, listing.now) > 0) {
            let outcome = Entry::new(0..0, listing.limit, SHOW, listing.now).decide(Some(state)).0;
            self.buckets.push(ListedBucket { actor: actor.to_vec(), outcome });
        }
        let is_full = self.buckets.len() >= listing.count || looked_at >= MAX_LOOKED_AT;
        if is_full {
            self.next = Some(format!("{AFTER}{}", String::from_utf8_lossy(actor)));
        }
        !is_full
    }
}

/// Returns the error for a cursor that this store never issued.
pub fn invalid_cursor(cursor: &str) -> StoreError {
    StoreError::InvalidCursor(cursor.chars().take(40).collect())
}
