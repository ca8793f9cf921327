//! Tasks that a turn runs itself when it has their answers.
//!
//! To wake a task costs about as much as to decide a hit: the scheduler queues it, and runs it later in a context of its own. While a
//! turn wakes its callers, these tasks are collected instead, and the turn then polls them one after the other.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A future to spawn as a task, for example a connection. It asks the limiter, and a turn with its answers polls it at once.
pub struct CallerTask {
    inner: Arc<Inner>,
    waker: Waker,
}

struct Inner {
    /// `None` once it has ended.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Wakes the task. The first poll sets it.
    task: OnceLock<Waker>,
}

thread_local! {
    /// Tasks that were woken while a turn collects them; otherwise `None`.
    static COLLECTED: RefCell<Option<Vec<Arc<Inner>>>> = const { RefCell::new(None) };
}

impl CallerTask {
    /// Returns the future as a task.
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let inner = Arc::new(Inner { future: Mutex::new(Some(Box::pin(future))), task: OnceLock::new() });
        Self { waker: Waker::from(Arc::clone(&inner)), inner }
    }
}

impl Future for CallerTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // A spawned task always has the same waker.
        self.inner.task.get_or_init(|| context.waker().clone());
        self.inner.poll(&self.waker)
    }
}

/// An aborted task ends, even if a turn still knows it.
impl Drop for CallerTask {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl Inner {
    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut future = self.future.lock();
        let Some(running) = &mut *future else { return Poll::Ready(()) };
        running.as_mut().poll(&mut Context::from_waker(waker))
    }

    fn end(&self) {
        let ended = self.future.lock().take();
        drop(ended);
    }

    /// Polls the future in the task of a turn. A panic ends only this caller.
    fn run(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll(&waker)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.end();
            self.wake_task();
        }
    }

    fn wake_task(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        COLLECTED.with_borrow_mut(|collected| match collected {
            Some(tasks) => tasks.push(self),
            None => self.wake_task(),
        });
    }
}

/// While this lives, the thread collects each [`CallerTask`] that is woken. Dropping it runs them.
pub(crate) struct WokenTasks(());

impl WokenTasks {
    pub(crate) fn collect() -> Self {
        COLLECTED.set(Some(Vec::new()));
        Self(())
    }
}

impl Drop for WokenTasks {
    fn drop(&mut self) {
        COLLECTED.take().into_iter().flatten().for_each(Inner::run);
    }
}
