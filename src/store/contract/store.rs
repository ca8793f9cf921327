//! The trait of stores, and its contract.

use std::future::Future;

use super::{Batch, LimitChange, LimitCursor, LimitPage, Listing, Page, StoreError};
use crate::clock::Timestamp;
use crate::metrics::Metric;

/// A store of buckets.
///
/// One conformance suite checks every backend against this contract:
/// - Actions on one bucket take effect one after the other. Within a batch they keep the batch's order, and each sees the state
///   that the previous one left. Actions on different buckets are independent.
/// - The entries of a [group](Batch::group) take effect together or not at all, even after a crash, and no other action comes
///   between them. If one is denied, nothing is taken, and the others report what a look reports. If one fails, all fail.
///   Commits, releases and renewals of reservations are never denied: in a group, each has the outcome that it would have
///   alone. The exception is a Redis Cluster that keeps a reservation's buckets in different slots: each is settled alone.
/// - When `apply` returns, every outcome is as durable as the backend promises. So is another caller's change that a denial
///   saw.
/// - An action that failed has an error as its outcome. It may have taken its credit, but never more than once.
/// - Each entry is decided by its own time. Only the backend's housekeeping reads a clock. The exceptions are in Redis, which
///   several servers share: Redis's clock decides an entry whose time no client supplied, and every fixed window of a rule,
///   in whole milliseconds, because programs that pass no time share these windows.
/// - A bucket lives at least until it is as good as a fresh one. Then it may vanish, which changes no outcome.
pub trait Store: Send + Sync {
    /// Applies the batch and fills in its outcomes.
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send;

    /// Lists the buckets of one rule, a page at a time. Fresh buckets are left out. Changes during the listing may be missing from
    /// it; earlier changes are in it.
    fn list(&self, listing: Listing) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Returns the number of buckets, as far as the store knows it. It includes expired buckets that are not dropped yet.
    fn approximate_len(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Checks that hits can be answered now. It tries again what failed before.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { self.approximate_len().await.map(drop) }
    }

    /// Keeps a change of an actor's limit, as durably as hits. `now` is the server's time. A store that other servers change
    /// returns whether there was a limit before. From other stores, the limiter knows that.
    ///
    /// The default is for a store in memory: it keeps no limits, because the limiter has them in memory.
    fn change_limit(
        &self,
        _change: LimitChange,
        _now: Timestamp,
    ) -> impl Future<Output = Result<Option<bool>, StoreError>> + Send {
        async { Ok(None) }
    }

    /// Forgets expired limits, which `over` removes, unless the store drops them anyway. They may be back after a crash.
    fn forget_limits(&self, _over: Vec<LimitChange>) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }

    /// Returns the next page of changes of actors' limits since `known`.
    fn follow_limits(&self, _known: LimitCursor) -> impl Future<Output = Result<LimitPage, StoreError>> + Send {
        async { Ok(LimitPage::nothing(LimitCursor::All)) }
    }

    /// Returns its metrics. This may take a few system calls.
    fn metrics(&self) -> Vec<Metric>;

    /// Makes everything durable and stops background work. The store must not be used afterwards.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }
}
