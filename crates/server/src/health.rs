//! Readiness: whether the server can answer hits now, for `/readyz` and gRPC's health checks; and essential tasks, which restart after
//! a panic that is logged and counted.
//!
//! A probe asks the store once a second, and everything else reads its result. The probe has its own thread, so a store
//! that hangs blocks only the probe. A result is valid for a few seconds. So if a probe hangs, or a commit that it
//! waits for, the server is no longer ready once the result is too old. A probe is never cancelled.

#![expect(clippy::disallowed_methods, reason = "how old the result of a probe is")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use futures_util::FutureExt;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use divvy_limiter::{Limiter, StoreError};
use divvy_telemetry::logging::Escaped;
use divvy_telemetry::metrics::{Metrics, Task};

/// Pause between two probes.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the result of a probe is valid.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The result of the last probe, and whether the server is draining.
#[derive(Debug)]
pub struct Health {
    /// The result, and its time.
    result: watch::Sender<Option<(Result<(), StoreError>, Instant)>>,
    started: Instant,
    draining: CancellationToken,
    /// Cancelled when the last probe is over.
    over: CancellationToken,
    /// Cancelled once there is a configuration; `None` if the server does not wait for one.
    configured: Option<CancellationToken>,
}

/// Reason why hits cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("draining")]
    Draining,
    #[error("the management server has not sent a configuration yet")]
    Unconfigured,
    #[error("the store has not been probed yet")]
    Starting,
    #[error("the store does not answer: {0}")]
    Failing(String),
    #[error("the store does not answer: no response for {} seconds", MAX_AGE.as_secs())]
    Silent,
}

impl Health {
    /// Starts the probe, and the task that logs changes. Must be called within a runtime. Once `draining` is cancelled, the
    /// server is not ready, and the store is not asked. It is not ready either until `configured` is cancelled.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        limiter: &Arc<Limiter>,
        draining: CancellationToken,
        configured: Option<CancellationToken>,
    ) -> io::Result<Arc<Self>> {
        let metrics = Arc::clone(limiter.metrics());
        let limiter = Arc::clone(limiter);
        let health = Self::probed_by(async move || limiter.check_store().await, &metrics, draining, configured)?;
        let logged = Arc::clone(&health);
        tokio::spawn(async move { keep_running(Task::Probe, &metrics, || logged.log_changes()).await });
        Ok(health)
    }

    fn probed_by(
        check: impl AsyncFn() -> Result<(), StoreError> + Send + 'static,
        metrics: &Arc<Metrics>,
        draining: CancellationToken,
        configured: Option<CancellationToken>,
    ) -> io::Result<Arc<Self>> {
        let over = CancellationToken::new();
        let ended = over.clone().drop_guard();
        let result = watch::Sender::new(None);
        let health = Arc::new(Self { result, started: Instant::now(), draining, over, configured });
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (probed, metrics) = (Arc::clone(&health), Arc::clone(metrics));
        let run = move || {
            runtime.block_on(keep_running(Task::Probe, &metrics, || probed.probe(&check)));
            drop(ended);
        };
        thread::Builder::new().name("divvy-probe".into()).spawn(run)?;
        Ok(health)
    }

    async fn probe(&self, check: &impl AsyncFn() -> Result<(), StoreError>) {
        while !self.draining.is_cancelled() {
            let result = check().await;
            self.result.send_replace(Some((result, Instant::now())));
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = self.draining.cancelled() => {}
            }
        }
    }

    /// Waits for the first result, for a few seconds at most.
    pub async fn first(&self) {
        // This cannot fail, because the sender is in `self`.
        let _ = timeout(MAX_AGE, self.result.subscribe().wait_for(Option::is_some)).await;
    }

    /// Waits until the last probe is over after the server began to drain, for a few seconds at most.
    pub async fn over(&self) {
        let _ = timeout(MAX_AGE, self.over.cancelled()).await;
    }

    /// Checks whether hits can be answered, according to the last probe.
    ///
    /// # Errors
    /// Hits cannot be answered.
    pub fn state(&self) -> Result<(), NotReady> {
        if self.draining.is_cancelled() {
            return Err(NotReady::Draining);
        }
        match &*self.result.borrow() {
            result if result.as_ref().map_or(self.started, |(_, at)| *at).elapsed() > MAX_AGE => Err(NotReady::Silent),
            None => Err(NotReady::Starting),
            Some((Err(error), _)) => Err(NotReady::Failing(error.to_string())),
            Some((Ok(()), _)) if self.configured.as_ref().is_some_and(|token| !token.is_cancelled()) => {
                Err(NotReady::Unconfigured)
            }
            Some((Ok(()), _)) => Ok(()),
        }
    }

    /// Calls `tell` at each change of the state, until the server drains.
    pub async fn follow<F: Future<Output = ()>>(&self, mut tell: impl FnMut(Result<(), NotReady>) -> F) {
        let mut result = self.result.subscribe();
        let mut last = None;
        loop {
            let state = self.state();
            if last.as_ref() != Some(&state) {
                tell(state.clone()).await;
            }
            if state == Err(NotReady::Draining) {
                return;
            }
            last = Some(state);
            // A result expires without an event.
            tokio::select! {
                _ = result.changed() => {}
                () = sleep(INTERVAL) => {}
                () = self.draining.cancelled() => {}
            }
        }
    }

    async fn log_changes(&self) {
        let mut is_failing = false;
        self.follow(|state| {
            match &state {
                Ok(()) if is_failing => tracing::info!("ready again: the store answers"),
                Err(reason @ (NotReady::Failing(_) | NotReady::Silent)) => {
                    let reason = reason.to_string();
                    tracing::error!(reason = %Escaped::error(&reason), "not ready: /readyz answers 503");
                }
                _ => {}
            }
            is_failing = matches!(state, Err(NotReady::Failing(_) | NotReady::Silent));
            std::future::ready(())
        })
        .await;
    }
}

/// Pause after a panic, so that a task that always panics leaves time for others.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the task that `begin` creates until it returns, and restarts it after a panic.
///
/// State that the task shares with its next run must be consistent at every await, and at every call that may panic.
pub async fn keep_running<F: Future<Output = ()>>(task: Task, metrics: &Metrics, mut begin: impl FnMut() -> F) {
    while AssertUnwindSafe(async { begin().await }).catch_unwind().await.is_err() {
        record_restart(task, metrics);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs `work`, one round of a thread's loop. A panic ends only this round.
pub fn survive(task: Task, metrics: &Metrics, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        record_restart(task, metrics);
    }
}

/// Logs the restart. The panic itself has been logged already.
fn record_restart(task: Task, metrics: &Metrics) {
    metrics.tasks.count(task);
    tracing::error!(task = task.name(), "a background task failed and was restarted");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Returns the changes of the state, up to and including `last`.
    async fn states_until(health: &Health, last: impl Fn(&Result<(), NotReady>) -> bool) -> Vec<Result<(), NotReady>> {
        let mut states = Vec::new();
        loop {
            let state = health.state();
            if states.last() != Some(&state) {
                states.push(state);
            }
            if states.last().is_some_and(&last) {
                return states;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn failing() -> Result<(), NotReady> {
        Err(NotReady::Failing("it is away".to_owned()))
    }

    #[tokio::test]
    async fn all_readers_notice_when_a_store_fails_and_recovers() {
        let checks = AtomicU32::new(0);
        let check = move || {
            let is_first = checks.fetch_add(1, SeqCst) == 0;
            async move { if is_first { Err(StoreError::Unreachable("it is away".into())) } else { Ok(()) } }
        };
        let draining = CancellationToken::new();
        let health = Health::probed_by(check, &Metrics::new(), draining.clone(), None).unwrap();
        health.first().await;
        assert_eq!(states_until(&health, Result::is_ok).await, [failing(), Ok(())]);
        draining.cancel();
        assert_eq!(health.state(), Err(NotReady::Draining));
        let mut last = Vec::new();
        health
            .follow(|state| {
                last.push(state);
                std::future::ready(())
            })
            .await;
        assert_eq!(last, [Err(NotReady::Draining)]);
    }

    #[tokio::test]
    async fn probe_that_panics_is_restarted_and_a_store_is_not_asked_after_the_drain() {
        let checks = AtomicU32::new(0);
        let check = move || {
            assert_ne!(checks.fetch_add(1, SeqCst), 0, "a bug");
            std::future::ready(Ok(()))
        };
        let draining = CancellationToken::new();
        let health = Health::probed_by(check, &Metrics::new(), draining.clone(), None).unwrap();
        assert_eq!(states_until(&health, Result::is_ok).await, [Err(NotReady::Starting), Ok(())]);
        draining.cancel();
        health.over().await;
        assert!(health.over.is_cancelled(), "no probe is left");
    }

    #[tokio::test]
    async fn probe_that_hangs_never_makes_a_server_ready_and_blocks_nothing() {
        let hang = || std::future::pending();
        let health = Health::probed_by(hang, &Metrics::new(), CancellationToken::new(), None).unwrap();
        assert_eq!(health.state(), Err(NotReady::Starting));
        // Only the age of the result changes the state.
        for (age, state) in [(Duration::ZERO, Ok(())), (2 * MAX_AGE, Err(NotReady::Silent))] {
            health.result.send_replace(Some((Ok(()), Instant::now() - age)));
            assert_eq!(health.state(), state);
        }
    }

    #[tokio::test]
    async fn server_that_waits_for_a_configuration_is_ready_once_there_is_one() {
        let (check, configured) = (|| std::future::ready(Ok(())), CancellationToken::new());
        let draining = CancellationToken::new();
        let health = Health::probed_by(check, &Metrics::new(), draining.clone(), Some(configured.clone())).unwrap();
        health.first().await;
        assert_eq!(health.state(), Err(NotReady::Unconfigured));
        configured.cancel();
        assert_eq!(health.state(), Ok(()));
        draining.cancel();
    }

    #[test]
    fn first_probe_may_be_silent_only_for_a_time() {
        for (age, state) in [(Duration::ZERO, NotReady::Starting), (2 * MAX_AGE, NotReady::Silent)] {
            let started = Instant::now() - age;
            let (draining, over) = Default::default();
            let health = Health { result: watch::Sender::new(None), started, draining, over, configured: None };
            assert_eq!(health.state(), Err(state));
        }
    }

    fn restarts(metrics: &Metrics, task: &str) -> f64 {
        let name = format!("divvy_task_restarts_total{{task=\"{task}\"}}");
        metrics.numbers(Vec::new()).into_iter().find(|(found, _)| *found == name).unwrap().1
    }

    #[tokio::test]
    async fn task_that_panics_is_restarted_until_it_returns() {
        let (metrics, runs) = (Metrics::new(), Cell::new(0));
        let begin = || {
            runs.set(runs.get() + 1);
            assert_ne!(runs.get(), 1, "a panic before the first await");
            async {
                tokio::task::yield_now().await;
                assert_ne!(runs.get(), 2, "a panic after it");
            }
        };
        keep_running(Task::Rules, &metrics, begin).await;
        assert_eq!(runs.get(), 3);
        assert_eq!(restarts(&metrics, "rules"), 2.0);
        assert_eq!(restarts(&metrics, "accept"), 0.0);
    }

    #[test]
    fn panic_ends_only_one_round() {
        let metrics = Metrics::new();
        survive(Task::Rules, &metrics, || panic!("a bug"));
        survive(Task::Rules, &metrics, || ());
        assert_eq!(restarts(&metrics, "rules"), 1.0);
    }
}
