//! A plan that the store is applying. Its caller may stop waiting at any time. Changes that the store has made are
//! counted anyway.

use std::mem;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::denials::Denials;
use super::heavy_hitters::Top;
use super::plan::Plan;
use super::report::Applied;
use crate::store::{Backend, Batch, Store};
use divvy_telemetry::metrics::Metrics;

/// Maximum weight of the actions that the store applies at once (bytes, see [`Plan::weight`]). A larger batch is
/// applied in parts, and other batches run between them.
pub const MAX_PART: usize = 4 * 1024 * 1024;

/// Everything that counts the outcomes of plans.
#[derive(Debug, Clone)]
pub(super) struct Observers {
    pub metrics: Arc<Metrics>,
    /// `None` if the actors of rules are not ranked.
    pub top: Option<Arc<Top>>,
    pub denials: Arc<Denials>,
}

impl Observers {
    /// Counts the outcomes of a plan. Entries without an outcome never reached the store.
    pub fn count(&self, applied: &Applied) {
        let report = applied.report();
        let failed = report.count(&self.metrics);
        if failed > 0 {
            self.metrics.batches.store_errors.inc_by(failed);
        }
        if let Some(top) = &self.top {
            report.count_top(top);
        }
        report.note_denials(&self.denials, &self.metrics);
    }
}

/// A plan whose batch the store is applying. If it is dropped before the end, its outcomes are still counted.
pub(super) struct Applying<'a> {
    store: &'a Backend,
    observers: &'a Observers,
    plan: Plan,
    /// The part that the store is applying; `None` if it applies the whole batch at once.
    part: Option<Box<Batch>>,
}

impl<'a> Applying<'a> {
    pub fn new(store: &'a Backend, observers: &'a Observers, plan: Plan) -> Self {
        Self { store, observers, plan, part: None }
    }

    /// Waits for the store. The caller counts the outcomes.
    pub async fn finish(mut self) -> Applied {
        match self.plan.batch.weight() <= MAX_PART {
            true => self.store.apply(&mut self.plan.batch).await,
            false => Box::pin(self.apply_in_parts()).await,
        }
        // The plan is taken out, so that `drop` counts nothing.
        applied(mem::take(&mut self.plan))
    }

    /// Applies a batch that would occupy its thread for a long time, and yields between its parts. A group is never
    /// divided.
    async fn apply_in_parts(&mut self) {
        self.plan.batch.outcomes.clear();
        for range in self.plan.batch.parts(MAX_PART) {
            let part = self.part.insert(Box::new(self.plan.batch.part(&range.collect::<Vec<_>>())));
            self.store.apply(part).await;
            self.adopt_part();
            tokio::task::yield_now().await;
        }
    }

    /// Takes over the outcomes of the part.
    fn adopt_part(&mut self) {
        if let Some(part) = self.part.take() {
            self.plan.batch.outcomes.extend(part.outcomes);
        }
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        if self.plan.is_empty() {
            return;
        }
        let unfinished = self.part.as_deref_mut().unwrap_or(&mut self.plan.batch);
        let Some(task) = unfinished.unattended.take() else {
            self.adopt_part();
            self.observers.count(&applied(mem::take(&mut self.plan)));
            return;
        };
        let is_part = self.part.is_some();
        let (mut plan, observers) = (mem::take(&mut self.plan), self.observers.clone());
        // There is no runtime if the process is ending.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let Ok(batch) = task.await else { return };
            if is_part {
                plan.batch.outcomes.extend(batch.outcomes);
            } else {
                plan.batch = batch;
            }
            observers.count(&applied(plan));
        });
    }
}

/// Takes the outcomes out of the plan's batch.
pub(super) fn applied(mut plan: Plan) -> Applied {
    let outcomes = mem::take(&mut plan.batch.outcomes);
    Applied { plan, outcomes }
}
