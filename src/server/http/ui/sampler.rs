//! Samples the counts of all rules once a second, for all pages together.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::history::{History, RuleHistory, Sample, origins};
use crate::clock::NANOS_PER_SECOND;
use crate::limiter::Limiter;
use crate::metrics::Task;
use crate::server::keep_running::keep_running;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The last minute of all rules, and the last sample.
pub struct Sampler {
    limiter: Arc<Limiter>,
    history: Mutex<History>,
    latest: watch::Sender<Arc<Sample>>,
}

impl Sampler {
    /// Creates a sampler without samples.
    pub fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self { limiter, history: Mutex::default(), latest: watch::Sender::default() })
    }

    /// Samples until `stopping` is cancelled.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let metrics = Arc::clone(self.limiter.metrics());
        tokio::select! {
            () = keep_running(Task::Page, &metrics, || self.sample_forever()) => {}
            () = stopping.cancelled() => {}
        }
    }

    async fn sample_forever(self: &Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sampler = Arc::clone(self);
            // Reads a counter for each rule, and compares all rules after a reload.
            if let Err(error) = spawn_blocking(move || sampler.sample()).await
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    fn sample(&self) {
        let (policy, time) = (self.limiter.policy(), self.limiter.now().as_nanos() / NANOS_PER_SECOND);
        // Only this task changes the history, so the rules are compared without the lock.
        let before = self.history.lock().policy().cloned();
        let origins = origins(before.as_ref(), policy.as_ref());
        let mut history = self.history.lock();
        let sample = history.add(policy, origins.as_deref(), time);
        self.latest.send_replace(Arc::new(sample));
    }

    /// Returns the samples, beginning with the last one.
    pub fn samples(&self) -> watch::Receiver<Arc<Sample>> {
        let mut samples = self.latest.subscribe();
        samples.mark_changed();
        samples
    }

    /// Returns the last sample with the histories that end with it, of the rules with the indexes that `choose` returns.
    pub fn with_histories<I: IntoIterator<Item = usize>>(
        &self,
        choose: impl FnOnce(&Sample) -> I,
    ) -> (Arc<Sample>, Vec<RuleHistory>) {
        let history = self.history.lock();
        let sample = Arc::clone(&self.latest.borrow());
        let histories = choose(&sample).into_iter().map(|index| history.of_rule(index)).collect();
        (sample, histories)
    }
}
