//! Returns freed memory to the system.
//!
//! The allocator keeps the memory that a thread freed for that thread, and checks whether the thread has been idle only
//! when it allocates again. After a burst, an idle server would keep all of it forever.

use std::time::Duration;

/// Interval at which a thread returns memory that it does not use.
const INTERVAL: Duration = Duration::from_secs(5);

/// Returns freed memory of the thread that polls this, at intervals, forever.
pub async fn return_freed_memory() {
    loop {
        tokio::time::sleep(INTERVAL).await;
        divvy_sys::return_freed_memory();
    }
}
