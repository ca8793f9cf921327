//! Checks that a client reads its replies: at least [`LEAST`] bytes in each write timeout.
//!
//! Bytes count once the client's machine has acknowledged them. Free space in the kernel's buffer is not precise
//! enough: the kernel reports it only once a third of the buffer is free, and a slow client may need many timeouts to
//! read that much.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum that a client must read in each write timeout (bytes).
pub const LEAST: usize = 1024;

/// The client's progress in the current period.
#[derive(Debug)]
pub struct Progress {
    limit: Duration,
    since: Instant,
    /// Bytes in the kernel's buffer when the period began.
    unsent: usize,
    /// Bytes given to the kernel since then.
    given: usize,
}

impl Progress {
    /// Begins a period of `limit` with `unsent` bytes in the kernel's buffer.
    pub fn begin(limit: Duration, now: Instant, unsent: usize) -> Self {
        Self { limit, since: now, unsent, given: 0 }
    }

    /// Records that the kernel was given `bytes` more.
    pub fn add_given(&mut self, bytes: usize) {
        self.given = self.given.saturating_add(bytes);
    }

    /// Returns the end of the period.
    pub fn ends(&self) -> Instant {
        self.since + self.limit
    }

    /// Begins the next period with `unsent` bytes in the kernel's buffer. Returns whether the client read enough in the
    /// period that ends.
    pub fn begin_next(&mut self, now: Instant, unsent: usize) -> bool {
        let taken = self.unsent.saturating_add(self.given).saturating_sub(unsent);
        let is_enough = taken >= LEAST;
        *self = Self::begin(self.limit, now, unsent);
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn client_must_read_enough_in_each_period() {
        let now = Instant::now();
        let mut progress = Progress::begin(LIMIT, now, 1_000_000);
        assert_eq!(progress.ends(), now + LIMIT);
        let later = now + LIMIT;
        assert!(progress.begin_next(later, 1_000_000 - LEAST));
        assert_eq!(progress.ends(), later + LIMIT);
        assert!(
            !progress.begin_next(later + LIMIT, 1_000_001 - 2 * LEAST),
            "the bytes of the period before do not count"
        );
    }

    #[tokio::test]
    async fn bytes_in_the_kernel_do_not_count_as_progress() {
        let now = Instant::now();
        let mut progress = Progress::begin(LIMIT, now, 1_000_000);
        progress.add_given(5_000);
        assert!(!progress.begin_next(now + LIMIT, 1_005_000));
        progress.add_given(5_000);
        assert!(progress.begin_next(now + 2 * LIMIT, 1_005_000));
    }
}
