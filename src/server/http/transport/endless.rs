//! Responses without an end: streams of events.
//!
//! Other replies wait in the connection when a client does not read them, and the write timeout ends it. A stream sends so
//! little at a time that the kernel's buffers have room for minutes of it. So once a connection has such a stream, each
//! write checks that the client's machine acknowledges the earlier ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Extension of a response without an end.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

/// Whether a connection has a response without an end. Clones belong to one connection.
#[derive(Debug, Clone, Default)]
pub struct EndlessResponses(Arc<AtomicBool>);

impl EndlessResponses {
    /// Records such a response.
    pub fn begin(&self) {
        self.0.store(true, Relaxed);
    }

    /// Returns whether there was one.
    pub fn have_begun(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The bytes of a connection that the client's machine has acknowledged.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    written: usize,
    /// Bytes that were acknowledged when the client last made progress, and the time.
    last: Option<(usize, Instant)>,
}

impl Acknowledgements {
    /// Records written bytes.
    pub fn add_written(&mut self, bytes: usize) {
        self.written = self.written.wrapping_add(bytes);
    }

    /// Returns whether nothing was acknowledged for this long, although `unsent` bytes wait. Call it before each write.
    pub fn are_overdue(&mut self, unsent: usize, limit: Duration, now: Instant) -> bool {
        if unsent == 0 {
            self.last = None;
            return false;
        }
        let acknowledged = self.written.wrapping_sub(unsent);
        match self.last {
            Some((before, since)) if acknowledged.wrapping_sub(before).cast_signed() <= 0 => {
                now.saturating_duration_since(since) >= limit
            }
            _ => {
                self.last = Some((acknowledged, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn client_that_acknowledges_nothing_is_overdue() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut acknowledgements = Acknowledgements::default();
        for second in 0..100 {
            assert!(!acknowledgements.are_overdue(0, LIMIT, at(second)), "everything is acknowledged");
            acknowledgements.add_written(100);
        }
        for second in 100..200 {
            assert!(!acknowledgements.are_overdue(1_000, LIMIT, at(second)), "a slow client, at {second}");
            acknowledgements.add_written(100);
        }
        let mut unsent = 1_000;
        for second in 200..260 {
            unsent += 100;
            assert_eq!(acknowledgements.are_overdue(unsent, LIMIT, at(second)), second >= 229, "at {second}");
            acknowledgements.add_written(100);
        }
        assert!(!acknowledgements.are_overdue(unsent, LIMIT, at(260)), "an acknowledgement");
        assert!(!acknowledgements.are_overdue(unsent + 10, LIMIT, at(289)));
        assert!(acknowledgements.are_overdue(unsent + 20, LIMIT, at(290)));
    }
}
