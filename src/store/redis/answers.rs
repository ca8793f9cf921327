//! When Redis was heard last. Nothing here does I/O.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// When anything was answered last.
pub(super) struct Answers {
    began: Instant,
    /// In nanoseconds since `began`.
    last_ns: AtomicU64,
}

impl Default for Answers {
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    fn default() -> Self {
        Self { began: Instant::now(), last_ns: AtomicU64::new(0) }
    }
}

impl Answers {
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    pub(super) fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(now, Relaxed);
    }

    pub(super) fn any_since(&self, begin: Instant) -> bool {
        self.began + Duration::from_nanos(self.last_ns.load(Relaxed)) > begin
    }
}
