//! The time of the last reply. This module does no I/O.

#![expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time of the last reply. Before the first one, it is the time when this was made.
pub struct LastReply(Mutex<Instant>);

impl Default for LastReply {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl LastReply {
    /// Records that a reply has arrived.
    pub fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns whether any reply has arrived since `begin`.
    pub fn is_since(&self, begin: Instant) -> bool {
        *self.0.lock() > begin
    }
}
