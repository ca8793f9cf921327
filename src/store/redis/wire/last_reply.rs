//! The time of the last reply. Nothing here does I/O.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// The time of the last reply.
pub struct LastReply {
    began: Instant,
    /// In nanoseconds since `began`.
    last_ns: AtomicU64,
}

impl Default for LastReply {
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    fn default() -> Self {
        Self { began: Instant::now(), last_ns: AtomicU64::new(0) }
    }
}

impl LastReply {
    /// Notes that a reply has come.
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    pub fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(now, Relaxed);
    }

    /// Returns whether any reply has come since `begin`.
    pub fn is_since(&self, begin: Instant) -> bool {
        self.began + Duration::from_nanos(self.last_ns.load(Relaxed)) > begin
    }
}
