//! The trait of stores, and its contract.

use std::future::Future;

use super::{Batch, Changed, ExceptionChange, ExceptionCursor, ExceptionPage, Listing, Page, StoreError};
use divvy_core::clock::Timestamp;
use divvy_telemetry::metrics::Metric;

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

    /// Stores a change of an actor's exception, as durably as hits. `now` is the server's time. A store that other
    /// servers also change says whether there was one before, and keeps one that the new one
    /// [yields to](super::Exception::yields_to). Otherwise, the limiter knows that.
    ///
    /// The default is for a store in memory. It stores no exceptions, because the limiter has them in memory.
    fn change_exception(
        &self,
        _change: ExceptionChange,
        _now: Timestamp,
    ) -> impl Future<Output = Result<Changed, StoreError>> + Send {
        async { Ok(Changed::Made) }
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
