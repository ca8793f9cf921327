//! Returns freed memory to the system.
//!
//! The allocator keeps what a thread freed for that thread, and checks whether it has been idle only when the thread
//! allocates again. After a burst, an idle server would keep all of it forever.

use std::time::Duration;

use mimalloc as _;

/// How often a thread gives back what it does not need.
const EVERY: Duration = Duration::from_secs(5);

#[expect(unsafe_code, reason = "the allocator's crate wraps this function in no safe one")]
unsafe extern "C" {
    /// Gives back what the calling thread has freed, and pages that were unused for a while; all pages with `force`.
    safe fn mi_collect(force: bool);
}

/// Gives memory back on the thread that polls this, again and again.
pub async fn give_back() {
    loop {
        tokio::time::sleep(EVERY).await;
        mi_collect(false);
    }
}
