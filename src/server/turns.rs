//! Turns for expensive work: requests that run on the blocking pool, or that have long replies.
//!
//! A bounded number runs at once and the rest wait. Otherwise a thousand clients that send `INFO` would have a thread
//! and a reply in memory each. Nothing here knows what the work is.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// Large requests that run at once, those of all fronts together.
pub const MAX_AT_ONCE: usize = 4;

/// The turns that all fronts share. Clones share them, too.
#[derive(Debug, Clone)]
pub struct Turns {
    free: Arc<Semaphore>,
}

impl Turns {
    /// So many turns.
    pub fn new(at_once: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(at_once)) }
    }

    /// Waits for a turn, first come, first served. Dropping the future gives the place in the queue up.
    pub async fn take(&self) -> Turn {
        // The semaphore is never closed, so there is a permit.
        Turn { _permit: Arc::clone(&self.free).acquire_owned().await.ok().map(Arc::new) }
    }
}

/// One turn, free for others once every clone of it is dropped.
#[derive(Debug, Clone)]
pub struct Turn {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Turn {
    /// For work that has its own bound, and so never waits.
    pub fn at_once() -> Self {
        Self { _permit: None }
    }

    /// Does `work` in a task of its own, which keeps the turn to its end: a client that leaves in the middle neither
    /// stops the work half-way nor frees a turn while a thread is still busy.
    ///
    /// # Errors
    /// The work panicked, or the server is ending.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, JoinError> {
        let turn = self.clone();
        tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_rest_wait_until_a_turn_is_free() {
        let turns = Turns::new(1);
        let first = turns.take().await;
        let mut second = pin!(turns.take());
        assert!(poll!(second.as_mut()).is_pending());
        drop(first);
        assert!(poll!(second.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn a_waiter_that_leaves_gives_its_place_up() {
        let turns = Turns::new(1);
        let first = turns.take().await;
        let mut third = pin!(turns.take());
        {
            let mut second = pin!(turns.take());
            assert!(poll!(second.as_mut()).is_pending());
            assert!(poll!(third.as_mut()).is_pending());
        }
        drop(first);
        assert!(poll!(third.as_mut()).is_ready(), "the place of the one that left was before this one");
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_keeps_its_turn_to_its_end() {
        let turns = Turns::new(1);
        let (end, ended) = oneshot::channel::<()>();
        {
            let turn = turns.take().await;
            let mut work = pin!(turn.run(ended));
            assert!(poll!(work.as_mut()).is_pending());
        }
        let mut next = pin!(turns.take());
        tokio::task::yield_now().await;
        assert!(poll!(next.as_mut()).is_pending(), "the work still runs");
        end.send(()).unwrap();
        next.await;
    }
}
