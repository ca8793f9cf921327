//! The contract that every backend keeps.

use std::future::Future;

use super::{Batch, Followed, LimitChange, LimitPage, Listing, Page, StoreError};
use crate::clock::Timestamp;
use crate::metrics::Metric;

/// A place that remembers buckets.
///
/// The contract, which one conformance suite holds every backend to:
/// - Actions on one bucket take effect one after the other, each seeing what the one before left, within a batch in the
///   batch's order and between batches in some order. Actions on different buckets are independent.
/// - The entries of a [group](Batch::group) take effect together or not at all, at one moment between others' actions on any
///   of their buckets, also after a crash. When one is denied nothing is taken, and those that would have been granted
///   report what a look reports. Commits, releases and renewals of reservations are never denied: in a group, each has the outcome
///   that it would have alone. When one fails, all do. The exception is a Redis Cluster that keeps a reservation's buckets in
///   different slots: each is settled alone.
/// - When `apply` returns, every outcome that it gives is as durable as the backend promises, a denial that saw
///   another caller's change included: that change is durable too.
/// - An action that failed has an error as its outcome. It may or may not have taken its credit, never more than once.
/// - Decisions use each entry's own time. Only the backend's own housekeeping reads its clock. The
///   exceptions are in Redis, which several servers share: an entry whose time is the batch's, no client having brought
///   another, is decided by Redis's clock; and a rule's fixed window, which is shared with programs that pass no time,
///   always is, in whole milliseconds.
/// - A bucket lives at least until it is as good as a fresh one, and then may vanish without any outcome changing.
pub trait Store: Send + Sync {
    /// Applies the batch and fills in its outcomes.
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send;

    /// The buckets of one rule, a page at a time. Whatever was changed before the first page was asked for, and is still
    /// there when its page is, is listed; what changes meanwhile may or may not be. Buckets that are as good as fresh
    /// are left out.
    fn list(&self, listing: Listing) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The number of buckets that are remembered, expired ones included until they are dropped: as exact as the store knows
    /// it.
    fn approximate_len(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Whether hits can be answered just now. What is broken and may be mended is tried.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { self.approximate_len().await.map(drop) }
    }

    /// Keeps a change of an actor's limit, as durably as hits are taken. `now` is the server's time. Tells whether there was a
    /// limit before, where others may have set one; whoever asks knows it otherwise.
    ///
    /// A store in memory keeps none: whoever asks has them in memory, too.
    fn change_limit(
        &self,
        _change: LimitChange,
        _now: Timestamp,
    ) -> impl Future<Output = Result<Option<bool>, StoreError>> + Send {
        async { Ok(None) }
    }

    /// Forgets limits that are over, unless the store drops them anyway. They may be there again after a crash.
    fn forget_limits(&self, _over: Vec<LimitChange>) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }

    /// The next page of what has become of actors' limits since `known`.
    fn follow_limits(&self, _known: Followed) -> impl Future<Output = Result<LimitPage, StoreError>> + Send {
        async { Ok(LimitPage::nothing(Followed::All)) }
    }

    /// What it measures about itself. It may take the time of a few system calls.
    fn metrics(&self) -> Vec<Metric>;

    /// Makes everything durable and stops background work. Nothing may be asked of the store afterwards.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}
