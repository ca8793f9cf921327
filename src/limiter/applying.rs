//! A batch that the store is applying. Whoever waits for it may stop waiting at any time: what the store has changed is
//! counted anyway.

use std::mem;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{Limiter, Requests};
use crate::store::{Batch, Store};

/// The weight of what the store is asked at once (bytes, see [`Requests::weight`]). More is applied in parts, and others
/// have their turn between them.
pub const MAX_PART: usize = 4 * 1024 * 1024;

/// Requests whose batch the store is applying. Dropped before that has ended, they are counted without their caller.
pub(super) struct Applying<'a> {
    pub limiter: &'a Limiter,
    pub requests: &'a mut Requests,
    /// The part that the store is applying; `None` if it applies the whole batch at once.
    pub part: Option<Box<Batch>>,
}

impl Applying<'_> {
    /// Waits for the store. Then counting is the caller's.
    pub async fn done(mut self) {
        match self.requests.batch.weight() <= MAX_PART {
            true => self.limiter.store.apply(&mut self.requests.batch).await,
            false => Box::pin(self.apply_in_parts()).await,
        }
        mem::forget(self);
    }

    /// Applies a batch that would keep its thread busy for long, and yields between its parts. A group is never divided.
    async fn apply_in_parts(&mut self) {
        self.requests.batch.forget_outcomes();
        for range in self.requests.batch.parts(MAX_PART) {
            let part = self.part.insert(Box::new(self.requests.batch.part(&range.collect::<Vec<_>>())));
            self.limiter.store.apply(part).await;
            self.adopt_part();
            tokio::task::yield_now().await;
        }
    }

    /// Takes over what the store has answered of the part.
    fn adopt_part(&mut self) {
        if let Some(part) = self.part.take() {
            self.requests.batch.adopt_next(*part);
        }
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        let metrics = &self.limiter.metrics;
        let applied = self.part.as_deref_mut().unwrap_or(&mut self.requests.batch);
        let Some(task) = applied.take_unattended() else {
            self.adopt_part();
            // Entries without an answer were never asked: the store did not fail.
            self.requests.count(metrics);
            return;
        };
        let is_part = self.part.is_some();
        let (mut requests, metrics) = (mem::take(self.requests), Arc::clone(metrics));
        // Without a runtime the process is ending.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let Ok(batch) = task.await else { return };
            if is_part {
                requests.batch.adopt_next(batch);
                // The parts after it were never asked.
                requests.count(&metrics);
            } else {
                requests.batch = batch;
                let failed = requests.count(&metrics);
                metrics.batches.store_errors.inc_by(failed);
            }
        });
    }
}
