//! Supervises essential tasks: a panic is logged and counted, and the task restarts.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt;

use divvy_telemetry::metrics::{Metrics, Task};

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
    metrics.tasks.count_restart(task);
    tracing::error!(task = task.name(), "a background task failed and was restarted");
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

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
        keep_running(Task::Signals, &metrics, begin).await;
        assert_eq!(runs.get(), 3);
        assert_eq!(restarts(&metrics, "signals"), 2.0);
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
