//! The contract between the limiter and the stores: the [`Store`] trait with its promises, listings of a rule's buckets, the
//! reasons why a store could not answer or make a backup, and the log of outages.
//!
//! Listings leave out fresh buckets. The cursor in this module is for stores that keep their keys in order.

mod batch;
mod exceptions;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::batch::*;
pub use self::exceptions::*;
use divvy_core::algorithm::{Ask, Limit, Outcome, State};
use divvy_core::clock::Timestamp;
use divvy_telemetry::logging::Escaped;
use divvy_telemetry::metrics::Metric;

/// Maximum number of buckets that a page examines. It skips expired buckets, which may be many.
const MAX_LOOKED_AT: usize = 10_000;
/// First character of a cursor. It distinguishes the actor with an empty name from the start.
const AFTER: char = '=';
/// The action that shows a bucket without changing it. Only the store answers it.
pub const SHOW: Action = Action::Ask(Ask::Show);

/// A store of buckets.
///
/// One conformance suite checks every backend against this contract:
/// - Actions on one bucket take effect one after the other. Within a batch they keep the batch's order, and each sees the state
///   that the previous one left. Actions on different buckets are independent.
/// - The entries of a [group](Batch::group) take effect together or not at all, even after a crash, and no other action
///   comes between them. If one is denied, nothing is taken, and the others report the outcome of a look. If one fails,
///   all fail. Commits, releases and renewals of reservations are never denied: in a group, each has the outcome that
///   it would have alone. A Redis Cluster is the exception: if it keeps a reservation's buckets in different slots,
///   each is settled alone.
/// - When `apply` returns, every outcome is as durable as the backend promises. The same applies to another caller's
///   change that led to a denial.
/// - An action that failed has an error as its outcome. It may have taken its credit, but never more than once.
/// - Each entry is decided by its own time. Only the backend's housekeeping reads a clock. The exceptions are in Redis, which
///   several servers share: Redis's clock decides an entry whose time no client supplied, and every fixed window of a rule,
///   in whole milliseconds, because programs that pass no time share these windows.
/// - A bucket is kept at least until it is equivalent to a fresh one. Then it may vanish, which changes no outcome.
pub trait Store: Send + Sync {
    /// Applies the batch and fills in its outcomes.
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send;

    /// Lists the buckets of one rule, a page at a time. Fresh buckets are left out. The listing contains earlier
    /// changes, but changes during the listing may be missing.
    fn list(&self, listing: Listing) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Returns the approximate number of buckets. It includes expired buckets that are not dropped yet.
    fn approximate_len(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Checks that hits can be answered now. Retries work that failed before.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { self.approximate_len().await.map(drop) }
    }

    /// Stores changes of actors' exceptions, as durably as hits, and returns the outcome of each. `now` is the server's time.
    /// A store that other servers also change says whether there was an exception before, and keeps one that the change
    /// does not replace. Otherwise, the limiter knows that.
    ///
    /// The default is for a store in memory. It stores no exceptions, because the limiter has them in memory.
    fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        _replaces: Replaces,
        _now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Changed>, StoreError>> + Send {
        async move { Ok(vec![Changed::Made; changes.len()]) }
    }

    /// Forgets expired exceptions by these changes, unless the store drops them on its own. They may return after a
    /// crash.
    fn forget_exceptions(&self, _over: Vec<ExceptionChange>) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }

    /// Returns the next page of changes of exceptions since `known`.
    fn follow_exceptions(
        &self,
        _known: ExceptionCursor,
        _now: Timestamp,
    ) -> impl Future<Output = Result<ExceptionPage, StoreError>> + Send {
        async { Ok(ExceptionPage::nothing(ExceptionCursor::All)) }
    }

    /// Returns the store's metrics. This may take a few system calls.
    fn metrics(&self) -> Vec<Metric>;

    /// Makes everything durable and stops background work. The store must not be used afterwards.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }
}

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

/// Maximum length of a backup's name (bytes).
pub const MAX_BACKUP_NAME: usize = 100;

/// The reason why there is no backup. No partial backup is left.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// No directory for backups is configured.
    #[error("backups are disabled: start the server with --backup-dir DIR")]
    SwitchedOff,
    /// This store is not on the server's disk.
    #[error("the {0} store keeps nothing on this server's disk: divvy has nothing to back up")]
    NothingOfOurs(&'static str),
    /// The name is empty, too long, or points outside the directory.
    #[error(
        "a backup needs a name of letters, digits, '-', '_' and '.', at most {MAX_BACKUP_NAME}, without '.' or '-' at its start"
    )]
    BadName,
    /// The target is not empty.
    #[error("a backup with this name already exists and is not empty; choose another name or remove it")]
    Exists,
    /// Backups are made one at a time.
    #[error("another backup is in progress; wait until it finishes")]
    Busy,
    /// Writing failed. The partial backup is removed.
    #[error("cannot write the backup {0}: {1}; the partial backup was removed")]
    Failed(PathBuf, String),
    /// The work was aborted for this reason.
    #[error("the backup was aborted: {0}")]
    Broken(String),
}

impl BackupError {
    /// Returns whether the client caused the error, rather than the store or its disk.
    pub fn is_the_client_s(&self) -> bool {
        !matches!(self, Self::Failed(..) | Self::Broken(_))
    }
}

/// An operation that is retried, and may fail for a while.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    effect: &'static str,
    /// Whether the last attempt failed.
    pub lasts: bool,
}

impl Outage {
    /// Creates the log. `what` names the operation, and `effect` describes divvy's behavior during an outage.
    pub fn of(what: &'static str, effect: &'static str) -> Self {
        Self { what, effect, lasts: false }
    }

    /// Records the result of an attempt. Logs it if an outage begins or ends.
    pub fn note(&mut self, result: &Result<(), StoreError>) {
        match result {
            Err(error) if !self.lasts => {
                // The error may quote the other side.
                let error = error.to_string();
                tracing::error!(error = %Escaped::error(&error), "failing: {}; {}", self.what, self.effect);
            }
            Ok(()) if self.lasts => tracing::info!("working again: {}", self.what),
            _ => {}
        }
        self.lasts = result.is_err();
    }
}
