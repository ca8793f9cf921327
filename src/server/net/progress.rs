//! Checks that a client reads its replies: at least [`LEAST`] bytes in each write timeout.
//!
//! What counts is what the client's machine has acknowledged. The kernel reports room in its buffer only once a third of
//! it is free, which a slow client may take many timeouts to read.

use std::time::Duration;

use tokio::time::Instant;

/// What a client has to take in each write timeout (bytes).
pub const LEAST: usize = 1024;

/// One period after the other in which the client has to take something.
#[derive(Debug)]
pub struct Progress {
    limit: Duration,
    since: Instant,
    /// Bytes that the kernel held when the period began.
    unsent: usize,
    /// Bytes that the kernel was given since.
    given: usize,
}

impl Progress {
    /// Begins a period of `limit` with `unsent` bytes in the kernel's buffer.
    pub fn begin(limit: Duration, now: Instant, unsent: usize) -> Self {
        Self { limit, since: now, unsent, given: 0 }
    }

    /// The kernel was given `bytes` more.
    pub fn gave(&mut self, bytes: usize) {
        self.given = self.given.saturating_add(bytes);
    }

    /// When the period ends.
    pub fn ends(&self) -> Instant {
        self.since + self.limit
    }

    /// Begins the next period, with `unsent` bytes in the kernel's buffer, if the client took enough in this one.
    pub fn goes_on(&mut self, now: Instant, unsent: usize) -> bool {
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
    async fn a_client_has_to_take_so_much_in_each_period() {
        let now = Instant::now();
        let mut progress = Progress::begin(LIMIT, now, 1_000_000);
        assert_eq!(progress.ends(), now + LIMIT);
        let later = now + LIMIT;
        assert!(progress.goes_on(later, 1_000_000 - LEAST));
        assert_eq!(progress.ends(), later + LIMIT);
        assert!(!progress.goes_on(later + LIMIT, 1_000_001 - 2 * LEAST), "the bytes of the period before do not count");
    }

    #[tokio::test]
    async fn what_only_the_kernel_took_is_no_progress() {
        let now = Instant::now();
        let mut progress = Progress::begin(LIMIT, now, 1_000_000);
        progress.gave(5_000);
        assert!(!progress.goes_on(now + LIMIT, 1_005_000));
        progress.gave(5_000);
        assert!(progress.goes_on(now + 2 * LIMIT, 1_005_000));
    }
}
