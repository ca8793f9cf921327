//! Looking through the buckets of one rule, a page at a time.
//!
//! What is asked, what comes back, and the cursor of the stores that keep their keys in order. How a store finds the
//! keys is its own business; a bucket that is as good as fresh is not listed.

use super::{Action, Entry, StoreError};
use crate::algorithm::{Ask, Limit, Outcome, State};
use crate::clock::Timestamp;

/// Buckets that a page looks at, at most: expired ones, not yet reclaimed, are passed over, and may be many.
pub const MAX_LOOKED_AT: usize = 10_000;
/// What a cursor of [`after`] begins with, so that the start and the actor without a name are told apart.
const AFTER: char = '=';

/// Which buckets to list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// What their keys begin with: [`Prefix`](crate::store::key::Prefix).
    pub prefix: Box<[u8]>,
    /// The limit of all of them.
    pub limit: Limit,
    /// Where the page before ended; `None`: from the start.
    pub cursor: Option<String>,
    /// About how many to list: a page may have fewer, even none, and in Redis a few more.
    pub count: usize,
    pub now: Timestamp,
}

/// A page of buckets.
#[derive(Debug, Clone, Default)]
pub struct Page {
    pub buckets: Vec<Listed>,
    /// Where to go on; `None`: this was the last page.
    pub next: Option<String>,
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What follows the prefix in its key.
    pub actor: Vec<u8>,
    /// What an ask for nothing would be answered.
    pub outcome: Outcome,
}

/// The ask that shows a bucket as it is.
pub const SHOW: Action = Action::Ask(Ask::Look { cost: 0 });

impl Listing {
    /// The key after which the page begins; `None`: at the prefix itself.
    ///
    /// # Errors
    /// When the cursor is none that [`after`] gave out.
    pub fn start_after(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let actor = cursor.strip_prefix(AFTER).ok_or_else(|| invalid_cursor(cursor))?;
        Ok(Some([&self.prefix, actor.as_bytes()].concat()))
    }

    /// The bucket with this actor in this state, unless it is as good as fresh.
    pub fn show(&self, actor: &[u8], state: &State) -> Option<Listed> {
        if self.limit.lifetime_ns(state, self.now) == 0 {
            return None;
        }
        let entry = Entry::new(0..0, self.limit, SHOW, self.now);
        Some(Listed { actor: actor.to_vec(), outcome: entry.decide(Some(state)).0 })
    }
}

impl Page {
    /// Adds a bucket that was looked at, the `looked_at`th of this page. False once the page is full: it ends with this
    /// actor then.
    pub fn add(&mut self, listing: &Listing, actor: &[u8], state: Option<&State>, looked_at: usize) -> bool {
        self.buckets.extend(state.and_then(|state| listing.show(actor, state)));
        let is_full = self.buckets.len() >= listing.count || looked_at >= MAX_LOOKED_AT;
        if is_full {
            self.next = Some(after(actor));
        }
        !is_full
    }
}

/// The cursor that goes on after `actor`.
fn after(actor: &[u8]) -> String {
    format!("{AFTER}{}", String::from_utf8_lossy(actor))
}

/// The error for a cursor that this store never issued.
pub fn invalid_cursor(cursor: &str) -> StoreError {
    StoreError::InvalidCursor(cursor.chars().take(40).collect())
}
