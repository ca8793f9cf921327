//! Drops futures early, as clients that hang up do.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// The moment when an unfinished future is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropMoment {
    /// As soon as it waits.
    Waiting,
    /// After its event has occurred, but before it is polled.
    Woken,
}

pub const WAYS: [DropMoment; 2] = [DropMoment::Waiting, DropMoment::Woken];

/// Polls the future `polls` times, and then drops it. Returns `None` unless it completed.
pub async fn poll_then_drop<T>(future: impl Future<Output = T>, polls: usize, dropped: DropMoment) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 && dropped == DropMoment::Waiting => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
